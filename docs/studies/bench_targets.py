#!/usr/bin/env python
"""Measure the budgets, the smoothness and the targets of tasks of the benchmark, and write them into conf/bench: once, before
any method is run.

Communication rounds are fixed by hand. The other limits are what the median method of the task spends in so many rounds with
its defaults; of calls half of that, so that runs with single local steps end. Lx and Ly are those of the problem where it knows
them; else the largest curvatures at the start, by power iteration; where these are zero the file keeps what it has. L of games
is the norm of the Jacobian of their field, set by hand. Targets that are no shares of the start lie 50, 75, 90 and 100 % of the
way from the start to the median of what methods of reference reach in these rounds: each with the best of 12 points of its
pool, and then with five other seeds.
"""

import argparse
import re
from collections.abc import Sequence
from math import isfinite
from operator import itemgetter
from statistics import median
from typing import Any

import torch
from torch import Tensor

from fedopt.bench.space import Point
from fedopt.bench.suite import Entries, Entry, Task, tasks
from fedopt.config import CONF, Composed, compose, key_of
from fedopt.metrics import COSTS
from fedopt.problems import Nested
from fedopt.running.assemble import assemble
from fedopt.running.loop import begin, loop

BILEVEL = ("fednest", "fedmsa", "simfbo")
REFERENCES = {
    "bilevel": BILEVEL,
    "local lower level": ("fedbio_local", "fedbioacc_local"),
    "global composition": BILEVEL,
    "composition of levels": ("fedmsa",),
    "minimax": ("local_sgda", "codasca", "local_eg"),
    "local composition": ("local_scgd", "local_scgdm", "mfcgd"),
    "conditional": ("fcsg", "fcsg_m", "acc_fcsg_m"),
}
SHARES = (0.5, 0.75, 0.9, 1.0)
FIRST_SEED, REPEATS, ROUNDS, POINTS = 500_000, 5, 40, 12


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*")
    parser.add_argument(
        "--targets", action="store_true", help="measure targets too, where they are no shares of the start"
    )
    given, entries = parser.parse_args(), Entries()
    paths = {path.stem: path for path in (CONF / "bench").rglob("*.yaml")}
    for task in tasks(given.tasks):
        path = paths[task.name]
        text, rounds = path.read_text(), int(task.budget["comm_rounds"])
        of_each = [entries[name] for name in task.entries]
        costs = zip(*(_costs(task, entry, rounds) for entry in of_each), strict=True)
        spent = [f"{median(cost):.2g}" for cost in costs]
        names = ("bytes", "client_visits", "example_calls")
        limits = ", ".join(f"{name}: {float(limit):.0f}" for name, limit in zip(names, spent, strict=True))
        text = re.sub(r"(?m)^budget: .*$", f"budget: {{comm_rounds: {rounds}, {limits}}}", text)
        Lx, Ly = _smoothness(task, of_each[0])
        of_both = f", L: {task.smoothness['L']:g}" if "L" in task.smoothness else ""
        text = re.sub(
            r"(?m)^smoothness: .*$",
            f"smoothness: {{Lx: {Lx or task.smoothness['Lx']:.2g}, Ly: {Ly or task.smoothness['Ly']:.2g}{of_both}}}",
            text,
        )
        path.write_text(text)
        if given.targets and not task.relative:
            (task,) = tasks([task.name])
            start, end = _ends(task, [entries[name] for name in REFERENCES[task.board]], entries)
            targets = ", ".join(f"{start + share * (end - start):.4g}" for share in SHARES)
            line = f"targets: [{targets}] # {start:.4g} at the start, {end:.4g} reached"
            text = re.sub(r"(?m)^targets: .*$", line, text)
            path.write_text(text)
        print(task.name, *re.findall(r"(?m)^(?:budget|smoothness|targets): .*$", text), sep="\n  ", flush=True)


def _composed(task: Task, entry: Entry, point: Point, *words: str) -> Composed:
    """The config of a run that is evaluated at its start and end only."""
    words = (*task.command(entry, point), "eval.points=null", "eval.every=100000", *words)
    return compose([*{key_of(word): word for word in words}.values()])


