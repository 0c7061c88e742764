"""Base classes of problems about labelled examples: data, minibatches, the network, the loss and the evaluation."""

import math
import re
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat, PositiveInt
from torch import Tensor, nn

from fedopt.data import (
    Batch,
    Batches,
    Card,
    Examples,
    LabelledData,
    Logits,
    Model,
    cross_entropy,
    losses,
    tuned,
)
from fedopt.errors import MOST_NAMED, UserError
from fedopt.metrics import TEST_ACCURACY, TEST_LOSS, TRAIN_LOSS, VAL_LOSS
from fedopt.networks import FlatModel, FlatModule, Tuning, custom
from fedopt.networks import flat as models
from fedopt.problems.alone import MOST_CLIENTS, MOST_NUMBERS, logistic
from fedopt.problems.classes import Bilevel, Minimax, Rows, Weighting
from fedopt.problems.function import function
from fedopt.problems.partition import partitioned
from fedopt.problems.personal import Errors, Scorer, ScoresModels
from fedopt.problems.scores import Scores
from fedopt.randomness import Part

Fraction = Annotated[float, Field(gt=0, lt=1)]
Share = Annotated[float, Field(ge=0, lt=1)]
Plus = TypeVar("Plus", Tensor, Tensor | None)
FEATURES_SHOWN = 12  # largest number of features that are named at the start of a run
SHOWN = 256  # number of examples for trial runs of a custom network


def length(y: Tensor) -> Tensor:
    """Return the Euclidean norm of a vector, a scalar whose first and second derivatives are 0 at the origin.

    Args:
        y: The vector, ``[d]``.
    """
    return torch.linalg.vector_norm(torch.where(y.any(), y, 1.0)) * y.any()


