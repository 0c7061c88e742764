"""One run on several processes of this machine, started by torch's elastic launcher. For several machines there is torchrun."""

import logging
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any

from fedopt.config import Hardware
from fedopt.console import ctrl_c_later, end_with, interruptible, note
from fedopt.console import say as console
from fedopt.errors import UserError, first_line, mistake
from fedopt.machine import memory, number_of
from fedopt.results import RunFolder
from fedopt.running.apart import program_hidden

POLL = 0.3  # seconds
LEAST_MEMORY = 2**28  # bytes of a process: torch alone
PLACE = "FEDOPT_PLACE"  # the variable that tells a run of several at once which one of them it is, from 0
RUN_ID = "fedopt"  # by which a rank knows that its number of threads is not torchrun's choice


def asked_processes(hardware: Hardware) -> int:
    """Return how many processes the config asks for. In a process that a launcher started, return 1: the launcher decides.

    Raises UserError for `all` without a GPU, and for more processes than memory can hold.
    """
    if number_of("WORLD_SIZE", 1) > 1:
        return 1
    if hardware.processes != "all":
        if hardware.processes * LEAST_MEMORY > memory():
            room = f"the {memory() / 2**30:.0f} GB of memory here suffice for at most {memory() // LEAST_MEMORY}"
            raise UserError(f"hardware.processes={hardware.processes}: {room}; use fewer")
        return hardware.processes
    import torch

    if hardware.device == "cpu" or not torch.cuda.is_available():
        raise UserError(
            "hardware.processes=all: means one per GPU, and none is used; give a number, or use hardware=cuda"
        )
    return torch.cuda.device_count()


def launched(run: Callable[[], Any], folder: RunFolder, processes: int) -> str:
    """Call `run` in several processes, the ranks of one run in the folder. Return the run's status.

    run: a function without arguments that can be pickled. folder: the run's. processes: their number.

    Raises UserError for a mistake in one of them, or if one was killed, and RuntimeError for a bug. Raises KeyboardInterrupt
    after a second Ctrl-C, and after one before the run began.
    """
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    requested, news = Event(), multiprocessing.get_context("spawn").SimpleQueue()
    pids, failures = dict[int, int](), list[Exception]()
    ends: signal.Signals | None = None  # what is sent to all ranks
    sent = ends
    with ThreadPoolExecutor(1) as pool, interruptible(requested), program_hidden():
        agent = pool.submit(_start_ranks, processes, news, run)
        while not agent.done():
            try:
                wait([agent], POLL)
                while not news.empty():
                    key, value = news.get()
                    if isinstance(key, int):
                        pids[key] = value
                    else:
                        failures.append((UserError if key == "mistake" else RuntimeError)(value))
                for rank, pid in pids.items():
                    if _stopped(pid):
                        others = f"the other processes wait for it; kill -CONT {pid} continues it"
                        note(f"{folder.path}: process {rank} of {processes} is stopped, and {others}")
                if requested.is_set():
                    ends = ends or signal.SIGTERM
            except KeyboardInterrupt:
                ends = signal.SIGKILL
            if ends and ends != sent and (len(pids) == processes or (pids and ends == signal.SIGKILL)):
                sent = ends
                for pid in pids.values():
                    with suppress(ProcessLookupError):
                        os.kill(pid, ends)
    try:
        agent.result()
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if ends:
            raise KeyboardInterrupt from None
        if failure.exitcode >= 0 and failures:
            raise failures[0] from None
        how = failure.signal_name() if failure.exitcode < 0 else f"code {failure.exitcode}"
        lost = "resume with the same command and resume=true, nothing that was recorded is lost"
        raise UserError(f"process {rank} of {processes} of the run ended with {how}; {lost}") from None
    return str(folder.summary().get("status"))


def _start_ranks(processes: int, news: Any, run: Callable[[], Any]) -> None:
    """Start all ranks, and return when they have ended. Raises ChildFailedError if one failed; the others are ended then.

    processes: how many. news, run: as in `_rank`.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    before = logging.root.manager.disable
    logging.disable()  # the launcher's own words: what is wrong is one line of ours
    try:
        with TemporaryDirectory() as logs, ctrl_c_later():
            here: dict[str, Any] = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "local_addr": "localhost"}
            config = LaunchConfig(1, 1, processes, DefaultLogsSpecs(logs), RUN_ID, max_restarts=0, **here)
            elastic_launch(config, _rank)(news, run)
    finally:
        logging.disable(before)


def _rank(news: Any, run: Callable[[], Any]) -> None:
    """Do the run as one of its ranks. Exit with code 1 if it fails.

    news: a queue that receives (rank, process id), and the line of the rank that fails first. run: as in `launched`.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    end_with(parent.is_alive)
    from fedopt.federation import ranks

    console.speaks = ranks.rank() == 0
    news.put((ranks.rank(), os.getpid()))
    try:
        run()
    except Exception as error:
        if os.environ.get("HYDRA_FULL_ERROR") == "1":
            traceback.print_exc()
        if console.speaks:
            line = mistake(error)
            news.put(("mistake", line) if line else ("bug", f"{type(error).__name__}: {first_line(error)}"))
        sys.exit(1)
    if not parent.is_alive():
        sys.exit(130)  # nobody waits for this process, which would wait for that


def _stopped(pid: int) -> bool:
    """Tell whether a child of this process has been stopped, as by Ctrl-Z, since the last call. pid: its process id."""
    with suppress(ChildProcessError, AttributeError):  # it has ended; macOS has this from Python 3.13 on
        return os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG) is not None
    return False
