"""The pages of results: their lines of results, what is folded, and reasons that stand once."""

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
    """The cells of a page's generated block, without the head."""
    lines = [line for line in block.splitlines() if line.startswith("| ")]
    return [re.split(r" (?<!\\)\| ", line.strip("| ")) for line in lines[1:]]


def generated(page, name):
    return page.partition(f"<!-- generated: {name} -->")[2].partition("<!-- /generated -->")[0]


@pytest.mark.parametrize(
    ("verdicts", "twin", "expected"),
    [
        (["holds", "holds"], False, "reproduced"),
        (["holds", "holds"], True, "in part"),
        (["holds", "does not hold"], False, "in part"),
        (["holds", "undecided with 3 seeds"], False, "in part"),
        (["does not hold", "undecided with 3 seeds"], False, "not"),
        (["does not hold", "not tested"], False, "not"),
        (["not tested", "undecided with 3 seeds"], False, "not tested"),
        (["not measured"], False, "not tested"),
        ([], False, "not tested"),
    ],
)
def test_the_verdict_on_a_figure(verdicts, twin, expected):
    rows = [{"kind": "paper", "holds": verdict} for verdict in verdicts]
    others = [{"kind": kind, "holds": "holds"} for kind in ("control", "variant")]
    assert SCRIPT["verdict"](rows + others, twin) == expected


def test_a_page_begins_with_its_lines_of_results(paper):
    """A handful of lines, above all else; one that is not reproduced says why."""
    page = (DOCS / "papers" / f"{paper}.md").read_text()
    assert page.index("<!-- generated: headlines") < page.index("## Experiments")
    lines = SCRIPT["lines_of"](paper)
    assert 3 <= len(lines) <= 8
    for figure, says, here, verdict, why in lines:
        assert verdict.strip("*") in ("reproduced", "in part", "not", "not tested")
        assert figure
        assert says.endswith(".")
        assert "claim" in here
        assert why or verdict == "**reproduced**"
        assert why.count(". ") == 0


def test_every_claim_of_the_paper_is_in_a_line(paper):
    """Except for a count that a line of results would say no more of."""
    kept = {name: published.load(name) for name in SCRIPT["of_paper"](paper)}
    its = {name for name, described in kept.items() if any(claim.kind == "paper" for claim in described.claims)}
    shown = {other for name, described in kept.items() for line in described.headlines for other in (name, *line.also)}
    assert its - shown <= {"fednest/table2"}


def test_reasons_stand_once_and_other_claims_are_folded(paper):
    page = (DOCS / "papers" / f"{paper}.md").read_text()
    block, _, reasons = generated(page, f"results {paper}").partition("### Reasons")
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
    page = (DOCS / "papers" / "index.md").read_text()
    (all_papers,) = [row for row in rows(generated(page, "papers")) if row[0] == "all"]
    kept = pd.concat([pd.read_csv(path) for path in (DOCS / "results").glob("*/*/claims.csv")])
    verdicts = kept[kept["kind"] == "paper"]["holds"]
    assert int(all_papers[5]) == len(verdicts) == sum(map(int, all_papers[6:]))
    assert int(all_papers[6]) == (verdicts == "holds").sum()
    assert "papers/index.md" in (DOCS / "index.md").read_text()
