"""`fedopt ls`: rows, filters, order, what is broken, and how it looks at 60, 80 and 120 columns."""

import json
import time

import pytest
from support.command import fedopt, one_line


def record(folder, status="finished", algo="fedmsa", seed=0, value=0.5, seconds=3.2, **config):
    """A run's folder, as far as `fedopt ls` reads it."""
    folder.mkdir(parents=True)
    metrics = [{"name": "distance", "label": "distance"}]
    card = {"chosen": {"algo": algo, "problem": "mco"}, "seed": seed, "metrics": metrics, "overrides": []}
    (folder / "run.json").write_text(json.dumps(card))
    summary = {"status": status, "final": {"distance": value}, "seconds": seconds}
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "config.yaml").write_text(json.dumps({"algo": {"K": 5, "eta": 0.1}, "seed": seed, **config}))
    with (folder / "checkpoint.safetensors").open("wb") as file:
        file.truncate(1_200_000 - sum(path.stat().st_size for path in folder.iterdir()))


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


WIDE = """\
status       algo    problem  seed  metric      value      time    size  folder
diverged     fedavg  mco         0  distance        -    2.03 h  1.2 MB  outputs/fedavg_mco/default
finished     fedmsa  mco         2  distance  0.01235  3.33 min  1.2 MB  outputs/multirun/fedmsa_mco-K/seed2-K5
interrupted  fedmsa  mco        10  distance        -     3.2 s  1.2 MB  outputs/multirun/fedmsa_mco-K/seed10-K5
"""
SCREENS = {
    120: WIDE,
    80: """\
status       algo    metric      value  folder
diverged     fedavg  distance        -  outputs/fedavg_mco/default
finished     fedmsa  distance  0.01235  outputs/multirun/fedmsa_mco-K/seed2-K5
interrupted  fedmsa  distance        -  outputs/multirun/fedmsa_mco-K/seed10-K5
""",
    60: """\
status       algo    problem  seed  metric      value
  folder
diverged     fedavg  mco         0  distance        -
  outputs/fedavg_mco/default
finished     fedmsa  mco         2  distance  0.01235
  outputs/multirun/fedmsa_mco-K/seed2-K5
interrupted  fedmsa  mco        10  distance        -
  outputs/multirun/fedmsa_mco-K/seed10-K5
""",
}
FOOT = """\
3 runs: 1 diverged, 1 finished, 1 interrupted
to compare: fedopt-compare outputs
to go on: fedopt resume=true output_dir=outputs/multirun/fedmsa_mco-K/seed10-K5
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
    ],
)
def test_filters_and_order(words, folders, runs, monkeypatch, capsys):
    lines = fedopt(monkeypatch, capsys, "ls", *words).out.splitlines()
    assert [line.rpartition("/")[2] for line in lines if "mco  " in line] == folders


def test_what_is_not_there(runs, monkeypatch, capsys):
    one_line(fedopt(monkeypatch, capsys, "ls", "nowhere"), "nowhere: there is no such folder")
    one_line(fedopt(monkeypatch, capsys, "ls", "algo.kk=1"), "algo.kk", "did you mean algo.K?")
    one_line(fedopt(monkeypatch, capsys, "ls", "--sort", "tim"), "did you mean time?")
    none = fedopt(monkeypatch, capsys, "ls", "algo=fednest")
    assert (none.code, "no run with algo=fednest in outputs, which has 3" in none.out) == (0, True)
    monkeypatch.chdir(runs / "outputs" / "fedavg_mco" / "default")
    empty = fedopt(monkeypatch, capsys, "ls")
    assert (empty.code, "begins one" in empty.out) == (0, True)


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
    for error, shown in (("ValueError: a\nb", "  ValueError: a\\nb"), ("x" * 500, "  " + "x" * 78)):
        place.write_text(json.dumps({"status": "failed", "error": error}))
        lines = fedopt(monkeypatch, capsys, "ls").out.splitlines()
        assert lines[1].startswith("failed ")
        assert lines[2:4] == [shown, SCREENS[80].splitlines()[2]]


@pytest.mark.full
def test_a_thousand_runs(tmp_path, monkeypatch, capsys):
    for k in range(1000):
        record(tmp_path / "runs" / f"seed{k}", seed=k)
    began = time.process_time()
    result = fedopt(monkeypatch, capsys, "ls", str(tmp_path / "runs"))
    assert time.process_time() - began < 4
    assert "1,000 runs: 1000 finished" in result.out
