"""One job of many: skipped when it is done, resumed when it was interrupted."""

from collections.abc import Callable
from typing import Any

from fedopt.config.tuned import Asked
from fedopt.console.interrupts import ctrl_c_kept, ending_at_once
from fedopt.console.say import say
from fedopt.errors import UserError
from fedopt.results.folder import ENDED, RunFolder, described, numbers_of
from fedopt.results.identity import identity, refuse_other


def job_of_many(resolved: Callable[[], dict[str, Any]], folder: RunFolder, asked: Asked, jobs: int) -> str:
    """Skips what is done and resumes what was interrupted. Returns the status; a failure is recorded in the folder.

    resolved: gives the config, and raises UserError where it is wrong, which is a failure of this job alone.
    """
    with ending_at_once():
        from fedopt.results.card import say_changed
        from fedopt.running.failure import record_failure
        from fedopt.running.lifecycle import execute

    before = folder.status()
    try:
        with ctrl_c_kept():
            config = {**resolved(), "resume": folder.used}
        if before in ENDED:
            refuse_other(folder.path, identity(folder.config()), identity(config))
            say_changed(folder, config, done=True)
            return before
        return execute(config, lambda: folder.path, asked, jobs)[0]
    except Exception as error:
        if before in ENDED or (before is not None and isinstance(error, UserError)):  # what is there stays as it is
            say(str(error))
            return "refused"
        record_failure(folder, error, asked)
        return "failed"


def optimised(folder: RunFolder, wanted: str | None) -> float | None:
    """The last value of a metric, of the problem's first one where none is wanted: what Hydra's sweepers optimise.

    The worst there is for a run that diverged, None for one that has no value.
    """
    summary = folder.summary()
    metric = next((m for m in described(folder.path) if wanted in (m.name, None)), None)
    if summary.get("status") not in ENDED or metric is None:
        return None
    return metric.worst if summary["status"] == "diverged" else numbers_of(summary.get("final")).get(metric.name)
