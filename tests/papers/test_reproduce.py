"""fedopt-reproduce: experiments in a config folder of the test's own, and measures on run folders made by hand."""

import json
import math
import os
import runpy
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import yaml
from support.cases import few
from support.command import ROOT, Result, code_of, fedopt
from support.records import FEDAVG, record

from fedopt.analysis.runs import read as read_run
from fedopt.analysis.tables import plus_minus
from fedopt.commands import reproduce
from fedopt.config.build import build, checked, target
from fedopt.config.settings import Budget, Evaluation, Participation
from fedopt.drawing import figures
from fedopt.errors import UserError
from fedopt.papers import claims, published, report
from fedopt.papers.figure import CURVES, curves, draw_curves, draw_points
from fedopt.papers.kept import draw_again
from fedopt.papers.measure import Measure
from fedopt.papers.seed_runs import SeedRuns, Unmeasurable
from fedopt.results import identity
from fedopt.results.folder import RunFolder

TINY = {"problem": {"examples": 40}, "budget": {"rounds": 4}, "eval": {"every": 1}, "hardware": {"threads": 1}}
FEDMSA = {"paper": "Test", "title": "a test", "minutes": 1, "seeds": 2, "y": "distance", "lines": {"FedMSA": []}}


@pytest.fixture
def experiment(tmp_path):
    """Writes conf/experiment/test/<name>.yaml with the node `experiment`, on mco."""

    def write(name, common=(), **node):
        path = tmp_path / "conf" / "experiment" / "test" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        defaults = [{"override /problem": "mco"}, {"override /algo": "fedmsa"}]
        content = {"defaults": defaults, **TINY, **dict(common), "experiment": {**FEDMSA, **node}}
        path.write_text("# @package _global_\n" + yaml.safe_dump(content, sort_keys=False))
        return path

    return write


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Runs fedopt-reproduce in tmp_path with its config folder."""

    def run(*arguments):
        (tmp_path / "conf").mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path)
        monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
        monkeypatch.setattr(sys, "argv", ["fedopt-reproduce", "--config-dir", "conf", *map(str, arguments)])
        capsys.readouterr()
        return Result(code_of(reproduce.main), *capsys.readouterr())

    return run


def seed_runs(runs, metric="test_accuracy", x="round", points=None, point=None):
    """runs: label -> run folder."""
    read = {label: read_run(folder, x) for label, folder in runs.items()}
    return SeedRuns(read, x, metric, points or {}, point or {})


def values(*given, **more):
    """What gives measures their values on such runs."""
    return lambda text: Measure.parse(text).value(seed_runs(*given, **more))


# Running


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
    table = pd.read_csv(tmp_path / "outputs/reproduce/test/two/figure.csv")
    assert list(table.columns) == ["line", "seed", "comm_rounds", "distance"]
    assert len(table) == 2 * 2 * 5
    (row,) = pd.read_csv(tmp_path / "outputs/reproduce/test/two/claims.csv").to_dict("records")
    of = table[table["line"] == "fast"].pivot(index="comm_rounds", columns="seed", values="distance")
    moved = of.iloc[0] - of.iloc[-1]
    assert row["mean"] == pytest.approx(moved.mean())
    assert row["std"] == pytest.approx(moved.std())
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
    assert "6 of 6 runs have been done already" in again.out
    assert " finished  " not in again.out
    listed = command("--list", "test").out
    assert [row.split()[3] for row in listed.splitlines() if " test/" in row] == ["done", "done"]
    (runs[0] / "summary.json").unlink()
    assert "3/4 runs" in command("--list", "test").out


def test_fedopt_composes_an_experiment(tmp_path, experiment, monkeypatch, capsys):
    experiment("one")
    monkeypatch.chdir(tmp_path)
    arguments = ["--config-dir", "conf", "experiment=test/one", "algo.K=2", "output_dir=run"]
    assert fedopt(monkeypatch, capsys, *arguments).code == 0
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert (config["algo"]["K"], config["problem"]["examples"]) == (2, 40)
    assert "experiment" not in config
    assert fedopt(monkeypatch, capsys, *arguments, "resume=true").code == 0
    unknown = fedopt(monkeypatch, capsys, "experiment=fedmsa/fig22")
    assert unknown.code == 2
    assert unknown.err.startswith(
        "fedopt: experiment=fedmsa/fig22: there is no such experiment, did you mean fedmsa/fig2?"
    )


@pytest.mark.full
def test_quick(tmp_path, experiment, command):
    claim = {"says": "it moves", "measure": "final('FedMSA')", "at_least": 0}
    experiment("one", common={"budget": {"rounds": 4000}}, quick="budget.rounds=2", claims=[claim])
    result = command("test/one", "--quick", "--format", "pdf")
    assert result.code == 0
    assert "(a few rounds, no result)\n(no claim is checked)" in result.out
    assert "it moves" not in result.out
    results = tmp_path / "outputs/reproduce/quick/test/one"
    assert (results / "figure.pdf").exists()
    assert (results / "figure.png").exists()
    assert f"results: {results.relative_to(tmp_path)}" in result.out
    assert sorted(pd.read_csv(results / "figure.csv")["comm_rounds"]) == [0, 2, 4]
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
    said = "fedopt: stopped; the same command resumes it\n"
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
        assert result.err.count("algo.beta: is a list of 1") == 1
    assert len(pd.read_csv(tmp_path / "outputs/reproduce/test/one/figure.csv")) == 5


# Claims


def test_words(tmp_path):
    a = record(tmp_path / "a", (10, 85, 91, 80, 84))  # in rounds 0, 10, 20, 30, 40
    b = record(tmp_path / "b", (4, 1, 2), metric="distance", status="diverged")
    c = record(tmp_path / "c", (4, 1, "nan"), metric="distance", status="diverged")
    of = values({"A": a, "B": b, "C": c})
    assert of("final('A')") == 84
    assert of("final('B', 'distance')") == 2
    assert of("final('C', 'distance')") == math.inf
    assert of("best('C', 'distance')") == 1
    assert of("best('A') - best('B', 'distance')") == 90
    assert of("at('A', 29.9)") == 91
    assert of("at('A', 40, x='comm_rounds')") == 91
    assert of("first('A', 85)") == 10
    assert (of("first('A', 99)"), of("first('A', 99, or_end=True)")) == (math.inf, 40)
    assert of("first('A', 90, x='bytes')") == 20 * 150
    assert (of("first('A', 85, n=2)"), of("first('A', 50, n=3)"), of("first('A', 86, n=4)")) == (20, 20, math.inf)
    assert of("first('B', 1, metric='distance')") == 10
    assert of("first('A', 99) >= 5 * first('A', 90)") == 1
    assert of("smooth('A', 2)") == 82
    assert of("smooth('A')") == 85
    assert of("noise('A', 4)") == pytest.approx(np.std([6, -11, 4], ddof=1))
    assert of("smooth('A', 2, until=20)") == 88
    assert of("rate('B', 0, 20, 'distance')") == pytest.approx(np.log10(2 / 4) / 20)
    for measure in ("smooth('A', until=-1)", "at('A', -1)", "noise('A', 3, until=-1)", "noise('A', 2)"):
        with pytest.raises(Unmeasurable, match=r"A has (no evaluation|fewer than three evaluations)"):
            of(measure)
    with pytest.raises(Unmeasurable, match="fewer than two"):
        of("rate('B', 15, 20, 'distance')")
    assert of("first_mean_square('B', 7.5, metric='distance')") == 20
    assert of("mean_square('B', 2, 'distance')") == pytest.approx((1 + 4) / 2)
    assert of("per_round('A', 'comm_rounds')") == 2
    assert (of("diverged('A')"), of("diverged('B')")) == (0, 1)
    assert of("abs(min(1, -3)) + log10(100)") == 5


def test_points_and_their_slope(tmp_path):
    runs = {f"n={n}": record(tmp_path / str(n), (16, 8 / n), metric="distance") for n in (1, 2, 4)}
    points = {"s": {n: f"n={n}" for n in (1, 2, 4)}}
    for point, slope in (("x * final(line)", 0), ("final(line)", -1)):
        fitted = values(runs, "distance", points=points, point={"s": Measure.parse(point, "line", "x")})
        assert fitted("fit('s')") == pytest.approx(slope)
        assert fitted("2 * fit('s') - final('n=4')") == pytest.approx(2 * slope - 2)
    assert Measure.parse("fit('s') / final('A')").lines(points) == ["n=1", "n=2", "n=4", "A"]


@pytest.mark.parametrize(
    ("bound", "value", "holds"),
    [
        ({"at_least": 3}, 3, True),
        ({"at_least": 3}, 2.9, False),
        ({"at_most": 3}, 3.1, False),
        ({"within": 1}, -1, True),
        ({"within": 1}, -1.1, False),
        ({"within": 0.7, "of": 91.5}, 92.1, True),
        ({"within": 0.7, "of": 91.5}, 92.3, False),
        ({"within": 0.7, "of": 91.5}, 90.7, False),
        ({"equals": 0.3}, 0.1 + 0.2, True),
        ({"equals": 0.3}, 0.3001, False),
        ({"at_least": 3}, math.inf, True),
    ],
)
def test_bounds(bound, value, holds):
    """Of two seeds with the same value."""
    assert claims.Claim("x", "1", **bound).verdict(value, 0.0, 2) == ("supported" if holds else "not supported")


# Mean -+ t std / sqrt(n), with t = 6.3138, 2.9200, 1.8331 of a printed table for 95 % and 1, 2, 9 degrees of freedom
@pytest.mark.parametrize(
    ("bound", "mean", "std", "n", "said"),
    [
        ({"at_least": 0}, 6.32, 2**0.5, 2, "supported"),
        ({"at_least": 0}, 6.31, 2**0.5, 2, "undecided with 2 seeds"),
        ({"at_most": 0}, -2.93, 3**0.5, 3, "supported"),
        ({"at_most": 0}, -2.91, 3**0.5, 3, "undecided with 3 seeds"),
        ({"at_most": 0}, 2.91, 3**0.5, 3, "undecided with 3 seeds"),
        ({"at_most": 0}, 2.93, 3**0.5, 3, "not supported"),
        ({"within": 3, "of": 90}, 91.1, 10**0.5, 10, "supported"),  # 92.93 and less
        ({"within": 3, "of": 90}, 91.2, 10**0.5, 10, "undecided with 10 seeds"),
        ({"within": 1.8, "of": 90}, 90, 10**0.5, 10, "undecided with 10 seeds"),  # the interval is wider than the band
        ({"within": 3, "of": 90}, 94.9, 10**0.5, 10, "not supported"),  # 93.07 and more
        ({"at_least": 0}, 9, math.nan, 1, "undecided with 1 seed"),
        ({"at_least": 0, "exact": True}, 9, math.nan, 1, "supported"),
        ({"equals": 3, "exact": True}, 4, math.nan, 1, "not supported"),
        ({"equals": 0}, 0, 0, 3, "supported"),
        ({"equals": 0}, 1 / 3, 3**-0.5, 3, "not supported"),
        ({"at_most": 9}, math.inf, math.inf, 3, "undecided with 3 seeds"),
        ({"at_most": 9}, math.nan, math.nan, 3, "not measured"),
    ],
)
def test_t_interval(bound, mean, std, n, said):
    assert claims.Claim("x", "1", **bound).verdict(mean, std, n) == said


def test_verdicts(tmp_path):
    seeds = {}
    for seed, (a, b) in enumerate([(90, 80), (92, 85), (94, 84)]):
        folders = {"A": record(tmp_path / f"a{seed}", (10, a), seed), "B": record(tmp_path / f"b{seed}", (10, b), seed)}
        seeds[seed] = seed_runs(folders)
    row = claims.judge(claims.Claim("A beats B", "final('A') - final('B')", "9", at_least=6), seeds)
    assert (row["mean"], row["std"], row["seeds"], row["holds"]) == (9, pytest.approx(3**0.5), 3, "supported")
    assert row["values"] == "0:10 1:7 2:10"
    assert claims.sentence(row) == "supported                    A beats B: 9.0 ± 1.7 (3 seeds), asked >= 6, paper 9"
    why = claims.Claim("A wins", "final('A') - final('B')", at_least=12, why="B is good.")
    assert claims.sentence(claims.judge(why, seeds)).endswith(", asked >= 12. B is good.")
    assert claims.judge(replace(why, at_least=6), seeds)["why"] == ""

    seeds[1] = seed_runs({"A": tmp_path / "a1"})
    (tmp_path / "b2" / "summary.json").write_text('{"status": "diverged"}')
    seeds[2] = seed_runs({"A": tmp_path / "a2", "B": tmp_path / "b2"})
    row = claims.judge(claims.Claim("A beats B", "final('A') - final('B')", at_least=9), seeds)
    assert (row["mean"], row["seeds"], row["values"]) == (10, 2, "0:10 2:10")
    assert row["note"] == "B has no run that ended (seed 1); B diverged (seed 2)"
    row = claims.judge(claims.Claim("never", "first('A', 99) / first('B', 99)", at_least=1), {0: seeds[0]})
    assert claims.sentence(row) == "not measured                 never: not a number (seed 0)"
    row = claims.judge(claims.Claim("never", "first('A', 99)", at_least=1), seeds)
    assert (row["mean"], row["std"], row["holds"]) == (math.inf, 0, "supported")
    row = claims.judge(claims.Claim("not all", "first('A', 93)", at_most=30), seeds)
    assert (row["values"], row["mean"], row["holds"]) == ("0:inf 1:inf 2:10", math.inf, "undecided with 3 seeds")
    row = claims.judge(claims.Claim("typo", "final('A', 'test_acuracy')", at_least=1), {0: seeds[0]})
    assert row["note"] == "A has no test_acuracy, did you mean test_accuracy? (seed 0)"
    row = claims.judge(claims.Claim("nothing", "1 / diverged('A')", at_least=1), {0: seeds[0]})
    assert "division by zero (seed 0)" in row["note"]
    row = claims.judge(claims.Claim("huge", "9 ** 9 ** 9", at_least=1), {0: seeds[0]})
    assert (row["holds"], row["seeds"]) == (claims.UNMEASURED, 0)


NO_MEASURES = [
    ("final('FedMS')", "final('FedMS'): there is no such line, did you mean FedMSA?"),
    ("finl('FedMSA')", "there is no finl(), did you mean final?"),
    ("first('FedMSA')", "first(): missing a required argument: 'target'"),
    ("final(FedMSA)", "final(): its first argument must be a label in quotes"),
    ("final('FedMSA'", "cannot be read as an expression"),
    ("fit('FedMSA')", "fit('FedMSA'): there is no such series"),
    ("__import__('os')", "there is no __import__()"),
    ("(1).real.bit_length()", "there is no 1 .real.bit_length()"),
    ("+".join(["1"] * 3000), "cannot be read as an expression: it has too many terms"),
    ("'%09999999999d' % 1 == 0", "number"),
    ("final('FedMSA', 'a' * 10 ** 9)", "number"),
    ("f'{1:>9999999999}'", "number"),
    ("line * 10 ** 9", "line: is not a number"),
    ("final('FedMSA') + x", "x: is not a number"),
    ("max(final('FedMSA'), 'b')", "'b': is not a number"),
    ("[1] * 10 ** 10", "number"),
    ("1 << 10 ** 10", "number"),
    ("final('FedMSA').real", "number"),
]


@pytest.mark.parametrize(
    ("measure", "said"),
    few(NO_MEASURES, lambda case: NO_MEASURES.index(case) % 5 == 0),
)
def test_measures_that_could_never_work(measure, said, experiment, command):
    experiment("one", claims=[{"says": "it", "measure": measure, "at_least": 0}])
    result = command("test/one")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("fedopt: experiment/test/one.yaml: claim 'it': ")
    assert said in result.err
    assert result.err.count("\n") == 1


# Pictures


def test_curves(tmp_path, monkeypatch):
    kept = []
    monkeypatch.setattr(figures.Figure, "savefig", lambda figure, *_, **__: kept.append(figure))
    runs = {
        label: [read_run(record(tmp_path / f"{label}{s}", (s + 1, 4), s, metric="distance"), "round") for s in (0, 1)]
        for label in "ABC"
    }
    node = {**FEDMSA, "lines": {label: [] for label in "ABC"}, "y": ["distance", "train_loss"], "x": "round"}
    node |= {"panels": {"left": ["A", "C"], "right": ["B", "C"]}, "transform": "square"}
    node["constants"] = {"published": 3.0}
    described = build(published.Published, {**node, "scale": "log"}, "experiment")
    draw_curves([tmp_path / "a.png"], described, curves(described, runs))
    monkeypatch.undo()
    (figure,) = kept
    assert [axes.get_title() for axes in figure.axes] == ["left", "left", "right", "right"]
    first, last = figure.axes[0], figure.axes[-1]
    assert (first.get_yscale(), first.get_xlabel(), last.get_xlabel()) == ("log", "", "rounds")
    assert first.get_ylabel().replace("\n", " ") == "distance to the solution, squared"
    drawn = {line.get_label(): list(line.get_ydata()) for line in first.lines}
    assert drawn["A"] == pytest.approx([2, 16])  # geometric means of 1, 4 and 16, 16
    assert drawn["3, published"] == [3, 3]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["A", "C", "3, published", "B"]
    assert "geometric mean of 2 seeds" in figure.get_supxlabel()
    assert figure.legends[0].get_title().get_text().startswith(described.paper)


def test_a_line_says_that_a_run_diverged(tmp_path, monkeypatch):
    kept = []
    monkeypatch.setattr(figures.Figure, "savefig", lambda figure, *_, **__: kept.append(figure))
    runs = {
        "A": [read_run(record(tmp_path / f"a{s}", (1, 2), s, metric="distance"), "round") for s in (0, 1)],
        "B": [
            read_run(record(tmp_path / "b0", (1, 3, 2), 0, metric="distance"), "round"),
            read_run(record(tmp_path / "b1", (1, 9), 1, metric="distance", status="diverged"), "round"),
        ],
    }
    node = {**FEDMSA, "lines": {"A": [], "B": []}, "y": "distance", "x": "round", "scale": "linear"}
    described = build(published.Published, node, "experiment")
    draw_curves([tmp_path / "a.png"], described, curves(described, runs))
    monkeypatch.undo()
    (axes,) = kept[0].axes
    (end,) = [line for line in axes.lines if line.get_marker() == "X" and len(line.get_xdata())]
    line = next(line for line in axes.lines if line.get_label() == "B")
    top = axes.get_ylim()[1]
    assert top < 6 == line.get_ydata()[-1]  # the diverged line does not set the limits
    assert (end.get_color(), *end.get_xydata()[0]) == (line.get_color(), 10, top)
    assert "the first of the line's runs diverges here" in [text.get_text() for text in kept[0].legends[0].get_texts()]
    kept[0].draw_without_rendering()
    assert (
        axes.get_position().height * kept[0].get_figheight() > 0.6 * figures.HEIGHT
    )  # the legend took no room from it


@pytest.mark.parametrize(("y_from", "bottom"), [(1.5, 1.5), (50, None)])
def test_panels(y_from, bottom, tmp_path, monkeypatch):
    """Lines are called, and look, as what tells them apart in their panels. An axis does not begin above all values."""
    kept = []
    monkeypatch.setattr(figures.Figure, "savefig", lambda figure, *_, **__: kept.append(figure))
    labels = [f"{method}, q = {q}" for q in (1, 2, 3) for method in "AB"]
    runs = {label: [read_run(record(tmp_path / label, (1, 4), 0, metric="distance"), "round")] for label in labels}
    panels = {f"q = {q}": [f"A, q = {q}", f"B, q = {q}"] for q in (1, 2, 3)}
    node = {**FEDMSA, "lines": {label: [] for label in labels}, "panels": panels, "x": "round", "y_from": y_from}
    node["y_label"] = "a label that is much longer than the axis that it belongs to"
    described = build(published.Published, node, "experiment")
    draw_curves([tmp_path / "a.png"], described, curves(described, runs))
    monkeypatch.undo()
    (figure,) = kept
    assert [axes.get_title() for axes in figure.axes] == list(panels)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["A", "B"]
    assert len({tuple(line.get_color() for line in axes.lines) for axes in figure.axes}) == 1
    for axes in figure.axes:
        low, high = axes.get_ylim()
        assert low < high
        assert low == bottom or bottom is None
        heights = [text.get_window_extent().height for text in (axes.yaxis.label, axes)]
        assert heights[0] <= heights[1]


def test_no_picture_of_nothing(tmp_path, experiment, command):
    """A figure of which no run has ended is not drawn."""
    experiment("one", lines={"A": ["problem.x0=-1e38", "algo.alpha=1e300"]})
    assert command("test/one").code == 1
    assert not (tmp_path / "outputs/reproduce/test/one/figure.png").exists()


@pytest.mark.full
def test_points(tmp_path, experiment, command, monkeypatch):
    lines = {f"K = {K}": f"algo.K={K}" for K in (1, 2)}
    point = {"points": {"s": {K: f"K = {K}" for K in (1, 2)}}, "point": "per_round(line, 'grad_calls')"}
    claim = {"says": "slope", "measure": "fit('s')", "at_least": 0}
    experiment("one", lines=lines, **point, x_label="K", y_label="calls", scale="log", claims=[claim])
    kept = []
    monkeypatch.setattr(figures.Figure, "savefig", lambda figure, *_, **__: kept.append(figure))
    assert command("test/one").code == 0
    table = pd.read_csv(tmp_path / "outputs/reproduce/test/one/figure.csv")
    assert list(table.columns) == ["series", "x", "seed", "y"]
    assert (len(table), list(table["x"].unique())) == (4, [1, 2])
    y = table.groupby("x")["y"].mean()
    (row,) = pd.read_csv(tmp_path / "outputs/reproduce/test/one/claims.csv").to_dict("records")
    assert row["mean"] == pytest.approx(math.log(y[2] / y[1]) / math.log(2))
    (axes,) = kept[0].axes
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_xscale()) == ("K", "calls", "log")
    monkeypatch.undo()


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
    assert "three: there is no such line" in command("test/two").err


@pytest.mark.parametrize(
    ("measure", "paper", "x", "y"),
    [
        ("at('A', 500)", "about 91.5", (500, 500), (91.5, 91.5)),
        ("at('A', 500, x='round') - 87.5", "87.5", (500, 500), (87.5, 87.5)),
        ("best('A')", "91 to 92", (), (91, 92)),
        ("smooth('A', 3, 'distance')", "-1 (tuned)", (), (-1, -1)),
        ("first('A', 90)", "about 250", (250, 250), (90, 90)),
    ],
)
def test_what_the_paper_has_is_on_the_axes(measure, paper, x, y):
    claim = {"says": "a", "measure": measure, "at_least": 0, "paper": paper}
    node = {**FEDMSA, "lines": {"A": []}, "x": "round", "claims": [claim]}
    (claim,) = build(published.Published, node, "experiment").claims
    assert claim.measure.mark(claim.paper, "distance", "round") == ("A", "distance", x, y)


@pytest.mark.parametrize(
    ("measure", "paper"),
    [
        ("final('A')", "above"),
        ("final('A')", "87.5 against 91"),
        ("final('A') - 3", "87.5"),  # a difference, not the value
        ("final('A') - final('B')", "4"),
        ("first('A', 90, x='bytes')", "250"),  # another axis
        ("per_round('A', 'comm_rounds')", "3"),
        ("log10(final('A'))", "3"),
    ],
)
def test_what_is_on_no_axis_is_not_drawn(measure, paper):
    claim = {"says": "a", "measure": measure, "at_least": 0, "paper": paper}
    node = {**FEDMSA, "lines": {"A": [], "B": []}, "x": "round", "claims": [claim]}
    (claim,) = build(published.Published, node, "experiment").claims
    assert claim.measure.mark(claim.paper, "distance", "round") is None


@pytest.mark.parametrize(
    ("measure", "paper", "slope"),
    [("fit('s')", "-0.5 (Theorem 2)", ("s", -0.5)), ('fit("s")', "above", None), ("fit('s') + 1", "-1", None)],
)
def test_the_slope_that_the_paper_has(measure, paper, slope):
    assert Measure.parse(measure).slope(paper) == slope


def test_the_papers_numbers_are_drawn(tmp_path, monkeypatch):
    kept = []
    monkeypatch.setattr(figures.Figure, "savefig", lambda figure, *_, **__: kept.append(figure))
    runs = {label: [read_run(record(tmp_path / label, (10, 90, 94)), "round")] for label in "AB"}
    numbers = {"at('A', 10)": "91", "best('B')": "92 to 93"}
    stated = [{"says": "a", "measure": m, "at_least": 0, "paper": p} for m, p in numbers.items()]
    node = {**FEDMSA, "lines": {"A": [], "B": []}, "x": "round", "y": "test_accuracy", "claims": stated}
    described = build(published.Published, node, "experiment")
    draw_curves([tmp_path / "a.png"], described, curves(described, runs))
    monkeypatch.undo()
    (axes,) = kept[0].axes
    (star,) = [line for line in axes.lines if line.get_marker() == "*" and len(line.get_xdata())]
    assert (star.get_xdata()[0], star.get_ydata()[0]) == (10, 91)
    assert star.get_color() == axes.lines[0].get_color()
    (band,) = axes.patches
    assert (band.get_y(), band.get_height()) == (92, 1)
    assert axes.get_legend_handles_labels()[1] == ["A", "B", "the paper's numbers, in the line's colour"]


@pytest.mark.parametrize(
    ("metric", "values", "scale"),
    [("distance", (100, 1), "log"), ("distance", (4, 1), "linear"), ("test_accuracy", (0.1, 90), "linear")],
)
def test_values_that_span_decades_are_drawn_on_a_logarithmic_axis(metric, values, scale, tmp_path, monkeypatch):
    kept = []
    monkeypatch.setattr(figures.Figure, "savefig", lambda figure, *_, **__: kept.append(figure))
    runs = {"A": [read_run(record(tmp_path / "a", values, metric=metric), "round")]}
    node = {**FEDMSA, "lines": {"A": []}, "x": "round", "y": metric}
    for said, expected in (("auto", scale), ("linear", "linear"), ("log", "log")):
        described = build(published.Published, {**node, "scale": said}, "experiment")
        draw_curves([tmp_path / "a.png"], described, curves(described, runs))
        assert kept[-1].axes[0].get_yscale() == expected
    monkeypatch.undo()


@pytest.mark.full
def test_the_list_counts_the_seeds_that_an_experiment_asks_for(experiment, command):
    experiment("one", seeds=3)
    assert command("test/one", "--seeds", 1).code == 0
    assert "1/3 runs" in command("--list", "test").out
    experiment("one", seeds=1)
    assert "done" in command("--list", "test").out


def test_the_list_says_what_is_for_a_gpu(command):
    lines = command("--list", "fednormsgda/fig8", "fednormsgda/fig8_small").out.splitlines()
    assert [" min, GPU" in line for line in lines if "fig8" in line] == [True, False]


def test_the_list_says_which_experiment_is_broken(experiment, command):
    experiment("one", {"hardware": "abc"})
    assert command("--list", "test").err == (
        "fedopt: experiment/test/one.yaml: hardware=abc: cannot be set as a whole; set its keys, hardware.KEY=VALUE\n"
    )


# Lines that are said once

WHERE = {"K": [1, 2, 4], "q": ["a", 0.5], "s(q)": [3, 7], "least(K, q)": {1: [0.1, 0.2], 2: {"a": 0.3, 0.5: None}}}


def test_what_refers_to_lines_names_their_axes(experiment, tmp_path):
    """In keys, texts and lists; the axis that is given first varies slowest."""
    experiment(
        "one",
        where=WHERE,
        lines={"K = {K}, {q}": "algo.K={K} seed={s}", "all": ["algo.K=1"], "of {q}": ["seed={s}"]},
        panels={"to {q} ({s})": ["all", "K = {K}, {q}"]},
        points={"p {q}": {"{K}": "K = {K}, {q}"}},
        point={"p {q}": "final(line) - {s}"},
        table={"{q}": {"({K})": ["K = {K}, {q}", "{K}.5"]}, "all": {"(2)": ["all", None]}},
        claims=[
            {"says": "least", "for": {"q": "a"}, "measure": {"min": ["final('K = {K}, {q}')"]}, "at_most": "{s}"},
            {
                "for": ["q"],
                "claims": [
                    {"says": "{K}", "for": {"K": [2, 1]}, "measure": "final('K = {K}, {q}')", "within": 1},
                    {"says": "of {q}", "measure": "final('of {q}') - {s}", "equals": 0, "paper": "{s}"},
                ],
            },
            {"says": "{least}", "for": {"K": 1}, "measure": "1", "equals": 1},
        ],
    )
    found = published.load("test/one", [tmp_path / "conf"])
    labels = [f"K = {K}, {q}" for K in (1, 2, 4) for q in ("a", 0.5)]
    assert list(found.lines) == [*labels, "all", "of a", "of 0.5"]
    assert (found.lines["K = 2, 0.5"], found.lines["of a"]) == (["algo.K=2", "seed=7"], ["seed=3"])
    assert found.panels == {f"to {q} ({s})": ["all", *labels[i::2]] for i, (q, s) in enumerate([("a", 3), (0.5, 7)])}
    assert found.points == {f"p {q}": {K: f"K = {K}, {q}" for K in (1, 2, 4)} for q in ("a", 0.5)}
    texts = {series: measure.text for series, measure in found.point.items()}
    assert texts == {"p a": "final(line) - 3", "p 0.5": "final(line) - 7"}
    assert found.table["0.5"] == {f"({K})": (f"K = {K}, 0.5", K + 0.5) for K in (1, 2, 4)}
    assert found.table["all"] == {"(2)": ("all", None)}
    least, *grouped, first, second = found.claims
    assert least.measure.text == "min(final('K = 1, a'), final('K = 2, a'), final('K = 4, a'))"
    assert least.bound == "<= 3"
    assert [claim.says for claim in grouped] == ["2", "1", "of a", "2", "1", "of 0.5"]
    assert [claim.measure.text for claim in grouped[2:4]] == ["final('of a') - 3", "final('K = 2, 0.5')"]
    assert (grouped[2].paper, first.says, second.says) == ("3", "0.1", "0.2")


MISTAKES_IN_NAMES = [
    ({"lines": {"A {qq}": []}}, "{qq}: where has no such name, did you mean q?"),
    ({"lines": {"A": "algo.K={K}"}}, "'algo.K={K}': {K}: K has several values here (1, 2, 4)"),
    ({"lines": {"A": ["algo.K={K}"]}}, "'algo.K={K}': {K}: K has several values here (1, 2, 4)"),
    ({"lines": {"A {K} {q}": "algo.alpha={least}"}}, "{least}: has no value for K = 4"),
    ({"lines": {"A {K}": [], "A 1": []}}, "A 1: gives the key A 1 twice"),
    ({"panels": {"{q}": ["FedMSA {q}"]}}, "FedMSA a: there is no such line, did you mean FedMSA?"),
    ({"where": 3}, "where: must be a mapping from names to values"),
    ({"where": {"K": 3}}, "where.K: must be a list of values"),
    ({"where": {"K": []}}, "where.K: must be a list of values"),
    ({"where": {"a b": [3]}}, "where.a b: must be a name, or a name with its axes, name(axis, axis)"),
    ({"where": {"K": [1], "p(KK)": [3]}}, "where.p: KK: there is no such axis, did you mean K?"),
    ({"where": {"K": [1], "K(K)": [3]}}, "where.K: is given twice, with different axes"),
    ({"where": {"K": [1], "p(K)": [3, 4]}}, "where.p=[3, 4]: must be a value for each K"),
    ({"where": {"K": [1], "p(K)": 3}}, "where.p=3: must be a value for each K"),
    ({"where": {"K": [1], "p(K)": [[3]]}}, "where.p=[3]: must be one value"),
    ({"claims": {"says": "a"}}, "claims: must be a list of claims"),
    ({"claims": [{"for": ["q"], "claims": 3}]}, "claims: must be a list of claims"),
    ({"claims": [{"says": "a", "claims": []}]}, "claims: says: a group has no such key"),
    ({"claims": [{"for": 3, "says": "a"}]}, "for=3: must be a list of names from where, such as [K], or a mapping"),
    ({"claims": [{"for": ["qq"], "claims": []}]}, "for: qq: there is no such axis, did you mean q?"),
    ({"claims": [{"for": {"K": [3]}, "says": "a"}]}, "for.K=3: there is no such value; there are 1, 2, 4"),
    ({"claims": [{"for": {"K": []}, "says": "a"}]}, "for.K: must be a list of values"),
    (
        {"claims": [{"says": "a", "measure": "final('{K}')", "at_least": 0}]},
        "'final('{K}')': {K}: K has several values here (1, 2, 4)",
    ),
    ({"claims": [{"says": "a", "measure": {"mean": ["1"]}, "at_least": 0}]}, "claim 'a': there is no mean()"),
    ({"claims": [{"says": "a", "measure": {"min": "1"}, "at_least": 0}]}, "experiment.claims.0.measure"),
    ({"cell": "finl(line)"}, "cell: there is no finl(), did you mean final?"),
    ({"points": {"s": {1: "FedMSA"}}, "point": "final(lin)"}, "point: final(): its first argument"),
    ({"points": {"s": {1: "FedMSA"}}}, "points and point must have the same series"),
    ({"point": "final(line)"}, "points and point must have the same series"),
]


@pytest.mark.parametrize(
    ("node", "said"),
    few(MISTAKES_IN_NAMES, lambda case: MISTAKES_IN_NAMES.index(case) % 5 == 0),
)
def test_mistakes_in_names(node, said, experiment, command):
    experiment("one", **{"where": WHERE, **node})
    result = command("test/one")
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert result.err.startswith("fedopt: experiment/test/one.yaml: ")
    assert said in result.err


# What there is


def test_points_without_a_value(tmp_path, experiment, command):
    """Nothing can be drawn on a logarithmic scale then."""
    point = {"points": {"s": {1: "FedMSA"}}, "point": "first(line, 0)", "scale": "log", "seeds": 1}
    experiment("one", **point)
    assert command("test/one").code == 0
    assert math.isinf(pd.read_csv(tmp_path / "outputs/reproduce/test/one/figure.csv")["y"][0])


def test_claims_as_markdown(experiment, command):
    claim = {"says": "small | step", "measure": "final('FedMSA')", "at_most": 100, "paper": "small"}
    experiment("one", claims=[claim], seeds=1)
    result = command("test/one", "--seeds", 2)
    assert result.code == 0, result.err
    experiment("two")
    head, rule, row, _, totals, _, absent = command("--claims", "test").out.splitlines()
    assert head.count("|") == rule.count("|") == 7  # a column that is empty in every row is left out
    assert row.startswith("| test/one | small \\| step | <= 100 | small | ")
    assert row.endswith(" | supported |")
    assert totals == "The paper's claims: 1 supported."
    assert absent == "Not run yet: test/two."


# Seeds that are added


@pytest.mark.full
def test_undecided_claims_get_more_seeds(tmp_path, experiment, command, monkeypatch):
    """The seed itself is measured: 0 and 1, then 0 to 3, whose mean is 1.5."""
    monkeypatch.setattr(reproduce, "MOST_SEEDS", 4)
    doubtful = {"says": "doubtful", "measure": "setting('one', 'seed')", "at_least": 0.5}
    clear = {"says": "clear", "measure": "setting('two', 'seed') + setting('one', 'seed')", "at_most": 1e3}
    experiment("one", lines={"one": "algo.K=1", "two": "algo.K=2"}, claims=[doubtful, clear])
    folder = tmp_path / "outputs/reproduce/test/one"
    for more in (
        "2 runs more, with up to 4 seeds, for claims that are undecided",
        "6 of 6 runs have been done already",
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
    assert "runs more" not in asked.out
    monkeypatch.setattr(report, "SHORT", 0.0)
    long = command("test/one")
    assert "runs more" not in long.out
    assert "undecided with 2 seeds" in long.out


@pytest.mark.full
def test_seeds_from_another_first_one(tmp_path, experiment, command, monkeypatch):
    """Results stand in a folder of their own and say so; an undecided claim gets the seeds after them."""
    monkeypatch.setattr(reproduce, "MOST_SEEDS", 3)
    claim = {"says": "doubtful", "measure": "setting('FedMSA', 'seed')", "at_least": 7.5}
    experiment("one", claims=[claim])
    result = command("test/one", "--first-seed", 7)
    assert result.code == 0, result.err
    assert "doubtful: 8.0 ± 1.0 (3 seeds from 7 on)" in result.out
    folder = tmp_path / "outputs/reproduce/seeds_from_7/test/one"
    assert pd.read_csv(folder / "claims.csv")["values"][0] == "7:7 8:8 9:9"
    assert list(pd.read_csv(folder / "runs.csv")["seed"]) == [7, 8, 9]
    assert not (tmp_path / "outputs/reproduce/test").exists()
    assert " (3 from 7 on) | " in command("--claims", "test", "--first-seed", 7).out
    assert command("test/one", "--first-seed", 8, "--seeds", 2).code == 0  # of runs that are there
    assert list(pd.read_csv(tmp_path / "outputs/reproduce/seeds_from_8/test/one/runs.csv")["seed"]) == [8, 9]
    assert len(list((tmp_path / "outputs/reproduce/runs").iterdir())) == 3
    for seed in ("-1", 10**20):  # a run takes seeds below 2^63
        result = command("test/one", f"--first-seed={seed}")
        assert f"argument --first-seed: {seed} must be a whole number" in result.err
        assert result.code == 2


# Whose claims, and what they say of a figure


def test_whose_a_claim_is(experiment, tmp_path):
    """The experiment's kind holds for the claims that say none."""
    claim = {"says": "a", "measure": "1", "at_least": 0}
    experiment("one", claims=[claim, {**claim, "kind": "control"}, {**claim, "kind": "variant"}])
    experiment("two", claims=[claim, {**claim, "kind": "control"}], kind="variant")
    kinds = [
        [claim.kind for claim in published.load(f"test/{name}", [tmp_path / "conf"]).claims] for name in ("one", "two")
    ]
    assert kinds == [["paper", "control", "variant"], ["variant", "control"]]


