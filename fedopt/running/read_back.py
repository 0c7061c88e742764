"""Read a run's solution from its checkpoint."""

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedopt.config import imported, recorded
from fedopt.errors import UserError
from fedopt.files import expanded
from fedopt.problems import named
from fedopt.results import Checkpoint, RunFolder, refuse_foreign, refuse_other_data, stamp
from fedopt.running.assemble import assemble
from fedopt.running.hardware import restored
from fedopt.running.loop import point_of
from fedopt.running.resume import progress_of


@restored()
def read_back(path: Path, best: bool) -> tuple[dict[str, Tensor], nn.Module | None]:
    """Return the variables by name, and the network if the problem has one, else None.

    Args:
        path: The run's folder.
        best: Whether to take the variables at the best evaluation, else those of the last checkpoint.

    Raises:
        UserError: The checkpoint or the data are missing or changed, or no best variables were kept.
    """
    folder = RunFolder(path)
    config = folder.config()
    here = {"dataset": _placed(path, config.get("dataset"), "path", "root")}
    here |= {"problem": _placed(path, config.get("problem"), "loss")}
    e = assemble(recorded(config | here | {"hardware": {**config.get("hardware", {}), "device": "cpu"}}))
    checkpoint = Checkpoint(folder.checkpoint, e.algorithm.init(e.problem))
    state, metadata = checkpoint.restore(e.federation.ledger)
    refuse_foreign(folder.checkpoint, metadata, stamp(config)["run"])
    refuse_other_data(path, metadata, e.data)
    variables = named(e.problem, point_of(e, state, progress_of(metadata).round))
    if best:
        if not checkpoint.best:
            raise UserError(
                f"{path}: the variables at the best evaluation were not kept; run it again with "
                f"keep=best, or load it without which=best"
            )
        variables = {name: checkpoint.best[name] for name in variables if name in checkpoint.best}
    variables = {name: value.detach().cpu().clone() for name, value in variables.items()}
    return variables, e.problem.network(*variables.values())


def solution(path: str, kind: type) -> dict[str, Tensor]:
    """Return a run's variables by name. path: its folder. kind: the class of its problem.

    Raises UserError if there is no such run, or its problem is of another class.
    """
    folder = expanded(path)
    problem = RunFolder(folder).config()["problem"].get("_target_")
    if not issubclass(imported(problem, str(folder)), kind):
        raise UserError(
            f"{path}: is a run of {problem.rpartition('.')[2]}; give the folder of a run of {kind.__name__}"
        )
    return read_back(folder, best=False)[0]


def _placed(folder: Path, node: Any, *keys: str) -> Any:
    """Return a node of the config of the run in a folder. Its values of these keys are paths.

    Relative paths that do not exist here are taken as relative to the directory where the run began.
    """
    begun = RunFolder(folder).card().get("directory")
    if not isinstance(node, dict) or not begun:
        return node
    paths = {key: node[key] for key in keys if isinstance(node.get(key), str)}
    return node | {key: str(Path(begun) / path) for key, path in paths.items() if not expanded(path).exists()}
