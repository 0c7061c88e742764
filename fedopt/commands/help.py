"""What `fedopt --help` says: what there is, and the keys of what is chosen.

A key's meaning is the comment beside it in the config files, its type the annotation of the class that the files name. Classes are
read as text and not imported, so that help comes at once and runs no code.
"""

import ast
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from rich.table import Table

from fedopt.config.build import INTERFACES
from fedopt.config.compose import composed_of, extra_folders
from fedopt.config.files import CONF, GROUPS, config_text, file_of, options
from fedopt.config.sent import refuse_hydra
from fedopt.config.tuned import Asked
from fedopt.errors import UserError

TYPES = {  # how annotations are said
    "PositiveInt": "whole number from 1",
    "NonNegativeInt": "whole number from 0",
    "PositiveFloat": "number above 0",
    "NonNegativeFloat": "number from 0",
    "StrictInt": "whole number",
    "StrictBool": "true | false",
    "int": "whole number",
    "float": "number",
    "bool": "true | false",
    "str": "text",
    "Schedule": "step size",
    "LocalWork": "local work",
}
BOUNDS = {"ge": "from", "gt": "above", "le": "to", "lt": "below"}
NOTES = {
    "step size": "a number from 0, or a schedule by the round r: {kind: inverse_power, initial: 0.1, power: 0.5, delay: 1} is "
    "initial / (1 + r / delay)^power, {kind: exponential, initial: 0.1, decay: 0.99} is initial * decay^r, "
    "{kind: piecewise, values: [0.1, 0.01], boundaries: [100]} changes at the boundaries",
    "local work": "a number of steps such as 5, or of epochs such as '5 epochs', or {kind: growing, tau: 20, power: 0.5}, "
    "ceil(tau (r + 1)^power) steps in round r",
}


# Everything there is


def overview(folders: Iterable[str]) -> str:
    """Usage, and everything that can be chosen."""
    lines = [
        "fedopt: experiments in federated nested optimisation",
        "",
        "  fedopt algo=fedmsa problem=mco                 one run",
        "  fedopt algo=fedmsa problem=mco algo.K=10       with another value",
        "  fedopt -m algo=fedmsa problem=mco seed=0,1,2   a sweep",
        "  fedopt --help algo=fedmsa problem=mco          all keys of a run: meaning, type, default and tuned value",
        "  fedopt --help algo=fedmsa                      the keys of an algorithm, a problem, ...",
        "  fedopt algo=fedmsa problem=mco --cfg job       show the config and do not run",
        "  fedopt resume=true output_dir=DIR              go on with the run that is there",
        "  fedopt --schema experiment                     a JSON schema of experiment files, for editors; or config",
        '  eval "$(fedopt -sc install=bash)"              complete words with the tab key; or zsh, fish',
        "  fedopt new algo NAME                           begin an algorithm of your own; or new problem NAME, --class bilevel",
        "  fedopt-compare DIR...                          compare runs",
        "  fedopt-reproduce PAPER/NAME...                 a published figure; --list shows all",
    ]
    for group in GROUPS:
        names = options(group, folders)
        if group == "preset" or not names:
            continue
        width = max(24, *(len(name) for name in names))
        lines += ["", f"{group}=", *(f"  {name:<{width}} {_title(group, name, folders)}" for name in names)]
    return "\n".join(lines)


def _title(group: str, name: str, folders: Iterable[str]) -> str:
    head = config_text(file_of(group, name, folders)).split("\n")[:3]
    said = (line[2:] for line in head if line.startswith("# ") and "@package" not in line and "$schema" not in line)
    return next(said, "")


# Keys


PLAIN = ["problem=quadratic_minimax"]  # its file sets none of the keys that every run has


class Key(NamedTuple):
    """default, tuned: as they are written in YAML, tuned empty without tuned values of its own; type, meaning: in words."""

    default: str
    tuned: str
    type: str
    meaning: str


def keys(words: list[str], folders: Iterable[str]) -> tuple[dict[str, Key], dict[str, str]]:
    """Each key of the config that a command's words compose to, and what they choose. Raises as `composed_of`."""
    tuned, chosen = composed_of(words, folders)
    usual = composed_of([*words, "preset=none"], folders)[0] if chosen["preset"] != "none" else tuned
    values, defaults = (_leaves(OmegaConf.to_container(config)) for config in (tuned, usual))
    said, types = _meanings(chosen, folders), _types(OmegaConf.to_container(tuned))
    found = {
        key: Key(
            _shown(defaults.get(key)),
            _shown(value) if value != defaults.get(key) else "",
            types.get(key) or TYPES.get(type(value).__name__, ""),
            said.get(key, ""),
        )
        for key, value in values.items()
    }
    return found, chosen


