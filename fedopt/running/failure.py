"""Handle failures of a run: find their cause, and record them in the run's folder."""

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
    """Convert exceptions of the user's code within the context to a UserError that names the line. sys.exit is converted too.

    Exceptions of the callback are raised unchanged, and so are exceptions of fedopt itself, which are bugs.

    Args:
        callback: The user's function ``on_eval``.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        if ranks.count() > 1:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun sends it before the failure is reported
        if isinstance(error, SystemExit):
            raise UserError(f"your code or a library called sys.exit({error.code}); remove the call") from error
        if error is not callback.error and (mistake := blamed(error)):
            raise mistake from error
        raise


def record_failure(folder: RunFolder, error: Exception, composed: Composed, vacate: bool = False) -> str:
    """Record a failure: write the traceback and the status into the run's folder, as far as the disk allows.

    Nothing is written if another process has locked the folder, or has started a run there before this process locked it.

    Args:
        folder: The run's folder.
        error: The exception.
        composed: The config.
        vacate: Whether to remove the run's other files afterwards.

    Returns:
        One line that describes the failure.
    """
    line = reason(error)
    with suppress(OSError, UserError):
        ours = folder.held
        folder.open()
        if not ours and folder.used and folder.status() != "failed":
            raise UserError("another process has used this folder; choose another output_dir")
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


def reason(error: Exception) -> str:
    """Return the line that says what failed.

    Args:
        error: The exception.
    """
    known = first_line(error) if isinstance(error, UserError) else mistake(error)
    return known or f"{type(error).__name__}: {first_line(error)}"
