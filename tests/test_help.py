"""What `fedopt --help` says, words that the shell completes, and JSON schemas for editors."""

import os
import subprocess
import sys

import pytest
from command import ROOT, fedopt
from harness import node

from fedopt.config import options
from fedopt.help import comments, keys

# Keys


def row(result, key):
    """The columns that help shows for a key."""
    (line,) = (line for line in result.out.splitlines() if line.split()[:1] == [key])
    return [column.strip() for column in line.split("  ") if column.strip()]


def test_keys_of_a_run(monkeypatch, capsys):
    """Default, tuned value, type and meaning, of the algorithm's keys and of those that every run has."""
    result = fedopt(monkeypatch, capsys, "--help", "algo=fedmsa", "problem=mco")
    assert row(result, "algo.alpha") == ["algo.alpha", "0.05", "0.0003", "step size", "step of x"]
    assert row(result, "algo.rho")[:3] == ["algo.rho", "0.5", "number from 0 to 1"]
    assert row(result, "algo.anchor")[2] == "all | cohort"
    assert row(result, "problem.x0")[2] == "number from -1e+30 to 1e+30"
    assert row(result, "partitioner.clients")[1:3] == ["2", "whole number from 1"]
    assert row(result, "from")[2] == "text | null"
    assert row(result, "budget.bytes")[2] == "whole number from 0 | null"
    assert row(result, "eval.metric")[1:4] == ["null", "distance", "text | null"]
    assert "step size: a number from 0, or a schedule" in result.out
    assert "tuned values: preset/fedmsa/mco" in result.out
    untuned = fedopt(monkeypatch, capsys, "--help", "algo=fednest", "problem=quadratic_minimax")
    assert "no tuned values for fednest on quadratic_minimax" in untuned.out


def test_keys_of_a_group(monkeypatch, capsys):
    """Those that a variant inherits, with its own defaults, and the problems that it has tuned values for."""
    result = fedopt(monkeypatch, capsys, "--help", "algo=lfednest")
    assert row(result, "algo.inner")[1:3] == ["sgd", "svrg | sgd"]
    assert row(result, "algo.tau_in")[2] == "local work"
    assert "problem.d" not in result.out
    assert "budget.rounds" not in result.out
    assert result.out.splitlines()[-1].startswith("tuned values: for problem=fair_classification|hyper_representation|")
    model = row(fedopt(monkeypatch, capsys, "--help", "problem=robust_nn"), "problem.norm")
    assert model[1:3] == ["l2", "l1 | l2 | linf"]
    wrong = fedopt(monkeypatch, capsys, "--help", "algo=fedmas")
    assert (wrong.code, "did you mean fedmsa" in wrong.err) == (2, True)


@pytest.mark.parametrize("algo", options("algo"))
def test_every_key_has_a_meaning_and_a_type(algo):
    """Of every algorithm and problem, and of all data sets and partitioners."""
    fitting = [
        name for name in options("problem") if node("problem", name)["_class_"] in node("algo", algo)["_solves_"]
    ]
    others = [[f"{group}={name}"] for group in ("dataset", "partitioner", "hardware") for name in options(group)]
    for words in [[f"problem={name}"] for name in fitting] + others:
        lacking = [key for key, said in keys([f"algo={algo}", *words], []).items() if not (said.meaning and said.type)]
        assert not lacking, words


OWN = """
from dataclasses import dataclass
from typing import Annotated, Literal
from pydantic import Field
import nothing.that_is_there
raise SystemExit("help must not run this")
Share = Annotated[float, Field(gt=0, le=1)]

@dataclass
class Base:
    share: Share

@dataclass
class Own(Base):
    how: Literal["this", "that"] | None
"""


def test_own_files(tmp_path, monkeypatch, capsys):
    """Of a config folder of one's own: options, meanings and types, and nothing of it is run."""
    (tmp_path / "conf" / "algo").mkdir(parents=True)
    text = "# My algorithm\n_target_: own_help.Own\nshare: 0.5 # of all # that there is\nhow: this\n"
    (tmp_path / "conf" / "algo" / "mine.yaml").write_text(text)
    (tmp_path / "own_help.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = ["--config-dir", str(tmp_path / "conf")]
    assert any(
        line.split() == ["mine", "My", "algorithm"]
        for line in fedopt(monkeypatch, capsys, "--help", *folder).out.splitlines()
    )
    result = fedopt(monkeypatch, capsys, "--help", *folder, "algo=mine")
    assert row(result, "algo.share")[1:] == ["0.5", "number above 0 to 1", "of all # that there is"]
    assert row(result, "algo.how")[1:] == ["this", "this | that | null"]
    assert "own_help" not in sys.modules


def test_comments(tmp_path):
    """Beside values of all kinds, and none from inside a text."""
    path = tmp_path / "some.yaml"
    path.write_text(
        "# head\na: 'x # y' # of a\nb: # of b\n  c: [1, 2] # of c\n  d:\n    - 1\n    - 2\ne: {f: 1} # of e\ng: 1\n"
    )
    assert comments(path) == {"a": "of a", "b": "of b", "b.c": "of c", "e": "of e"}


def test_help_is_quick(tmp_path):
    """Without torch, in half a second of computing where torch alone takes two."""
    code = "import sys\nfrom fedopt.cli import main\nmain()\nassert 'torch' not in sys.modules\n"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    before, words = os.times().children_user, ["--help", "algo=fednest", "problem=saddle"]
    subprocess.run([sys.executable, "-c", code, *words], cwd=tmp_path, env=env, check=True, capture_output=True)
    assert os.times().children_user - before < 2
