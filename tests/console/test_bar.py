"""The bar of a run and of a sweep: its screens at three widths, as text, and the time left."""

import io
import re
import sys
from types import SimpleNamespace

import pytest

from fedopt.console.bar import Bar
from fedopt.console.say import note, say
from fedopt.running.display import Display
from fedopt.running.loop import Moment


class Terminal(io.StringIO):
    def isatty(self):
        return True

    @property
    def last(self):
        """The last line that was drawn, without what bars are made of."""
        lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.getvalue()).replace("\r", "\n").splitlines()
        return re.sub("[━╸╺]+", "=", [line for line in lines if line.strip()][-1]).rstrip()


@pytest.fixture
def clock(monkeypatch):
    """[now], which a test moves."""
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setenv("TERM", "xterm")
    return now


def shown(terminal, clock, jobs, spent):
    """What a run shows at a share of its budget, three minutes after it began; as the second of its jobs where there are several.

    A single run is measured from its first round on: 120 s for 0.2. Of nine, 180 s went for 0.25 of one of eight.
    """
    bar = Bar(jobs, stream=terminal)
    display = Display(bar, ["test_accuracy", "test_loss", "train_loss"])
    if jobs > 1:
        bar.next(skipped=True)
    row = {"comm_rounds": 4, "test_accuracy": 90.5, "test_loss": 0.31, "train_loss": 0.25}
    for round, share in enumerate((0.0, 0.05, spent)):
        display(Moment(round, None, share, row, False, None))
        clock[0] += 60
    display(Moment(120, None, spent, None, False, None))
    bar._progress.refresh()
    line = terminal.last
    bar.close()
    return line


SCREENS = {
    (60, 1): "=  25% 0:07:30 left  round 120  test_accuracy 90.5",
    (80, 1): "=  25% 0:07:30 left  round 120  test_accuracy 90.5",
    (120, 1): "=  25% 0:07:30 left  round 120  test_accuracy 90.5  test_loss 0.31  train_loss 0.25",
    (60, 9): "=  14% 1:33:00 left  2 of 9  round 120",
    (80, 9): "=  14% 1:33:00 left  2 of 9  round 120  test_accuracy 90.5",
    (120, 9): "=  14% 1:33:00 left  2 of 9  round 120  test_accuracy 90.5  test_loss 0.31  train_loss 0.25",
}


@pytest.mark.parametrize(("width", "jobs"), SCREENS)
def test_screens(width, jobs, clock, monkeypatch):
    """The time left comes first at every width; metrics are left out as a whole, and none is cut."""
    monkeypatch.setenv("COLUMNS", str(width))
    assert shown(Terminal(), clock, jobs, 0.25) == SCREENS[width, jobs]


def test_time_left_counts_what_ran_only(clock, monkeypatch):
    """Jobs that had ended before take no time, and say nothing about that of others."""
    bar = Bar(4, quiet=True)
    bar.next(skipped=True)
    clock[0] += 30
    assert bar.next() == "0:01:00 left"


def test_notes_are_not_mistakes(capsys, monkeypatch):
    note("a file is passed over")
    say("problem: is missing")
    assert capsys.readouterr().err.splitlines() == ["note: a file is passed over", "fedopt: problem: is missing"]
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    monkeypatch.delenv("NO_COLOR", raising=False)
    note("a file is passed over")
    assert terminal.getvalue() == "\x1b[36mnote\x1b[0m: a file is passed over\n"


def test_a_note_stands_once_for_all_jobs(capsys):
    bar = Bar(3)
    for _ in range(3):
        bar.note("a file is passed over")
    assert capsys.readouterr().err.count("passed over") == 1
    Bar(quiet=True).note("nobody asked")
    assert not capsys.readouterr().err


class Cell:
    """Of IPython, what a bar asks for: a kernel, and displays by their handles."""

    kernel = 1

    def __init__(self):
        self.shown = []

    def __call__(self, content, raw, display_id):
        assert raw
        assert display_id
        self.shown.append([])
        return self

    def update(self, content, raw):
        self.shown[-1].append(content)


def test_a_notebook_has_one_bar(clock, monkeypatch, capsys):
    """It is shown in place, ends at all of it, and has no markup of a text's; rows are no lines."""
    cell = Cell()
    monkeypatch.setitem(
        sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: cell, display=SimpleNamespace(display=cell))
    )
    bar = Bar()
    display = Display(bar, ["<b>loss"])
    for round in range(101):
        display(Moment(round, None, round / 100, {"comm_rounds": round, "<b>loss": 1.0}, False, None))
        clock[0] += 0.05
    bar.close()
    (shown,) = cell.shown
    assert 20 <= len(shown) <= 26
    assert shown[-1]["text/plain"].startswith("100%")
    assert "&lt;b&gt;loss" in shown[-1]["text/html"]
    bar.line("done")
    assert capsys.readouterr() == ("done\n", "")
    Bar(quiet=True).move(1)
    assert len(cell.shown) == 1
