"""The output of `fedopt --help` and `fedopt list`: the available options, and the keys of chosen ones.

A key's meaning is the comment beside it in the config files; its type is that of the class's field (`config.classes`).
"""

from collections.abc import Mapping
from textwrap import wrap
from typing import Any, NamedTuple

import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedopt.commands.answer import Parser
from fedopt.config import (
    GROUPS,
    PROBLEM,
    ROLE,
    SETTINGS,
    Folders,
    about,
    about_all,
    certainty,
    chain,
    check_folders,
    class_path,
    extra_folders,
    key_of,
    meanings,
    merge,
    options,
    title,
    tuned_names,
    with_project,
)
from fedopt.console import columns, printable, show, show_columns
from fedopt.errors import UserError, nearest

# Of a value, where no class says more
TYPES = {"int": "whole number", "float": "number", "bool": "true | false", "str": "text"}
NOTES = {
    "step size": "a number from 0, or a schedule by the round r: {kind: inverse_power, initial: 0.1, power: 0.5, delay: 1} is "
    "initial / (1 + r / delay)^power, {kind: exponential, initial: 0.1, decay: 0.99} is initial * decay^r, "
    "{kind: piecewise, values: [0.1, 0.01], boundaries: [100]} changes at the boundaries",
    "local work": "a number of steps such as 5, or of epochs such as '5 epochs', or {kind: growing, tau: 20, power: 0.5}, "
    "ceil(tau (r + 1)^power) steps in round r",
    "pattern": "{kind: cyclic, groups: 2, by: random, stay: 1} are groups that are there in turn, cut by: random or label, or a "
    "list of each client's group; {kind: markov, on: 0.1, off: 0.3} are chains that come and go with these probabilities; "
    "{kind: diurnal, share: 0.3, depth: 0.8, period: 24, groups: null} is there with the probability share (1 + depth sin(2 pi "
    "(r / period + phase_i)))",
}


USAGE = """fedopt: federated nested optimisation in PyTorch

  fedopt algo=fedmsa problem=mco              one run
  fedopt -m algo=fedmsa problem=mco seed=0,1  a sweep
  fedopt-compare outputs                      tables, curves

more:
  fedopt list                                 what there is
  fedopt list commands                        all commands
  fedopt algo=fedmsa problem=mco --help       keys of a run
  fedopt ls                                   your runs"""
COMMANDS = {
    "fedopt algo=fedmsa problem=mco": "one run",
    "fedopt algo=fedmsa problem=mco algo.K=10": "with another value",
    "fedopt -m algo=fedmsa problem=mco seed=0,1,2": "a sweep; --jobs 2 does two runs at a time, --launcher slurm queues them",
    "fedopt --help algo=fedmsa problem=mco": "all keys of a run: meaning, type, default and tuned value",
    "fedopt --help algo=fedmsa": "the keys of an algorithm, a problem, ...",
    "fedopt algo=fedmsa problem=mco --cfg job": "show the config and do not run",
    "fedopt resume=true output_dir=DIR": "go on with the run that is there",
    "fedopt --config-dir DIR ...": "with your own algorithms, problems, ...; fedopt.toml names such a folder too",
    "fedopt ls": "the runs that are there; --help shows how to choose and sort them",
    "fedopt export RUN": "write a run's model to a file, JSON if it is linear; --client NAME that of one client",
    "fedopt list TOPIC": "what there is; --config-dir DIR adds yours",
    "fedopt new algo NAME": "begin an algorithm of your own; or new problem NAME, --class bilevel",
    "fedopt trust": "let commands in this folder import its Python files, as after fedopt new; for a clone or a copy",
    'eval "$(fedopt -sc install=bash)"': "complete words with the tab key; or zsh, fish",
    "fedopt-compare DIR...": "compare runs",
    "fedopt-report DIR...": "a page of results",
    "fedopt-reproduce PAPER/NAME...": "a published figure; --list shows all",
    "fedopt-tune algo=A,B problem=NAME": "search for values, with the same trials for each method",
    "fedopt-bench run --smoke": "the benchmark of methods; also rank, and enter ALGORITHM",
}
TOPICS = {"algorithms": "algo", "problems": "problem", "data": "dataset", "partitioners": "partitioner"}
TOPICS |= {"hardware": "hardware", "loggers": "logger", "experiments": "experiment"}
OTHER_TOPICS = {"keys": "those that every run has", "commands": "all commands and options"}
PLAIN = ["problem=quadratic_minimax"]  # its file sets none of the keys that every run has
STAND_INS = {"algo": "fedmsa", "problem": "mco"}  # for what a command does not choose
LEAST, INDENT = 28, "    "  # columns of the meanings in a table; of a paragraph
EVERY = ""  # the part of the keys that every run has, beside the groups


