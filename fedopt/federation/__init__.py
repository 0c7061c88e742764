"""The simulated network: round, exchange, client, oracles, draws, fence, ledger, engines."""