@pytest.mark.parametrize(
    ("mean", "std", "verdict", "failed"),
    [
        (1, 0, "supported", False),
        (-1, 0, "not supported", True),
        (1, 99, "undecided with 2 seeds", False),
        (math.nan, 0, "not measured", False),
    ],
)
def test_the_settings_of_a_claim(mean, std, verdict, failed):
    """Whatever a claim shows, its verdict names smaller settings and changes, and says what they are."""
    for given, start, reason in [
        ({}, "", ""),
        ({"changes": "Damped."}, "with changes: ", "Damped."),
        ({"small": "Short."}, "small-scale: ", "Short."),
        ({"small": "Short.", "changes": "Damped."}, "small-scale: ", "Short."),
    ]:
        row = claims.row(claims.Claim("x", "1", at_least=0, why="Other.", **given), mean, float(std), 2, "", "")
        words = {"supported": "agrees", "not supported": "disagrees"} if start == "small-scale: " else {}
        expected = verdict if verdict == "not measured" else start + words.get(verdict, verdict)
        assert row["holds"] == expected
        assert row["why"] == " ".join(filter(None, (reason, "Other." * failed)))


def test_claims_have_the_settings_of_the_lines_that_they_measure(experiment, tmp_path):
    lines = {"{method}": "algo.K=1", "other": "algo.K=2"}
    measures = ["final('FedMSA')", "final('other')", "final('FedMSA') - final('other')", "fit('series')"]
    stated = [{"says": measure, "measure": measure, "at_least": 0} for measure in measures]
    stated.append({"says": "own", "measure": measures[1], "at_least": 0, "changes": "Mine."})
    other = {"small": {"{method}": "Short."}, "changes": {"other": "Damped."}}
    points = {"points": {"series": {1: "FedMSA", 2: "other"}}, "point": "final(line)"}
    experiment("one", lines=lines, where={"method": ["FedMSA"]}, claims=stated, **other, **points)
    of = published.load("test/one", [tmp_path / "conf"]).claims
    assert [claim.small for claim in of] == ["Short.", "", "Short.", "Short.", ""]
    assert [claim.changes for claim in of] == ["", "Damped.", "Damped.", "Damped.", "Mine."]
    experiment("one", lines=lines, where={"method": ["FedMSA"]}, small={"othre": "Short."})
    with pytest.raises(UserError, match="othre: there is no such line, did you mean other"):
        published.load("test/one", [tmp_path / "conf"])