class Key(NamedTuple):
    """What the help shows about a config key.

    default: its value without tuned values, as YAML. tuned: its tuned value, as YAML; empty if it has none. type, meaning: in
        words.
    """

    default: str
    tuned: str
    type: str
    meaning: str


def keys(words: list[str], folders: Folders) -> tuple[dict[str, Key], Mapping[str, str], str]:
    """Return (key -> what the help shows, config group -> chosen option, a line on tuned values) for a command's config.

    Args:
        words: The overrides of the command. If it chooses no algorithm or problem, FedMSA and mco are used.
        folders: The user's config folders.

    Raises:
        UserError: As `merge` does.
    """
    chosen = {*map(key_of, words)}
    words = [f"{group}={name}" for group, name in STAND_INS.items() if not {group, "experiment"} & chosen] + words
    composed = merge(words, folders)
    usual = merge([*words, "preset=none"], folders) if composed.tuned.name else composed
    values, defaults = _leaves(composed.nodes), {**_leaves(usual.nodes), "preset": composed.nodes["preset"]}
    said, types = meanings(composed.chosen, folders), _types(composed.nodes)
    described = {
        key: Key(
            _shown(defaults.get(key)),
            _shown(value) if value != defaults.get(key) else "",
            types.get(key) or TYPES.get(type(value).__name__, ""),
            ROLE.sub("", said.get(key, "")),
        )
        for key, value in values.items()
    }
    return described, composed.chosen, str(composed.tuned)


def show_list(arguments: list[str]) -> None:
    """Print the options of a topic with their titles: `fedopt list TOPIC`. Without a topic print the topics.

    Raises UserError for an unknown topic.
    """
    parser = Parser(prog="fedopt list", description="What there is.")
    topics = [*TOPICS, *OTHER_TOPICS]
    parser.add_argument("topic", nargs="?", metavar="TOPIC", help=", ".join(topics))
    parser.add_argument("--config-dir", "-cd", dest="folders", action="append", default=[], help="a folder of yours")
    parser.add_argument("--long", action="store_true", help="algorithms with how certain their equations are")
    given = parser.parse_args(arguments)
    check_folders(tuple(given.folders))
    counts = {topic: f"{len(options(group, given.folders))}, with {group}=NAME" for topic, group in TOPICS.items()}
    if given.topic is None:
        show("fedopt list TOPIC:")
        show_columns({f"  {topic}": text for topic, text in (counts | OTHER_TOPICS).items()})
        return
    names = {word: topic for topic, group in TOPICS.items() for word in (group, f"{group}s", topic, topic.rstrip("s"))}
    topic = {**names, **{name: name for name in OTHER_TOPICS}}.get(given.topic)
    if topic is None:
        near = nearest(given.topic, topics)
        raise UserError(f"fedopt list {given.topic}: there is no such topic{near}; choose one of {', '.join(topics)}")
    if topic == "commands":
        show_columns(COMMANDS)
    elif topic == "keys":
        show_keys([], given.folders)
    else:
        titles = {name: title(TOPICS[topic], name, given.folders) for name in options(TOPICS[topic], given.folders)}
        if given.long and TOPICS[topic] == "algo":
            titles = {name: f"{text}; {certainty(name, given.folders) or '-'}" for name, text in titles.items()}
        if TOPICS[topic] in ("algo", "problem"):
            _by_class(TOPICS[topic], titles, given.folders)
        else:
            show_columns(titles)


