"""Draws, the exchange, and its ledger, with client functions written for the test."""

from itertools import combinations

import numpy as np
import pytest
import torch
from harness import rows_of, small

from fedopt.federation.draws import Key, Minibatches, draw
from fedopt.federation.engines import STEP_OVERHEAD, OneByOne, Vectorised, equally_busy
from fedopt.federation.federation import Federation
from fedopt.oracles import gradient
from fedopt.randomness import Purpose, keyed_rng
from fedopt.settings import Participation

ENGINES = [OneByOne(), Vectorised(), Vectorised(2)]
KEY = Key(seed=7, round=3, exchange=1)
LIKE = torch.zeros(1, dtype=torch.float64)


@pytest.fixture(scope="module")
def problem():
    """Ragged: clients with very different numbers of digits."""
    return small("fedavg", "classification", "partitioner=dirichlet", "partitioner.alpha=0.3").problem


def test_keys_do_not_share_streams():
    keys = [
        {"purpose": p, "round": r, "exchange": x, "client": c}
        for p in (3, 5)
        for r in (0, 1)
        for x in (0, 1)
        for c in (0, 1)
    ]
    streams = np.array([keyed_rng(1, **{**key, "purpose": Purpose(key["purpose"])}).random(1000) for key in keys])
    assert len(np.unique(streams)) == streams.size
    again = np.array([keyed_rng(1, **{**key, "purpose": Purpose(key["purpose"])}).random(1000) for key in keys])
    np.testing.assert_array_equal(streams, again)


def test_draws_do_not_depend_on_company(problem):
    alone = draw(Minibatches(5, 3), problem.splits, np.array([4]), KEY, LIKE)
    together = draw(Minibatches(5, 3), problem.splits, np.array([1, 4, 0]), KEY, LIKE)
    for a, b in zip(rows_of(alone, "train"), rows_of(together, "train"), strict=True):
        width = a.shape[-1]
        assert torch.equal(a[0], b[1, :, :width])


