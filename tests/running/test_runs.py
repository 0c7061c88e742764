"""Runs as a user sees them: folders, resuming, sweeps, ranks, help."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from itertools import takewhile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import yaml
from safetensors import safe_open
from support.cases import few
from support.command import ROOT, TINY, fedopt, run, start, torchrun

from fedopt import run as api_run
from fedopt.analysis.sweeps import differences
from fedopt.config.composed import compose
from fedopt.config.overrides import quoted
from fedopt.console.bar import Bar
from fedopt.drawing import figures
from fedopt.errors import UserError
from fedopt.machine import cores
from fedopt.metrics import COSTS
from fedopt.results.folder import RunFolder
from fedopt.results.identity import stamp
from fedopt.running.display import Display
from fedopt.running.loop import Moment
from fedopt.running.names import named
from fedopt.testing import harness

LONG = ["algo=fedmsa", "problem=quadratic_bilevel", "budget.rounds=300", "eval.every=3", "hardware.threads=1"]


def without_time(folder: Path) -> pd.DataFrame:
    return pd.read_csv(folder / "metrics.csv", dtype=str).drop(columns="train_seconds")


def checkpointed_round(folder: Path) -> int:
    with safe_open(folder / "checkpoint.safetensors", "np") as file:
        return json.loads(bytes(file.get_tensor("progress")))["round"]


@pytest.mark.pictures
def test_folder_explains_itself(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    result = fedopt(monkeypatch, capsys, *TINY, "seed=3")
    assert result.code == 0
    folder = tmp_path / "outputs" / "fedmsa_mco" / "rounds4-threads1-examples40-seed3"
    assert str(folder.relative_to(tmp_path)) in result.out
    present = {path.name for path in folder.iterdir()}
    expected = {"config.yaml", "metrics.csv", "run.json", "summary.json", "checkpoint.safetensors", "log.txt"}
    assert present == expected | {"metrics.png", "traffic.csv", ".lock"}  # there are no classes that clients have
    table = pd.read_csv(folder / "metrics.csv")
    first = ["round", "comm_rounds", "bytes_down", "bytes_up", "grad_calls", "hvp_calls", "jvp_calls"]
    first += ["grad_examples", "hvp_examples", "jvp_examples", "client_visits", "train_seconds"]
    assert list(table.columns) == [*first, "distance", "objective", "suboptimality"]
    assert table["round"].tolist() == [0, 1, 2, 3, 4]
    assert table["comm_rounds"].tolist() == [0, 2, 4, 6, 8]
    assert checkpointed_round(folder) == 4
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "finished"
    assert summary["final"]["distance"] == pytest.approx(table["distance"].iloc[-1])
    assert summary["best"]["distance"] == pytest.approx(table["distance"].min())
    card = json.loads((folder / "run.json").read_text())
    assert card["seed"] == 3
    assert "seed=3" in card["overrides"]

    again = fedopt(monkeypatch, capsys, *TINY, "seed=3")  # the same again gets a folder of its own
    assert again.code == 0
    assert without_time(folder).equals(without_time(folder.with_name(folder.name + "-2")))
    assert "finished" in fedopt(monkeypatch, capsys, *TINY, "seed=3", "resume=true").out


@pytest.mark.pictures
@pytest.mark.parametrize(
    "problem", few(harness.names("problem"), ("mco", "classification_with_server").__contains__, pytest.mark.slow)
)
def test_pictures_of_every_problem(problem, monkeypatch, capsys, tmp_path):
    """Neither is blank."""
    algo = next(algo for algo, of in harness.pairs() if of == problem)
    words = [
        f"algo={algo}",
        f"problem={problem}",
        *harness.contract_overrides(algo, problem),
        *harness.LESS.get(algo, []),
    ]
    result = fedopt(
        monkeypatch, capsys, *words, *harness.FEDERATION, "budget.rounds=1", f"output_dir={tmp_path / 'run'}"
    )
    assert (result.code, result.err.count("Warning")) == (0, 0), result.err
    card = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (tmp_path / "run" / "partition.png").exists() or "classes" not in card
    for picture in (tmp_path / "run").glob("*.png"):
        assert np.ptp(plt.imread(picture)) > 0.5


@pytest.mark.pictures
def test_a_picture_names_its_run(monkeypatch, capsys, tmp_path):
    """Its method, problem and seed, and what else the command says."""
    titles = []
    monkeypatch.setattr(figures, "save", lambda *_, title="", **__: titles.append(title))
    first = [*TINY, "seed=3", "algo.K=2", f"output_dir={tmp_path / 'run'}"]
    assert fedopt(monkeypatch, capsys, *first).code == 0
    again = [*TINY, "budget.rounds=8", f"from={tmp_path / 'run'}", f"output_dir={tmp_path / 'new'}"]
    assert fedopt(monkeypatch, capsys, *again).code == 0
    assert titles[0].startswith("fedmsa on mco, seed 3, ")
    assert titles[0].endswith("algo.K=2")
    assert "output_dir" not in titles[0]
    assert f"continues {tmp_path / 'run'} after 4 rounds" in titles[1]


@pytest.mark.parametrize(
    ("given", "threads", "spin"),
    [
        pytest.param({}, None, "0", marks=pytest.mark.full),
        pytest.param({"OMP_NUM_THREADS": "3", "GOMP_SPINCOUNT": "7"}, 3, "7", marks=pytest.mark.full),
    ],
)
def test_threads(given, threads, spin, tmp_path):
    """The user's own settings of OpenMP hold, and the log says how many threads there are."""
    code = (
        "import os, sys, types; from fedopt.__main__ import main; say = lambda: print(os.environ['GOMP_SPINCOUNT'])\n"
        "sys.modules['fedopt.spoken'] = types.SimpleNamespace(main=say); main('spoken'); assert 'torch' not in sys.modules"
    )
    own = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    env = {key: value for key, value in os.environ.items() if key not in own} | given
    said = subprocess.run(
        [sys.executable, "-c", code], env=env | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert (said.stdout.strip(), said.stderr) == (spin, "")
    assert run(*TINY[:-1], "output_dir=run", cwd=tmp_path, env={"OMP_NUM_THREADS": "", **given}).code == 0
    assert f"started with {threads or cores()} threads" in (tmp_path / "run" / "log.txt").read_text()


@pytest.mark.full
@pytest.mark.parametrize("most", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_killed_runs_resume_exactly(most, monkeypatch, capsys, tmp_path):
    """kill -9 at random moments, then resume=true until it is done: the undisturbed metrics.csv."""
    assert fedopt(monkeypatch, capsys, *LONG, f"output_dir={tmp_path / 'whole'}").code == 0
    rng = np.random.default_rng(0)
    metrics, kills = tmp_path / "run" / "metrics.csv", 0
    while kills < most:
        process = start(*LONG, "output_dir=run", "resume=true", cwd=tmp_path, env={"FEDOPT_CHECKPOINT_SECONDS": "0"})
        before = metrics.stat().st_size if metrics.exists() else 0
        while not metrics.exists() or metrics.stat().st_size == before:
            assert process.poll() is None
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 0.3))
        process.kill()
        process.communicate()
        kills += process.returncode == -signal.SIGKILL
        assert process.returncode != 0, "too fast to be killed"
    assert fedopt(monkeypatch, capsys, *LONG, f"output_dir={tmp_path / 'run'}", "resume=true").code == 0
    assert RunFolder(tmp_path / "run").status() == "finished"
    pd.testing.assert_frame_equal(without_time(tmp_path / "run"), without_time(tmp_path / "whole"))


