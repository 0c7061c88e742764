"""The pages' numbers, recomputed from the table of runs by code that shares nothing with fedopt.bench.rank."""

import itertools
import math
import re
import zlib

import numpy as np
import pandas as pd
import pytest
from support.command import ROOT

from fedopt.bench.pages import _in_order, write_pages
from fedopt.bench.release import read_table
from fedopt.bench.suite import LIMITS, VERSION, Claim, Entries, Task, tasks

RELEASE = ROOT / "docs" / "bench" / VERSION
COLUMNS = {  # whose sum is what a run has spent, and the limit of the budget
    "comm_rounds": (["comm_rounds"], "comm_rounds"),
    "bytes": (["bytes_up", "bytes_down"], "bytes"),
    "client_visits": (["client_visits"], "client_visits"),
    "calls": (["grad", "hvp", "jvp"], "example_calls"),
    "calls_2": (["grad", "hvp", "hvp", "jvp", "jvp"], "example_calls"),
}
SHORT = dict(zip(COLUMNS, ("rounds", "bytes", "visits", "calls", "calls, products twice"), strict=True))
DRAWS, POINTS, SURE = 4000, 12, 0.05
FAR = 5  # standard errors of the difference of two sets of draws


def hits_of(task, table):
    """currency -> the shares of the budget spent at the first of two rows that reach a target, [runs, targets]."""
    keys = ["method", "kind", "point", "seed"]
    table = table.sort_values([*keys, "step"], ignore_index=True)
    run = table.groupby(keys, observed=True).ngroup()
    value = table["value"] / (table.groupby(run)["value"].transform("first") if task.relative else 1.0)
    index = pd.MultiIndex.from_frame(table.groupby(run)[keys].first())
    found = {currency: pd.DataFrame(math.inf, index, range(len(task.targets))) for currency in COLUMNS}
    for n, target in enumerate(task.targets):
        good = (value >= target) if task.targets[-1] > task.targets[0] else (value <= target)
        first = table[good & good.shift(-1, fill_value=False) & (run == run.shift(-1))].groupby(run).head(1)
        for currency, (columns, limit) in COLUMNS.items():
            cost = sum(first[name].astype(float) for name in columns) / task.budget[limit]
            found[currency].iloc[run[first.index], n] = cost.where(cost <= 1, math.inf)
    return found


def area(costs):
    """The area under the curve of goals reached, over log budget from 1 % to 100 %; goals are the last axis."""
    at = np.sort(np.log10(np.clip(costs, 0.01, 1)) / 2, axis=-1)
    widths = np.diff(at, axis=-1, append=0)
    return (widths * np.arange(1, at.shape[-1] + 1) / at.shape[-1]).sum(axis=-1)


def searched(task, table, currency, found):
    """method -> what the choices of drawn searches cost on drawn seeds, [draws, seeds, targets]. found: from `hits_of`."""
    drawn = {}
    seeds = max(table.loc[table["kind"] == "report", "seed"].nunique(), 1)
    at = np.random.default_rng(11).integers(seeds, size=(DRAWS, seeds))  # the same of all methods
    for method, own in found.groupby(level="method"):
        rng = np.random.default_rng(zlib.crc32(f"{task.name} {method} {currency}".encode()))
        pool = own.xs("pool", level="kind").query("point > 0")
        last = table[(table["method"] == method) & (table["kind"] == "pool")].sort_values("step")
        last = last.groupby(["point", "seed"])["value"].last().groupby("point").median()
        sign = -1 if task.targets[-1] > task.targets[0] else 1
        score = pd.Series(area(pool.to_numpy()), pool.index).groupby("point").mean().round(12)
        order = pd.DataFrame({"score": -score, "last": (sign * last).fillna(math.inf)}).loc[score.index]
        place = order.sort_values(["score", "last"], kind="stable").index
        rank = pd.Series(range(len(place)), place).loc[score.index].to_numpy()
        points = rng.random((DRAWS, len(rank))).argsort(axis=1)[:, :POINTS]
        choice = place.to_numpy()[rank[points].min(axis=1)]
        runs = {kind: [*rows.groupby("point")] for kind, rows in own.groupby(level="kind")}
        costs = {p: rows.to_numpy() for kind in ("pool", "report") for p, rows in runs.get(kind, [])}
        costs = np.array([costs[p][np.arange(seeds) % len(costs[p])] for p in range(1, len(rank) + 1)])
        drawn[method] = costs[choice[:, None] - 1, at]
    return drawn


