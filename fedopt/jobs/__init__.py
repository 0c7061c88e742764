"""Many runs: sweeps, single jobs, processes on this machine, a cluster's queue."""

from fedopt.lazy import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
