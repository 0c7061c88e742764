"""`python -m fedopt`, the same as the `fedopt` command."""

import os
import sys
from pathlib import Path

if sys.path[0] in ("", os.getcwd()) and Path(__file__).parents[1] != Path.cwd():
    del sys.path[0]  # the working directory, where a file that was sent may lie

from fedopt.cli import main

if __name__ == "__main__":
    main()
