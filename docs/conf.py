"""The site: `sphinx-build -W docs site`.

The pages are those that are read in the repository. The navigation has the pages that index.md links to, and below some of them the
pages that these link to.
Files outside of docs that pages link to get a page each. The pages of the benchmark are made from its table, in a minute; git
keeps neither.
"""

import os
import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx

DOCS = Path(__file__).parent
ROOT = DOCS.parent
OUTSIDE = "_outside"  # pages of files outside of docs
BENCH = "bench/2.0"  # the folder of the benchmark's table, and of the pages that are made from it
LINK = re.compile(r"\]\(([\w./-]+)(#[\w-]+)?\)")
IMAGE = re.compile(r'<img src="docs/([^"]+)"[^>]*alt="([^"]*)"[^>]*>')
LISTS = (
    f"{BENCH}/index",
    "custom",
    "guides",
    "methods",
    "papers/index",
    "problems",
    "reference",
)  # their links are below them in the navigation
CARDS = re.compile(r"(?s)<!-- cards -->\n(.*?)<!-- /cards -->")
# What a page that says the first is also searched for
SEARCHED = {
    r"optimisation": "optimization",
    r"\b(un)?alike\b|heterogen": "non-IID data, heterogeneity",
    r"cohort|takes? part": "partial participation, client sampling",
    r"local steps?|drift": "client drift, local updates",
    r"step size|tuned|tuning": "hyperparameter optimization",
    r"worst|robust": "distributionally robust optimization, DRO, fairness",
    r"lower level|inner problem|bilevel": "bilevel optimization, hypergradient",
}
LANGUAGES = {".py": "python", ".yaml": "yaml", ".toml": "toml"}

project = "fedopt"
version = re.search(r'__version__ = "(.*)"', (ROOT / "fedopt" / "__init__.py").read_text(encoding="utf-8"))[1]
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx-mathjax-offline",  # MathJax's files, for no network
]
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints = "description"
default_role = "py:obj"  # of docstrings: `name` is a link where a name is public
napoleon_use_ivar = True
python_use_unqualified_type_names = True
myst_enable_extensions = ["dollarmath"]  # with fences, what GitHub takes for mathematics
myst_fence_as_directive = ["math"]
myst_dmath_allow_space = myst_dmath_allow_digits = False
myst_heading_anchors = 4
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {
    "light_css_variables": {"figure-filter": "none"},
    "dark_css_variables": {"figure-filter": "invert(0.92) hue-rotate(180deg)"},
}
html_title = f"fedopt {version}"
html_copy_source = False


def write_bench(app: Sphinx) -> None:
    """The pages of the benchmark, unless they are newer than its table and what makes them."""
    from fedopt.bench import Entries, released, tasks, write_pages

    index, used = DOCS / BENCH / "index.md", [DOCS / BENCH / "results.parquet", *(ROOT / "fedopt" / "bench").iterdir()]
    if index.exists() and index.stat().st_mtime > max(path.stat().st_mtime for path in used if path.is_file()):
        return
    table = released(DOCS / BENCH)
    with redirect_stdout(StringIO()):
        write_pages(table, tasks(sorted(table["task"].unique())), Entries(), DOCS / BENCH)


def outside(page: Path, link: str) -> str | None:
    """The name of the page that shows a file outside of docs, as links have it; None for all other links."""
    target = Path(os.path.normpath(page.parent / link))
    if target.is_relative_to(DOCS) or not target.is_file():
        return None
    return f"/{OUTSIDE}/{target.relative_to(ROOT).as_posix()}.md"


