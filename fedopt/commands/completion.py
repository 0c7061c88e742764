"""Completions of a command line, for the tab key of a shell."""

from fedopt.commands.keys import Key, keys
from fedopt.commands.list_ import OTHER_TOPICS, TOPICS
from fedopt.config import GROUPS, extra_folders, key_of, options, tuned_names, with_project
from fedopt.errors import UserError


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
        words |= {"ls", "list", "rm", "new", "export"} if len(before) == 1 else set()
    elif name in GROUPS:
        words = {f"{begun}{option}" for option in options(name, folders)}
    else:
        key = described.get(name, Key("", "", "", ""))
        values = {key.default, *(value for value in key.type.split(" | ") if " " not in value)}
        values |= {"none", *tuned_names(folders)} if name == "preset" else set()
        words = {f"{begun}{value}" for value in values - {"", "text", "number"}}
    return sorted(text for text in words if text.startswith(word))
