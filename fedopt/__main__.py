"""Entry points of the installed programs, and of `python -m fedopt`, which does the same as `fedopt`.

Ctrl-C prints one line instead of a traceback, even while modules are still being imported.
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

with suppress(FileNotFoundError):  # the working directory was removed
    if sys.path[0] in ("", os.getcwd()) and Path(__file__).parents[1] != Path.cwd():
        del sys.path[0]  # never import from the working directory, which may contain files from somebody else

from fedopt.console import ending_at_once
from fedopt.machine import short_spins


def main(module: str = "commands.run") -> None:
    """Execute a program of fedopt: prepare the process, import a module, and call the module's function `main`.

    Args:
        module: The module's name without `fedopt.`.
    """
    os.environ.update(short_spins(), MPLBACKEND="Agg")  # figures go to files, whatever backend the user has set
    os.environ["PYTHONSAFEPATH"] = "1"  # child processes do not import from the working directory either
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it would warn in each run if HOME is read-only
    with ending_at_once():
        command = import_module(f"fedopt.{module}").main
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)  # Ctrl-C no longer matters at exit
    atexit.register(gc.freeze)  # skip the garbage collection of all of torch's objects at exit
    command()


compare = partial(main, "commands.compare")
reproduce = partial(main, "commands.reproduce")
tune = partial(main, "commands.tune")
report = partial(main, "commands.report")
bench = partial(main, "commands.bench")

if __name__ == "__main__":
    main()
