"""What a person sees: a command in a process of its own on a pseudo-terminal, and the screen that it leaves."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

HEIGHT = 1000  # lines, so that none leaves the screen
WIDE = 5000  # columns, in which no line is folded
ROOT = Path(__file__).parents[2]
TIMED = ("concurrent.futures.process", "multiprocessing.connection", "queue", "selectors", "subprocess", "threading")


class Screen(NamedTuple):
    """code: of the command's end. text: what is seen. lines: as the command ended them, whatever the terminal's width."""

    code: int
    text: str
    lines: list[str]


def on_terminal(arguments: Sequence[str], columns: int, cwd: Path) -> Screen:
    """The screen after a command, such as ['fedopt compare', 'outputs'], on a terminal of so many columns."""
    unset = ("COLUMNS", "LINES", "NO_COLOR", "HYDRA_FULL_ERROR")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment |= {"TERM": "xterm-256color", "PYTHONPATH": str(ROOT)}
    terminal, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHT, columns, 0, 0))
    command = [sys.executable, "-P", __file__, *arguments]
    with subprocess.Popen(command, stdin=inner, stdout=inner, stderr=inner, cwd=cwd, env=environment) as process:
        os.close(inner)
        written = b""
        with suppress(OSError):  # how a terminal that nobody holds any more ends on Linux
            while piece := os.read(terminal, 1 << 16):
                written += piece
        os.close(terminal)
    return Screen(
        process.returncode, "".join(f"{line}\n" for line in _emulated(written, columns)), _emulated(written, WIDE)
    )


def _be(arguments: list[str]) -> None:
    """Be the command, in this process. Its clock stands still, so that what is shown of seconds is the same each time."""
    from fedopt import __main__ as commands
    from fedopt import machine

    machine.cores = lambda: 1  # nothing is drawn by another process, for which this one would wait with its clock
    for name in TIMED:
        import_module(name)  # which keep their clock
    time.monotonic = time.perf_counter = lambda: 0.0
    sys.argv = arguments
    commands.main(f"commands.{arguments[0].removeprefix('fedopt').removeprefix('-') or 'run'}")


def _emulated(written: bytes, columns: int) -> list[str]:
    import pyte

    screen = pyte.Screen(columns, HEIGHT)
    pyte.ByteStream(screen).feed(written)
    last = max((k for k, row in screen.buffer.items() if row), default=-1)
    rows = (screen.buffer[k] for k in range(last + 1))
    lines = ["".join(row[c].data for c in range(max(row, default=-1) + 1)).rstrip() for row in rows]
    while lines and not lines[-1]:
        lines.pop()
    return lines


if __name__ == "__main__":
    _be(sys.argv[1:])
