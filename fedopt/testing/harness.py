"""Build small runs for the tests, of every algorithm on the problems that it can solve, and distribute the tests over them."""

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from fedopt.config import (
    CONF,
    Composed,
    chain,
    class_path,
    compose,
    content,
    file_of,
    imported,
    last_of_each,
    merge,
    values_of,
    with_project,
)
from fedopt.errors import UserError
from fedopt.problems import Problem, class_of, covered, projects
from fedopt.problems import name as class_name
from fedopt.running import Experiment
from fedopt.running.assemble import assemble

PAIR = ["algo=fedmsa", "problem=mco"]
# Your config folder, whose files are then tested: FEDOPT_CONTRACT_CONF=DIR pytest --pyargs fedopt.testing
EXTRA = os.environ.get("FEDOPT_CONTRACT_CONF")
if EXTRA and not any(Path(EXTRA, group).is_dir() for group in ("algo", "problem")):
    raise UserError(f"FEDOPT_CONTRACT_CONF={EXTRA}: contains no folder algo or problem; set it to your config folder")
if EXTRA:
    with_project()  # so that the user's modules can be imported
FULL = 3  # the number of checks of a pair that are marked full
FOLDERS = [CONF, *([Path(EXTRA)] if EXTRA else [])]


def contract(path: Path) -> dict[str, Any]:
    """Read a file contract.yaml, and return its content; {} if the file is missing.

    The file maps the name of an algorithm, the name of a problem or the pair 'ALGO PROBLEM' to overrides. It may have three
    further keys. ``less`` maps algorithms to overrides that reduce their work. ``everyone`` lists the algorithms that need all
    clients in each round. ``approximate`` maps algorithms to the largest distance that three rounds may move the iterates away
    from the solution.

    Args:
        path: The path of the file.
    """
    return content(path) if path.exists() else {}


OURS = contract(Path(__file__).with_name("contract.yaml"))
YOURS = contract(Path(EXTRA) / "contract.yaml") if EXTRA else {}
LESS: dict[str, list[str]] = OURS.pop("less") | YOURS.pop("less", {})
EVERYONE: list[str] = OURS.pop("everyone") + YOURS.pop("everyone", [])  # algorithms without cohorts
# Algorithm -> the largest distance that three rounds may move the iterates away from the solution
APPROXIMATE: dict[str, float] = OURS.pop("approximate") | YOURS.pop("approximate", {})
FEDERATION = ["partitioner.clients=6", "participation.cohort=3", "hardware.dtype=float64", "hardware.threads=1"]


def names(group: str) -> list[str]:
    return sorted(path.stem for folder in FOLDERS for path in (folder / group).glob("*.yaml"))


def held(group: str) -> list[str]:
    """Return the names under test: those in your config folder if FEDOPT_CONTRACT_CONF is set, otherwise those in fedopt's.

    Args:
        group: The config group, ``algo`` or ``problem``.
    """
    return sorted(path.stem for path in (FOLDERS[-1] / group).glob("*.yaml"))


named = {override for name in (*YOURS, *LESS, *APPROXIMATE) for override in name.split()}
if unknown := ", ".join(sorted(named - {*names("algo"), *names("problem")})):
    raise UserError(f"{EXTRA}/contract.yaml: there is no algorithm or problem {unknown}; correct the name")


@cache
def class_at(group: str, name: str) -> Any:
    return imported(class_path(group, name, FOLDERS[1:]), str(file_of(group, name, FOLDERS[1:])))


def is_ours(group: str, name: str) -> bool:
    """Return whether an algorithm or a problem is part of fedopt.

    Args:
        group: The config group, ``algo`` or ``problem``.
        name: The name of the algorithm or problem.
    """
    return class_at(group, name).__module__.startswith("fedopt.")


@cache
def problem_classes() -> dict[str, str]:
    """Return name of a problem -> name of its class, such as minimax."""
    return {p: class_name(class_of(class_at("problem", p))) for p in names("problem")}


@cache
def pairs() -> list[tuple[str, str]]:
    """Return all pairs of names (algorithm, problem) in which the algorithm can solve the problem."""
    classes = problem_classes()
    solvable = {algo: covered(class_at("algo", algo).solves) for algo in names("algo")}
    found = [(a, p) for a in names("algo") for p in names("problem") if classes[p] in solvable[a]]
    return [(a, p) for a, p in found if projects(class_at("problem", p), class_at("algo", a))]