def test_ctrl_c(monkeypatch, capsys, tmp_path):
    """Checkpoints and says how to go on; going on gives the undisturbed result."""
    process = start(*LONG, "budget.rounds=100000", "output_dir=run", cwd=tmp_path)
    metrics = tmp_path / "run" / "metrics.csv"
    while not metrics.exists() or metrics.read_text().count("\n") < 5:
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 130
    assert out.endswith("fedopt resume=true output_dir=run\n")
    assert "Traceback" not in err
    summary = RunFolder(tmp_path / "run").summary()
    assert summary["status"] == "interrupted"
    assert checkpointed_round(tmp_path / "run") == summary["round"]
    rounds = int(summary["round"]) + 6
    for name, more in (("run", ["resume=true"]), ("whole", [])):
        arguments = [*LONG, f"budget.rounds={rounds}", f"output_dir={tmp_path / name}", *more]
        assert fedopt(monkeypatch, capsys, *arguments).code == 0
    pd.testing.assert_frame_equal(without_time(tmp_path / "run"), without_time(tmp_path / "whole"))
    assert RunFolder(tmp_path / "run").summary()["best"] == RunFolder(tmp_path / "whole").summary()["best"]


def test_the_last_word_of_a_key_counts(monkeypatch, capsys, tmp_path):
    """Also in the folder's name, in what is said of tuned values, and in a sweep."""
    monkeypatch.chdir(tmp_path)
    words = ["algo=fedmsa", "problem=mco", *TINY, "seed=3", "algo=fedmsa", "seed=4", "budget.rounds=1"]
    assert fedopt(monkeypatch, capsys, *words).code == 0
    (folder,) = (path.parent for path in Path("outputs").rglob("summary.json"))
    assert "seed4" in folder.name
    assert "seed3" not in folder.name
    assert json.loads((folder / "run.json").read_text())["overrides"].count("algo=fedmsa") == 1
    digits = ["algo=fedavg", "problem=classification", "dataset=fashion_mnist", "dataset=digits", "budget.rounds=1"]
    assert "(tuned without dataset=digits, so" in fedopt(monkeypatch, capsys, "-m", *digits, "seed=1,2", "seed=5").out


