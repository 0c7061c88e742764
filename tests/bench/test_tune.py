"""Searches: the same trials for all methods, whenever they were stopped and on any number of processes."""

import itertools
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np
import pandas as pd
import pytest
import yaml
from support import slurm as cluster
from support.cases import few
from support.command import ROOT, code_of
from support.command import fedopt as fedopt_command

import fedopt
from fedopt.bench import tune as searching
from fedopt.bench.outcome import best_of
from fedopt.bench.space import Range, cube, default_ranges, read_range, roles
from fedopt.bench.trials import FIRST_SEED, How
from fedopt.commands import tune as command
from fedopt.commands.new import TEMPLATES
from fedopt.config.composed import compose
from fedopt.config.files import options
from fedopt.console import heard
from fedopt.drawing import figures
from fedopt.errors import UserError, of_machine
from fedopt.jobs.job import Outcome
from fedopt.results import RunFolder
from fedopt.running.assemble import assemble
from fedopt.running.loop import begin, loop

WORDS = ["algo=fedavg", "problem=quadratic_minimisation", "algo.eta=log(0.001,3)", "algo.tau=choice(1,5)"]
SMALL = ["--budget", "rounds=6", "--trials", "9", "--seeds", "1"]
PROGRAM = [sys.executable, "-c", "from fedopt.__main__ import tune; tune()"]


def tune(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["fedopt-tune", *words])
    return code_of(command.main)


def trials(folder):
    return pd.read_csv(folder / "trials.csv")


@pytest.mark.parametrize(
    ("problem", "words", "said"),
    [
        ("regularisation", [], "selected by val_loss, on validation rows"),
        (
            "classification",
            [],
            "selected by test_accuracy, on test rows; define validation rows (docs/own-data.md)",
        ),
        ("classification", ["dataset=digits"], "selected by test_accuracy, on test rows"),
        ("quadratic_minimisation", [], ""),
    ],
)
def test_what_a_search_selects_on_is_said(problem, words, said, tmp_path):
    words = [*words, "dataset=digits"] if problem in ("classification", "regularisation") else words
    algo = "fedmsa" if problem == "regularisation" else "fedavg"
    with heard() as notes:
        searching.planned_searches(
            [f"algo={algo}", f"problem={problem}", *words], (), None, "rounds=3", How(), tmp_path
        )
    assert [line.startswith(said) for line in notes if line.startswith("selected")] == [True] * bool(said)


# Ranges


def test_words_are_ranges():
    assert read_range("algo.eta=log(1e-3,1)") == ("algo.eta", Range("log", (1e-3, 1.0)))
    assert read_range("algo.B=int(1,64)") == ("algo.B", Range("int", (1, 64)))
    assert read_range("algo.tau='5 epochs',20") == ("algo.tau", Range("choice", ("'5 epochs'", "20")))
    assert read_range("algo.beta=[1,2]") is None
    assert read_range("algo.eta=0.1") is None


@pytest.mark.parametrize(
    "word", ["a=log(0,1)", "a=log(1,1)", "a=uniform(2,1)", "a=int(1)", "a=log(x,1)", "a=uniform(0,inf)"]
)
def test_ranges_that_are_none(word):
    with pytest.raises(UserError, match="a="):
        read_range(word)


@pytest.mark.parametrize("values", [Range("log", (1e-3, 10.0)), Range("uniform", (-2.0, 5.0))])
def test_shares_and_values(values):
    """share is the inverse of at, to the digits that are kept; the middle of a log range is the geometric mean."""
    for share in np.linspace(0.01, 0.99, 9):
        assert values.share(values.at(share)) == pytest.approx(share, abs=2e-3)
    assert float(Range("log", (1e-2, 1.0)).at(0.5)) == pytest.approx(0.1)
    assert [values.at_edge(values.at(share)) for share in (0.05, 0.5, 0.95)] == [True, False, True]


def test_whole_numbers_and_choices_are_as_likely():
    assert [Range("int", (1, 4)).at(share) for share in (0, 0.26, 0.51, 0.99)] == ["1", "2", "3", "4"]
    assert [Range("choice", ("a", "b")).at(share) for share in (0, 0.49, 0.5, 0.99)] == ["a", "a", "b", "b"]


def test_methods_get_the_same_points_of_the_cube():
    """Whatever their keys and scales are: the shares are equal; and the first points of a longer search are those of a shorter."""
    one = {"a": Range("log", (1e-3, 1.0)), "b": Range("uniform", (0.0, 1.0))}
    other = {"c": Range("log", (1e-1, 1e2)), "d": Range("uniform", (2.0, 4.0))}
    points = [[*cube("sobol", ranges, 8, 3)] for ranges in (one, other)]
    for first, second in zip(*points, strict=True):
        assert one["a"].share(first["a"]) == pytest.approx(other["c"].share(second["c"]), abs=1e-3)
        assert one["b"].share(first["b"]) == pytest.approx(other["d"].share(second["d"]), abs=1e-3)
    shares = [one["a"].share(point["a"]) for point in points[0]]
    assert sorted(int(8 * share) for share in shares) == [*range(8)]  # one in each eighth, which random points are not
    assert [*cube("sobol", one, 8, 4)] != points[0]


