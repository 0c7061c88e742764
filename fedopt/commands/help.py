"""What `fedopt`, `fedopt --help` and `fedopt list commands` print: the commands."""

from fedopt.commands.keys import explain, show_keys
from fedopt.console import show, show_table

FIRST = 6  # of the commands: what `fedopt --help` shows
COMMANDS = {
    "fedopt algo=fedmsa problem=mco": "one run; algo.K=10 sets a key, --cfg job shows the config and does not run",
    "fedopt -m algo=fedmsa problem=mco seed=0,1,2": "a sweep; --jobs 2 does two runs at a time, --launcher slurm queues them",
    "fedopt --help algo=fedmsa problem=mco": "all keys of a run: meaning, type, default and tuned value",
    "fedopt ls": "your runs; --help shows how to choose and sort them",
    "fedopt-compare outputs": "compare runs: tables and curves",
    "fedopt list commands": "all commands",
    "fedopt --help algo.beta": "the meaning of a key; --help algo=fedmsa: the keys of an algorithm, a problem, ...",
    "fedopt resume=true output_dir=DIR": "resume the run in this folder",
    "fedopt --config-dir DIR ...": "with your own algorithms, problems, ...; fedopt.toml names such a folder too",
    "fedopt rm": "delete failed runs, or those that you name, after asking",
    "fedopt export RUN": "write a run's model to a file, JSON if it is linear; --client NAME that of one client",
    "fedopt list TOPIC": "algorithms, problems, data sets, ...; --config-dir DIR adds yours",
    "fedopt new algo NAME": "begin an algorithm of your own; or new problem NAME, --class bilevel",
    'eval "$(fedopt -sc install=bash)"': "complete words with the tab key; or zsh, fish",
    "fedopt-report DIR...": "a page of results",
    "fedopt-reproduce PAPER/NAME...": "a published figure; --list shows all",
    "fedopt-tune algo=A,B problem=NAME": "search for values, with the same trials for each method",
    "fedopt-bench run --smoke": "the benchmark of methods; also rank, and enter ALGORITHM",
}


def show_help(words: list[str], folders: list[str]) -> None:
    """Print what `fedopt --help` answers.

    Without words: the first commands. With overrides: the keys of the algorithm, problem, ... that the overrides choose. With
    names of keys, such as algo.beta: the meaning of the keys.

    Args:
        words: The overrides and names of keys.
        folders: Folders of one's own configuration, as of ``--config-dir``.

    Raises:
        UserError: A key does not exist, or `merge` raises it.
    """
    if not words:
        show("fedopt: federated nested optimisation in PyTorch", "")
        show_table(["", ""], [(f"  {command}", text) for command, text in [*COMMANDS.items()][:FIRST]])
    elif keys := [word for word in words if "=" not in word]:
        explain(keys, [word for word in words if word not in keys], folders)
    else:
        show_keys(words, folders)
