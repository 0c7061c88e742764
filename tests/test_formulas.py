"""The formulas of the pages are TeX that can be read, as GitHub and the site find them."""

from pathlib import Path

from latex2mathml.converter import convert
from markdown_it import MarkdownIt
from mdit_py_plugins.dollarmath import dollarmath_plugin
from support.command import ROOT

MARKDOWN = MarkdownIt("commonmark").enable("table").use(dollarmath_plugin, allow_space=False, allow_digits=False)
LOST_ON_GITHUB = [
    f"\\{letter}" for letter in ",;:!{}|_*"
]  # inside of dollars, where it takes the backslash for Markdown's


def formulas(page: Path) -> list[tuple[str, bool]]:
    """The text of each formula, and whether it stands in a line of text."""
    tokens = [part for token in MARKDOWN.parse(page.read_text()) for part in (token, *(token.children or ()))]
    fences = [(token.content, False) for token in tokens if token.type == "fence" and token.info == "math"]
    return fences + [(token.content, True) for token in tokens if token.type == "math_inline"]


def mistake(tex: str, inline: bool) -> str:
    """What is wrong with a formula; empty for a good one."""
    if lost := [sign for sign in LOST_ON_GITHUB if inline and sign in tex]:
        return f"GitHub loses the backslash of {lost[0]}"
    if tex.count("{") != tex.count("}"):
        return "a brace is open"
    try:
        return "a command is unknown" if "\\" in convert(tex) else ""
    except Exception as error:
        return f"cannot be read: {type(error).__name__} {error}"


def test_formulas():
    pages = [page for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")] if "_outside" not in page.parts]
    found = {(page.name, *formula) for page in pages for formula in formulas(page)}
    assert len(found) > 500
    wrong = [f"{name}: {tex}: {why}" for name, tex, inline in sorted(found) if (why := mistake(tex, inline))]
    assert not wrong, "\n".join(wrong)


def test_mistakes_are_found():
    wrong = [(r"\frac{1}{", False), (r"\sqrt{x", False), (r"\gramma", False), (r"a \, b", True)]
    assert all(mistake(*formula) for formula in wrong)
    assert not mistake(r"\begin{aligned} a &= \frac 1 2 \\ b &\leftarrow c \, d \end{aligned}", False)