def near(value, draws, q=None):
    """Whether a mean of other draws, or a quantile, agrees with these draws."""
    if q is None:
        return abs(value - draws.mean()) <= FAR * math.sqrt(2 / DRAWS) * draws.std() + 1e-6
    off = FAR * math.sqrt(2 * q * (1 - q) / DRAWS)
    low, high = np.quantile(draws, [max(q - off, 0), min(q + off, 1)])
    return low - 1e-6 <= value <= high + 1e-6


def check_pairs(rows, drawn, pools):
    """The ratios, misses and p of claims or null controls, by one task and currency."""
    for row in rows.to_dict("records"):
        where = row["task"], row["currency"], row["one"], row["other"]
        a, b = drawn[row["one"]], drawn[row["other"]]
        lost = [np.isinf(costs).all(axis=1) for costs in (a, b)]
        counted = ~(lost[0] & lost[1])[:, None, :] & np.ones(a.shape, bool)
        logs = np.log(np.minimum(a, 1) / np.minimum(b, 1))
        ratio = (logs * counted).sum(axis=(1, 2)) / np.maximum(counted.sum(axis=(1, 2)), 1)
        assert near(math.log(row["ratio"]), ratio), where
        assert near(math.log(row["low"]), ratio, 0.05), where
        assert near(math.log(row["high"]), ratio, 0.95), where
        both = np.isfinite(a) & np.isfinite(b)
        reached = both.any(axis=(1, 2))
        if reached.sum() > 50:
            common = (logs * both).sum(axis=(1, 2))[reached] / both.sum(axis=(1, 2))[reached]
            off = common.std() * FAR * math.sqrt(2 / reached.sum())
            assert abs(math.log(row["common"]) - common.mean()) <= off + 1e-6, where
        for text, costs in zip(row["misses"].split(", "), (a, b), strict=True):
            assert abs(float(text[:-1]) / 100 - np.isinf(costs).mean()) < 0.05, where
        assert abs(row["cheaper"] - (ratio < 0).mean()) <= FAR * math.sqrt(0.5 / DRAWS), where
        p = permuted(*(pools[row[name]] for name in ("one", "other")))
        assert abs(row["p"] - p) <= FAR * math.sqrt(max(p * (1 - p), 1 / DRAWS) / 1000), where


def best_of_twelve(points):
    """The expected score of the best of twelve points by one seed, judged by the other. points: [pools, n, 2]."""
    n = points.shape[1]
    chance = [math.comb(n - 1 - r, POINTS - 1) / math.comb(n, POINTS) for r in range(n)]
    parts = []
    for chooses, judges in ((0, 1), (1, 0)):
        order = np.argsort(points[..., chooses] + 1e-9 * points[..., judges], axis=1)[
            :, ::-1
        ]  # the better one of equals
        parts.append((np.take_along_axis(points[..., judges], order, axis=1) * chance).sum(axis=1))
    return (parts[0] + parts[1]) / 2


def permuted(one, other):
    """The share of random divisions of all points in two pools with searches at least as far apart as these."""
    rng, points = np.random.default_rng(3), np.concatenate([one, other])
    mixed = np.array([points[rng.permutation(len(points))] for _ in range(2000)])
    apart = abs(best_of_twelve(mixed[:, : len(one)]) - best_of_twelve(mixed[:, len(one) :]))
    return (apart >= abs(best_of_twelve(one[None]) - best_of_twelve(other[None])) - 1e-9).mean()


def check_answers(rows, floors):
    """Holm's correction within a currency, and the answers that follow. floors: (task, currency) -> of the null controls."""
    for currency, family in rows.groupby("currency"):
        largest = 0.0
        for n, row in enumerate(family.sort_values("p").to_dict("records")):
            largest = max(largest, min(1, row["p"] * (len(family) - n)))
            assert row["p (Holm)"] >= largest - 1e-6  # more may be registered than are shown
            told = "held" if row["ratio"] < 1 else "did not hold"
            sure = row["p (Holm)"] < SURE and abs(math.log(row["ratio"])) > floors.get((row["task"], currency), 0)
            assert row["answer"] == (told if sure else "not told apart")


