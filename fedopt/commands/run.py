"""The command `fedopt`: compose a config with Hydra, and run it.

torch is imported only when a run starts, so that help and error messages appear immediately.
"""

import os
import re
import shlex
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from fedopt.commands.answer import SUBCOMMANDS, Parser, add_launcher, answer, launcher_of, positive
from fedopt.config import CONF, Budget, Composed, Settings, last_of_each, of_folder
from fedopt.console import counted, ending_at_once, folded, show
from fedopt.errors import UserError
from fedopt.files import yaml_text
from fedopt.metrics import LIMITS
from fedopt.results import RunFolder, numbers_of
from fedopt.running.configured import configured
from fedopt.running.place import place

EXIT = {"finished": 0, "diverged": 3, "interrupted": 130}


def main() -> None:
    """Entry point of `fedopt` and `python -m fedopt`."""
    arguments = sys.argv[1:]
    if arguments[:1] in (["help"], ["--help"], ["-h"]):
        arguments = [*arguments[1:], "--help"]
    if arguments and arguments[0] in SUBCOMMANDS:
        sys.argv = [f"fedopt-{arguments[0]}", *arguments[1:]]
        import_module(f"fedopt.commands.{arguments[0]}").main()
    else:
        answer(lambda: _dispatch(arguments), arguments)


def _dispatch(arguments: list[str]) -> int:
    """Execute a command: a subcommand, help, shell completion, a sweep or a single run.

    Args:
        arguments: The arguments after `fedopt`.

    Returns:
        The exit code.

    Raises:
        UserError: The arguments are invalid.
    """
    if arguments[:1] in (["new"], ["ls"], ["rm"], ["list"], ["export"]):
        others = {"list": ("list_", "show_list"), "rm": ("ls", "rm")}
        module, name = others.get(arguments[0], (arguments[0], arguments[0]))
        getattr(import_module(f"fedopt.commands.{module}"), name)(arguments[1:])
        return 0
    parser = Parser(prog="fedopt", add_help=False, allow_abbrev=False)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--config-dir", "-cd", dest="folders", action="append", default=[])
    parser.add_argument("--cfg", choices=["job"])
    parser.add_argument("--jobs", "-j", type=positive, default=1)
    parser.add_argument("--at-once", action="store_true")
    add_launcher(parser)
    for flags in (("--help", "-h"), ("--multirun", "-m"), ("-sc",)):
        parser.add_argument(*flags, action="store_true")
    args = parser.parse_intermixed_args(arguments)
    args.overrides = last_of_each(map(of_folder, args.overrides))
    for option, used in {"--launcher": args.launcher, "--jobs": args.jobs > 1, "--at-once": args.at_once}.items():
        if used and not args.multirun:
            raise UserError(f"{option} needs a sweep; add -m")
    if args.at_once and args.launcher:
        raise UserError("--at-once and --launcher cannot be combined; leave out one of them")
    if args.sc:
        _complete(args.overrides)
    elif args.help or not arguments:
        from fedopt.commands.help import show_help

        show_help(args.overrides, args.folders)
    elif args.multirun and not args.cfg:
        from fedopt.jobs import AtOnce
        from fedopt.jobs.sweep import sweep

        return sweep(args.overrides, args.folders, AtOnce(args.jobs) if args.at_once else launcher_of(args))
    else:
        composed = configured(args.overrides, args.folders)
        if not args.cfg:
            return _single(composed)
        from fedopt.running import check_parts
        from fedopt.running.assemble import assemble

        (check_parts if composed.nodes["dataset"].get("_target_") else assemble)(composed)  # does not read data
        show(yaml_text(dict(composed.nodes)).rstrip())
    return 0


def _complete(arguments: list[str]) -> None:
    """Print a shell's completion script (`-sc install=bash`), or the completions of the line in COMP_LINE (`-sc query=bash`).

    Args:
        arguments: The arguments after `-sc`: exactly one, such as install=bash.

    Raises:
        UserError: The arguments have another form.
    """
    if len(arguments) != 1 or not re.fullmatch("(install|uninstall|query)=(bash|zsh|fish)", arguments[0]):
        raise UserError("-sc: needs install, uninstall or query with bash, zsh or fish, such as -sc install=bash")
    if arguments[0].startswith("query"):
        from fedopt.commands.completion import completions

        show(("\n" if arguments[0].endswith("fish") else " ").join(completions(os.environ.get("COMP_LINE", ""))))
        return
    with initialize_config_dir(str(CONF), version_base="1.3"):
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None
        hydra.shell_completion(None, arguments)


def _single(composed: Composed) -> int:
    """Execute a run, print its results, and return the exit code.

    Args:
        composed: The config of the run.
    """
    with ending_at_once():
        from fedopt.federation import rank
        from fedopt.running import execute
    status, folder = execute(composed, lambda: place(composed))
    if rank() == 0:
        show(_last_line(status, folder, composed.settings))
    return EXIT[status]


def _last_line(status: str, folder: RunFolder, settings: Settings) -> str:
    """Return the text to print after a run: its status, costs, final metrics and folder, and how to resume it.

    Args:
        status: The status, a key of `EXIT`.
        folder: The run's folder.
        settings: The settings of the run.
    """
    summary = folder.summary()
    values = "  ".join(f"{name} {value:.5g}" for name, value in numbers_of(summary.get("final")).items())
    why = f": {summary.get('error')}" if status == "diverged" else _limit(settings.budget, summary)
    line = f"{status} after {counted(summary.get('round', 0), 'round')}{why} ({summary.get('seconds')} s)"
    lines = [line + (f": {values}" if values else "")]
    if settings.eval.target is not None:
        reached = numbers_of(summary.get("to_target"))
        spent = ", ".join(f"{name} {value:.10g}" for name, value in reached.items())
        when = f"reached at {spent}" if reached else "not reached"
        lines.append(f"target {settings.eval.metric} {settings.eval.target:g}: {when}")
    lines = [*map(folded, lines), f"results: {folder.path}"]
    if status == "interrupted":
        lines.append(f"to resume: fedopt resume=true {shlex.quote(f'output_dir={folder.path}')}")
    if status == "diverged":
        start = shlex.quote(f"from={folder.path}")
        lines.append(f"to continue with smaller step sizes: add {start} and a new output_dir to the command")
    return "\n".join(lines)


def _limit(budget: Budget, summary: Mapping[str, Any]) -> str:
    """Return a phrase that names the limits of the budget that the run has reached, such as ', at the limit budget.rounds=9'.

    It is empty if the budget has only one limit, or if the run has not finished.

    Args:
        budget: The budget of the run.
        summary: The content of summary.json.
    """
    limits = budget.limits.items()
    reached = [f"budget.{key}={limit}" for key, limit in limits if (summary.get(LIMITS[key].name) or 0) >= limit]
    several = summary.get("status") == "finished" and len(budget.limits) > 1
    return f", at the limit {' and '.join(reached)}" if several and reached else ""
