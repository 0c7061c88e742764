"""What the commands share: common options, and errors as one line. Imports no torch."""

import argparse
import math
import os
import re
import sys
from collections.abc import Callable, Sequence
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any, NoReturn

import fedopt
from fedopt.config import with_project
from fedopt.console import ctrl_c_kept
from fedopt.console import say as console
from fedopt.console.say import say
from fedopt.deprecated import removed
from fedopt.errors import Unfinished, UserError, first_line, mistake, nearest, need

if TYPE_CHECKING:
    from fedopt.jobs import Launcher


class Parser(argparse.ArgumentParser):
    """An argparse parser that raises UserError for a mistake. It adds --version, and the current project's folder to
    --config-dir.
    """

    def __init__(self, **options: Any):
        super().__init__(**options)
        self.add_argument("--version", action="version", version=f"{self.prog.split()[0]} {fedopt.__version__}")

    def parse_known_args(self, *args: Any, **options: Any) -> Any:
        """Parse arguments, and add the current project's config folder to those of --config-dir.

        All parsing methods of argparse call this one, some of them twice; the folder is added only once.
        """
        parsed, others = super().parse_known_args(*args, **options)
        if hasattr(parsed, "folders"):
            parsed.folders = with_project(parsed.folders)
        return parsed, others

    def error(self, message: str) -> NoReturn:
        for word in message.partition(": ")[2].split():
            if text := removed(word.partition("=")[0]):
                raise UserError(text)
        if self.prog == "fedopt" and message.startswith("unrecognized"):
            message += "; write settings without dashes, such as algo=fedavg or budget.rounds=10"
        elif message.startswith("unrecognized"):
            message += nearest(message.split()[2], [flag for of in self._actions for flag in of.option_strings])
        raise UserError(f"{message}; {self.prog} --help lists the options")


def some_of(choices: Sequence[str]) -> Callable[[str], list[str]]:
    """Return a `type` for argparse: it splits a text at commas, and each name must be one of the choices. Repeated names are
    dropped.
    """

    def read(text: str) -> list[str]:
        names = list(dict.fromkeys(text.split(",")))
        for name in names:
            if name not in choices:
                near = nearest(name, list(choices))
                raise argparse.ArgumentTypeError(f"{name}: must be one of {', '.join(choices)}{near}")
        return names

    return read


def number(text: str) -> float:
    """Parse a finite number; a `type` for argparse."""
    value = float(text)
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text} must be a finite number")
    return value


def positive(text: str, least: int = 1) -> int:
    """Parse a whole number from ``least`` to 2^62 - 1; a `type` for argparse."""
    if not (text.isdecimal() and least <= int(text) < 2**62):
        raise argparse.ArgumentTypeError(f"{text} must be a whole number, at least {least} and less than 2^62")
    return int(text)


def minutes(text: str) -> int:
    """Parse a time, [days-]hours:minutes:seconds or a number of minutes, as Slurm writes it; a `type` for argparse.

    Return whole minutes, rounded up, at least 1.
    """
    if not re.fullmatch(r"\d{1,6}|(\d{1,3}-)?\d{1,3}:\d\d:\d\d", text):
        raise argparse.ArgumentTypeError(
            f"{text} must be a time: hours:minutes:seconds, days-hours:minutes:seconds, or minutes"
        )
    days, _, clock = text.rpartition("-")
    hours, least, seconds = map(int, clock.split(":") if ":" in clock else ("0", clock, "0"))
    return max(1, 1440 * int(days or 0) + 60 * hours + least + (seconds > 0))


def add_launcher(parser: argparse.ArgumentParser) -> None:
    """Add the options for running in a cluster's queue to a parser. `launcher_of` reads them."""
    add = parser.add_argument_group("runs in the queue of a cluster").add_argument
    add("--launcher", choices=["slurm"], help="where the runs are done (default: on this machine)")
    add("--partition", metavar="NAME", help="Slurm's partition (default: Slurm's own)")
    add(
        "--time",
        type=minutes,
        metavar="H:MM:SS",
        help="time limit of a job; a longer run resumes in a new job (default: 1:00:00)",
    )
    add("--gpus", type=positive, metavar="N", help="GPUs of each run (default: none)")
    add("--cpus", type=positive, metavar="N", help="CPU cores of each run (default: Slurm's own)")
    add("--at-most", type=positive, metavar="N", help="runs at once (default: 50)")


def launcher_of(args: argparse.Namespace) -> "Launcher":
    """Return the launcher that the options choose; without --launcher, `Local`. Raises UserError for options that need
    --launcher.
    """
    keys = {"partition": "partition", "time": "minutes", "gpus": "gpus", "cpus": "cpus", "at_most": "at_most"}
    options = {key: value for name, key in keys.items() if (value := getattr(args, name)) is not None}
    if args.launcher:
        need(f"--launcher {args.launcher}", "submitit", "slurm")
        from fedopt.jobs import Queue

        return Queue(**options)
    if options:
        raise UserError(f"{', '.join(f'--{key}' for key in options)}: needs --launcher slurm")
    from fedopt.jobs import Local

    return Local(args.jobs)


def answer(work: Callable[[], int | None], arguments: Sequence[str] = ()) -> None:
    """Do a command's work, and exit if its exit code is not 0. Errors are printed as one line.

    The exit code is the one the work returns; 2 for a user's mistake; 1 for a bug, or for runs that did not finish; 130 for
    Ctrl-C; and 141 if the output is no longer read. With HYDRA_FULL_ERROR=1 exceptions are raised instead.

    Args:
        work: Does the work and returns the exit code, or None for 0.
        arguments: The command's arguments, for messages.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # for terminals without ± or box lines
    try:
        with ctrl_c_kept():
            code = work()
    except KeyboardInterrupt:
        say("stopped")
        code = 130
    except BrokenPipeError:  # whoever read has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141
    except Exception as error:
        if os.environ.get("HYDRA_FULL_ERROR") == "1":
            raise
        line = mistake(error, arguments)
        if console.several:
            from fedopt.federation import ranks

            console.speaks = ranks.first()
        code = 2 if line and not isinstance(error, Unfinished) else 1
        say(line or f"{type(error).__name__}: {first_line(error)} (this is a bug: HYDRA_FULL_ERROR=1 shows where)")
    if code:
        sys.exit(code)