class Labelled(ScoresModels):
    """Base class of problems about labelled examples.

    `partition` sets the attributes below and the fields of `Partitioned`. Each problem sets its initial variables, ``_start``.

    Attributes:
        classes: Number of classes; 0 for regression.
        fills: Means that replace missing values of a table (see `LabelledData`).
        training_keys: The ``keys`` of training batches, which determine dropout masks; ``()`` for none. A custom network is in
            training mode for a batch with a key, even if it has no dropout.
        alone: Whether to fit a logistic regression to each client's own examples (`alone.logistic`), the baseline of the
            metric better_than_alone. None: fit it if clients have test examples and the table is small enough.
        own_test_seed: Seed of a stratified choice of the clients' own test examples (see `WithServer`). None: not stratified.
    """

    train: Examples
    test_examples: Examples
    training_keys: tuple[Tensor, ...] = ()
    alone: bool | None = None
    own_test_seed: int | None = None
    _class_weight: Tensor | None = None
    _start: tuple[Tensor, ...]

    def partition(self, data: LabelledData, rows: np.ndarray | None = None, held_out: float | None = None) -> None:
        """Partition the data among the clients, and choose the metrics.

        Args:
            data: The data set.
            rows: Indices of the training examples to use. None: all.
            held_out: Fraction of each client's examples that goes to the split ``val``. None: there is no such split. Ignored
                if the data mark validation examples.
        """
        found = partitioned(self.world, data, rows, held_out, self.own_test_seed)
        vars(self).update(found._asdict())
        self.labels = None if data.real else data.y_train[slice(None) if rows is None else rows]
        self.classes, self.class_names, self.feature_names = data.classes, data.class_names, data.feature_names
        self.fills = data.fills
        wanted = vars(self).pop("metrics", None)  # the user's choice; the class attribute becomes visible again
        chosen = wanted if wanted and isinstance(wanted[0], str) else None  # a copied problem has Metric objects here
        self.scorer = self.scorer_of(data, chosen)
        self.notes = [text for text in (self.scorer.note, *data.notes) if text]
        if data.owners is not None and not found.splits["train"].names:
            self.notes.append("the client that the data name for each row is not used; partitioner=by_column uses it")

    @property
    def remark(self) -> str:  # type: ignore[override]
        """A text for the user that lists the numbers of examples, the features and the classes."""
        counts = {"training": self.splits["train"].sizes.sum(), "test": len(self.test_examples)}
        if self.val_set or "val" in self.splits:
            counts["validation"] = len(self.val_set.rows if self.val_set else self.splits["val"].rows)
        if self.own_test_rows:
            counts["own test"] = self.own_test_rows.sizes.sum()
        text = f"{', '.join(f'{count:,} {name}' for name, count in counts.items())} examples"
        if names := self.feature_names:
            text += f" of {len(names)} features" + (f": {', '.join(names)}" if len(names) <= FEATURES_SHOWN else "")
        if 0 < len(self.class_names) <= MOST_NAMED:
            text += f"; classes {', '.join(self.class_names)}"
        return text

    @property
    def names_of_classes(self) -> list[str]:
        """The names of the classes, or their numbers as texts."""
        return [*map(str, self.class_names or range(self.classes))]

    def scorer_of(self, data: LabelledData, wanted: Sequence[str] | None) -> Scorer:
        """Return the object that computes metrics from the outputs of models.

        Args:
            data: The data set.
            wanted: The metrics that the user chose (``problem.metrics``). None: the default metrics.
        """
        if data.real:
            self.scored = frozenset({"test_rmse"})
            return Errors()
        tested = [of.y.cpu().numpy() for of in (self.test_set, self.val_set) if of]
        return Scores.of(self.train.y[self.splits["train"].rows].cpu().numpy(), self.names_of_classes, wanted, tested)

    def subset(self, data: LabelledData, examples: int | None) -> np.ndarray:
        """Choose a random subset of the training examples.

        Args:
            data: The data set.
            examples: Size of the subset. None, or more than there are: all examples.

        Returns:
            The sorted indices of the subset.
        """
        return np.sort(self.world.rng(Part.SUBSET).permutation(len(data.y_train))[:examples])

    def compares_with_alone(self) -> bool:
        """Return whether to fit a model to each client's own examples as a baseline, which takes long on large tables."""
        if self.alone is not None:
            return self.alone
        numbers, table = self.splits["train"].sizes.sum() * math.prod(self.train.shape), len(self.train.shape) == 1
        return bool(self.classes and table and numbers <= MOST_NUMBERS and self.clients <= MOST_CLIENTS)

    def fit_alone(self) -> Tensor:
        """Fit logistic regressions to each client's own examples and predict the clients' test examples.

        Returns:
            Log probabilities, ``[2, n, C]``: the regression with a penalty, and the regression without.
        """
        assert self.local_set is not None
        x, y = self.train.x.flatten(1).double().cpu().numpy(), self.train.y.cpu().numpy()
        tests = self.local_set.examples.x[self.local_set.at(slice(None))].flatten(1).double().cpu().numpy()
        weights = np.ones(self.classes) if self._class_weight is None else self._class_weight.double().cpu().numpy()
        outputs = np.zeros((2, len(tests), self.classes))
        for i, rows in enumerate(self.splits["train"]):
            mine = self.local_set.owner == i
            outputs[:, mine] = logistic(x[rows], y[rows], tests[mine], weights)
        return torch.from_numpy(outputs).to(self.train.x.device)

    def model_of(self, network: nn.Module, spec: dict[str, Any], tuning: Tuning = None) -> Model:
        """Wrap a trained network as a model for raw examples, on the CPU.

        Args:
            network: The network, which takes normalised examples.
            spec: How to build the network: ``model``, ``widths`` and ``dropout``. It is stored in the model's file.
            tuning: Scale and shift of the logits, ``[classes]`` each, that make probabilities. None: no change.
        """
        names, whole = self.class_names, re.compile("0|-?[1-9][0-9]{0,17}")
        numbers = [int(name) for name in names if whole.fullmatch(name)]
        classes = numbers if len(numbers) == len(names) else list(names)
        card = Card(
            kind="classification" if self.classes else "regression",
            features=list(self.feature_names),
            classes=classes or list(range(self.classes)),
            shape=list(self.train.shape),
            network=spec,
        )
        tuning = tuning and (tuning[0].detach().cpu(), tuning[1].detach().cpu())
        return Model(network.cpu(), self.train.normalisation, card, tuning, self.fills)

    def start(self) -> tuple[Tensor, ...]:
        """Return the initial variables."""
        return self._start

    def sample(self, client: int | Tensor, rows: Rows) -> Any:
        """Return the client's minibatch of each split by the name of the split.

        Args:
            client: Index of the client, which is not used.
            rows: For each split, the indices of examples, ``[B]``, and their weights, ``[B]``.
        """
        return {split: self.train.batch(*of_split, self.training_keys) for split, of_split in rows.items()}

    def class_shares(self, split: str) -> np.ndarray:
        """Return the share of each class in a split, ``[C]``, or 1 for a class without examples.

        It is the mean of the shares among the examples of each client, weighted by p_i. It differs from the share among all
        examples if the weights p_i are not proportional to the clients' numbers of examples n_i.

        Args:
            split: Name of the split.
        """
        of, labels = self.splits[split], self.train.y.cpu().numpy()
        shares = np.bincount(labels[of.rows], of.example_weights(self.weights), minlength=self.classes)
        return np.where(shares > 0, shares, 1)

    def client_loss(
        self, split: str, logits: Logits, class_weight: Tensor | None = None, weights: np.ndarray | None = None
    ) -> float:
        """Return the weighted mean of the clients' losses on a split.

        With the cross-entropies CE_j of the n_i examples j of client i in the split, it is::

            sum_i  p_i / n_i  sum_j  class_weight[y_j] CE_j

        Args:
            split: Name of the split.
            logits: Function from inputs to logits, ``[B, classes]``.
            class_weight: Weight of each class, ``[classes]``. None: all weights are 1.
            weights: Weight p_i of each client, ``[M]``. None: the problem's weights.
        """

        def of_examples(batch: Batch) -> tuple[Tensor]:
            loss = losses(logits(batch.x), batch)
            return (loss if class_weight is None else loss * class_weight[batch.y],)

        of = self.splits[split]
        weights = self.weights if weights is None else weights
        return self.train.means(of_examples, of.rows, of.example_weights(weights))[0]


