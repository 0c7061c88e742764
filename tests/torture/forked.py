"""fedopt's commands in forks of one warm process: no second import of torch, and no harm to the caller when they are killed."""

import io
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import torch

from fedopt import __main__ as commands
from fedopt.testing import harness

MEMORY = 12 << 30  # bytes of address space of a command, so that a number that is too large does no harm
MODULES = {
    "fedopt": "fedopt.commands.run",
    "fedopt-compare": "fedopt.commands.compare",
    "fedopt-reproduce": "fedopt.commands.reproduce",
    "fedopt-tune": "fedopt.commands.tune",
    "fedopt-report": "fedopt.commands.report",
}


class Ended(NamedTuple):
    """code: negative for a signal. hung: whether nothing but SIGKILL ended it."""

    code: int
    out: str
    err: str
    seconds: float
    hung: bool


class Command:
    """A command that runs in a fork, in a session of its own, in the folder `cwd`."""

    def __init__(
        self, arguments: list[str], cwd: Path, program: str = "fedopt", before: Callable[[], object] | None = None
    ):
        """before: called in the fork, to set up its faults."""
        self.cwd, self.started = cwd, time.monotonic()
        self._files = [tempfile.TemporaryFile("w+", errors="replace") for _ in range(2)]  # noqa: SIM115
        sys.stdout.flush()
        sys.stderr.flush()
        assert len(os.listdir("/proc/self/task")) == 1, "a copy of this process would wait for its threads"
        self.pid = os.fork()
        if self.pid == 0:
            self._be(arguments, cwd, program, before)

    def _be(self, arguments: list[str], cwd: Path, program: str, before: Callable[[], object] | None) -> None:
        code = 70
        try:
            os.setsid()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.RLIM_INFINITY))
            null = os.open(os.devnull, os.O_RDONLY)
            for descriptor, file in ((0, null), (1, self._files[0].fileno()), (2, self._files[1].fileno())):
                os.dup2(file, descriptor)
            sys.stdout = sys.__stdout__ = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), errors="surrogateescape")  # type: ignore[misc]
            sys.stderr = sys.__stderr__ = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), errors="backslashreplace")  # type: ignore[misc]
            os.chdir(cwd)
            sys.argv = [program, *arguments]
            os.environ.pop("HYDRA_FULL_ERROR", None)
            if before is not None:
                before()
            commands.main(MODULES[program].removeprefix("fedopt."))
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def kill(self, number: int = signal.SIGKILL) -> None:
        os.kill(self.pid, number)

    def wait(self, limit: float, patience: float = 10) -> Ended:
        """Its end. A run that has begun may go on for longer than `limit` seconds: SIGTERM stops it after a round, or a second one
        within a round, each in `patience` seconds. A command that has begun nothing hangs then."""
        deadline, asked = self.started + limit, 0
        while (found := os.waitpid(self.pid, os.WNOHANG))[0] == 0:
            if time.monotonic() > deadline:
                begun = any(self.cwd.rglob("metrics.csv"))
                asked = asked + 1 if begun and asked < 3 else 3
                self.kill(signal.SIGTERM if asked < 3 else signal.SIGKILL)
                deadline += patience
            time.sleep(0.002)
        for file in self._files:
            file.seek(0)
        out, err = (file.read() for file in self._files)
        for file in self._files:
            file.close()
        return Ended(os.waitstatus_to_exitcode(found[1]), out, err, time.monotonic() - self.started, asked == 3)


def warm() -> None:
    """Import all that commands need, before the first fork: torch imports much when it is first used."""
    torch.set_num_threads(1)  # threads do not outlive a fork
    for name in (
        *MODULES.values(),
        "fedopt.running.lifecycle",
        "fedopt.bench.outcome",
        "fedopt.bench.tune",
        "fedopt.drawing.figures",
        "matplotlib.figure",
        "matplotlib.backends.backend_agg",
    ):
        import_module(name)
    for algo, problem in (("fednest", "hyper_representation"), ("zo_hfl", "hierarchical")):
        harness.steps(harness.small(algo, problem), 1)
