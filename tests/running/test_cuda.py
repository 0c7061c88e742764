"""The same runs on a GPU."""

import pytest
import torch
from torch.utils._pytree import tree_leaves

from fedopt.testing.harness import in_turn, make, small, steps

if not torch.cuda.is_available():
    pytest.skip("no GPU", allow_module_level=True)


def engines(algo, problem):
    return [("test_gpu_is_cpu", engine) for engine in ("vectorised", "one_by_one")]


def pytest_generate_tests(metafunc):
    make(metafunc, in_turn(engines)[metafunc.function.__name__])


def test_gpu_is_cpu(algo, problem, setting):
    cpu = steps(small(algo, problem), 3)[-1]
    gpu = steps(small(algo, problem, "hardware.device=cuda", f"hardware.engine={setting}"), 3)[-1]
    for a, b in zip(tree_leaves(cpu), tree_leaves(gpu), strict=True):
        torch.testing.assert_close(torch.as_tensor(b).cpu(), torch.as_tensor(a), rtol=1e-8, atol=1e-10)