def show(words: list[str], folders: list[str]) -> None:
    """Print the keys of what a command chooses: of the groups that it names, or with an algorithm and a problem of the whole run.
    Without words, everything there is. folders: config folders besides fedopt's."""
    refuse_hydra(words)
    found, chosen = keys(words or PLAIN, folders)
    if not words:
        print(overview(folders))
    named = {word.partition("=")[0] for word in words} & set(GROUPS)
    if not words:
        named = {""}
    elif not named or {"algo", "problem"} <= named or named & {"preset", "experiment"}:
        named = {*GROUPS, ""}
    whole = "algo" in named and "" in named
    parts = [group for group in (*GROUPS, "") if group in named and group not in ("preset", "experiment")]
    console = Console(width=None if sys.stdout.isatty() else 180, highlight=False, markup=False, soft_wrap=False)
    for part in parts:
        rows = {key: row for key, row in found.items() if (key.partition(".")[0] if "." in key else "") in _nodes(part)}
        if part and not rows:
            continue
        head = f"{part}={chosen[part]}: {_title(part, chosen[part], folders)}" if part in chosen else f"{part}:"
        console.print(f"\n{head}" if part else "\nevery run:")
        _print(console, rows, whole)
    for kind, note in NOTES.items():
        if any(kind in row.type and key.partition(".")[0] in named for key, row in found.items()):
            console.print(f"\n{kind}: {note}")
    if "algo" in named:
        console.print(f"\n{_tuned(chosen, whole, folders)}")


def _nodes(part: str) -> tuple[str, ...]:
    return (part,) if part else ("", "participation", "budget", "eval")


def _print(console: Console, rows: Mapping[str, Key], whole: bool) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("key", "default", *(["tuned"] if whole else []), "type or values", "meaning"):
        table.add_column(title, overflow="fold", no_wrap=title == "key")
    for key, row in rows.items():
        table.add_row(key, row.default, *([row.tuned] if whole else []), row.type, row.meaning)
    console.print(table)


def _tuned(chosen: Mapping[str, str], whole: bool, folders: Iterable[str]) -> str:
    """A line on the tuned values that there are, for a whole run or for an algorithm."""
    if whole:
        return Asked(chosen=chosen).tuned
    families = [value for path in _files("algo", chosen["algo"], folders) for value in _presets(path)]
    presets = [name.rpartition("/") for name in options("preset", folders)]
    problems = [problem for family, _, problem in presets if families and f"{family}/${{problem}}" == families[-1]]
    return f"tuned values: for problem={'|'.join(problems)}" if problems else "no tuned values for any problem"


