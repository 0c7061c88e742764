"""Handling of Ctrl-C and SIGTERM. This module imports nothing that is slow to import."""

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread, current_thread, main_thread
from types import FrameType
from typing import NoReturn

from fedopt.console import say as console

GRACE = 30  # seconds from SIGTERM to SIGKILL, as in torchrun


@contextmanager
def ending_at_once() -> Iterator[None]:
    """Return a context in which Ctrl-C ends the process immediately, with one line instead of a traceback.

    It is used for imports, which may swallow KeyboardInterrupt.

    In a thread other than the main thread, which receives Ctrl-C, nothing changes. Garbage collection is off during the
    context, since it would take an eighth of the time of the imports and find nothing.
    """
    if current_thread() is not main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> NoReturn:
        if console.speaks:
            print("fedopt: stopped", file=sys.stderr, flush=True)
        os._exit(130)

    before, collects = signal.signal(signal.SIGINT, end), gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
        signal.signal(signal.SIGINT, before)


@contextmanager
def ctrl_c_kept() -> Iterator[None]:
    """Return a context that raises KeyboardInterrupt in place of an exception that was raised while Ctrl-C was being handled.

    For example, OmegaConf raises another exception if its cleanup is interrupted. An OSError is not replaced: a full disk at
    the end of the program has its own message.
    """
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error
        while cause and not isinstance(cause, KeyboardInterrupt):
            cause = cause.__context__
        if cause and not isinstance(error, OSError):
            raise KeyboardInterrupt from error
        raise


@contextmanager
def ctrl_c_later() -> Iterator[None]:
    """Return a context that blocks Ctrl-C (SIGINT), in this thread and in the processes that it starts."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


@contextmanager
def interruptible(requested: Event) -> Iterator[None]:
    """Return a context that sets an event at the first Ctrl-C or SIGTERM, and raises KeyboardInterrupt at the second one.

    Only the main thread receives these signals; in any other thread the context does nothing.

    Args:
        requested: The event, which asks the caller to stop at the next opportunity.
    """
    if current_thread() is not main_thread():
        yield
        return

    def request(number: int, frame: FrameType | None) -> None:
        if requested.is_set():
            raise KeyboardInterrupt
        requested.set()

    before = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_with(alive: Callable[[], bool]) -> Event:
    """Start to watch another process. When it is gone, end this process with SIGTERM, and `GRACE` seconds later with SIGKILL.

    Args:
        alive: Returns whether the other process is still running.

    Returns:
        An event. Setting it stops the watch.
    """
    left = Event()

    def watch() -> None:
        while alive():
            if left.wait(0.5):
                return
        os.kill(os.getpid(), signal.SIGTERM)
        if not left.wait(GRACE):
            os.kill(os.getpid(), signal.SIGKILL)

    Thread(target=watch, daemon=True).start()
    return left
