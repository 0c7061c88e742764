"""What is measured of the models that clients deploy: their own ones where a method trains some, else the common one."""

from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from fedopt.data import Examples, Logits, Ragged, cut
from fedopt.metrics import AS_GOOD_AS_ALONE, BETTER_THAN_ALONE, CLIENT_ACCURACY, CLIENT_RMSE, Metric
from fedopt.problems.alone import compared
from fedopt.problems.classes import Problem

PIECE = 2048  # rows that one model predicts at once
PADDED = 4096  # rows that several models predict at once, with padding


class Scorer(Protocol):
    """What is measured of the outputs of models on examples."""

    @property
    def rarest(self) -> int | None:
        """The class with the fewest training examples; None without classes."""

    def metrics(self, prefix: str, where: str) -> tuple[Metric, ...]:
        """Return the metrics. prefix: the first part of their names. where: the examples, for their labels."""

    def scores(self, outputs: Tensor, y: Tensor) -> dict[str, float]:
        """Return the values by name, without the prefix. outputs: ``[n, outputs]``. y: the classes or targets, ``[n]``."""

    def of_clients(self, outputs: Tensor, y: Tensor, owner: np.ndarray, clients: int) -> np.ndarray:
        """Return what is measured of one client, ``[M]``; nan without examples. owner: each example's client, ``[n]``."""

    def per_client(self, outputs: Tensor, y: Tensor, owner: np.ndarray, clients: int) -> dict[str, np.ndarray]:
        """Return the values of each client, ``[M]``, by name; nan without examples. owner: each example's client, ``[n]``."""


class Errors:
    """The root mean squared error of the first output."""

    rarest = None

    def metrics(self, prefix: str, where: str) -> tuple[Metric, ...]:
        return (Metric(f"{prefix}_rmse", f"root mean squared error on {where} examples"),)

    def scores(self, outputs: Tensor, y: Tensor) -> dict[str, float]:
        return {"rmse": float(torch.sqrt(torch.mean((outputs[:, 0] - y).double() ** 2)))}

    def of_clients(self, outputs: Tensor, y: Tensor, owner: np.ndarray, clients: int) -> np.ndarray:
        squares = ((outputs[:, 0] - y).double() ** 2).cpu().numpy()
        with np.errstate(invalid="ignore"):  # a client without examples
            means = np.bincount(owner, squares, clients) / np.bincount(owner, minlength=clients)
        return np.sqrt(means)

    def per_client(self, outputs: Tensor, y: Tensor, owner: np.ndarray, clients: int) -> dict[str, np.ndarray]:
        return {"rmse": self.of_clients(outputs, y, owner, clients)}


class Tested(NamedTuple):
    """Examples that models are tested on.

    Args:
        examples: The `Examples` that they are among.
        rows: Their indices there, ``[n]``.
        owner: The client of each, ``[n]``; -1 for clients without training examples.
    """

    examples: Examples
    rows: np.ndarray
    owner: np.ndarray

    @property
    def y(self) -> Tensor:
        """The classes or targets, ``[n]``."""
        return self.examples.y[self.at(slice(None))]

    def at(self, which: np.ndarray | slice) -> Tensor:
        """Return the indices of some of the rows, on the device of the examples."""
        return torch.from_numpy(self.rows[which]).to(self.examples.y.device)

    @classmethod
    def of(cls, examples: Examples, split: Ragged) -> "Tested":
        """Return the examples of all clients of a split."""
        return cls(examples, split.rows, np.repeat(np.arange(len(split)), split.sizes))

    def known(self) -> "Tested":
        """Return the examples without those of clients that have no training examples."""
        return self if (self.owner >= 0).all() else Tested(self.examples, *(v[self.owner >= 0] for v in self[1:]))