def held_pairs() -> list[tuple[str, str]]:
    """Return the compatible pairs (algorithm, problem) of which at least one member is under test."""
    algos, problems = held("algo"), held("problem")
    return [(a, p) for a, p in pairs() if a in algos or p in problems]


def composed(*overrides: str) -> Composed:
    return compose(overrides, FOLDERS[1:])


@cache
def fields(group: str, name: str) -> dict[str, Any]:
    """Return the value of each field of an algorithm or a problem, as set by its YAML file and by the files on which it is based.

    Only the files of the group are read, because composing every config would take half a minute.

    Args:
        group: The config group, ``algo`` or ``problem``.
        name: The name of the algorithm or problem.
    """
    found: dict[str, Any] = {}
    for option in chain(group, name, FOLDERS[1:]):
        for key, value in values_of(group, option, FOLDERS[1:]).items():
            place, _, field = key.partition(".")
            field, _, inside = field.partition(".")  # the keys of a schedule are one level deeper
            if place == group and field[0] != "_":
                found[field] = {inside: value} if inside else value
    return found


def structure(algo: str) -> tuple[Any, ...]:
    """Return the settings that determine which code of an algorithm runs.

    They are its class, the fields whose values are not numbers, and for each number whether it is zero. Batch sizes are ignored.

    Args:
        algo: The name of the algorithm.
    """

    def kind(value: Any) -> Any:
        if isinstance(value, str) and value[0].isdigit():  # '5 epochs'
            return True
        return value if isinstance(value, str | None) else bool(value)

    kinds = {field: kind(value) for field, value in fields("algo", algo).items() if field[0] != "B"}
    return class_at("algo", algo), *sorted(kinds.items())


@cache
def variants() -> frozenset[str]:
    """Return fedopt's algorithms that run the same code as an earlier algorithm and differ from it only in numbers.

    Algorithms are ordered by the number of files from which their YAML file inherits (``defaults``), and then by name.
    """
    first: dict[tuple[Any, ...], str] = {}
    for algo in sorted(names("algo"), key=lambda name: (len(chain("algo", name, FOLDERS[1:])), name)):
        first.setdefault(structure(algo), algo)
    return frozenset(algo for algo in {*names("algo")} - {*first.values()} if is_ours("algo", algo))


@cache
def usual_pairs() -> frozenset[tuple[str, str]]:
    """Return the pairs (algorithm, problem) that are tested by default.

    Each algorithm, except `variants`, is paired with one problem of each class that it solves directly, and with one problem
    that it can solve only after a reduction to another class, if there is one. Each problem is in at least one pair.
    """
    classes = problem_classes()
    usual: dict[tuple[str, str], None] = {}
    used = Counter[str]()
    for algo in (name for name in names("algo") if name not in variants()):
        covers = [p for a, p in pairs() if a == algo]
        itself = {classes[p] for p in covers if issubclass(class_at("problem", p), class_at("algo", algo).solves)}
        reduced = sorted({classes[p] for p in covers} - itself, key=lambda kind: (used[kind], kind))
        for kind in [*sorted(itself), *reduced[:1]]:
            rarest = min((p for p in covers if classes[p] == kind), key=lambda p: (used[p], p))
            used.update([kind, rarest])
            usual[algo, rarest] = None
    usual |= {next(pair for pair in pairs() if pair[1] == p): None for p in names("problem") if not used[p]}
    return frozenset(usual)


@cache
def with_variants() -> frozenset[tuple[str, str]]:
    """Return the `usual_pairs`, and a pair for each variant: a problem with a known solution, of the first class that it solves."""
    closed = [p for p in names("problem") if class_at("problem", p).solution is not Problem.solution]
    by_kind = {problem_classes()[p]: p for p in reversed(closed)}
    return usual_pairs() | {(v, by_kind[class_name(class_at("algo", v).solves[0])]) for v in variants()}


