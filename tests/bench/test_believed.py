"""The pages' numbers, recomputed from the table of runs by code that shares nothing with fedopt.bench.rank."""

import itertools
import math
import re

import numpy as np
import pandas as pd
import pytest
from support.command import ROOT

from fedopt.bench.pages import compared, write_pages
from fedopt.bench.release import read_table
from fedopt.bench.suite import LIMITS, VERSION, Claim, Entries, Task, tasks

RELEASE = max((ROOT / "docs" / "bench").glob("*/results.parquet"))
COLUMNS = {  # whose sum is what a run has spent, and the limit of the budget
    "comm_rounds": (["comm_rounds"], "comm_rounds"),
    "bytes": (["bytes_up", "bytes_down"], "bytes"),
    "client_visits": (["client_visits"], "client_visits"),
    "calls": (["grad", "hvp", "jvp"], "example_calls"),
    "calls_2": (["grad", "hvp", "hvp", "jvp", "jvp"], "example_calls"),
}
SHORT = dict(zip(COLUMNS, ("rounds", "bytes", "visits", "calls", "calls, products twice"), strict=True))
POINTS, NEAR = 12, 1e-6


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


def worth(costs):
    """1 for a cost of 1 % of the budget, 0 for all of it or a miss, linear in the logarithm."""
    return -np.log10(np.clip(costs, 0.01, 1)) / 2


def judged(costs, ends, size):
    """What a search of so many points finds: the score of each target, and whether it is reached, [2, targets].

    costs: [points, seeds, targets], the theory point first. ends: the last values, higher is better, [points, seeds].
    """
    n, seeds, parts = len(costs) - 1, range(costs.shape[1]), []
    values = np.stack([worth(costs), np.isfinite(costs)], axis=2)  # [points, seeds, 2, targets]
    scores = values[:, :, 0].mean(axis=2).round(9)  # equal products of costs give equal scores
    for seed in seeds:
        order = sorted(range(n + 1), key=lambda p: (-scores[p, seed], -ends[p, seed], p))
        others = [other for other in seeds if other != seed] or [seed]
        tried, total, found = size - 1, math.comb(n, size - 1), np.zeros(values.shape[2:])
        worse = n  # sampled points that are not better than those looked at so far
        for point in order:
            if point == 0:  # the theory point is in every search
                found += math.comb(worse, tried) / total * values[0, others].mean(axis=0)
                break
            worse -= 1
            found += math.comb(worse, tried - 1) / total * values[point, others].mean(axis=0) if tried else 0
        parts.append(found)
    return np.mean(parts, axis=0)


def reached(costs, size):
    """The share of searches with a point that reaches each target, on the seed of the search, [targets]."""
    n, good = len(costs) - 1, np.isfinite(costs)
    lost = np.vectorize(lambda number: math.comb(n - number, size - 1) / math.comb(n, size - 1))(good[1:].sum(axis=0))
    return np.where(good[0], 1, 1 - lost).mean(axis=0)


