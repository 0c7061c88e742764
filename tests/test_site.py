"""The site, built once and opened in Chromium: nothing is cut, at the width of a telephone, a tablet and a desk."""

import subprocess
import sys

import pytest
from support.command import ROOT

pytestmark = pytest.mark.slow
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


def test_public_names_are_linked(site):
    """Each is in the index with an entry of its own, and types lead to it."""
    page = (site / "api.html").read_text(encoding="utf-8")
    for name in ("run", "Result", "Round.exchange", "Client.inner_gradient", "Bilevel.f", "Schedule"):
        assert f'id="fedopt.{name}"' in page
        assert f"#fedopt.{name}" in (site / "genindex.html").read_text(encoding="utf-8")
    assert 'href="#fedopt.Result"' in page
