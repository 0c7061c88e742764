"""Small runs for the tests: every algorithm that conf/algo has, on every problem of a class that it covers."""

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from fedopt.config import CONF, composed, plain
from fedopt.experiment import Experiment, assemble
from fedopt.federation.draws import Drawn

# A folder with a conf/algo of its own joins the contract tests: FEDOPT_CONTRACT_CONF=DIR pytest tests/test_contract.py
EXTRA = os.environ.get("FEDOPT_CONTRACT_CONF")
FOLDERS = [CONF, *([Path(EXTRA)] if EXTRA else [])]

SMALL = {
    "mco": ["problem.examples=1000"],
    "quadratic_bilevel": ["problem.examples=64"],
    "quadratic_minimax": ["problem.examples=64"],
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
FEDERATION = ["partitioner.clients=6", "participation.cohort=3", "hardware.dtype=float64", "hardware.threads=1"]


def names(group: str) -> list[str]:
    return sorted(path.stem for folder in FOLDERS for path in (folder / group).glob("*.yaml"))


@cache
def node(group: str, name: str) -> dict[str, Any]:
    """What choosing this file makes of the group's node."""
    return config(f"{group}={name}")[group]


def pairs() -> list[tuple[str, str]]:
    """Every algorithm with every problem of a class that it covers."""
    return [
        (a, p)
        for a in names("algo")
        for p in names("problem")
        if node("problem", p)["_class_"] in node("algo", a)["_solves_"]
    ]


def config(*overrides: str) -> dict[str, Any]:
    return plain(composed(overrides, FOLDERS[1:]))


def small(algo: str, problem: str, *overrides: str) -> Experiment:
    """With less work a round."""
    return tuned(algo, problem, *SMALL.get(algo, []), *overrides)


def tuned(algo: str, problem: str, *overrides: str) -> Experiment:
    """With the values of the preset."""
    return assemble(config(f"algo={algo}", f"problem={problem}", *SMALL.get(problem, []), *FEDERATION, *overrides))


def rows_of(whole: dict[str, Any], drawn: Drawn, split: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Which examples each sample takes and with what weights, [clients, samples, B]."""
    rows, weight = whole[split]
    if not drawn.positions:
        return rows[:, None], weight[:, None]
    positions, weight = drawn.positions[split]
    return torch.stack([own[at] for own, at in zip(rows, positions, strict=True)]), weight


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