@cache
def in_turn(checks: Callable[[str, str], list[tuple[str, ...]]]) -> dict[str, list[Any]]:
    """Distribute the checks over the pairs, and return the cases of each test: name of the test -> pytest parameters.

    The parameters of a case are the algorithm, the problem and, if the test has several settings, a setting.

    By default, each pair of `usual_pairs` runs only one check: the one that the fewest pairs run so far. The other checks are
    marked, so that pytest runs them only on request: for each pair of `with_variants`, `FULL` further checks have the mark
    ``full``, and all other checks have the mark ``slow``. If your own files are tested, every check runs by default.

    Args:
        checks: A function of (algorithm, problem) that lists the checks of the pair, each as (name of the test, setting) or,
            without settings, (name of the test,).
    """
    cases, often, in_full = defaultdict[str, list[Any]](list), Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
    for pair in held_pairs():
        asked = checks(*pair)
        usual = asked if EXTRA else [min(asked, key=often.__getitem__)] if pair in usual_pairs() else []
        often.update(usual)
        others = sorted((check for check in asked if check not in usual), key=in_full.__getitem__)
        full = others[:FULL] if pair in with_variants() else []
        in_full.update(full)
        for check in asked:
            test, *setting = check
            marks: Any = [] if check in usual else pytest.mark.full if check in full else pytest.mark.slow
            cases[test].append(pytest.param(*pair, *setting, marks=marks))
    return cases


def make(metafunc: pytest.Metafunc, cases: list[Any]) -> None:
    """Parametrise a test with its cases. Cases that pytest's option `-m` would deselect are left out, because creating them
    is slow.

    The option `-m smoke` leaves out cases that are marked full or slow.

    Args:
        metafunc: The test function, as pytest passes it.
        cases: The parameters of its cases.
    """
    expression = metafunc.config.option.markexpr

    def left_out(mark: str) -> bool:
        return f"not {mark}" in expression or (expression.isidentifier() and expression != mark)

    names = ("algo", "problem", "setting")[: len(cases[0].values)]
    metafunc.parametrize(names, [case for case in cases if not any(left_out(mark.name) for mark in case.marks)])


def config(*overrides: str) -> dict[str, Any]:
    """Compose a config without checking its values, and return it as nested dictionaries.

    If the overrides choose no algorithm, FedMSA is used. If they choose no problem, mco is used.

    Args:
        overrides: Overrides such as ``algo.tau=5``.
    """
    chosen = {override.partition("=")[0] for override in overrides}
    others = [override for override in PAIR if not {override.partition("=")[0], "experiment"} & chosen]
    return dict(merge([*others, *overrides], FOLDERS[1:]).nodes)


def contract_overrides(algo: str, problem: str) -> list[str]:
    """Return the overrides for a pair in fedopt's contract.yaml, followed by the overrides in your contract.yaml.

    Args:
        algo: The name of the algorithm.
        problem: The name of the problem.
    """
    names = (algo, problem, f"{algo} {problem}")
    return [override for said in (OURS, YOURS) for name in names for override in said.get(name, [])]


def small(algo: str, problem: str, *overrides: str) -> Experiment:
    """Assemble an algorithm and a problem as `tuned` does, but with less work per round, and return the experiment.

    Args:
        algo: The name of the algorithm.
        problem: The name of the problem.
        overrides: Further overrides, which take precedence.
    """
    return tuned(algo, problem, *LESS.get(algo, []), *overrides)


def tuned(algo: str, problem: str, *overrides: str) -> Experiment:
    """Assemble a pair with the values under which it is tested: six clients, cohorts of three, float64, one thread.

    Later sources take precedence: the YAML files of the pair, fedopt/testing/contract.yaml, these settings, and
    ``overrides``. Algorithms that need everyone get no cohorts.

    Args:
        algo: The name of the algorithm.
        problem: The name of the problem.
        overrides: Further overrides.
    """
    chosen = [f"algo={algo}", f"problem={problem}", *contract_overrides(algo, problem), *FEDERATION, *overrides]
    if algo in EVERYONE:
        chosen = [override for override in chosen if not override.startswith("participation.")]
        chosen.append("participation.cohort=null")
    return assemble(composed(*last_of_each(chosen)))


def iterate(e: Experiment, rounds: int) -> Iterator[Any]:
    """Yield the initial state, and then the state after each round.

    Args:
        e: The experiment.
        rounds: The number of rounds.
    """
    state = e.algorithm.init(e.federation.problem)
    yield state
    for r in range(rounds):
        state = e.algorithm.step(state, e.federation.problem, e.federation.at(r))
        yield state


def steps(e: Experiment, rounds: int) -> list[Any]:
    return list(iterate(e, rounds))


def leaves(state: Any) -> list[torch.Tensor]:
    return [torch.as_tensor(leaf) for leaf in tree_leaves(state)]