def owners_of(names: np.ndarray | None, train: Ragged, count: int) -> np.ndarray:
    """Return the client of each example, ``[count]``; -1 for a client without training examples.

    Where the partition does not follow the data's own clients, examples are dealt out to the clients in turn.

    Args:
        names: The name of each example's client, if the data have them.
        train: The clients' training examples.
        count: The number of examples.
    """
    if train.names and names is not None:
        client = {name: i for i, name in enumerate(train.names)}
        return np.array([client.get(str(name), -1) for name in names])
    return np.arange(count) % len(train)


def batches(owner: np.ndarray, most: int) -> Iterator[tuple[list[int], list[np.ndarray]]]:
    """Yield clients, and the positions of examples of each: a batch for one call, padded to the client with the most.

    Args:
        owner: The client of each example, ``[n]``.
        most: The largest number of examples, with padding, in a batch of several clients.
    """
    of_clients = enumerate(cut(np.argsort(owner, kind="stable"), np.bincount(owner)))
    parts = [
        (i, part) for i, rows in of_clients for part in np.split(rows, range(PIECE, len(rows), PIECE)) if len(part)
    ]
    found = list[list[tuple[int, np.ndarray]]]()
    for client, part in sorted(parts, key=lambda of_one: len(of_one[1])):
        if not found or len(part) * (len(found[-1]) + 1) > most:
            found.append([])
        found[-1].append((client, part))
    for batch in found:
        clients, rows = zip(*sorted(batch, key=lambda of_one: of_one[0]), strict=True)
        yield list(clients), list(rows)


