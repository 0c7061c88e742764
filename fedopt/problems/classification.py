"""Plain classification: minimise the clients' mean cross-entropy, any data set and model [McMahan et al. 2017]."""

from dataclasses import dataclass, field

from pydantic import NonNegativeInt, PositiveFloat
from torch import Tensor

from fedopt.data import Batches, cross_entropy, losses, tuned
from fedopt.errors import UserError
from fedopt.metrics import (
    BETTER_THAN_ALONE,
    PERSONAL_ACCURACY,
    TEST_ACCURACY,
    TEST_LOSS,
    TRAIN_LOSS,
    WORST_PERSONAL_ACCURACY,
)
from fedopt.networks import Tuning
from fedopt.problems.classes import Minimisation, Weighting
from fedopt.problems.function import function
from fedopt.problems.loss_tuning import loss_of
from fedopt.problems.personal import Tested
from fedopt.problems.supervised import Fraction, Pretraining, Share, Supervised


@dataclass(eq=False)
class Classification(Supervised, Minimisation):
    """Training a classifier: f_i is the mean cross-entropy over client i's examples, x are the parameters of the model.

    weighting: samples weighs clients by their numbers of examples, so that f is the mean over all examples; uniform weighs
        them equally.
    test: the fraction of all examples for testing; None takes the data set's own test examples.
    server: the fraction of the other examples that the server has, and no client.
    own_test: the fraction of its examples that each client keeps for tests; None for none. Data that name each client's test
        rows need none.
    own_test_seed: the seed of their draw, which takes the fraction of each class of a client; None draws them with the run's
        seed, without regard to classes.
    pretrain, pretrain_step: the number and the step size of SGD steps on the server's examples that make the start.
    loss: the folder of a run of loss tuning, whose scale and shift of the logits the training loss takes; None for none.
    alone_steps, alone_step: the number and the step size of SGD steps that a client takes alone, from the start, for the
        metric better_than_alone; 0 for no such metric.

    `hierarchical` has the keys from test to pretrain_step too, with the same partition and start.
    """

    test: Fraction | None
    server: Share
    own_test: Fraction | None
    pretrain: Pretraining
    pretrain_step: PositiveFloat
    weighting: Weighting
    own_test_seed: NonNegativeInt | None = field(default=0, kw_only=True, metadata={"before": None})
    alone_steps: Pretraining = field(default=0, kw_only=True, metadata={"before": 0})
    alone_step: PositiveFloat = field(default=0.1, kw_only=True, metadata={"before": 0.1})
    loss: str | None = field(default=None, kw_only=True, metadata={"before": None})

    own_models = tests_own = True

    def __post_init__(self) -> None:
        shared = self.pretrain, self.pretrain_step, self.own_test_seed
        self.set_up_shared(self.test, self.server, self.own_test, *shared)
        of_clients = (PERSONAL_ACCURACY, WORST_PERSONAL_ACCURACY) if self.local_set else ()
        self.client_metric = self.of_client if self.local_set else None
        self.metrics = (TEST_ACCURACY, TEST_LOSS, TRAIN_LOSS, *of_clients)
        if self.alone_steps and not self.local_set:
            raise UserError(
                f"problem.alone_steps={self.alone_steps}: clients keep no test examples; set problem.own_test to a fraction"
            )
        self._tuning: Tuning = None
        if self.loss is not None:
            self._tuning = loss_of(self.loss, self.world, self.classes)
        if self.alone_steps:
            self.alone_scores = self.client_scores(None, self.models_alone(self.alone_steps, self.alone_step))
            self.metrics = (*self.metrics, BETTER_THAN_ALONE)

    def last_layer(self) -> int:
        return len(self.net.split_last()[1].initial)

    @function(where=lambda problem: problem.net.dense)
    def f(self, x: Tensor, sample: Batches) -> Tensor:
        batch = sample["train"]
        return cross_entropy(tuned(self.net(x, batch.x, *batch.keys), self._tuning), batch)

    @f.gradient
    def f(self, x: Tensor, sample: Batches) -> Tensor:
        return self.net.gradient(x, *sample["train"][:3], self._tuning)

    @f.step
    def f(self, x: Tensor, sample: Batches, eta: float, plus: Tensor | None, anchor: Tensor | None) -> Tensor:
        return self.net.descend(x, *sample["train"][:3], eta, plus, self._tuning, anchor=anchor)

    def evaluate(self, *point: Tensor) -> dict[str, float]:
        """Return the metrics.

        train_loss: that of the common model, or of the clients' own ones if the method has no common model.
        personal_accuracy, worst_personal_accuracy: the mean and the least accuracy of the clients' own models on their own test
            examples, if there are some; of x, if the method has no models of clients.
        better_than_alone: the share of clients whose accuracy there is above that of their model alone.
        """
        x, *own = point[:2]
        if own and not self.has_common:
            of = Tested.of(self.train, self.splits["train"])
            weight = self.world.tensor(self.splits["train"].example_weights(self.weights)).double()
            batch = self.train.batch(of.at(slice(None)), weight)
            train_loss = float(losses(tuned(self.predictions(of, None, *own), self._tuning), batch).double() @ weight)
        else:
            train_loss = self.client_loss("train", lambda inputs: tuned(self.net(x, inputs), self._tuning))
        return {"train_loss": train_loss, **self.tested(x, *own)}
