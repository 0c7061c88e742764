"""`LossTuning` under the name that the configs of runs on long-tailed MNIST have."""

from fedopt.problems.loss_tuning import LossTuning


class ImbalancedMnist(LossTuning):
    """Loss tuning on long-tailed MNIST [FedNest Sec. 4.2, FedMSA Sec. 4]."""