def check_methods(task, table, tables, near):
    """Curves, reach rates, places and ratios of a task."""
    ends = table[table["kind"] == "pool"].sort_values("step").groupby(["method", "point", "seed"], observed=True)
    ends = ends["value"].agg(lambda of: of.iloc[-1]) * (1 if task.targets[-1] > task.targets[0] else -1)
    of_task = {name: rows[rows["task"] == task.name] for name, rows in tables.items() if name != "claims"}
    for currency, found in hits_of(task, table).items():
        on = {name: rows[rows["currency"] == currency] for name, rows in of_task.items()}
        expected = {}
        for method, own in found.xs("pool", level="kind").groupby(level="method", observed=True):
            runs = own.query("point > 0").droplevel("method").sort_index()
            points = runs.index.unique("point")
            costs = runs.to_numpy().reshape(len(points), -1, len(task.targets))
            last = ends[method].loc[points].fillna(-math.inf).to_numpy().reshape(costs.shape[:2])
            curve = on["curves"][on["curves"]["method"] == method].set_index("points")["score"]
            for size in (k for k in (1, 4, POINTS) if k <= len(costs)):
                assert curve[size] == pytest.approx(judged(costs, last, size)[0].mean(), abs=near), (method, size)
            shares = on["reach"][on["reach"]["method"] == method].set_index("target")["reach"]
            assert shares[task.targets].tolist() == pytest.approx(reached(costs, POINTS), abs=near)
            expected[method] = judged(costs, last, POINTS)
            (place,) = on["places"][on["places"]["method"] == method].to_dict("records")
            assert place["score"] == pytest.approx(expected[method][0].mean(), abs=near)
            scores = worth(costs).mean(axis=(1, 2))
            assert scores[points.get_loc(place["best"])] == pytest.approx(scores.max(), abs=NEAR)
        assert on["places"]["score"].is_monotonic_decreasing
        for row in on["pairs"].to_dict("records"):
            a, b = expected[row["one"]], expected[row["other"]]
            counted = (1 - (1 - a[1]) * (1 - b[1])).sum()
            if np.isfinite(row["ratio"]):
                assert math.log(row["ratio"]) == pytest.approx((b - a)[0].sum() * math.log(100) / counted, abs=near)
            assert [row["misses_one"], row["misses_other"]] == pytest.approx(
                [1 - a[1].mean(), 1 - b[1].mean()], abs=near
            )
            assert row["verdict"] == verdict(row["low"], row["high"]) or np.isnan(row["ratio"])


def verdict(low, high):
    """What an interval of a ratio says."""
    apart = "before" if high < 0.8 else "behind" if low > 1.25 else ""
    return apart or ("alike" if low > 0.8 and high < 1.25 else "not resolved")


def check_claims(tables):
    """Counts over tasks, from the claims by task, and verdicts from the intervals."""
    for row in tables["claims"].to_dict("records"):
        every = tables["claims_by_task"]
        of = every[(every["key"] == row["key"]) & (every["currency"] == row["currency"])]
        assert row["tasks"] == len(of)
        assert row["better"] == (of["effect"] < 0).sum()
        assert [row[name] for name in ("before", "behind", "alike")] == [
            (of["verdict"] == name).sum() for name in ("before", "behind", "alike")
        ]
        assert row["verdict"] == verdict(row["low"], row["high"]) or np.isnan(row["ratio"])
        if len(of) == 1 and np.isfinite(row["ratio"]):
            assert row["ratio"] == pytest.approx(of["ratio"].item())


def check_index(text, chosen, tables, entries):
    """The methods that may be best are those that no ranked method is before, and the sentences have the claims' numbers."""
    for task in chosen:
        (line,) = re.findall(rf"(?m)^\| \[[^]]*\]\({task.name}\.md\) \| (.*) \|$", text)
        for currency, cell in zip(COLUMNS, line.split(" | "), strict=True):
            of = [tables[name] for name in ("pairs", "places")]
            pairs, places = (rows[(rows["task"] == task.name) & (rows["currency"] == currency)] for rows in of)
            ranked = [name for name in places["method"] if name not in entries or entries[name].form != "control"]
            lost = {*pairs.loc[(pairs["verdict"] == "before") & pairs["one"].isin(ranked), "other"]}
            good = [name for name in places.loc[places["score"] > 0, "method"] if name in ranked and name not in lost]
            shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", cell).replace("\\", "").split(", ")
            more = [f"{len(good) - 4} more"] if len(good) > 4 else []
            assert shown == [*good[:4], *more] or (shown == ["none"] and not good), (task.name, currency)
    claims = tables["claims"][tables["claims"]["tasks"] > 0]
    sentences = re.findall(r"(?m)^\* On .*", text)
    assert len(sentences) == min(5, len(claims.drop_duplicates(["one", "other"])))
    for sentence in sentences:
        assert any(
            f"{row['one']} " in sentence
            and f"{row['other']} " in sentence
            and f"{100 * row['seen']:.0f} of 100" in sentence
            and (np.isnan(row["ratio"]) or f"needs {row['ratio']:.2g} times" in sentence)
            and ("not resolved" in sentence) == (row["verdict"] == "not resolved")
            for row in claims.to_dict("records")
        ), sentence


