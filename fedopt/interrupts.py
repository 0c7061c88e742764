"""What Ctrl-C does. Imports nothing that takes time."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, current_thread, main_thread
from types import FrameType
from typing import NoReturn


@contextmanager
def ending_at_once() -> Iterator[None]:
    """Ctrl-C ends the process then and there, in one line: for imports, in which an exception may get lost."""

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
