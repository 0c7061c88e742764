"""Files that somebody sent: configs, data and folders of runs are read, and run no code (SECURITY.md)."""

import datetime
import itertools
import json
import os
import pickle

import pandas as pd
import pytest
import yaml
from support import slurm as cluster
from support.cases import few
from support.command import PAIR, TINY, code_of, fedopt, run
from support.records import record

from fedopt.analysis.runs import usable
from fedopt.analysis.sweeps import report
from fedopt.commands import compare
from fedopt.config.build import build_target
from fedopt.config.composed import recorded
from fedopt.data.folders import Folder
from fedopt.errors import UserError
from fedopt.results.folder import RunFolder

CALLBACK = "callbacks: {x: {_target_: sent.touch}}"
FILES = {
    "a node": ("experiment/sent.yaml", f"# @package _global_\nhydra:\n  {CALLBACK}\n"),
    "a package": ("experiment/sent.yaml", f"# @package hydra\n{CALLBACK}\n"),
    "a defaults list": ("experiment/sent.yaml", "# @package _global_\ndefaults:\n  - override /hydra/callbacks: x\n"),
    "a file that another one builds on": ("algo/base.yaml", f"# @package _global_\nhydra:\n  {CALLBACK}\n"),
}


def one_line(result, *fragments):
    assert result.code == 2
    assert result.out == ""
    assert result.err.count("\n") == 1
    for fragment in fragments:
        assert fragment in result.err


@pytest.fixture
def trap(tmp_path, monkeypatch):
    """A module on the path whose functions leave a trace."""
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "sent.py").write_text(
        "from pathlib import Path\n"
        f"def touch(*_, **__): Path({str(tmp_path / 'trace')!r}).touch()\n"
        "class Touch:\n    __init__ = touch\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path / "path"))
    yield
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize(("case", "sweep"), [*((case, []) for case in FILES), ("a node", ["-m", "seed=0,1"])])
def test_a_file_that_sets_up_hydra(case, sweep, monkeypatch, capsys, tmp_path, trap):
    name, text = FILES[case]
    path = tmp_path / "own" / name
    path.parent.mkdir(parents=True)
    path.write_text(text)
    (tmp_path / "own" / "algo").mkdir(exist_ok=True)
    (tmp_path / "own" / "algo" / "mine.yaml").write_text("defaults: [base, _self_]\n")
    chosen = "experiment=sent" if name.startswith("experiment") else "algo=mine"
    more = ["--config-dir", str(tmp_path / "own"), chosen, f"output_dir={tmp_path / 'run'}"]
    one_line(fedopt(monkeypatch, capsys, *sweep, *TINY, *more), "hydra" if "defaults" in text else "configures Hydra")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("sweep", [[], ["-m", "seed=0,1"]], ids=["run", "sweep"])
@pytest.mark.parametrize(
    "word",
    [
        "+hydra.callbacks.x._target_=sent.touch",
        "hydra.mode=MULTIRUN",
        "hydra/callbacks=x",
        "~hydra",
        "algo@hydra.x=fedmsa",
    ],
)
def test_hydra_is_not_set_up_from_the_command_line(word, sweep, monkeypatch, capsys, tmp_path, trap):
    monkeypatch.chdir(tmp_path)
    result = fedopt(monkeypatch, capsys, *sweep, *TINY, word)
    assert result.code == 2
    assert result.err.count("\n") == 1


@pytest.mark.parametrize("group", ["algo", "problem", "dataset", "partitioner", "logger"])
@pytest.mark.parametrize("target", ["sent.touch", "sent.Touch", "os.system"])
def test_only_classes_of_the_right_kind_are_built(group, target, trap):
    with pytest.raises(UserError, match=rf"^{group}\._target_={target}"):
        build_target({"_target_": target}, group)


@pytest.mark.parametrize(
    "model",
    [
        "sent.touch",
        "sent.Touch",
        "{_target_: sent.Touch, width: 3}",
        "torch.hub.load",
        "torch.jit.load",
        "{_target_: support.networks.Normed, width: {_target_: sent.touch}}",
    ],
)
def test_only_networks_are_built(model, monkeypatch, capsys, tmp_path, trap):
    words = ["algo=fedavg", "problem=classification", "dataset=digits", f"problem.model={model}"]
    one_line(fedopt(monkeypatch, capsys, *words, f"output_dir={tmp_path / 'run'}"), "problem.model")
    assert not (tmp_path / "run").exists()


def test_the_working_directory_is_not_searched_for_modules(tmp_path):
    (tmp_path / "mine.py").write_text("open('trace', 'w')\n")
    result = run(*TINY, "algo._target_=mine.Algorithm", cwd=tmp_path)
    one_line(result, "algo._target_=mine.Algorithm", "cannot be imported")
    assert not (tmp_path / "trace").exists()


@pytest.mark.full
@pytest.mark.pictures
@pytest.mark.parametrize("more", [[], ["-m", "--jobs", "2"], ["-m", "--launcher", "slurm"]])
def test_no_process_of_a_command_searches_the_working_directory(more, tmp_path):
    for name in ("matplotlib", "multiprocessing", "submitit", "torch"):  # which they import
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'trace')!r}, 'w')\n")
    env = {**cluster.install(tmp_path / "slurm"), "FEDOPT_QUEUE": str(tmp_path / "queue")}
    assert run(*TINY, *more, "output_dir=run", cwd=tmp_path, env=env).code == 0
    assert not (tmp_path / "trace").exists()


