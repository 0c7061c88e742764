"""Tuned values: each algorithm that has some makes progress with them."""

import pytest

from fedopt.config.tuned import tuned_values
from fedopt.running.assemble import assemble
from fedopt.running.loop import begin, loop
from fedopt.testing.harness import composed, pairs


def with_tuned_values():
    """Every pair that tuned values apply to, by themselves or from the algorithm that it builds on."""
    return [(a, p) for a, p in pairs() if tuned_values("auto", {"algo": a, "problem": p}, ())[0]]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(("algo", "problem"), with_tuned_values())
def test_a_tenth_of_a_run_beats_its_start(algo, problem, seed):
    """In what the problem measures first; labelled examples are digits."""
    chosen = [f"algo={algo}", f"problem={problem}", f"seed={seed}", "hardware.threads=1"]
    usual = composed(*chosen)
    chosen += ["dataset=digits"] * (usual.chosen["dataset"] != "none")
    limits = {key: getattr(usual.settings.budget, key) for key in ("rounds", "comm_rounds")}
    tenth = [f"budget.{key}={-(-limit // 10)}" for key, limit in limits.items() if limit is not None]
    e = assemble(composed(*chosen, *tenth, "eval.every=1000000"))
    first, last = [moment.row for moment in loop(e, *begin(e)) if moment.row]
    metric = e.original.metrics[0]
    assert metric.better != "neither"
    assert metric.best([first[metric.name], last[metric.name]]) == last[metric.name] != first[metric.name]