@pytest.mark.full
def test_undecided_claims_get_more_seeds_though_they_are_small_scale(tmp_path, experiment, command, monkeypatch):
    monkeypatch.setattr(reproduce, "MOST_SEEDS", 3)
    claim = {"says": "doubtful", "measure": "setting('FedMSA', 'seed')", "at_least": 0.5, "small": "Too short."}
    experiment("one", claims=[claim])
    result = command("test/one")
    assert result.code == 0
    (row,) = pd.read_csv(tmp_path / "outputs/reproduce/test/one/claims.csv").to_dict("records")
    assert (row["seeds"], row["holds"], row["why"]) == (3, "small-scale: undecided with 3 seeds", "Too short.")
    assert "The paper's claims: 1 small-scale: undecided." in result.out


@pytest.mark.full
def test_texts_that_a_spreadsheet_would_take_for_formulas_are_judged_again(experiment, command):
    claim = {"says": "+ it stays", "measure": "-diverged('FedMSA')", "equals": 0, "paper": "-1 by the bound"}
    experiment("one", claims=[claim], seeds=1)
    assert command("test/one", "--seeds", 2, "--keep", "kept").code == 0
    for _ in range(2):
        row = command("--claims", "test", "--keep", "kept").out.splitlines()[2]
        assert row.startswith("| test/one | + it stays | = 0 | -1 by the bound | ")
        assert row.endswith(" | supported |")


