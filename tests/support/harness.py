"""Small runs for the tests: every algorithm that conf/algo has, on every problem of a class that it covers."""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch.utils._pytree import tree_leaves

from fedopt.config.build import imported
from fedopt.config.compose import Composed, compose, merge
from fedopt.config.files import CONF
from fedopt.errors import UserError
from fedopt.federation.draws import Drawn
from fedopt.problems.classes import class_of
from fedopt.problems.classes import name as class_name
from fedopt.problems.reductions import covered
from fedopt.randomness import Purpose, keyed_rng
from fedopt.running.assemble import Experiment, assemble

# A folder with a conf/algo of its own joins the contract tests: FEDOPT_CONTRACT_CONF=DIR pytest tests/algorithms/test_contract.py
EXTRA = os.environ.get("FEDOPT_CONTRACT_CONF")
if EXTRA and not any(Path(EXTRA, group).is_dir() for group in ("algo", "problem")):
    raise UserError(f"FEDOPT_CONTRACT_CONF={EXTRA}: there is no folder algo or problem in it")
FOLDERS = [CONF, *([Path(EXTRA)] if EXTRA else [])]

SMALL = {
    "mco": ["problem.examples=1000"],
    "quadratic_bilevel": ["problem.examples=64"],
    "quadratic_minimax": ["problem.examples=64"],
    "quadratic_minimisation": ["problem.examples=64"],
    "imbalanced_mnist": [
        "dataset=digits",
        "problem.largest=140",
        "problem.imbalance=0.5",
        "problem.widths=[9]",
        "partitioner=iid",
    ],
    "hyper_representation": ["dataset=digits", "problem.widths=[9]", "partitioner=iid"],
    "robust_nn": [
        "dataset=digits",
        "problem.model=mlp",
        "problem.widths=[9]",
        "problem.ascent=2",
        "problem.examples=120",
        "partitioner=iid",
    ],
    "fair_classification": [
        "dataset=digits",
        "problem.model=mlp",
        "problem.widths=[9]",
        "problem.examples=120",
        "partitioner=iid",
    ],
    "classification": ["dataset=digits", "problem.widths=[9]"],
    "classification_with_server": ["dataset=digits", "partitioner=iid"],
    "hierarchical": ["dataset=digits", "problem.fit=10", "partitioner=iid"],
    "zo_hfl": ["algo.tau=3"],
    "localbsgm": ["algo.p=2", "algo.Q=3"],
    "localbsgvrm": ["algo.p=2", "algo.Q=3"],
}
# What contract.yaml says of one's own: overrides by NAME or by 'ALGO PROBLEM', and how far from the solution rounds may lead
OWN: dict[str, Any] = {}
if EXTRA and (Path(EXTRA) / "contract.yaml").exists():
    OWN = yaml.safe_load((Path(EXTRA) / "contract.yaml").read_text()) or {}
APPROXIMATE: dict[str, float] = OWN.pop("approximate", {})
FEDERATION = ["partitioner.clients=6", "participation.cohort=3", "hardware.dtype=float64", "hardware.threads=1"]


def names(group: str) -> list[str]:
    return sorted(path.stem for folder in FOLDERS for path in (folder / group).glob("*.yaml"))


if unknown := {word for name in (*OWN, *APPROXIMATE) for word in name.split()} - {*names("algo"), *names("problem")}:
    raise UserError(f"{EXTRA}/contract.yaml: there is no algorithm or problem {', '.join(sorted(unknown))}")


def path(group: str, name: str) -> Path:
    return next(path for folder in FOLDERS if (path := folder / group / f"{name}.yaml").exists())


@cache
def read(group: str, name: str) -> dict[str, Any]:
    """The node of a file, without what the files that it builds on say, but for the keys with an underscore."""
    content = yaml.safe_load(path(group, name).read_text())
    bases = [base for base in content.get("defaults", []) if isinstance(base, str) and base != "_self_"]
    base = read(group, bases[0]) if bases else {}
    return {key: value for key, value in base.items() if key.startswith("_")} | content.get(group, content)


@cache
def node(group: str, name: str) -> dict[str, Any]:
    """What choosing this file makes of the group's node."""
    return config(f"{group}={name}")[group]


def class_at(group: str, name: str) -> Any:
    return imported(read(group, name)["_target_"], str(path(group, name)))


def is_ours(group: str, name: str) -> bool:
    """Whether the class is one of fedopt's."""
    return class_at(group, name).__module__.startswith("fedopt.")


def problem_classes() -> dict[str, str]:
    """The class of each problem."""
    return {p: class_name(class_of(class_at("problem", p))) for p in names("problem")}


def pairs() -> list[tuple[str, str]]:
    """Every algorithm with every problem of a class that it covers."""
    classes = problem_classes()
    return [
        (a, p) for a in names("algo") for p in names("problem") if classes[p] in covered(class_at("algo", a).solves)
    ]


def composed(*words: str) -> Composed:
    return compose(words, FOLDERS[1:])


@cache
def usual_pairs() -> frozenset[tuple[str, str]]:
    """Each algorithm with one problem of each class that it covers, each problem with one algorithm, and all of your own."""
    classes = problem_classes()
    usual: dict[tuple[str, str], None] = {}
    used = Counter()
    for algo in names("algo"):
        for kind in sorted({classes[p] for a, p in pairs() if a == algo}):
            rarest = min((p for a, p in pairs() if a == algo and classes[p] == kind), key=lambda p: (used[p], p))
            used[rarest] += 1
            usual[algo, rarest] = None
    usual |= {next(pair for pair in pairs() if pair[1] == p): None for p in names("problem") if not used[p]}
    own = {(a, p) for a, p in pairs() if not (is_ours("algo", a) and is_ours("problem", p))}
    return frozenset({*usual, *own})


def marked(cases: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Cases that begin with an algorithm and a problem; those that are no usual pair are slow."""
    return [pytest.param(*case, marks=[] if case[:2] in usual_pairs() else pytest.mark.slow) for case in cases]


def config(*words: str) -> dict[str, Any]:
    """The values that words compose to, checked or not."""
    return dict(merge(words, FOLDERS[1:]).nodes)


def own_words(algo: str, problem: str) -> list[str]:
    """The overrides of contract.yaml."""
    return [word for name in (algo, problem, f"{algo} {problem}") for word in OWN.get(name, [])]


def small(algo: str, problem: str, *overrides: str) -> Experiment:
    """With less work a round."""
    return tuned(algo, problem, *overrides, less=SMALL.get(algo, []))


def tuned(algo: str, problem: str, *overrides: str, less: Sequence[str] = ()) -> Experiment:
    """With the values of the preset, but for `less`, and those of contract.yaml."""
    usual = [*SMALL.get(problem, []), *FEDERATION, *less, *own_words(algo, problem)]
    return assemble(composed(f"algo={algo}", f"problem={problem}", *usual, *overrides))


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
