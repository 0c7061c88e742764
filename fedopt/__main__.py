"""`python -m fedopt`, the same as the `fedopt` command."""

import os
import sys
from contextlib import suppress
from pathlib import Path

with suppress(FileNotFoundError):  # a working directory that was removed
    if sys.path[0] in ("", os.getcwd()) and Path(__file__).parents[1] != Path.cwd():
        del sys.path[0]  # the working directory, where a file that was sent may lie

from fedopt.cli import main

if __name__ == "__main__":
    main()
