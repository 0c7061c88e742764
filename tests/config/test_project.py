"""fedopt.toml: commands find the configs, the Python files and the runs of a project."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import slurm as cluster
from support.cases import few
from support.command import ROOT, fedopt, one_line, run, torchrun

import fedopt as library
from fedopt.config import classes, project
from fedopt.config.project import NAME, with_project
from fedopt.errors import UserError

RUN = ["problem=quadratic_minimisation", "budget.rounds=1", "hardware.threads=1"]
MINE = ["algo=mine", *RUN]


@pytest.fixture(autouse=True)
def work(tmp_path, monkeypatch):
    """The working directory is an empty folder."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


def test_commands_find_what_new_has_written(monkeypatch, capsys):
    """Without PYTHONPATH and without --config-dir, from all of them, and from Python."""
    written = fedopt(monkeypatch, capsys, "new", "algo", "mine")
    assert written.out.startswith("wrote mine.py, myconf/algo/mine.yaml, test_mine.py, fedopt.toml\n")
    assert written.out.splitlines()[-1] == "to run it: fedopt algo=mine problem=classification dataset=digits"
    assert fedopt(monkeypatch, capsys, *MINE, "output_dir=one").err.startswith("mine on quadratic_minimisation")
    assert "  mine" in fedopt(monkeypatch, capsys, "list", "algo").out.splitlines()
    assert "algo.eta" in fedopt(monkeypatch, capsys, "--help", "algo=mine").out
    assert library.run(MINE, output_dir="two", quiet=True).status == "finished"
    assert library.load("one").variables["x"].shape == library.load("two").variables["x"].shape
    before = Path(NAME).read_bytes()
    assert fedopt(monkeypatch, capsys, "new", "algo", "another").err == ""
    assert Path(NAME).read_bytes() == before


def test_a_project_is_found_from_its_subfolders(monkeypatch, capsys):
    """Its config folder, its Python files and its outputs; `fedopt new` adds to it. Another project inside comes first."""
    fedopt(monkeypatch, capsys, "new", "algo", "mine")
    top = Path.cwd()
    (top / "notes" / "may").mkdir(parents=True)
    monkeypatch.chdir(top / "notes" / "may")
    assert fedopt(monkeypatch, capsys, *MINE).out.splitlines()[-1].startswith("results: ../../outputs/mine_quadratic")
    assert fedopt(monkeypatch, capsys, "-m", *MINE, "seed=0,1").code == 0
    assert {path.name for path in (top / "outputs").iterdir()} == {"mine_quadratic_minimisation", "multirun"}
    assert "wrote ../../other.py" in fedopt(monkeypatch, capsys, "new", "algo", "other").out
    assert fedopt(monkeypatch, capsys, "algo=other", *RUN).code == 0
    assert [*Path().iterdir()] == []
    (top / "notes" / NAME).write_text('config_dir = "none"\n')
    assert "algo=mine" in fedopt(monkeypatch, capsys, *MINE).err


def test_a_file_of_others_above_is_no_project(monkeypatch):
    """In a folder such as /tmp; in the working directory itself it is, as before."""
    Path(NAME).write_text('config_dir = "conf"\n')
    Path("conf", "sub").mkdir(parents=True)
    monkeypatch.setattr("os.getuid", lambda: 12345)
    assert with_project() == ["conf"]
    monkeypatch.chdir("conf/sub")
    assert (project.home(), with_project()) == (Path(), [])


@pytest.mark.parametrize(
    "how", few(["-m", "--jobs", "python -m", "torchrun", "queue"], lambda how: how == "-m", pytest.mark.slow)
)
def test_processes_find_it_too(how, monkeypatch, capsys, tmp_path_factory):
    fedopt(monkeypatch, capsys, "new", "algo", "mine")
    if how == "queue":
        pytest.importorskip("submitit")
    one = {
        "cwd": Path.cwd(),
        "env": {"PYTHONPATH": str(ROOT), **cluster.install(tmp_path_factory.mktemp("cluster") / "slurm")},
    }
    words = {
        "-m": ["-m", *MINE, "seed=0,1"],
        "--jobs": ["-m", *MINE, "seed=0,1", "--jobs", "2"],
        "python -m": MINE,
        "torchrun": ["-m", "fedopt", *MINE],
        "queue": ["-m", *MINE, "seed=0", "--launcher", "slurm"],
    }[how]
    result = torchrun(*words, cwd=Path.cwd()) if how == "torchrun" else run(*words, **one)
    assert result.code == 0, result.err
    assert len([*Path("outputs").rglob("summary.json")]) == 1 + ("seed=0,1" in words)


