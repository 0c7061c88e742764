"""`fedopt export RUN`: write a run's trained model to a file."""

import re
from pathlib import Path

from fedopt.commands.answer import Parser
from fedopt.config import with_project
from fedopt.console import show
from fedopt.errors import UserError


def export(arguments: list[str]) -> None:
    """Write the model of a run, and print where it is: `fedopt export RUN`.

    Raises UserError for a run without such a model, for a file that exists without --force, and for a name that does not fit.
    """
    what = "A run's trained model as a file: JSON if it is linear, else safetensors. fedopt.load_model reads both."
    parser = Parser(prog="fedopt export", description=what)
    parser.add_argument("run", metavar="RUN", help="the run's folder")
    parser.add_argument("--client", metavar="NAME", help="the model that this client deploys (default: the common one)")
    parser.add_argument("--out", metavar="FILE", help="NAME.json or NAME.safetensors (default: in the run's folder)")
    parser.add_argument("--force", action="store_true", help="replace the file if it exists")
    args = parser.parse_args(arguments)
    folder = Path(args.run)
    if not (folder / "checkpoint.safetensors").is_file():
        raise UserError(f"{folder}: there is no run with a checkpoint in it; give the folder of a run")
    from fedopt.running.read_back import read_back  # imports torch

    with_project()
    trained = read_back(folder, best=False)
    model = trained.deployed(args.client)
    name = "model" if args.client is None else re.sub(r"\W", "_", f"model_{args.client}")
    path = Path(args.out or folder / f"{name}.{'json' if model.linear else 'safetensors'}")
    if path.exists() and not args.force:
        raise UserError(f"{path}: exists already; name another file with --out FILE, or replace it with --force")
    model.save(path)
    what = f"the own model of {args.client}" if model.card.own else "the common model of all clients"
    others = (
        "" if trained.own is None or args.client else f"; --client NAME writes one of the {len(trained.own)} own ones"
    )
    show(f"wrote {path}: {what}{others}")