# What is kept


@pytest.mark.full
@pytest.mark.pictures
def test_what_is_kept(tmp_path, experiment, command):
    claim = {"says": "far", "measure": "final('FedMSA')", "at_least": 1e3, "why": "It is solved."}
    other = {"says": "seeds", "measure": "setting('FedMSA', 'seed')", "within": 0.1}
    experiment("one", claims=[claim, other], common={"budget": {"rounds": 240}})
    result = command("test/one", "--seeds", 2, "--keep", "kept")
    assert result.code == 0, result.err
    kept = tmp_path / "kept" / "test" / "one"
    assert sorted(file.name for file in kept.iterdir()) == ["claims.csv", "curves.csv", "figure.svg", "runs.csv"]
    assert b"<svg" in (picture := (kept / "figure.svg").read_bytes())
    thin, whole = pd.read_csv(kept / "curves.csv"), pd.read_csv(tmp_path / "outputs/reproduce/test/one/curves.csv")
    facts = ["line", "metric", "title", "scale", "seeds", "diverged"]
    assert list(thin.columns) == [*facts, "comm_rounds", "mean", "low", "high"]
    assert set(thin["title"]) == {"distance to the solution"}
    assert set(thin["seeds"]) == {2}
    assert (len(whole), len(thin)) == (241, 100)
    assert list(thin["comm_rounds"].iloc[[0, -1]]) == list(whole["comm_rounds"].iloc[[0, -1]]) == [0, 480]
    at = whole.set_index("comm_rounds").loc[list(thin["comm_rounds"])]
    np.testing.assert_allclose(thin["mean"], at["mean"], rtol=1e-4)
    row = pd.read_csv(kept / "claims.csv").iloc[0]
    assert [part.split(":")[0] for part in row["values"].split()] == ["0", "1"]
    card = json.loads(next(tmp_path.glob("outputs/reproduce/runs/*/run.json")).read_text())
    assert (row["date"], row["machine"]) == (card["started"][:10], card["machine"]["platform"])
    assert row["commit"] == card["commit"] or card["commit"] is None

    # Judged anew without runs: another bound, another measure, other runs
    for outputs in tmp_path.glob("outputs/*"):
        shutil.rmtree(outputs)
    text = command("--claims", "test", "--keep", "kept").out
    assert "| not supported | It is solved. |" in text
    (kept / "figure.svg").unlink()
    experiment("one", claims=[{**claim, "at_least": -1}, {**other, "measure": "1"}], common={"budget": {"rounds": 240}})
    first, second, _, totals = command("--claims", "test", "--keep", "kept").out.splitlines()[2:]
    assert first.endswith(f"| {plus_minus(row['mean'], row['std'])} (2) | supported |  |")
    assert second.endswith("|  | not measured | [not run yet] |")
    assert totals == "The paper's claims: 1 not measured, 1 supported."
    assert (kept / "figure.svg").read_bytes() == picture  # drawn again, of what is kept, and the same
    assert list(pd.read_csv(kept / "claims.csv")["holds"]) == ["supported", "not measured"]
    experiment("one", claims=[claim], common={"budget": {"rounds": 200}})
    assert "|  | not measured | [its runs are others now] |\n" in command("--claims", "test", "--keep", "kept").out


