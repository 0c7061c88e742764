"""What a checkpoint costs, that what it counts comes back, and runs that begin at the checkpoint of another."""

import json
import math
import os
import shutil
import signal
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch
from support.command import TINY, fedopt, one_line, without_time
from torch.utils._pytree import tree_leaves

from fedopt import api
from fedopt.drawing import run
from fedopt.errors import UserError
from fedopt.federation import round as of_round
from fedopt.federation.ledger import Ledger
from fedopt.federation.memory import Memory
from fedopt.randomness import keyed_rng
from fedopt.results import checkpoint
from fedopt.results.metrics_file import MetricsFile
from fedopt.testing.harness import small, steps

SCAFFOLD = ["algo=scaffold", "problem=classification", "dataset=digits", "problem.model=linear", "hardware.threads=1"]


# Memories


def test_a_memory_is_a_value():
    """Another one has other rows for the clients named; the first keeps its own, and all others are shared."""
    before = Memory(torch.zeros(5, 2))
    after = before.replaced(np.array([3, 1]), torch.tensor([[3.0, 3.0], [1.0, 1.0]]))
    assert before.tensor().tolist() == [[0, 0]] * 5
    assert after.tensor()[:, 0].tolist() == [0, 1, 0, 3, 0]
    assert after.rows(np.array([3, 0])).tolist() == [[3, 3], [0, 0]]
    assert after.changed(before).tolist() == [1, 3]


@pytest.mark.parametrize("engine", ["vectorised", "one_by_one"])
def test_a_round_writes_the_rows_of_its_cohort_alone(engine):
    e = small("scaffold", "classification", f"hardware.engine={engine}", "participation.cohort=2")
    first, *_, last = steps(e, 3)
    cohorts = [e.federation.at(r).cohort() for r in range(3)]
    assert last.memory.changed(first.memory).tolist() == sorted({int(i) for S in cohorts for i in S})


@pytest.mark.parametrize("uneven", ["participation.least=1", "participation.stragglers=0.5"])
def test_uneven_work_is_drawn_for_the_cohort_alone(uneven, monkeypatch):
    asked = []

    def counting(seed, purpose, *key, **of):
        asked.append(purpose)
        return keyed_rng(seed, purpose, *key, **of)

    e = small("fedavg", "classification", "partitioner.clients=50", "participation.cohort=3", "algo.tau=4", uneven)
    state = e.algorithm.init(e.problem)
    monkeypatch.setattr(of_round, "keyed_rng", counting)
    e.algorithm.step(state, e.problem, e.federation.at(0))
    assert len(asked) < 20


# Counts


@pytest.fixture
def counted_run():
    """A run of two rounds, with gradients and products, and the tensors of its ledger."""
    e = small("fednest", "quadratic_bilevel", "participation.cohort=2")
    steps(e, 2)
    return e, e.federation.ledger.tensors()


def test_a_checkpoint_of_another_version(counted_run, monkeypatch, tmp_path):
    """One line says so: an older state could be taken for one of this version."""
    e, _ = counted_run
    path, state = tmp_path / "checkpoint.safetensors", e.algorithm.init(e.problem)
    with monkeypatch.context() as other:
        other.setattr(checkpoint, "FORMAT", 4)
        checkpoint.Checkpoint(path, state).store(state, e.federation.ledger, {})
    with pytest.raises(UserError, match="another version of fedopt"):
        checkpoint.read(path)


def test_rows_of_other_columns_are_refused(tmp_path):
    (tmp_path / "metrics.csv").write_text(before := "round,loss\n0,1\n")
    file = MetricsFile(tmp_path / "metrics.csv", len(before))
    file.append({"round": 1, "loss": 0.5})
    with pytest.raises(UserError, match="columns round, loss, but this run has"):
        file.append({"round": 2, "loss": 0.5, "accuracy": 1.0})
    file.close()
    assert (tmp_path / "metrics.csv").read_text() == before + "1,0.5\n"