def test_a_grid_has_all_combinations():
    ranges = {"a": Range("log", (0.01, 1.0)), "b": Range("choice", ("1", "5"))}
    points = [(point["a"], point["b"]) for point in cube("grid", ranges, 7, 0)]
    assert points == [*itertools.product(["0.01", "0.1", "1.0"], ["1", "5"])]
    with pytest.raises(UserError, match="at least 4 points"):
        [*cube("grid", ranges, 3, 0)]


def test_roles():
    """Each method has a key to tune; steps lie 3.5 decades around the default, and a schedule's first value is its step."""
    assert [algo for algo in options("algo") if not roles(algo)] == []
    ranges = default_ranges(compose(["algo=zo_hfl", "problem=quadratic_hierarchical", "preset=none"]))
    values = ranges["algo.gamma_local.initial"]
    assert math.log10(values.ends[1] / values.ends[0]) == pytest.approx(3.5, abs=0.05)
    assert values.share("0.1") == pytest.approx(0.5, abs=0.01)
    assert default_ranges(compose(["algo=fedavg", "problem=classification", "preset=none"]))["algo.tau"].ends == (
        "'1 epochs'",
        "'5 epochs'",
    )


WEIGHTS = [name for name in options("algo") if any(role.startswith("log(") for role in roles(name).values())]
PROBLEMS = {"quadratic_game": ("adafgda", "momentum_local_sgda"), "quadratic_local_bilevel": ("fedbioacc_local",)}
PROBLEMS["quadratic_local_compositional"] = ("mfcgd", "adamfcgd", "multilevel")


@pytest.mark.parametrize("algo", few(WEIGHTS, {*PROBLEMS["quadratic_game"], WEIGHTS[0]}.__contains__))
def test_weights_stay_below_one(algo):
    """At both ends of a range that stands in a comment, the method can begin."""
    problem = next((problem for problem, algos in PROBLEMS.items() if algo in algos), "quadratic_bilevel")
    explicit = {key: read_range(f"{key}={role}")[1] for key, role in roles(algo).items() if role.startswith("log(")}
    centralized = ["partitioner=centralized", "participation.cohort=null"] * (algo in ("mrbo", "sustain"))
    for end in (0.0, 1 - 1e-9):
        point = [f"{key}={values.at(end)}" for key, values in explicit.items()]
        e = assemble(compose([f"algo={algo}", f"problem={problem}", "preset=none", *centralized, *point]))
        next(loop(e, *begin(e)))


def test_a_list_of_steps_is_not_searched():
    """Of fedmsa's tuned values: which entry would be meant?"""
    composed = compose(["algo=fedmsa", "problem=imbalanced_mnist"])
    assert isinstance(composed.nodes["algo"]["beta"], list)
    assert [*default_ranges(composed)] == ["algo.alpha", "algo.rho", "algo.K"]


@pytest.mark.parametrize(
    "template", [path.stem for path in TEMPLATES.glob("*.yaml") if "conf/algo" in path.read_text()]
)
def test_a_method_of_ones_own_has_roles(template, tmp_path):
    (tmp_path / "algo").mkdir()
    shutil.copy(TEMPLATES / f"{template}.yaml", tmp_path / "algo")
    assert "step" in roles(template, [tmp_path]).values()


# What is printed and written


def executed(monkeypatch, capsys, line, *more):
    """The last values of the runs of a printed command, by algorithm and metric: the medians over seeds."""
    program, *words = shlex.split(line)
    assert program == "fedopt"
    result = fedopt_command(monkeypatch, capsys, *words, "output_dir=again", *more)
    assert result.code == 0, result.err
    runs = [RunFolder(path.parent) for path in Path("again").rglob("summary.json")]
    finals = pd.DataFrame([{"algo": run.card()["chosen"]["algo"], **run.summary()["final"]} for run in runs])
    shutil.rmtree("again")
    return finals.groupby("algo").median().map(lambda value: float(f"{value:.7g}"))  # as trials.csv