@dataclass(eq=False)
class Supervised(Labelled):
    """Base class of problems that train a network on labelled examples. `set_up` sets the attributes below.

    Attributes:
        net: The network: a function of parameters ``[dim]`` and inputs ``[B, features]`` that returns logits
            ``[B, classes]``.
        ridges: Factor of the ridge penalty of each parameter, ``[dim]``: ``ridge``, and 0 for biases. None: no ridge.

    Args:
        world: The data, their partition, and the device.
        model: Name of a built-in model (see `networks.flat.build`), or a custom module: ``PACKAGE.CLASS``, or a mapping with
            ``_target_``.
        widths: Widths of the hidden layers of an mlp.
        metrics: Metrics of predictions, such as accuracy, auc or recall_yes. None: accuracy and loss, and all metrics of
            `Scores` if a class is rare. After initialisation, the attribute contains the problem's metrics.
    """

    model: str | dict[str, Any]
    widths: list[PositiveInt]
    if TYPE_CHECKING:
        metrics: Any
    else:
        metrics: list[str] | None = field(default=None, kw_only=True, metadata={"before": None})

    def set_up(self, data: LabelledData, rows: np.ndarray | None = None, held_out: float | None = None) -> None:
        """Partition the data among the clients, and create the network and its initial parameters.

        Args:
            data: The data set.
            rows: Indices of the training examples to use. None: all.
            held_out: Fraction of each client's examples that goes to the split ``val``. None: there is no such split. Ignored
                if the data mark validation examples.

        Raises:
            UserError: The network does not support dropout or token ids.
        """
        self.partition(data, rows, held_out)
        self.net = self._network(self.train, data)
        if data.real:
            self.net.dense = False  # the derivatives of dense networks assume the cross-entropy
        self.notes = [text for text in (*self.notes, self.net.remark) if text]
        self.convolutional, self.random, self.one_by_one = self.net.convolutional, self.net.random, self.net.vmap_error
        self._start = (self.net.initial.to(self.world.device, self.world.dtype),)
        ridge = getattr(self, "ridge", 0.0)
        self.ridges = ridge * self.net.penalised.to(self._start[0]) if ridge else None
        if isinstance(self.net, FlatModule):
            self.training_keys = (torch.zeros((), dtype=torch.int64, device=self.world.device),)

    def _network(self, examples: Examples, data: LabelledData) -> FlatModel:
        """Build the network that ``model`` names. If the problem has a field ``dropout``, an mlp gets this dropout probability.

        Args:
            examples: The training examples.
            data: The data set.

        Raises:
            UserError: The network does not support dropout, token ids or the shape of the examples.
        """
        dropout = getattr(self, "dropout", 0.0)
        if dropout and self.model != "mlp":
            raise UserError(f"problem.dropout={dropout} needs problem.model=mlp; in a custom network, use nn.Dropout")
        common = (examples.shape, data.classes or 1, self.world.seed, self.world.autocast)
        if isinstance(self.model, dict) or "." in self.model:
            shown = np.linspace(0, len(examples) - 1, min(len(examples), SHOWN)).astype(int)
            return custom.build(self.model, examples.x[shown], *common)
        if data.tokens:
            raise UserError(f"problem.model={self.model}: cannot take token ids; use a custom network (PACKAGE.CLASS)")
        return models.build(self.model, self.widths, *common, dropout)

    def penalised(self, y: Tensor, plus: Plus) -> Plus:
        """Return a vector plus the gradient of the penalties, ``[dim]``.

        Args:
            y: Parameters at which the gradient is taken, ``[dim]``.
            plus: The vector, ``[dim]``. None stands for a zero vector. The result is then None if there are no penalties.
        """
        if self.ridges is not None:
            plus = self.ridges * y if plus is None else plus.addcmul(self.ridges, y)
        return plus

    def pulls(self, y: Tensor, plus: Tensor | None, anchor: Tensor | None) -> Tensor | None:
        """Return a vector plus the gradient of the penalties at y, minus their gradient at an anchor, ``[dim]``.

        The result is the argument ``plus`` of `Dense.descend`, which knows no penalties.

        Args:
            y: Parameters, ``[dim]``.
            plus: The vector, ``[dim]``. None stands for a zero vector. The result is then None if there are no penalties.
            anchor: Parameters, ``[dim]``. None: nothing is subtracted.
        """
        if anchor is not None and (less := self.penalised(anchor, None)) is not None:
            plus = -less if plus is None else plus - less
        return self.penalised(y, plus)

    def keyed(self, sample: Any, key: Tensor) -> Any:
        """Return the sample with a key that determines the dropout masks.

        Args:
            sample: Batches by split.
            key: The key, an integer tensor.
        """
        return {split: batch._replace(keys=(key,)) for split, batch in sample.items()}

    def network(self, *point: Tensor) -> Model:
        """Return the trained network at a point, on the CPU. It takes raw examples and normalises them itself.

        Args:
            point: The variables.
        """
        spec = {"model": self.model, "widths": [*self.widths], "dropout": getattr(self, "dropout", 0.0)}
        return self.model_of(self.net.trained(self.parameters(*point)), spec, self.calibration(*point))

    def predicted(self, model: Tensor, x: Tensor) -> Tensor:
        """Return the logits of a batch, ``[B, classes]``.

        Args:
            model: Parameters of the network, ``[dim]``.
            x: Inputs, ``[B, features]``.
        """
        return self.net(model, x)


