from dataclasses import dataclass
from functools import partial

import torch
from fedopt import TEST_ACCURACY, TEST_LOSS, VAL_LOSS, Bilevel, Supervised, cross_entropy


@dataclass(eq=False)
class MyWeights(Supervised, Bilevel):
    """Learn a weight for each class: x has the logits of the class weights, y the parameters of the network."""

    validation: float

    metrics = (TEST_ACCURACY, TEST_LOSS, VAL_LOSS)
    weighting = "samples"  # clients are weighted by their number of examples
    direct = False  # f does not use x; it depends on x only through y

    def __post_init__(self):
        self.set_up(self.world.load(validation=True), held_out=self.validation)

    def start(self):
        (y,) = super().start()
        return y.new_zeros(self.classes), y

    def f(self, x, y, sample):
        batch = sample["val"]  # some of the client's validation examples, and their weights, which sum to 1
        return cross_entropy(self.net(y, batch.x, *batch.keys), batch)

    def g(self, x, y, sample):
        batch = sample["train"]
        return cross_entropy(self.net(y, batch.x, *batch.keys), batch, 2 * torch.sigmoid(x))

    def parameters(self, x, y, *more):
        return y  # the parameters of the network

    def evaluate(self, x, y, *more):
        net = partial(self.net, y)
        return {"val_loss": self.client_loss("val", net), **self.test_metrics(net)}
