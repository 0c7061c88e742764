"""Check that the metric improves, the engines agree, the seed determines the run, and a stopped run can be resumed."""

from pathlib import Path

import fedopt
import torch
from fedopt import assemble, compose

CHOSEN = "algo=my_sgd problem=classification dataset=digits"
PRECISE = ["hardware.dtype=float64", "hardware.threads=1"]
CONFIGS = Path(__file__).parent / "myconf"


def run(*overrides, rounds=30):
    """Run some rounds, and return the problem's first metric, its values before and after, and the last point."""
    e = assemble(compose([*CHOSEN.split(), *PRECISE, *overrides], [CONFIGS]))
    metric, state = e.problem.metrics[0], e.algorithm.init(e.problem)
    before = e.problem.evaluate(*e.algorithm.output(state))[metric.name]
    for r in range(rounds):
        state = e.algorithm.step(state, e.problem, e.federation.at(r))
    (x, *_) = e.algorithm.output(state)
    return metric, before, e.problem.evaluate(*e.algorithm.output(state))[metric.name], x


def test_metric_improves():
    metric, before, after, _ = run()
    assert metric.best([before, after]) == after != before


def test_engines_agree():
    one, other = (run(f"hardware.engine={engine}", rounds=3)[-1] for engine in ("vectorised", "one_by_one"))
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9 * float(one.abs().max()))


def test_seed_determines_the_run():
    one, again, other = (run(f"seed={seed}", rounds=3)[-1] for seed in (0, 0, 1))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_resume(tmp_path):
    """A run that was stopped and resumed has the same metrics and variables as an uninterrupted one."""
    overrides = [*CHOSEN.split(), *PRECISE, "budget.rounds=4", "eval.every=1"]
    stopped, full = ({"folders": CONFIGS, "quiet": True, "output_dir": tmp_path / name} for name in ("stopped", "full"))
    assert fedopt.run(overrides, on_eval=lambda row: row["round"] == 2, **stopped).status == "stopped"
    assert fedopt.run(overrides, resume=True, **stopped).final == fedopt.run(overrides, **full).final
    variables = (fedopt.load(run["output_dir"]).variables.values() for run in (stopped, full))
    assert all(torch.equal(*pair) for pair in zip(*variables, strict=True))
