"""The simulated network: rounds, exchanges, clients, oracles, draws, the fence, the ledger and the engines."""

from fedopt.lazy import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
