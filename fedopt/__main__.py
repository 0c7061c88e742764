"""The commands as programs, and `python -m fedopt`, the same as `fedopt`. Ctrl-C while Python still imports is one line, too."""

import atexit
import os
import signal
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path

with suppress(FileNotFoundError):  # a working directory that was removed
    if sys.path[0] in ("", os.getcwd()) and Path(__file__).parents[1] != Path.cwd():
        del sys.path[0]  # the working directory, where a file that was sent may lie

from fedopt.console import ending_at_once
from fedopt.machine import short_spins


def main(module: str = "commands.run") -> None:
    """Entry point of `fedopt`. module: of fedopt, whose `main` is called."""
    os.environ.update(short_spins(), MPLBACKEND="Agg")  # whatever there is for windows and notebooks
    with ending_at_once():
        command = import_module(f"fedopt.{module}").main
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)  # when all is done
    command()


def compare() -> None:
    """Entry point of `fedopt-compare`."""
    main("commands.compare")


def reproduce() -> None:
    """Entry point of `fedopt-reproduce`."""
    main("commands.reproduce")


def tune() -> None:
    """Entry point of `fedopt-tune`."""
    main("commands.tune")


def report() -> None:
    """Entry point of `fedopt-report`."""
    main("commands.report")


def bench() -> None:
    """Entry point of `fedopt-bench`."""
    main("commands.bench")


if __name__ == "__main__":
    main()