def test_a_checkpoint_that_is_a_pickle(monkeypatch, capsys, tmp_path, trap):
    arguments = [*TINY, f"output_dir={tmp_path / 'run'}"]
    assert fedopt(monkeypatch, capsys, *arguments).code == 0

    class Sent:
        def __reduce__(self):
            return (open, (str(tmp_path / "trace"), "w"))

    (tmp_path / "run" / "checkpoint.safetensors").write_bytes(pickle.dumps(Sent()))
    one_line(fedopt(monkeypatch, capsys, *arguments, "budget.rounds=8", "resume=true"), "checkpoint.safetensors")


@pytest.mark.parametrize(
    "setting",
    [
        f'"\\x68ydra": {{{CALLBACK}}}\n',
        f"experiment: {{when: 2026-99-99}}\nhydra: {{{CALLBACK}}}\n",
        "defaults: [/../beside/sent, _self_]\n",
    ],
    ids=["an escaped name", "a date that cannot be", "a folder beside"],
)
def test_a_file_that_sets_up_hydra_unseen(setting, monkeypatch, capsys, tmp_path, trap):
    """Read as Hydra reads it, and judged by what comes of it."""
    own_file(tmp_path, "experiment/sent.yaml", f"# @package _global_\n{setting}")
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "sent.yaml").write_text(f"# @package _global_\nhydra: {{{CALLBACK}}}\n")
    words = ["-m", "--config-dir", str(tmp_path / "own"), *TINY, "experiment=sent", "seed=0,1"]
    one_line(fedopt(monkeypatch, capsys, *words, f"output_dir={tmp_path / 'run'}"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_config_files_that_have_no_end(kind, monkeypatch, capsys, tmp_path):
    """They are not waited for."""
    path = tmp_path / "own" / "preset" / "endless.yaml"
    path.parent.mkdir(parents=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    words = ["--config-dir", str(tmp_path / "own"), *TINY, f"output_dir={tmp_path / 'run'}"]
    one_line(fedopt(monkeypatch, capsys, *words), "endless.yaml")


def test_a_preset_that_a_file_names(monkeypatch, capsys, tmp_path):
    path = tmp_path / "own" / "experiment" / "mine.yaml"
    path.parent.mkdir(parents=True)
    path.write_text("# @package _global_\npreset: fedmsa/nope\n")
    words = ["--config-dir", str(tmp_path / "own"), *PAIR, "experiment=mine", f"output_dir={tmp_path / 'run'}"]
    one_line(fedopt(monkeypatch, capsys, *words), "preset=fedmsa/nope", "fedmsa/mco")


# What a file stands for


def own_file(folder, name, text):
    path = folder / "own" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return "--config-dir", str(folder / "own")


LARGE = {
    "size": "k0: [" + "0, " * 50_000 + "0]\n",
    "aliases": "k0: &k0 [x]\n" + "".join(f"k{n}: &k{n} [*k{n - 1}, *k{n - 1}]\n" for n in range(1, 21)),
}


@pytest.mark.parametrize("kind", LARGE)
@pytest.mark.parametrize("name", ["preset/large.yaml", "algo/large.yaml"])
def test_large_files(name, kind, monkeypatch, capsys, tmp_path):
    """Also those that no override chooses, and also for help."""
    more = own_file(tmp_path, name, "# @package _global_\n" + LARGE[kind])
    for words in ([*TINY, f"output_dir={tmp_path / 'run'}"], ["--help", "algo=fedmsa"]):
        one_line(fedopt(monkeypatch, capsys, *more, *words), "large.yaml")


@pytest.mark.parametrize(
    "value",
    [
        "${oc.env:SECRET}",
        "x${oc.env:SECRET,none}",
        '"\\x24{oc.env:SECRET}"',
        "{'${oc.env:SECRET}': 1}",
        "${hydra:runtime.cwd}",
        "${k${seed}}",
    ],
)
@pytest.mark.parametrize("name", ["experiment/sent.yaml", "tuned/mine.yaml"])
def test_a_file_that_reads_the_environment(name, value, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("SECRET", "s3cret")
    more = own_file(tmp_path, name, f"# @package _global_\npreset: {value}\n")
    chosen = ["experiment=sent"] * name.startswith("experiment")
    result = fedopt(monkeypatch, capsys, *more, *TINY, *chosen, f"output_dir={tmp_path / 'run'}")
    one_line(result, name, "environment")
    assert "s3cret" not in result.err


def test_the_config_of_a_sent_run_refers_to_nothing(monkeypatch, capsys, tmp_path):
    """What looks like a reference in it is a text."""
    monkeypatch.setenv("SECRET", "s3cret")
    monkeypatch.chdir(tmp_path)
    assert fedopt(monkeypatch, capsys, *TINY, "output_dir=run").code == 0
    path = tmp_path / "run" / "config.yaml"
    config = yaml.safe_load(path.read_text())
    for reference in ("${oc.env:SECRET}", "${seed}${seed}", "\\${x}"):
        path.write_text(yaml.safe_dump(config | {"from": reference}))
        shown = recorded(RunFolder(tmp_path / "run").config(), ["seed=3"]).nodes
        assert (shown["from"], shown["seed"]) == (reference, 3)
        path.write_text(yaml.safe_dump(config | {"algo": config["algo"] | {"K": reference}}))
        result = fedopt(monkeypatch, capsys, "resume=true", "output_dir=run", "budget.rounds=5")
        assert (result.code, "s3cret" in result.err) == (2, False)


# Files that are none, or are of another kind


OF_A_RUN = ["config.yaml", "run.json", "summary.json", "metrics.csv", "checkpoint.safetensors"]


@pytest.mark.parametrize(
    ("name", "kind"),
    few(
        itertools.product(OF_A_RUN, ["pipe", "device", "folder"]),
        [("config.yaml", "pipe"), ("metrics.csv", "device"), ("checkpoint.safetensors", "folder")].__contains__,
    ),
)
def test_files_of_a_sent_run_that_have_no_end(name, kind, monkeypatch, capsys, tmp_path):
    """Nobody waits for them, and the others are compared."""
    monkeypatch.chdir(tmp_path)
    for seed in (0, 1):
        assert fedopt(monkeypatch, capsys, *TINY, f"seed={seed}", f"output_dir=runs/{seed}").code == 0
    path = tmp_path / "runs" / "0" / name
    path.unlink()
    endless(path, kind)
    monkeypatch.setattr("sys.argv", ["fedopt-compare", "runs"])
    assert code_of(compare.main) == 0
    assert fedopt(monkeypatch, capsys, "resume=true", "output_dir=runs/0").code == (
        0 if (name, kind) == ("run.json", "folder") else 2  # a finished run does not need it
    )


def endless(path, kind):
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "size"])
def test_owners_that_have_no_end(kind, monkeypatch, capsys, tmp_path):
    path = tmp_path / "owners.txt"
    if kind == "size":
        path.write_text("a" * 10_000_000)
    else:
        endless(path, kind)
    words = ["algo=fedavg", "problem=classification", "dataset=digits", "partitioner=by_column"]
    one_line(
        fedopt(monkeypatch, capsys, *words, f"partitioner.file={path}"), f"partitioner.file={path}", "name on each line"
    )


def test_an_image_of_another_kind(tmp_path):
    """Pillow would start Ghostscript for it."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\nshowpage\n")
    with pytest.raises(UserError, match=r"x\.png.*image"):
        Folder(str(tmp_path)).load()


# Values of other types

ODD = [None, 1, -1.5, True, "3", [], [1], {}, {"a": None}, {"x": {"y": 1}}, [[]], 10**400, "2020-01-01"]


@pytest.fixture
def sweep_of_two(tmp_path):
    """Two recorded runs, of which the second is as a run leaves it but for what a test changes."""
    for seed in (0, 1):
        folder = record(tmp_path / "sweep" / str(seed), [70, 80], seed)
        card = json.loads((folder / "run.json").read_text())
        card |= {
            "overrides": [f"seed={seed}"],
            "chosen": {"algo": "fedmsa", "problem": "mco"},
            "data": "d",
            "sources": {},
        }
        card |= {
            "tuned": {"name": "", "pair": "", "keys": [], "beside": [], "left_out": False},
            "machine": {"gpu": None},
        }
        (folder / "run.json").write_text(json.dumps(card))
        summary = {"status": "finished", "round": 10, "final": {"test_accuracy": 80}, "best": {}, "to_target": None}
        (folder / "summary.json").write_text(json.dumps(summary))
    return tmp_path / "sweep"


@pytest.mark.parametrize("name", few(["run.json", "summary.json", "config.yaml"], lambda name: name == "summary.json"))
def test_values_of_other_types(name, sweep_of_two, capsys):
    """One odd folder costs neither the comparison nor the table of a sweep."""
    path = sweep_of_two / "1" / name
    good = yaml.safe_load(path.read_text())
    dump = yaml.safe_dump if name == "config.yaml" else json.dumps
    for key in good:
        for value in [
            *ODD,
            *([datetime.date(2020, 1, 1), {1: 2}, b"x", {datetime.date(2020, 1, 1): 1}] * (dump is yaml.safe_dump)),
        ]:
            path.write_text(dump(good | {key: value}))
            usable([sweep_of_two], "comm_rounds")
            report(sweep_of_two)
            assert len(pd.read_csv(sweep_of_two / "sweep.csv")) == 2, (key, value)
            assert "bug" not in capsys.readouterr().err


@pytest.mark.parametrize("cell", ["x", "", "1e999", '"', "1,2"])
def test_cells_that_are_no_numbers(cell, sweep_of_two):
    path = sweep_of_two / "1" / "metrics.csv"
    text = path.read_text()
    head, *lines = text.split("\n")
    for key in ("round", "comm_rounds", "test_accuracy", "train_seconds"):
        where = head.split(",").index(key)
        rows = [",".join([*row.split(",")[:where], cell, *row.split(",")[where + 1 :]]) if row else "" for row in lines]
        for first in (head, head.replace(key, "other")):
            path.write_text("\n".join([first, *rows]))
            assert len(usable([sweep_of_two], "comm_rounds")) in (1, 2), key


@pytest.mark.full
def test_a_locale_without_umlauts(tmp_path):
    """Files are UTF-8 in every locale."""
    table = "Größe,x\n" + "".join(f"{label},{x}\n" for label, x in zip("äö" * 10, range(20), strict=True))
    (tmp_path / "t.csv").write_text(table, encoding="utf-8")
    text = "# @package _global_\ndataset: {path: t.csv, label: Größe}\nproblem: {model: linear}\n"
    more = own_file(tmp_path, "experiment/mine.yaml", text)
    (tmp_path / "own" / "experiment" / "mine.yaml").write_text(text, encoding="utf-8")
    words = [
        "algo=fedavg",
        "problem=classification",
        "dataset=csv",
        "experiment=mine",
        "partitioner.clients=2",
        "participation.cohort=2",
    ]
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for rounds in (1, 2):
        done = run(*more, *words, f"budget.rounds={rounds}", "output_dir=run", "resume=true", cwd=tmp_path, env=locale)
        assert done.code == 0, done.err
    assert RunFolder(tmp_path / "run").config()["dataset"]["label"] == "Größe"


def test_a_file_does_not_say_where_to_write(monkeypatch, capsys, tmp_path):
    more = own_file(tmp_path, "experiment/mine.yaml", "# @package _global_\noutput_dir: ../elsewhere\n")
    monkeypatch.chdir(tmp_path)
    one_line(fedopt(monkeypatch, capsys, *more, *TINY, "experiment=mine"), "output_dir=../elsewhere", "in the command")
    assert not (tmp_path.parent / "elsewhere").exists()