# What clients keep


def written(memory: Memory, rng: np.random.Generator, cohort: int) -> Memory:
    clients = rng.choice(len(memory), cohort, replace=False)
    return memory.replaced(clients, torch.from_numpy(rng.standard_normal((cohort, 30))))


def test_rows_come_back_as_they_were_stored(tmp_path):
    """Those of all clients that have taken part, also where another process goes on; it costs what these rows take."""
    path, ledger = tmp_path / "checkpoint.safetensors", Ledger(300)
    rng, initial = np.random.default_rng(0), Memory(torch.zeros(300, 30, dtype=torch.float64))
    file, memory = checkpoint.Checkpoint(path, {"c": initial}), initial
    assert file.store({"c": memory}, ledger, {})
    empty = path.stat().st_size
    for _ in range(3):
        memory = written(memory, rng, 5)
        assert file.store({"c": memory}, ledger, {})
        assert path.stat().st_size <= empty + len(memory.changed(initial)) * 8 * 31 + 100
        file = checkpoint.Checkpoint(path, {"c": initial})
        state, _ = file.restore(ledger)
        torch.testing.assert_close(state["c"].tensor(), memory.tensor(), rtol=0, atol=0)
        memory = state["c"]
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.safetensors"]


@pytest.mark.parametrize(
    "row", [torch.tensor(1.5), torch.ones(2, 3), torch.tensor(7), torch.tensor([True]), torch.zeros(2, 0)], ids=repr
)
def test_rows_come_back_in_their_shape(row, tmp_path):
    """A number, a matrix, a whole number, a truth value and nothing: clients 1 and 3 of 4 have new rows, of two memories."""
    zeros = torch.zeros(4, *row.shape, dtype=row.dtype)
    initial = [Memory(torch.zeros(4, 5)), Memory(zeros)]
    now = [initial[0], initial[1].replaced(np.array([3, 1]), [row, row])]
    file = checkpoint.Checkpoint(tmp_path / "checkpoint.safetensors", initial)
    assert file.store(now, Ledger(4), {})
    (other, restored), _ = file.restore(Ledger(4))
    assert torch.equal(other.tensor(), torch.zeros(4, 5))
    assert (restored.shape, restored.dtype) == (zeros.shape, zeros.dtype)
    assert torch.equal(restored.tensor(), torch.stack([zeros[0], row, zeros[0], row]))


def test_a_row_that_is_not_finite_is_not_stored(tmp_path):
    path, initial = tmp_path / "checkpoint.safetensors", Memory(torch.zeros(4, 2))
    file = checkpoint.Checkpoint(path, [initial])
    assert not file.store([initial.replaced(np.array([2]), [torch.tensor([0.0, math.nan])])], Ledger(4), {})
    assert not path.exists()


@pytest.mark.parametrize(
    "initial", [Memory(torch.zeros(4, 3)), Memory(torch.zeros(4)), torch.zeros(4, 2)], ids=["row", "number", "tensor"]
)
def test_rows_of_another_shape(initial, tmp_path):
    path, stored = tmp_path / "checkpoint.safetensors", Memory(torch.zeros(4, 2))
    assert checkpoint.Checkpoint(path, [stored]).store([stored], Ledger(4), {})
    with pytest.raises(UserError, match=r"different options: (rows\.)?state\.0 is"):
        checkpoint.Checkpoint(path, [initial]).restore(Ledger(4))


class Everything(NamedTuple):
    x: torch.Tensor
    nested: dict[str, Any]
    counts: tuple[int, bool, tuple[()], float]
    memory: Memory


def everything(c: float) -> Everything:
    """A state with every kind of leaf that a round accepts. c: what differs between two states of a run."""
    nested = {
        "memories": [Memory(torch.full((3,), c)), Memory(torch.full((3, 2, 2), math.inf))],
        "step": torch.tensor(c),
    }
    counts = (int(10 * c), c > 1, (), 0.1 * c)
    return Everything(torch.full((2, 3), c).T, nested, counts, Memory([torch.tensor([True, c > 1])] * 3))