@dataclass(eq=False)
class SupervisedMinimax(Supervised, Minimax):
    """Base class of minimax problems that train a network on labelled examples.

    Args:
        examples: Number of training examples to use, chosen at random. None: all.
        weighting: How clients count in the objective: by their numbers of examples (``samples``), so that f is a mean over
            all examples, or equally (``uniform``).
    """

    examples: PositiveInt | None
    weighting: Weighting

    def __post_init__(self) -> None:
        data = self.load()
        self.set_up(data, self.subset(data, self.examples))

    def load(self) -> LabelledData:
        """Return the data set, with the classes that the problem is about."""
        return self.world.load()


@dataclass(eq=False)
class SupervisedBilevel(Supervised, Bilevel):
    """Base class of bilevel problems that train a network: f is a validation loss, and g is a training loss with penalties.

    With the parameters y of the network, its weight matrices and biases y_k, and the norm |y| without biases::

        g(x, y) = training loss + ridge/2 |y|^2 + norms sum_k |y_k|

    Args:
        validation: Fraction of each client's examples used for validation, unless the data mark validation examples.
        ridge: Factor of the squared norm; 0 in the papers.
        norms: Factor of the norms; 0 in the papers, 0.05 in the public code of FedNest.
        dropout: Dropout probability of the network; 0 in the papers, 0.5 in the public code of FedNest.
    """

    validation: Fraction
    ridge: NonNegativeFloat
    norms: NonNegativeFloat
    dropout: Share

    metrics = (TEST_ACCURACY, TEST_LOSS, TRAIN_LOSS, VAL_LOSS)

    inner_net = property(attrgetter("net"))  # the network with the parameters y

    @abstractmethod
    def inner(self, x: Tensor, batch: Batch) -> tuple[Batch, Tuning]:
        """Return the batch that the network takes at x, and the scale and shift of its logits.

        Args:
            x: Outer variable.
            batch: A batch of training examples.

        Returns:
            The batch, whose inputs or weights may depend on x; and the scale and shift, or None for no change.
        """

    @function(where=lambda problem: problem.inner_net.dense)
    def g(self, x: Tensor, y: Tensor, sample: Batches) -> Tensor:
        """Return the penalised training loss g_i(x, y), a scalar.

        Args:
            x: Outer variable.
            y: Parameters of the network, ``[dim]``.
            sample: Batches by split.
        """
        batch, tuning = self.inner(x, sample["train"])
        loss = cross_entropy(tuned(self.inner_net(y, batch.x, *batch.keys), tuning), batch)
        if self.ridges is not None:
            loss = loss + 0.5 * self.ridges @ y**2
        if self.norms:
            loss = loss + self.norms * sum(map(length, y.split(self.inner_net.sizes)))
        return loss

    @g.gradient
    def g(self, x: Tensor, y: Tensor, sample: Batches) -> Tensor:
        """Return the gradient of g_i in y, ``[dim]``.

        Args:
            x: Outer variable.
            y: Parameters of the network, ``[dim]``.
            sample: Batches by split.
        """
        batch, tuning = self.inner(x, sample["train"])
        return self.penalised(y, self.inner_net.gradient(y, batch, tuning))

    @g.step
    def g(
        self, x: Tensor, y: Tensor, sample: Batches, beta: float, plus: Tensor | None, anchor: Tensor | None
    ) -> Tensor:
        """Take a gradient step in y in place, and return the new y.

        The new y is::

            y - beta (grad_y g_i(y) - grad_y g_i(anchor) + plus)

        Args:
            x: Outer variable.
            y: Parameters, which are overwritten.
            sample: Batches by split.
            beta: Step size.
            plus: Vector that is added to the gradient, ``[dim]``. None: nothing is added.
            anchor: Point at which the subtracted gradient is taken, ``[dim]``. None: nothing is subtracted.
        """
        batch, tuning = self.inner(x, sample["train"])
        return self.inner_net.descend(y, batch, beta, self.pulls(y, plus, anchor), tuning, anchor)

    def penalised(self, y: Tensor, plus: Plus) -> Plus:
        """Return a vector plus the gradient of all penalties of g, including ``norms``, ``[dim]``.

        Args:
            y: Parameters at which the gradient is taken, ``[dim]``.
            plus: The vector, ``[dim]``. None stands for a zero vector. The result is then None if there are no penalties.
        """
        plus = super().penalised(y, plus)
        if self.norms:
            directions = torch.cat([F.normalize(layer, dim=0) for layer in y.split(self.inner_net.sizes)])
            plus = self.norms * directions if plus is None else plus.add(directions, alpha=self.norms)
        return plus
