"""Started by torchrun: fedopt, with words of its own on each rank. python unlike_ranks.py WORDS0 WORDS1 ARGUMENTS...

Each rank works in the folder RANK, where there is one, and leaves its exit code in the file code.RANK.
"""

import os
import sys
from pathlib import Path

from support.command import code_of

from fedopt.commands import run

if __name__ == "__main__":
    *words, rank = *sys.argv[1:3], int(os.environ["RANK"])
    sys.argv[1:] = [*sys.argv[3:], *words[rank].split()]
    left = Path(f"code.{rank}").absolute()
    if Path(str(rank)).is_dir():
        os.chdir(str(rank))
    code = code_of(run.main)
    left.write_text(str(code))
    sys.exit(code)