def _costs(task: Task, entry: Entry, rounds: int) -> tuple[float, ...]:
    """What a method spends with its defaults: bytes, client visits, calls of one example."""
    e = assemble(_composed(task, entry, {}, f"budget.comm_rounds={ROUNDS}", "eval.diverged=inf"))
    *_, _ = loop(e, *begin(e))
    counts = e.federation.ledger.columns()
    per_round = rounds / counts["comm_rounds"]
    size, visits, calls = (COSTS[name].of(counts) for name in ("bytes", "client_visits", "example_calls"))
    return size * per_round, visits * per_round, calls * per_round / 2


def _smoothness(task: Task, entry: Entry) -> tuple[float, float]:
    """Lx and Ly: the problem's constants, the median of three seeds, or the largest curvatures at its start."""
    found = []
    for seed in range(FIRST_SEED, FIRST_SEED + 3):
        problem = assemble(_composed(task, entry, {}, f"seed={seed}")).problem
        if hasattr(problem, "constants"):
            constants = problem.constants()
            found.append((constants["L_x"], constants.get("L_y", constants["L_x"])))
        else:
            found.append(_curvatures(problem))
    return median(x for x, _ in found), median(y for _, y in found)


def _curvatures(problem: Any) -> tuple[float, float]:
    """The largest curvatures at the start: of f in x, and in y of g, or of f where there is no g; 0 where there are none."""
    start = [v.detach() for v in problem.start()]
    if not hasattr(problem, "f"):
        return 0.0, 0.0
    samples = [problem.sample(i, _all(problem.splits, i, start[0])) for i in range(problem.clients)]

    def mean(fn: Any, *point: Tensor) -> Tensor:
        values = [w * fn(*point, sample) for w, sample in zip(problem.weights.tolist(), samples, strict=True)]
        return torch.stack(values).sum()

    Lx = _largest(lambda x: mean(problem.f, x, *start[1:2]), start[0])
    lower = problem.g if isinstance(problem, Nested) else problem.f
    Ly = _largest(lambda y: mean(lower, start[0], y), start[1]) if len(start) > 1 else Lx
    return Lx, Ly


def _all(splits: Any, client: int, like: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    rows = {name: torch.as_tensor(split[client]) for name, split in splits.items()}
    return {name: (own, torch.full((len(own),), 1 / max(len(own), 1)).to(like)) for name, own in rows.items()}


def _largest(fn: Any, x: Tensor, steps: int = 30) -> float:
    v, size = torch.randn(x.shape, generator=torch.Generator().manual_seed(0)).to(x), 0.0
    for _ in range(steps):
        v = torch.func.jvp(torch.func.grad(fn), (x,), (v / torch.linalg.norm(v),))[1]
        size = float(torch.linalg.norm(v))
        if size < 1e-12:
            return 0.0
    return size


def _ends(task: Task, references: Sequence[Entry], entries: Entries) -> tuple[float, float]:
    """The median first value of the metric, and the median last one of the methods of reference."""
    starts, ends = [], []
    for entry in references:
        tried = [(*_run(task, entry, point, FIRST_SEED), point) for point in entries.points(task, entry)[: POINTS + 1]]
        signed = [(-end if better == "higher" else end, point) for better, _, end, point in tried if isfinite(end)]
        _, point = min(signed, key=itemgetter(0))
        for seed in range(FIRST_SEED + 1, FIRST_SEED + 1 + REPEATS):
            _, start, end = _run(task, entry, point, seed)
            starts.append(start)
            ends.append(end)
    return median(starts), median(ends)


def _run(task: Task, entry: Entry, point: Point, seed: int) -> tuple[str, float, float]:
    """Which values of the metric are better, its first value, and its last one."""
    rounds = f"budget.comm_rounds={task.budget['comm_rounds']:.0f}"
    e = assemble(_composed(task, entry, point, f"seed={seed}", rounds))
    values = [moment.row[task.metric] for moment in loop(e, *begin(e)) if moment.row]
    return next(m.better for m in e.problem.metrics if m.name == task.metric), values[0], values[-1]


if __name__ == "__main__":
    main()
