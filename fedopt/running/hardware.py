"""Threads, precision, memory and the modes of torch and numpy in the process that runs."""

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from fedopt.config.settings import Hardware
from fedopt.errors import UserError, cores, number_of
from fedopt.running.launch import PLACE, RUN_ID

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"  # without it cuBLAS is not deterministic
_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD = -3, -1
NUMPY = {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}  # what it does about them


class Mode(NamedTuple):
    """What a process has one of, and every number may depend on. value: of a process that has just begun."""

    name: str
    get: Callable[[], Any]
    put: Callable[[Any], Any]
    value: Any


def _default_device() -> torch.device | None:
    device = torch.get_default_device()
    return None if device.type == "cpu" else device


MODES = (
    Mode("torch.set_default_dtype", torch.get_default_dtype, torch.set_default_dtype, torch.float32),
    Mode("torch.set_default_device", _default_device, torch.set_default_device, None),
    Mode("torch.set_grad_enabled", torch.is_grad_enabled, torch.set_grad_enabled, True),
    *(
        Mode(
            "torch.autocast", partial(torch.is_autocast_enabled, kind), partial(torch.set_autocast_enabled, kind), False
        )
        for kind in ("cpu", "cuda")
    ),
    Mode("numpy.seterr", np.geterr, lambda kinds: np.seterr(**kinds), NUMPY),
)
BACKENDS: Any = torch.backends  # and its parts that have a precision of float32 of their own
PRECISIONS: tuple[Any, ...] = (
    BACKENDS,
    *(BACKENDS.cuda.matmul, BACKENDS.cudnn, BACKENDS.cudnn.conv, BACKENDS.cudnn.rnn),
    *(BACKENDS.mkldnn, BACKENDS.mkldnn.matmul, BACKENDS.mkldnn.conv, BACKENDS.mkldnn.rnn),
)


def _precisions() -> tuple[list[str], tuple[str, bool] | None]:
    """By their newer and by their older names; None where those have no word for it."""
    older = None
    with suppress(RuntimeError):
        older = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    return [part.fp32_precision for part in PRECISIONS], older


def _set_precisions(precisions: tuple[list[str], tuple[str, bool] | None]) -> None:
    newer, older = precisions
    if older is not None:
        torch.set_float32_matmul_precision(older[0])
        torch.backends.cudnn.allow_tf32 = older[1]
    for part, precision in zip(PRECISIONS, newer, strict=True):
        part.fp32_precision = precision


def _deterministic() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


SETTINGS = (
    (torch.get_num_threads, torch.set_num_threads),
    (_deterministic, lambda state: torch.use_deterministic_algorithms(state[0], warn_only=state[1])),
    (_precisions, _set_precisions),
)


def configure(hardware: Hardware, jobs: int = 1) -> torch.device:
    """Apply the settings to this process and return the device. jobs: how many processes share the machine.

    Raises UserError when the device is not there.
    """
    device = torch.device(hardware.device)
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise UserError("hardware.device=cuda: this torch sees no GPU; use hardware=cpu or a CUDA build of torch")
        count = torch.cuda.device_count()
        index = device.index if device.index is not None else _in_turn(count)
        if index >= count:
            raise UserError(f"hardware.device=cuda:{index}: there are {count} GPUs, counted from 0")
        device = torch.device("cuda", index)
        torch.cuda.set_device(device)
    processes = jobs * max(1, number_of("LOCAL_WORLD_SIZE", 1))
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if os.environ.get("TORCHELASTIC_RUN_ID", RUN_ID) != RUN_ID and asked == "1":
        asked = ""  # torchrun's own choice
    ours = int(asked) if asked.isdecimal() and 0 < int(asked) <= 4096 else max(1, cores() // processes)
    torch.set_num_threads(hardware.threads or ours)
    for part in PRECISIONS:
        part.fp32_precision = "none"  # the older names of the next line know no others
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = hardware.tf32
    if hardware.deterministic:
        os.environ.setdefault(WORKSPACE, ":4096:8")
    torch.use_deterministic_algorithms(hardware.deterministic)
    for mode in MODES:
        mode.put(mode.value)
    refuse_changed("code around this run, such as `with torch.device(...)`,")
    _keep_freed_memory()
    return device


def refuse_changed(who: str) -> None:
    """Raises UserError where a mode is another one than `configure` has set. who: has changed it."""
    if changed := [mode.name for mode in MODES if mode.get() != mode.value]:
        raise UserError(f"{who} sets {changed[0]} for all of the process, which a run does not follow: leave it out")


def _in_turn(count: int) -> int:
    """The GPU of this process among so many: ranks of a run have one each, as the runs of a sweep that go on at once have."""
    ranks = number_of("LOCAL_WORLD_SIZE", 1)
    return (number_of(PLACE, 0) * ranks + number_of("LOCAL_RANK", 0)) % max(count, ranks)


@contextmanager
def restored() -> Iterator[None]:
    """What `configure` sets is set back at the end: for runs in somebody else's process, in whatever modes that is."""
    before = [(get, put, get()) for get, put in (*SETTINGS, *((mode.get, mode.put) for mode in MODES))]
    workspace = os.environ.get(WORKSPACE)
    try:
        with torch.inference_mode(False):
            yield
    finally:
        for get, put, value in before:
            if get() != value:  # an outer `with torch.device(...)` is still there
                put(value)
        if workspace is None:
            os.environ.pop(WORKSPACE, None)


def _keep_freed_memory() -> None:
    """Let glibc reuse freed memory instead of returning it: vectors of a stack of clients are megabytes, and a fresh page
    costs more than the arithmetic on it (half the time of a FedMSA round on imbalanced MNIST)."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # another C library: slower, nothing else
            libc = ctypes.CDLL("libc.so.6")
            libc.mallopt(_M_MMAP_THRESHOLD, 1 << 30)
            libc.mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)