def test_no_words_are_answered_by_help(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    alone, asked = fedopt(monkeypatch, capsys), fedopt(monkeypatch, capsys, "--help")
    assert (alone.code, alone.out) == (0, asked.out)
    assert not list(tmp_path.iterdir())


def test_divergence(monkeypatch, capsys, tmp_path):
    result = fedopt(monkeypatch, capsys, *LONG, "algo.alpha=50", f"output_dir={tmp_path / 'run'}")
    assert result.code == 3
    assert "diverged" in result.out
    assert RunFolder(tmp_path / "run").status() == "diverged"
    assert (tmp_path / "run" / "checkpoint.safetensors").exists()


def test_scores_that_are_not_finite_reach_no_target(monkeypatch, capsys, tmp_path):
    """The largest of some nan is class 0, whose share of the examples would be an accuracy."""
    words = ["algo=fedavg", "problem=classification", "dataset=digits", "algo.eta=1e30", "budget.rounds=3"]
    words += ["eval.every=1", "eval.metric=test_accuracy", "eval.target=9", "keep=best", "algo.tau=2"]
    result = fedopt(monkeypatch, capsys, *words, "problem.model=mlp", f"output_dir={tmp_path / 'run'}")
    summary, rows = RunFolder(tmp_path / "run").summary(), pd.read_csv(tmp_path / "run" / "metrics.csv")
    assert (result.code, summary["status"], summary["error"]) == (3, "diverged", "test_accuracy is not finite")
    assert set(summary["final"].values()) == {None}
    assert summary["best"]["test_accuracy"] == rows["test_accuracy"][0]
    assert rows.iloc[-1][list(summary["final"])].isna().all()
    reached = rows["test_accuracy"][0] >= 9
    assert (summary["to_target"] is not None) == reached
    assert ": test_accuracy is not finite" in result.out


@pytest.mark.parametrize(("key", "limit"), [("comm_rounds", 7), ("bytes", 30_000), ("seconds", 0.05)])
def test_budgets(monkeypatch, capsys, tmp_path, key, limit):
    overrides = [*LONG, "budget.rounds=null", f"budget.{key}={limit}", f"output_dir={tmp_path / 'run'}"]
    assert fedopt(monkeypatch, capsys, *overrides).code == 0
    summary = RunFolder(tmp_path / "run").summary()
    assert limit <= summary[key]
    if key != "seconds":  # on a busy machine the start alone may take them
        assert summary[key] < limit + 1.01 * summary[key] / summary["round"]


def test_evaluation_schedule(monkeypatch, capsys, tmp_path):
    overrides = ["algo=fedmsa", "problem=quadratic_bilevel", "budget.rounds=11", "eval.every=5", "eval.at=[1,7]"]
    assert fedopt(monkeypatch, capsys, *overrides, f"output_dir={tmp_path / 'run'}").code == 0
    assert pd.read_csv(tmp_path / "run" / "metrics.csv")["round"].tolist() == [0, 1, 5, 7, 10, 11]


@pytest.mark.parametrize(
    ("budget", "column"),
    few(
        [("bytes=200000", "bytes"), ("oracle_calls=3000", "oracle_calls"), ("rounds=37", "round")],
        lambda case: case[1] == "bytes",
    ),
)
def test_evaluations_at_equal_spends(budget, column, monkeypatch, capsys, tmp_path):
    """Each in the first round with which another tenth of the budget is spent. No default of rounds ends the run before."""
    words = [
        "algo=fednest",
        "problem=quadratic_bilevel",
        f"budget.{budget}",
        "eval.points=10",
        f"output_dir={tmp_path}/run",
    ]
    assert fedopt(monkeypatch, capsys, *words).code == 0
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert (config["budget"]["rounds"] is None) == (column != "round")
    table = pd.read_csv(tmp_path / "run" / "metrics.csv")
    spent = table[list(COSTS[column].columns)].sum(axis=1)
    limit = int(budget.partition("=")[2])
    a_round = (spent.diff() / table["round"].diff()).max()
    wanted = np.arange(11) * limit / 10
    assert len(table) == 11
    assert ((wanted <= spent) & (spent < wanted + a_round * (1 + 1e-9))).all()


def test_points_survive_a_kill_and_say_the_budget(monkeypatch, capsys, tmp_path):
    """Where to evaluate is the same after an interruption; another budget would give other rows, and is refused."""
    monkeypatch.setattr("fedopt.running.sinks.CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr("fedopt.running.sinks.CHECKPOINT_SHARE", 0)
    words = "algo=fednest problem=quadratic_bilevel budget.rounds=23 eval.points=7"
    whole = api_run(words, output_dir=tmp_path / "whole", quiet=True)
    api_run(words, on_eval=lambda row: row["round"] >= 7, output_dir=tmp_path / "run", quiet=True)
    again = api_run(words + " resume=true", output_dir=tmp_path / "run", quiet=True)
    assert again.metrics["round"].tolist() == whole.metrics["round"].tolist() == [0, 4, 7, 10, 14, 17, 20, 23]
    with pytest.raises(UserError, match=r"budget\.rounds=23, not 30"):
        api_run(words.replace("23", "30") + " resume=true", output_dir=tmp_path / "run", quiet=True)


def test_keys_of_later_versions_change_no_run(tmp_path):
    """A run from before eval.points and budget.oracle_calls is the same run, and resumes."""
    nodes = dict(compose(["algo=fedmsa", "problem=mco"]).nodes)
    before = {**nodes, "eval": {k: v for k, v in nodes["eval"].items() if k != "points"}}
    later = ("oracle_calls", "example_calls", "client_visits")
    before["budget"] = {k: v for k, v in nodes["budget"].items() if k not in later}
    assert stamp(before) == stamp(nodes)
    assert stamp({**nodes, "eval": {**nodes["eval"], "points": 7}})["run"] != stamp(nodes)["run"]


@pytest.mark.parametrize(("rounds", "shown"), [(4, range(5)), (30, [0, 1, *range(3, 31, 3)])])
def test_evaluations_that_are_shown(rounds, shown, monkeypatch, capsys, tmp_path):
    """Without a terminal: the first two, and one for each tenth of the budget."""
    words = [*TINY, f"budget.rounds={rounds}", "eval.every=1", f"output_dir={tmp_path / 'run'}"]
    lines = fedopt(monkeypatch, capsys, *words).err.splitlines()
    rows = [int(match[1]) for line in lines if (match := re.search(r"%.*  round (\d+)  ", line))]
    assert rows == list(shown)


def test_plain_lines_say_the_time_left(monkeypatch, capsys):
    """At the speed since this process did its first round, in the middle for a resumed run; none at the end."""
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    display = Display(Bar(), ["loss"])
    for done, wait in ((0.5, 0.0), (0.6, 60.0), (0.9, 60.0), (1.0, 1.0)):
        now += wait
        display(Moment(0, None, done, {"round": 0, "comm_rounds": 0, "loss": 1.0}, False, None))
    second = [line.strip().split("  ")[1] for line in capsys.readouterr().err.splitlines()]
    assert second == ["round 0", "round 0", "0:00:20 left", "round 0"]


def table_in(out):
    """The cells of a sweep's table: of its head, and of its rows."""
    lines = out.splitlines()
    (head,) = (k for k, line in enumerate(lines) if re.search(r"(^| {2,})runs( {2,}|$)", line))
    rows = takewhile(lambda line: "  " in line.strip(), lines[head:])
    return [re.split(" {2,}", row.strip()) for row in rows]


SWEEP = ["-m", "algo=fedmsa", "problem=quadratic_bilevel", "budget.rounds=3", "seed=0,1", "algo.beta=[1],0.05"]


def test_the_command_in_run_json_is_quoted_for_a_shell(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    words = [*TINY, "output_dir='a folder of \\'mine\\''"]
    assert fedopt(monkeypatch, capsys, *words).code == 0
    card = json.loads(Path("a folder of 'mine'", "run.json").read_text())
    assert shlex.split(card["command"]) == ["fedopt", *words]


def test_sweep(monkeypatch, capsys, tmp_path):
    """A failed run is a row with its traceback in its own folder; the others go on; done runs are skipped."""
    monkeypatch.chdir(tmp_path)
    result = fedopt(monkeypatch, capsys, *SWEEP, "output_dir=sweep", "eval.metric=distance", "eval.target=1e6")
    assert result.code == 1
    head, fine, wrong = table_in(result.out)
    assert head == ["algo.beta", "runs", "status", "final distance"]
    assert fine[:3] == ["0.05", "2", "2 finished"]
    assert re.fullmatch(r"[\d.]+ ± [\d.]+", fine[3])
    assert wrong == ["[1]", "2", "2 failed", "-"]
    table = pd.read_csv("sweep/sweep.csv")
    assert table["status"].value_counts().to_dict() == {"finished": 2, "failed": 2}
    values = [(seed, value) for seed in range(2) for value in ("0.05", "[1]")]
    assert sorted(zip(table["seed"], table["algo.beta"], strict=True)) == values
    done = table[table["status"] == "finished"]
    assert (done["target_round"] == 0).all()
    assert (done[[*COSTS]] > 0).all(axis=None)
    assert done["final_distance"].notna().all()
    for name, status in zip(table["run"], table["status"], strict=True):
        assert (Path("sweep") / name / "traceback.txt").exists() == (status == "failed")
    stamps = {name: (Path("sweep") / name / "metrics.csv").stat().st_mtime_ns for name in done["run"]}
    again = fedopt(monkeypatch, capsys, *SWEEP, "output_dir=sweep", "eval.metric=distance", "eval.target=1e6")
    assert again.code == 1
    assert stamps == {name: (Path("sweep") / name / "metrics.csv").stat().st_mtime_ns for name in stamps}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["algo=fedmsa,fedvag"], "did you mean fedavg"),
        (["algo=fedmsa,fednest", "algo.alpha=0.1,-1"], "algo=fedmsa: algo.alpha=-1: must be at least 0"),
        (["algo=fedmsa", "seed=0,1", "algo.B=0"], "seed=0: algo.B=0: must be greater than 0"),
        (["algo=fedmsa", "partitioner.clients=5,0"], "fedopt: partitioner.clients=0: must be"),
        (["algo=fedmsa", "partitioner.clients=5,20", "participation.cohort=9"], "partitioner.clients=5"),
        (["algo=fedmsa", "problem.dx=2,some"], "fedopt: problem.dx=some: must be a whole number"),
        (["algo=fedmsa", "seed=0,1", "dataset._target_=glob(*)"], "fedopt: dataset._target_=glob(*): glob"),
        (["algo=fedmsa", "seed=0,1", "algo._target_=[[nan],x]"], "algo._target_=["),
    ],
)
def test_a_sweep_with_a_wrong_combination_runs_nothing(words, said, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    result = fedopt(monkeypatch, capsys, "-m", "problem=quadratic_bilevel", *words)
    assert result.code == 2
    assert said in result.err
    assert result.err.count("\n") == 1
    assert not Path("outputs").exists()


@pytest.mark.full
def test_sweep_resumes_interrupted_runs(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    sweep = ["-m", *LONG, "budget.rounds=150", "seed=0,1", "output_dir=sweep"]
    process = start(*sweep, cwd=tmp_path)
    while not list(tmp_path.glob("sweep/*/metrics.csv")):
        assert process.poll() is None
        time.sleep(0.02)
    process.kill()
    process.communicate()
    assert fedopt(monkeypatch, capsys, *sweep).code == 0
    assert set(pd.read_csv("sweep/sweep.csv")["status"]) == {"finished"}
    assert fedopt(monkeypatch, capsys, *LONG, "budget.rounds=150", "seed=0", "output_dir=alone").code == 0
    (of_sweep,) = (path.parent for path in tmp_path.glob("sweep/*/metrics.csv") if "seed0" in path.parent.name)
    pd.testing.assert_frame_equal(without_time(of_sweep), without_time(tmp_path / "alone"))


def test_a_sweep_that_is_stopped_says_how_it_goes_on(monkeypatch, capsys, tmp_path):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fedopt.running.lifecycle.execute", stopped)
    result = fedopt(monkeypatch, capsys, "-m", *TINY, "seed=0,1", "output_dir=sweep")
    assert (result.code, result.err) == (130, "fedopt: stopped; to resume, repeat the command\n")


SMALL = ["algo=fedmsa", "problem=mco", "budget.rounds=2", "problem.examples=40", "hardware.threads=1"]


def runs_of(tmp_path):
    """Each run of the sweeps in a folder, by its path, with the time at which it was written."""
    return {str(path.parent.relative_to(tmp_path)): path.stat().st_mtime_ns for path in tmp_path.rglob("metrics.csv")}


def test_a_longer_sweep_finds_its_runs(monkeypatch, capsys, tmp_path):
    """In any order of the words, with or without the first seed; folders have names that can be read."""
    monkeypatch.chdir(tmp_path)
    assert fedopt(monkeypatch, capsys, "-m", "algo=fedmsa", "problem=mco", *SMALL, "algo.K=1,2").code == 0
    before = runs_of(tmp_path)
    sweep = "outputs/multirun/fedmsa_mco-K-rounds2-threads1-examples40"
    assert set(before) == {f"{sweep}/seed0-K{K}" for K in (1, 2)}
    assert fedopt(monkeypatch, capsys, "-m", "seed=0,1", *SMALL[::-1], "algo.K=2,1", "problem=mco").code == 0
    after = runs_of(tmp_path)
    assert set(after) == {f"{sweep}/seed{seed}-K{K}" for seed in (0, 1) for K in (1, 2)}
    assert {path: after[path] for path in before} == before
    assert sorted(pd.read_csv(f"{sweep}/sweep.csv")["run"]) == sorted(Path(path).name for path in after)


def test_the_table_has_what_runs_were_not_given(monkeypatch, capsys, tmp_path):
    """From an option or a preset, in a folder of sweeps that were given other keys."""
    monkeypatch.chdir(tmp_path)
    assert fedopt(monkeypatch, capsys, "-m", "algo=fedmsa", "problem=mco", *SMALL, "output_dir=here").code == 0
    (usual,) = (yaml.safe_load(path.read_text())["algo"]["K"] for path in tmp_path.rglob("config.yaml"))
    words = ["algo=fedmsa", "problem=mco", *SMALL, "output_dir=here", f"algo.K={usual + 1}"]
    assert fedopt(monkeypatch, capsys, "-m", *words).code == 0
    assert sorted(pd.read_csv("here/sweep.csv")["algo.K"]) == [usual, usual + 1]


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["seed=3", "+a_=3_"], "a3-seed3"),
        (["seed=1", "algo.K=5", "algo.eta=1e-3"], "K5-eta1e-3-seed1"),
        (
            ["algo.rho1=0.1", "problem.x0=-1", "algo.inner=sgd", "budget.rounds=null"],
            "inner_sgd-rho1_0.1-rounds_null-x0_-1",
        ),
        (["dataset.path=/home/someone/projects/data/patients.csv"], "path_patients.csv"),
        (["problem.model={_target_: mynets.Net, width: 64}"], "model_target_mynets.Net_width"),
        (["eval.at=[1,2]", "~x", "preset=fednest/saddle"], "at1_2-preset_fednest_saddle-no_x"),
        (["dataset=digits", "'algo.tau=5 epochs'"], "tau5_epochs-digits"),
        ([f"a.key{i}=value{i}" for i in range(9)], "-".join(f"key{i}_value{i}" for i in range(6))),
    ],
)
def test_names_of_folders_can_be_read(words, name):
    """Short keys and values, without signs that a shell or a person stumbles over."""
    words = [word.strip("'") for word in words]
    assert named(words) == named(words[::-1]) == name


