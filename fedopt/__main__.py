"""The commands as programs, and `python -m fedopt`, which does the same as `fedopt`.

Ctrl-C gives one line also while Python still imports.
"""

import atexit
import gc
import logging
import os
import signal
import sys
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path

with suppress(FileNotFoundError):  # a working directory that was removed
    if sys.path[0] in ("", os.getcwd()) and Path(__file__).parents[1] != Path.cwd():
        del sys.path[0]  # the working directory, where a file that was sent may lie

from fedopt.console import ending_at_once
from fedopt.machine import short_spins


def main(module: str = "commands.run") -> None:
    """Call the function `main` of a module of fedopt, as the command `fedopt` does. module: its name without `fedopt.`."""
    os.environ.update(short_spins(), MPLBACKEND="Agg")  # whatever there is for windows and notebooks
    os.environ["PYTHONSAFEPATH"] = "1"  # processes that are started do not search the working directory either
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # where HOME is read-only, it would warn in each run
    with ending_at_once():
        command = import_module(f"fedopt.{module}").main
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)  # when all is done
    atexit.register(gc.freeze)  # Python would look through all of torch for garbage before it ends
    command()


compare = partial(main, "commands.compare")
reproduce = partial(main, "commands.reproduce")
tune = partial(main, "commands.tune")
report = partial(main, "commands.report")
bench = partial(main, "commands.bench")

if __name__ == "__main__":
    main()
