"""Cores and memory of this machine, and numbers from environment variables. This module does not import torch."""

import os
import platform
from contextlib import AbstractContextManager, suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

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


def one_blas_thread() -> AbstractContextManager[Any]:
    """Return a context in which OpenBLAS, the linear algebra of NumPy and SciPy, uses one thread.

    L-BFGS in SciPy and scikit-learn works on small matrices, for which two threads take five times as long as one.
    """
    return _blas().limit(limits=1, user_api="blas")


@cache
def _blas() -> Any:
    """Return a controller of the threads of the libraries that are loaded."""
    import scipy.linalg  # noqa: F401  (SciPy has an OpenBLAS of its own, which the controller must find)
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def memory() -> int:
    """Return the machine's memory in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
