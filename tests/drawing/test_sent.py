"""Pages of folders that somebody sent, with files that are links, broken or odd: one line each, and no other file in the page."""

import os
import resource
import shutil

import pytest
from support.cases import few
from support.command import ROOT, TINY, code_of, fedopt
from support.records import record

from fedopt.analysis.runs import gathered, read
from fedopt.commands import reproduce
from fedopt.commands.ls import ls
from fedopt.errors import UserError
from fedopt.papers.page import page
from fedopt.papers.published import Task
from fedopt.papers.report import Plan
from fedopt.results.folder import TEXTS

KEY = "-----BEGIN PRIVATE KEY-----"


@pytest.fixture
def results(tmp_path):
    """The results of a paper's experiment, with one run of a line, and a run of somebody's own."""
    folder = tmp_path / "out" / "fedmsa" / "fig1a"
    shutil.copytree(ROOT / "docs" / "results" / "fedmsa" / "fig1a", folder)
    _, seed, name = (folder / "runs.csv").read_text().splitlines()[1].rsplit(",", 2)
    record(tmp_path / "out" / "runs" / name, [10, 90], int(seed))
    record(tmp_path / "out" / "own", [10, 90], seed=99)
    (tmp_path / "key").write_text(KEY)
    return folder


def shown(folder):
    """What a page has of all that it shows, and its notes."""
    made = page([folder])
    tables = [table.cells.to_csv() for part in made.sections for table in part.tables]
    return made, "".join([*tables, *(part.picture for part in made.sections), *made.notes])


def link(path, key):
    path.symlink_to(key)


def copy(path, key):
    shutil.copy(key, path)


def pipe(path, key):
    os.mkfifo(path)


def device(path, key):
    path.symlink_to("/dev/zero")


def folder(path, key):
    path.mkdir()


@pytest.mark.parametrize("how", few([link, copy, pipe, device, folder], lambda how: how in (link, copy)))
@pytest.mark.parametrize(
    "name",
    few(
        ["figure.svg", "figure.png", "claims.csv", "runs.csv", "table.csv"],
        lambda name: name in ("figure.svg", "runs.csv"),
    ),
)
def test_a_file_of_results_that_is_another(name, how, results, tmp_path):
    """The page is there without it, and a note names it."""
    if name == "figure.png":
        (results / "figure.svg").unlink()
    (results / name).unlink(missing_ok=True)
    how(results / name, tmp_path / "key")
    made, all_of_it = shown(tmp_path / "out")
    assert KEY not in all_of_it
    assert "S0VZ" not in all_of_it  # of its base64
    assert [name in note for note in made.notes].count(True) == 1
    assert len(made.sections) > 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("claims.csv", "kind,says\npaper,x\n"),
        ("claims.csv", ""),
        ("table.csv", "row,column,paper,mean,std,seeds\na,b,1,1,-1,3\na,b,1,1,1,3\n"),
        ("table.csv", "row,column,paper,mean,std,seeds\na,b,x,y,z,w\n"),
        ("table.csv", "\0" * 99),
        ("runs.csv", "line,seed,run\na,b,c\n"),
        ("partition.csv", "1,2\n3,x\n"),
        ("partition.csv", "1,2\n3\n"),
        ("partition.csv", ""),
        ("partition.csv", "1,-2\n"),
    ],
)
def test_an_odd_table(name, text, results, tmp_path):
    place = tmp_path / "out" / "own" if name == "partition.csv" else results
    (place / name).write_text(text)
    made, _ = shown(tmp_path / "out")
    assert [str(place / name) in note for note in made.notes].count(True) == 1
    assert len(made.sections) > 1


@pytest.mark.parametrize("how", few([link, pipe, device, folder], lambda how: how is link))
@pytest.mark.parametrize("name", ["config.yaml", "run.json", "metrics.csv", "summary.json", "partition.csv"])
def test_a_file_of_a_run_that_is_another(name, how, tmp_path, capsys):
    """It costs this run, or what it says; the other run is there."""
    for run in ("good", "other"):
        record(tmp_path / "out" / run, [10, 90], algo={"_target_": run})
    place = tmp_path / "out" / "other" / name
    if name != "partition.csv":
        place.rename(tmp_path / "key")
    else:
        (tmp_path / "key").write_text("98765,1\n")
    how(place, tmp_path / "key")
    runs, skipped = gathered([tmp_path / "out"], "comm_rounds")
    assert "good" in [run.folder.name for run in runs]
    if name in ("config.yaml", "run.json", "metrics.csv"):
        assert [*map(len, skipped.values())] == [1]
    assert "98765" not in shown(tmp_path / "out")[1]
    ls([str(tmp_path / "out")])
    assert "good" in capsys.readouterr().out


