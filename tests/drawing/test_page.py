"""The page that fedopt report writes, opened in Chromium, which clicks on it."""

import re
import shutil
import sys

import numpy as np
import pytest
import scipy.stats
from support.cases import few
from support.command import ROOT, code_of, fedopt
from support.records import FEDAVG, FEDMSA, record

import fedopt as public
from fedopt.analysis import groups
from fedopt.commands import report
from fedopt.data.datasets import Digits
from fedopt.drawing import page
from fedopt.papers.page import page as page_of
from fedopt.results import RunFolder

MARKUP = "<img src=x onerror=document.title='run'><b>bold</b>"


@pytest.fixture
def opened(browser):
    """Opens a page; nothing may go wrong in it, and nothing may be fetched."""
    wrong, contexts = [], []

    def open_(path, width=1280, **options):
        contexts.append(browser.new_context(viewport={"width": width, "height": 800}, **options))
        tab = contexts[-1].new_page()
        tab.set_default_timeout(60_000)
        tab.on("pageerror", lambda error: wrong.append(str(error)))
        tab.on("console", lambda line: wrong.append(line.text))
        allowed = ("file:", "data:", "blob:")
        tab.on("request", lambda request: request.url.startswith(allowed) or wrong.append(request.url))
        tab.goto(path.as_uri())
        tab.locator(".chart .main-svg").first.wait_for(state="attached")
        return tab

    yield open_
    for context in contexts:
        context.close()
    assert wrong == []


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Runs fedopt report; gives the exit code, the path of the page, stdout and stderr."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["fedopt-report", *map(str, words), "--out", str(tmp_path / "page.html")])
        return code_of(report.main), tmp_path / "page.html", *capsys.readouterr()

    return run


@pytest.fixture
def runs(tmp_path):
    """Two methods with three seeds each, [seed, row] of the accuracies by method."""
    rng, values = np.random.default_rng(0), {}
    for algo in (FEDAVG, FEDMSA):
        name = algo["_target_"].rpartition(".")[2]
        values[name] = rng.uniform(40, 60, (3, 5)).round(3)
        for seed, row in enumerate(values[name]):
            record(tmp_path / "runs" / f"{name}{seed}", row, seed, algo=algo)
    return values


def drawn(tab, section=1):
    """The lines of a chart: name -> x and y. section: 0 has the table of runs."""
    code = "([c]) => c.data.filter(t => t.hoverinfo !== 'skip').map(t => [t.name, [[...t.x], [...t.y]]])"
    return dict(tab.eval_on_selector_all(f"section:nth-of-type({section + 1}) .chart", code))


def point(tab, x, y):
    """Move the mouse to a place of the chart, in the numbers of its axes."""
    tab.locator(".chart").scroll_into_view_if_needed()
    code = """(c, [x, y]) => [c.getBoundingClientRect(), c._fullLayout.xaxis, c._fullLayout.yaxis].reduce(
        (box, axis, i) => [...[box].flat(), axis._offset + axis.l2p([x, y][i - 1])])"""
    box, *place = tab.eval_on_selector(".chart", code, [x, y])
    tab.mouse.move(box["x"] + place[0], box["y"] + place[1])
    tab.locator(".chart .hovertext").wait_for()


def cells(tab, head):
    """The texts of a column of the first table that is shown below a chart."""
    table = tab.locator("[data-y] table:visible").first
    heads = table.locator("th").all_inner_texts()
    return table.locator(f"tbody td:nth-child({heads.index(head) + 1})").all_inner_texts()


@pytest.mark.full
def test_hide_axes_and_metric(runs, command, opened, tmp_path):
    """The lines are the means over seeds; a line is hidden, x and y are chosen, axes become logarithmic."""
    code, path, out, _ = command(tmp_path / "runs")
    assert (code, out.split()[-1]) == (0, str(path))
    tab = opened(path)
    lines = drawn(tab)
    for name, values in runs.items():
        np.testing.assert_allclose(lines[name], [2 * np.arange(0, 50, 10), values.mean(0)], rtol=1e-5)
    point(tab, 40, lines["FedMSA"][1][2])
    assert "FedMSA" in tab.locator(".chart .hovertext").text_content()
    bands = tab.eval_on_selector(".chart", "c => c.data.filter(t => t.fill).map(t => [...t.y])")
    mean, std = runs["FedAvg"].mean(0), runs["FedAvg"].std(0, ddof=1)
    np.testing.assert_allclose(bands[0], [*(mean + std), *(mean - std)[::-1]], rtol=1e-5)
    tab.get_by_role("button", name="FedMSA").first.click()
    assert [*drawn(tab)] == ["FedAvg"]
    assert tab.get_by_role("button", name="FedMSA").first.get_attribute("aria-pressed") == "false"
    tab.select_option("[name=x]", "bytes")
    assert drawn(tab)["FedAvg"][0] == [0, 1500, 3000, 4500, 6000]
    tab.check("[name='log y']")
    tab.check("[name='log x']")
    tab.uncheck("[name=bands]")
    types = "c => [c.layout.xaxis.type, c.layout.yaxis.type, c.layout.xaxis.title.text, c.data.length]"
    assert tab.eval_on_selector(".chart", types) == ["log", "log", "communication (bytes)", 1]
    tab.select_option("[name=y]", "train_loss")
    assert drawn(tab)["FedAvg"][1] == [0.25] * 5
    assert (
        cells(tab, "final training loss") == ["0.2500 ± 0"] * 2 or cells(tab, "final training loss") == ["0.25 ± 0"] * 2
    )


