"""Metrics on labelled examples, predicted by the model that each client deploys: its own model or the common model."""

from collections.abc import Set
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedopt.data import Logits, tuned
from fedopt.metrics import AS_GOOD_AS_ALONE, BETTER_THAN_ALONE, CLIENT_ACCURACY, CLIENT_RMSE, Metric, interval
from fedopt.networks import Tuning, each
from fedopt.problems.alone import compared
from fedopt.problems.classes import Problem
from fedopt.problems.partition import ScoredRows
from fedopt.problems.scores import Scores, Values

PIECE = 2048  # rows that one model predicts together
OF_PROBABILITIES = ("loss", "brier", "calibration")  # scores of calibrated probabilities


class Errors:
    """The metrics of a regression: the root mean squared error of the first output. It has the interface of `Scores`."""

    client_metrics, rarest, each, note = (CLIENT_RMSE,), None, dict[str, tuple[str, int]](), ""

    def metrics(self, prefix: str, where: str) -> tuple[Metric, ...]:
        return (Metric(f"{prefix}_rmse", f"root mean squared error on {where} examples"),)

    def scores(self, outputs: Tensor, y: Tensor) -> dict[str, float]:
        return {"rmse": float(torch.sqrt(torch.mean((outputs[:, 0] - y).double() ** 2)))}

    def per_client(self, outputs: Tensor, y: Tensor, owner: np.ndarray, M: int, means_only: bool = False) -> Values:
        squares = ((outputs[:, 0] - y).double() ** 2).cpu().numpy()
        with np.errstate(invalid="ignore"):  # clients without examples
            return {"rmse": np.sqrt(np.bincount(owner, squares, M) / np.bincount(owner, minlength=M))}


Scorer = Scores | Errors  # the metrics of models for classification, and for regression


