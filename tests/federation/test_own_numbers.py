"""The random numbers that a client samples itself: by client, name, round and exchange, in every engine and on ranks, unbilled."""

import numpy as np
import pytest
import torch
from support.command import torchrun

from fedopt.federation.engines import OneByOne, Vectorised
from fedopt.federation.round import Federation
from fedopt.testing.harness import small

RANKS = """
import numpy as np
from fedopt.federation import Federation, OneByOne, ranks
from fedopt.testing.harness import small
ranks.start()
e = small("fedavg", "quadratic_minimisation")
of_all = Federation(e.problem, OneByOne(), 0).at(3).exchange(
    lambda client, x: client.normal("z", 4), e.problem.start()[0], np.arange(6), combine=lambda rows, _: rows
)
if ranks.rank() == 0:
    np.save("rows.npy", of_all.numpy())
ranks.finish()
ranks.stop()
"""


def sampled(engine=None, r=3, S=range(6), shape=(4,), kind="normal", name="z", k=0, exchanges=1):
    e = small("fedavg", "quadratic_minimisation")
    federation = Federation(e.problem, engine or OneByOne(), 0)
    fed, S = federation.at(r), np.array(S)

    def answer(client, x):
        return getattr(client, kind)(name, *shape, k=k)

    for _ in range(exchanges):
        rows = fed.exchange(answer, e.problem.start()[0], S, combine=lambda rows, _: rows)
    return rows, federation


@pytest.mark.parametrize("kind", ["normal", "uniform"])
def test_engines_agree_and_each_client_has_its_own(kind):
    rows, federation = sampled(kind=kind)
    for engine in (Vectorised(), Vectorised(2)):
        assert torch.equal(rows, sampled(engine, kind=kind)[0])
    assert len(rows.unique()) == 24
    assert torch.equal(sampled(S=[1, 4], kind=kind)[0], rows[[1, 4]])  # whoever else takes part
    assert set(federation.ledger.down) == {8 * federation.problem.start()[0].numel()}  # nothing is sent for them


def test_every_argument_and_the_place_make_others():
    rows = [
        sampled(**more)[0] for more in ({}, {"name": "w"}, {"k": 1}, {"r": 4}, {"exchanges": 2}, {"kind": "uniform"})
    ]
    assert len(torch.stack(rows).unique()) == 6 * 24
    assert torch.equal(rows[0], sampled()[0])


def test_distribution():
    numbers = sampled(shape=(20_000,))[0]
    np.testing.assert_allclose([numbers.mean(), numbers.var(), (numbers**4).mean()], [0, 1, 3], atol=0.05)
    assert abs(np.corrcoef(numbers) - np.eye(6)).max() < 0.03
    whole = sampled(kind="uniform", shape=(20_000,))[0]
    np.testing.assert_allclose([(whole < p).double().mean() for p in (0.1, 0.5, 0.9)], [0.1, 0.5, 0.9], atol=0.01)


def test_local_steps_have_their_own():
    e = small("fedavg", "quadratic_minimisation")
    fed, x = Federation(e.problem, Vectorised(), 0).at(0), e.problem.start()[0]

    def walk(client, x):
        def step(x, xi, k):
            return x + client.normal("step", len(x), k=k)

        return client.scan("local", step, x, lambda k: k)

    ends = fed.exchange(walk, 0 * x, np.arange(6), combine=lambda rows, _: rows, local=fed.local(e.algorithm.tau, None))
    steps = e.algorithm.tau(0, 6)
    at = Federation(e.problem, OneByOne(), 0).at(0)

    def total(client, x):
        return sum(client.normal("step", len(x), k=k) for k in range(steps))

    sums = at.exchange(total, x, np.arange(6), combine=lambda rows, _: rows)
    torch.testing.assert_close(ends, sums)


@pytest.mark.full
def test_two_ranks(tmp_path):
    (tmp_path / "ranks.py").write_text(RANKS)
    torchrun("ranks.py", cwd=tmp_path)
    np.testing.assert_array_equal(np.load(tmp_path / "rows.npy"), sampled()[0])
