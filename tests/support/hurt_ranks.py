"""Started by torchrun: fedopt, of which one rank is hurt at the n-th call of a function.

python hurt_ranks.py kill|fail|wait|hang RANK FUNCTION N ARGUMENTS...
"""

import os
import pkgutil
import signal
import sys
import time
from typing import Any

from fedopt.commands import run as cli
from fedopt.console import interrupts
from fedopt.errors import UserError


def hurt(how: str) -> None:
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "fail":
        raise UserError("this rank cannot")
    if how == "hang":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("waits", flush=True)
    time.sleep(200)


def install(how: str, name: str, calls: int) -> None:
    owner_name, _, function_name = name.rpartition(".")
    owner = pkgutil.resolve_name(owner_name)
    function = getattr(owner, function_name)
    left = calls

    def hurting(*arguments: Any, **named: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            hurt(how)
        return function(*arguments, **named)

    setattr(owner, function_name, hurting)


if __name__ == "__main__":
    how, rank, name, calls, *sys.argv[1:] = sys.argv[1:]
    interrupts.GRACE = 1
    if os.environ["RANK"] == rank:
        install(how, name, int(calls))
    cli.main()