PAIR = ["algo=fedmsa", "problem=quadratic_bilevel", "budget.rounds=1", "hardware.threads=1"]
ALIKE = [f"algo.alpha={{kind: inverse_power, initial: 0.01{more}}}" for more in ("", ", power: 1")]  # in names
ALIKE_NAME = "alpha_kind_inverse_power-rounds1-threads1"


def test_runs_of_one_name_keep_apart(monkeypatch, capsys, tmp_path):
    """Which is whose is decided by what is recorded, also for resume=true."""
    monkeypatch.chdir(tmp_path)
    for more in ([], ["resume=true"]):
        for word in ALIKE:
            out = fedopt(monkeypatch, capsys, *PAIR, word, *more).out
            folder = Path("outputs/fedmsa_quadratic_bilevel", f"{ALIKE_NAME}{'-2' * (word == ALIKE[1])}")
            assert f"results: {folder}" in out
    assert len(runs_of(tmp_path)) == 2


def test_runs_of_a_sweep_of_one_name_keep_apart(monkeypatch, capsys, tmp_path):
    """In any order of the values."""
    monkeypatch.chdir(tmp_path)
    values = [word.removeprefix("algo.alpha=") for word in ALIKE]
    assert fedopt(monkeypatch, capsys, "-m", *PAIR, f"algo.alpha={','.join(values)}", "output_dir=sweep").code == 0
    before = runs_of(tmp_path)
    first = f"sweep/fedmsa_quadratic_bilevel-seed0-{ALIKE_NAME}"
    assert {*before} == {first, f"{first}-2"}
    assert (
        fedopt(monkeypatch, capsys, "-m", *PAIR, f"algo.alpha={','.join(values[::-1])}", "output_dir=sweep").code == 0
    )
    assert runs_of(tmp_path) == before