def _by_class(group: str, titles: Mapping[str, str], folders: Folders) -> None:
    """Print algorithms or problems, grouped by the first problem class they fit. Below each group, name the others that fit the
    class.

    group: algo or problem. titles: option -> title. folders: the user's config folders.
    """
    paths = {name: class_path(group, name, folders) for name in titles}
    answers = about_all([PROBLEM, *(path for path in paths.values() if path.startswith("fedopt."))])
    fits = {name: answers[path]["fits"] if path in answers else ["yours"] for name, path in paths.items()}
    first = {name: kinds[0] for name, kinds in fits.items()}
    for kind in dict.fromkeys([*answers[PROBLEM]["fits"], *first.values()]):
        show(f"{kind}:")
        show_columns({f"  {name}": title for name, title in titles.items() if first[name] == kind})
        if also := [name for name, kinds in fits.items() if kind in kinds and first[name] != kind]:
            show(*_folded(f"also {', '.join(also)}", "  ", "    "))


def _folded(text: str, first: str = "", others: str = "") -> list[str]:
    return wrap(text, columns(), initial_indent=first, subsequent_indent=others)


def show_help(words: list[str], folders: list[str]) -> None:
    """Print the command's usage; with overrides, the keys of what they choose."""
    if words:
        show_keys(words, folders)
    else:
        show(USAGE)


def show_keys(words: list[str], folders: list[str]) -> None:
    """Print the keys of the config groups that a command chooses; with an algorithm and a problem, those of the complete run.

    words: the overrides; [] prints the keys that every run has. folders: the user's config folders.
    """
    described, chosen, tuned = keys(words or PLAIN, folders)
    groups = [group for group in GROUPS if group in map(key_of, words)]
    of_run = bool(words) and (not groups or {"algo", "problem"} <= {*groups} or "experiment" in groups)
    parts = [*GROUPS, EVERY] if of_run else groups or [EVERY]
    shown = {part: {key: row for key, row in described.items() if _part(key) == part} for part in parts}
    for part, rows in shown.items():
        if rows or (part == "experiment" and part in groups):
            head = f"={chosen[part]}: {title(part, chosen[part], folders)}" if part in chosen else ":"
            show("", *_folded(f"{part or 'every run'}{head}"))
        if rows:
            _print(rows, of_run)
    types = " ".join(row.type for rows in shown.values() for row in rows.values())
    for kind, note in NOTES.items():
        if kind in types:
            show("", *_folded(f"{kind}: {note}"))
    if "algo" in parts:
        show("", *_folded(tuned if of_run else _tuned_problems(chosen["algo"], folders)))


def _part(key: str) -> str:
    """Return the config group of a key; '' for a key that every run has."""
    first = key.partition(".")[0]
    return first if first in GROUPS else EVERY