def check_first(text, scores):
    """Who is first on a task by a currency. scores: [draws, methods]."""
    scores = scores.round(12)
    best = scores.eq(scores.max(axis=1), axis=0)
    share = best.div(best.sum(axis=1), axis=0).mean()
    if text == "none":
        assert scores.to_numpy().max() == 0
        return
    name, _, percent = text.removeprefix("no order (").rstrip("%)").rpartition(" in ")
    assert abs(share[name] - float(percent) / 100) < 0.06
    assert share.max() - share[name] < 0.06
    assert percent == "90" or text.startswith("no order") == (float(percent) < 90)


def check_board(rows, areas):
    """The scores of a board by a currency. areas: for each of its tasks, method -> the scores of searches."""
    for row in rows.to_dict("records"):
        own = [of[row["method"]] for of in areas if row["method"] in of]
        assert len(own) == row["tasks"]
        low, high = (np.mean([np.quantile(of, q) for of in own]) for q in (0.44, 0.56))
        assert low - 1e-6 <= row["score"] <= high + 1e-6, row["method"]
        if len(areas) == 1:
            assert near(row["low"], own[0], 0.05), row["method"]
            assert near(row["high"], own[0], 0.95), row["method"]
    ranked = rows.dropna(subset="rank")
    assert ranked["score"].is_monotonic_decreasing
    assert ranked["rank"].tolist() == [*range(1, len(ranked) + 1)]


def check(chosen, table, place, references):
    """Compare the CSV files in a folder with what the table says. references: entries that are never first."""
    pairs = [pd.read_csv(place / f"{name}.csv") for name in ("claims", "nulls")]
    firsts, areas = pd.read_csv(place / "firsts.csv").set_index("task"), {}
    for task in chosen:
        of_task = table[(table["task"] == task.name) & (table["kind"] != "twin")]
        of_task = of_task.astype({"method": str, "kind": str})
        for currency, found in hits_of(task, of_task).items():
            drawn = searched(task, of_task, currency, found)
            pools = {
                name: area(own.to_numpy()).reshape(-1, 2)
                for name, own in found.xs("pool", level="kind").query("point > 0").groupby(level="method")
            }
            for rows in pairs:
                check_pairs(rows[(rows["task"] == task.name) & (rows["currency"] == currency)], drawn, pools)
            areas[task.name, currency] = {method: area(costs).mean(axis=1) for method, costs in drawn.items()}
            absent = [*references, *(pair[1] for pair in task.null)]
            ranked = {name: of for name, of in areas[task.name, currency].items() if name not in absent}
            check_first(firsts.loc[task.name, SHORT[currency]], pd.DataFrame(ranked))
    for board, currency in itertools.product({task.board for task in chosen} - {"phase"}, COLUMNS):
        rows = pd.read_csv(place / f"scores_{board.replace(' ', '_')}_{currency}.csv")
        check_board(rows, [areas[task.name, currency] for task in chosen if task.board == board])
    claims, nulls = pairs
    check_answers(nulls, {})
    check_answers(claims, nulls.assign(size=abs(np.log(nulls["ratio"]))).groupby(["task", "currency"])["size"].max())