PLAIN = ["algo=fedavg", "problem=quadratic_minimisation"]
WINNERS = {  # the search; what is searched has values that win, unless the name says otherwise
    "own values": [*PLAIN, "algo.eta=log(0.15,0.16)"],
    "untuned": [*PLAIN, "preset=none", "algo.eta=log(0.15,0.16)"],
    "another preset": ["algo=scaffold", PLAIN[1], "preset=fedavg/quadratic_minimisation", "algo.eta=log(0.15,0.16)"],
    "inherited by like": ["algo=scaffold", PLAIN[1], "algo.eta_g=choice(1.01,1.02)"],
    "inherited by defaults": ["algo=local_sgda", "problem=quadratic_minimax", "algo.eta_x=uniform(0.06,0.07)"],
    "inherited, the defaults win": ["algo=local_sgda", "problem=quadratic_minimax", "algo.eta_x=log(1e-9,1e-8)"],
    "untuned, the defaults win": [*PLAIN, "preset=none", "algo.eta=log(1e-9,1e-8)"],
    "fixed values": [*PLAIN, "algo.tau=3", "algo.eta=log(0.15,0.16)"],
    "participation": [*PLAIN, "participation.cohort=choice(9,8)"],
    "a pattern": [
        *PLAIN,
        "participation.cohort=5",
        "participation.pattern={kind:cyclic,groups:2},{kind:cyclic,groups:5}",
    ],
    "problem": ["algo=local_sgda", "problem=quadratic_minimax", "problem.coupling=uniform(1.4,1.5)"],
    "partitioner": [*PLAIN, "partitioner.clients=choice(1,16)"],
    "dataset": ["algo=fedavg", "problem=classification", "dataset=digits", "dataset.pixels=choice(raw,unit)"],
    "three seeds": [*PLAIN, "algo.B=2", "algo.eta=log(0.15,0.16)", "--seeds", "3"],
    "higher is better": ["algo=fedavg", "problem=classification", "dataset=digits", "algo.tau='2 epochs','3 epochs'"],
    "a schedule": ["algo=zo_hfl", "problem=quadratic_hierarchical", "algo.gamma_local.initial=uniform(0.6,0.7)"],
    "an experiment": [
        "experiment=fednormsgda/fig3_quadratic",
        "algo=fed_norm_sgda",
        "problem=quadratic_minimax",
        "algo.eta_x=log(0.06,0.07)",
    ],
    "a limit of the search's": [*PLAIN, "budget.rounds=choice(9,8)"],
    "two methods": ["algo=fedavg,scaffold", PLAIN[1], "preset=none", "algo.eta=log(0.15,0.16)"],
    "single precision": [*PLAIN, "hardware.dtype=float32", "algo.eta=log(0.15,0.16)"],
}


@pytest.mark.parametrize("name", few([*WINNERS], {"untuned", "inherited, the defaults win", "a schedule"}.__contains__))
def test_printed_commands_give_the_printed_number(name, monkeypatch, capsys, tmp_path):
    """To the last digit: 'to run it', and 'next:' on the seeds of the search."""
    monkeypatch.chdir(tmp_path)
    words, seeds = WINNERS[name], "3" if "--seeds" in WINNERS[name] else "1"
    few_trials = ["--budget", "rounds=2", "--trials", "2", "--sampler", "random"]
    capsys.readouterr()
    assert tune(monkeypatch, *words, *few_trials, "--seeds", seeds, "--out", "out") == 0
    out = capsys.readouterr().out
    table = trials(Path("out"))
    best = table.loc[table.groupby("algo")["loss"].idxmin()].set_index("algo")
    assert (best["trial"] == 0).eq("defaults win" in name).all()
    metric = re.search(r"^\w+(, \w+)* on .* by (\w+):", out, re.MULTILINE)[2]
    sign = -1 if metric == "test_accuracy" else 1
    numbers = {algo: sign * loss for algo, loss in best["loss"].items()}
    for line in re.findall(r"to run it: (.*)", out):
        done = executed(monkeypatch, capsys, line)[metric]
        assert numbers[done.index[0]] == done.iloc[0]
        assert f"{done.iloc[0]:.5g}" in re.search(rf"^{done.index[0]}  .*", out, re.MULTILINE)[0].split()
    same = "seed=" + ",".join(str(FIRST_SEED + j) for j in range(int(seeds)))
    lines = re.findall(r"next: (.*)", out)
    assert len(lines) == 1
    assert ("--config-dir" in lines[0]) == (name != "an experiment")
    assert executed(monkeypatch, capsys, lines[0], same)[metric].to_dict() == numbers