def test_sweeps_of_one_name_keep_apart(monkeypatch, capsys, tmp_path):
    """They share other words."""
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        for word in ALIKE:
            assert fedopt(monkeypatch, capsys, "-m", *PAIR, word, "seed=0,1").code == 0
    first = f"outputs/multirun/fedmsa_quadratic_bilevel-{ALIKE_NAME}"
    assert {*runs_of(tmp_path)} == {f"{place}/seed{seed}" for place in (first, f"{first}-2") for seed in (0, 1)}


def test_sweeps_in_one_folder_keep_apart(monkeypatch, capsys, tmp_path):
    """There, all words name a run."""
    monkeypatch.chdir(tmp_path)
    for word in ("algo.K=1", "algo.K=2"):
        assert fedopt(monkeypatch, capsys, "-m", *SMALL, word, "output_dir=here/there").code == 0
    shared = "rounds2-threads1-examples40"
    assert set(runs_of(tmp_path)) == {f"here/there/fedmsa_mco-seed0-K{K}-{shared}" for K in (1, 2)}


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (["budget.rounds=2"], "finished after 2 rounds ("),
        (["budget.rounds=2", "budget.comm_rounds=1000"], "finished after 2 rounds, at the limit budget.rounds=2 ("),
        (["budget.rounds=9", "budget.comm_rounds=4"], "finished after 2 rounds, at the limit budget.comm_rounds=4 ("),
        (["budget.rounds=9", "budget.bytes=str(1)"], "finished after 1 round, at the limit budget.bytes=1 ("),
    ],
)
def test_the_limit_that_ended_a_run_is_said(limits, said, monkeypatch, capsys, tmp_path):
    """Where it has several."""
    monkeypatch.chdir(tmp_path)
    assert fedopt(monkeypatch, capsys, *SMALL, *limits).out.startswith(said)


