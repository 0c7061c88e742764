"""Read a run's solution from its checkpoint."""

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedopt.config import recorded
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
    on_cpu = {"hardware": {**config.get("hardware", {}), "device": "cpu"}, "dataset": _dataset(path, config)}
    e = assemble(recorded(config | on_cpu))
    checkpoint = Checkpoint(folder.checkpoint, e.algorithm.init(e.problem))
    state, metadata = checkpoint.restore(e.federation.ledger)
    refuse_foreign(folder.checkpoint, metadata, stamp(config)["run"])
    refuse_other_data(path, metadata, e.data)
    variables = named(e.problem, point_of(e, state, progress_of(metadata).round), e.own)
    if best:
        if not checkpoint.best:
            raise UserError(
                f"{path}: the variables at the best evaluation were not kept; run it again with "
                f"keep=best, or load it without which=best"
            )
        variables = {name: checkpoint.best[name] for name in variables if name in checkpoint.best}
    variables = {name: value.detach().cpu().clone() for name, value in variables.items()}
    network = e.problem.network(*variables.values()) if e.problem.has_common else None
    return variables, network


def _dataset(folder: Path, config: dict[str, Any]) -> Any:
    """Return the config's node of the data set.

    Relative paths that do not exist here are taken as relative to the directory where the run began.
    """
    node, begun = config.get("dataset"), RunFolder(folder).card().get("directory")
    if not isinstance(node, dict) or not begun:
        return node
    paths = {key: node[key] for key in ("path", "root") if isinstance(node.get(key), str)}
    return node | {key: str(Path(begun) / path) for key, path in paths.items() if not expanded(path).exists()}