def made_up():
    """Two tasks and four entries, two of them one method. Some runs diverge, and points that are rarely chosen have no report."""
    pairs = [("quick", "slow"), ("slow", "quick"), ("quick", "other"), ("quick", "again")]
    claims = [Claim(f"is cheaper than {pair[1]}", *pair, ["comm_rounds", "calls_2"]) for pair in pairs]
    told = {"board": "made up", "title": "", "words": [], "metric": "m", "smoothness": {"Lx": 1.0, "Ly": 1.0}}
    told |= {"budget": dict.fromkeys(LIMITS, 40.0), "null": [["quick", "again"]]}
    told |= {"entries": ["quick", "again", "other", "slow"]}
    chosen = [
        Task(**told | {"name": "falling", "relative": True, "targets": [0.5, 0.1, 0.02], "claims": claims}),
        Task(**told | {"name": "rising", "targets": [50.0, 80.0, 95.0], "entries": ["quick", "slow"], "null": []}),
    ]
    rng, parts, step = np.random.default_rng(5), [], np.arange(0, 45, 3)
    of_seed = rng.normal(0, 0.4, 4)  # the same of all entries
    for task, (method, rate) in itertools.product(
        chosen, {"quick": 0.2, "again": 0.2, "other": 0.1, "slow": 0.003}.items()
    ):
        rates = rate * np.exp(rng.normal(0, 0.5, 25))
        runs = [("pool", p, 10**6 + s) for p in range(25) for s in range(2)]
        runs += [("report", p, s) for p in [0, *(np.argsort(-rates[1:])[:6] + 1)] for s in range(4)]
        found = pd.DataFrame(runs, columns=["kind", "point", "seed"]).merge(pd.Series(step, name="step"), how="cross")
        noise = np.exp(of_seed[found["seed"] % len(of_seed)])
        left = np.exp(-rates[found["point"]] * found["step"] * noise + rng.normal(0, 0.1, len(found)))
        left = left.mask((found["point"] % 7 == 3) & (found["step"] > 30))
        value = 7 * left if task.relative else 100 * (1 - left)
        parts.append(found.assign(task=task.name, task_digest="", method=method, value=value))
    table = pd.concat(parts, ignore_index=True).query("task == 'falling' or method in ('quick', 'slow')")
    spent = dict.fromkeys(("comm_rounds", "client_visits", "bytes_up", "grad", "hvp"), table["step"])
    return chosen, table.assign(
        **spent, bytes_down=table["step"] % 2, jvp=0, status="", words="", commit="", torch="", cpu=""
    )


def test_pages_of_a_made_up_table(tmp_path, monkeypatch):
    monkeypatch.setattr("fedopt.bench.pages._of_task", lambda *_: {})
    chosen, table = made_up()
    write_pages(table, chosen, Entries(), tmp_path)
    check(chosen, table, tmp_path, [])
    answers = pd.read_csv(tmp_path / "claims.csv")["answer"]
    assert {*answers} == {"held", "did not hold", "not told apart"}


def test_shares_are_rounded_down_as_on_paper():
    """0.29 of 100 is 29, and in floating point 28.999999999999996."""
    assert [_in_order("a", share) for share in (0.29, 0.8999, 1.0)] == ["a in 29%", "a in 89%", "a in 100%"]


def test_pages_of_a_reference_alone(tmp_path):
    """A task of which only a reference has results, as `enter` makes it: it is first nowhere, and its calls are shown."""
    table = read_table(RELEASE / "results.parquet")
    table = table[(table["task"] == "m1_k10_d5_n0") & (table["method"] == "gda")]
    write_pages(table, tasks(["m1_k10_d5_n0"]), Entries(), tmp_path)
    assert pd.read_csv(tmp_path / "firsts.csv").iloc[0, 1:].eq("none").all()
    assert "gda" in (tmp_path / "m1_k10_d5_n0.md").read_text()


@pytest.mark.full
def test_pages_of_the_released_table(tmp_path):
    table, entries = read_table(RELEASE / "results.parquet"), Entries()
    chosen = tasks(sorted(table["task"].unique()))
    references = [name for name in table["method"].unique() if name in entries and entries[name].reference]
    write_pages(table, chosen, entries, tmp_path)
    check(chosen, table, tmp_path, references)
    for page in tmp_path.glob("*.md"):
        text = page.read_text(encoding="utf-8")
        assert re.findall(r"\b[0-9a-f]{12,40}\b|Linux-\S+|\(R\)", text) == [], page  # no machine, no commit
        # No method is 'in 90 %' of searches where the limit of 90 % is missed
        assert re.findall(r"no order \([^)|]* in 90 ?%\)|in 90 ?%, no order", text) == [], page


def test_withdrawn_conclusions_are_named_with_their_reasons_and_drawn_nowhere():
    learnt = (
        (ROOT / "docs" / "benchmark.md").read_text().partition("## What was learnt")[2].partition("## Departures")[0]
    )
    conclusions, _, withdrawn = learnt.partition("### Withdrawn")
    for sentence in (
        "exchanges save bytes",
        "anchor",
        "in 90 %",
        "null controls",
        "Drift decides",
        "sub-loops a bilevel",
    ):
        assert sentence not in conclusions
    for reason in ("not in its paper", "which are in its paper", ".94", "pools of 24", "divergence"):
        assert reason in withdrawn
    assert len(re.findall(r'(?m)^\| ("|Both)', withdrawn)) == 5