@pytest.mark.full
def test_table_is_sorted(command, opened, tmp_path):
    """By numbers, whatever power of ten they have, down and up; what is missing comes last."""
    for k, last in enumerate([0.03, 2e-7, "inf", 150]):
        record(tmp_path / "runs" / str(k), [3, last], metric="distance", algo={**FEDMSA, "K": k})
    tab = opened(command(tmp_path / "runs")[1])
    head = "final distance to the solution"
    assert cells(tab, head) == ["0.03", "2e-07", "-", "150"]
    button = tab.get_by_role("button", name=head)
    button.click()
    assert cells(tab, "line") == ["algo.K=1", "algo.K=0", "algo.K=3", "algo.K=2"]
    assert button.locator("..").get_attribute("aria-sort") == "ascending"
    button.click()
    assert cells(tab, "line") == ["algo.K=3", "algo.K=0", "algo.K=1", "algo.K=2"]


@pytest.mark.full
def test_paired_tests(runs, command, opened, tmp_path):
    tab = opened(command(tmp_path / "runs")[1])
    p = scipy.stats.ttest_rel(*(values[:, -1] for values in runs.values())).pvalue
    shown = tab.locator("[data-y] table:visible").nth(1).locator("td:nth-child(4)").inner_text()
    assert float(shown) == pytest.approx(p, rel=0.01)


@pytest.mark.full
def test_markup_is_text(command, opened, tmp_path):
    record(tmp_path / "runs" / "a<b>", [1, 2], algo={**FEDMSA, "K": MARKUP}, metric="m<i>")
    record(tmp_path / "runs" / "c", [1, 2], metric="m<i>")
    tab = opened(command(tmp_path / "runs")[1])
    assert tab.title() == f"Results of {tmp_path / 'runs'}"
    assert tab.locator("img, b").count() == 0
    assert tab.locator(".legend button").all_inner_texts() == ["algo.K=5", f"algo.K={MARKUP}"]
    assert cells(tab, "final m<i>") == ["2.000", "2.000"]
    assert tab.locator(".ytitle").text_content() == "m<i>"  # as it is drawn


@pytest.mark.parametrize("scheme", few(["light", "dark"], lambda scheme: scheme == "light"))
def test_phone(scheme, runs, command, opened, tmp_path):
    """Nothing is wider than the screen, and letters are seen on their ground."""
    tab = opened(command(tmp_path / "runs")[1], 390, color_scheme=scheme)
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    colours = "b => [getComputedStyle(b).color, getComputedStyle(b).backgroundColor]"
    ink, ground = (sum(map(int, re.findall(r"\d+", text))) for text in tab.eval_on_selector("body", colours))
    assert abs(ink - ground) > 450
    assert tab.eval_on_selector(".chart", "c => c.layout.font.color") == tab.eval_on_selector("body", colours)[0]


@pytest.mark.full
def test_size(command, opened, tmp_path):
    """30 runs of 500 rows, which are all there."""
    rng = np.random.default_rng(0)
    for k in range(30):
        record(tmp_path / "runs" / str(k), rng.random(500), every=1, algo={**FEDMSA, "K": k})
    path = command(tmp_path / "runs")[1]
    assert path.stat().st_size <= 5_000_000
    assert {len(x) for x, _ in drawn(opened(path)).values()} == {500}


@pytest.mark.full
def test_all_kinds_of_runs(command, opened, tmp_path):
    """A section for each problem; runs that diverged and runs without rows are there as such."""
    record(tmp_path / "runs" / "a", [1, 1e3, "inf"], metric="distance", status="diverged")
    record(tmp_path / "runs" / "b", [10, 20], problem={"_target_": "mine.Other"})
    record(tmp_path / "runs" / "new", [], metric="distance", status="running", algo=FEDAVG)
    code, path, _, _ = command(tmp_path / "runs")
    tab = opened(path)
    assert code == 0
    assert tab.locator("h2").all_inner_texts() == ["Runs", "Mco", "Other"]
    assert drawn(tab, 1) == {"FedMSA (1 of 1 diverged)": [[0, 20, 40], [1, 1000, None]]}
    assert "metrics.csv has no rows" in tab.locator("section").nth(0).locator("tr").last.inner_text()


