"""Hyperparameter search (ranges, trials, results), and the benchmark: tasks, reports, ranks, pages."""

from fedopt.lazy import exports

SAMPLERS = ("tpe", "sobol", "random", "grid")  # of trials; here, since their libraries take long to import

__getattr__, __dir__, __all__ = exports(__name__, __file__)