def test_points_that_are_kept(tmp_path, experiment, command):
    point = {"points": {"s": {1: "FedMSA"}}, "point": "final(line)", "seeds": 1}
    experiment("one", **point)
    assert command("test/one", "--keep", "kept").code == 0
    kept, whole = tmp_path / "kept/test/one/curves.csv", tmp_path / "outputs/reproduce/test/one/figure.csv"
    assert kept.read_bytes() == whole.read_bytes()


def test_results_in_the_docs_are_small():
    files = [file for file in (ROOT / "docs" / "results").rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) <= 9e6
    pictures = [file.stat().st_size for file in files if file.suffix == ".svg"]
    assert len(pictures) > 30
    assert max(pictures) <= 450_000
    assert np.quantile(pictures, 0.85) <= 155_000


@pytest.mark.full
@pytest.mark.pictures
def test_each_kept_figure_can_be_drawn_again(tmp_path):
    """Its curves have what it takes, and lines and panels of the present file."""
    for file in (ROOT / "docs" / "results").glob("*/*/figure.svg"):
        described = published.load("/".join(file.parts[-3:-1]))
        table = pd.read_csv(file.with_name("curves.csv"))
        if described.points:
            assert {"series", "x", "seed", "y"} == {*table}
            assert {*table["series"]} <= {*described.points}
        else:
            assert [*CURVES, described.x, "mean", "low", "high"] == [*table]
            assert {*table["line"]} <= {*described.lines}
            assert {*table["scale"]} <= {"log", "linear"}
    folder = ROOT / "docs" / "results" / "fedmsa" / "theorem31"
    shutil.copy(folder / "curves.csv", tmp_path)
    draw_again("fedmsa/theorem31", (), tmp_path)
    assert b"<svg" in (tmp_path / "figure.svg").read_bytes()