def test_installed_modules_come_first(monkeypatch, capsys):
    """A file of a project replaces none of them."""
    fedopt(monkeypatch, capsys, "new", "algo", "mine")
    Path("numpy.py").write_text("raise ValueError\n")
    assert run(*MINE, cwd=Path.cwd(), env={"PYTHONPATH": str(ROOT)}).code == 0


def test_a_linked_file_is_not_read(monkeypatch, capsys):
    fedopt(monkeypatch, capsys, "new", "algo", "mine")
    os.rename(NAME, "../elsewhere.toml")
    Path(NAME).symlink_to("../elsewhere.toml")
    with pytest.raises(UserError, match=r"fedopt\.toml: is a symbolic link"):
        with_project()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("config_dir = 3", "fedopt.toml.config_dir=3: "),
        ('confg_dir = "conf"', "fedopt.toml.confg_dir: there is no such key, did you mean config_dir?"),
        ("config_dir", "fedopt.toml: cannot be read ("),
        ("a = " + "[" * 10_000, "fedopt.toml: cannot be read ("),
        ('python_path = "a\\u0000"', "fedopt.toml: cannot be read ("),
        ('python_path = ".."', "is outside the project"),
        ('config_dir = "/"', "fedopt.toml: / is outside the project"),
        ('python_path = "out"', "is outside the project"),
    ],
)
def test_broken_files_are_one_line(text, said, monkeypatch, capsys):
    Path("out").symlink_to("/tmp")
    Path(NAME).write_text(text)
    one_line(fedopt(monkeypatch, capsys, *RUN, "algo=fedavg"), said)


def test_a_pipe_is_no_file(monkeypatch, capsys):
    os.mkfifo(NAME)
    one_line(fedopt(monkeypatch, capsys, *RUN, "algo=fedavg"), "fedopt.toml: must be a regular file")


def test_a_file_without_python_files(monkeypatch, capsys):
    """Its config folder, of another name, has what `new` writes too."""
    Path(NAME).write_text('config_dir = "conf"')
    Path("conf/algo").mkdir(parents=True)
    Path("conf/algo/still.yaml").write_text("defaults: [fedavg]\n")
    assert "still" in fedopt(monkeypatch, capsys, "list", "algo").out
    result = fedopt(monkeypatch, capsys, "new", "algo", "mine")
    assert (result.err, Path("conf/algo/mine.yaml").exists()) == ("", True)
    assert 'parent / "conf"' in Path("test_mine.py").read_text()


def test_child_processes_find_the_project(monkeypatch, capsys):
    """After the folders that the user has put on PYTHONPATH."""
    fedopt(monkeypatch, capsys, "new", "algo", "mine")
    code = "import os, sys, fedopt.config.project as p\np.with_project()\nprint(os.environ['PYTHONPATH'])"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    out = subprocess.run([sys.executable, "-c", code.replace("p.with", "del sys.path[0]; p.with")], env=env, text=True,
                         capture_output=True).stdout.splitlines()  # fmt: skip
    assert out == [f"{ROOT}{os.pathsep}{Path.cwd()}"]


def put(path, kind):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    {
        "pipe": os.mkfifo,
        "folder": Path.mkdir,
        "text": lambda p: p.write_bytes(b"[1]\0"),
        "types": lambda p: p.write_text('{"a": 5}'),
    }[kind](path)


@pytest.mark.parametrize("kind", ["pipe", "folder", "text", "types"])
@pytest.mark.parametrize("lock", [False, True])
def test_a_cache_with_other_content_is_not_read(kind, lock, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(classes, "_cached", lambda: dict(classes._read()))
    file = classes._file()
    put(Path(f"{file}.lock") if lock else file, kind)
    assert "minimisation" in classes.about("fedopt.algorithms.fedavg.FedAvg")["fits"]
