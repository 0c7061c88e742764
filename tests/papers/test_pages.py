"""The pages of papers: their verdicts, folded claims, and reasons, each listed once."""

import re
import runpy

import pandas as pd
import pytest
from support.cases import few
from support.command import ROOT

from fedopt.console.texts import markdown_cell
from fedopt.papers import published

DOCS = ROOT / "docs"
PAPERS = sorted({name.partition("/")[0] for name in published.names()})
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "docs"))


@pytest.fixture(params=few(PAPERS, lambda paper: paper == "zohfl"))
def paper(request):
    return request.param


def rows(block):
    """Return the cells of the tables in a generated block, without their first row."""
    lines = [line for line in block.splitlines() if line.startswith("| ")]
    return [re.split(r" (?<!\\)\| ", line.strip("| ")) for line in lines[1:]]


def generated(name, *arguments):
    """Return a generated block as it is on the site."""
    return "\n".join(SCRIPT["TABLES"][name](*arguments))


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        (["supported", "supported"], "reproduced"),
        (["supported", "with changes: supported"], "reproduced with changes"),
        (["with changes: supported", "with changes: supported"], "reproduced with changes"),
        (["supported", "small-scale: agrees"], "in part"),
        (["with changes: supported", "not supported"], "in part"),
        (["supported", "undecided with 3 seeds"], "in part"),
        (["not supported", "undecided with 3 seeds"], "not"),
        (["with changes: not supported", "small-scale: agrees"], "not"),
        (["small-scale: agrees", "small-scale: agrees"], "small-scale"),
        (["small-scale: disagrees", "small-scale: undecided with 3 seeds"], "small-scale"),
        (["small-scale: agrees", "undecided with 3 seeds"], "undecided"),
        (["not measured"], "undecided"),
        ([], "undecided"),
    ],
)
def test_the_verdict_on_a_figure(verdicts, expected):
    rows = [{"kind": "paper", "holds": verdict} for verdict in verdicts]
    others = [{"kind": kind, "holds": "supported"} for kind in ("control", "variant")]
    assert SCRIPT["verdict"](rows + others) == expected


@pytest.mark.parametrize(
    ("paper", "published", "changed", "small"),
    [
        ("fednormsgda", [8, 0, 0], [0, 0, 0], [14, 7, 12]),
        ("fedmsa", [3, 0, 1], [16, 0, 3], [0, 8, 2]),
    ],
)
def test_claims_are_counted_by_the_settings_of_their_runs(paper, published, changed, small):
    """Supported, not, undecided: small-scale claims are in no total, whatever they show, and changes have counts of their own."""
    counts = SCRIPT["tally"]([row for name in SCRIPT["of_paper"](paper) for row in SCRIPT["kept_rows"](name)])
    assert list(counts.values()) == [published, changed, small]
    text = SCRIPT["in_all"](*SCRIPT["of_paper"](paper))
    assert text.startswith(f"Claims of the paper: {published[0]} supported")
    assert text.endswith("{} small-scale ({} agree, {} disagree, {} undecided).".format(sum(small), *small))


@pytest.mark.parametrize(
    ("figure", "verdict"),
    [
        ("Figure 1a", "reproduced with changes"),
        ("Figure 2", "reproduced with changes"),
        ("Figure 4", "reproduced with changes"),
        ("Theorem 3.1", "reproduced"),
    ],
)
def test_figures_on_other_settings_than_the_published_ones(figure, verdict):
    (line,) = [line for line in SCRIPT["lines_of"]("fedmsa") if line[0] == figure]
    assert line[3] == f"**{verdict}**"


def test_a_page_begins_with_its_lines_of_results(paper):
    """A handful of lines, above all else; one that is not reproduced says why."""
    page = (DOCS / "papers" / f"{paper}.md").read_text()
    assert page.index("<!-- generated: headlines") < page.index("## Experiments")
    lines = SCRIPT["lines_of"](paper)
    assert 3 <= len(lines) <= 8
    for figure, says, here, verdict, why in lines:
        assert verdict.strip("*") in SCRIPT["OUTCOMES"]
        assert figure
        assert says.endswith(".")
        assert "claim" in here
        assert why or verdict == "**reproduced**"
        assert why.count(". ") == 0


def test_every_claim_of_the_paper_is_in_a_line(paper):
    """Except for a count that a line of results would say no more of."""
    kept = {name: published.load(name) for name in SCRIPT["of_paper"](paper)}
    its = {name for name, described in kept.items() if any(claim.kind == "paper" for claim in described.claims)}
    shown = {
        other
        for name, described in kept.items()
        for line in described.headlines
        for other in (name, *line.get("also", []))
    }
    assert its - shown <= {"fednest/table2"}


def test_reasons_stand_once_and_other_claims_are_folded(paper):
    block, _, reasons = generated("results", paper).partition("### Reasons")
    notes = re.findall(r"^\d+\. (.*)$", reasons, re.MULTILINE)
    assert len(notes) == len({*notes})
    assert {int(number) for number in re.findall(r"note (\d+)", block)} == {*range(1, len(notes) + 1)}
    for name in SCRIPT["of_paper"](paper):
        section = re.search(rf"### {name}: .*?(?=\n### |\Z)", block, re.DOTALL)[0]
        plain, _, folded = section.partition("<details>")
        for claim in published.load(name).claims:
            cell = f"| {markdown_cell(claim.says)} |"
            assert (cell in plain, cell in folded) == (claim.kind == "paper", claim.kind != "paper")


def test_the_totals_are_those_of_the_tables():
    """Claims of our own, and on other settings, count for nothing."""
    lines, judged = [row for row in rows(generated("papers")) if row[0] == "all"]
    kept = pd.concat([pd.read_csv(path) for path in (DOCS / "results").glob("*/*/claims.csv")])
    verdicts = kept[kept["kind"] == "paper"]["holds"]
    counts = [*map(int, judged[1:])]
    assert counts[0] == sum(counts[1:7])  # without the small-scale ones
    assert sum(counts[1:]) == len(verdicts)
    assert counts[1] == (verdicts == "supported").sum()
    assert counts[4] == (verdicts == "with changes: supported").sum()
    assert counts[7] == (verdicts == "small-scale: agrees").sum()
    assert sum(map(int, lines[1:])) == sum(len(SCRIPT["lines_of"](paper)) for paper in PAPERS)
    assert "papers/index.md" in (DOCS / "index.md").read_text()
