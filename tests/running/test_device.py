"""Rounds on a device that takes no hardware (support/device.py); test_cuda.py has them on a real one."""

import pytest
import torch
from support.device import FAR, FarDevice, FarTensor, far_device, unread

from fedopt.errors import UserError
from fedopt.running import hardware
from fedopt.testing.harness import in_turn, leaves, make, small, steps
from fedopt.testing.test_contract import ENGINES, checks


def pytest_generate_tests(metafunc):
    if metafunc.function is test_a_round_stays_on_the_device:
        make(metafunc, in_turn(checks)[metafunc.function.__name__])


def test_a_round_stays_on_the_device(algo, problem, setting, monkeypatch):
    with far_device(monkeypatch) as device:
        # Whom the server draws by weights that it learns, the CPU must know
        words = ["algo.sampling=normalised"] * (algo == "drfa")
        e = small(algo, problem, f"hardware.engine={setting}", *words)
        state = e.algorithm.init(e.problem)
        with unread(device):
            e.algorithm.step(state, e.problem, e.federation.at(0))


@pytest.mark.parametrize("engine", ENGINES)
def test_the_numbers_are_those_of_the_cpu(engine, monkeypatch):
    words = ("scaffold", "quadratic_minimisation", f"hardware.engine={engine}")
    near = leaves(steps(small(*words), 2)[-1])
    with far_device(monkeypatch):
        far = leaves(steps(small(*words), 2)[-1])
        assert all(isinstance(leaf, FarTensor) for leaf in far)
        for a, b in zip(near, far, strict=True):
            torch.testing.assert_close(b.cpu(), a, rtol=1e-14, atol=0)  # the sum of answers is in another order there


MISTAKES = {
    "mixes": [
        lambda x: x + torch.ones(3),
        lambda x: torch.cat([x, torch.zeros(1)]),
        lambda x: x @ torch.eye(3),
        lambda x: torch.func.vmap(lambda a: a * torch.ones(2))(x),
        lambda x: torch.func.grad(lambda y: y @ torch.ones(3))(x),
        lambda x: x.add_(torch.ones(3)),
    ],
    "reads|meta|subclasses": [
        lambda x: x.sum().item(),
        lambda x: bool(x.sum() > 0),
        lambda x: float(x[0]),
        lambda x: x.cpu(),
        lambda x: x.tolist(),
        lambda x: x.numpy(),
        lambda x: torch.zeros(3).copy_(x),
        lambda x: torch.equal(x, x),
        lambda x: x[x > 0],
        lambda x: torch.func.vmap(lambda a: a.cpu())(x),
    ],
}


@pytest.mark.parametrize(("says", "mistake"), [(says, mistake) for says, many in MISTAKES.items() for mistake in many])
def test_mistakes_are_seen(says, mistake):
    """Those of a GPU, and what makes the CPU wait for it."""
    with FarDevice() as device:
        x = torch.ones(3).to(FAR)
        with unread(device), pytest.raises((AssertionError, RuntimeError, TypeError, NotImplementedError), match=says):
            mistake(x)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("says", "planted"),
    [("mixes", lambda x: x + torch.ones(len(x))), ("reads", lambda x: x.cpu().to(FAR))],
)
def test_planted_mistakes_of_a_client_are_seen(says, planted, engine, monkeypatch):
    with far_device(monkeypatch) as device:
        e = small("fedavg", "quadratic_minimisation", f"hardware.engine={engine}")
        f = type(e.problem).f
        monkeypatch.setattr(type(e.problem), "f", lambda problem, x, sample: f(problem, planted(x), sample))
        state = e.algorithm.init(e.problem)
        with unread(device), pytest.raises(AssertionError, match=says):
            e.algorithm.step(state, e.problem, e.federation.at(0))


def test_what_a_gpu_takes_is_taken():
    with FarDevice() as device, unread(device):
        x = torch.arange(6.0).to(FAR)
        assert isinstance(x * torch.tensor(2.0), FarTensor)
        assert isinstance(x[torch.tensor([1, 3])], FarTensor)
        assert isinstance(torch.zeros(3, device=x.device) + x[:3], FarTensor)
        y = x.clone()
        y.unsqueeze_(0)
        assert y.shape == (1, 6)


@pytest.mark.parametrize(
    ("place", "local_rank", "ranks_here", "gpu"), [(0, 0, 1, 0), (3, 0, 1, 1), (1, 1, 2, 1), (0, 1, 2, 1)]
)
def test_gpus_in_turn(place, local_rank, ranks_here, gpu, monkeypatch):
    """The fourth of the runs at once has the second of two GPUs; both ranks of the second run have one each."""
    assert hardware_index(monkeypatch, place, local_rank, ranks_here) == gpu


def test_more_ranks_than_gpus(monkeypatch):
    with pytest.raises(UserError, match=r"number of GPUs is 2"):
        hardware_index(monkeypatch, 0, 2, 3)


def hardware_index(monkeypatch, place, local_rank, ranks_here):
    """The GPU that a process takes on a machine with two."""
    chosen = []
    monkeypatch.setattr(hardware.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(hardware.torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(hardware.torch.cuda, "set_device", chosen.append)
    for name, value in (("FEDOPT_PLACE", place), ("LOCAL_RANK", local_rank), ("LOCAL_WORLD_SIZE", ranks_here)):
        monkeypatch.setenv(name, str(value))
    settings = hardware.Hardware("cuda", "float32", "auto", None, 1, False, None, False)
    with hardware.restored():
        device = hardware.configure(settings)
    assert chosen == [device]
    return device.index
