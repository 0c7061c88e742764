"""`fedopt export RUN`: write a run's trained model to a file."""

from pathlib import Path

from fedopt.commands.answer import Parser
from fedopt.config import with_project
from fedopt.console import show
from fedopt.errors import UserError


def export(arguments: list[str]) -> None:
    """Write the model of a run, and print where it is: `fedopt export RUN`.

    A file that is there is kept without --force. Raises UserError for a run without such a model, and for the file's name.
    """
    what = (
        "A run's trained model as a file: JSON if the model is linear, else safetensors. fedopt.load_model reads both."
    )
    parser = Parser(prog="fedopt export", description=what)
    parser.add_argument("run", metavar="RUN", help="the run's folder")
    parser.add_argument(
        "--client", metavar="NAME", help="the model that this client deploys (default: the common model)"
    )
    parser.add_argument(
        "--out", metavar="FILE", help="the file (default: model.json or model.safetensors in the run's folder)"
    )
    parser.add_argument("--best", action="store_true", help="the model at the best evaluation, of a run with keep=best")
    parser.add_argument("--force", action="store_true", help="replace the file if it exists")
    given = parser.parse_args(arguments)

    folder = Path(given.run)
    if not (folder / "checkpoint.safetensors").is_file():
        raise UserError(f"{folder}: there is no run with a checkpoint in it; give the folder of a run")
    from fedopt.running.read_back import deployed, read_back  # which imports torch

    with_project()
    model = deployed(folder, read_back(folder, given.best), given.client)
    form = "json" if model.linear else "safetensors"
    path = Path(given.out or folder / f"model.{form}")
    if path.exists() and not given.force:
        raise UserError(f"{path}: exists already; give another file with --out FILE, or replace it with --force")
    model.save(path)
    whose = (
        f"the common model, which {given.client} deploys" if given.client and not model.card.own else "the common model"
    )
    show(f"wrote {path}: {f'the model of {given.client} alone' if model.card.own else whose}")
