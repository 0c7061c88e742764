"""`fedopt ls`: rows, filters, order, what is broken, and how it looks at 60 to 160 columns; and `fedopt rm`."""

import json
import time

import pytest
from support.command import fedopt, one_line

from fedopt.results import RunFolder


def record(
    folder, status="finished", algo="fedmsa", seed=0, value=0.5, seconds=3.2, problem="mco", day="2026-05-03", **config
):
    """A run's folder, as far as `fedopt ls` reads it."""
    folder.mkdir(parents=True)
    metrics = [{"name": "distance", "label": "distance"}]
    card = {"chosen": {"algo": algo, "problem": problem}, "seed": seed, "metrics": metrics, "overrides": []}
    (folder / "run.json").write_text(json.dumps(card | {"started": f"{day}T10:20:30+00:00"}))
    summary = {"status": status, "final": {"distance": value}, "seconds": seconds}
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "config.yaml").write_text(json.dumps({"algo": {"K": 5, "eta": 0.1}, "seed": seed, **config}))
    with (folder / "checkpoint.safetensors").open("wb") as file:
        file.truncate(1_200_000 - sum(path.stat().st_size for path in folder.iterdir()))


@pytest.fixture(autouse=True)
def in_utc(monkeypatch):
    """Dates are shown in the time of the user's machine."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sweep = tmp_path / "outputs" / "multirun" / "fedmsa_mco-K"
    record(sweep / "seed2-K5", seed=2, value=0.012345, seconds=200)
    record(sweep / "seed10-K5", "running", seed=10, value=None)
    record(
        tmp_path / "outputs" / "fedavg_mco" / "default", "diverged", "fedavg", value=None, seconds=7300, algo_={"K": 1}
    )
    return tmp_path


SCREENS = {
    140: """\
status       algo    problem  seed  metric      value  date              folder
diverged     fedavg  mco         0  distance        -  2026-05-03 10:20  outputs/fedavg_mco/default
finished     fedmsa  mco         2  distance  0.01235  2026-05-03 10:20  outputs/multirun/fedmsa_mco-K/seed2-K5
interrupted  fedmsa  mco        10  distance        -  2026-05-03 10:20  outputs/multirun/fedmsa_mco-K/seed10-K5
""",
    60: """\
status       algo    problem  seed  metric      value
diverged     fedavg  mco         0  distance        -
    2026-05-03 10:20
    outputs/fedavg_mco/default
finished     fedmsa  mco         2  distance  0.01235
    2026-05-03 10:20
    outputs/multirun/fedmsa_mco-K/seed2-K5
interrupted  fedmsa  mco        10  distance        -
    2026-05-03 10:20
    outputs/multirun/fedmsa_mco-K/seed10-K5