def _leaves(config: Any) -> dict[str, Any]:
    """The values by their dotted keys, but for those that begin with an underscore; schedules are values."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        inner = value if isinstance(value, dict) else None
        found |= {key: value} if inner is None else {f"{key}.{k}": v for k, v in inner.items() if k[0] != "_"}
    return {key: value for key, value in found.items() if key.partition(".")[0] != "experiment"}


def _shown(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=10**6, sort_keys=False).split("\n")[0].strip("'")


# Completion


def completions(line: str) -> list[str]:
    """What the last word of a command line may become: a config group or a key, and behind =, an option or a value of a few."""
    *before, word = [*line.split(), ""] if line.endswith(" ") else line.split()
    folders = extra_folders(before)
    try:
        found = keys([text for text in before if text.partition("=")[0] in GROUPS and "," not in text], folders)[0]
    except (UserError, HydraException, OmegaConfBaseException):
        found = {}
    name, equals, _ = word.partition("=")
    begun = word[: max(word.rfind("="), word.rfind(",")) + 1]  # in a sweep, the earlier values
    if not equals:
        ends = {key: key.find(".", len(word)) + 1 for key in found}
        words = {*(key[:end] if (end := ends[key]) else f"{key}=" for key in found), *(f"{group}=" for group in GROUPS)}
    elif name in GROUPS:
        words = {f"{begun}{option}" for option in options(name, folders)}
    else:
        key = found.get(name, Key("", "", "", ""))
        values = {key.default, *(value for value in key.type.split(" | ") if " " not in value)}
        words = {f"{begun}{value}" for value in values - {"", "text", "number"}}
    return sorted(text for text in words if text.startswith(word))


# Meanings: the comments of config files


def _defaults(path: Path) -> list[Any]:
    content = yaml.safe_load(config_text(path))
    return (content.get("defaults") or []) if isinstance(content, dict) else []


def _files(group: str, name: str, folders: Iterable[str]) -> list[Path]:
    """The file of an option, after those of its own group that it builds on."""
    path = file_of(group, name, folders)
    bases = [entry for entry in _defaults(path) if isinstance(entry, str) and entry in options(group, folders)]
    return [file for base in bases for file in _files(group, base, folders)] + [path]


def _presets(path: Path) -> list[str]:
    """Where a file says that tuned values are."""
    entries = [entry for entry in _defaults(path) if isinstance(entry, dict)]
    return [str(value) for entry in entries for key, value in entry.items() if key.endswith("/preset")]


def _meanings(chosen: Mapping[str, str], folders: Iterable[str]) -> dict[str, str]:
    found = comments(CONF / "config.yaml")
    for group in GROUPS:
        if group not in ("preset", "experiment") and group in chosen:
            for path in _files(group, chosen[group], folders):
                inside = "" if "@package _global_" in config_text(path) else f"{group}."
                found |= {f"{inside}{key}": comment for key, comment in comments(path).items()}
    return found


def comments(path: Path) -> dict[str, str]:
    """The comments beside the keys of a YAML file, by dotted key."""
    text = config_text(path)
    lines, found = text.splitlines(), {}

    def walk(node: yaml.Node, inside: str) -> None:
        for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
            block = isinstance(value, yaml.CollectionNode) and not value.flow_style
            end = key.end_mark if block else value.end_mark
            comment = lines[end.line][end.column :].partition("# ")[2] if end.line < len(lines) else ""
            found.update({f"{inside}{key.value}": comment.strip()} if comment else {})
            if block:
                walk(value, f"{inside}{key.value}.")

    walk(yaml.compose(text, yaml.SafeLoader) or yaml.ScalarNode("", ""), "")
    return found


# Types: the annotations of classes, as text


def _types(config: Any) -> dict[str, str]:
    found = _fields("fedopt.config.build", "Settings")
    for group in INTERFACES:
        module, _, name = str(config[group].get("_target_")).rpartition(".")
        with suppress(OSError, RecursionError, SyntaxError, ValueError):  # of files that no Python could be
            found |= {f"{group}.{field}": words for field, words in (_fields(module, name) if module else {}).items()}
    return found


def _fields(module: str, name: str) -> dict[str, str]:
    """The types of a dataclass' fields and of its bases', in words; of a field that is such a class, those of its own fields."""
    found: dict[str, str] = {}
    where, node = _find(module, name)
    if isinstance(node, ast.ClassDef):
        for base in reversed(node.bases):
            found |= _fields(where, ast.unparse(base))
        for part in node.body:
            if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                inner = _fields(where, ast.unparse(part.annotation))
                found |= {f"{part.target.id}.{key}": words for key, words in inner.items()}
                found |= {} if inner else {_alias(part.annotation) or part.target.id: in_words(where, part.annotation)}
    return found


def _alias(node: ast.expr) -> str | None:
    aliases = [k.value for n in ast.walk(node) if isinstance(n, ast.Call) for k in n.keywords if k.arg == "alias"]
    return next((alias.value for alias in aliases if isinstance(alias, ast.Constant)), None)  # type: ignore[return-value]


def in_words(module: str, node: ast.AST | None) -> str:
    """A type, as a module writes it: the values of a Literal, or a number and its range."""
    match node:
        case ast.Constant(None):
            return "null"
        case ast.Name(name) if name in TYPES:
            return TYPES[name]
        case ast.Name(name):
            where, meant = _find(module, name)
            return name if meant is None or isinstance(meant, ast.ClassDef) else in_words(where, meant)
        case ast.BinOp(left, ast.BitOr(), right):
            return f"{in_words(module, left)} | {in_words(module, right)}"
        case ast.Subscript(ast.Name("Literal"), values):
            return " | ".join(str(n.value) for n in ast.walk(values) if isinstance(n, ast.Constant))
        case ast.Subscript(ast.Name("list"), inner):
            return f"[{in_words(module, inner)}, ...]"
        case ast.Subscript(ast.Name("Annotated"), ast.Tuple([kind, *rest])):
            said = [k for call in rest if isinstance(call, ast.Call) for k in call.keywords if k.arg in BOUNDS]
            bounds = [f" {BOUNDS[str(k.arg)]} {_number(k.value)}" for k in said]
            return in_words(module, kind) + "".join(bounds)
        case _:
            return ast.unparse(node) if node else ""


def _number(node: ast.expr) -> str:
    return ast.unparse(node).replace(" ", "")


def _find(module: str, name: str) -> tuple[str, ast.AST | None]:
    """What defines a name of a module, and in which module; nothing where that is not to be found."""
    for node in _tree(module).body:
        match node:
            case ast.ClassDef(defined) if defined == name:
                return module, node
            case ast.Assign([ast.Name(defined)], value) if defined == name:
                return module, value
            case ast.ImportFrom(str(source), names, 0):
                for alias in names:
                    if name == (alias.asname or alias.name):
                        return _find(source, alias.name)
    return module, None


@cache
def _tree(module: str) -> ast.Module:
    """The source of a module, which is not imported, nor are the packages that it is in; empty where there is none."""
    where: Sequence[str] | None = None
    origin, parts = "", module.split(".")
    for last in range(len(parts)):
        name = ".".join(parts[: last + 1])
        specs = [finder.find_spec(name, where) for finder in sys.meta_path]
        spec = next((found for found in specs if found is not None), None)
        where, origin = (spec.submodule_search_locations or [], spec.origin or "") if spec else ([], "")
    return ast.parse(Path(origin).read_text() if origin.endswith(".py") else "")
