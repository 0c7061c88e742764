"""What Ctrl-C does. Imports nothing that takes time."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread, current_thread, main_thread
from types import FrameType
from typing import NoReturn

GRACE = 30  # seconds from SIGTERM to SIGKILL, as torchrun has it


@contextmanager
def ending_at_once() -> Iterator[None]:
    """Ctrl-C ends the process then and there, in one line: for imports, in which an exception may get lost. In the main thread, to
    which it comes."""
    if current_thread() is not main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> NoReturn:
        if os.environ.get("RANK", "0") == "0":
            print("fedopt: stopped", file=sys.stderr, flush=True)
        os._exit(130)

    before = signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def ctrl_c_kept() -> Iterator[None]:
    """Raises KeyboardInterrupt where Ctrl-C came and an error took its place: OmegaConf's cleaning up fails when it is interrupted.

    A disk that is full when what is there shall be written is said as it is.
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
    """Ctrl-C does not come to the processes that this thread starts, and to the thread when this is over."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


@contextmanager
def interruptible(requested: Event) -> Iterator[None]:
    """The first Ctrl-C (or SIGTERM) sets the event; the second one stops at once. They come to the main thread alone: elsewhere
    nothing changes."""
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
    """From now on, end this process when the one that it serves is gone: with SIGTERM, and SIGKILL where it does not end in time.

    Until the event is set that this returns.
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