""",
}
FOOT = """\
3 runs: 1 diverged, 1 finished, 1 interrupted
to compare: fedopt compare outputs/fedavg_mco outputs/multirun
to resume: fedopt resume=true output_dir=outputs/multirun/fedmsa_mco-K/seed10-K5
"""


@pytest.mark.parametrize("width", SCREENS)
def test_screens(width, runs, monkeypatch, capsys):
    """The seeds in the order of their numbers; a run whose process is gone is interrupted."""
    monkeypatch.setattr("fedopt.console.say.PIPED", width)
    result = fedopt(monkeypatch, capsys, "ls")
    assert (result.code, result.err) == (0, "")
    assert result.out == SCREENS[width] + FOOT


@pytest.mark.parametrize(
    ("words", "folders"),
    [
        (["algo=fedmsa"], ["seed2-K5", "seed10-K5"]),
        (["algo=fedmsa", "status=finished"], ["seed2-K5"]),
        (["algo=fed*", "seed=10,0"], ["default", "seed10-K5"]),
        (["algo.eta=1e-1", "seed=2.0"], ["seed2-K5"]),
        (["folder=*seed*"], ["seed2-K5", "seed10-K5"]),
        (["outputs/multirun", "outputs"], ["default", "seed2-K5", "seed10-K5"]),
        (["--sort", "time"], ["seed10-K5", "seed2-K5", "default"]),
        (["--sort", "value"], ["seed2-K5", "default", "seed10-K5"]),
        (["--sort", "seed", "-r"], ["seed10-K5", "seed2-K5", "default"]),
        (["--sort", "algo.K", "algo=fedavg"], ["default"]),
        (["date=2026-05-03*"], ["default", "seed2-K5", "seed10-K5"]),
        (["--sort", "date"], ["a", "default", "seed2-K5", "seed10-K5"]),
    ],
)
def test_filters_and_order(words, folders, runs, monkeypatch, capsys):
    if "date" in str(words) or "-05-" in str(words):
        record(runs / "outputs" / "a", day="2026-05-02")
    lines = fedopt(monkeypatch, capsys, "ls", *words).out.splitlines()
    assert [line.rpartition("/")[2] for line in lines if "mco  " in line] == folders


def test_what_is_not_there(runs, monkeypatch, capsys):
    one_line(fedopt(monkeypatch, capsys, "ls", "nowhere"), "nowhere: there is no such folder")
    one_line(fedopt(monkeypatch, capsys, "ls", "algo.kk=1"), "algo.kk", "did you mean algo.K?")
    one_line(fedopt(monkeypatch, capsys, "ls", "--sort", "tim"), "did you mean time?")
    none = fedopt(monkeypatch, capsys, "ls", "algo=fednest")
    assert (none.code, none.out) == (0, "no runs with algo=fednest in outputs, which contains 3 runs\n")
    (runs / "empty").mkdir()
    monkeypatch.setattr("fedopt.commands.ls.outputs", lambda: runs / "empty")
    empty = fedopt(monkeypatch, capsys, "ls")
    assert (empty.code, "start one with fedopt algo=" in empty.out) == (0, True)


def test_broken_folders_and_links(runs, monkeypatch, capsys):
    """One line for what cannot be read; a link that leads back is not followed."""
    place = runs / "outputs" / "multirun" / "fedmsa_mco-K"
    for name, text in (("a", "{"), ("b", "[]"), ("c", '{"status": 7}')):
        (place / name).mkdir()
        (place / name / "summary.json").write_text(text)
    (place / "loop").symlink_to(runs / "outputs")
    (place / "seed2-K5" / "run.json").write_text("no json")
    (place / "seed2-K5" / "config.yaml").unlink()
    result = fedopt(monkeypatch, capsys, "ls", "outputs")
    assert result.code == 0
    assert result.err.count("\n") == 1
    assert "3 folders" in result.err
    assert "3 runs: " in result.out
    (row,) = (line.split() for line in result.out.splitlines() if line.endswith("seed2-K5"))
    assert row[:6] == ["finished", "-", "-", "-", "-", "-"]


def test_why_a_run_failed(runs, monkeypatch, capsys):
    """Under its row, no longer than the terminal is wide."""
    monkeypatch.setattr("fedopt.console.say.PIPED", 80)
    place = runs / "outputs" / "fedavg_mco" / "default" / "summary.json"
    for error, shown in (("ValueError: a\nb", "    ValueError: a\\nb"), ("x" * 500, "    " + "x" * 76)):
        place.write_text(json.dumps({"status": "failed", "error": error}))
        lines = fedopt(monkeypatch, capsys, "ls").out.splitlines()
        assert lines[1].startswith("failed ")
        assert lines[2:4] == ["    outputs/fedavg_mco/default", shown]


def test_json(runs, monkeypatch, capsys):
    (row, *others) = json.loads(fedopt(monkeypatch, capsys, "ls", "--json", "--sort", "seed", "status=finished").out)
    assert not others
    assert (row.pop("size"), row.pop("error")) == (1_200_000, "")
    names = ("status", "algo", "problem", "seed", "metric", "value", "time", "date", "folder")
    folder = "outputs/multirun/fedmsa_mco-K/seed2-K5"
    values = ("finished", "fedmsa", "mco", 2, "distance", 0.012345, 200, "2026-05-03 10:20", folder)
    assert row == dict(zip(names, values, strict=True))


def test_a_search_is_one_line(runs, monkeypatch, capsys):
    """Inside its folder each trial has one."""
    search = runs / "outputs" / "tune" / "fedmsa_mco"
    for k in range(30):
        record(search / "fedmsa" / f"trial{k:03}" / "seed1000", "diverged" if k % 3 else "finished", seed=1000)
    (search / "search.json").write_text("{}")
    monkeypatch.setattr("fedopt.console.say.PIPED", 140)
    lines = fedopt(monkeypatch, capsys, "ls").out.splitlines()
    (line,) = [line.split() for line in lines if line.startswith("search ")]
    assert line == ["search", "-", "-", "-", "-", "-", "-", "outputs/tune/fedmsa_mco"]
    assert "4 runs: 1 diverged, 1 finished, 1 interrupted, 1 search" in lines
    assert fedopt(monkeypatch, capsys, "ls", str(search)).out.count("/seed1000\n") == 30


def test_advice_compares_no_trials(runs, monkeypatch, capsys):
    """They have bad values by design. Filters choose what is compared."""
    for k in range(2):
        record(runs / "outputs" / "tune" / "s" / "fedmsa" / f"trial{k}", seed=1000)
    (runs / "outputs" / "tune" / "s" / "search.json").write_text("{}")
    assert FOOT.splitlines()[1] in fedopt(monkeypatch, capsys, "ls").out.splitlines()
    sweep = "outputs/multirun/fedmsa_mco-K"
    for words, places in (
        (["algo=fedmsa", "folder=*K5"], f"{sweep}/seed2-K5 {sweep}/seed10-K5"),
        (["outputs/multirun"], sweep),
    ):
        lines = fedopt(monkeypatch, capsys, "ls", *words).out.splitlines()
        assert f"to compare: fedopt compare {places}" in lines
    assert "to compare" not in fedopt(monkeypatch, capsys, "ls", "algo=fedavg").out


def test_from_a_subfolder(runs, monkeypatch, capsys):
    """The outputs of the project, or the nearest ones above."""
    for file in ((), ("fedopt.toml",)):
        for name in file:
            (runs / name).write_text('config_dir = "myconf"\n')
        place = runs / "papers" / "one"
        place.mkdir(parents=True, exist_ok=True)
        monkeypatch.chdir(place)
        out = fedopt(monkeypatch, capsys, "ls").out
        assert "  ../../outputs/multirun/fedmsa_mco-K/seed2-K5\n" in out
        assert "to compare: fedopt compare ../../outputs/fedavg_mco ../../outputs/multirun\n" in out
        monkeypatch.chdir(runs / "outputs" / "fedavg_mco")
        assert fedopt(monkeypatch, capsys, "ls").out.count("mco  ") == 3


def left(runs):
    return {str(path.parent.relative_to(runs / "outputs")) for path in (runs / "outputs").rglob("summary.json")}


def test_rm(runs, monkeypatch, capsys):
    """Failed runs, or those that are named; after asking; none in progress, and no file that is not a run's."""
    everything = left(runs)
    record(runs / "outputs" / "fedavg_mco" / "bad", "failed")
    record(runs / "outputs" / "new" / "default", "running")
    record(runs / "outputs" / "new" / "bad", "failed")
    nobody = fedopt(monkeypatch, capsys, "rm")
    assert (nobody.code, "cannot ask for confirmation without a terminal; add --yes" in nobody.err) == (2, True)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    for answer, number in (("", 0), ("n", 0), ("y", 2)):
        monkeypatch.setattr("builtins.input", lambda text, answer=answer: answer)
        assert fedopt(monkeypatch, capsys, "rm").out.splitlines()[-1] == f"deleted {number} run{'s' * (number != 1)}"
    assert left(runs) == {*everything, "new/default"}
    assert not (runs / "outputs" / "fedavg_mco" / "bad").exists()
    (runs / "outputs" / "fedavg_mco" / "default" / "notes.txt").write_text("mine")
    with_lock = RunFolder(runs / "outputs" / "new" / "default")
    with_lock.open()
    result = fedopt(monkeypatch, capsys, "rm", "outputs/new", "outputs/fedavg_mco", "--yes")
    with_lock.close()
    assert "1 run in progress, not deleted: outputs/new/default" in result.err
    assert "deleted 1 run\n" in result.out
    assert left(runs) == {*everything, "new/default"} - {"fedavg_mco/default"}
    assert [path.name for path in (runs / "outputs" / "fedavg_mco" / "default").iterdir()] == ["notes.txt"]


def test_rm_spares_a_run_that_begins_meanwhile(runs, monkeypatch, capsys):
    """It was failed when it was listed, and another process has resumed it while the user thought."""
    record(runs / "outputs" / "new", "failed")
    other = RunFolder(runs / "outputs" / "new")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda text: other.open() or "y")
    result = fedopt(monkeypatch, capsys, "rm")
    other.close()
    assert "another run is writing here" in result.err
    assert ("deleted 0 runs" in result.out, (runs / "outputs" / "new" / "summary.json").exists()) == (True, True)


@pytest.mark.full
def test_a_thousand_runs(tmp_path, monkeypatch, capsys):
    for k in range(1000):
        record(tmp_path / "runs" / f"seed{k}", seed=k)
    began = time.process_time()
    result = fedopt(monkeypatch, capsys, "ls", str(tmp_path / "runs"))
    assert time.process_time() - began < 4
    assert "1,000 runs: 1000 finished" in result.out