def test_python_gives_its_number_again(tmp_path):
    """By the best overrides, and by the folder, which needs no preset=none."""
    words = [*PLAIN, "budget.rounds=2", "eval.metric=distance"]
    more = {"output_dir": tmp_path / "search", "trials": 2, "seeds": 1, "sampler": "random"}
    tuning = fedopt.tune([*words, "preset=none", "algo.eta=log(0.15,0.16)"], metric="distance", **more)
    value = tuning.trials["loss"].min()
    assert tuning.best["fedavg"]
    for number, (others, folders) in enumerate([(["preset=none", *tuning.best["fedavg"]], ()), ([], tuning.folder)]):
        run = fedopt.run(
            [*words, *others, f"seed={FIRST_SEED}"], folders=folders, output_dir=tmp_path / str(number), quiet=True
        )
        assert RunFolder(run.folder).summary()["final"]["distance"] == value


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (
            ["algo.eta=log(0.15,0.1500001)"],
            [
                "the best value is at an edge of its range or outside it, algo.eta=0.15 in log(0.15,0.15); widen the range"
            ],
        ),
        (
            ["algo.tau=int(11,12)"],
            ["the best value is at an edge of its range or outside it, algo.tau=12 in int(11,12); widen the range"],
        ),
        (
            ["algo.tau=1,2,12"],
            ["the best value is at an edge of its range or outside it, algo.tau=12 in choice(1,2,12); widen the range"],
        ),
        (["algo.tau=1,12"], []),
        (
            ["algo.eta=log(1e6,1e9)"],
            [
                "no trial was better than the defaults (3 of 3 diverged or failed): search smaller step sizes",
                "the best value is at an edge of its range or outside it, algo.eta=0.1 in log(1e+06,1e+09); widen the range",
            ],
        ),
        (["algo.tau=1,2"], ["no trial was better than the defaults: run more trials, or give other ranges"]),
    ],
)
def test_reasons_to_trust_the_best_values_less(words, lines, monkeypatch, capsys, tmp_path):
    few_trials = ["--budget", "rounds=3", "--trials", "3", "--seeds", "1", "--sampler", "random"]
    assert tune(monkeypatch, *PLAIN, *words, *few_trials, "--metric", "distance", "--out", str(tmp_path)) == 0
    said = re.findall(r"^fedavg on quadratic_minimisation: (.*)", capsys.readouterr().out, re.MULTILINE)[2:]
    assert said == lines


def test_what_is_unequal_is_said_before_the_first_run(tmp_path):
    """Batch sizes, and who begins from tuned values, as `fedopt compare` says it after the last."""
    words = ["algo=fednest,fedmsa", "problem=quadratic_bilevel", "algo.alpha=log(0.01,1)"]
    with heard() as notes:
        searching.planned_searches(words, [], "distance", "rounds=3", How(), tmp_path)
    assert "tuned values on quadratic_bilevel: none (fednest), some (fedmsa)" in notes[0]
    assert "algo.B on quadratic_bilevel: 64 (fednest), null (fedmsa)" in notes[0]


@pytest.mark.parametrize("sampler", ["tpe", "random", "sobol", "grid"])
def test_no_point_twice(sampler, monkeypatch, tmp_path):
    """A small space is tried once, and the default of 10 is not tried again."""
    few_trials = ["--budget", "rounds=1", "--trials", "9", "--seeds", "1", "--sampler", sampler]
    assert tune(monkeypatch, *PLAIN, "algo.tau=int(8,11)", *few_trials, "--out", str(tmp_path)) == 0
    assert sorted(trials(tmp_path)["algo.tau"].dropna()) == [8, 9, 11]


# Statistics


def test_the_best_of_k_is_the_median_over_orders():
    losses = [3.0, 1.0, 4.0, 1.5, math.inf]
    orders = [*itertools.permutations(losses)]
    by_hand = [median(sorted(min(order[:k]) for order in orders)) for k in range(1, 6)]
    assert best_of(losses) == by_hand


# The command