def test_a_table_of_runs_comes_first(command, tmp_path):
    """State, method, best and why: the best of those that are over is bold, whatever a run in progress has reached."""
    runs = tmp_path / "runs"
    for k, (status, last) in enumerate([("finished", 0.3), ("finished", 0.2), ("running", 0.1), ("diverged", 1e9)]):
        record(runs / str(k), [3, last], metric="distance", status=status, algo={**FEDMSA, "K": k})
    (runs / "2" / ".lock").touch()
    record(runs / "4", [], metric="distance", status="failed")
    (runs / "4" / "summary.json").write_text('{"status": "failed", "error": "ValueError: K=0"}')
    holder = RunFolder(runs / "2")
    holder.open()
    first, second = page_of([runs]).sections
    holder.close()
    cells, bold = first.tables[0].cells, first.tables[0].bold
    assert first.tables[0].title == "5 runs: 2 finished, 1 running, 1 diverged, 1 failed"
    assert cells["state"].tolist() == ["finished", "finished", "running", "diverged", "failed"]
    assert cells["best"].tolist() == ["0.3", "0.2", "0.1", "3", "-"]
    assert cells["why"].tolist()[-1] == "ValueError: K=0"
    assert bold["best"].tolist() == [False, True, False, False, False]
    assert second.views["distance"][0][0].bold["best distance to the solution"].tolist() == [False, True, False, False]
    assert [line["lost"] for line in second.chart["lines"]] == [False, False, False, True]


@pytest.mark.full
def test_limits_and_folds(command, opened, tmp_path):
    """A diverged run does not set the axis; notes and what differs are folded; a table that scrolls says so."""
    for k, (status, last) in enumerate([("finished", 0.25), ("finished", 0.2), ("diverged", 1e9)]):
        record(tmp_path / "runs" / str(k), [0.3, last], metric="distance", status=status, algo={**FEDMSA, "K": k})
    tab = opened(command(tmp_path / "runs")[1], 390)
    tab.uncheck("[name='log y']")
    low, high = tab.eval_on_selector(".chart", "c => c._fullLayout.yaxis.range")
    assert 0.1 < low < 0.2
    assert 0.3 < high < 0.4
    assert tab.locator("ul:visible").count() == 0
    assert not tab.get_by_text("algo.K").last.is_visible()
    assert tab.locator(".wide.scrolls").first.is_visible()
    tab.get_by_role("button", name="diverged").click()
    assert tab.eval_on_selector(".chart", "c => c._fullLayout.yaxis.autorange")


def test_notes(command, tmp_path):
    """What makes a comparison unequal, and copies that are left out, stand on the page; the latter are printed as well."""
    for name in ("a", "copy"):
        record(tmp_path / "runs" / name, [10, 20, 30])
    record(tmp_path / "runs" / "b", range(20), algo=FEDAVG)
    _, path, _, err = command(tmp_path / "runs")
    text = path.read_text()
    assert text.count("<li>unequal costs on Mco:") == 1  # not again with each metric
    assert "<li>1 of 3 runs left out" in text
    assert err == "note: 1 of 3 runs left out, since they repeat runs with the same config, seed and data\n"


@pytest.mark.full
def test_division(command, opened, monkeypatch, capsys, tmp_path):
    """Of a run: each client's examples of each class, as its data say."""
    words = [
        "algo=fedavg",
        "problem=classification",
        "dataset=digits",
        "partitioner.clients=4",
        "participation.cohort=4",
        "budget.rounds=1",
    ]
    assert fedopt(monkeypatch, capsys, *words, f"output_dir={tmp_path / 'run'}").code == 0
    tab = opened(command(tmp_path / "run")[1])
    heat = tab.eval_on_selector(".map", "m => [m.data[0].x, m.data[0].y, m.data[0].z]")
    digits = np.bincount(Digits().load().y_train)
    assert heat[:2] == [[*"0123"], [*"0123456789"]]
    np.testing.assert_array_equal(np.sum(heat[2], axis=1), digits)


@pytest.mark.full
def test_a_paper(command, opened, tmp_path):
    """Its figure, its verdicts, and curves of the runs that are there."""
    results = tmp_path / "out" / "fedmsa" / "fig1a"
    shutil.copytree(ROOT / "docs" / "results" / "fedmsa" / "fig1a", results)
    line, seed, folder = (results / "runs.csv").read_text().splitlines()[1].rsplit(",", 2)
    record(tmp_path / "out" / "runs" / folder, [10, 90], int(seed))
    tab = opened(command(tmp_path / "out")[1])
    assert tab.locator("h2").all_inner_texts()[1].startswith("fedmsa/fig1a: FedMSA")
    assert tab.locator("p", has_text="The paper's claims: 3 with changes: supported.").count() == 1
    assert tab.eval_on_selector("section img", "image => image.complete && image.naturalWidth > 100")
    assert drawn(tab, 2) == {line.strip('"'): [[0, 20], [10, 90]]}
    assert tab.locator("h2").count() == 3  # the run is not shown a second time


