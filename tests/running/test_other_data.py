"""The identity of the data: what it covers, and that nothing goes on with other data."""

import json
from dataclasses import replace

import numpy as np
import pytest
from support.command import fedopt

from fedopt import api
from fedopt.config.composed import compose
from fedopt.data.datasets import Npz
from fedopt.data.labelled import LabelledData
from fedopt.errors import UserError
from fedopt.results.identity import stamp

RUN = ["algo=fedavg", "problem=classification", "dataset=npz", "dataset.path=data.npz", "problem.model=softmax"]
RUN += ["partitioner.clients=2", "participation.cohort=2", "budget.rounds=2", "hardware.threads=1"]


def arrays():
    x = np.random.default_rng(0).standard_normal((24, 3))
    y = np.arange(24) % 2
    return {"x_train": x, "y_train": y, "x_test": x[:6] + 1, "y_test": y[:6]}


def save(folder, **changes):
    np.savez(folder / "data.npz", **{**arrays(), **changes})


def changed(name):
    """The array with its last entry changed."""
    array = arrays()[name].copy()
    array[-1] = 1 - array[-1]
    return {name: array}


@pytest.fixture
def here(monkeypatch, capsys, tmp_path):
    """Data in the working directory, and the command there."""
    monkeypatch.chdir(tmp_path)
    save(tmp_path)

    def run(*words):
        return fedopt(monkeypatch, capsys, *RUN, *words)

    return tmp_path, run


def test_the_digest_covers_all_that_is_read():
    whole = LabelledData(**arrays())
    marks = np.arange(24) % 4 == 0
    others = [replace(whole, **changed(name)) for name in arrays()]
    others += [replace(whole, owners=names) for names in (np.arange(24) % 3, (np.arange(24) % 3).astype(str))]
    others += [replace(whole, owners=np.array(list("abcd") * 6)), replace(whole, owners=np.array(list("abce") * 6))]
    others += [
        replace(whole, owners_test=np.arange(6)),
        replace(whole, validates=marks),
        replace(whole, validates=~marks),
    ]
    others += [
        replace(whole, **{key: names})
        for key in ("class_names", "feature_names")
        for names in (("a", "bc"), ("ab", "c"))
    ]
    others += [replace(whole, x_train=whole.x_train.astype(np.float32)), replace(whole, pixels="raw")]
    digests = [data.digest() for data in (whole, *others)]
    assert len(set(digests)) == len(digests)
    assert replace(whole, notes=("spare",)).digest() == LabelledData(**arrays()).digest() == digests[0]
    texts = np.array(["a", "b"] * 12)
    assert replace(whole, owners=texts).digest() == replace(whole, owners=texts.astype(object)).digest()


@pytest.mark.parametrize("name", arrays())
def test_no_run_goes_on_with_other_data(name, here):
    """Neither resumed, nor made longer, nor taken for done; and from=RUN is a new run."""
    folder, run = here
    assert run("output_dir=run").code == 0
    rows = (folder / "run" / "metrics.csv").read_bytes()
    save(folder, **changed(name))
    for words in (["budget.rounds=3"], []):
        result = run("output_dir=run", "resume=true", *words)
        assert result.code == 2
        assert "was started" in result.err.splitlines()[-1]
    with pytest.raises(UserError, match=r"was started.*other"):
        api.load(folder / "run").model()
    assert (folder / "run" / "metrics.csv").read_bytes() == rows
    assert run("output_dir=new", "from=run", "budget.rounds=3").code == 0
    save(folder, spare=np.zeros(2))  # the same data again
    assert run("output_dir=run", "resume=true").code == 0
    assert run("output_dir=run", "resume=true", "budget.rounds=3").code == 0


def test_a_checkpoint_says_of_which_data_it_is(here):
    """Not run.json, which anybody may change."""
    folder, run = here
    assert run("output_dir=run").code == 0
    save(folder, **changed("x_train"))
    assert run("output_dir=other").code == 0
    (folder / "run" / "run.json").write_bytes((folder / "other" / "run.json").read_bytes())
    assert run("output_dir=run", "resume=true").code == 2


def test_a_division_by_a_file_is_part_of_the_data(here):
    folder, run = here
    words = ["partitioner=by_column", "partitioner.file=owners.txt", "participation.cohort=null", "output_dir=run"]
    (folder / "owners.txt").write_text("a\nb\n" * 12)
    assert run(*words).code == 0
    (folder / "owners.txt").write_text("a\na\nb\nb\n" * 6)
    assert run(*words, "resume=true").code == 2


def test_a_sweep_refuses_runs_on_other_data(here, monkeypatch):
    """Data whose files are as old as they were are not read again."""
    folder, run = here
    sweep = ["-m", "seed=0,1", "output_dir=sweep", "budget.rounds=1"]
    assert run(*sweep).code == 0
    loads, load = [], Npz.load
    monkeypatch.setattr(Npz, "load", lambda self: loads.append(self) or load(self))
    again = run(*sweep)
    assert (again.code, again.out.count("already done"), len(loads)) == (0, 2, 0)
    save(folder, spare=np.zeros(2))  # the same data again
    again = run(*sweep)
    assert (again.code, again.out.count("already done"), len(loads)) == (0, 2, 2)
    save(folder, **changed("y_test"))
    other = run(*sweep)
    assert (other.code, "2 runs: 2 refused" in other.out) == (1, True)
    assert other.err.count("was started") == 2
    (folder / "data.npz").unlink()
    gone = run(*sweep)
    assert (gone.code, gone.out.count("already done")) == (0, 2)
    notes = {json.loads((path / "run.json").read_text())["data"] for path in (folder / "sweep").glob("fedavg*")}
    assert len(notes) == 1


def test_runs_with_a_table_of_an_older_version_go_on():
    """Their configs lack keys whose defaults do what was done before; with other values a run is another one."""
    nodes = compose(["algo=fedavg", "problem=classification", "dataset=csv", "dataset.path=a", "dataset.label=b"]).nodes
    lacking = {key: value for key, value in nodes["dataset"].items() if key not in ("drop", "missing", "stratify")}
    assert len(lacking) == len(nodes["dataset"]) - 3
    assert stamp({**nodes, "dataset": lacking}) == stamp(nodes)
    for more in ({"drop": ["a"]}, {"missing": "mean"}, {"stratify": True}):
        assert stamp({**nodes, "dataset": {**lacking, **more}}) != stamp(nodes)
