"""The site and its pages: tables are whole, words are those of conf/, and nothing is cut at the width of a telephone, a tablet
and a desk.
"""

import json
import re
import runpy
import subprocess
import sys
import unicodedata
from functools import cache

import pytest
from markdown_it import MarkdownIt
from support.cases import few
from support.command import ROOT
from support.pages import written

from fedopt.config.files import CONF, ROLE, comments, content, file_of, options

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *written(DOCS)]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "docs"))

WORD = r"[^\W_]+(?:-[^\W_]+)*"


@cache
def on_site(page):
    """Return the text of a page with its generated blocks as on the site."""
    return SCRIPT["filled"](page.read_text(encoding="utf-8"))


def name(page):
    return page.relative_to(ROOT).as_posix()


def is_quick(page):
    """Return whether a page is tested by default. The blocks of others take seconds to generate."""
    slow = ("choices", "exchanges", "gallery", "hours", "matrix", "methods", "papers", "rounds")
    text = page.read_text(encoding="utf-8")
    quick = page.parent == DOCS and not any(f"generated: {kind}" in text for kind in slow)
    return quick or name(page) in ("docs/algorithms/fedmsa.md", "docs/papers/pfedme.md", "docs/problems/mco.md")


def tables(text):
    """Yield the tables of a text, each as lists of cells, without the rule below the head."""
    lines = [*re.sub(r"(?ms)^( *)```.*?^\1```$", "", text).splitlines(), ""]
    table = []
    for line in lines:
        if line.startswith("|"):
            table.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]])
        elif table:
            yield [table[0], *table[2:]]
            table = []


@pytest.mark.parametrize("page", few(PAGES, is_quick), ids=name)
def test_tables_are_whole(page):
    """Tables have rows, in git and on the site; each row has as many cells as the head, and no column is empty."""
    wrong = []
    for head, *rows in (*tables(page.read_text(encoding="utf-8")), *tables(on_site(page))):
        title = " | ".join(head)
        if not rows:
            wrong.append(f"{title}: no rows")
        elif {len(row) for row in rows} != {len(head)}:
            wrong.append(f"{title}: rows of another length")
        else:
            empty = [column for column, *cells in zip(head, *rows, strict=True) if not any(cells)]
            wrong += [f"{title}: {column!r} is empty" for column in empty]
    assert wrong == []


def plain(text, hidden=()):
    """What a reader sees of a page in Markdown, in one line. hidden: further kinds of tokens to leave out."""
    tokens = [t for block in MarkdownIt("gfm-like", {"linkify": False}).parse(text) for t in block.children or [block]]
    left_out = {"inline", "image", "html_inline", "html_block", *hidden}
    shown = (" " if t.type.endswith("break") else t.content for t in tokens if t.type not in left_out)
    return " ".join("".join(shown).split())


def letters(text):
    return re.sub(r"[\W_]", "", text)


@pytest.mark.parametrize(
    ("shown_on", "least"),
    [(is_quick, 20), pytest.param(lambda page: True, 400, marks=pytest.mark.full)],
    ids=["some pages", "all pages"],
)
def test_comments_of_conf_are_shown_as_they_are(shown_on, least):
    """Markdown takes no part of them for emphasis, HTML or the end of a cell. Comments of options that change some keys are on no
    page.
    """
    pages = "\n\n".join(on_site(page) for page in PAGES if shown_on(page))
    groups = ("algo", "problem", "dataset", "partitioner", "hardware", "logger")
    files = [CONF / "config.yaml", *(file_of(group, option) for group in groups for option in options(group))]
    told = {ROLE.sub("", comment) for file in files for comment in comments(file).values()}
    shown, there = plain(pages), letters(pages)
    on_pages = {comment for comment in told if letters(comment) in there}
    assert len(on_pages) > least
    assert sorted(comment for comment in on_pages if " ".join(comment.split()) not in shown) == []


def test_defaults_are_those_of_conf():
    values = content(CONF / "config.yaml")
    (table,) = [rows for head, *rows in tables("\n".join(SCRIPT["every_run"]())) if rows[0][0] == "`seed`"]
    told = {key.strip("`"): default.strip("`") for key, default, *_ in table}
    assert told["preset"] == values["preset"]
    assert told["keep"] == values["keep"]


def folded(word):
    return "".join(letter for letter in unicodedata.normalize("NFD", word) if not unicodedata.combining(letter))


def test_names_have_one_spelling():
    """With their accents everywhere, and in prose with their hyphens."""
    sources = {
        path: path.read_text(encoding="utf-8")
        for part in ("conf", "fedopt")
        for path in (ROOT / part).rglob("*.[py]*[ly]")
    }
    comments = "\n".join(line for text in sources.values() for line in re.findall(r"(?m)(?<!\S)# .*", text))
    prose = [comments, *(plain(page.read_text(encoding="utf-8"), ("code_inline", "fence")) for page in PAGES)]
    in_prose = {word for text in prose for word in re.findall(WORD, text)}
    everywhere = in_prose.union(*(re.findall(WORD, text) for text in sources.values()))
    accents = {folded(word) for word in everywhere if folded(word) != word and len(word) > 3}
    hyphens = {word.replace("-", "") for word in in_prose if re.fullmatch(r"[A-Z][a-z]+[A-Za-z]*(-[A-Z]\w+)+", word)}
    assert everywhere & accents | in_prose & hyphens == {"ProxSkipVIP"}  # of a public code