def test_a_longer_sweep_in_one_folder_is_one_row(monkeypatch, capsys, tmp_path):
    """Its folder is there by then."""
    monkeypatch.chdir(tmp_path)
    for seeds, runs in (("0,1", "2"), ("0,1,2", "3")):
        out = fedopt(monkeypatch, capsys, "-m", *SMALL, "algo.K=1", f"seed={seeds}", "output_dir=here").out
        assert [row[0] for row in table_in(out)] == ["runs", runs]


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("out", "out"),
        ("a/b-c.d", "a/b-c.d"),
        ("2024", "'2024'"),
        ("1e5", "'1e5'"),
        ("null", "'null'"),
        ("a b", "'a b'"),
        ("a,b=c", "'a,b=c'"),
        ("it's", r"'it\'s'"),
    ],
)
def test_quotes_stand_where_they_are_needed(name, word, monkeypatch, tmp_path):
    assert quoted(name) == word
    assert compose(["algo=fedmsa", "problem=mco", f"output_dir={word}"]).settings.output_dir == name


def test_failures_are_said_when_they_happen(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Bar, "line", lambda bar, text: print(text, file=sys.stderr))
    result = fedopt(monkeypatch, capsys, "-m", *SMALL, "algo.beta=[1],0.1", "output_dir=sweep")
    lines = result.err.splitlines()
    (failed,) = (n for n, line in enumerate(lines) if line.startswith("fedopt: sweep/fedmsa_mco-seed0-beta1-"))
    (ended,) = (n for n, line in enumerate(lines) if line.startswith("[2/2] finished"))
    assert failed < ended
    assert "algo.beta" in lines[failed].partition(": ")[2]


def test_a_sweep_over_algorithms_with_a_key_of_theirs(monkeypatch, capsys, tmp_path):
    """Which the default algorithm does not have."""
    monkeypatch.chdir(tmp_path)
    words = [
        "problem=classification",
        "dataset=digits",
        "problem.widths=[4]",
        "partitioner.clients=4",
        "hardware.threads=1",
    ]
    words += [
        "participation.cohort=null",
        "budget.rounds=1",
        "eval.metric=null",
        "eval.target=null",
        "algo.tau='2 epochs'",
    ]
    result = fedopt(monkeypatch, capsys, "-m", "algo=fedavg,scaffold", *words)
    assert result.code == 0, result.err
    configs = [yaml.safe_load(path.read_text()) for path in tmp_path.rglob("config.yaml")]
    assert sorted(config["algo"]["_target_"].rpartition(".")[2] for config in configs) == ["FedAvg", "Scaffold"]
    assert {config["algo"]["tau"] for config in configs} == {"2 epochs"}
    assert all(config["problem"]["widths"] == [4] for config in configs)
    wrong = fedopt(monkeypatch, capsys, "-m", "algo=fedavg,scaffold", *words, "algo.prox=0.1")
    assert (wrong.code, "algo.prox" in wrong.err) == (2, True)


def test_a_target_of_another_metric_falls_away(monkeypatch, capsys, tmp_path):
    """A preset's target is of its own metric; also in a sweep."""
    monkeypatch.chdir(tmp_path)
    pair = ["algo=fedavg", "problem=classification", "dataset=digits"]
    assert compose(pair).settings.eval.target is not None
    assert compose([*pair, "eval.metric=test_accuracy"]).settings.eval.target is not None
    assert compose([*pair, "eval.metric=test_loss", "eval.target=0.5"]).settings.eval.target == 0.5
    for word in ("eval.metric=test_loss", "eval.metric=null"):
        assert compose([*pair, word]).settings.eval.target is None
    words = [*pair, "eval.metric=test_loss", "budget.rounds=1", "hardware.threads=1", "output_dir=sweep"]
    assert fedopt(monkeypatch, capsys, "-m", *words).code == 0
    (summary,) = (json.loads(path.read_text()) for path in tmp_path.rglob("summary.json"))
    assert summary["to_target"] is None


@pytest.mark.filterwarnings("ignore")  # of Optuna's
def test_a_sweep_without_tuned_values(monkeypatch, capsys, tmp_path):
    """Also of an algorithm that has none."""
    (tmp_path / "conf" / "algo").mkdir(parents=True)
    own = "_target_: fedopt.algorithms.fedavg.FedAvg\nmomentum: 0.0\n"
    own += "eta: 0.1\ngamma: 1.0\ntau: 1 epochs\nB: 32\nmu: 0.0\n"
    (tmp_path / "conf" / "algo" / "own.yaml").write_text(own)
    words = ["algo=own,fedavg", "problem=classification", "dataset=digits", "budget.rounds=1", "preset=none"]
    given = [*words, f"output_dir={tmp_path / 'sweep'}", "hardware.threads=1"]
    result = fedopt(monkeypatch, capsys, "-m", f"--config-dir={tmp_path / 'conf'}", *given)
    assert result.code == 0, result.err
    runs = [RunFolder(path.parent) for path in (tmp_path / "sweep").glob("*/config.yaml")]
    own, fedavg = sorted((run.config() for run in runs), key=lambda config: config["algo"]["B"])
    assert own["algo"] == fedavg["algo"]
    assert "preset=none" in (runs[0].path / "log.txt").read_text()


