"""The simulated network: round, exchange, client, oracles, draws, fence, ledger, engines."""

from fedopt.lazy import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