def test_kept_curves_without_what_a_figure_needs(tmp_path):
    (tmp_path / "curves.csv").write_text("line,metric,round,mean,low,high\nFedNest,a,1,2,3,4\n")
    with pytest.raises(UserError, match=r"columns diverged, scale, seeds, title; run.*experiment again"):
        draw_again("fednest/fig2a", (), tmp_path)


def test_panels_of_points(tmp_path, monkeypatch):
    """Each has its axes and labels, and its own series."""
    kept = []
    monkeypatch.setattr(figures.Figure, "savefig", lambda figure, *_, **__: kept.append(figure))
    described = published.load("fedmsa/theorem31")
    draw_points([tmp_path / "a.png"], described, pd.read_csv(ROOT / "docs/results/fedmsa/theorem31/curves.csv"))
    monkeypatch.undo()
    left, right = kept[0].axes
    assert (left.get_xlabel(), right.get_xlabel()) == ("local steps K", "clients M")
    assert [left.get_legend_handles_labels()[1], right.get_legend_handles_labels()[1]] == list(
        described.panels.values()
    )
    with pytest.raises(UserError, match="Q: there is no such line"):
        build(published.Published, {**FEDMSA, "lines": {"A": []}, "points": {"s": {1: "A"}}, "point": "final(line)",
                                    "panels": {"p": ["s", "Q"]}}).check_labels()  # fmt: skip