@pytest.mark.full
def test_costs_of_a_round_in_the_text_are_those_of_the_table():
    of_methods = tables("\n".join(SCRIPT["rounds"]("./")))
    rounds = [float(row[head.index("rounds")]) for head, *rows in of_methods for row in rows]
    page = (DOCS / "choosing.md").read_text(encoding="utf-8")
    assert f"One round of a method takes {min(rounds):g} to {max(rounds):g} communication rounds" in page


@pytest.mark.parametrize("page", few(sorted(DOCS.glob("papers/*.md")), is_quick), ids=name)
def test_pages_of_results_name_no_machine_nor_commit(page):
    assert re.findall(r"\b[0-9a-f]{12,40}\b|Linux-\S+|\(R\)", on_site(page)) == []


def test_every_picture_is_made_by_a_script():
    made = (ROOT / "scripts" / "pictures").read_text(encoding="utf-8")
    pictures = {path.name for path in DOCS.glob("*.[ps][nv]g")}
    assert pictures
    assert {name for name in pictures if name not in made} == set()


# What sticks out of the page, and tables whose box does not scroll to their end
CUT = """() => {
  const found = [];
  for (const box of document.querySelectorAll("html, .content"))
    if (box.scrollWidth > box.clientWidth + 1) found.push(`${box.className || "page"}: ${box.scrollWidth} in ${box.clientWidth}`);
  for (const table of document.querySelectorAll("article table")) {
    const box = table.closest(".table-wrapper") ?? table.parentElement;
    box.scrollLeft = box.scrollWidth;
    const end = table.getBoundingClientRect().right, last = Math.min(box.getBoundingClientRect().right, innerWidth);
    if (end > last + 1) found.push(`table ${table.textContent.trim().slice(0, 40)}: ends at ${end}, seen to ${last}`);
  }
  for (const error of document.querySelectorAll("mjx-merror")) found.push(`formula ${error.textContent}`);
  return found;
}"""


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    pytest.importorskip("furo")
    place = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "sphinx", "-W", "-q", "-b", "html", str(ROOT / "docs"), str(place)]
    subprocess.run(build, check=True)
    return place


@pytest.mark.slow
def test_nothing_is_cut(site, browser):
    """No page is wider than the window, every table shows its last column in its own box, no formula is wrong."""
    tab = browser.new_page()
    fetched = []
    tab.on("request", lambda request: request.url.startswith(("file:", "data:")) or fetched.append(request.url))
    cut = {}
    for page in sorted(site.rglob("*.html")):
        tab.goto(page.as_uri())
        if tab.locator(".math").count():
            tab.wait_for_function("window.MathJax?.startup?.promise && document.querySelector('mjx-container')")
        for width in (390, 768, 1280):
            tab.set_viewport_size({"width": width, "height": 900})
            if found := tab.evaluate(CUT):
                cut[page.relative_to(site).as_posix(), width] = found
    tab.close()
    assert cut == {}
    assert fetched == []  # the site needs no network


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "text"),
    [("algorithms/fedmsa", "type or values"), ("problems/mco", "problem.lam"), ("keys", "participation.cohort_from"),
     ("costs", "gradients"), ("papers/fedmsa", "Reasons"), ("experiments", "subtracts the difference")],
)  # fmt: skip
def test_the_site_has_the_blocks_that_git_lacks(page, text, site):
    shown = (site / f"{page}.html").read_text(encoding="utf-8")
    assert text in shown
    assert text not in re.search(r"(?s)<!-- generated: .*", (DOCS / f"{page}.md").read_text(encoding="utf-8"))[0]


@pytest.mark.slow
def test_public_names_are_linked(site):
    """Each is in the index with an entry of its own, and types lead to it."""
    page = (site / "api.html").read_text(encoding="utf-8")
    for name in ("run", "Result", "Round.exchange", "Client.inner_gradient", "Bilevel.f", "Schedule"):
        assert f'id="fedopt.{name}"' in page
        assert f"#fedopt.{name}" in (site / "genindex.html").read_text(encoding="utf-8")
    assert 'href="#fedopt.Result"' in page


@pytest.mark.slow
def test_the_front_page_is_a_page(site):
    """One picture, a command, cards that lead to all pages; the sidebar is folded."""
    page = (site / "index.html").read_text(encoding="utf-8")
    article, sidebar = (
        page.partition('<article role="main"')[2],
        page.partition("sidebar-tree")[2].partition("</aside>")[0],
    )
    assert len(re.findall(r"<img\b", article)) == 1
    assert "fedopt algo=" in re.sub("<[^>]*>", "", article)
    assert 8 <= article.count("sd-card-title") <= 12
    assert len(re.findall(r'class="toctree-l1', sidebar)) <= 12


@pytest.mark.slow
def test_figures_are_wide_and_lead_to_their_files(site):
    pages = [site / name for name in ("papers/fedmsa.html", "gallery.html", "hospitals.html")]
    for page in pages:
        article = page.read_text(encoding="utf-8").partition('<article role="main"')[2]
        figures = re.findall(r'(<a [^>]*href="([^"]+)"[^>]*>)?<img ([^>]*)>', article)
        assert figures, page
        for _, link, picture in figures:
            assert link in picture.partition('src="')[2]
            assert "width: 100%" in picture


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stem", "page"),
    [
        ("optim", "choosing"),
        ("hyperparamet", "tune"),
        ("iid", "choosing"),
        ("drift", "algorithms/fedavg"),
        ("particip", "availability"),
        ("distribut", "problems/robust_federated"),
    ],
)
def test_the_search_knows_the_words_of_the_field(stem, page, site):
    """Its index has them for pages that say it otherwise."""
    text = (site / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))
    found = index["terms"][stem]
    assert index["docnames"].index(page) in (found if isinstance(found, list) else [found])
