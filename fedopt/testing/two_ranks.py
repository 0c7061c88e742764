"""Run two rounds of each pair, distributed over two processes: torchrun -m fedopt.testing.two_ranks FILE ALGO:PROBLEM...

The final states and ledgers are saved in FILE.
"""

import sys

import torch

from fedopt.federation import ranks
from fedopt.testing.harness import leaves, small, steps

if __name__ == "__main__":
    torch.set_num_threads(1)
    ranks.start()
    found = {}
    for pair in sys.argv[2:]:
        e = small(*pair.split(":"))
        state = steps(e, 2)[-1]
        found[pair] = [*leaves(state), torch.tensor(list(e.federation.ledger.columns().values()))]
    if ranks.rank() == 0:
        torch.save(found, sys.argv[1])
    ranks.finish()
    ranks.stop()
