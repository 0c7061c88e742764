"""Cores and memory of this machine, and numbers from environment variables. This module does not import torch."""

import os
import platform
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from fedopt.errors import UserError

T = TypeVar("T", int, float)
PLACE = "FEDOPT_PLACE"  # environment variable with the index, from 0, of a process among those that run in parallel


def number_of(variable: str, default: T) -> T:
    """Return the number in an environment variable, or the default if the variable is not set.

    Args:
        variable: The variable's name.
        default: The default. If it is an int, the number must be whole.

    Raises:
        UserError: The variable is not such a number, or is negative.
    """
    text, kind = os.environ.get(variable, str(default)), "whole number" if isinstance(default, int) else "number"
    with suppress(ValueError):
        number = type(default)(text)
        if number >= 0:
            return number
    raise UserError(f"{variable}={text}: this environment variable must be a {kind} of at least 0")


def cores() -> int:
    """Return the number of CPU cores that this process may use; on macOS, which does not report it, the number of all cores."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor() -> str:
    """Return the model name of the CPU, or its architecture if the system does not report the model."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def short_spins() -> dict[str, str]:
    """Return the environment variable, with its value, that makes waiting OpenMP threads sleep instead of spin.

    torch reads the variable when it is loaded. Spinning threads keep cores busy that other runs need, which can make these
    runs four times slower (measure it with `scripts/bench contention`). The result is {} if the user has already chosen
    how threads wait, by an environment variable.
    """
    return {"GOMP_SPINCOUNT": "0"} if {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}.isdisjoint(os.environ) else {}


def memory() -> int:
    """Return the machine's memory in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
