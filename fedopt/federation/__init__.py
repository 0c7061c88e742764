"""The simulated network: round, exchange, client, oracles, draws, fence, ledger, engines."""

from fedopt.lazy import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
