"""Folders of runs, written without running anything."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from fedopt.config.tuned import Tuned
from fedopt.metrics import DISTANCE, TEST_ACCURACY, TRAIN_LOSS, Metric

FEDMSA = {"_target_": "fedopt.algorithms.fedmsa.FedMSA", "_solves_": ["bilevel", "minimisation"], "K": 5}


FEDAVG = {"_target_": "fedopt.algorithms.fedavg.FedAvg", "_solves_": ["minimisation"], "eta": 0.1}


MCO = {"_target_": "fedopt.problems.mco.Mco", "d": 10}


SADDLE = {"_target_": "fedopt.problems.saddle.Saddle"}


def record(
    folder: Path,
    values: Iterable[float],
    seed: int = 0,
    metric: str = "test_accuracy",
    every: int = 10,
    status: str = "finished",
    algo: dict[str, Any] = FEDMSA,
    **config: Any,
) -> Path:
    """A run with an evaluation each `every` rounds: 2 exchanges, 100 bytes down, 50 up and half a second a round."""
    folder.mkdir(parents=True)
    config = {"seed": seed, "name": "a_b", "algo": algo, "problem": MCO, "output_dir": str(folder), **config}
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    lines = [f"round,comm_rounds,bytes_down,bytes_up,grad_calls,train_seconds,train_loss,{metric}"]
    for r, value in zip(range(0, 10_000, every), values, strict=False):
        lines.append(f"{r},{2 * r},{100 * r},{50 * r},{7 * r},{0.5 * r},0.25,{value}")
    (folder / "metrics.csv").write_text("\n".join(lines) + "\n")
    described = {"test_accuracy": TEST_ACCURACY, "distance": DISTANCE}.get(metric, Metric(metric, metric))
    card = {"metrics": [asdict(described), asdict(TRAIN_LOSS)]}
    (folder / "run.json").write_text(json.dumps(card))
    (folder / "summary.json").write_text(json.dumps({"status": status}))
    return folder


def change_card(folder: Path, **entries: Any) -> None:
    """Change entries of a run's run.json."""
    card = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(card | entries))


def named(
    folder: Path,
    choice: str,
    *values: float,
    seed: int = 0,
    tuned: str = "",
    defaults: bool = False,
    problem: str = "mco",
    **config: Any,
) -> None:
    """A run whose card names the options that were chosen; FedNest and LFedNest are of one class."""
    if problem == "saddle":
        config["problem"] = SADDLE
    record(folder, values, seed, **config)
    entries: dict[str, Any] = {"chosen": {"algo": choice, "problem": problem, "dataset": "None"}}
    if tuned:
        keys = () if defaults else ("algo.K",)
        entries["tuned"] = asdict(Tuned(tuned, f"{choice} on mco", keys, defaults=defaults))
    change_card(folder, **entries)


def two_problems(folder: Path, finals: dict[str, tuple[float, float]]) -> None:
    """Runs of methods on two problems. finals: method -> its last values on them."""
    for method, values in finals.items():
        for problem, value in zip(("mco", "saddle"), values, strict=True):
            algo = {**FEDMSA, "_target_": f"a.{method}"}
            named(folder / f"{method}-{problem}", method, 1, value, problem=problem, algo=algo)
