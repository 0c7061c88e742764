"""The documentation site, built with `sphinx-build -W docs build/site`.

Its pages are the Markdown files of this folder. Three kinds of content are generated during the build and are not in git: long
generated blocks of pages (`IN_GIT` in scripts/docs), the pages of the benchmark, which take a minute, and a page for each file
outside of docs that a page links to. The navigation contains the pages that index.md links to and, below those in `LISTS`, the
pages that they link to.
"""

import os
import re
import runpy
import shutil
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import cache
from io import StringIO
from itertools import chain
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

DOCS = Path(__file__).parent
ROOT = DOCS.parent
OUTSIDE = "_outside"  # folder of the pages of files outside of docs
# Folder of the benchmark's pages and its latest table
BENCH = max(DOCS.glob("bench/*/results.parquet")).parent.relative_to(DOCS).as_posix()
GENERATED = "<!-- generated: "
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
)  # the pages that they link to are below them in the navigation
CARDS = re.compile(r"(?s)<!-- cards -->\n(.*?)<!-- /cards -->")
# Pattern in a page -> terms of the field under which the search also finds the page
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
    "sphinx-mathjax-offline",  # the site needs no network
]
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints = "description"
default_role = "py:obj"  # `name` in a docstring is a link if the name is public
napoleon_use_ivar = True
python_use_unqualified_type_names = True
myst_enable_extensions = ["dollarmath"]  # with fences, the mathematics that GitHub shows
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
html_show_copyright = False  # LICENSE names the authors


def write_bench(app: Sphinx) -> None:
    """Write the pages of the benchmark, unless they are newer than its table and its code."""
    from fedopt.bench import Entries, tasks, write_pages
    from fedopt.bench.release import read_table

    index, used = DOCS / BENCH / "index.md", [DOCS / BENCH / "results.parquet", *(ROOT / "fedopt" / "bench").iterdir()]
    if index.exists() and index.stat().st_mtime > max(path.stat().st_mtime for path in used if path.is_file()):
        return
    table = read_table(DOCS / BENCH / "results.parquet")
    with redirect_stdout(StringIO()):
        write_pages(table, [task for task in tasks([]) if task.name in set(table["task"])], Entries(), DOCS / BENCH)


def copy_interactive(app: Sphinx, error: Exception | None) -> None:
    """Copy the interactive file of the benchmark next to the page that links to it."""
    if error is None and app.builder.format == "html":
        shutil.copy(DOCS / BENCH / "interactive.html", Path(app.outdir) / BENCH)


@cache
def script() -> dict[str, Callable[[str], str]]:
    """Return the functions of scripts/docs."""
    return runpy.run_path(str(ROOT / "scripts" / "docs"))


@cache
def complete(text: str) -> str:
    """Return the text of a page with its generated blocks as on the site."""
    return script()["filled"](text) if GENERATED in text else text


def outdated(app: Sphinx, env: BuildEnvironment, *_: set[str]) -> list[str]:
    """Return the pages with generated blocks that were read before their sources changed."""
    folders = (ROOT / "conf", ROOT / "fedopt", DOCS / "results")
    files = chain([ROOT / "scripts" / "docs", DOCS / "choosing.yaml"], *(folder.rglob("*.*") for folder in folders))
    newest = max(file.stat().st_mtime for file in files if file.suffix not in (".pyc", ".svg") and file.is_file())
    pages = (name for name, read in env.all_docs.items() if read / 1e6 < newest)
    texts = ((name, DOCS / f"{name}.md") for name in pages)
    return [name for name, page in texts if page.exists() and GENERATED in page.read_text(encoding="utf-8")]


def outside(page: Path, link: str) -> str | None:
    """Return the link to the page of a file outside of docs; None for all other links."""
    target = Path(os.path.normpath(page.parent / link))
    if target.is_relative_to(DOCS) or not target.is_file():
        return None
    return f"/{OUTSIDE}/{target.relative_to(ROOT).as_posix()}.md"


def write_outside(app: Sphinx) -> None:
    """Write a page for each file outside of docs that a page links to, directly or through other files."""
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
            if (
                not shown.exists() or shown.read_text(encoding="utf-8") != text
            ):  # keep the modification time of unchanged pages
                shown.write_text(text, encoding="utf-8")


def moved(file: Path) -> str:
    """Return the text of a page outside of docs, with links relative to docs."""

    def from_docs(match: re.Match[str]) -> str:
        link, anchor = match[1], match[2] or ""
        target = Path(os.path.normpath(file.parent / link))
        if target.is_relative_to(DOCS):
            return f"](/{target.relative_to(DOCS).as_posix()}{anchor})"
        return f"]({outside(file, link) or link}{anchor})"

    text = LINK.sub(from_docs, file.read_text(encoding="utf-8"))
    return IMAGE.sub(r"![\2](/\1)", text)


def from_repository(app: Sphinx, name: str, source: list[str]) -> None:
    """Fill the generated blocks of a page, point links out of docs to the pages of these files, and add the navigation."""
    page = DOCS / f"{name}.md"
    if name.startswith(OUTSIDE):
        return
    source[0] = complete(source[0])
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
    """Return the pages in the folder of a page or below it that the page links to, relative to it."""
    text = complete((DOCS / f"{name}.md").read_text(encoding="utf-8"))
    links = [link.removeprefix("./") for link, _ in LINK.findall(text)]
    return [*dict.fromkeys(link.removesuffix(".md") for link in links if link.endswith(".md") and ".." not in link)]


def tree(pages: list[str]) -> str:
    """Return a hidden table of contents."""
    return "\n".join(["\n", "```{toctree}", ":hidden:", *pages, "```", ""])


def cards(text: str) -> str:
    """Convert a list of links, each with a sentence, to cards."""
    items = re.findall(r"\* \[(.+?)\]\((.+?)\.md\) (.*)", text)
    each = [
        f"```{{grid-item-card}} {title}\n:link: {page}\n:link-type: doc\n\n{about}\n```" for title, page, about in items
    ]
    return "\n".join(["````{grid} 1 2 3 3", ":gutter: 3", "", *each, "````"])


def is_narrow(picture: bytes) -> bool:
    """Return whether a picture has one panel: it is an SVG file of less than 300 pt, or a PNG file that is not wide."""
    if points := re.search(rb'<svg[^>]* width="([\d.]+)pt"', picture):
        return float(points[1]) < 300
    width, height = int.from_bytes(picture[16:20], "big"), int.from_bytes(picture[20:24], "big")
    return picture.startswith(b"\x89PNG") and width < 1.3 * height


def finish(app: Sphinx, doctree: nodes.document) -> None:
    """Show pictures at the width of the page or, with one panel, narrower, and add the field's terms for the search."""
    for image in doctree.findall(nodes.image):
        image["width"] = "100%"
        if (picture := Path(app.srcdir, image["uri"])).is_file() and is_narrow(picture.read_bytes()):
            image["classes"].append("one-panel")
    text = doctree.astext()
    found = " ".join(terms for pattern, terms in SEARCHED.items() if re.search(pattern, text))
    words = dict.fromkeys(re.findall(r"\w+", f"federated learning {found}"))  # the search index splits at commas only
    doctree.insert(0, nodes.meta(name="keywords", content=", ".join(words)))


def setup(app: Sphinx) -> None:
    app.connect("builder-inited", write_bench)
    app.connect("builder-inited", write_outside)
    app.connect("env-get-outdated", outdated)
    app.connect("source-read", from_repository)
    app.connect("doctree-read", finish)
    app.connect("build-finished", copy_interactive)
