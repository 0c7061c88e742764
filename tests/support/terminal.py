"""What a person sees: a command on a pseudo-terminal, in a fork of this process, and the screen that it leaves."""

import fcntl
import os
import pty
import struct
import sys
import termios
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pyte

from fedopt import __main__ as commands

HEIGHT = 1000  # lines, so that none leaves the screen
WIDE = 5000  # columns, in which no line is folded


class Screen(NamedTuple):
    """code: of the command's end. text: what is seen. lines: as the command ended them, whatever the terminal's width."""

    code: int
    text: str
    lines: list[str]


def on_terminal(arguments: Sequence[str], columns: int, cwd: Path) -> Screen:
    """The screen after a command, such as ['fedopt-compare', 'outputs'], on a terminal of so many columns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, none of which is needed there
        pid, terminal = pty.fork()
    if pid == 0:
        _be(arguments, columns, cwd)
    written = b""
    with suppress(OSError):  # how a terminal that nobody holds any more ends on Linux
        while piece := os.read(terminal, 1 << 16):
            written += piece
    os.close(terminal)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return Screen(code, "".join(f"{line}\n" for line in _emulated(written, columns)), _emulated(written, WIDE))


def _be(arguments: Sequence[str], columns: int, cwd: Path) -> None:
    """Run the command as this process, and end it."""
    code = 70
    try:
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHT, columns, 0, 0))
        for name, descriptor in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
            stream = open(descriptor, "r" if descriptor == 0 else "w", buffering=1, closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
        os.environ["TERM"] = "xterm-256color"
        for name in ("COLUMNS", "LINES", "NO_COLOR", "HYDRA_FULL_ERROR"):
            os.environ.pop(name, None)
        time.monotonic = time.perf_counter = lambda: 0.0  # what is shown of seconds is the same each time
        os.chdir(cwd)
        sys.argv = list(arguments)
        commands.main(f"commands.{arguments[0].removeprefix('fedopt').removeprefix('-') or 'run'}")
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _emulated(written: bytes, columns: int) -> list[str]:
    screen = pyte.Screen(columns, HEIGHT)
    pyte.ByteStream(screen).feed(written)
    last = max((k for k, row in screen.buffer.items() if row), default=-1)
    rows = (screen.buffer[k] for k in range(last + 1))
    lines = ["".join(row[c].data for c in range(max(row, default=-1) + 1)).rstrip() for row in rows]
    while lines and not lines[-1]:
        lines.pop()
    return lines
