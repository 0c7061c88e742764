"""Other processes of this machine, which have imported what they need before there is work for them; those that draw."""

import gc
import multiprocessing
import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from importlib import import_module
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from types import ModuleType
from typing import Any

from fedopt.console import ctrl_c_later, end_with, note
from fedopt.machine import cores, number_of, short_spins

DRAWS = "fedopt.drawing.run"  # the module
PLACE = "FEDOPT_PLACE"  # the variable that tells a run of several at once which one of them it is, from 0
PATIENCE = 120  # seconds that a run waits for a picture, which takes one or two


@contextmanager
def program_hidden() -> Iterator[None]:
    """Hide the user's script during the context: a process that is started would run it again.

    So scripts need no `__main__` guard.
    """
    program, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    os.environ.update(spins := short_spins())
    try:
        yield
    finally:
        for name in spins:
            os.environ.pop(name, None)
        sys.modules["__main__"] = program


def warm(*modules: str) -> multiprocessing.context.ForkServerContext:
    """Return a context whose processes are copies of one that has imported some modules. That one begins to import now.

    If there is one already, from an earlier call, processes are copies of it.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fedopt.running.original", *modules])
    with program_hidden():
        resource_tracker.ensure_running()  # which lets Ctrl-C through again
        with ctrl_c_later():  # it would end what imports with a traceback
            forkserver.ensure_running()
    return context


def serve() -> None:
    """Begin a process of `warm`: it ends with the command, to which Ctrl-C goes alone, and collects garbage of its own."""
    gc.freeze()
    gc.enable()
    os.setpgrp()
    command = multiprocessing.parent_process()
    assert command is not None
    end_with(command.is_alive)


class Drawing:
    """Draws the pictures of runs: in other processes, while this one goes on, or here.

    Args:
        apart: Whether other processes draw, if the machine has cores for them and this process is not one of several.
        later: Whether a run may end before its last picture is drawn. Who makes this object then calls `wait`.

    Attributes:
        wanted: Whether anything is to be drawn. No longer if a process that draws hangs.
    """

    def __init__(self, apart: bool = False, later: bool = False):
        self.wanted = number_of("FEDOPT_PICTURES", 1) > 0  # a small run without them takes a tenth of the time
        self.later = later
        self.apart = apart and self.wanted and cores() > 1 and multiprocessing.parent_process() is None
        self._pool: ProcessPoolExecutor | None = None
        self._going: dict[Path, list[tuple[Future[None], tuple[Any, ...]]]] = defaultdict(list)

    def prepare(self) -> None:
        """Let the processes begin to import what they need."""
        if self.apart:
            warm(DRAWS)

    def __call__(self, what: str, path: Path, *given: Any) -> None:
        """Draw a picture, or begin to. what: a function of `drawing.run`. path: the file. given: its other arguments."""
        if not self.wanted:
            return
        if not self.apart:
            _draw(what, path, *given)
            return
        self._pool = self._pool or ProcessPoolExecutor(cores(), warm(DRAWS), serve)
        work = what, path.absolute(), *given
        with program_hidden(), self._here(*work):
            self._going[path.parent].append((self._pool.submit(_draw, *work), work))

    def drawn(self, folder: Path) -> bool:
        """Return whether all pictures in a folder that were asked for have been drawn, or have failed."""
        return all(future.done() for future, _ in self._going[folder])

    def wait(self, folder: Path) -> None:
        """Wait for the pictures in a folder, for each at most `PATIENCE` seconds.

        Raises what drawing raised, such as OSError if the disk is full.
        """
        for future, work in self._going.pop(folder, ()):
            with self._here(*work):
                future.result(PATIENCE)

    @contextmanager
    def _here(self, *work: Any) -> Iterator[None]:
        """Draw this and all later pictures in this process if somebody has killed one that draws; none if one hangs."""
        try:
            yield
        except TimeoutError:
            note(
                f"{work[1]}: is not drawn after {PATIENCE} seconds, so it and later ones are skipped; resume=true draws them"
            )
            self.wanted = False
            for process in getattr(self._pool, "_processes").values():  # noqa: B009, private until Python 3.14
                process.kill()
        except BrokenProcessPool:
            self.apart = False
            if self.wanted:
                _draw(*work)

    def close(self) -> None:
        """Wait for all pictures. Errors of drawing are not raised: who wants to know them calls `wait` before."""
        for folder in [*self._going]:
            with suppress(Exception):
                self.wait(folder)
        if self._pool is not None:
            self._pool.shutdown()


def _draw(what: str, path: Path, *given: Any) -> None:
    getattr(import_module(DRAWS), what)(path, *given)
