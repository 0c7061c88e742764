"""`LossTuning` under the name used by configs of runs on long-tailed MNIST."""

from fedopt.problems.loss_tuning import LossTuning


class ImbalancedMnist(LossTuning):
    """Loss tuning on long-tailed MNIST [FedNest, Sec. 4.2; FedMSA, Sec. 4]."""