@pytest.mark.full
def test_few_points_stand_beside_each_other(tmp_path, monkeypatch):
    """With bars, where lines and bands would lie on each other; legends name methods in their order, and marks last."""
    kept = []
    monkeypatch.setattr(figures.Figure, "savefig", lambda figure, *_, **__: kept.append(figure))
    described = published.load("zohfl/fig2_delayed")
    draw_curves([tmp_path / "a.png"], described, pd.read_csv(ROOT / "docs/results/zohfl/fig2_delayed/curves.csv"))
    described = published.load("fednest/fig2a")
    draw_curves([tmp_path / "a.png"], described, pd.read_csv(ROOT / "docs/results/fednest/fig2a/curves.csv"))
    monkeypatch.undo()
    few, many = kept
    assert few.axes[0].get_gridspec().get_geometry() == (4, 3)
    marked = [line for line in few.axes[0].lines if line.get_label().startswith("tau")]
    assert len({tuple(line.get_xdata()) for line in marked}) == 3
    assert "bars: " in few.get_supxlabel()
    assert [text.get_text() for text in few.legends[0].get_texts()] == ["tau = 5", "tau = 20", "tau = 50"]
    assert len({axes.get_ylim() for axes in few.axes[:3]}) == 1
    entries = {text.get_text() for text in many.legends[0].get_texts()}
    assert {"FedNest, iid", "FedNest, non-iid", "LFedNest, iid", "LFedNest, non-iid", "penalty"} < entries
    assert "FedNest" not in entries
    for figure in kept:
        assert all(axes.get_ylim()[1] <= 100 for axes in figure.axes)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"a,b\n1,2\n", b"run,says,mean,std\n1,2,x,y\n"])
def test_tables_that_are_broken(content, tmp_path, experiment, command):
    experiment("one")
    folder = tmp_path / "outputs" / "reproduce" / "test" / "one"
    folder.mkdir(parents=True)
    (folder / "claims.csv").write_bytes(content)
    (folder / "runs.csv").write_bytes(content)
    for asked in ("--claims", "--list"):
        result = command(asked, "test")
        if asked == "--claims" or not content.startswith(b"run"):
            assert (result.code, result.err.count("\n")) == (2, 1)
            assert "cannot be read" in result.err or "is no text" in result.err


def test_labels_that_are_no_formula(tmp_path, experiment, command):
    """Dollars, and scripts that the font lacks."""
    texts = {"title": r"$\frac{$", "x_label": "$ 5", "y_label": "$\\alpha$ 中文", "lines": {r"a $\nope{$ b": []}}
    experiment("one", seeds=1, **texts)
    result = command("test/one")
    assert (result.code, result.err) == (0, "")
    assert (tmp_path / "outputs/reproduce/test/one/figure.png").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fedmsa/fig22"], "fedmsa/fig22: there is no such experiment, did you mean fedmsa/fig2?; --list shows them"),
        (["fedmas"], "fedmas: there is no such experiment, did you mean fedmsa?; --list shows them"),
        ([], "fedopt-reproduce --list"),
        (["--jbos"], "unrecognized arguments: --jbos, did you mean --jobs?; fedopt-reproduce --help lists the options"),
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


GLOBAL = "# @package _global_\n"
ON_MCO = GLOBAL + "defaults: [{override /problem: mco}, {override /algo: fedmsa}]\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GLOBAL + "experiment: [1", 'one.yaml", line 3'),
        (GLOBAL + "experiment: {<<: *x}", "found undefined alias"),
        (ON_MCO + "budget: {rounds: 3}", "must have a node experiment"),
        (ON_MCO + "experiment: 3", "must have a node experiment"),
        ("experiment: {paper: A}", "must begin with the line '# @package _global_'"),
        (ON_MCO + "experiment: {paper: A}", "experiment.title: is missing"),
        (
            ON_MCO + "experiment: {paper: A, title: B, minutes: 1, y: c, lines: {d: []}, lnies: {}}",
            "lnies: there is no such key",
        ),
        (GLOBAL + "defaults: [{override /algo: fedmas}]", "algo=fedmas: there is no such algo, did you mean fedmsa?"),
    ],
)
def test_broken_files(text, said, experiment, command):
    experiment("one").write_text(text + "\n")
    result = command("test/one")
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert result.err.startswith("fedopt: experiment/test/one.yaml: ")
    assert said in result.err


def test_a_broken_file_in_the_list(experiment, command):
    experiment("one").write_text(GLOBAL + "experiment: [1\n")
    result = command("--list", "test/one")
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert result.err.startswith("fedopt: experiment/test/one.yaml: the config cannot be read (")
    assert "line 3" in result.err


@pytest.mark.parametrize(
    ("node", "said"),
    [
        ({"lines": {"A": "algo=fedmas"}}, "line 'A': algo=fedmas: there is no such algo, did you mean fedmsa?"),
        ({"lines": {"A": "seed=3"}}, "line 'A': seed=3"),
        ({"lines": {"A": "output_dir=x"}}, "line 'A': output_dir=x"),
        ({"lines": {"A": "hydra.run.dir=x"}}, "line 'A': hydra.run.dir"),
        ({"lines": {"A": "algo.Q=3"}}, "line 'A': algo.Q: there is no such key"),
        ({"lines": {"A": "algo=fedavg"}}, "line 'A': algo and problem do not fit"),
        ({"panels": {"p": ["B"]}}, "B: there is no such line"),
        ({"points": {"s": {1: "FedMSA"}}}, "points and point must have the same series"),
        ({"claims": [{"says": "a", "measure": "1"}]}, "must have exactly one of at_least, at_most, within, equals"),
        ({"claims": [{"says": "a", "measure": "1", "at_least": 1, "of": 3}]}, "of: is the middle of a band"),
        ({"claims": [{"says": "a", "measure": "1", "at_least": 1, "here": "many"}]}, "{} once"),
        ({"claims": [{"says": "a", "measure": "1", "at_least": 1, "kind": "ours"}]}, "kind"),
        ({"headlines": [{"figure": "1"}]}, "says: is missing"),
    ],
)
def test_mistakes_in_files(node, said, experiment, command):
    experiment("one", **node)
    result = command("test/one")
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert result.err.startswith("fedopt: experiment/test/one.yaml: ")
    assert said in result.err


