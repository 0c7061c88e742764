"""What happens when a run fails."""

import signal
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedopt.blame import blamed
from fedopt.config.tuned import Asked
from fedopt.console import say as console
from fedopt.errors import UserError, first_line
from fedopt.federation import ranks
from fedopt.results.folder import RunFolder
from fedopt.running.loop import OnEval, Run


def execute(
    config: dict[str, Any],
    locate: Callable[[], Path],
    asked: Asked,
    jobs: int = 1,
    on_eval: OnEval | None = None,
    quiet: bool = False,
) -> tuple[str, RunFolder]:
    """Run in the folder that `locate` gives; returns the status and the folder. on_eval, quiet: as of `Run`.

    A failure leaves its traceback in the folder and is raised again. Of several ranks, the first that fails is the one that speaks.
    """
    try:
        ranks.start()
        folder = RunFolder(ranks.from_main(locate))
        return _run_in(folder, Run(config, folder, asked, jobs, on_eval, quiet)), folder
    except BaseException:
        console.speaks = ranks.first()  # where it is, the others fail because this one does
        raise
    finally:
        ranks.stop()


def _run_in(folder: RunFolder, run: Run) -> str:
    """Run to the end, of all ranks; returns the status. A failure is recorded in the folder."""
    try:
        try:
            status = run()
        except SystemExit as stop:  # of an algorithm or a problem of one's own
            raise UserError(f"something called sys.exit({stop.code}), which ends no run") from stop
        except Exception as error:
            if error is not run.of_on_eval and (said := blamed(error)):
                raise said from error
            raise
        ranks.finish()
        return status
    except Exception as error:
        if ranks.count() > 1:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun's, before all is written and said
        if not run.writing:  # one refused at the door leaves no trace in another's folder
            raise
        if not folder.path.is_dir():
            raise UserError(
                f"{folder.path}: another program moved or removed this folder while the run was writing"
            ) from error
        record_failure(folder, error, run.asked, run.at.round == run.first and not isinstance(error, OSError))
        if not isinstance(error, OSError):
            raise
        raise UserError(
            f"{error.filename or folder.path}: {error.strerror or error}; nothing that was recorded is lost: mend it, "
            "then resume=true"
        ) from error
    finally:
        folder.close()


def _told(error: Exception) -> str:
    return first_line(error) if isinstance(error, UserError) else f"{type(error).__name__}: {first_line(error)}"


def record_failure(folder: RunFolder, error: Exception, asked: Asked, vacate: bool = False) -> None:
    """The traceback and the status, as far as the disk takes them, and where no other process is writing.

    vacate: leave nothing else, since nothing was computed.
    """
    with suppress(OSError, UserError):
        folder.open()
        folder.write_text("traceback.txt", "".join(traceback.format_exception(error)))
        folder.write_json("summary.json", {**folder.summary(), "status": "failed", "error": _told(error)})
        folder.log(f"failed: {_told(error)}")
        if not (folder.path / "run.json").exists():
            folder.write_json("run.json", asdict(asked))
        if vacate:
            folder.vacate()
    folder.close()
