"""fedopt-reproduce: experiments in a config folder of the test's own, from runs to claims."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
import yaml
from support.command import ROOT

from fedopt.commands import reproduce
from fedopt.errors import UserError
from fedopt.papers import published, report
from fedopt.results.folder import RunFolder


@pytest.mark.full
@pytest.mark.pictures
def test_figures_share_runs(tmp_path, experiment, command):
    slow, fast = "algo.alpha=1e-4", ["algo.alpha=2e-4"]
    experiment("one", lines={"slow": slow, "fast": fast})
    claim = {"says": "it moves", "measure": "at('fast', 0) - final('fast')", "at_least": -1e3, "paper": "yes"}
    experiment("two", lines={"fast": fast, "cold": "algo.warm_up=0 algo.alpha=1e-9"}, claims=[claim])
    result = command("test/one", "test/two", "--jobs", 2)
    assert result.code == 0, result.err
    runs = sorted((tmp_path / "outputs" / "reproduce" / "runs").iterdir())
    assert len(runs) == 6  # 2 seeds of slow, fast, cold
    assert all(run.name.startswith("fedmsa_mco-") for run in runs)
    assert result.out.count(" finished  ") == 6
    assert "[6/6] finished " in result.out
    table = pd.read_csv(tmp_path / "outputs/reproduce/test/two/curves.csv")
    assert set(table["line"]) == {"fast", "cold"}
    assert len(table) == 2 * 5
    (row,) = pd.read_csv(tmp_path / "outputs/reproduce/test/two/claims.csv").to_dict("records")
    listed = pd.read_csv(tmp_path / "outputs/reproduce/test/two/runs.csv")
    fast_runs = [runs[0].with_name(name) for name in listed[listed["line"] == "fast"]["run"]]
    distances = [pd.read_csv(run / "metrics.csv")["distance"] for run in fast_runs]
    moved = [distance.iloc[0] - distance.iloc[-1] for distance in distances]
    assert row["mean"] == pytest.approx(np.mean(moved))
    assert row["std"] == pytest.approx(np.std(moved, ddof=1))
    assert (row["seeds"], row["holds"]) == (2, "supported")
    assert "supported                    it moves: " in result.out
    for name in ("one", "two"):
        picture = tmp_path / "outputs/reproduce/test" / name / "figure.png"
        assert picture.read_bytes().startswith(b"\x89PNG")

    config = yaml.safe_load((runs[0] / "config.yaml").read_text())
    assert "experiment" not in config
    assert config["algo"]["beta"] == 0.9  # of the preset
    assert config["budget"]["rounds"] == 4  # of the experiment, which wins over it
    again = command("test/one", "test/two")
    assert again.code == 0
    assert "6 of 6 runs are already done" in again.out
    assert " finished  " not in again.out


@pytest.mark.full
def test_quick(tmp_path, experiment, command):
    claim = {"says": "it moves", "measure": "final('FedMSA')", "at_least": 0}
    experiment("one", common={"budget": {"rounds": 4000}}, quick="budget.rounds=2", claims=[claim])
    result = command("test/one", "--quick", "--format", "pdf")
    assert result.code == 0
    assert "(a few rounds, no result)\n(--quick: no claims are checked)" in result.out
    assert "it moves" not in result.out
    results = tmp_path / "outputs/reproduce/quick/test/one"
    assert (results / "figure.pdf").exists()
    assert (results / "figure.png").exists()
    assert f"results: {results.relative_to(tmp_path)}" in result.out
    assert sorted(pd.read_csv(results / "curves.csv")["comm_rounds"]) == [0, 2, 4]
    assert not (tmp_path / "outputs/reproduce/test").exists()


@pytest.mark.full
def test_quick_run_of_a_published_experiment(tmp_path, command):
    name = "fedmsa/fig2"
    result = command(name, "--quick")
    assert result.code == 0, result.err
    results = tmp_path / "outputs/reproduce/quick" / name
    lines = published.load(name).lines
    assert set(pd.read_csv(results / "runs.csv")["line"]) == set(lines)
    assert not (results / "claims.csv").exists()
    assert (results / "figure.png").stat().st_size > 0


@pytest.mark.parametrize(
    ("how", "times"),
    [
        pytest.param(signal.SIGINT, 1, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, 2, marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, 1, marks=pytest.mark.full),
    ],
)
def test_an_interrupted_run_goes_on(how, times, tmp_path, experiment, command):
    """Its process ends with the command, also when that is killed, or sent the signal twice, as `timeout` does."""
    experiment("one", common={"budget": {"rounds": 300}, "eval": {"every": 10}}, seeds=1)
    arguments = ["-m", "fedopt.commands.reproduce", "--config-dir", "conf", "test/one"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "FEDOPT_CHECKPOINT_SECONDS": "0"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, *arguments], cwd=tmp_path, env=environment, **pipes)
    deadline = time.monotonic() + 600
    while not list(tmp_path.glob("outputs/reproduce/runs/*/checkpoint.safetensors")) and time.monotonic() < deadline:
        time.sleep(0.01)
    for _ in range(times):
        process.send_signal(how)
        time.sleep(0.05)
    _, err = process.communicate(timeout=600)  # until no process of it is left
    said = "fedopt: stopped; to resume, repeat the command\n"
    assert (process.returncode, err) == ((-signal.SIGKILL, "") if how == signal.SIGKILL else (130, said))
    (run,) = (tmp_path / "outputs/reproduce/runs").iterdir()
    assert RunFolder(run).seen() == "interrupted"
    result = command("test/one")
    assert result.code == 0, result.err
    assert RunFolder(run).status() == "finished"
    assert "resumed" in (run / "log.txt").read_text()
    assert list(pd.read_csv(run / "metrics.csv")["round"]) == [*range(0, 301, 10)]


def test_a_failed_run_is_named_and_the_others_are_judged(tmp_path, experiment, command):
    claim = {"says": "it ends", "measure": "final('good') - final('bad')", "at_most": 0}
    experiment("one", lines={"good": [], "bad": "algo.beta=[0.1]"}, claims=[claim], seeds=1)
    for _ in range(2):  # it is tried again
        result = command("test/one")
        assert result.code == 1
        assert "failed    bad  seed 0" in result.out
        assert "not measured                 it ends: bad has no run that ended (seed 0)" in result.out
        assert result.err.count("algo.beta: has length 1") == 1
    assert len(pd.read_csv(tmp_path / "outputs/reproduce/test/one/curves.csv")) == 5


def test_table(tmp_path, experiment, command):
    """Measured beside what the paper has, where it has something; cells may be missing."""
    table = {"slow": {"K = 1": ["one", 0.5], "K = 2": ["two", None]}, "fast": {"K = 2": ["two", 9]}}
    lines = {"one": "algo.K=1", "two": "algo.K=2"}
    experiment("one", lines=lines, table=table, cell="per_round(line, 'grad_calls')")
    result = command("test/one")
    assert result.code == 0, result.err
    cells = pd.read_csv(tmp_path / "outputs/reproduce/test/one/table.csv").set_index(["row", "column"])
    assert list(cells.columns) == ["paper", "mean", "std", "seeds"]
    one, two = cells.loc[("slow", "K = 1")], cells.loc[("fast", "K = 2")]
    assert two["mean"] > one["mean"] > 0
    assert (one["std"], one["seeds"], one["paper"]) == (0, 2, 0.5)
    shown = [line for line in result.out.splitlines() if "slow" in line or "fast" in line]
    assert f"{one['mean']:.4g} ± 0 (0.5)" in shown[0]
    assert f"{two['mean']:.4g} ± 0 (9)" in shown[1]
    assert shown[0].count("(") == shown[1].count("(") == 1
    assert not (tmp_path / "outputs/reproduce/test/one/figure.png").exists()
    experiment("two", table={"row": {"column": ["three", 1]}})
    assert "three: the figure has no such line" in command("test/two").err


def test_the_list_says_what_is_for_a_gpu(command):
    lines = command("--list", "fednormsgda/fig8", "fednormsgda/fig8_small").out.splitlines()
    assert ["on a GPU" in line for line in lines if "fig8" in line] == [True, False]


def test_the_list_says_which_experiment_is_broken(experiment, command):
    experiment("one", {"hardware": "abc"})
    assert command("--list", "test").err == (
        "fedopt: experiment/test/one.yaml: hardware=abc: must be a mapping such as {KEY: VALUE}; fedopt help hardware explains it\n"
    )


@pytest.mark.full
def test_undecided_claims_get_more_seeds(tmp_path, experiment, command, monkeypatch):
    """The seed itself is measured: 0 and 1, then 0 to 3, whose mean is 1.5."""
    monkeypatch.setattr(report, "MOST_SEEDS", 4)
    doubtful = {"says": "doubtful", "measure": "setting('one', 'seed')", "at_least": 0.5}
    clear = {"says": "clear", "measure": "setting('two', 'seed') + setting('one', 'seed')", "at_most": 1e3}
    experiment("one", lines={"one": "algo.K=1", "two": "algo.K=2"}, claims=[doubtful, clear])
    folder = tmp_path / "outputs/reproduce/test/one"
    for more in (
        "2 more runs for undecided claims",
        "6 of 6 runs are already done",
    ):
        result = command("test/one")
        assert result.code == 0, result.err
        assert more in result.out
        first, second = pd.read_csv(folder / "claims.csv").to_dict("records")
        assert (first["values"], first["mean"]) == ("0:0 1:1 2:2 3:3", 1.5)
        assert first["holds"] == "undecided with 4 seeds"  # 1.5 - 2.353 * 1.291 / 2 is -0.02
        assert (second["values"], second["holds"]) == ("0:0 1:2", "supported")
        assert pd.isna(second["note"])  # nothing is missing of what was asked for
    seeds = pd.read_csv(folder / "runs.csv").groupby("line")["seed"].nunique()
    assert dict(seeds) == {"one": 4, "two": 2}
    asked = command("test/one", "--seeds", 2)
    assert "more runs" not in asked.out
    monkeypatch.setattr(report, "SHORT", 0.0)
    long = command("test/one")
    assert "more runs" not in long.out
    assert "undecided with 2 seeds" in long.out


@pytest.mark.full
def test_undecided_claims_get_more_seeds_though_they_are_small_scale(tmp_path, experiment, command, monkeypatch):
    monkeypatch.setattr(report, "MOST_SEEDS", 3)
    claim = {"says": "doubtful", "measure": "setting('FedMSA', 'seed')", "at_least": 0.5, "small": "Too short."}
    experiment("one", claims=[claim])
    result = command("test/one")
    assert result.code == 0
    (row,) = pd.read_csv(tmp_path / "outputs/reproduce/test/one/claims.csv").to_dict("records")
    assert (row["seeds"], row["holds"], row["why"]) == (3, "small-scale: undecided with 3 seeds", "Too short.")
    assert "The paper's claims: 1 small-scale: undecided." in result.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["fedmsa/fig22"],
            "fedmsa/fig22: there is no such experiment, did you mean fedmsa/fig2?; --list shows all experiments",
        ),
        (["fedmas"], "fedmas: there is no such experiment, did you mean fedmsa?; --list shows all experiments"),
        ([], "fedopt reproduce --list"),
        (["--jbos"], "unrecognized arguments: --jbos, did you mean --jobs?; fedopt reproduce --help lists the options"),
        (["fedmsa/fig2", "--seeds", "0"], "argument --seeds: 0 must be a whole number"),
        (["fedmsa/fig2", "--hardware", "tpu"], "hardware=tpu: there is no such hardware"),
        (["fedmsa/fig22", "--list"], "fedmsa/fig22: there is no such experiment"),
    ],
)
def test_mistakes_are_answered_in_one_line(command, arguments, said):
    result = command(*arguments)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("fedopt: ")
    assert said in result.err
    assert result.err.count("\n") == 1


def test_full_error(command, monkeypatch):
    monkeypatch.setattr(reproduce, "_arguments", lambda: (_ for _ in ()).throw(UserError("no")))
    monkeypatch.setattr(os, "environ", {**os.environ, "HYDRA_FULL_ERROR": "1"})
    with pytest.raises(UserError, match="no"):
        reproduce.main()
