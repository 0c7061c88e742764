"""`fedopt list TOPIC`: the algorithms, problems, data sets and other options that a command can choose."""

import re
from textwrap import shorten

from fedopt.commands.answer import Parser
from fedopt.commands.help import COMMANDS
from fedopt.commands.keys import show_keys
from fedopt.config import (
    PROBLEM,
    Folders,
    about_all,
    certainty,
    check_folders,
    class_path,
    experimental,
    options,
    title,
)
from fedopt.console import columns, show, show_folded, show_table
from fedopt.errors import UserError, nearest

TOPICS = {"algorithms": "algo", "problems": "problem", "data": "dataset", "partitioners": "partitioner"}
TOPICS |= {"hardware": "hardware", "loggers": "logger", "experiments": "experiment"}
OTHER_TOPICS = {"keys": "the keys that every run has", "commands": "all commands and options"}
CLASSES = {  # of problems, where pages and lists do not use their names in Python
    "local_bilevel": "bilevel (local lower level)",
    "two_level": "compositional (two levels)",
    "known_outer": "compositional (two levels, the outer one known to all)",
    "local_compositional": "compositional (local)",
    "x_risk": "risk of pairs",
}


def show_list(arguments: list[str]) -> None:
    """Print the options of a topic with their titles: `fedopt list TOPIC`. Without a topic print the topics.

    Raises UserError for an unknown topic or class of problems.
    """
    parser = Parser(prog="fedopt list", description="Algorithms, problems and whatever else a command can choose.")
    topics = [*TOPICS, *OTHER_TOPICS]
    parser.add_argument("topic", nargs="?", metavar="TOPIC", help=", ".join(topics))
    which = "all that fit this class of problems, with full titles, and where an algorithm's equations are from"
    parser.add_argument("kind", nargs="*", metavar="CLASS", help=which)
    parser.add_argument("--config-dir", "-cd", dest="folders", action="append", default=[], help="a folder of yours")
    args = parser.parse_args(arguments)
    check_folders(tuple(args.folders))
    topic = next((topic for topic, group in TOPICS.items() if args.topic == group), args.topic)
    group = TOPICS.get(topic or "", "")
    if args.topic is None:
        counts = {name: f"{len(options(of, args.folders))}, with {of}=NAME" for name, of in TOPICS.items()}
        show("fedopt list TOPIC:")
        show_table(["", ""], [(f"  {name}", text) for name, text in (counts | OTHER_TOPICS).items()])
    elif topic not in topics:
        near = nearest(args.topic, topics)
        raise UserError(f"fedopt list {args.topic}: there is no such topic{near}; choose one of {', '.join(topics)}")
    elif topic == "commands":
        show_table(["", ""], [*COMMANDS.items()])
    elif topic == "keys":
        show_keys([], args.folders)
    elif group in ("algo", "problem"):
        _by_class(group, " ".join(args.kind), args.folders)
    else:
        show_table(["", ""], [(name, title(group, name, args.folders)) for name in options(group, args.folders)])


def _by_class(group: str, wanted: str, folders: Folders) -> None:
    """Print algorithms or problems, each below the first class of problems that it fits, checked algorithms first.

    Args:
        group: algo or problem.
        wanted: A class: print all that fit it, with full titles and where the equations of algorithms are from. '' prints all,
            on a line each.
        folders: The user's config folders.

    Raises:
        UserError: There is no such class.
    """
    paths = {name: class_path(group, name, folders) for name in options(group, folders)}
    answers = about_all([PROBLEM, *(path for path in paths.values() if path.startswith("fedopt."))])
    fits = {name: answers[path]["fits"] if path in answers else ["yours"] for name, path in paths.items()}
    kinds = dict.fromkeys([*answers[PROBLEM]["fits"], *(kind for its in fits.values() for kind in its)])
    named = {word: kind for kind in kinds for word in (kind, CLASSES.get(kind, kind))}
    if wanted and wanted not in named:
        every = ", ".join(CLASSES.get(kind, kind) for kind in kinds)
        raise UserError(f"{wanted}: there is no such class{nearest(wanted, [*named])}; choose one of {every}")
    unchecked = {name for name in paths if group == "algo" and experimental(name, folders)}
    for kind in [named[wanted]] if wanted else kinds:
        fitting = sorted((name for name, its in fits.items() if kind in its), key=lambda name: name in unchecked)
        members = fitting if wanted else [name for name in fitting if fits[name][0] == kind]
        if not fitting:
            continue
        parts = [f"{CLASSES.get(kind, kind)}: {len(members)}"]
        parts += [f"{count} of them experimental"] if (count := len(unchecked & {*members})) else []
        parts += [f"{more} of other classes fit"] if (more := len(fitting) - len(members)) else []
        show_folded(", ".join(parts))
        show_table(
            ["", ""], [(f"  {name}", _title(group, name, bool(wanted), name in unchecked, folders)) for name in members]
        )
    if not wanted:
        topic = next(topic for topic, of in TOPICS.items() if of == group)
        show_folded(f"fedopt list {topic} CLASS, such as minimax: all that fit a class, and their full titles")


def _title(group: str, name: str, full: bool, unchecked: bool, folders: Folders) -> str:
    """Return what a list says of an option: its title, cut to a line unless it shall be `full`."""
    text = title(group, name, folders)
    if full:
        return f"{text}; {certainty(name, folders) or '-'}" if group == "algo" else text
    text = re.sub(r" \[[^]]*\]$", "", text)
    return shorten(f"(experimental) {text}" if unchecked else text, max(columns() - 26, 20), placeholder=" ...")
