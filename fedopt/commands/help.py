"""The overview of commands that `fedopt` and `fedopt help` print."""

from fedopt.commands.keys import explain, show_keys
from fedopt.console import show, show_table

COMMANDS = {
    "fedopt algo=fedmsa problem=mco": "run an experiment (KEY=VALUE sets a key, --cfg job only prints the config)",
    "fedopt -m algo=A,B seed=0,1,2": "run a sweep (--jobs 2: in parallel, --launcher slurm: on a cluster)",
    "fedopt resume=true output_dir=DIR": "resume the run in this folder",
    "fedopt ls": "list your runs",
    "fedopt rm": "delete failed runs, or the runs you name, after confirmation",
    "fedopt compare DIR...": "compare runs in tables and figures",
    "fedopt report DIR...": "write an HTML page of results",
    "fedopt tune algo=A,B problem=P": "search for hyperparameters, with equal effort for each method",
    "fedopt bench run --smoke": "run the benchmark (also: bench rank, bench enter ALGORITHM)",
    "fedopt reproduce PAPER/NAME": "reproduce a published figure (--list shows all figures)",
    "fedopt list TOPIC": "list algorithms, problems, data, ... (without TOPIC, list the topics)",
    "fedopt help KEY": "explain a key such as algo.beta, or all keys (fedopt help algo=fedmsa)",
    "fedopt new algo NAME": "create your own algorithm (or: new problem NAME --class bilevel)",
    "fedopt export RUN": "write a trained model to a file (--client NAME: the model of one client)",
    'eval "$(fedopt -sc install=bash)"': "enable tab completion in bash (or install=zsh, install=fish)",
}


def show_help(overrides: list[str], folders: list[str]) -> None:
    """Print the answer to `fedopt --help`.

    Without arguments this is an overview of the commands. With overrides, it is the keys of the algorithm, problem and so on
    that they choose. With names of keys, such as algo.beta, it is the meaning of these keys.

    Args:
        overrides: Overrides and names of keys.
        folders: The user's config folders.

    Raises:
        UserError: A key or an option does not exist.
    """
    if not overrides:
        show("fedopt: federated nested optimisation in PyTorch", "")
        show_table(["", ""], [(f"  {command}", text) for command, text in COMMANDS.items()])
    elif keys := [override for override in overrides if "=" not in override]:
        explain(keys, [override for override in overrides if "=" in override], folders)
    else:
        show_keys(overrides, folders)
