"""Set the threads, the precision, the memory allocation and the modes of torch and NumPy in the current process."""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import Any

import numpy as np
import torch

from fedopt.config import Hardware
from fedopt.errors import UserError
from fedopt.machine import PLACE, cores, number_of

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"  # without it cuBLAS is not deterministic
_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD = -3, -1
_all: Any = torch.backends
BACKENDS = (  # each has its own float32 precision
    *(_all, _all.cuda.matmul, _all.cudnn, _all.cudnn.conv, _all.cudnn.rnn),
    *(_all.mkldnn, _all.mkldnn.matmul, _all.mkldnn.conv, _all.mkldnn.rnn),
)


def _default_device() -> torch.device | None:
    device = torch.get_default_device()
    return None if device.type == "cpu" else device


def _precisions() -> tuple[list[str], tuple[Any, ...]]:
    """Return the float32 precision of each backend, and the settings of torch's older interface.

    The second tuple is empty if the older interface contradicts the newer one.
    """
    older: tuple[Any, ...] = ()
    with suppress(RuntimeError):
        older = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    return [backend.fp32_precision for backend in BACKENDS], older


def _set_precisions(precisions: tuple[list[str], tuple[Any, ...]]) -> None:
    newer, older = precisions
    if older:
        torch.set_float32_matmul_precision(older[0])
        torch.backends.cudnn.allow_tf32 = older[1]
    for backend, precision in zip(BACKENDS, newer, strict=True):
        backend.fp32_precision = precision


# Settings of the process that affect numbers: functions to get and to set them
CONFIGURED: list[Any] = [
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (_precisions, _set_precisions),
]
# The same for modes, with the name of each mode and its value in a new process
MODES: list[Any] = [
    (torch.get_default_dtype, torch.set_default_dtype, "torch.set_default_dtype", torch.float32),
    (_default_device, torch.set_default_device, "torch.set_default_device", None),
    (torch.is_grad_enabled, torch.set_grad_enabled, "torch.set_grad_enabled", True),
    (np.geterr, lambda to: np.seterr(**to), "numpy.seterr", dict.fromkeys(np.geterr(), "warn") | {"under": "ignore"}),
]
for _kind in ("cpu", "cuda"):
    _get, _set = partial(torch.is_autocast_enabled, _kind), partial(torch.set_autocast_enabled, _kind)
    MODES.append((_get, _set, "torch.autocast", False))


def configure(hardware: Hardware, jobs: int = 1) -> torch.device:
    """Apply the hardware settings to this process, and return the device.

    Args:
        hardware: The hardware settings.
        jobs: The number of runs that share the machine.

    Raises:
        UserError: The device does not exist, or code around the run has changed a mode of torch or NumPy.
    """
    device = torch.device(hardware.device)
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise UserError("hardware.device=cuda: torch finds no GPU; use hardware=cpu, or a CUDA build of torch")
        count = torch.cuda.device_count()
        index = device.index if device.index is not None else _in_turn(count)
        if index >= count:
            raise UserError(f"hardware.device=cuda:{index}: the number of GPUs is {count}; use an index below it")
        device = torch.device("cuda", index)
        torch.cuda.set_device(device)
    processes = jobs * max(1, number_of("LOCAL_WORLD_SIZE", 1))
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if "TORCHELASTIC_RUN_ID" in os.environ and asked == "1":
        asked = ""  # torchrun's own choice
    ours = int(asked) if asked.isdecimal() and 0 < int(asked) <= 4096 else max(1, cores() // processes)
    torch.set_num_threads((hardware.threads or ours) if _first_to_compute() == os.getpid() else 1)
    _set_precisions((["none"] * len(BACKENDS), ()))  # otherwise they contradict the next line
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = hardware.tf32
    if hardware.deterministic:
        os.environ.setdefault(WORKSPACE, ":4096:8")
    torch.set_deterministic_debug_mode(2 if hardware.deterministic else 0)  # the other function imports all of inductor
    for _, put, _, value in MODES:
        put(value)
    refuse_changed("code around this run, such as `with torch.device(...)`,")
    _keep_freed_memory()
    return device


@cache
def _first_to_compute() -> int:
    """Return the id of the process that calls this function first, and restrict its forked copies to one thread.

    A forked process lacks the OpenMP threads of the original process and would wait for them forever. Only the user's code
    creates such processes, for example by `multiprocessing`; fedopt forks only processes that compute nothing.
    """
    os.register_at_fork(after_in_child=partial(torch.set_num_threads, 1))
    return os.getpid()


def refuse_changed(who: str) -> None:
    """Raise UserError if a mode of torch or NumPy differs from the value that `configure` has set.

    Args:
        who: The code that may have changed the mode, as the subject of the message.
    """
    if changed := [name for get, _, name, value in MODES if get() != value]:
        raise UserError(f"{who} sets {changed[0]} for the whole process, which changes the run's numbers; remove it")


def _in_turn(count: int) -> int:
    """Return the index of the GPU for this process. The ranks of a run and the parallel runs of a sweep use the GPUs in turn.

    Args:
        count: The number of GPUs. If a run has more ranks than GPUs, the index may be too large, and `configure` raises an error.
    """
    ranks = number_of("LOCAL_WORLD_SIZE", 1)
    return (number_of(PLACE, 0) * ranks + number_of("LOCAL_RANK", 0)) % max(count, ranks)


@contextmanager
def restored() -> Iterator[None]:
    """Restore, when the context ends, all settings that `configure` changed.

    This is for runs in the user's process, which may use other modes of torch and NumPy.
    """
    before = [(get, put, get()) for get, put, *_ in [*CONFIGURED, *MODES]]
    workspace = os.environ.get(WORKSPACE)
    try:
        with torch.inference_mode(False):
            yield
    finally:
        if workspace is None:
            os.environ.pop(WORKSPACE, None)
        for get, put, value in before:
            if get() != value:  # an outer `with torch.device(...)` is still active
                put(value)


def _keep_freed_memory() -> None:
    """Let glibc reuse freed memory instead of returning it to the system.

    The vectors of a stack of clients have several megabytes, and allocating a new page takes longer than computing with it.
    Without this setting, allocation takes half the time of a FedMSA round on imbalanced MNIST.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # another C library: runs are only slower
            libc = ctypes.CDLL("libc.so.6")
            libc.mallopt(_M_MMAP_THRESHOLD, 1 << 30)
            libc.mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)