class Deployed(Problem):
    """Problems that test models on labelled examples, each example by the model that its client deploys.

    The client deploys its own model where the method trains some, else the common one. What follows is set while the problem
    is built, and `deploys` then completes the metrics.

    Attributes:
        scorer: What is measured on examples.
        test_set: The test examples.
        val_set: The examples that the data name for validation; None if they name none.
        local_set: The examples of ``test_set`` or ``train`` that each client tests its own model on; None for none.
        scored: The metrics that `tested` and `test_metrics` return. A problem that declares them gets all that ``scorer`` measures
            in their place.
        tests_own: Whether `evaluate` measures by `tested`, and passes the clients' own models on to it.
    """

    classes: int
    scorer: Scorer
    test_set: Tested
    val_set: Tested | None = None
    local_set: Tested = None  # type: ignore[assignment]
    _fit_alone: Callable[[], Iterable[Tensor]] | None = None
    tests_own: bool = False
    scored: Set[str] = frozenset({"test_accuracy", "test_loss"})

    @property
    def of_client(self) -> Metric:
        """What is measured of one client."""
        return CLIENT_ACCURACY if self.classes else CLIENT_RMSE

    @property
    def local_rows(self) -> Ragged | None:
        """The rows of ``local_set`` of each client, as indices of its examples; None if there are none."""
        if self.local_set is None:
            return None
        order = np.argsort(self.local_set.owner, kind="stable")
        return Ragged(cut(self.local_set.rows[order], np.bincount(self.local_set.owner, minlength=self.clients)))

    def test_counts(self) -> dict[str, np.ndarray]:
        """Return the number of local test rows of each client, ``[M]``, and with classes that of the rarest training class."""
        if self.local_set is None:
            return {}
        counts = {"test_rows": np.bincount(self.local_set.owner, minlength=self.clients)}
        if self.scorer.rarest is not None:
            events = self.local_set.y.cpu().numpy() == self.scorer.rarest
            counts["events"] = np.bincount(self.local_set.owner[events], minlength=self.clients)
        return counts

    def deploys(self, own: bool, common: bool) -> None:
        self.has_common = common
        test = self.scorer.metrics("test", "test")
        names = [metric.name for metric in self.metrics]
        if not self.scored <= {*names}:
            if self.val_set and "val" not in self.splits:
                self.notes = [*self.notes, f"{len(self.val_set.rows):,} examples for validation are not used"]
            return  # the problem measures something else
        val = self.scorer.metrics("val", "validation") if self.val_set else ()
        val = tuple(metric for metric in val if metric.name not in names)  # which the problem measures itself
        of_common = self.scorer.metrics("common", "test") if own and common and self.tests_own else ()
        of_common = tuple(replace(metric, label=f"{metric.label}, common model") for metric in of_common)
        rest = [metric for metric in self.metrics if metric.name not in self.scored]
        place = min(i for i, name in enumerate(names) if name in self.scored)
        self.metrics = (*val, *rest[:place], *test, *of_common, *rest[place:])
        self.scored = {metric.name for metric in (*val, *test, *of_common)}

    def predicted(self, model: Tensor, x: Tensor) -> Tensor:
        """Return the outputs of a model, ``[B, outputs]``. model: its parameters, ``[d]``. x: examples, ``[B, features]``."""
        raise NotImplementedError(f"{type(self).__name__} does not say what a model predicts")

    @torch.no_grad()
    def predictions(self, of: Tested, common: Any, own: Any = None) -> Tensor:
        """Return the outputs for examples, ``[n, outputs]``. Each is predicted once.

        Args:
            of: The examples.
            common: The common model, ``[d]``, which predicts for all without ``own``, and else for examples without a client. None:
                there are no such examples.
            own: The clients' own models, ``[M, d]``, each of which predicts for its client's examples. None: there are none.
        """
        owner = np.full(len(of.rows), -1) if own is None else of.owner
        shared, (mine,) = np.flatnonzero(owner < 0), np.nonzero(owner >= 0)
        places = np.split(shared, range(PIECE, len(shared), PIECE)) if len(shared) else []
        found = [self.predicted(common, of.examples.x[of.at(rows)]) for rows in places]
        most = 1 if self.convolutional or self.one_by_one else PADDED  # which vmap makes slower, or cannot run
        for clients, parts in batches(owner[mine], most) if own is not None else ():
            rows = [mine[part] for part in parts]
            if len(rows) == 1:
                outputs = self.predicted(own[clients[0]], of.examples.x[of.at(rows[0])])
            else:
                sizes = np.array([len(part) for part in rows])
                padded = np.stack([np.resize(part, sizes.max()) for part in rows])
                models = own if clients == [*range(len(own))] else own[clients]  # which copies them
                of_all = torch.func.vmap(self.predicted)(models, of.examples.x[of.at(padded)])
                filled = np.arange(sizes.max()) < sizes[:, None]
                outputs = of_all[torch.from_numpy(filled).to(of_all.device)]
            found.append(outputs)
            places = [*places, *rows]
        outputs = torch.cat(found)
        return torch.empty_like(outputs).index_copy_(
            0, torch.from_numpy(np.concatenate(places)).to(outputs.device), outputs
        )

    def client_scores(self, common: Tensor | None, own: Tensor | None = None) -> np.ndarray:
        """Return `of_client` on each client's local examples by the model that it deploys, ``[M]``; nan without examples."""
        return self.scorer.of_clients(self.predictions(self.local_set, common, own), *self._locals)

    @property
    def _locals(self) -> tuple[Tensor, np.ndarray, int]:
        """The classes or targets of the local examples, their owners, and the number of clients."""
        return self.local_set.y, self.local_set.owner, self.clients

    def personal_metrics(self, values: np.ndarray) -> dict[str, float]:
        """Return the mean over clients with local examples, the worst one's value, and the share that is better off than alone.

        Args:
            values: What `client_scores` returns, ``[M]``.
        """
        tested = np.bincount(self.local_set.owner, minlength=self.clients) > 0
        values, of = values[tested], self.of_client
        found = {f"personal_{of.name}": values.mean(), f"worst_personal_{of.name}": of.sign * (of.sign * values).max()}
        if self._fit_alone:
            found |= compared(values, self._of_alone[tested], of.sign) | self._alone_metrics
        return {name: float(value) for name, value in found.items()}

    def tested(self, common: Tensor, *own: Tensor) -> dict[str, float]:
        """Return the metrics of test and validation examples, and those of clients if the problem measures clients.

        Args:
            common: The common model, ``[d]``. It is ignored if the method has none.
            own: The clients' own models, ``[M, d]``, if there are any.
        """
        shared = common if self.has_common or not own else None
        test, *val = (of if shared is not None else of.known() for of in (self.test_set, self.val_set) if of)
        outputs = self.predictions(test, shared, *own)
        found = self._scores("test", outputs, test)
        for of in val:
            found |= self._scores("val", self.predictions(of, shared, *own), of)
        if own and shared is not None:
            found |= self._scores("common", self.predictions(test, shared), test)
        if self.client_metric and self.local_set:
            same = self.local_set.examples is test.examples
            outputs = (
                outputs[torch.from_numpy(test.owner >= 0)] if same else self.predictions(self.local_set, shared, *own)
            )
            found |= self.personal_metrics(self.scorer.of_clients(outputs, *self._locals))
        return found

    @torch.no_grad()
    def test_metrics(self, logits: Logits) -> dict[str, float]:
        """Return the metrics of test examples, such as test_loss and test_accuracy in percent, and of validation examples.

        logits: a function from inputs to logits [B, classes].
        """
        found = dict[str, float]()
        for prefix, of in (("test", self.test_set), ("val", self.val_set)):
            if of:
                pieces = of.at(slice(None)).split(PIECE)
                found |= self._scores(prefix, torch.cat([logits(of.examples.x[rows]) for rows in pieces]), of)
        return found

    def _scores(self, prefix: str, outputs: Tensor, of: Tested) -> dict[str, float]:
        """Return the scores that are among the metrics, by name. outputs: for the examples ``of``."""
        values = {f"{prefix}_{name}": value for name, value in self.scorer.scores(outputs, of.y).items()}
        return {name: value for name, value in values.items() if name in self.scored}

    def of_clients(self, *point: Tensor) -> dict[str, list[float]]:
        """Return `of_client` on the clients' local examples: by own models, by the common one, and by those alone."""
        if not self.client_metric or not self.local_set:
            return {}
        found = {kind: self.scorer.of_clients(outputs, *self._locals) for kind, outputs in self._by_model(*point)}
        return {kind: values.tolist() for kind, values in found.items()}

    def clients_table(self, *point: Tensor) -> dict[str, list[float]]:
        """Return the other scores of each client on its local examples, by columns such as own_auc and common_auc."""
        if not self.client_metric or not self.local_set:
            return {}
        return {
            f"{kind}_{name}": values.tolist()
            for kind, outputs in self._by_model(*point)
            for name, values in self.scorer.per_client(outputs, *self._locals).items()
            if name != self.of_client.name
        }

    def set_alone(self, fit: Callable[[], Iterable[Tensor]]) -> None:
        """Compare with models that clients train alone. They are fitted when they are first measured.

        fit: returns the outputs of the penalised and the unpenalised models for the local examples, as `predictions` does.
        """
        self._fit_alone = fit
        self.metrics = (*self.metrics, BETTER_THAN_ALONE, AS_GOOD_AS_ALONE, *self.scorer.metrics("alone", "test"))

    @cached_property
    def _outputs_alone(self) -> dict[str, Tensor]:
        return dict(zip(("alone", "alone_unpenalised"), self._fit_alone(), strict=True)) if self._fit_alone else {}

    @cached_property
    def _of_alone(self) -> np.ndarray:
        return self.scorer.of_clients(self._outputs_alone["alone"], *self._locals)

    @cached_property
    def _alone_metrics(self) -> dict[str, float]:
        values = self.scorer.scores(self._outputs_alone["alone"], self.local_set.y)
        return {f"alone_{name}": value for name, value in values.items()}

    def _by_model(self, common: Tensor, *own: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Yield the outputs of the clients' own models for the local examples, if there are any, and of the common one likewise."""
        shared = common if self.has_common or not own else None
        if own:
            yield "own", self.predictions(self.local_set, shared, *own)
        if shared is not None:
            yield "common", self.predictions(self.local_set, shared)
        yield from self._outputs_alone.items()