def test_what_a_round_accepts_a_checkpoint_gives_back(tmp_path):
    """Numbers to the last digit, types, dtypes and shapes; what begins as infinity may stay so."""
    path, initial, ledger = tmp_path / "checkpoint.safetensors", everything(0.5), Ledger(3)
    assert checkpoint.Checkpoint(path, initial).store(everything(1.7), ledger, {"round": 1})
    state, _ = checkpoint.Checkpoint(path, initial).restore(ledger)
    leaves, expected = ([*tree_leaves(s)] for s in (state, everything(1.7)))
    assert state.counts == (17, True, (), 0.1 * 1.7)
    assert [type(leaf) for leaf in leaves] == [type(leaf) for leaf in expected]
    for leaf, other in zip(leaves, expected, strict=True):
        torch.testing.assert_close(leaf, other, rtol=0, atol=0)


@pytest.mark.parametrize(
    "change",
    [
        {"memory": Memory(torch.zeros(3, 2))},
        {"memory": Memory(torch.zeros(3, 1, dtype=torch.bool))},
        {"x": torch.zeros(3, 2, dtype=torch.float64)},
        {"counts": (5, True, (), 1)},
    ],
)
def test_a_later_step_must_keep_the_kinds_too(change, tmp_path):
    file = checkpoint.Checkpoint(tmp_path / "checkpoint.safetensors", everything(0.5))
    with pytest.raises(UserError, match="shapes and dtypes as its init"):
        file.store(everything(1.7)._replace(**change), Ledger(3), {})


@pytest.mark.parametrize(
    "rows",
    [torch.zeros(0, 3), [], [1.0, 2.0], [torch.zeros(2), torch.zeros(3)], [torch.zeros(2), torch.zeros(2).double()]],
)
def test_rows_that_make_no_memory(rows):
    with pytest.raises(UserError, match="a row for each client"):
        Memory(rows)


def test_a_new_row_of_another_type_is_refused():
    with pytest.raises(UserError, match=r"have shape \[\] \(torch.int64\), but a new row has \[\] \(torch.float32\)"):
        Memory(torch.zeros(3, dtype=torch.int64)).replaced(np.array([1]), torch.tensor([0.5]))


def test_a_file_with_a_hole_of_a_terabyte_is_no_checkpoint(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    path.touch()
    os.truncate(path, 2**40)
    with pytest.raises(UserError, match="is too large"):
        checkpoint.read(path)


# from=DIR


@pytest.fixture
def old(monkeypatch, capsys, tmp_path):
    """The folder of a run of SCAFFOLD with three rounds, and a command that begins there."""

    def begin(name, *more):
        return fedopt(
            monkeypatch, capsys, *SCAFFOLD, f"from={tmp_path / 'old'}", f"output_dir={tmp_path / name}", *more
        )

    arguments = [*SCAFFOLD, "algo.eta=0.1", "budget.rounds=3", f"output_dir={tmp_path / 'old'}", "eval.every=1"]
    assert fedopt(monkeypatch, capsys, *arguments).code == 0
    return tmp_path / "old", begin


def test_a_run_goes_on_with_other_values_as_a_new_one(old, monkeypatch, capsys, tmp_path):
    """As if the step size had changed after three rounds; rounds and bytes count on, and the old run stays as it was."""
    folder, begin = old
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert begin("new", "budget.rounds=6", "eval.every=1", "algo.eta=0.3").code == 0
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before

    eta = "algo.eta={kind: piecewise, values: [0.1, 0.3], boundaries: [3]}"
    words = [*SCAFFOLD, "budget.rounds=6", "eval.every=1", eta, f"output_dir={tmp_path / 'whole'}"]
    assert fedopt(monkeypatch, capsys, *words).code == 0
    new, whole = (without_time(tmp_path / name / "metrics.csv") for name in ("new", "whole"))
    assert new == [whole[0], *whole[4:]]


def test_a_key_that_was_removed(old, monkeypatch, capsys):
    """A command that sets it is refused with what to write; a run that recorded it goes on, and can be read."""
    folder, _ = old
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("hardware:\n", "hardware:\n  processes: 2\n"))
    words = [f"output_dir={folder}", "resume=true", "budget.rounds=5"]
    for key in ("hardware.processes", "+hardware.processes"):
        result = fedopt(monkeypatch, capsys, *words, f"{key}=2")
        one_line(result, "hardware.processes: was removed; ", "torchrun --nproc-per-node N -m fedopt")
    assert fedopt(monkeypatch, capsys, *words).code == 0
    assert api.load(folder).variables


