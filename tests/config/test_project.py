"""fedopt.toml: what lies in a folder of one's own is found, and what somebody sent is not run."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import slurm as cluster
from support.cases import few
from support.command import ROOT, fedopt, one_line, run, torchrun

import fedopt as library
from fedopt.config import classes, project
from fedopt.config.project import NAME, trusted, with_project
from fedopt.errors import UserError

RUN = ["problem=quadratic_minimisation", "budget.rounds=1", "hardware.threads=1"]
MINE = ["algo=mine", *RUN]
ASKS = (
    "note: fedopt.toml wants Python files to be imported from '.', and they are programs; if you trust their author, "
)


@pytest.fixture
def listed(tmp_path, monkeypatch):
    """The user's list; the working directory is an empty folder. Notes are said anew."""
    home = tmp_path / "home"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    project._say_once.cache_clear()
    return home / "fedopt" / "projects"


def test_commands_find_what_new_has_written(monkeypatch, capsys, listed):
    """Without PYTHONPATH and without --config-dir, from all of them, and from Python."""
    written = fedopt(monkeypatch, capsys, "new", "algo", "mine")
    assert f"from now on: {listed} has it" in written.out
    assert written.out.splitlines()[-1] == "to run it: fedopt algo=mine problem=classification dataset=digits"
    assert listed.stat().st_mode & 0o777 == 0o600
    assert fedopt(monkeypatch, capsys, *MINE, "output_dir=one").err.startswith("mine on quadratic_minimisation")
    assert "  mine" in fedopt(monkeypatch, capsys, "list", "algo").out.splitlines()
    assert "algo.eta" in fedopt(monkeypatch, capsys, "--help", "algo=mine").out
    assert library.run(MINE, output_dir="two", quiet=True).status == "finished"
    assert library.load("one").variables["x"].shape == library.load("two").variables["x"].shape
    assert fedopt(monkeypatch, capsys, "new", "algo", "another").err == ""  # the file stays as it is
    assert listed.read_text().count("\n") == 1


def test_a_project_is_found_from_its_subfolders(monkeypatch, capsys, listed):
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


def test_a_file_of_others_above_is_no_project(monkeypatch, listed):
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
def test_processes_find_it_too(how, monkeypatch, capsys, listed, tmp_path_factory):
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


def test_what_was_sent_runs_nothing(monkeypatch, capsys, listed):
    """Its config folder counts, which runs nothing; its Python files do once the user has said so, here and not elsewhere."""
    fedopt(monkeypatch, capsys, "new", "algo", "mine")
    with Path("mine.py").open("a") as file:
        file.write("\nfrom pathlib import Path\nPath('was_run').touch()\n")
    shutil.copytree(".", "../sent")
    monkeypatch.chdir("../sent")
    result = fedopt(monkeypatch, capsys, *MINE)
    asks, refused = result.err.splitlines()
    assert (result.code, asks) == (2, f"{ASKS}run `fedopt trust`")
    assert refused.startswith("fedopt: algo._target_=mine.Mine cannot be imported: there is no module mine, ")
    assert refused.endswith("run `fedopt trust` once")
    assert "mine" in fedopt(monkeypatch, capsys, "list", "algo").out
    with pytest.raises(library.UserError, match="fedopt trust"):
        library.run(MINE)
    assert not Path("was_run").exists()
    assert "Python files from '.' from now on" in fedopt(monkeypatch, capsys, "trust").out
    assert fedopt(monkeypatch, capsys, *MINE).code == 0
    assert Path("was_run").exists()


def edited():
    Path(NAME).write_text(Path(NAME).read_text().replace('"."', '"code"'))


def moved():
    shutil.copytree(".", "../elsewhere")
    os.chdir("../elsewhere")


def replaced():
    """The same path has another folder, whose file was written as that was."""
    here = Path.cwd()
    shutil.rmtree(here)
    here.mkdir()
    os.chdir(here)
    Path(NAME).write_text(project.new_text())


def others_may_write():
    Path(os.environ["XDG_CONFIG_HOME"], "fedopt", "projects").chmod(0o664)


def another_user():
    os.environ["XDG_CONFIG_HOME"] = str(Path("conf").absolute())


@pytest.mark.parametrize("change", [edited, moved, replaced, others_may_write, another_user])
def test_what_ends_the_trust(change, monkeypatch, capsys, listed):
    fedopt(monkeypatch, capsys, "new", "algo", "mine")
    assert trusted()
    before = [*sys.path]
    change()
    assert not trusted()
    with_project()
    assert sys.path == before
    assert "`fedopt trust`" in capsys.readouterr().err
    with_project()
    assert capsys.readouterr().err == ""  # once is enough


def test_a_linked_file_is_not_read(monkeypatch, capsys, listed):
    fedopt(monkeypatch, capsys, "new", "algo", "mine")
    os.rename(NAME, "../elsewhere.toml")
    Path(NAME).symlink_to("../elsewhere.toml")
    with pytest.raises(UserError, match=r"fedopt\.toml: is a link"):
        with_project()


