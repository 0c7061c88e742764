"""Communication between the ranks (processes) of one run by torch.distributed. With one rank, these functions do nothing."""

import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from threading import Event
from typing import Any, TypeVar

import torch
import torch.distributed as dist

# torch.func imports this module too. Its functions take the current process group as a default argument. If it were imported
# after `start`, the group and gloo's threads would outlive `stop`, and such a thread can abort the process when it exits.
import torch.distributed.nn.functional
from torch import Tensor

import fedopt
from fedopt.console import end_with, note
from fedopt.console import say as console
from fedopt.errors import UserError, first_line, joined
from fedopt.machine import number_of

T = TypeVar("T")

PATIENCE = timedelta(hours=2)  # a rank may wait while another rank evaluates
MOST_TOLD = 5  # largest number of differences in a message

_store: dist.Store | None = None  # the store through which the ranks find each other
_first: bool | None = None  # whether this rank called `first` before all others; None before the call
_left = Event()  # set when this process no longer depends on torchrun


def start() -> None:
    """Join the process group if the environment variable WORLD_SIZE, which torchrun sets, is 2 or more.

    If WORLD_SIZE is less than 2, or if this process has already joined, nothing happens. Tensors on the CPU are exchanged by
    gloo, and tensors on GPUs by nccl. Until `finish` or `stop` is called, this process ends when torchrun ends. If the process
    was not started by torchrun, a note says that it waits for the other processes.

    Raises:
        UserError: The other ranks cannot be reached.
    """
    global _store, _first, _left
    if (size := number_of("WORLD_SIZE", 1)) <= 1 or dist.is_initialized():
        return
    if multiprocessing.parent_process() is not None:
        pass  # the parent process, such as torch.multiprocessing, ends this process
    elif "TORCHELASTIC_RUN_ID" in os.environ:
        _left = end_with(lambda: os.getppid() == fedopt.PARENT)
    elif "MASTER_ADDR" in os.environ:
        console.speaks = True  # rank 0, which usually prints, may not have been started
        note(f"WORLD_SIZE={size}: waiting for processes at {os.environ['MASTER_ADDR']}; unset WORLD_SIZE to run alone")
        console.speaks = number_of("RANK", 0) == 0
    _first = None
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    with _reaching_others():
        # If torchrun was already killed, no rank can be reached
        _store, rank, size = next(dist.rendezvous("env://", timeout=timedelta(minutes=5)))
        _store.set_timeout(PATIENCE)
        dist.init_process_group(backend, store=_store, rank=rank, world_size=size, timeout=PATIENCE)


def finish() -> None:
    """Wait for the other ranks at the end of a run.

    A rank that leaves earlier could break the connections of a rank that still writes its files.
    """
    _left.set()
    agree(False, torch.device("cpu"))


def stop() -> None:
    """Leave the group of ranks, if this process is in one."""
    global _store
    if dist.is_initialized():
        dist.destroy_process_group()
    _store = None
    _left.set()


@contextmanager
def _reaching_others() -> Iterator[None]:
    """Convert errors of a broken connection to the other ranks, within the context, to UserError."""
    try:
        yield
    except ValueError as error:  # a variable that torchrun sets is missing
        check = "check MASTER_ADDR and MASTER_PORT, or unset WORLD_SIZE to run a single process"
        raise UserError(f"the other processes cannot be reached ({first_line(error)}); {check}") from error
    except RuntimeError as error:
        if type(error) is not RuntimeError and not isinstance(error, dist.DistError):
            raise  # out of memory, or a delayed error of a GPU
        resume = "resume with the same command and resume=true; nothing recorded is lost"
        raise UserError(f"another process of the run ended or cannot be reached; {resume}") from error


def first() -> bool:
    """Return whether this rank was the first of all ranks to call this function. Later calls return the same value.

    The function works before `start`, since torchrun provides a store from the beginning. Without a store, the result is True
    on every rank. If the process with the store, which may be rank 0, has ended, rank 1 counts as the first.
    """
    global _first
    if _first is None:
        store = _store
        try:
            if store is None and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
                store = next(dist.rendezvous("env://", timeout=timedelta(seconds=10)))[0]
            _first = store is None or store.add("fedopt/first", 1) == 1
        except RuntimeError:  # the process with the store has ended: torchrun, or rank 0
            _first = rank() == 1
    return _first


def count() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    """Return the rank of this process, from 0 to count() - 1. This also works before `start`."""
    if dist.is_initialized():
        return dist.get_rank()
    return number_of("RANK", 0) if number_of("WORLD_SIZE", 1) > 1 else 0


def total(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the sums of tensors over all ranks, computed by one collective operation.

    Args:
        tensors: Tensors of the same dtype and of any shapes. Each rank passes tensors of the same shapes.
    """
    if count() == 1 or not tensors:
        return list(tensors)
    flat = torch.cat([t.reshape(-1) for t in tensors])
    with _reaching_others():
        dist.all_reduce(flat)
    pieces = flat.split([t.numel() for t in tensors])
    return [piece.view(t.shape) for piece, t in zip(pieces, tensors, strict=True)]


def agree(flag: bool, device: torch.device) -> bool:
    """Return whether the flag is set on any rank. Every rank must call this function, which waits for all of them.

    Args:
        flag: The flag of this rank.
        device: The device of the tensors by which the flags are exchanged.
    """
    if count() == 1:
        return flag
    vote = torch.tensor(int(flag), device=device)
    with _reaching_others():
        dist.all_reduce(vote)
    return bool(vote)


def refuse_different(facts: Mapping[str, Any]) -> None:
    """Raise UserError on every rank if the ranks differ in one of these facts.

    Args:
        facts: The values by name. They are compared as text.
    """
    if count() == 1:
        return
    gathered: list[Any] = [None] * count()
    with _reaching_others():
        dist.all_gather_object(gathered, {key: str(value) for key, value in facts.items()})
    told = []
    for key in dict.fromkeys(key for of_rank in gathered for key in of_rank):
        if len(values := dict.fromkeys(of_rank.get(key, "none") for of_rank in gathered)) > 1:
            told.append(f"{key} ({', '.join(values)})")
    if told:
        raise UserError(f"the processes differ in {joined(told, MOST_TOLD)}; use the same arguments, data and versions")


def from_main(decide: Callable[[], T]) -> T:
    """Call a function on rank 0, and return its result on every rank. If it raises an exception, every rank raises it.

    Args:
        decide: The function.
    """
    outcome: list[Any] = [None, None]
    if rank() == 0:
        try:
            outcome[0] = decide()
        except Exception as error:
            outcome[1] = error
    if count() > 1:
        with _reaching_others():
            dist.broadcast_object_list(outcome, device=torch.device("cpu"))
    if outcome[1] is not None:
        raise outcome[1]
    return outcome[0]
