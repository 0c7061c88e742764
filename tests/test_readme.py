"""The words of README and of docs/ are true: commands and scripts run, links lead somewhere, tables are up to date.

Each line of a ```bash block of a page is a command. The blocks of a page run one after the other in one empty folder. Files are the
```python and ```yaml blocks that begin with their path; other ```python blocks run. Before a block, <!-- shortened: WORDS --> adds
words to its commands, so that they are fast, and <!-- not run: REASON --> says why nothing is run.
"""

import inspect
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support.cases import few
from support.command import ROOT, fedopt
from support.pages import added, blocks, written

import fedopt as public
from fedopt.config.files import options
from fedopt.papers import published
from fedopt.papers.claims import rows_of
from fedopt.results.folder import FILES

PAGES = [ROOT / "README.md", *written(ROOT / "docs")]
OTHERS = [ROOT / name for name in ("CHANGELOG.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "SECURITY.md")]
FILE = re.compile(r"(?:# @package _global_\n)?# ([\w/]+\.(?:py|yaml|toml))\n")
LINK = re.compile(r"""(?:\]\(|src=")([^)"\s]+)[)"]""")
PAPERS = sorted(path.stem for path in (ROOT / "docs" / "papers").glob("*.md") if path.stem != "index")


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def runs(page: Path) -> bool:
    return any(block.language in ("bash", "python") and block.mark != "not run" for block in blocks(page))


# Pages whose commands take seconds, of the pages that are not about one method or one problem
LONG = {
    "applied",
    "comparing",
    "hospitals",
    "custom",
    "own-algorithm",
    "own-problem",
    "problem-examples",
    "python",
    "running",
    "tune",
    "tutorial",
}


def is_quick_to_run(page: Path) -> bool:
    """By default README's commands run, those of short pages, and those of one method and one problem."""
    if page.parent.name in ("algorithms", "problems"):
        return page.stem in ("fedmsa", "mco")
    return page.stem not in LONG


@pytest.mark.parametrize("page", few(filter(runs, PAGES), is_quick_to_run), ids=name)
def test_commands_run(page, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # of processes that commands start
    names: dict[str, object] = {}
    for block in blocks(page):
        if (file := FILE.match(block.text)) and block.language in ("python", "yaml", "toml"):
            Path(file[1]).parent.mkdir(parents=True, exist_ok=True)
            Path(file[1]).write_text(block.text)
        elif block.language == "python" and block.mark != "not run":
            exec(block.text, names)
        elif block.mark == "not run":
            assert len(block.words.split()) >= 3, "say why it is not run"
        elif block.mark not in ("main", "tests"):
            for command in block.commands:
                run(command, block.words, monkeypatch, capsys)


def run(command: str, further: str, monkeypatch, capsys) -> None:
    """Run a command of a page, in short."""
    program, *arguments = [*shlex.split(command), *added(command, further)]
    if program == "fedopt":
        result = fedopt(monkeypatch, capsys, *arguments)
        assert result.code == 0, f"{command}\n{result.err}"
    else:
        assert program == "python", command
        script = Path(arguments[0])
        runpy.run_path(str(script if script.exists() else ROOT / script), run_name="__main__")


def test_the_two_commands(monkeypatch, capsys, tmp_path):
    """The main job runs (on digits here), and the tests' is the one that .ci/run takes."""
    main, tests = (
        next(block.text.strip() for block in blocks(PAGES[0]) if block.mark == mark) for mark in ("main", "tests")
    )
    assert tests.endswith("&& .venv/bin/pytest -n auto")
    install, job = main.split(" && .venv/bin/fedopt ")
    assert install.endswith("-e .")
    monkeypatch.chdir(tmp_path)
    tiny = ["dataset=digits", "problem.largest=120", "problem.imbalance=0.5", "partitioner.clients=10"]
    tiny += ["participation.cohort=2", "budget.comm_rounds=4"]
    assert fedopt(monkeypatch, capsys, *job.split(), *tiny).code == 0


def test_the_front_page_is_short():
    assert sum(any(map(str.isalnum, word)) for word in PAGES[0].read_text().split()) <= 700
    assert (ROOT / "docs" / "figure.png").stat().st_size <= 150_000


def anchors(page: Path) -> set[str]:
    """What #... of a link to the page may name, as GitHub makes it from headings."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=name)
def test_links_lead_somewhere(page):
    for link in LINK.findall(re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)):
        if not link.startswith(("https://", "mailto:")):
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


def test_the_front_page_has_the_papers_totals():
    """The sentences on what reproduces are those of the papers' page, which scripts/docs writes."""
    totals = re.search(r"fedopt repeats .*? were run only at a smaller scale\.", PAGES[0].read_text())
    assert totals
    assert totals[0] in (ROOT / "docs" / "papers" / "index.md").read_text()


def test_every_page_can_be_found():
    linked = {
        (page.parent / link.partition("#")[0]).resolve() for page in PAGES for link in LINK.findall(page.read_text())
    }
    assert set(PAGES[1:]) <= linked


def test_everything_there_is_has_a_page():
    pages = {path.stem: path.read_text() for path in (ROOT / "docs" / "algorithms").glob("*.md")}
    for algo in options("algo"):
        assert any(f"`algo={algo}`" in text for text in pages.values()), algo
    for problem in options("problem"):
        assert f"problem={problem}" in (ROOT / "docs" / "problems" / f"{problem}.md").read_text()
    assert sorted({experiment.partition("/")[0] for experiment in published.names()}) == PAPERS


def test_every_public_name_is_on_the_page_of_python():
    """Once, and so is nothing else; Sphinx takes the words from the docstrings."""
    page = (ROOT / "docs" / "api.md").read_text()
    assert sorted(re.findall(r"^\.\. auto\w+:: (\w+)$", page, flags=re.MULTILINE)) == public.__all__
    lacking = [name for name in public.__all__ if not inspect.getdoc(getattr(public, name))]
    assert not lacking


def test_the_page_of_files_has_all(monkeypatch, capsys, tmp_path):
    """Every file of a run, and every key of its summary."""
    monkeypatch.chdir(tmp_path)
    assert fedopt(monkeypatch, capsys, "algo=fedmsa", "problem=mco", "budget.rounds=1", "output_dir=run").code == 0
    listed = set(re.findall(r"`([\w.]+)`", (ROOT / "docs" / "files.md").read_text()))
    assert {*FILES} | {*json.loads(Path("run/summary.json").read_text())} <= listed


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(ROOT / "scripts" / "docs"))


def is_quick(page: Path) -> bool:
    """Return whether a page is tested by default: the first of each folder, and those whose blocks are quick to make."""
    first = next(path for path in PAGES if path.parent == page.parent)
    slow = (f"<!-- generated: {kind}" for kind in ("exchanges", "hours"))
    return page in (first, *(ROOT / "docs").glob("*.md")) and not any(mark in page.read_text() for mark in slow)


@pytest.mark.parametrize("page", few(PAGES, is_quick), ids=name)
def test_tables_are_up_to_date(page, script):
    assert script["written"](page.read_text()) == page.read_text()


def test_tables_have_rows_as_long_as_their_heads():
    for page in PAGES:
        tables = re.findall(r"(?m)(?:^\|.*\n)+", re.sub(r"(?s)```.*?```", "", page.read_text() + "\n"))
        for head, *rows in (table.splitlines() for table in tables):
            cells = {len(re.findall(r"(?<!\\)\|", row)) for row in [head, *rows]}
            assert len(cells) == 1, (page, head)


def test_the_notebook_is_up_to_date(script):
    tutorial, kept = ROOT / "docs" / "tutorial.md", script["NOTEBOOK"].read_text()
    assert script["notebook_text"](script["notebook"](tutorial.read_text(), json.loads(kept))) == kept


def test_the_site_has_the_whole_table(script, monkeypatch, capsys, tmp_path):
    """In git a long block says where its content is, and `--print` prints it."""
    page = "<!-- generated: problem mco -->\nold\n<!-- /generated -->\n"
    row = "| `problem.lam` | `0.1` | number from 0 | factor lambda of the risk"
    assert row in script["filled"](page)
    assert row not in script["written"](page)
    assert "Keys: `fedopt help problem=mco`" in script["written"](page)
    assert "old" not in script["filled"](page) + script["written"](page)
    (tmp_path / "page.md").write_text(page)
    monkeypatch.setattr(sys, "argv", ["docs", "--print", str(tmp_path / "page.md")])
    script["main"]()
    assert row in capsys.readouterr().out


MARKS = {mark for page in PAGES for mark in re.findall(r"<!-- generated: (\w+) ?(.*?) -->", page.read_text())}
OF_KEYS = sorted(mark for mark in MARKS if mark[0] in ("every_run", "choices", "family", "problem"))
QUICK = {("every_run", ""), ("choices", "logger"), ("family", "fednest"), ("problem", "mco")}


@pytest.mark.parametrize(("kind", "arguments"), few(OF_KEYS, QUICK.__contains__))
def test_commands_named_in_git_print_the_keys(kind, arguments, script, monkeypatch, capsys):
    """Where git has no table of keys, it names a command that prints the keys."""
    short, long = ("\n".join(script[made][kind](*arguments.split())) for made in ("IN_GIT", "TABLES"))
    commands = re.findall(r"`(fedopt (?:help|list) [^`]+)`", short)
    printed = ""
    for command in commands:
        result = fedopt(monkeypatch, capsys, *shlex.split(command)[1:])
        assert result.code == 0
        printed += result.out
    table = long.partition(f"Keys of `{commands[0].split()[-1]}`:")[2] or long
    keys = re.findall(r"^\| `([\w.]+)` \|", re.split("\nKeys of|\nOn these", table)[0], re.MULTILINE)
    assert keys
    assert [key for key in keys if f"\n{key} " not in printed] == []


@pytest.mark.parametrize("paper", few(PAPERS, lambda paper: paper == "zohfl"))
def test_claims_are_those_of_the_experiments(paper):
    """What is kept has all claims of its experiment, in their order and words; `test_tables_are_up_to_date` is about the pages."""
    results = ROOT / "docs" / "results"
    for experiment in published.chosen([paper]):
        kept = rows_of(results / experiment / "claims.csv", ("says", "measure", "bound", "paper"))
        said = [
            (claim.says, claim.measure.text, claim.bound, claim.paper) for claim in published.load(experiment).claims
        ]
        assert [tuple(map(str, row.values())) for row in kept] in ([], said)
    assert {path.parent.relative_to(results).as_posix() for path in results.rglob("claims.csv")} <= {*published.names()}


def test_promises_are_held_by_tests():
    """Every test that docs/promises.md names is there, and every promise names one."""
    page = (ROOT / "docs" / "promises.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ") and not line.startswith("| Promise")]
    assert len(rows) >= 18
    folders = (ROOT / "tests", ROOT / "fedopt" / "testing")
    files = {path.name: path.read_text() for folder in folders for path in folder.rglob("test_*.py")}
    for row in rows:
        named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", row)
        assert named
        for file, test in named:
            assert f"def {test}(" in files[file]


@pytest.mark.full
def test_own_files_are_held_to_the_contract(tmp_path):
    """The files on the guides to custom methods and problems."""
    pages = [ROOT / "docs" / f"{name}.md" for name in ("custom", "own-algorithm", "own-contract")]
    for block in (block for page in pages for block in blocks(page)):
        if (file := FILE.match(block.text)) and block.language in ("python", "yaml", "toml"):
            (tmp_path / file[1]).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / file[1]).write_text(block.text)
    env = {**os.environ, "FEDOPT_CONTRACT_CONF": str(tmp_path / "myconf")}
    env["PYTHONPATH"] = os.pathsep.join([str(tmp_path), str(ROOT)])
    test = [
        "--pyargs",
        "fedopt.testing",
        "-k",
        "my_sgd and (my_regression or quadratic) or fednest and my_regression",
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run([sys.executable, "-m", "pytest", *test], cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    passed = int(re.search(r"(\d+) passed", done.stdout)[1])
    assert passed >= 40