@pytest.mark.parametrize(("B", "E", "k"), [(4, None, 3), (None, None, 1), (7, 2, 1), (None, 2, 1), (10**6, 1, 1)])
def test_minibatches(problem, B, E, k):
    """Own rows only, no repeats within a step, weights 1/b; an epoch sees every example once."""
    clients = np.arange(problem.clients)
    sizes = problem.sizes()
    draws = Minibatches(B, k, E)
    drawn = draw(draws, problem.splits, clients, KEY, LIKE)
    rows, weights = (t.numpy() for t in rows_of(drawn, "train"))
    for i in clients:
        n = sizes[i]
        taken = [rows[i, s][weights[i, s] > 0] for s in range(rows.shape[1])]
        taken = [t for t in taken if len(t)]
        assert len(drawn.steps) == len(clients)
        assert drawn.steps[i] == (k if E is None else E if B is None else E * -(-n // B))
        for t in taken:
            assert set(t) <= set(problem.splits["train"][i])
            assert len(set(t)) == len(t)
        if E is None:
            assert all(len(t) == min(B or n, n) for t in taken)
        elif B is not None:
            assert sorted(np.concatenate(taken)) == sorted(np.tile(problem.splits["train"][i], E))
        for s, t in enumerate(taken):
            np.testing.assert_allclose(weights[i, s][weights[i, s] > 0], 1 / len(t))


def test_minibatches_with_replacement(problem):
    """Own rows only, B of them however few there are, each uniform."""
    clients = np.arange(problem.clients)
    drawn = draw(Minibatches(5, np.array([0, 3, 2000, 1, 2, 3]), replace=True), problem.splits, clients, KEY, LIKE)
    rows, weights = (t.numpy() for t in rows_of(drawn, "train"))
    assert rows.shape == (6, 2000, 5)
    for i, k in enumerate(drawn.steps):
        assert set(rows[i, :k].ravel()) <= set(problem.splits["train"][i])
        np.testing.assert_allclose(weights[i, :k], 1 / 5)
    n = int(problem.sizes()[2])
    counts = np.unique(rows[2], return_counts=True)[1]
    assert len(counts) == n
    assert abs(counts - 10_000 / n).max() < 6 * np.sqrt(10_000 / n)


def test_samples_are_uniform(problem):
    """Each example of a client is in a batch of B with probability B / n."""
    n, B, steps_drawn = int(problem.sizes()[0]), 5, 4000
    rows, _ = rows_of(draw(Minibatches(B, steps_drawn), problem.splits, np.array([0]), KEY, LIKE), "train")
    _, counts = np.unique(rows.numpy(), return_counts=True)
    mean = steps_drawn * B / n
    assert len(counts) == n
    assert abs(counts - mean).max() < 6 * np.sqrt(mean)


def count_examples(client, message):
    """Sum over the client's steps of (sum of labels, 1), over unpadded examples."""

    def step(carry, sample):
        batch = sample["train"]
        real = (batch.weight > 0).to(message.dtype)
        return carry[0] + (batch.y * real).sum(), carry[1] + 1

    return client.scan(step, (message[0], message[1]))


@pytest.mark.parametrize("engine", ENGINES)
def test_ragged_clients(problem, engine):
    """Different numbers of examples and steps: the weighted sum of what each client alone counts."""
    fed = Federation(problem, engine, 0)
    cohort, weights = np.array([5, 0, 3]), np.array([0.5, 2.0, 1.0])
    message = torch.zeros(2, dtype=torch.float64)
    labels, steps_taken = fed.round(count_examples, message, cohort, Minibatches(7, epochs=2), weights)
    y, sizes = problem.train.y.numpy(), problem.sizes()
    expected = sum(w * 2 * y[problem.splits["train"][i]].sum() for i, w in zip(cohort, weights, strict=True))
    assert float(labels) == pytest.approx(expected, rel=1e-12)
    assert float(steps_taken) == pytest.approx(
        sum(w * 2 * -(-sizes[i] // 7) for i, w in zip(cohort, weights, strict=True))
    )


def test_clients_wait_for_each_other_only_where_it_is_cheaper():
    """A stack takes (overhead + clients) x the steps of its busiest: cut to the least of all, tried out."""
    rng = np.random.default_rng(0)

    def cost(steps, cuts):
        return sum(group[0] * (STEP_OVERHEAD + len(group)) for group in np.split(steps, cuts))

    for _ in range(20):
        steps = np.sort(rng.integers(1, 40, 8) ** 2)[::-1]
        every = (cuts for count in range(8) for cuts in combinations(range(1, 8), count))
        best = min(cost(steps, list(cuts)) for cuts in every)
        assert cost(steps, equally_busy(steps)) <= 1.05 * best
    assert equally_busy(np.full(100, 7)) == []
    assert equally_busy(np.array([5])) == []
    uneven = np.repeat([5, 4, 3, 2], 50)
    assert equally_busy(uneven) == [50, 100, 150]
    stacks = Vectorised(40).stacks(np.arange(200), uneven, 8)
    assert [len(stack) for stack in stacks] == [25] * 8


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("B", [2, None])
def test_stragglers_take_no_step(problem, engine, B):
    """Next to others, and where there are only stragglers."""
    fed = Federation(problem, engine, 0, Participation(stragglers=0.5))
    for steps in (fed.work(3), np.zeros(6, dtype=np.int64)):
        start = torch.zeros(2, dtype=torch.float64)
        drawn = Minibatches(B, steps, replace=True)
        _, taken = fed.round(count_examples, start, fed.everyone(), drawn, np.ones(6))
        assert float(taken) == steps.sum()


def test_stragglers_are_drawn_anew(problem):
    fed = Federation(problem, OneByOne(), 0, Participation(least=2, stragglers=1 / 3))
    late = np.zeros(6)
    for r in range(600):
        fed.begin(r)
        work = fed.work(4)
        assert sorted(work)[:2] == [0, 0] < sorted(work)[2:3]
        late += work == 0
    assert abs(late - 200).max() < 5 * np.sqrt(200 * 2 / 3)


@pytest.mark.parametrize("engine", ENGINES)
def test_part_of_the_message_for_each_alone(problem, engine):
    """Clients of a cohort in any order; it is billed."""
    fed = Federation(problem, engine, 0)
    cohort = np.array([4, 1, 3])
    own = torch.tensor([[4.0, 0], [1, 0], [3, 0]], dtype=torch.float64)
    x = torch.zeros(3, dtype=torch.float64)
    weights = np.array([100.0, 10, 1])
    answer = fed.round(lambda client, x: client.own * 2 + client.index, x, cohort, weights=weights, own=own)
    torch.testing.assert_close(answer, torch.tensor([3 * 413.0, 413.0], dtype=torch.float64))
    np.testing.assert_array_equal(fed.ledger.down, [0, 40, 0, 40, 40, 0])


@pytest.mark.parametrize("engine", ENGINES)
def test_ledger_bills_bytes_per_client(problem, engine):
    fed = Federation(problem, engine, 0)
    message = (torch.zeros(3, dtype=torch.float64), torch.zeros(2, dtype=torch.float32))
    fed.round(lambda client, m: m[1], message, np.array([1, 4]))
    fed.round(lambda client, m: m[0], message, np.array([4]))
    assert fed.ledger.comm_rounds == 2
    np.testing.assert_array_equal(fed.ledger.down, [0, 32, 0, 0, 64, 0])
    np.testing.assert_array_equal(fed.ledger.up, [0, 8, 0, 0, 8 + 24, 0])


@pytest.mark.parametrize("engine", ENGINES)
def test_mean_and_memory(problem, engine):
    """A client adds the message to its own row; others keep theirs."""
    fed = Federation(problem, engine, 0)
    memory = torch.arange(6.0, dtype=torch.float64)[:, None] * torch.ones(2, dtype=torch.float64)
    before = memory.clone()

    def add(client, message):
        return client.memory * 10, client.memory + message

    mean, after = fed.round(add, torch.ones(2, dtype=torch.float64), np.array([2, 5]), memory=memory)
    assert torch.equal(memory, before)
    torch.testing.assert_close(mean, torch.full((2,), 35.0, dtype=torch.float64))
    torch.testing.assert_close(after[:, 0], torch.tensor([0.0, 1, 3, 3, 4, 6], dtype=torch.float64))


def test_cohorts_are_uniform_and_new_each_time(problem):
    fed = Federation(problem, OneByOne(), 0, Participation(cohort=2))
    counts = np.zeros(6)
    for r in range(600):
        fed.begin(r)
        first, second = fed.cohort(), fed.cohort()
        assert len(set(first)) == 2
        counts[first] += 1
        counts[second] += 1
    assert abs(counts - 400).max() < 5 * np.sqrt(400 * 2 / 3)
    fed.begin(5)
    again = fed.cohort()
    fed.begin(5)
    np.testing.assert_array_equal(again, fed.cohort())


def test_oracle_calls_of_finished_clients_are_not_counted(problem):
    for engine in ENGINES:
        fed = Federation(problem, engine, 0)

        def local(client, x):
            return client.scan(lambda x, sample: x - gradient(problem, x, sample), x)

        fed.round(local, *problem.start(), fed.everyone(), Minibatches(7, epochs=1))
        assert fed.ledger.calls.grad == sum(-(-problem.sizes() // 7))