@pytest.mark.full
def test_a_search_finds_the_step_of_a_quadratic(monkeypatch, capsys, tmp_path):
    """Gradient descent on 1/2 x' A x, one client, full batches: 2 / (mu + L) is best; the default of 0.1 is far from it."""
    words = ["algo=fedavg", "problem=quadratic_minimisation", "partitioner.clients=1", "algo.tau=1", "algo.B=null"]
    drawn, save = [], figures.save
    monkeypatch.setattr(figures, "save", lambda figure, *more: (drawn.append(figure), save(figure, *more)))
    assert tune(monkeypatch, *words, "algo.eta=log(0.001,3)", "--budget", "rounds=20", "--trials", "12", "--seeds", "1",
                "--metric", "distance", "--out", str(tmp_path)) == 0  # fmt: skip
    table = trials(tmp_path)
    assert table["trial"].tolist() == [*range(13)]
    best = table.loc[table["loss"].idxmin()]
    default = table.loc[0, "loss"]
    assert best["loss"] < 0.5 * default
    out = capsys.readouterr().out
    settings = "partitioner.clients=1 algo.tau=1 algo.B=null budget.rounds=20 eval.points=40 eval.metric=distance"
    run = f"algo=fedavg problem=quadratic_minimisation {settings}"
    *_, printed, last, next_one = out.splitlines()
    assert printed == f"to run it: fedopt {run} algo.eta={best['algo.eta']:g} seed={FIRST_SEED}"
    assert last == f"best: fedavg, distance {best['loss']:.5g}; results: {tmp_path}"
    place = f"output_dir=outputs/tuned/{tmp_path.name}_{len(table)} --config-dir {tmp_path}"
    assert next_one == f"next: fedopt -m {run} seed=0,1,2 {place}"
    counts = re.findall(r"^\[ *(\d+)/(\d+)\]", out, re.MULTILINE)
    assert counts == [("1", "3"), ("2", "3"), ("3", "3")]  # the defaults, the other trials, the best trial
    assert "fedavg on quadratic_minimisation: 12 of 12 trials were computed together\n" in out
    marks = {line.get_label(): line for line in drawn[0].axes[1].lines}
    assert {*marks} == {"a trial", "the defaults", "the best trial"}
    assert marks["the defaults"].get_xydata().tolist() == [[0.1, pytest.approx(default)]]
    assert {*marks} < {text.get_text() for text in drawn[0].legends[0].get_texts()}
    node = yaml.safe_load((tmp_path / "tuned" / "fedavg.yaml").read_text())["quadratic_minimisation"]
    assert node["algo"] == {"eta": pytest.approx(best["algo.eta"]), "tau": 1, "B": None}
    assert str(FIRST_SEED) in node["source"]
    assert "13 trials" in node["source"]
    composed = compose(["algo=fedavg", "problem=quadratic_minimisation"], [str(tmp_path)])
    assert composed.nodes["algo"]["eta"] == pytest.approx(best["algo.eta"])


def test_tuned_values_are_those_that_the_search_began_with(monkeypatch, tmp_path):
    """The defaults win a search that has left fedopt's tuned values out, and apply with --config-dir in their place."""
    words = ["algo=fedavg", "problem=quadratic_minimisation"]
    bad = ["preset=none", "algo.eta=log(1e-9,1e-8)", "--budget", "rounds=1", "--trials", "1", "--seeds", "1"]
    for _ in range(2):  # also where the file is there already
        assert tune(monkeypatch, *words, *bad, "--out", str(tmp_path)) == 0
        found, usual = compose(words, [str(tmp_path)]), compose(words)
        assert found.nodes["algo"] == compose([*words, "preset=none"]).nodes["algo"] != usual.nodes["algo"]
        assert found.tuned.effective


def test_keys_keep_their_whole_name(monkeypatch, tmp_path):
    """What another part than the method has is tuned there, and not as a key of the method's."""
    words = ["algo=fedavg", "problem=quadratic_minimisation", "eval.every=1"]
    search = ["budget.rounds=choice(9,8)", "--budget", "rounds=1", "--sampler", "grid", "--trials", "2", "--seeds", "1"]
    assert tune(monkeypatch, *words, *search, "--metric", "distance", "--out", str(tmp_path)) == 0
    node = yaml.safe_load((tmp_path / "tuned" / "fedavg.yaml").read_text())["quadratic_minimisation"]
    shipped = {"algo": {"eta": 0.1, "tau": 10, "B": None}, "eval": {"every": 5}}
    assert {key: value for key, value in node.items() if key != "source"} == {**shipped, "budget": {"rounds": 9}}
    assert compose(words, [str(tmp_path)]).nodes == {
        **(usual := compose(words).nodes),
        "budget": {**usual["budget"], "rounds": 9},
    }
    assert tune(monkeypatch, *words, "algo.eta,logger.x=choice(1,2)", "--out", str(tmp_path)) == 2


@pytest.mark.full
def test_stopped_and_gone_on_is_the_same_search(monkeypatch, tmp_path):
    """Ctrl-C between jobs, on one process and on two."""
    assert tune(monkeypatch, *WORDS, *SMALL, "--out", str(tmp_path / "a")) == 0
    do, left = searching.run_all, [1, 1, 0, 1, 0]

    def interrupted(jobs, *others):
        if not left:
            return do(jobs, *others)
        do(jobs[: left.pop()], *others)
        raise KeyboardInterrupt

    monkeypatch.setattr(searching, "run_all", interrupted)
    arguments = (*WORDS, *SMALL, "--out", str(tmp_path / "b"))
    assert [tune(monkeypatch, *arguments, "--jobs", str(1 + j % 2)) for j in range(6)] == [130] * 5 + [0]
    pd.testing.assert_frame_equal(trials(tmp_path / "a"), trials(tmp_path / "b"))


