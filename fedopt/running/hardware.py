"""Threads, precision and memory of the process that runs."""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch

from fedopt.config.settings import Hardware
from fedopt.errors import UserError, cores, number_of
from fedopt.running.launch import PLACE, RUN_ID

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"  # without it cuBLAS is not deterministic
_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD = -3, -1


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
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = hardware.tf32
    if hardware.deterministic:
        os.environ.setdefault(WORKSPACE, ":4096:8")
        torch.use_deterministic_algorithms(True)
    _keep_freed_memory()
    return device


def _in_turn(count: int) -> int:
    """The GPU of this process among so many: ranks of a run have one each, as the runs of a sweep that go on at once have."""
    ranks = number_of("LOCAL_WORLD_SIZE", 1)
    return (number_of(PLACE, 0) * ranks + number_of("LOCAL_RANK", 0)) % max(count, ranks)


@contextmanager
def restored() -> Iterator[None]:
    """What `configure` sets in torch and in the environment is set back at the end: for runs in somebody else's process."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    tf32 = matmul.allow_tf32, cudnn.allow_tf32
    workspace = os.environ.get(WORKSPACE)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(deterministic)
        matmul.allow_tf32, cudnn.allow_tf32 = tf32
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
