from dataclasses import dataclass
from functools import partial

import torch
from fedopt import TEST_ACCURACY, TEST_LOSS, VAL_LOSS, Bilevel, Supervised, cross_entropy


@dataclass(eq=False)
class MyWeights(Supervised, Bilevel):
    """x: how much the clients trust each class of their labels; y: the parameters of the network."""

    validation: float

    metrics = (TEST_ACCURACY, TEST_LOSS, VAL_LOSS)
    weighting = "samples"  # clients count by their numbers of examples
    direct = False  # f has no x in it: it depends on x through y alone

    def __post_init__(self):
        self.set_up(self.world.load(validation=True), held_out=self.validation)

    def start(self):
        (y,) = super().start()
        return y.new_zeros(self.classes), y

    def f(self, x, y, sample):
        batch = sample["val"]  # examples of the client, and their weights, which sum to one
        return cross_entropy(self.net(y, batch.x, *batch.keys), batch)

    def g(self, x, y, sample):
        batch = sample["train"]
        return cross_entropy(self.net(y, batch.x, *batch.keys), batch, 2 * torch.sigmoid(x))

    def parameters(self, x, y, *more):
        return y  # of the network

    def evaluate(self, x, y, *more):
        net = partial(self.net, y)
        return {"val_loss": self.client_loss("val", net), **self.test_metrics(net)}