def test_a_table_whose_rows_are_longer_than_its_names(tmp_path):
    """Pandas would take the first cells for names of rows, and shift all columns."""
    run = record(tmp_path / "run", [10, 90])
    head, *rows = (run / "metrics.csv").read_text().splitlines()
    (run / "metrics.csv").write_text(
        "\n".join([head.partition(",")[2].replace("comm_rounds", "round,comm_rounds"), *rows, ""])
    )
    read(run, "comm_rounds")
    (run / "metrics.csv").write_text("\n".join([head.rpartition(",")[0], *rows, ""]))
    with pytest.raises(UserError, match=r"metrics\.csv: cannot be read \(its rows have more cells"):
        read(run, "comm_rounds")


@pytest.mark.parametrize("name", ["claims.csv", "runs.csv", "table.csv", "run.json", "metrics.csv"])
def test_files_have_limits(name, results, tmp_path):
    """A file with a hole of a gigabyte costs no memory."""
    place = results if name in ("claims.csv", "runs.csv", "table.csv") else tmp_path / "out" / "own"
    with (place / name).open("wb") as file:
        file.truncate(2**30)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    made, shown_there = shown(tmp_path / "out")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 600_000  # kB
    assert "too large" in shown_there or name == "run.json"
    assert len(made.sections) > 1


def test_all_texts_of_a_run_are_tried():
    assert {*TEXTS} - {"log.txt", "traceback.txt"} == {"config.yaml", "run.json", "metrics.csv", "summary.json"}


def test_a_broken_run_of_an_experiment(results, tmp_path, capsys):
    """The others count; a note names it."""
    line, seed, name = (results / "runs.csv").read_text().splitlines()[1].rsplit(",", 2)
    plan = Plan(name="fedmsa/fig1a", output=tmp_path / "out")
    plan.tasks = [Task(line.strip('"'), int(seed), None, name), Task("other", int(seed), None, "other")]
    run = record(tmp_path / "out" / "runs" / "other", [10, 90], int(seed))
    (run / "run.json").unlink()
    assert [*plan.ended()[int(seed)].runs] == [line.strip('"')]
    assert f"{run}: cannot be used (no run.json)" in capsys.readouterr().err


@pytest.mark.parametrize("inside", ["runs", "fedmsa", "fedmsa/fig1a", "quick"])
def test_folders_of_results_are_not_written_through(inside, tmp_path, monkeypatch, capsys):
    (tmp_path / "away").mkdir()
    place = tmp_path / "out" / inside
    place.parent.mkdir(parents=True)
    place.symlink_to(tmp_path / "away")
    words = ["fedopt-reproduce", "fedmsa/fig1a", "--output", str(tmp_path / "out"), *["--quick"] * (inside == "quick")]
    monkeypatch.setattr("sys.argv", words)
    assert code_of(reproduce.main) == 2
    assert f"{place}: is a symbolic link" in capsys.readouterr().err
    assert not [*(tmp_path / "away").iterdir()]


def test_a_run_of_a_sweep_is_not_written_through(tmp_path, monkeypatch, capsys):
    """It is refused; the others are done."""
    (tmp_path / "away").mkdir()
    words = ["-m", *TINY, "seed=0,1", f"output_dir={tmp_path / 'sweep'}"]
    assert fedopt(monkeypatch, capsys, *words).code == 0
    first, second = sorted(path for path in (tmp_path / "sweep").iterdir() if path.is_dir())
    shutil.rmtree(first)
    shutil.rmtree(second)
    first.symlink_to(tmp_path / "away")
    result = fedopt(monkeypatch, capsys, *words)
    assert (result.code, f"{first}: is a symbolic link" in result.err) == (1, True)
    assert not [*(tmp_path / "away").iterdir()]
    assert (second / "summary.json").exists()
