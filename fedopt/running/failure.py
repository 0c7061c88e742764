"""Failures of a run: find whose mistake one was, and write it into a folder."""

import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from fedopt.blame import blamed
from fedopt.config import Composed
from fedopt.errors import UserError, first_line, mistake, of_machine
from fedopt.federation import ranks
from fedopt.results import RunFolder, how
from fedopt.running.sinks import Callback


@contextmanager
def mistakes_named(callback: Callback) -> Iterator[None]:
    """Turn exceptions of a user's code into a UserError that names the line, and sys.exit into a UserError.

    What the callback itself raised passes unchanged, and so do other exceptions, which are bugs.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        if ranks.count() > 1:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun's, before everything is written and reported
        if isinstance(error, SystemExit):
            raise UserError(f"something called sys.exit({error.code}) during the run; remove the call") from error
        if error is not callback.error and (mistake := blamed(error)):
            raise mistake from error
        raise


def record_failure(folder: RunFolder, error: Exception, composed: Composed, vacate: bool = False) -> str:
    """Write the traceback and the status into the folder, as far as the disk takes them.

    Nothing is written if another process writes there, or has begun a run there before this one took the folder.

    Returns the line that says what failed.

    Args:
        folder: The run's.
        error: What was raised.
        composed: The config.
        vacate: Whether the run's other files are removed once that is written.
    """
    known = first_line(error) if isinstance(error, UserError) else mistake(error)
    line = known or f"{type(error).__name__}: {first_line(error)}"
    with suppress(OSError, UserError):
        ours = folder.held
        folder.open()
        if not ours and folder.used and folder.status() != "failed":
            raise UserError("another process has been here meanwhile")
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