FEW = ["algo=fedavg", "problem=quadratic_minimisation", "algo.eta=log(0.01,1)", "--budget", "rounds=2", "--seeds", "1"]
FEW += ["--metric", "distance", "--trials"]


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """A search of two trials besides the defaults."""
    folder = tmp_path_factory.mktemp("search")
    with pytest.MonkeyPatch.context() as patch:
        assert tune(patch, *FEW, "2", "--out", str(folder)) == 0
    return folder


@pytest.fixture
def search(searched, tmp_path):
    return Path(shutil.copytree(searched, tmp_path / "search"))


def again(monkeypatch, capsys, folder, trials="2"):
    """The exit code of the same command, and what it says on stderr."""
    capsys.readouterr()
    return tune(monkeypatch, *FEW, trials, "--out", str(folder)), capsys.readouterr().err


def test_a_search_goes_on_from_the_folders_of_its_runs(monkeypatch, capsys, searched, search):
    (search / "trials.csv").unlink()
    assert again(monkeypatch, capsys, search) == (0, "")
    assert (search / "trials.csv").read_bytes() == (searched / "trials.csv").read_bytes()


def test_what_the_machine_did_is_no_outcome(monkeypatch, capsys, searched, search):
    """A run that was killed, and one whose disk was full: one line, exit code 1, no winner, and it is done again."""
    for name in ("trials.csv", "tuned/fedavg.yaml"):
        (search / name).unlink()
    killed = "its process ended with code -9"
    for status in ({"status": "running"}, {"status": "failed", "error": "x", "machine": True}):
        run = search / "fedavg" / "trial000" / "seed1000000"
        (run / "summary.json").write_text(json.dumps(status))
        with monkeypatch.context() as patch:
            patch.setattr(searching, "run_all", lambda jobs, *_: dict.fromkeys(jobs, Outcome("failed", killed)))
            code, err = again(patch, capsys, search)
        assert code == 1
        assert err == f"fedopt: 1 run did not finish; repeat the command to resume. The first: {run}: {killed}\n"
        assert not (search / "trials.csv").exists()
        assert not (search / "tuned" / "fedavg.yaml").exists()
    assert again(monkeypatch, capsys, search) == (0, "")
    assert (search / "trials.csv").read_bytes() == (searched / "trials.csv").read_bytes()


def test_defaults_without_a_number_win_nothing(monkeypatch, capsys, tmp_path):
    """One of their two values is nan: so is no median, and no best value."""
    arguments = [*FEW, "2", "--seeds", "2", "--out", str(tmp_path)]
    assert tune(monkeypatch, *arguments) == 0
    path = tmp_path / "fedavg" / "trial000" / "seed1000000" / "summary.json"
    summary = json.loads(path.read_text())
    path.write_text(json.dumps(summary | {"final": dict.fromkeys(summary["final"], math.nan)}))
    assert tune(monkeypatch, *arguments) == 0
    table = trials(tmp_path)
    assert table["loss"].tolist()[0] == math.inf
    assert np.isfinite(table["loss"].tolist()[1:]).all()
    assert "nan" not in capsys.readouterr().out


