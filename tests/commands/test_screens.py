"""The screens of commands on terminals of 60, 80 and 120 columns. Nine are kept as text in screens/.

FEDOPT_SCREENS=write pytest -m '' tests/commands/test_screens.py writes them anew.
"""

import os
import re
from pathlib import Path

import pytest
from support.terminal import on_terminal

KEPT = Path(__file__).with_name("screens")
WIDTHS = (60, 80, 120)
EXACT = "hardware.dtype=float64"  # the same digits on every machine
NINE = {
    "help": "fedopt --help",
    "algorithm": "fedopt algo=fedmsa --help",
    "keys": "fedopt list keys",
    "mistake": "fedopt algorithm=fedmsa problem=mco",
    "run": f"fedopt algo=fedmsa problem=mco budget.rounds=4 {EXACT}",
    "sweep": f"fedopt -m algo=fedmsa,fednest problem=quadratic_bilevel seed=0,1 budget.comm_rounds=20 eval.points=5 {EXACT}",
    "ls": "fedopt ls outputs",
    "compare": "fedopt compare outputs/multirun --target 0.5",
    "reproduce": "fedopt reproduce --list localbsg",
}
RUNS, LONG = (
    ("run", "sweep"),
    {"run", "sweep", "compare", "reproduce"},
)  # long: seconds, so that others than 80 columns are in full
OTHERS = [
    "fedopt algo=fedmsa",
    "fedopt algo=fedmsa problem=mco --help",
    *(f"fedopt list {topic}" for topic in ("algorithms", "problems", "data")),
    *(f"fedopt {name} --help" for name in ("ls", "new", "list")),
    *(f"fedopt {name} --help" for name in ("compare", "reproduce", "report", "tune", "bench")),
    "fedopt compare outputs --metric acc",
    "fedopt reproduce --list",
    "fedopt report outputs/multirun",
]
TO_COPY = re.compile(r"(to go on|to resume|to compare): |fedopt ")  # a command, which a terminal may break anywhere


def at_widths(commands, default):
    """default: the widths that are looked at by default; at the others in full."""
    return [
        pytest.param(command, width, marks=[] if width in default else pytest.mark.full)
        for command in commands
        for width in WIDTHS
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where a run and a sweep were done, on a terminal of 80 columns; their screens are beside it, as run and sweep."""
    path = tmp_path_factory.mktemp("screens")
    return path, {(name, 80): on_terminal(NINE[name].split(), 80, path) for name in RUNS}


def check(screen, width):
    """Nothing is broken in what a person reads."""
    assert "\\x1b" not in screen.text
    assert "\x1b" not in screen.text
    assert "Traceback" not in screen.text
    long = [line for line in screen.lines if len(line) > width and " " in line.strip()]
    assert not [line for line in long if not TO_COPY.match(line)]


@pytest.mark.parametrize(
    ("name", "width"), [*at_widths([name for name in NINE if name not in LONG], WIDTHS), *at_widths(sorted(LONG), [80])]
)
def test_nine_screens(name, width, folder, tmp_path):
    """As they were when somebody looked at them."""
    path, done = folder
    screen = done.get((name, width)) or on_terminal(NINE[name].split(), width, tmp_path if name in RUNS else path)
    check(screen, width)
    assert screen.code == (2 if name == "mistake" else 0)
    text = re.sub(r" +\d[\d.]* kB", "  SIZE", screen.text)
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d", "YYYY-MM-DD HH:MM", text)
    kept = KEPT / f"{name}.{width}.txt"
    if os.environ.get("FEDOPT_SCREENS") == "write":
        kept.write_text(text)
    assert text == kept.read_text()


@pytest.mark.parametrize(("command", "width"), at_widths(OTHERS, []))
def test_other_screens(command, width, folder):
    check(on_terminal(command.split(), width, folder[0]), width)
