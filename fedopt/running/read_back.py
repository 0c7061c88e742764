"""Load the solution of a run from its checkpoint."""

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

import fedopt
from fedopt.config import recorded
from fedopt.data import Model
from fedopt.errors import MOST_NAMED, UserError, among, joined
from fedopt.files import expanded
from fedopt.problems import named
from fedopt.results import Checkpoint, RunFolder, refuse_foreign, refuse_other_data, stamp
from fedopt.running.assemble import assemble
from fedopt.running.hardware import restored
from fedopt.running.loop import point_of
from fedopt.running.resume import progress_of


class Trained(NamedTuple):
    """The solution of a run.

    Attributes:
        path: The run's folder.
        variables: The variables of the problem by name.
        model: The model of the problem with the common parameters. None: the problem has no network.
        own: The parameters of the clients' personal models, ``[M, d]``. None: there are no personal models.
        common: Whether the method trains a model that all clients share.
        clients: The names of the clients.
    """

    path: Path
    variables: dict[str, Tensor]
    model: Model | None
    own: Tensor | None
    common: bool
    clients: list[str]

    def deployed(self, client: object = None) -> Model:
        """Return a copy of the model that a client deploys, or of the common model.

        Args:
            client: The name or the index of the client. None: the common model.

        Raises:
            UserError: The problem has no network, the method has no common model, or there is no such client.
        """
        if self.model is None:
            raise UserError(f"{self.path}: this problem has no network; use `variables` to get the solution")
        if client is None and not self.common:
            of = joined(self.clients, MOST_NAMED)
            raise UserError(f"{self.path}: this method has no common model; choose a client: {of}")
        if client is None:
            return deepcopy(self.model)
        if (name := str(client)) not in self.clients:
            raise UserError(f"client={name}: {self.path} has no such client{among(name, self.clients)}")
        return self.model.of(name, None if self.own is None else self.own[self.clients.index(name)])


@restored()
def read_back(path: Path, best: bool) -> Trained:
    """Return the solution of a run.

    Args:
        path: The run's folder.
        best: Whether to return the variables at the best evaluation instead of those at the last checkpoint.

    Raises:
        UserError: The checkpoint or the data are missing or have changed, or the variables at the best evaluation were not stored.
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
    variables = named(e.problem, point_of(e, state, progress_of(metadata).round), e.own)
    if best:
        if not checkpoint.best:
            why = "the variables at the best evaluation were not stored"
            raise UserError(f"{path}: {why}; run again with keep=best, or load the run without which=best")
        variables = {name: checkpoint.best[name] for name in variables if name in checkpoint.best}
    variables = {name: value.detach().cpu().clone() for name, value in variables.items()}
    point, train = [*variables.values()], e.problem.splits["train"]
    model, own = e.problem.network(*point), e.problem.own(variables)
    if model is not None:
        model.card = replace(model.card, run=_facts(folder, config["eval"]["metric"] if best else None))
    clients = [*map(str, train.names or range(len(train)))]
    return Trained(path, variables, model, own, e.problem.has_common or own is None, clients)


def _facts(folder: RunFolder, best: str | None) -> dict[str, Any]:
    """Return the facts about the run that are stored in a model's file.

    Args:
        folder: The run's folder.
        best: The metric at whose best value the model was taken. None: the model is the last one of the run.
    """
    metrics = folder.measured("final") if best is None else {best: folder.measured("best").get(best)}
    card = {"fedopt": fedopt.__version__, **folder.card()}
    return {key: card.get(key) for key in ("fedopt", "chosen", "seed", "commit")} | {"metrics": metrics}


def _placed(folder: Path, node: Any, *keys: str) -> Any:
    """Return a node of a run's config, with relative paths resolved.

    A relative path that does not exist is taken as relative to the directory in which the run was started.

    Args:
        folder: The run's folder.
        node: The node of the config.
        keys: The keys of the node whose values are paths.
    """
    begun = RunFolder(folder).card().get("directory")
    if not isinstance(node, dict) or not begun:
        return node
    paths = {key: node[key] for key in keys if isinstance(node.get(key), str)}
    return node | {key: str(Path(begun) / path) for key, path in paths.items() if not expanded(path).exists()}
