"""Code that all commands share: common options, and errors as one line. This module does not import torch."""

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

SUBCOMMANDS = ("bench", "compare", "report", "reproduce", "tune")  # fedopt-compare is an alias of fedopt compare


class Parser(argparse.ArgumentParser):
    """An argparse parser that raises UserError for invalid arguments.

    It adds the option --version, and the config folder of the current project to --config-dir.
    """

    def __init__(self, **options: Any):
        super().__init__(**options)
        self.add_argument("--version", action="version", version=f"{self.prog.split()[0]} {fedopt.__version__}")

    def parse_known_args(self, *args: Any, **options: Any) -> Any:
        """Parse arguments, and add the config folder of the current project to the folders of --config-dir.

        All parsing methods of argparse call this method, some of them twice, but the folder is added only once.
        """
        parsed, others = super().parse_known_args(*args, **options)
        if hasattr(parsed, "folders"):
            parsed.folders = with_project(parsed.folders)
        return parsed, others

    def error(self, message: str) -> NoReturn:
        """Raise UserError with argparse's message and a hint, for example that an option was removed."""
        for word in message.partition(": ")[2].split():
            if text := removed(word.partition("=")[0]):
                raise UserError(text)
        if self.prog == "fedopt" and message.startswith("unrecognized"):
            message += "; write overrides without dashes, such as algo=fedavg or budget.rounds=10"
        elif message.startswith("unrecognized"):
            message += nearest(message.split()[2], [flag for action in self._actions for flag in action.option_strings])
        raise UserError(f"{message}; {self.prog} --help lists the options")


def names_from(choices: Sequence[str]) -> Callable[[str], list[str]]:
    """Return a function that parses names separated by commas, for the parameter `type` of an argparse option.

    Args:
        choices: The allowed names.

    Returns:
        A function from the text to the list of names, without repetitions.
    """

    def parse(text: str) -> list[str]:
        names = list(dict.fromkeys(text.split(",")))
        for name in names:
            if name not in choices:
                near = nearest(name, list(choices))
                raise argparse.ArgumentTypeError(f"{name}: must be one of {', '.join(choices)}{near}")
        return names

    return parse


def number(text: str) -> float:
    """Return the value of an option that must be a finite number, for the parameter `type` of an argparse option."""
    value = float(text)
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text} must be a finite number")
    return value


def positive(text: str, least: int = 1) -> int:
    """Return the value of an option that must be a whole number from ``least`` to 2^62 - 1.

    Args:
        text: The value as typed.
        least: The smallest allowed number.
    """
    if not (text.isdecimal() and least <= int(text) < 2**62):
        raise argparse.ArgumentTypeError(f"{text} must be a whole number, at least {least} and less than 2^62")
    return int(text)


def minutes(text: str) -> int:
    """Convert the value of a time option: hours:minutes:seconds, or a number of minutes.

    Args:
        text: The value as typed, such as 2:30:00 or 150.

    Returns:
        The time in whole minutes, rounded up, at least 1.
    """
    if not re.fullmatch(r"\d{1,6}|\d{1,3}:\d\d:\d\d", text):
        raise argparse.ArgumentTypeError(f"{text} must be a time, hours:minutes:seconds or a number of minutes")
    hours, whole, seconds = map(int, text.split(":") if ":" in text else ("0", text, "0"))
    return max(1, 60 * hours + whole + (seconds > 0))


def add_launcher(parser: argparse.ArgumentParser) -> None:
    """Add the options for runs on a cluster, such as --launcher and --partition, to a parser.

    `launcher_of` turns their values into a launcher.

    Args:
        parser: The parser, which is changed in place.
    """
    add = parser.add_argument_group("options for running on a cluster").add_argument
    add("--launcher", choices=["slurm"], help="submit the runs to this queue (default: run them on this machine)")
    add("--partition", metavar="NAME", help="Slurm partition (default: Slurm's default)")
    limit = "time limit of a job; longer runs are resumed in a new job (default: 1:00:00)"
    add("--time", dest="minutes", type=minutes, metavar="H:MM:SS", help=limit)
    add("--gpus", type=positive, metavar="N", help="GPUs per run (default: none)")
    add("--cpus", type=positive, metavar="N", help="CPU cores per run (default: Slurm's default)")
    add("--at-most", type=positive, metavar="N", help="maximum number of runs in parallel (default: 50)")


def launcher_of(args: argparse.Namespace) -> "Launcher":
    """Return the launcher that a command's options choose: `Queue` with --launcher, otherwise `Local`.

    Args:
        args: The parsed options, including the options of `add_launcher`.

    Raises:
        UserError: Options for a cluster are used without --launcher, or submitit is not installed.
    """
    names = ("partition", "minutes", "gpus", "cpus", "at_most")
    options = {name: value for name in names if (value := getattr(args, name)) is not None}
    if args.launcher:
        need(f"--launcher {args.launcher}", "submitit", "slurm")
        from fedopt.jobs import Queue

        return Queue(**options)
    if options:
        raise UserError("--partition, --time, --gpus, --cpus and --at-most need --launcher slurm; add it")
    from fedopt.jobs import Local

    return Local(args.jobs)


def answer(work: Callable[[], int | None], arguments: Sequence[str] = ()) -> None:
    """Execute a command, print errors as one line, and exit the process if the exit code is not 0.

    The exit code is the one that the command returns; 2 for invalid input; 1 for a bug, or for runs that did not finish; 130
    after Ctrl-C; and 141 if the reader of the output has closed the pipe. With HYDRA_FULL_ERROR=1 exceptions are raised
    instead of printed.

    Args:
        work: Executes the command and returns the exit code, or None for 0.
        arguments: The command's arguments, for messages.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # some terminals cannot show ± or lines of tables
    try:
        with ctrl_c_kept():
            code = work()
    except KeyboardInterrupt:
        say("stopped")
        code = 130
    except BrokenPipeError:  # the reader has closed the pipe
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
        say(line or f"{type(error).__name__}: {first_line(error)} (this is a bug; HYDRA_FULL_ERROR=1 shows where)")
    if code:
        sys.exit(code)
