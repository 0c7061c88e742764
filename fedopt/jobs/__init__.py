"""Many runs: sweeps, single jobs, processes on this machine, a cluster's queue."""

from fedopt.lazy import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
