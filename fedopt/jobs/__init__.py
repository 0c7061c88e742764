"""Execute many runs: sweeps, jobs in processes on this machine, and jobs in the queue of a cluster."""

from fedopt.lazy import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
