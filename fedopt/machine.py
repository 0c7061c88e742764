"""The limits of this machine: its cores, its memory, and numbers that environment variables set. Imports no torch."""

import os
import platform
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from fedopt.errors import UserError

T = TypeVar("T", int, float)
PLACE = "FEDOPT_PLACE"  # the variable that tells a run of several at once which one of them it is, from 0


def number_of(variable: str, default: T) -> T:
    """Return the number in a variable of the environment, or the default. The default's type decides whether it must be whole.

    Raises:
        UserError: The variable is not a number, or is negative.
    """
    text = os.environ.get(variable, str(default))
    with suppress(ValueError):
        number = type(default)(text)
        if number >= 0:
            return number
    raise UserError(f"{variable}={text}: this environment variable must be a number, 0 or more")


def cores() -> int:
    """Return the number of CPU cores that this process may use; on macOS, which does not tell, all cores."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor() -> str:
    """Return the model of the CPU, or its architecture where the system does not tell."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def short_spins() -> dict[str, str]:
    """Return the environment variable that makes OpenMP's waiting threads sleep instead of spinning; {} if the user has set it.

    torch reads it when it is loaded. Threads that spin take the cores from other runs, which then take up to four times as
    long: see `scripts/bench contention`.
    """
    return {"GOMP_SPINCOUNT": "0"} if {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}.isdisjoint(os.environ) else {}


def memory() -> int:
    """Return the machine's memory in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