@pytest.mark.full
def test_in_a_notebook(runs, browser, tmp_path):
    """comparison.report() is shown in a frame from which nothing outside can be reached."""
    shown = public.compare([tmp_path / "runs"], names={"FedMSA": "ours"}).report()
    (tmp_path / "notebook.html").write_text(f"<body>{shown._repr_html_()}</body>", encoding="utf-8")
    tab = browser.new_page()
    tab.set_default_timeout(60_000)
    tab.goto((tmp_path / "notebook.html").as_uri())
    frame = tab.frame_locator("iframe")
    frame.locator(".chart .main-svg").first.wait_for()
    assert frame.locator(".legend button").all_inner_texts() == ["ours", "FedAvg"]
    assert (
        tab.frames[1].evaluate("(() => { try { return parent.document.title } catch { return 'refused' } })()")
        == "refused"
    )
    tab.close()
    assert shown.write(tmp_path / "new" / "page.html").stat().st_size > 1e6


def test_mistakes(runs, command, monkeypatch, tmp_path):
    """One line, and no file."""
    (tmp_path / "empty").mkdir()
    for words, said in (
        ([tmp_path / "nothing"], "nothing: there is no such folder"),
        ([tmp_path / "empty"], "contains neither runs"),
    ):
        code, path, _, err = command(*words)
        assert (code, said in err, err.count("\n"), path.exists()) == (2, True, 1, False)
    (tmp_path / "page.html").mkdir()
    assert "page.html: this is a folder; give the path of a file" in command(tmp_path / "runs")[3]
    (tmp_path / "page.html").rmdir()
    page._plotly.cache_clear()
    monkeypatch.setattr("fedopt.errors.find_spec", lambda name: None)
    assert "pip install 'fedopt[report]'" in command(tmp_path / "runs")[3]


def test_long_labels_say_what_tells_lines_apart(tmp_path):
    """Keys that change with others are left out where a label is long; short labels have all."""
    for k in range(4):
        algo = {**FEDAVG, "K": k, "rate_of_the_step_of_x": k // 2, "rate_of_the_step_of_y": 10 * k}
        record(tmp_path / "long" / str(k), range(5), algo=algo)
        record(tmp_path / "short" / str(k), range(5), algo={**FEDAVG, "K": k, "rate": k // 2})
    long, short = (
        [line["label"] for line in page_of([tmp_path / which]).sections[1].chart["lines"]]
        for which in ("long", "short")
    )
    assert long == [f"K={k}" for k in range(4)]
    assert short == [f"algo.K={k}, algo.rate={k // 2}" for k in range(4)]
    section = page_of([tmp_path / "long"]).sections[1]  # tables and notes call the lines so, too
    assert section.views["test_accuracy"][0][0].cells["line"].tolist() == long
    assert [*section.tables[0].cells] == ["key", *long]


def test_two_methods_of_one_name(tmp_path, monkeypatch):
    """Neither is left out."""
    monkeypatch.setattr(groups, "display_name", lambda *_: "FedAvg")
    for name in ("one", "two"):
        record(tmp_path / name, range(5), algo={"_target_": name})
    assert [line["label"] for line in page_of([tmp_path]).sections[1].chart["lines"]] == ["one", "two"]


@pytest.mark.full
def test_sixty_lines(command, opened, tmp_path):
    """Labels say what tells lines apart and no more; legend and notes leave the page to the tables."""
    for k in range(60):
        same = {"participation": {"cohort": k % 12 + 1}, "budget": {"comm_rounds": 100 + k % 12}}
        algo = {**(FEDMSA, FEDAVG)[k % 2], "K": k % 12, "rate_of_the_step_of_x": k // 12, "other": k // 12}
        record(tmp_path / "runs" / f"{k:02}", range(60, 50, -1), algo=algo, **same)  # a note each: they end worse
    _, path, _, _ = command(tmp_path / "runs")
    for width in (390, 1280):
        tab = opened(path, width)
        labels = tab.locator(".legend button").all_inner_texts()
        assert labels[0] == "FedAvg, K=1, rate_of_the_step_of_x=0"
        assert len({*labels}) == 60
        assert tab.locator(".legend").bounding_box()["height"] < 300
        folded = tab.locator("section > .notes").last
        assert not folded.locator("li").first.is_visible()
        folded.locator("summary").click()
        assert folded.locator("li").first.is_visible()
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
