"""The same runs on a GPU."""

import pytest
import torch
from support.harness import marked, pairs, small, steps
from torch.utils._pytree import tree_leaves

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@pytest.mark.parametrize(("algo", "problem"), marked(pairs()))
@pytest.mark.parametrize("engine", ["vectorised", "one_by_one"])
def test_gpu_is_cpu(algo, problem, engine):
    cpu = steps(small(algo, problem), 3)[-1]
    gpu = steps(small(algo, problem, "hardware.device=cuda", f"hardware.engine={engine}"), 3)[-1]
    for a, b in zip(tree_leaves(cpu), tree_leaves(gpu), strict=True):
        torch.testing.assert_close(torch.as_tensor(b).cpu(), torch.as_tensor(a), rtol=1e-8, atol=1e-10)
