"""The command `fedopt list TOPIC`: list the algorithms, problems, data sets and other options that a command can choose."""

import re
from textwrap import shorten

from fedopt.commands.answer import Parser
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
from fedopt.errors import UserError, among, nearest

TOPICS = {"algorithms": "algo", "problems": "problem", "data": "dataset", "partitioners": "partitioner"}
TOPICS |= {"hardware": "hardware", "loggers": "logger", "experiments": "experiment"}
KEYS = {"keys": "the keys that every run has"}
CLASSES = {  # class of problems in Python -> its name on pages and in lists, if it is different
    "local_bilevel": "bilevel (local lower level)",
    "two_level": "compositional (two levels)",
    "known_outer": "compositional (two levels, the outer one known to all)",
    "local_compositional": "compositional (local)",
    "multi_objective": "several objectives",
    "x_risk": "risk of pairs",
}


def show_list(arguments: list[str]) -> None:
    """Print the options of a topic with their titles: `fedopt list TOPIC`. Without a topic, print the topics.

    Args:
        arguments: The arguments after `fedopt list`.

    Raises:
        UserError: The topic or the class of problems does not exist.
    """
    parser = Parser(prog="fedopt list", description="List algorithms, problems and other options of a command.")
    topics = [*TOPICS, *KEYS]
    parser.add_argument("topic", nargs="?", metavar="TOPIC", help=", ".join(topics))
    which = "only this class of problems, such as minimax, with full titles and the sources of the equations"
    parser.add_argument("kind", nargs="*", metavar="CLASS", help=which)
    parser.add_argument("--config-dir", "-cd", dest="folders", action="append", default=[], help="your config folder")
    args = parser.parse_args(arguments)
    check_folders(tuple(args.folders))
    topic = next((topic for topic, group in TOPICS.items() if args.topic == group), args.topic)
    group = TOPICS.get(topic or "", "")
    if args.topic is None:
        counts = {name: f"{len(options(its, args.folders))}, chosen by {its}=NAME" for name, its in TOPICS.items()}
        show("fedopt list TOPIC:")
        show_table(["", ""], [(f"  {name}", text) for name, text in (counts | KEYS).items()])
    elif topic not in topics:
        raise UserError(f"fedopt list {args.topic}: there is no such topic{among(args.topic, topics)}")
    elif topic == "keys":
        show_keys([], args.folders)
    elif group in ("algo", "problem"):
        _by_class(group, " ".join(args.kind), args.folders)
    else:
        show_table(["", ""], [(name, title(group, name, args.folders)) for name in options(group, args.folders)])


def _by_class(group: str, wanted: str, folders: Folders) -> None:
    """Print algorithms or problems by class of problems, checked algorithms first.

    Args:
        group: ``algo`` or ``problem``.
        wanted: A class. All algorithms or problems of this class are printed, with full titles and the sources of the
            equations. Empty: all algorithms or problems are printed on one line each, under the first of their classes.
        folders: The user's config folders.

    Raises:
        UserError: There is no such class.
    """
    paths = {name: class_path(group, name, folders) for name in options(group, folders)}
    known = about_all([PROBLEM, *(path for path in paths.values() if path.startswith("fedopt."))])
    fits = {name: known[path]["fits"] if path in known else ["yours"] for name, path in paths.items()}
    kinds = dict.fromkeys([*known[PROBLEM]["fits"], *(kind for its in fits.values() for kind in its)])
    named = {text: kind for kind in kinds for text in (kind, CLASSES.get(kind, kind))}
    if wanted and wanted not in named:
        every = ", ".join(CLASSES.get(kind, kind) for kind in kinds)
        raise UserError(f"{wanted}: there is no such class{nearest(wanted, [*named])}; choose one of {every}")
    unchecked = {name for name in paths if group == "algo" and experimental(name, folders)}
    for kind in [named[wanted]] if wanted else kinds:
        fitting = sorted((name for name, its in fits.items() if kind in its), key=lambda name: name in unchecked)
        members = fitting if wanted else [name for name in fitting if fits[name][0] == kind]
        if not fitting:
            continue
        counts = [f"{CLASSES.get(kind, kind)}: {len(members)}"]
        counts += [f"{count} of them experimental"] if (count := len(unchecked & {*members})) else []
        counts += [f"{more} from other classes also fit"] if (more := len(fitting) - len(members)) else []
        show_folded(", ".join(counts))
        titles = {name: _title(group, name, bool(wanted), name in unchecked, folders) for name in members}
        show_table(["", ""], [(f"  {name}", text) for name, text in titles.items()])
    if not wanted:
        topic = next(topic for topic, its in TOPICS.items() if its == group)
        show_folded(f"for all {topic} that fit a class, with full titles: fedopt list {topic} CLASS, such as minimax")


def _title(group: str, name: str, full: bool, unchecked: bool, folders: Folders) -> str:
    """Return the title of an option in a list.

    Args:
        group: The config group.
        name: The option.
        full: Whether to return the full title. Otherwise it is shortened to one line.
        unchecked: Whether to mark the option as experimental.
        folders: The user's config folders.
    """
    text = title(group, name, folders)
    if full:
        return f"{text}; {certainty(name, folders) or '-'}" if group == "algo" else text
    text = re.sub(r" \[[^]]*\]$", "", text)
    return shorten(f"(experimental) {text}" if unchecked else text, max(columns() - 26, 20), placeholder=" ...")