def test_a_folder_that_is_reached_by_a_link_is_itself(monkeypatch, capsys, listed):
    fedopt(monkeypatch, capsys, "new", "algo", "mine")
    Path("../link").symlink_to(Path.cwd())
    monkeypatch.chdir("../link")
    assert trusted()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("config_dir = 3", "fedopt.toml.config_dir=3: "),
        ('confg_dir = "conf"', "fedopt.toml.confg_dir: there is no such key, did you mean config_dir?"),
        ("config_dir", "fedopt.toml: cannot be read ("),
        ("a = " + "[" * 10_000, "fedopt.toml: cannot be read ("),
        ('python_path = "a\\u0000"', "fedopt.toml: cannot be read ("),
        ('python_path = ".."', "is not in its folder"),
        ('config_dir = "/"', "fedopt.toml: / is not in its folder"),
        ('python_path = "out"', "is not in its folder"),
    ],
)
def test_broken_files_are_one_line(text, said, monkeypatch, capsys, listed):
    Path("out").symlink_to("/tmp")
    Path(NAME).write_text(text)
    one_line(fedopt(monkeypatch, capsys, *RUN, "algo=fedavg"), said)
    one_line(fedopt(monkeypatch, capsys, "trust"), said)


def test_a_pipe_is_no_file(monkeypatch, capsys, listed):
    os.mkfifo(NAME)
    one_line(fedopt(monkeypatch, capsys, *RUN, "algo=fedavg"), "fedopt.toml: must be a regular file")


@pytest.mark.parametrize("place", ["/proc/none", "file", ""])
def test_a_home_that_cannot_be_written(place, monkeypatch, capsys, listed):
    """The files are written all the same, and PYTHONPATH does it without a list."""
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")  # which the standard says to ignore
    monkeypatch.setenv("HOME", place and str(Path(place).absolute()))
    monkeypatch.setattr(os.path, "expanduser", (lambda path: path) if not place else os.path.expanduser)
    Path("file").touch()
    result = fedopt(monkeypatch, capsys, "new", "algo", "mine")
    assert (result.code, result.err.count("\n")) == (0, 1)
    assert "cannot be written" in result.err or "no home folder" in result.err
    assert not Path("relative").exists()
    one_line(fedopt(monkeypatch, capsys, "trust"), "PYTHONPATH=." if place else "XDG_CONFIG_HOME")
    monkeypatch.syspath_prepend(Path.cwd())
    assert fedopt(monkeypatch, capsys, *MINE).code == 0


def test_trust_begins_a_project(monkeypatch, capsys, listed):
    """Where Python files are there already."""
    Path("elsewhere.py").write_text("")
    result = fedopt(monkeypatch, capsys, "algo=fedavg", *RUN, "algo._target_=elsewhere.Mine")
    one_line(result, "run `fedopt trust` once")
    assert fedopt(monkeypatch, capsys, "trust").code == 0
    result = fedopt(monkeypatch, capsys, "algo=fedavg", *RUN, "algo._target_=elsewhere.Mine")
    one_line(result, "elsewhere has no Mine")


def test_a_file_without_python_files_needs_no_trust(monkeypatch, capsys, listed):
    """Its config folder, of another name, has what `new` writes too."""
    Path(NAME).write_text('config_dir = "conf"')
    Path("conf/algo").mkdir(parents=True)
    Path("conf/algo/still.yaml").write_text("defaults: [fedavg]\n")
    assert "still" in fedopt(monkeypatch, capsys, "list", "algo").out
    result = fedopt(monkeypatch, capsys, "new", "algo", "mine")
    assert (result.err, Path("conf/algo/mine.yaml").exists()) == ("", True)
    assert 'parent / "conf"' in Path("test_mine.py").read_text()
    one_line(fedopt(monkeypatch, capsys, "trust"), "has no python_path")


def test_the_line_that_goes_on_has_what_was_typed(monkeypatch, capsys, listed):
    """And not the project's folder, which is found again."""
    fedopt(monkeypatch, capsys, "new", "algo", "mine")
    code = (
        "import os, sys, fedopt.commands.run as c, fedopt.config.project as p\n"
        "p.with_project()\nfrom types import SimpleNamespace as N\n"
        "folder = N(path='out', summary=lambda: {}, card=lambda: {})\n"
        "print(os.environ['PYTHONPATH'])\n"
        "print(c._last_line('interrupted', folder, N(eval=N(target=None), budget=N(limits={}))))"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    out = subprocess.run([sys.executable, "-c", code.replace("p.with", "del sys.path[0]; p.with")], env=env, text=True,
                         capture_output=True).stdout.splitlines()  # fmt: skip
    assert out[0] == f"{Path.cwd()}{os.pathsep}{ROOT}"
    assert re.search(rf"to go on: PYTHONPATH={ROOT} fedopt resume=true", out[-1])


def put(path, kind):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    {
        "pipe": os.mkfifo,
        "folder": Path.mkdir,
        "text": lambda p: p.write_bytes(b"[1]\0"),
        "types": lambda p: p.write_text('{"a": 5}'),
    }[kind](path)


@pytest.mark.parametrize("kind", ["pipe", "folder", "text"])
def test_a_list_of_trusted_folders_that_is_none(kind, monkeypatch, capsys, listed):
    """One line, and never a wait for the other end of a pipe."""
    put(listed, kind)
    Path(NAME).write_text(project.new_text())
    assert not trusted()
    one_line(fedopt(monkeypatch, capsys, "trust"), str(listed), "cannot be written", "PYTHONPATH=.")


@pytest.mark.parametrize("kind", ["pipe", "folder", "text", "types"])
@pytest.mark.parametrize("lock", [False, True])
def test_a_cache_with_other_content_is_not_read(kind, lock, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(classes, "_kept", lambda: dict(classes._read()))
    file = classes._file()
    put(Path(f"{file}.lock") if lock else file, kind)
    assert "minimisation" in classes.about("fedopt.algorithms.fedavg.FedAvg")["fits"]