def _print(rows: Mapping[str, Key], with_tuned: bool) -> None:
    """Print keys as a table, or as paragraphs if the table would leave less than `LEAST` columns for the meanings.

    rows: key -> what to show. with_tuned: whether to show tuned values.
    """
    shown = {key: Key(*map(printable, row)) for key, row in rows.items()}
    texts = [("key", "default", "tuned"), *((key, row.default, row.tuned) for key, row in shown.items())]
    beside = sum(max(len(text[k]) for text in texts) + 2 for k in range(3 if with_tuned else 2))
    if beside + min(max(len(row.type) for row in shown.values()), LEAST) + 2 + LEAST > columns():
        for key, row in shown.items():
            show(f"{key}={row.default}" + (f", tuned {row.tuned}" if with_tuned and row.tuned else ""))
            show(*_folded(f"{row.meaning} ({row.type})", INDENT, INDENT))
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("key", "default", *(["tuned"] if with_tuned else []), "type or values", "meaning"):
        table.add_column(column, overflow="fold", no_wrap=column in ("key", "default", "tuned"))
    for key, row in shown.items():
        table.add_row(*map(Text, (key, row.default, *([row.tuned] if with_tuned else []), row.type, row.meaning)))
    console = Console(width=columns())
    with console.capture() as captured:
        console.print(table)
    print(*map(str.rstrip, captured.get().splitlines()), sep="\n")  # not `show`: rich's bold heads are meant


def _tuned_problems(algo: str, folders: Folders) -> str:
    """Return a line that names the problems for which an algorithm has tuned values."""
    names = [name.split("/") for name in tuned_names(folders)]
    problems = sorted({problem for file, problem in names if file in chain("algo", algo, folders)})
    return f"tuned values for problem={', '.join(problems)}" if problems else "no tuned values for any problem"


def _leaves(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return dotted key -> value of a config. Keys that begin with an underscore are left out; a schedule counts as one value."""
    leaves: dict[str, Any] = {}
    for key, value in _with_loggers(config).items():
        inner = (
            {f"{key}.{name}": leaf for name, leaf in value.items() if name[0] != "_"}
            if isinstance(value, dict)
            else None
        )
        leaves |= {key: value} if inner is None else inner
    return leaves


def _shown(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=10**6, sort_keys=False).split("\n")[0].strip("'")


# Completion


def completions(line: str) -> list[str]:
    """Return the completions of the last word of a command line: groups, keys, options, or a key's possible values."""
    *before, word = [*line.split(), ""] if line.endswith(" ") else line.split()
    folders = with_project(extra_folders(before))
    try:
        described = keys([text for text in before if key_of(text) in GROUPS and "," not in text], folders)[0]
    except UserError:
        described = {}
    name, equals, _ = word.partition("=")
    begun = word[: max(word.rfind("="), word.rfind(",")) + 1]  # in a sweep, the earlier values
    if [*map(str, before[1:])] in (["list"], ["new"]):
        words = {*TOPICS, *OTHER_TOPICS} if before[1] == "list" else {"algo", "problem"}
    elif not equals:
        ends = {key: key.find(".", len(word)) + 1 for key in described}
        words = {*(key[:end] if (end := ends[key]) else f"{key}=" for key in described), *(f"{g}=" for g in GROUPS)}
        words |= {"ls", "list", "new", "trust", "export"} if len(before) == 1 else set()
    elif name in GROUPS:
        words = {f"{begun}{option}" for option in options(name, folders)}
    else:
        key = described.get(name, Key("", "", "", ""))
        values = {key.default, *(value for value in key.type.split(" | ") if " " not in value)}
        values |= {"none", *tuned_names(folders)} if name == "preset" else set()
        words = {f"{begun}{value}" for value in values - {"", "text", "number"}}
    return sorted(text for text in words if text.startswith(word))


# Types


def _types(nodes: Mapping[str, Any]) -> dict[str, str]:
    types = dict(about(SETTINGS)["fields"])
    for where, node in _with_loggers(nodes).items():
        path = str(node.get("_target_", "")) if isinstance(node, dict) else ""
        types |= {f"{where}.{key}": words for key, words in about(path)["fields"].items()} if path else {}
    return types


def _with_loggers(nodes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the nodes of a config in which each logger is a node, logger.NAME."""
    loggers = {name: node for name, node in nodes["logger"].items() if isinstance(node, dict)}
    rest = {name: value for name, value in nodes["logger"].items() if name not in loggers}
    return {**nodes, "logger": rest, **{f"logger.{name}": node for name, node in loggers.items()}}