def test_failures_of_the_machine(tmp_path):
    def chained(*errors):
        try:
            raise errors[0]
        except Exception as error:
            if errors[1:]:
                with pytest.raises(type(errors[1])) as found:
                    raise errors[1] from None
                return found.value
            return error

    assert of_machine(chained(OSError("full"), UserError("cannot be read")))
    assert of_machine(RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"))
    assert not of_machine(chained(ValueError("a"), UserError("b")))


@pytest.mark.parametrize("name", ["metrics.csv", "config.yaml", "run.json", "checkpoint.safetensors"])
def test_a_damaged_run_is_one_line(name, monkeypatch, capsys, searched, search):
    """It names the file or the folder; without the folder the run is done again."""
    run = next((search / "fedavg").glob("trial*[1-9]")) / "seed1000000"  # of the best trial
    (run / name).write_bytes((run / name).read_bytes()[:-20] + b"\n")
    code, err = again(monkeypatch, capsys, search)
    assert (code, err.count("\n")) == (2, 1)
    assert str(run.parent) in err
    assert "delete" in err
    shutil.rmtree(run)
    assert again(monkeypatch, capsys, search) == (0, "")
    assert (search / "trials.csv").read_bytes() == (searched / "trials.csv").read_bytes()


def test_more_trials_go_on_and_fewer_are_refused(monkeypatch, capsys, searched, search):
    before = {path: path.stat().st_mtime_ns for path in search.rglob("metrics.csv")}
    assert again(monkeypatch, capsys, search, "3")[0] == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before
    pd.testing.assert_frame_equal(trials(search).iloc[:3], trials(searched))
    code, err = again(monkeypatch, capsys, search)
    assert code == 2
    assert "search" in err


def test_one_method_named_twice_is_one_search(monkeypatch, capsys, searched, search):
    capsys.readouterr()
    assert tune(monkeypatch, "algo=fedavg,fedavg", *FEW[1:], "2", "--out", str(search)) == 0
    assert trials(search).equals(trials(searched))


@pytest.mark.parametrize("kind", ["folder", "fifo", "file"])
def test_nothing_in_a_search_leads_elsewhere(kind, monkeypatch, capsys, search, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    place = search / "fedavg" / "trial003" if kind == "folder" else search / "trials.csv"
    place.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(place)
    else:
        place.symlink_to(tmp_path / "elsewhere" if kind == "folder" else "/dev/zero")
    code, err = again(monkeypatch, capsys, search, "3")
    assert code == 2
    assert err.startswith(
        f"fedopt: {place}: is a symbolic link or not a regular file, so that writing could change another file; "
    )
    assert not [*(tmp_path / "elsewhere").iterdir()]


def test_defaults_that_changed_since_are_refused_and_code_is_named(monkeypatch, capsys, tmp_path):
    """As by a sweep."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my" / "algo").mkdir(parents=True)
    code = "from fedopt.algorithms.fedavg import FedAvg\n\n\nclass Mine(FedAvg):\n    pass\n"
    (tmp_path / "mine_of_test.py").write_text(code)
    config = "_target_: mine_of_test.Mine\neta: 0.1 # tuned\ngamma: 1\nmomentum: 0\ntau: 1\nB: null\nmu: 0\n"
    (tmp_path / "my" / "algo" / "mine.yaml").write_text(config)
    words = ["algo=mine", *FEW[1:], "1", "--config-dir", "my", "--out", "out"]
    assert tune(monkeypatch, *words) == 0
    (tmp_path / "mine_of_test.py").write_text(f"{code}\n# another\n")
    capsys.readouterr()
    assert tune(monkeypatch, *words) == 0
    assert "mine_of_test changed since this run started" in capsys.readouterr().err
    (tmp_path / "my" / "algo" / "mine.yaml").write_text(config.replace("momentum: 0", "momentum: 0.5"))
    assert tune(monkeypatch, *words) == 2
    assert "has algo.momentum=0, not 0.5" in capsys.readouterr().err


@pytest.mark.slow
def test_killed_and_gone_on_is_the_same_search(tmp_path):
    arguments = [*PROGRAM, *WORDS, *SMALL, "--jobs", "2", "--out"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([*arguments, str(tmp_path / "a")], check=True, env=environment, capture_output=True)
    rng, kills = np.random.default_rng(), 0
    while True:
        process = subprocess.Popen([*arguments, str(tmp_path / "b")], env=environment, stdout=-3, stderr=-3,
                                   start_new_session=True)  # fmt: skip
        try:
            assert process.wait(timeout=rng.uniform(2, 12) if kills < 5 else None) == 0
            break
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            kills += 1
            time.sleep(1)  # its runs see that it is gone
    pd.testing.assert_frame_equal(trials(tmp_path / "a"), trials(tmp_path / "b"))


@pytest.mark.slow
def test_trials_in_a_queue_are_those_of_this_machine(monkeypatch, tmp_path):
    pytest.importorskip("submitit")
    few = ["--budget", "rounds=3", "--trials", "2", "--seeds", "1"]
    assert tune(monkeypatch, *WORDS, *few, "--out", str(tmp_path / "a")) == 0
    queued = [*PROGRAM, *WORDS, *few, "--out", str(tmp_path / "b"), "--launcher", "slurm"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "FEDOPT_QUEUE": str(tmp_path / "queue")}
    environment |= cluster.install(tmp_path / "slurm")
    subprocess.run(queued, check=True, env=environment, capture_output=True)
    pd.testing.assert_frame_equal(trials(tmp_path / "a"), trials(tmp_path / "b"))


def test_a_method_that_always_diverges_is_one_line(monkeypatch, capsys, tmp_path):
    words = ["algo=fedavg", "problem=quadratic_minimisation", "algo.eta=log(1e6,1e9)", "preset=none"]
    default = "partitioner.clients=2"
    words += [default, "algo.tau=1", "eval.diverged=1e-9", "eval.points=3"]
    assert tune(monkeypatch, *words, *SMALL, "--out", str(tmp_path)) == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "none of" in line]
    assert "fedavg on quadratic_minimisation: none of 10 trials has a value (diverged" in line


def test_every_method_gets_the_same_trials(monkeypatch, tmp_path):
    words = ["algo=fedavg,scaffold", "problem=quadratic_minimisation", "--sampler", "sobol"]
    assert tune(monkeypatch, *words, *SMALL, "--out", str(tmp_path)) == 0
    table = trials(tmp_path)
    assert table.groupby("algo").size().to_dict() == {"fedavg": 10, "scaffold": 10}
    steps = [table.loc[table["algo"] == algo, "algo.eta"].to_numpy() for algo in ("fedavg", "scaffold")]
    assert len(np.unique(np.round(steps[0][1:] / steps[1][1:], 2))) == 1


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["algo=fedavg", "problem=quadratic_minimisation", "seed=3"], "seed=3"),
        (["algo=fedavg,scaffold", "problem=quadratic_minimisation"], "--budget"),
        (["algo=fedavg"], "algo=NAME,... and one problem=NAME"),
        (["algo=fedavg", "problem=quadratic_minimisation", "algo.nu=log(1,2)"], "algo.nu"),
        (["algo=fedavg", "problem=quadratic_minimisation", "--metric", "distanc"], "did you mean distance"),
        (["algo=fedavg", "problem=quadratic_minimisation", "--sampler", "cmaes"], "--sampler"),
        (["algo=fedavg", "problem=quadratic_minimisation", "algo.eta=log(1,0)"], "algo.eta=log(1,0)"),
        (
            ["algo=fedavg", "problem=quadratic_minimisation", "--budget", "rounds", "10"],
            "--budget rounds: must be KEY=VALUE",
        ),
        (["algo=fedavg", "problem=quadratic_minimisation", "algo.etta=log(1,2)"], "did you mean algo.eta?"),
        (["algo=fedavg", "problem=quadratic_minimisation", "eta=log(1,2)"], "did you mean algo.eta?"),
        (["algo=fedavg", "problem=quadratic_minimisation", "algo.eta=log(0.1,inf)"], "both ends must be finite"),
        (
            ["algo=fedavg", "problem=quadratic_minimisation", "algo.eta=loguniform(0.1,1)"],
            "there is no range loguniform; there are log(LOW,HIGH)",
        ),
        (["fedavg", "quadratic_minimisation"], "fedavg: write algo=fedavg"),
        (["algo=fedmsa", "problem=hierarchical"], "do not fit"),
        (
            ["algo=fedavg", "problem=quadratic_minimisation", "algo.eta=1", "algo.gamma=1", "algo.tau=1"],
            "the command sets every key that is tuned, algo.eta, algo.gamma, algo.tau; leave one out",
        ),
        (
            ["algo=mine", "problem=quadratic_minimisation", "--config-dir", "conf"],
            "mine: no comment in conf/algo/mine.yaml says what a key is tuned as; write one, such as "
            "'eta: 0.1 # step size; tuned as a step size'",
        ),
        (
            ["algo=still", "problem=quadratic_minimisation", "--config-dir", "conf"],
            "algo.eta=0: step sizes are searched",
        ),
    ],
)
def test_mistakes(monkeypatch, capsys, tmp_path, words, line):
    monkeypatch.chdir(tmp_path)
    Path("conf/algo").mkdir(parents=True)
    head = "_target_: fedopt.algorithms.fedavg.FedAvg\ngamma: 1\nmomentum: 0\ntau: 1\nB: null\nmu: 0\n"
    Path("conf/algo/mine.yaml").write_text(f"{head}eta: 0.2 # how far\n")
    Path("conf/algo/still.yaml").write_text(f"{head}eta: 0 # how far; tuned as a step size\n")
    assert tune(monkeypatch, *words, "--out", str(tmp_path / "out")) == 2
    err = capsys.readouterr().err
    assert line in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out" / "trials.csv").exists()


@pytest.mark.full
def test_a_folder_has_one_search(monkeypatch, capsys, tmp_path):
    assert tune(monkeypatch, *WORDS, *SMALL, "--out", str(tmp_path)) == 0
    capsys.readouterr()
    assert tune(monkeypatch, *WORDS[:3], *SMALL, "--out", str(tmp_path)) == 2
    assert "holds a search of fedavg with other ranges" in (err := capsys.readouterr().err)
    assert "algo.tau=choice(1,5)" in err  # which


def test_from_python(tmp_path):
    tuning = fedopt.tune(" ".join(WORDS), output_dir=tmp_path, budget="rounds=4", trials=3, seeds=2, sampler="random")
    assert len(tuning.trials) == 4
    assert [*tuning.best] == ["fedavg"]
    words = dict(word.split("=") for word in tuning.best["fedavg"])
    assert {*words} in ({"algo.eta", "algo.tau"}, set())
    runs = [Path(folder).name for folder in tmp_path.glob("fedavg/*/*")]
    assert {*runs} == {f"seed{FIRST_SEED}", f"seed{FIRST_SEED + 1}"}
    curves = pd.read_csv(tmp_path / "fedavg" / "curves.csv.gz")
    assert {*zip(curves["trial"], curves["seed"], strict=True)} == {
        (trial, seed) for trial in (1, 2, 3) for seed in (FIRST_SEED, FIRST_SEED + 1)
    }
