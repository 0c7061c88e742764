"""It gets better, is the same however clients are run, draws nothing that the seed does not say, and can be resumed."""

from pathlib import Path

import fedopt
import torch
from fedopt import assemble, compose

CHOSEN = "algo=my_sgd problem=classification dataset=digits"
PRECISE = ["hardware.dtype=float64", "hardware.threads=1"]
OWN = Path(__file__).parent / "myconf"


def run(*overrides, rounds=30):
    """Run fedopt; return the problem's first metric before and after, and the last point."""
    e = assemble(compose([*CHOSEN.split(), *PRECISE, *overrides], [OWN]))
    metric, state = e.problem.metrics[0], e.algorithm.init(e.problem)
    before = e.problem.evaluate(*e.algorithm.output(state))[metric.name]
    for r in range(rounds):
        state = e.algorithm.step(state, e.problem, e.federation.at(r))
    (x, *_) = e.algorithm.output(state)
    return metric, before, e.problem.evaluate(*e.algorithm.output(state))[metric.name], x


def test_the_metric_gets_better():
    metric, before, after, _ = run()
    assert metric.best([before, after]) == after != before


def test_all_at_once_is_one_by_one():
    one, other = (run(f"hardware.engine={engine}", rounds=3)[-1] for engine in ("vectorised", "one_by_one"))
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9 * float(one.abs().max()))


def test_the_seed_says_it_all():
    one, again, other = (run(f"seed={seed}", rounds=3)[-1] for seed in (0, 0, 1))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_a_stopped_run_is_resumed_and_read_back(tmp_path):
    """With the same values and variables as a run that was not stopped."""
    words = [*CHOSEN.split(), *PRECISE, "budget.rounds=4", "eval.every=1"]
    one, whole = ({"folders": OWN, "quiet": True, "output_dir": tmp_path / name} for name in ("one", "whole"))
    assert fedopt.run(words, on_eval=lambda row: row["round"] == 2, **one).status == "stopped"
    assert fedopt.run(words, resume=True, **one).final == fedopt.run(words, **whole).final
    variables = (fedopt.load(run["output_dir"]).variables.values() for run in (one, whole))
    assert all(torch.equal(*pair) for pair in zip(*variables, strict=True))
