"""Files that somebody sent: configs, data and folders of runs are read, and run no code (SECURITY.md)."""

import os
import pickle

import pytest
from support.command import TINY, fedopt, run

from fedopt.config.build import build_target
from fedopt.errors import UserError

CALLBACK = "callbacks: {x: {_target_: sent.touch}}"
FILES = {
    "a node": ("experiment/sent.yaml", f"# @package _global_\nhydra:\n  {CALLBACK}\n"),
    "a package": ("experiment/sent.yaml", f"# @package hydra\n{CALLBACK}\n"),
    "a defaults list": ("experiment/sent.yaml", "# @package _global_\ndefaults:\n  - override /hydra/callbacks: x\n"),
    "a group of Hydra's": ("hydra/callbacks/x.yaml", "x: {_target_: sent.touch}\n"),
    "a file that is no YAML": ("hydra/launcher/x.yaml", "x: !!python/object/apply:sent.touch []\n"),
    "a file that another one builds on": ("preset/base.yaml", f"# @package _global_\nhydra:\n  {CALLBACK}\n"),
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


@pytest.mark.parametrize("sweep", [[], ["-m", "seed=0,1"]], ids=["run", "sweep"])
@pytest.mark.parametrize("case", FILES)
def test_a_file_that_sets_up_hydra(case, sweep, monkeypatch, capsys, tmp_path, trap):
    name, text = FILES[case]
    path = tmp_path / "own" / name
    path.parent.mkdir(parents=True)
    path.write_text(text)
    chosen = ["experiment=sent"] if name.startswith("experiment") else []
    more = ["--config-dir", str(tmp_path / "own"), *chosen, f"output_dir={tmp_path / 'run'}"]
    one_line(fedopt(monkeypatch, capsys, *sweep, *TINY, *more), name, "Hydra")
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
@pytest.mark.parametrize(
    "target", ["sent.touch", "sent.Touch", "builtins.open", "os.system", "pickle.load", "sent", "builtins.str"]
)
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
        "{_target_: support.networks.Normed, width: mine.pt}",
    ],
)
def test_only_networks_are_built_and_from_numbers(model, monkeypatch, capsys, tmp_path, trap):
    words = ["algo=fedavg", "problem=classification", "dataset=digits", f"problem.model={model}"]
    one_line(fedopt(monkeypatch, capsys, *words, f"output_dir={tmp_path / 'run'}"), "problem.model")
    assert not (tmp_path / "run").exists()


def test_the_working_directory_is_not_searched_for_modules(tmp_path):
    (tmp_path / "mine.py").write_text("open('trace', 'w')\n")
    result = run(*TINY, "algo._target_=mine.Algorithm", cwd=tmp_path)
    one_line(result, "algo._target_=mine.Algorithm", "cannot be imported")
    assert not (tmp_path / "trace").exists()


def test_a_checkpoint_that_is_a_pickle(monkeypatch, capsys, tmp_path, trap):
    arguments = [*TINY, f"output_dir={tmp_path / 'run'}"]
    assert fedopt(monkeypatch, capsys, *arguments).code == 0

    class Sent:
        def __reduce__(self):
            return (open, (str(tmp_path / "trace"), "w"))

    (tmp_path / "run" / "checkpoint.safetensors").write_bytes(pickle.dumps(Sent()))
    one_line(fedopt(monkeypatch, capsys, *arguments, "budget.rounds=8", "resume=true"), "checkpoint.safetensors")


HIDDEN = {  # files, by their path beside the config folder `own`
    "a date that cannot be": {"own/experiment/sent.yaml": "experiment: {when: 2026-99-99}\n"},
    "a tag": {"own/experiment/sent.yaml": "experiment: {when: !!python/object/apply:pathlib.PosixPath [a]}\n"},
    "an escaped name": {"own/experiment/sent.yaml": '"\\x68ydra": {callbacks: {y: {_target_: sent.touch}}}\n'},
    "a folder beside": {"own/experiment/sent.yaml": "defaults: [/../beside/sent, _self_]\n", "beside/sent.yaml": ""},
    "a choice beside": {
        "own/experiment/sent.yaml": "defaults: [override /algo: ../../beside/sent, _self_]\n",
        "beside/sent.yaml": "",
    },
}


@pytest.mark.parametrize("case", [*HIDDEN, "a linked folder"])
def test_a_file_that_sets_up_hydra_unseen(case, monkeypatch, capsys, tmp_path, trap):
    """Read as Hydra reads it, and judged by what comes of it."""
    files = HIDDEN.get(case, {"own/experiment/sent.yaml": "", "beside/sent.yaml": ""})
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        setting = "" if "defaults" in text or "x68" in text else f"hydra:\n  {CALLBACK}\n"
        path.write_text("# @package _global_\n" + text + setting)
    if case == "a linked folder":
        (tmp_path / "own" / "experiment" / "sub").symlink_to(tmp_path / "beside")
        (tmp_path / "own" / "experiment" / "sent.yaml").write_text("defaults: [/experiment/sub/sent, _self_]\n")
    words = ["-m", "--config-dir", str(tmp_path / "own"), *TINY, "experiment=sent", "seed=0,1"]
    one_line(fedopt(monkeypatch, capsys, *words, f"output_dir={tmp_path / 'run'}"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", ["pipe", "device", "aliases"])
def test_config_files_that_have_no_end(kind, monkeypatch, capsys, tmp_path):
    """They are not waited for."""
    path = tmp_path / "own" / "preset" / "endless.yaml"
    path.parent.mkdir(parents=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        levels = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
        path.write_text("\n".join(["a0: &a0 [x]", *levels]))
    words = ["--config-dir", str(tmp_path / "own"), *TINY, f"output_dir={tmp_path / 'run'}"]
    one_line(fedopt(monkeypatch, capsys, *words), "endless.yaml")


def test_a_preset_that_a_file_names(monkeypatch, capsys, tmp_path):
    path = tmp_path / "own" / "experiment" / "mine.yaml"
    path.parent.mkdir(parents=True)
    path.write_text("# @package _global_\npreset: fedmsa/nope\n")
    words = ["--config-dir", str(tmp_path / "own"), "experiment=mine", f"output_dir={tmp_path / 'run'}"]
    one_line(fedopt(monkeypatch, capsys, *words), "preset=fedmsa/nope", "fedmsa/mco")
