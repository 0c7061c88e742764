"""A clock of training time. Time during which the process is stopped, as after Ctrl-Z, does not count."""

import time
from functools import cache
from threading import Lock, Thread

TICK = 0.1  # seconds between looks at the clock
STANDS_STILL = 1.0  # seconds, at least, between two looks of a process that was stopped
IDLE = 0.05  # the most of that time that a process has worked which was stopped, and not busy


class Clock:
    """A clock in seconds; calling it returns the time, and only differences mean anything.

    A thread reads it all the time. If two readings are far apart and the process did no work between them, it was stopped.
    """

    def __init__(self) -> None:
        self._stopped, self._lock = 0.0, Lock()
        self._seen = time.perf_counter(), time.process_time()
        Thread(target=self._watch, daemon=True).start()

    def __call__(self) -> float:
        with self._lock:
            now, worked = time.perf_counter(), time.process_time()
            since = now - self._seen[0]
            if since > STANDS_STILL and worked - self._seen[1] < IDLE * since:
                self._stopped += since
            self._seen = now, worked
            return now - self._stopped

    def _watch(self) -> None:
        while True:
            time.sleep(TICK)
            self()


clock = cache(Clock)  # one a process, from when it is first asked for
