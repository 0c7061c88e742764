"""Small runs for the tests: every algorithm that conf/algo has, on every problem of a class that it covers."""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from support.command import PAIR
from torch.utils._pytree import tree_leaves

from fedopt.config.build import imported
from fedopt.config.compose import Composed, compose, merge
from fedopt.config.files import CONF, chain, class_path, file_of, values_of
from fedopt.config.words import last_of_each
from fedopt.errors import UserError
from fedopt.federation.draws import Drawn
from fedopt.problems.classes import Problem, class_of
from fedopt.problems.classes import name as class_name
from fedopt.problems.reductions import covered
from fedopt.randomness import Purpose, keyed_rng
from fedopt.running.assemble import Experiment, assemble

# A folder with a conf/algo of its own joins the contract tests: FEDOPT_CONTRACT_CONF=DIR pytest tests/algorithms/test_contract.py
EXTRA = os.environ.get("FEDOPT_CONTRACT_CONF")
if EXTRA and not any(Path(EXTRA, group).is_dir() for group in ("algo", "problem")):
    raise UserError(f"FEDOPT_CONTRACT_CONF={EXTRA}: there is no folder algo or problem in it")
FOLDERS = [CONF, *([Path(EXTRA)] if EXTRA else [])]


def contract(path: Path) -> dict[str, Any]:
    """What a contract.yaml says: overrides by NAME or by 'ALGO PROBLEM'; less, by ALGO; everyone: [ALGO]; approximate, by ALGO."""
    return (yaml.safe_load(path.read_text()) if path.exists() else None) or {}


OURS = contract(Path(__file__).with_name("contract.yaml"))
YOURS = contract(Path(EXTRA) / "contract.yaml") if EXTRA else {}
LESS: dict[str, list[str]] = OURS.pop("less") | YOURS.pop("less", {})
EVERYONE: list[str] = OURS.pop("everyone") + YOURS.pop("everyone", [])  # algorithms that take no cohorts
# How far from the solution rounds may lead
APPROXIMATE: dict[str, float] = OURS.pop("approximate") | YOURS.pop("approximate", {})
FEDERATION = ["partitioner.clients=6", "participation.cohort=3", "hardware.dtype=float64", "hardware.threads=1"]


def names(group: str) -> list[str]:
    return sorted(path.stem for folder in FOLDERS for path in (folder / group).glob("*.yaml"))


if unknown := {word for name in (*YOURS, *LESS, *APPROXIMATE) for word in name.split()} - {
    *names("algo"),
    *names("problem"),
}:
    raise UserError(f"{EXTRA}/contract.yaml: there is no algorithm or problem {', '.join(sorted(unknown))}")


@cache
def node(group: str, name: str) -> dict[str, Any]:
    """What choosing this file makes of the group's node."""
    return config(f"{group}={name}")[group]


@cache
def class_at(group: str, name: str) -> Any:
    return imported(class_path(group, name, FOLDERS[1:]), str(file_of(group, name, FOLDERS[1:])))


def is_ours(group: str, name: str) -> bool:
    """Whether the class is one of fedopt's."""
    return class_at(group, name).__module__.startswith("fedopt.")


@cache
def problem_classes() -> dict[str, str]:
    """The class of each problem."""
    return {p: class_name(class_of(class_at("problem", p))) for p in names("problem")}


@cache
def pairs() -> list[tuple[str, str]]:
    """Every algorithm with every problem of a class that it covers."""
    classes = problem_classes()
    return [
        (a, p) for a in names("algo") for p in names("problem") if classes[p] in covered(class_at("algo", a).solves)
    ]


def composed(*words: str) -> Composed:
    return compose(words, FOLDERS[1:])


def structure(algo: str) -> tuple[Any, ...]:
    """What decides which code of an algorithm runs: its class, its choices, and which numbers are zero; batches aside."""

    def kind(value: Any) -> Any:
        amount = isinstance(value, str) and value[0].isdigit()  # '5 epochs'
        return amount or (value if isinstance(value, str | None) else bool(value))

    kinds: dict[str, Any] = {}
    for option in chain(
        "algo", algo, FOLDERS[1:]
    ):  # from the files alone: composing all of them would take half a minute
        for key, value in values_of("algo", option, FOLDERS[1:]).items():
            place, _, field = key.partition(".")
            field, _, inside = field.partition(".")  # of a schedule, its keys are inside
            if place == "algo" and field[0] not in "_B":
                kinds[field] = bool(inside) or kind(value)
    return class_at("algo", algo), *sorted(kinds.items())