FIRST = {name.partition("/")[0]: name for name in reversed(published.names())}.values()  # of each paper


@pytest.mark.parametrize("name", few(published.names(), lambda name: name in FIRST))
def test_published_experiments_compose(name):
    """Each line, and a quick one, gives a config that can be built."""
    described = published.load(name)
    lines = published.tasks(name, described, 1)
    for task in [*lines, *published.tasks(name, described, 1, described.quick, lines=[lines[0].line])]:
        config = task.composed.nodes
        for cls, key in ((Budget, "budget"), (Evaluation, "eval"), (Participation, "participation")):
            build(cls, config[key], key)
        for group in ("algo", "problem", "partitioner"):
            checked(*target(config[group], group), group, *(["world"] if group == "problem" else []))
    assert len({task.folder for task in lines}) == len(lines)


def test_file_that_builds_on_another(experiment, tmp_path):
    """As Hydra merges them: runs and what is measured of them agree."""
    experiment("one", claims=[{"says": "a", "measure": "1", "at_least": 0}])
    node = {"title": "another", "lines": {"more": "algo.K=3"}}
    content = {"defaults": ["test/one", "_self_"], "participation": {"least": 2}, "experiment": node}
    experiment("two").write_text("# @package _global_\n" + yaml.safe_dump(content))
    folders = [tmp_path / "conf"]
    one, two = (published.load(f"test/{name}", folders) for name in ("one", "two"))
    assert two == replace(one, title="another", lines={**one.lines, "more": ["algo.K=3"]})
    (first,), (same, more) = (
        published.tasks(f"test/{name}", of, 1, (), folders) for name, of in (("one", one), ("two", two))
    )
    assert (same.composed.nodes["participation"]["least"], more.composed.nodes["algo"]["K"]) == (2, 3)
    assert same.composed.nodes["budget"] == first.composed.nodes["budget"]
    content["defaults"][0] = "test/three"
    experiment("two").write_text("# @package _global_\n" + yaml.safe_dump(content))
    with pytest.raises(UserError, match=r"test/two\.yaml: experiment=test/three: there is no such experiment"):
        published.load("test/two", folders)


def test_identity_is_what_the_numbers_depend_on():
    (task,) = published.tasks("fedmsa/fig2", one_line("fedmsa/fig2"), 1)
    same = {**task.composed.nodes, "output_dir": "x", "resume": True, "logger": {"_target_": "y"}}
    same["hardware"] = {**task.composed.nodes["hardware"], "threads": 3, "engine": "one_by_one"}
    same["preset"] = "none"
    assert identity.digits(same) == identity.digits(task.composed.nodes)
    longer = {"budget": {**task.composed.nodes["budget"], "rounds": 3}}
    for other in (
        {"seed": 1},
        longer,
        {"hardware": {**task.composed.nodes["hardware"], "dtype": "float64"}},
        {"algo": FEDAVG},
    ):
        assert identity.digits({**task.composed.nodes, **other}) != identity.digits(task.composed.nodes)


def one_line(name):
    described = published.load(name)
    label = next(iter(described.lines))
    return build(published.Published, {**FEDMSA, "lines": {label: described.lines[label]}}, "experiment")


def test_full_error(command, monkeypatch):
    monkeypatch.setattr(reproduce, "_arguments", lambda: (_ for _ in ()).throw(UserError("no")))
    monkeypatch.setattr(os, "environ", {**os.environ, "HYDRA_FULL_ERROR": "1"})
    with pytest.raises(UserError, match="no"):
        reproduce.main()


SCRIPT = runpy.run_path(str(ROOT / "scripts" / "mutants"))


CONTROLS = {  # claims about a variant that the theorem does not admit, which a wrong method need not fail
    "noise, that slope with the directions of one client alone (at 0 it gains nothing)",
    "tau = 1 to 15 with the same steps for all, share of seeds that diverge",
    "unlike work without normalisation, log10 of the distance at the end",
    "slope of log squared distance against log H with a constant local step, which Proposition 1 does not admit",
    "LocalBSGM at the step of LocalBSGVRM, the floor is at least eps = 0.3 (the same mean)",
    "LocalBSGM, K = 1 at the step of K = 8, the floor is at least eps = 1 (the same mean)",
}


def test_mutants_fail_claims():
    """docs/results/mutants.csv: each mutant fails a claim, each claim but the controls fails for a mutant, and the right method is
    the one whose results are kept."""
    rows = pd.read_csv(ROOT / "docs/results/mutants.csv", keep_default_na=False, dtype=str)
    failed = rows[rows["verdict"].isin([claims.FAILS, claims.UNMEASURED])]
    assert set(failed["mutant"]) == set(rows["mutant"]) == set(SCRIPT["MUTANTS"])
    assert set(rows["claim"]) - set(failed["claim"]) == CONTROLS
    for experiment, of in rows.groupby("experiment"):
        kept_claims = pd.read_csv(ROOT / f"docs/results/{experiment}/claims.csv", keep_default_na=False)
        right = {row["says"]: plus_minus(row["mean"], row["std"]) for _, row in kept_claims.iterrows()}
        assert of.set_index("claim")["right"].to_dict().items() <= right.items()


@pytest.mark.parametrize("name", SCRIPT["MUTANTS"])
def test_mutants_can_be_made(name, tmp_path):
    """The text that a mutant changes is in the method once, and what stands there instead can be read."""
    mutant = SCRIPT["MUTANTS"][name]
    copy = shutil.copytree(ROOT / "fedopt", tmp_path / "fedopt") / f"{mutant.file}.py"
    SCRIPT["mutate"](mutant, tmp_path / "fedopt")
    compile(copy.read_text(), str(copy), "exec")
    assert mutant.experiment in published.names()
    with pytest.raises(SystemExit, match="0 times, not once"):
        SCRIPT["mutate"](mutant._replace(right="nowhere"), tmp_path / "fedopt")


def test_equal_values_of_any_size_are_equal_relatively():
    """1e-12 is not 0, and 2 is 2 up to rounding."""
    zero, two = (build(claims.Claim, {"says": "a", "measure": "final('A')", "equals": value}) for value in (0, 2))
    assert [zero.margin(0), zero.margin(1e-12), two.margin(2 + 1e-12)] == [math.inf, -math.inf, math.inf]


def test_a_point_of_which_a_seed_has_no_value_is_left_out(tmp_path, monkeypatch):
    """As a mean over the other seeds would be that of the survivors."""
    kept = []
    monkeypatch.setattr(figures.Figure, "savefig", lambda figure, *_, **__: kept.append(figure))
    described = published.load("fedmsa/theorem31")
    table = pd.read_csv(ROOT / "docs/results/fedmsa/theorem31/curves.csv")
    lost = (table["series"] == "alike clients") & (table["x"] == 1) & (table["seed"] == 0)
    draw_points([tmp_path / "a.png"], described, table.assign(y=table["y"].where(~lost, np.inf)))
    x = kept[0].axes[0].containers[list(described.points).index("alike clients")].lines[0].get_xdata()
    assert sorted(x) == sorted(set(table[table["series"] == "alike clients"]["x"]) - {1})