def test_tuned_values_are_said(monkeypatch, capsys, tmp_path):
    """At the start of a run and in its log; of a sweep, where its runs differ in them or in the budget."""
    monkeypatch.chdir(tmp_path)
    quadratic = ["problem=quadratic_bilevel", "hardware.threads=1", "problem.examples=40", "algo.B=null"]
    for algo, said in (
        ("fedmsa", "; tuned values: fedmsa/quadratic_bilevel"),
        (
            "fednest",
            "; no tuned values for fednest on quadratic_bilevel: keys that the command does not set have their default values",
        ),
    ):
        words = [f"algo={algo}", *quadratic, "budget.rounds=1", f"output_dir={algo}"]
        assert fedopt(monkeypatch, capsys, *words).err.splitlines()[0].endswith(said)
        assert said in Path(algo, "log.txt").read_text().splitlines()[0]
    digits = ["algo=fedavg", "problem=classification", "dataset=digits", "budget.rounds=1", "hardware.threads=1"]
    said = fedopt(monkeypatch, capsys, *digits, "problem.model=softmax").err.splitlines()[0]
    assert "; tuned values: fedavg/classification (tuned without dataset=digits problem.model=softmax, so" in said
    usual = ["algo=fedavg", "problem=classification", "dataset=mnist", "problem.model=mlp", "problem.widths=[200, 200]"]
    assert str(compose(usual).tuned) == "tuned values: fedavg/classification"
    fedopt(monkeypatch, capsys, *digits, "output_dir=first")
    fedopt(monkeypatch, capsys, "output_dir=first", "resume=true", "budget.rounds=2")
    *_, resumed, _ = Path("first", "log.txt").read_text().splitlines()
    assert "resumed" in resumed
    assert "without dataset=digits" in resumed
    sweep = ["-m", "algo=fedmsa,localbsgm,fednest", *quadratic, "output_dir=sweep"]
    config = ["algo=fedmsa,localbsgm,fednest", "problem=quadratic_bilevel"]
    runs = [compose([f"algo={algo}", config[1]]) for algo in ("fedmsa", "localbsgm", "fednest")]
    told = differences(runs, {"algo"})
    assert "tuned values on quadratic_bilevel: some (fedmsa, localbsgm), none (fednest)" in told
    assert "budget.rounds on quadratic_bilevel: 400 (fedmsa), 200 (localbsgm, fednest)" in told
    assert "eval.every on quadratic_bilevel: 10 (fedmsa), 5 (localbsgm), 1 (fednest)" in told
    Path("conf/tuned").mkdir(parents=True)  # where the defaults won
    Path("conf/tuned/fednest.yaml").write_text("quadratic_bilevel: {source: a search, algo: {}}")
    searched = [compose([f"algo={algo}", config[1]], ["conf"]) for algo in ("fedmsa", "fednest")]
    assert "tuned values on" not in differences(searched, {"algo"})
    assert str(searched[1].tuned) == "tuned values: fednest/quadratic_bilevel (equal to the defaults)"
    said = fedopt(monkeypatch, capsys, *sweep, "budget.rounds=1", "eval.every=1").err.splitlines()[0]
    assert "some (fedmsa, localbsgm), none (fednest)" in said
    assert "budget" not in said
    assert "eval" not in said
    alike = fedopt(monkeypatch, capsys, "-m", *SMALL, "seed=0,1", "output_dir=alike")
    assert "differ" not in alike.err


def test_going_on_with_what_is_there(monkeypatch, capsys, tmp_path):
    """resume=true output_dir=DIR alone takes the config that is in DIR; further values go on top, and choices are made anew."""
    monkeypatch.chdir(tmp_path)
    words = [
        "algo=fedmsa",
        "problem=quadratic_bilevel",
        "problem.examples=40",
        "algo.K=2",
        "hardware.threads=1",
        "eval.every=1",
    ]
    assert fedopt(monkeypatch, capsys, *words, "budget.rounds=2", "output_dir=run").code == 0
    assert fedopt(monkeypatch, capsys, *words, "budget.rounds=4", "output_dir=whole").code == 0
    Path("run").rename("a=1,b=2")  # which needs no quotes
    assert fedopt(monkeypatch, capsys, "resume=true", "output_dir=a=1,b=2", "budget.rounds=4").code == 0
    Path("a=1,b=2").rename("run")
    on = ["resume=true", "output_dir=run"]
    pd.testing.assert_frame_equal(without_time(Path("run")), without_time(Path("whole")))
    assert "tuned values: fedmsa/quadratic_bilevel" in Path("run", "log.txt").read_text().splitlines()[-2]
    for words, said in (
        (["algo.K=3"], "has algo.K=2, not 3"),
        (
            ["participation.cohort=null"],
            "cohort=3, not null; set participation.cohort=3, or choose another",
        ),
        (
            ["budgt.rounds=5"],
            "budgt.rounds: the config of the recorded run has no such key, did you mean budget.rounds?",
        ),
        (["+algo.new=5"], "algo.new: the config of the recorded run has no such key"),
        (["~algo.K"], "algo.K: the config of the recorded run has no such key"),
    ):
        result = fedopt(monkeypatch, capsys, *on, *words)
        assert (result.code, said in result.err, result.err.count("\n")) == (2, True, 1)
    shown = fedopt(monkeypatch, capsys, *on, "--cfg", "job").out
    assert yaml.safe_load(shown)["problem"] == RunFolder(Path("run")).config()["problem"]


