"""Claims: bounds and verdicts, whose they are, the settings of their runs, and methods made wrong, which they must catch."""

import math
import runpy
import shutil
from dataclasses import replace

import pandas as pd
import pytest
from support.command import ROOT
from support.experiments import seed_runs
from support.records import record

from fedopt.analysis.tables import plus_minus
from fedopt.config.build import build
from fedopt.errors import UserError
from fedopt.papers import claims, published


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
    assert claims.sentence(row) == "supported                    A beats B: 9.0 ± 1.7 (3 seeds), bound >= 6, paper 9"
    why = claims.Claim("A wins", "final('A') - final('B')", at_least=12, why="B is good.")
    assert claims.sentence(claims.judge(why, seeds)).endswith(", bound >= 12. B is good.")
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
    row = claims.judge(claims.Claim("huge", "9 ** (9 * final('A')) ** 9", at_least=1), {0: seeds[0]})
    assert (row["holds"], row["seeds"]) == (claims.UNMEASURED, 0)


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
    with pytest.raises(UserError, match="othre: the figure has no such line, did you mean other"):
        published.load("test/one", [tmp_path / "conf"])


SCRIPT = runpy.run_path(str(ROOT / "scripts" / "mutants"))


CONTROLS = {  # claims about a variant that the theorem does not admit, which a wrong method need not fail
    "noise, the same slope with the directions of a single client (0: no gain)",
    "tau = 1 to 15 with equal step sizes for all, fraction of diverged seeds",
    "unequal work without normalisation, log10 of the final distance",
    "slope of log squared distance against log H with a constant local step size, which Proposition 1 excludes",
    "LocalBSGM with the step size of LocalBSGVRM, the floor is at least eps = 0.3 (same mean)",
    "LocalBSGM, K = 1 with the step size of K = 8, the floor is at least eps = 1 (same mean)",
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