@cache
def variants() -> frozenset[str]:
    """fedopt's algorithms of the same structure as one before them, which files with fewer parents come before."""
    seen, repeated = set[tuple[Any, ...]](), set[str]()
    for algo in sorted(names("algo"), key=lambda name: (len(chain("algo", name, FOLDERS[1:])), name)):
        if structure(algo) in seen and is_ours("algo", algo):
            repeated.add(algo)
        seen.add(structure(algo))
    return frozenset(repeated)


@cache
def usual_pairs() -> frozenset[tuple[str, str]]:
    """Each algorithm with one problem of each class that it solves, and of one that a reduction brings it to, in turn; each problem
    with one algorithm; and all of your own. Variants have no pair."""
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
    own = {(a, p) for a, p in pairs() if not (is_ours("algo", a) and is_ours("problem", p))}
    return frozenset({*usual, *own})


@cache
def with_variants() -> frozenset[tuple[str, str]]:
    """The usual pairs, and each variant with one problem of its first class, whose solution is known."""
    closed = {
        p: kind for p, kind in problem_classes().items() if class_at("problem", p).solution is not Problem.solution
    }
    first = {variant: class_name(class_at("algo", variant).solves[0]) for variant in variants()}
    return usual_pairs() | {(v, next(p for p, kind in closed.items() if kind == first[v])) for v in variants()}


def marked(
    cases: Iterable[tuple[Any, ...]], usual: Callable[[], frozenset[tuple[str, str]]] = usual_pairs
) -> list[Any]:
    """Cases that begin with an algorithm and a problem; those that are no usual pair are slow."""
    return [pytest.param(*case, marks=[] if case[:2] in usual() else pytest.mark.slow) for case in cases]


def config(*words: str) -> dict[str, Any]:
    """The values that words compose to, checked or not; with FedMSA on mco for what they do not choose."""
    chosen = {word.partition("=")[0] for word in words}
    others = [word for word in PAIR if not {word.partition("=")[0], "experiment"} & chosen]
    return dict(merge([*others, *words], FOLDERS[1:]).nodes)


def overrides(algo: str, problem: str) -> list[str]:
    """Those of the contract.yaml files for a pair, yours last."""
    names = (algo, problem, f"{algo} {problem}")
    return [word for said in (OURS, YOURS) for name in names for word in said.get(name, [])]


def small(algo: str, problem: str, *words: str) -> Experiment:
    """With less work a round."""
    return tuned(algo, problem, *LESS.get(algo, []), *words)


def tuned(algo: str, problem: str, *words: str) -> Experiment:
    """With tuned values, except for those of contract.yaml."""
    chosen = [f"algo={algo}", f"problem={problem}", *overrides(algo, problem), *FEDERATION, *words]
    if algo in EVERYONE:
        chosen = [*(word for word in chosen if not word.startswith("participation.")), "participation.cohort=null"]
    return assemble(composed(*last_of_each(chosen)))


def rows_of(whole: dict[str, Any], drawn: Drawn, split: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Which examples each sample takes and with what weights, [clients, samples, B]."""
    rows, weight = whole[split]
    if not drawn.positions:
        return rows[:, None], weight[:, None]
    positions, weight = drawn.positions[split]
    return torch.stack([own[at] for own, at in zip(rows, positions, strict=True)]), weight


def sampling(seed: int, r: int, exchange: int) -> Callable[[int], np.random.Generator]:
    """The generators of the clients' samples in an exchange, counted from 1, of round r = 0, 1, ..."""
    return lambda client: keyed_rng(seed, Purpose.SAMPLES, r + 1, exchange, client)


def real(path: str) -> Path:
    """The folder of the real data that has this file or folder; without it the test is skipped."""
    folder = os.environ.get("FEDOPT_DATA")
    if not folder:
        pytest.skip("needs data: FEDOPT_DATA is not set")
    if not (Path(folder) / path).exists():
        pytest.skip(f"needs data: {folder} has no {path}")
    return Path(folder)


def iterate(e: Experiment, rounds: int) -> Iterator[Any]:
    """The states of a run, the initial one first."""
    state = e.algorithm.init(e.problem)
    yield state
    for r in range(rounds):
        state = e.algorithm.step(state, e.problem, e.federation.at(r))
        yield state


def steps(e: Experiment, rounds: int) -> list[Any]:
    return list(iterate(e, rounds))


def leaves(state: Any) -> list[torch.Tensor]:
    return [torch.as_tensor(leaf) for leaf in tree_leaves(state)]