TWO_RANKS = {
    "mco": ["algo=fedmsa", "problem.examples=200"],
    "imbalanced_mnist": [
        "algo=fedmsa",
        "dataset=digits",
        "problem.largest=140",
        "problem.widths=[16]",
        "partitioner.clients=20",
        "participation.cohort=5",
    ],
    "classification": [
        "algo=fedavg",
        "dataset=digits",
        "problem.widths=[16]",
        "partitioner.clients=7",
        "participation.cohort=3",
    ],
    "classification_with_server": ["algo=scaffold", "dataset=digits", "algo.tau=5", "participation.cohort=3"],
    "hierarchical": [
        "algo=zo_hfl",
        "dataset=digits",
        "algo.tau={kind: growing, tau: [2, 5]}",
        "participation.stragglers=0.1",
        "problem.fit=5",
    ],
}


@pytest.mark.parametrize(
    "problem", [pytest.param(p, marks=pytest.mark.full if p == "hierarchical" else pytest.mark.slow) for p in TWO_RANKS]
)
def test_engines_and_two_ranks_agree(monkeypatch, capsys, problem, tmp_path):
    """One by one, vectorised, and torchrun with two gloo ranks: metrics to 1e-5, ledger columns exactly."""
    overrides = [
        f"problem={problem}",
        *TWO_RANKS[problem],
        "budget.rounds=6",
        "budget.comm_rounds=null",
        "eval.every=1",
    ]
    for engine in ("one_by_one", "vectorised"):
        arguments = [*overrides, f"hardware.engine={engine}", f"output_dir={tmp_path / engine}"]
        assert fedopt(monkeypatch, capsys, *arguments).code == 0
    done = torchrun("-m", "fedopt", *overrides, "hardware.threads=1", "output_dir=ranks", cwd=tmp_path)
    assert done.out.count("results:") == 1
    one = pd.read_csv(tmp_path / "one_by_one" / "metrics.csv")
    ledger = [name for name in one.columns[:12] if name != "train_seconds"]
    metrics = one.columns[12:]
    assert len(one) == 7
    for name in ("vectorised", "ranks"):
        other = pd.read_csv(tmp_path / name / "metrics.csv")
        pd.testing.assert_frame_equal(one[ledger], other[ledger])
        np.testing.assert_allclose(other[metrics], one[metrics], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts the threads in /proc")
def test_ranks_leave_no_thread_behind(tmp_path):
    """One of gloo's that outlives the group can abort a process that exits."""
    script = tmp_path / "leave.py"
    script.write_text(
        "from pathlib import Path\n"
        "import torch\n"
        "from fedopt.federation import ranks\n"
        "def threads():\n"
        "    return {name.read_text().strip() for name in Path('/proc/self/task').glob('*/comm')}\n"
        "ranks.start()\n"
        "torch.func.vmap(torch.func.grad(torch.sum))(torch.ones(2, 2))\n"
        "assert ranks.agree(ranks.rank() == 1, torch.device('cpu'))\n"
        "assert any('gloo' in name for name in threads())\n"
        "ranks.stop()\n"
        "assert not any('gloo' in name for name in threads()), threads()\n"
    )
    torchrun(script, cwd=tmp_path)


@pytest.mark.parametrize(
    ("topic", "names"),
    [
        ("algorithms", ("fedmsa", "fedavg")),
        ("problems", ("mco", "imbalanced_mnist")),
        ("partitioners", ("dirichlet",)),
        ("data", ("digits",)),
        ("keys", ("budget.rounds", "resume")),
    ],
)
def test_lists_name_everything(topic, names, monkeypatch, capsys):
    result = fedopt(monkeypatch, capsys, "list", topic)
    assert result.code == 0
    assert all(name in result.out for name in names)


@pytest.mark.parametrize(
    ("words", "missing", "says"),
    [
        (["problem=mco"], "algo", "; these fit mco: fedmsa, "),
        (["algo=fedmsa"], "problem", "data_cleaning, "),
        (["seed=3"], "algo", "; fedopt list algo shows all"),
    ],
)
def test_nothing_is_chosen_in_silence(words, missing, says, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    for command in ([], ["-m"], ["--cfg", "job"]):
        result = fedopt(monkeypatch, capsys, *command, *words)
        assert (result.code, result.out) == (2, "")
        assert result.err.startswith(f"fedopt: {missing}: is missing; set {missing}=NAME")
        assert says in result.err
        assert result.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["problm=mco"], "problm=mco: there is no problm, did you mean problem?"),
        (["algorithm=fedmsa", "problem=mco"], "algorithm=fedmsa: there is no algorithm, did you mean algo?"),
        (["method=fedmsa", "problem=mco"], "method=fedmsa: there is no method, did you mean algo?"),
        (["algo=fedmsa", "problm.d=3"], "problm.d=3: there is no problm, did you mean problem?"),
        (["-m", "algo=fedmsa", "problm=mco,saddle"], "problm=mco: there is no problm, did you mean problem?"),
        (["algo=fedavg", "data=mnist"], "data=mnist: there is no data, did you mean dataset?"),
    ],
)
def test_a_mistyped_group_is_said_before_a_missing_one(words, said, monkeypatch, capsys):
    result = fedopt(monkeypatch, capsys, *words)
    assert (result.code, result.err) == (2, f"fedopt: {said}\n")


def test_answers_do_not_import_torch(tmp_path):
    """Which is what takes the time. One process answers all."""
    answers = ["--help", "--help algo=fedmsa problem=mco", "algo.alhpa=1", "algo=fedavg problem=mco", "algo=fedmsb"]
    code = (
        "import sys\nfrom fedopt.commands.run import main\n"
        "for words in sys.argv[1:]:\n"
        "    sys.argv = ['fedopt', *words.split()]\n"
        "    try:\n        main()\n    except SystemExit:\n        pass\n"
        "    assert 'torch' not in sys.modules and 'pandas' not in sys.modules, words\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code, *answers]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("fedopt: federated nested optimisation") == 1
    assert done.stderr.count("fedopt: ") == 3
