"""Tab completion of command lines in a shell."""

from fedopt.commands.answer import SUBCOMMANDS
from fedopt.commands.keys import Key, keys
from fedopt.commands.list_ import KEYS, TOPICS
from fedopt.config import GROUPS, extra_folders, key_of, options, tuned_names, with_project
from fedopt.errors import UserError


def completions(line: str) -> list[str]:
    """Return the completions of the last word of a command line: config groups, keys, options or values of a key.

    Args:
        line: The command line up to the cursor, beginning with the name of the program.
    """
    *before, word = [*line.split(), ""] if line.endswith(" ") else line.split()
    folders = with_project(extra_folders(before))
    try:
        described = keys([text for text in before if key_of(text) in GROUPS and "," not in text], folders)[0]
    except UserError:
        described = {}
    name, equals, _ = word.partition("=")
    typed = word[: max(word.rfind("="), word.rfind(",")) + 1]  # the key, and in a sweep its earlier values
    if [*map(str, before[1:])] in (["list"], ["new"]):
        found = {*TOPICS, *KEYS} if before[1] == "list" else {"algo", "problem"}
    elif not equals:
        ends = {key: key.find(".", len(word)) + 1 for key in described}
        found = {*(key[:end] if (end := ends[key]) else f"{key}=" for key in described), *(f"{g}=" for g in GROUPS)}
        found |= {"ls", "list", "rm", "new", "export", *SUBCOMMANDS} if len(before) == 1 else set()
    elif name in GROUPS:
        found = {f"{typed}{option}" for option in options(name, folders)}
    else:
        key = described.get(name, Key("", "", "", ""))
        values = {key.default, *(value for value in key.type.split(" | ") if " " not in value)}
        values |= {"none", *tuned_names(folders)} if name == "preset" else set()
        found = {f"{typed}{value}" for value in values - {"", "text", "number"}}
    return sorted(text for text in found if text.startswith(word))
