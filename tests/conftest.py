"""Property tests draw the same examples every time, and may be slow on a loaded machine. Pictures are drawn where a test asks."""

import os
import shutil
import signal
import sys

import pytest
import torch
from hypothesis import settings

settings.register_profile("fedopt", deadline=None, derandomize=True, database=None)
settings.load_profile("fedopt")

torch.set_num_threads(1)  # tests are small, and several processes of them share the cores
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the processes that they start
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # each of which would compile all of fedopt
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where a shell has the tests in the background


def pytest_configure(config):
    """With -n, a file's tests stay together in one process, where they share what they compose."""
    if getattr(config.option, "dist", "no") == "load":
        config.option.dist = "worksteal"


def pytest_collection_modifyitems(items):
    """The longest tests first, so that no worker is left alone with one at the end."""
    items.sort(key=lambda item: "test_notebook" not in item.nodeid and "torture" not in item.nodeid)


@pytest.fixture(autouse=True)
def pictures(request, monkeypatch):
    """Pictures are drawn in tests that are marked `pictures`: it takes ten times as long as a small run. In the others runs draw
    none, and commands lay them out without a file's pixels or paths."""
    drawn = int(request.node.get_closest_marker("pictures") is not None)
    monkeypatch.setenv("FEDOPT_PICTURES", str(drawn))  # for the processes that the test starts
    if not drawn:
        monkeypatch.setattr("matplotlib.figure.Figure.savefig", unrendered)


def unrendered(figure, file, format, metadata=None):
    """Leave the first bytes of a file of this format alone."""
    file.write({"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<svg"}[format])


@pytest.fixture(autouse=True)
def queue(tmp_path_factory, monkeypatch):
    """Of a cluster: not the user's."""
    monkeypatch.setenv("FEDOPT_QUEUE", str(tmp_path_factory.getbasetemp() / "queue"))


@pytest.fixture(autouse=True)
def paths_of_modules(monkeypatch):
    """No test leaves anything in them."""
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.fixture(autouse=True)
def modules(tmp_path_factory):
    """A test's own modules are forgotten after it: other tests may have others of these names."""
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path_factory.getbasetemp())):
            del sys.modules[name]


@pytest.fixture(scope="module")
def browser():
    """Chromium, which pages are looked at with."""
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("no Chromium on the path")
    with driver.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()
