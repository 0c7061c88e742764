"""`fedopt export RUN`: write a run's trained model to a file."""

import re
from pathlib import Path

from fedopt.commands.answer import Parser
from fedopt.config import with_project
from fedopt.console import show
from fedopt.errors import UserError


def export(arguments: list[str]) -> None:
    """Write the trained model of a run to a file, and print its path: `fedopt export RUN`.

    Args:
        arguments: The arguments after `fedopt export`.

    Raises:
        UserError: The run has no such model, the file exists and --force is missing, or the file's extension is wrong.
    """
    what = "Write a run's trained model: JSON if it is linear, otherwise safetensors. fedopt.load_model reads both."
    parser = Parser(prog="fedopt export", description=what)
    parser.add_argument("run", metavar="RUN", help="the run's folder")
    parser.add_argument("--client", metavar="NAME", help="write this client's model (default: the common model)")
    parser.add_argument("--out", metavar="FILE", help="NAME.json or NAME.safetensors (default: in the run's folder)")
    parser.add_argument("--force", action="store_true", help="replace the file if it exists")
    args = parser.parse_args(arguments)
    folder = Path(args.run)
    if not (folder / "checkpoint.safetensors").is_file():
        raise UserError(f"{folder}: contains no run with a checkpoint; give the folder of a run")
    from fedopt.running.read_back import read_back  # imports torch

    with_project()
    trained = read_back(folder, best=False)
    model = trained.deployed(args.client)
    name = "model" if args.client is None else re.sub(r"\W", "_", f"model_{args.client}")
    path = Path(args.out or folder / f"{name}.{'json' if model.linear else 'safetensors'}")
    if path.exists() and not args.force:
        raise UserError(f"{path}: exists already; choose another file with --out FILE, or replace it with --force")
    model.save(path)
    what = f"the personal model of {args.client}" if model.card.own else "the common model of all clients"
    if trained.own is not None and not args.client:
        what += f"; --client NAME writes one of the {len(trained.own)} personal models"
    show(f"wrote {path}: {what}")