def check(chosen, table, place, entries, near=NEAR):
    """Compare the files in a folder with what the table says."""
    names = ("curves", "reach", "places", "pairs", "claims", "claims_by_task")
    tables = {name: pd.read_csv(place / f"{name}.csv") for name in names}
    for task in chosen:
        of_task = table[(table["task"] == task.name) & (table["kind"] != "null")]
        check_methods(task, of_task.astype({"method": str, "kind": str}), tables, near)
    check_claims(tables)
    check_index((place / "index.md").read_text(encoding="utf-8"), chosen, tables, entries)


def made_up():
    """Two tasks and four entries, two of them one method. Some runs diverge."""
    told = {"board": "made up", "title": "A game", "words": [], "metric": "m", "smoothness": {"Lx": 1.0, "Ly": 1.0}}
    told |= {"budget": dict.fromkeys(LIMITS, 40.0), "twins": [["quick", "again"]]}
    told |= {"entries": ["quick", "again", "other", "slow"]}
    chosen = [
        Task(**told | {"name": "falling", "relative": True, "targets": [0.5, 0.1, 0.02]}),
        Task(**told | {"name": "rising", "targets": [50.0, 80.0, 95.0], "entries": ["quick", "slow"], "twins": []}),
    ]
    rng, parts, step = np.random.default_rng(5), [], np.array([0, 2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43])
    # Prime costs: no two points have the same product of costs, whose order would depend on rounding
    methods = {"quick": 0.2, "again": 0.2, "other": 0.1, "slow": 0.003}
    for task, (method, rate) in itertools.product(chosen, methods.items()):
        rates = rate * np.exp(rng.normal(0, 0.5, 50))
        runs = [("pool", p, 10**6 + s) for p in range(50) for s in range(2)]
        runs += [("report", p, s) for p in range(5) for s in range(3)]
        found = pd.DataFrame(runs, columns=["kind", "point", "seed"]).merge(pd.Series(step, name="step"), how="cross")
        left = np.exp(-rates[found["point"]] * found["step"] + rng.normal(0, 0.1, len(found)))
        left = left.mask((found["point"] % 7 == 3) & (found["step"] > 30))
        value = 7 * left if task.relative else 100 * (1 - left)
        parts.append(found.assign(task=task.name, task_digest="", method=method, value=value))
    table = pd.concat(parts, ignore_index=True).query("task == 'falling' or method in ('quick', 'slow')")
    spent = dict.fromkeys(("comm_rounds", "client_visits", "bytes_up", "grad", "hvp"), table["step"])
    about = {"bench_version": VERSION, "status": "", "words": "", "commit": "", "torch": "", "cpu": ""}
    return chosen, table.assign(**spent, bytes_down=0, jvp=0, **about)


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The pages of a made-up table, with its tasks, rows and entries."""
    (chosen, table), entries, place = made_up(), Entries(), tmp_path_factory.mktemp("pages")
    pairs = [("quick", "slow"), ("slow", "quick"), ("quick", "other"), ("quick", "again")]
    entries.claims = [Claim(f"k{n}", "is cheaper", *pair, ["comm_rounds", "calls_2"]) for n, pair in enumerate(pairs)]
    write_pages(table, chosen, entries, place)
    return place, chosen, table, entries


def test_pages_of_a_made_up_table(pages):
    place, chosen, table, entries = pages
    check(chosen, table, place, entries)
    assert {*pd.read_csv(place / "claims_by_task.csv")["verdict"]} >= {"before", "behind"}
    (twins,) = pd.read_csv(place / "nulls.csv").query("currency == 'comm_rounds'").to_dict("records")
    assert {twins["one"], twins["other"]} == {"quick", "again"}
    assert twins["verdict"] != "before"


def test_the_interactive_file_has_menus_and_needs_no_network(pages, browser):
    """Menus list what exists for the values of those before; a press on a method hides it."""
    tab, fetched = browser.new_page(viewport={"width": 390, "height": 900}), []
    tab.on(
        "request", lambda request: request.url.startswith(("file:", "data:", "blob:")) or fetched.append(request.url)
    )
    tab.goto((pages[0] / "interactive.html").as_uri())
    tab.wait_for_selector("section:first-of-type .legend button")
    task, target = (tab.locator(f"section:first-of-type [name={name}]") for name in ("task", "target"))
    assert task.locator("option").all_inner_texts() == ["falling: A game", "rising: A game"]
    shown = "section:first-of-type .legend button:not([hidden])"
    assert {text.split()[-1] for text in tab.locator(shown).all_inner_texts()} == {"quick", "again", "other", "slow"}
    task.select_option("rising: A game")
    target.select_option("80")
    assert {text.split()[-1] for text in tab.locator(shown).all_inner_texts()} == {"quick", "slow"}
    drawn = "document.querySelector('.chart').data.filter(line => line.name).map(line => line.name)"
    before = tab.evaluate(drawn)
    tab.locator(shown).first.click()
    assert len(tab.evaluate(drawn)) == len(before) - 1
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    assert fetched == []
    tab.close()


@pytest.mark.full
def test_pages_of_the_released_table(tmp_path):
    table, entries = read_table(RELEASE), Entries()
    chosen = [task for task in tasks([]) if task.name in set(table["task"])]
    write_pages(table, chosen, entries, tmp_path)
    check(chosen, compared(table, chosen, entries), tmp_path, entries)
    for page in tmp_path.glob("*.md"):
        text = page.read_text(encoding="utf-8")
        assert re.findall(r"\b[0-9a-f]{12,40}\b|Linux-\S+|\(R\)", text) == [], page  # no machine, no commit
    kept = pd.read_csv(ROOT / "docs" / "results" / "benchmark.csv", keep_default_na=False)
    places = pd.read_csv(tmp_path / "places.csv", keep_default_na=False).query("may_be_best != ''")
    for (task, cost), of in kept.groupby(["task", "cost"]):
        (currency,) = (name for name, short in SHORT.items() if short == cost)
        ranked = places[(places["task"] == task) & (places["currency"] == currency)]
        assert of["method"].tolist() == ranked["method"].tolist(), "scripts/choosing --benchmark writes it"
        assert of["behind"].tolist() == ranked["behind"].tolist()
    learnt, _, _ = (ROOT / "docs" / "benchmark.md").read_text(encoding="utf-8").partition("### Withdrawn")
    claims = pd.read_csv(tmp_path / "claims.csv").set_index("key")
    for key in ("e", "o", "o0", "g"):
        ratio, low, high = (f"{claims.loc[key, name]:.2g}" for name in ("ratio", "low", "high"))
        assert re.search(rf"\b{ratio} (times (the [a-z ]+)?)?\({low} to {high}[;)]", learnt), key


def test_withdrawn_conclusions_are_named_with_their_reasons_and_drawn_nowhere():
    learnt = (ROOT / "docs" / "benchmark.md").read_text().partition("## What was learnt")[2].partition("## Limits")[0]
    conclusions, _, withdrawn = learnt.partition("### Withdrawn")
    for sentence in ("in 90 %", "null controls", "Drift decides", "sub-loops a bilevel"):
        assert sentence not in conclusions
    for reason in ("not in its paper", "which are in its paper", ".94", "pools of 24", "divergence"):
        assert reason in withdrawn
    assert len(re.findall(r'(?m)^\| ("|Both)', withdrawn)) == 5