class ScoresModels(Problem):
    """Base class of problems whose metrics are computed on labelled examples, each predicted by the model that its client uses.

    The subclass sets the following attributes. When the method of the run is known, `deploys` completes the metrics.

    Attributes:
        scorer: The metrics that are computed from a model's outputs.
        test_set: The test examples.
        val_set: The validation examples that the data mark. None: the data mark none.
        local_set: The test examples of clients with training examples, or training examples that clients hold out for
            testing. None: there are none.
        scored: Names of the metrics that `test_metrics` returns. If they are all in the problem's ``metrics``, `deploys` replaces
            them there with the metrics of ``scorer`` and the metrics of single clients.
    """

    classes: int
    scorer: Scorer
    test_set: ScoredRows
    val_set: ScoredRows | None = None
    local_set: ScoredRows | None = None
    scored: Set[str] = frozenset({"test_accuracy", "test_loss"})

    def deploys(self, own: bool, common: bool) -> None:
        self.has_common = common
        names = [metric.name for metric in self.metrics]
        if not self.scored <= {*names}:
            if self.val_set and "val" not in self.splits:
                self.notes = [*self.notes, f"{len(self.val_set.rows):,} examples for validation are not used"]
            return  # the problem has other metrics
        test = self.scorer.metrics("test", "test")
        val = self.scorer.metrics("val", "validation") if self.val_set else ()
        val = tuple(metric for metric in val if metric.name not in names)  # the problem computes the others itself
        of_common = self.scorer.metrics("common", "test") if own and common else ()
        of_common = tuple(replace(metric, label=f"{metric.label}, common model") for metric in of_common)
        rest = [metric for metric in self.metrics if metric.name not in self.scored]
        place = min(i for i, name in enumerate(names) if name in self.scored)
        self.metrics = (*val, *rest[:place], *test, *of_common, *rest[place:], *self._metrics_of_clients())
        self.scored = {metric.name for metric in (*val, *test, *of_common)}

    def _metrics_of_clients(self) -> list[Metric]:
        """Set ``client_metric``, and return the metrics that summarise the clients; [] if clients have no test examples."""
        main = self.scorer.client_metrics[0]
        if self.local_set is None or main.name not in self._defined:
            return []
        self.client_metric = main
        defined = [m for m in self.scorer.client_metrics if m.name in self._defined]
        of_clients = [replace(m, name=f"personal_{m.name}", label=f"mean of the clients' {m.label}") for m in defined]
        of_clients.insert(1, replace(main, name=f"worst_personal_{main.name}", label=f"worst client's {main.label}"))
        if self.compares_with_alone():
            of_clients += [BETTER_THAN_ALONE, AS_GOOD_AS_ALONE, *self.scorer.metrics("alone", "test")]
        return of_clients

    def compares_with_alone(self) -> bool:
        """Return whether clients are compared with a model fitted to their own examples (`fit_alone`)."""
        return False

    def fit_alone(self) -> Tensor:
        """Fit a model to each client's own examples and predict the clients' test examples.

        Returns:
            Outputs, ``[2, n, outputs]``: of the models with a penalty, and of the models without.
        """
        raise NotImplementedError(f"{type(self).__name__} must define fit_alone")

    def parameters(self, *point: Tensor) -> Tensor:
        """Return the parameters of the common model at a point, ``[dim]``.

        Args:
            point: The variables.
        """
        return point[0]

    def calibration(self, *point: Tensor) -> Tuning:
        """Return the scale and shift of the logits that make calibrated probabilities at a point; None for no change.

        Args:
            point: The variables.
        """
        return None

    def predicted(self, model: Tensor, x: Tensor) -> Tensor:
        """Return the outputs of a model for a batch, ``[B, outputs]``.

        Args:
            model: Parameters of the model, ``[d]``.
            x: Inputs, ``[B, features]``.
        """
        raise NotImplementedError(f"{type(self).__name__} must define predicted")

    def models(self, *point: Tensor) -> tuple[Logits | None, Tensor | None]:
        """Return the common model as a function from inputs to outputs, and the parameters of the clients' own models, ``[M, d]``.

        The first or the second is None if the method has no such models.

        Args:
            point: The variables, followed by the clients' own models if the method trains them.
        """
        own = self.own_models and point[len(self.variables) :]
        if own and not self.has_common:
            return None, own[0]
        return partial(self.predicted, self.parameters(*point)), own[0] if own else None

    @torch.no_grad()
    def predictions(self, of: ScoredRows, common: Logits | None, own: Any = None) -> Tensor:
        """Predict each example with one model, and return the outputs, ``[n, outputs]``.

        Args:
            of: The examples.
            common: The common model. If ``own`` is None, it predicts all examples, and otherwise only the examples of clients
                without training examples. None: there are no examples for it.
            own: Parameters of the clients' own models, ``[M, d]``, which predict the examples of their clients. None: clients have
                no models of their own.
        """
        owner, outputs = np.full(len(of.rows), -1) if own is None else of.owner, []
        order = np.argsort(owner, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(owner[order])) + 1):
            client = owner[rows[0]]
            model: Any = common if client < 0 else partial(self.predicted, own[client])
            outputs += [model(of.examples.x[of.at(chunk)]) for chunk in np.split(rows, range(PIECE, len(rows), PIECE))]
        found = torch.cat(outputs)
        return found[torch.from_numpy(np.argsort(order)).to(found.device)]  # in the order of the examples

    @torch.no_grad()
    def test_metrics(self, common: Logits | None, own: Tensor | None = None, tuning: Tuning = None) -> dict[str, float]:
        """Return the metrics on test and validation examples by name, and the summaries of clients if clients have test examples.

        Args:
            common: The common model, a function from inputs to outputs ``[B, outputs]``. None: the method has none.
            own: Parameters of the clients' own models, ``[M, d]``. None: the method has none.
            tuning: Scale and shift of the outputs that make calibrated probabilities. None: no change.
        """
        test, *val = (rows if common else rows.known() for rows in (self.test_set, self.val_set) if rows)
        outputs = self.predictions(test, common, own)
        found = self._scores("test", outputs, test)
        for rows in val:
            found |= self._scores("val", self.predictions(rows, common, own), rows)
        if own is not None and common:
            found |= self._scores("common", self.predictions(test, common), test)
        if self.client_metric and self.local_set:
            same = self.local_set.examples is test.examples
            known = torch.from_numpy(test.owner >= 0)
            outputs = outputs[known] if same else self.predictions(self.local_set, common, own)
            found |= self.means_of_clients(outputs, tuning)
        return found

    def _scores(self, prefix: str, outputs: Tensor, of: ScoredRows) -> dict[str, float]:
        """Compute the scores on some examples, and return those that are among the metrics of the problem, by name.

        Args:
            prefix: First part of their names, such as ``test``.
            outputs: Outputs for the examples, ``[n, outputs]``.
            of: The examples.
        """
        scores = each(lambda outputs: self.scorer.scores(outputs, of.y), outputs)
        values = {f"{prefix}_{name}": value for name, value in scores.items()}
        return {name: value for name, value in values.items() if name in self.scored}

    def client_scores(self, outputs: Tensor, tuning: Tuning = None, means_only: bool = False) -> Values:
        """Return score name -> the score of each client on its own test examples, ``[M]``; nan where undefined.

        Args:
            outputs: The deployed models' outputs on the test examples (``local_set``).
            tuning: The scale and shift that calibrate the outputs; only loss, Brier score and calibration use them. None: no
                change.
            means_only: Whether to compute only the scorer's ``client_metrics``, whose means over clients are metrics.
        """
        assert self.local_set is not None
        others = self.local_set.y, self.local_set.owner, self.clients, means_only
        found = self.scorer.per_client(outputs, *others)
        if tuning is not None:
            stated = self.scorer.per_client(tuned(outputs, tuning), *others)
            found |= {name: stated[name] for name in OF_PROBABILITIES if name in stated}
        return found

    @cached_property
    def _defined(self) -> dict[str, np.ndarray]:
        """The clients for which each score is defined: name -> Boolean array ``[M]``. A score defined for no client is left out."""
        assert self.local_set is not None
        blank = self.local_set.y.new_zeros(len(self.local_set.rows), max(self.classes, 1)).double()
        finite = {name: np.isfinite(values) for name, values in self.client_scores(blank, None, True).items()}
        return {name: clients for name, clients in finite.items() if clients.any()}

    def means_of_clients(self, outputs: Tensor, tuning: Tuning = None) -> dict[str, float]:
        """Return the metrics that summarise clients, by name: means, the worst client's value, and comparisons with baselines.

        Args:
            outputs: Outputs for the examples of ``local_set``.
            tuning: Scale and shift of the outputs that make calibrated probabilities. None: no change.
        """
        scores, main = self.client_scores(outputs, tuning, True), self.scorer.client_metrics[0]
        found = {f"personal_{name}": scores[name][clients].mean() for name, clients in self._defined.items()}
        values = scores[main.name][self._defined[main.name]]
        found[f"worst_personal_{main.name}"] = main.sign * (main.sign * values).max()
        if self.compares_with_alone():
            found |= compared(values, self._alone[1], main.sign) | self._alone[2]
        return {name: float(value) for name, value in found.items()}

    @cached_property
    def _alone(self) -> tuple[Tensor, np.ndarray, dict[str, float]]:
        """The results of the baselines that clients fit to their own examples, as a tuple of three values.

        They are the outputs of `fit_alone`; the main score of the penalised baseline for each client for which this score is
        defined; and the metrics of the penalised baselines over all examples, by name.
        """
        assert self.local_set is not None
        outputs, main = self.fit_alone(), self.scorer.client_metrics[0].name
        values = self.scorer.scores(outputs[0], self.local_set.y)
        of_clients = self.client_scores(outputs[0], None, True)[main][self._defined[main]]
        return outputs, of_clients, {f"alone_{name}": value for name, value in values.items()}

    def clients_table(self, *point: Tensor) -> Values:
        """Return the counts and scores of each client, ``[M]``, by column name, such as test_rows, own_auc and alone_auc.

        Args:
            point: The variables, followed by the clients' own models if the method trains them.
        """
        if not self.client_metric or self.local_set is None:
            return {}
        local, (common, own) = self.local_set, self.models(*point)
        outputs = {} if own is None else {"own": self.predictions(local, common, own)}
        outputs |= {"common": self.predictions(local, common)} if common else {}
        found = {"test_rows": np.bincount(local.owner, minlength=self.clients)}
        rests_on = dict.fromkeys((CLIENT_ACCURACY.name, CLIENT_RMSE.name), found["test_rows"])
        if (rarest := self.scorer.rarest) is not None:
            events = local.owner[local.y.cpu().numpy() == rarest]
            found["events"] = np.bincount(events, minlength=self.clients)
            rests_on |= {name: found["events"] for name, of in self.scorer.each.items() if of == ("recall", rarest)}
        alone = {}
        if self.compares_with_alone():
            alone = dict(zip(("alone", "alone_unpenalised"), self._alone[0], strict=True))
        for kind, of_kind in (outputs | alone).items():
            tuning = None if kind in alone else self.calibration(*point)
            for name, values in self.client_scores(of_kind, tuning).items():
                found[f"{kind}_{name}"] = values
                if name in rests_on:
                    ends = interval(name, values, rests_on[name])
                    found |= {f"{kind}_{name}_low": ends[0], f"{kind}_{name}_high": ends[1]}
        return found