def test_a_new_run_does_not_need_the_old_one_any_more(old, monkeypatch, capsys, tmp_path):
    folder, begin = old
    assert begin("whole", "budget.rounds=8").code == 0
    assert begin("new", "budget.rounds=6").code == 0
    shutil.rmtree(folder)
    assert begin("new", "budget.rounds=8", "resume=true").code == 0
    new, whole = (without_time(tmp_path / name / "metrics.csv") for name in ("new", "whole"))
    assert new[-1] == whole[-1]


@pytest.mark.parametrize(
    ("words", "fragments"),
    [
        (["algo=fedavg", "budget.rounds=6"], ["Scaffold, whose state does"]),
        (["partitioner.clients=20", "budget.rounds=6"], ["checkpoint.safetensors", "number of clients"]),
        (["problem.model=mlp", "budget.rounds=6"], ["checkpoint.safetensors", "options"]),
        (["budget.rounds=3"], ["budget", "in 3 rounds", "count"]),
        (["from=nowhere"], ["from=nowhere", "no run"]),
        (["from=3"], ["from=3", "a string"]),
    ],
)
def test_what_cannot_be_gone_on_from(words, fragments, old, tmp_path):
    _, begin = old
    one_line(begin("new", *words), *fragments)
    assert not (tmp_path / "new").exists()


def test_the_last_good_state_is_that_of_the_last_good_row(monkeypatch, capsys, tmp_path):
    """Not an older one that the clock chose, nor the state that diverged: a run with smaller steps begins there."""
    words = [
        "algo=local_sgda",
        "problem=quadratic_minimax",
        "problem.examples=64",
        "hardware.threads=1",
        "eval.every=2",
    ]
    arguments = [*words, "algo.eta_x=0.9", "algo.eta_y=0.9", "budget.rounds=50"]
    result = fedopt(monkeypatch, capsys, *arguments, f"output_dir={tmp_path / 'run'}")
    assert result.code == 3
    assert f"from={tmp_path / 'run'} and a new output_dir" in result.out
    rounds = pd.read_csv(tmp_path / "run" / "metrics.csv")["round"].tolist()
    progress = checkpoint.read(tmp_path / "run" / "checkpoint.safetensors")[1]
    assert progress["round"] == rounds[-2] > 0
    again = [*words, "budget.rounds=40", f"from={tmp_path / 'run'}", f"output_dir={tmp_path / 'new'}"]
    assert fedopt(monkeypatch, capsys, *again).code == 0
    assert pd.read_csv(tmp_path / "new" / "metrics.csv")["round"].iloc[0] == rounds[-2]


# Ends


@pytest.mark.pictures
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_while_the_last_figure_is_drawn(number, monkeypatch, capsys, tmp_path):
    """All is recorded by then: the run ends as it would have."""
    draw = run.metrics

    def interrupted(*arguments):
        os.kill(os.getpid(), number)
        draw(*arguments)

    monkeypatch.setattr(run, "metrics", interrupted)
    assert fedopt(monkeypatch, capsys, *TINY, f"output_dir={tmp_path / 'run'}").code == 0
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "finished"
    assert (tmp_path / "run" / "metrics.png").exists()