def write_outside(app: Sphinx) -> None:
    """A page for each file outside of docs that a page links to, or that such a page links to."""
    waiting, seen = [*DOCS.rglob("*.md")], set[Path]()
    while waiting:
        page = waiting.pop()
        if page.is_relative_to(DOCS / OUTSIDE) or page in seen:
            continue
        seen.add(page)
        for link, _ in LINK.findall(page.read_text(encoding="utf-8")):
            if (name := outside(page, link)) is None:
                continue
            file, shown = Path(os.path.normpath(page.parent / link)), DOCS / name.removeprefix("/")
            shown.parent.mkdir(parents=True, exist_ok=True)
            path = os.path.relpath(file, shown.parent)
            if file.suffix == ".md":
                text = moved(file)
                waiting.append(file)
            else:
                title = file.relative_to(ROOT).as_posix()
                language = LANGUAGES.get(file.suffix, "text")
                text = f"# {title}\n\n```{{literalinclude}} {path}\n:language: {language}\n:lineno-start: 1\n```\n"
            text = f"---\norphan: true\n---\n\n{text}"
            if not shown.exists() or shown.read_text(encoding="utf-8") != text:  # else it would be read anew
                shown.write_text(text, encoding="utf-8")


def moved(file: Path) -> str:
    """The text of a page outside of docs, with links from the root of docs."""

    def there(match: re.Match[str]) -> str:
        link, anchor = match[1], match[2] or ""
        target = Path(os.path.normpath(file.parent / link))
        if target.is_relative_to(DOCS):
            return f"](/{target.relative_to(DOCS).as_posix()}{anchor})"
        return f"]({outside(file, link) or link}{anchor})"

    text = LINK.sub(there, file.read_text(encoding="utf-8"))
    return IMAGE.sub(r"![\2](/\1)", text)


def from_repository(app: Sphinx, name: str, source: list[str]) -> None:
    """Links that lead out of docs lead to their pages; index.md gets its navigation."""
    page = DOCS / f"{name}.md"
    if name.startswith(OUTSIDE):
        return
    if name == "index":
        source[0] = CARDS.sub(lambda found: cards(found[1]), source[0]) + tree(pages_of("index"))
    if name == "benchmark":
        source[0] = source[0].replace("<!-- made pages -->", f"[Here they are]({BENCH}/index.md).") + tree(
            [f"{BENCH}/index"]
        )
    if name in LISTS:
        top = pages_of("index") if "/" not in name else []
        source[0] += tree([page for page in pages_of(name) if page not in top])
    source[0] = LINK.sub(lambda m: f"]({outside(page, m[1]) or m[1]}{m[2] or ''})", source[0])


def pages_of(name: str) -> list[str]:
    """The pages that a page links to in its own folder or below, relative to it."""
    links = [link.removeprefix("./") for link, _ in LINK.findall((DOCS / f"{name}.md").read_text(encoding="utf-8"))]
    return [*dict.fromkeys(link.removesuffix(".md") for link in links if link.endswith(".md") and ".." not in link)]


def tree(pages: list[str]) -> str:
    """A hidden tree of contents."""
    return "\n".join(["\n", "```{toctree}", ":hidden:", *pages, "```", ""])


def cards(text: str) -> str:
    """A list of links, each with a sentence, as cards."""
    items = re.findall(r"\* \[(.+?)\]\((.+?)\.md\) (.*)", text)
    each = [
        f"```{{grid-item-card}} {title}\n:link: {page}\n:link-type: doc\n\n{words}\n```" for title, page, words in items
    ]
    return "\n".join(["````{grid} 1 2 3 3", ":gutter: 3", "", *each, "````"])


def finish(app: Sphinx, doctree: nodes.document) -> None:
    """Each picture is as wide as the page and leads to its file; the search finds a page by the field's words."""
    for image in doctree.findall(nodes.image):
        image["width"] = "100%"
    text = doctree.astext()
    found = " ".join(said for pattern, said in SEARCHED.items() if re.search(pattern, text))
    words = dict.fromkeys(
        re.findall(r"\w+", f"federated learning {found}")
    )  # the search takes what is between commas as one
    doctree.insert(0, nodes.meta(name="keywords", content=", ".join(words)))


def setup(app: Sphinx) -> None:
    app.connect("builder-inited", write_bench)
    app.connect("builder-inited", write_outside)
    app.connect("source-read", from_repository)
    app.connect("doctree-read", finish)
