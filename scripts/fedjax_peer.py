"""FedJAX's FedAvg beside fedopt's, for `scripts/bench peers`: a round for each line that comes in, its processor seconds out.

fedjax_peer.py CLIENTS COHORT EXAMPLES BATCH EPOCHS WIDTH...      in a Python that has FedJAX
"""

import itertools
import os
import sys
import time

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
import fedjax
import jax
import jax.numpy as jnp
import numpy as np
from fedjax.algorithms import fed_avg

jax.tree_map = jax.tree_util.tree_map  # FedJAX still has the name that JAX dropped

count, cohort, examples, batch, epochs, *widths = map(int, sys.argv[1:])
rng = np.random.default_rng(0)
layers = list(itertools.pairwise(widths))
start = [(rng.standard_normal((a, b), dtype=np.float32) / a**0.5, np.zeros(b, np.float32)) for a, b in layers]


def loss(weights, examples, _):
    x = examples["x"]
    for W, b in weights[:-1]:
        x = jax.nn.relu(x @ W + b)
    W, b = weights[-1]
    chosen = jnp.take_along_axis(jax.nn.log_softmax(x @ W + b), examples["y"][:, None], 1)
    return -chosen.mean()


def client(key):
    x = rng.standard_normal((examples, widths[0]), dtype=np.float32)
    data = fedjax.ClientDataset({"x": x, "y": rng.integers(widths[-1], size=examples)})
    return f"{key}".encode(), data, jax.random.PRNGKey(key)


clients = [client(key) for key in range(count)]
draws = fedjax.ShuffleRepeatBatchHParams(batch_size=batch, num_epochs=epochs)
optimisers = fedjax.optimizers.sgd(0.05), fedjax.optimizers.sgd(1.0)
method = fed_avg.federated_averaging(jax.grad(loss), *optimisers, draws)
state = method.init(start)
for _ in sys.stdin:
    chosen = [clients[i] for i in rng.choice(count, cohort, replace=False)]
    begun = time.process_time()
    state, _ = method.apply(state, chosen)
    jax.block_until_ready(state.params)
    print(time.process_time() - begun, flush=True)
