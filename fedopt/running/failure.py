"""Failures of a run: find whose mistake one was, and record it in the folder."""

import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from fedopt.blame import blamed
from fedopt.config import Composed
from fedopt.errors import UserError, first_line, of_machine
from fedopt.federation import ranks
from fedopt.results import RunFolder, how
from fedopt.running.sinks import Callback

if TYPE_CHECKING:
    from fedopt.running.lifecycle import Run


@contextmanager
def mistakes_named(callback: Callback) -> Iterator[None]:
    """Turn exceptions of a user's code into a UserError that names the line, and sys.exit into a UserError.

    What the callback itself raised passes unchanged, and so do other exceptions, which are bugs.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        if ranks.count() > 1:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun's, before all is written and said
        if isinstance(error, SystemExit):
            raise UserError(f"something called sys.exit({error.code}) during the run; remove the call") from error
        if error is not callback.error and (mistake := blamed(error)):
            raise mistake from error
        raise


@contextmanager
def recorded(run: "Run") -> Iterator[None]:
    """Record a failure in the run's folder if the run has begun to write there. Errors of the disk become a UserError."""
    try:
        yield
    except Exception as error:
        path = run.folder.path
        if not run.writing:  # one refused at the door leaves no trace in another's folder
            raise
        if not path.is_dir():
            raise UserError(
                f"{path}: another program moved or removed this folder during the run; begin the run again"
            ) from error
        record_failure(run.folder, error, run.composed, run.untouched and not isinstance(error, OSError))
        if not isinstance(error, OSError):
            raise
        why = f"{error.filename or path}: {error.strerror or error}"
        raise UserError(f"{why}; mend this, then use resume=true: nothing that was recorded is lost") from error


def record_failure(folder: RunFolder, error: Exception, composed: Composed, vacate: bool = False) -> str:
    """Write the traceback and the status into the folder, as far as the disk takes them and no other process writes there.

    Returns the line that says what failed.
    folder: the run's. error: what was raised. composed: the config. vacate: whether to remove all other files, since nothing
        was computed.
    """
    line = first_line(error) if isinstance(error, UserError) else f"{type(error).__name__}: {first_line(error)}"
    with suppress(OSError, UserError):
        folder.open()
        folder.write_text("traceback.txt", "".join(traceback.format_exception(error)))
        machine = {"machine": True} if of_machine(error) else {}
        folder.write_json("summary.json", {**folder.summary(), "status": "failed", "error": line, **machine})
        folder.log(f"failed: {line}")
        if not (folder.path / "run.json").exists():
            folder.write_json("run.json", how(composed))
        if vacate:
            folder.vacate()
    folder.close()
    return line
