"""Draws, the exchange, its fence and its ledger, with client functions written for the test."""

import tracemalloc
from array import array
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from timeit import timeit
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.cases import few
from support.samples import rows_of

from fedopt.config.settings import Participation
from fedopt.data import Ragged
from fedopt.errors import UserError
from fedopt.federation import draws, fence
from fedopt.federation.draws import Epochs, Full, Steps, draw
from fedopt.federation.engines import STEP_OVERHEAD, OneByOne, Vectorised, choose, equally_busy
from fedopt.federation.memory import Memory
from fedopt.federation.round import Federation, Round
from fedopt.randomness import Purpose, keyed_rng
from fedopt.testing.harness import iterate, leaves, small

ENGINES = [OneByOne(), Vectorised(), Vectorised(2)]


def rng_of(client):
    return keyed_rng(7, Purpose.SAMPLES, round=3, exchange=1, client=client)


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


def rows(problem, wanted, clients):
    """Rows [clients, samples, B] of the training split and their weights, and the steps of each client."""
    whole, drawn = draw({"local": wanted}, problem.splits, clients, rng_of, LIKE)
    return *rows_of(whole, drawn["local"], "train"), drawn["local"].steps


def test_draws_do_not_depend_on_company(problem):
    alone = rows(problem, Steps(3, 5), np.array([4]))[:2]
    together = rows(problem, Steps(3, 5), np.array([1, 4, 0]))[:2]
    for a, b in zip(alone, together, strict=True):
        width = a.shape[-1]
        assert torch.equal(a[0], b[1, :, :width])


@pytest.mark.parametrize(("B", "E", "k"), [(4, None, 3), (None, None, 1), (7, 2, 1), (None, 2, 1), (10**6, 1, 1)])
def test_samples(problem, B, E, k):
    """Own rows only, no repeats within a sample, weights 1/b; an epoch sees every example once."""
    clients = np.arange(problem.clients)
    sizes = problem.sizes()
    index, weights, steps = rows(problem, Steps(k, B) if E is None else Epochs(E, B), clients)
    index, weights = index.numpy(), weights.numpy()
    for i in clients:
        n = sizes[i]
        taken = [index[i, s][weights[i, s] > 0] for s in range(index.shape[1])]
        taken = [t for t in taken if len(t)]
        assert len(steps) == len(clients)
        assert steps[i] == (k if E is None else E if B is None else E * -(-n // B))
        for t in taken:
            assert set(t) <= set(problem.splits["train"][i])
            assert len(set(t)) == len(t)
        if E is None:
            assert all(len(t) == min(B or n, n) for t in taken)
        elif B is not None:
            assert sorted(np.concatenate(taken)) == sorted(np.tile(problem.splits["train"][i], E))
        for s, t in enumerate(taken):
            np.testing.assert_allclose(weights[i, s][weights[i, s] > 0], 1 / len(t))


def test_samples_with_replacement(problem):
    """Own rows only, B of them however few there are, each uniform."""
    wanted = Steps(np.array([0, 3, 2000, 1, 2, 3]), 5, replace=True)
    index, weights, steps = rows(problem, wanted, np.arange(problem.clients))
    index, weights = index.numpy(), weights.numpy()
    assert index.shape == (6, 2000, 5)
    for i, k in enumerate(steps):
        assert set(index[i, :k].ravel()) <= set(problem.splits["train"][i])
        np.testing.assert_allclose(weights[i, :k], 1 / 5)
    n = int(problem.sizes()[2])
    counts = np.unique(index[2], return_counts=True)[1]
    assert len(counts) == n
    assert abs(counts - 10_000 / n).max() < 6 * np.sqrt(10_000 / n)


def test_samples_are_uniform(problem):
    """Each example of a client is in a batch of B with probability B / n."""
    n, B, steps_drawn = int(problem.sizes()[0]), 5, 4000
    index, *_ = rows(problem, Steps(steps_drawn, B), np.array([0]))
    _, counts = np.unique(index.numpy(), return_counts=True)
    mean = steps_drawn * B / n
    assert len(counts) == n
    assert abs(counts - mean).max() < 6 * np.sqrt(mean)


def test_names_are_drawn_in_their_order():
    """One after the other from each client's own stream, split by split, as far as a name draws from a split."""
    problem = small("fednest", "hyper_representation").problem
    wanted = {"outer": Steps(2, 3, samples=2), "inner": Epochs(1, 4, split="train"), "all": Full("val")}
    whole, drawn = draw(wanted, problem.splits, np.array([4]), rng_of, LIKE)
    rng = rng_of(4)
    for split in ("train", "val"):
        own = problem.splits[split][4]
        outer = np.stack([own[rng.choice(len(own), 3, replace=False, shuffle=False)] for _ in range(4)])
        np.testing.assert_array_equal(rows_of(whole, drawn["outer"], split)[0][0], outer)
        if split == "train":
            order = rng.permutation(len(own))
            index, weight = (t[0].numpy() for t in rows_of(whole, drawn["inner"], split))
            np.testing.assert_array_equal(index[weight > 0], own[order])
    assert set(drawn["inner"].positions) == {"train"}
    assert drawn["all"].positions == {}
    assert [*drawn["all"].sizes] == ["val"]
    assert [name.steps.tolist() for name in drawn.values()] == [[2], [-(-len(problem.splits["train"][4]) // 4)], [1]]


def stretched(wanted, splits, monkeypatch, size):
    """The positions and weights of every name and split, from stretches of so many positions."""
    monkeypatch.setattr(draws, "STRETCH", size)
    tables = {}
    for name, of_name in draw(wanted, splits, np.array([4, 1, 0]), rng_of, LIKE)[1].items():
        last, number, parts = int(of_name.steps.max()) * (of_name.samples or 1), 0, []
        while of_name.positions and (not parts or number < last):
            parts.append(of_name.stretch(number)[1] if number else of_name.positions)
            number += of_name.length
        tables |= {
            (name, split, part): torch.cat([stretch[split][part] for stretch in parts], 1)
            for split in of_name.positions
            for part in (0, 1)
        }
    return tables


@pytest.mark.parametrize("size", [1, 7, 60, 500])
def test_stretches_of_draws_are_those_in_one_go(size, monkeypatch):
    """Several names on two splits, as many steps or not, whether or not stretches divide them."""
    splits = small("fednest", "hyper_representation").problem.splits
    uneven = np.array([20, 3, 0, 0, 31])
    wanted = {
        "passes": Epochs(3, 4, split="train"),
        "several": Steps(uneven, 3, samples=2),
        "part": Epochs(0.5, 2, over="val"),
        "replaced": Steps(30, 5, replace=True),
        "all": Full("val"),
        "more": Steps(24, 1000),
        "fixed": Steps(24, 4, fixed=True),
    }
    one_go = stretched(wanted, splits, monkeypatch, 2**20)
    assert len(one_go) == 2 * 9  # "more" takes all there is, as "all" does
    for key, table in stretched(wanted, splits, monkeypatch, size).items():
        assert torch.equal(table, one_go[key])


def test_the_number_of_examples_does_not_depend_on_the_stretch_at_hand(problem, monkeypatch):
    """Forward, back, and where there is only one stretch."""

    def examples(size):
        monkeypatch.setattr(draws, "STRETCH", size)
        drawn = draw({"local": Epochs(3, 4)}, problem.splits, np.array([4, 1, 0]), rng_of, LIKE)[1]["local"]
        return [drawn.examples(k).tolist() for k in (int(drawn.steps.max()) - 1, 0, 3, 5, 2)], len(drawn.later)

    one_go, later = examples(2**20)
    assert later == 0
    assert examples(30) == (one_go, 1)
    assert len({tuple(of_clients) for of_clients in one_go}) > 1


def test_samples_cannot_be_fixed_and_with_replacement():
    with pytest.raises(UserError, match="replace=True, fixed=True"):
        Steps(3, 5, replace=True, fixed=True)


def test_samples_that_take_all_there_is_are_not_drawn(problem):
    """B of at least every client's examples is null, with or without fixed batches; passes are still shuffled."""
    clients, most = problem.splits["train"].sizes.argsort()[:2], 1000

    def refused(client):
        raise AssertionError(client)

    wanted = {"some": Steps(2, most), "fixed": Steps(1, most, fixed=True)}
    whole, drawn = draw(wanted, problem.splits, clients, refused, LIKE)
    assert [name.positions for name in drawn.values()] == [{}, {}]
    assert whole["train"][0].shape == (2, problem.splits["train"].sizes[clients].max())
    for others in (Steps(2, most, replace=True), Epochs(1, most)):
        assert draw({"others": others}, problem.splits, clients, rng_of, LIKE)[1]["others"].positions


def test_fixed_batches_come_as_often_as_their_share():
    (drawn,) = Steps(1, 5, fixed=True).sampler(np.array([13]))([np.random.default_rng(0)], [13], [3000])
    assert {tuple(batch) for batch in drawn} == {tuple(range(k, min(k + 5, 13))) for k in (0, 5, 10)}
    counts = np.bincount([batch[0] // 5 for batch in drawn])
    assert counts / 3000 == pytest.approx([5 / 13, 5 / 13, 3 / 13], abs=0.03)


@pytest.mark.parametrize("B", [1, 2, 8, 64, 65, 299])
@pytest.mark.parametrize("sizes", [[300, 300, 300], [300, 5000, 1000], [300, 12_000, 400]])
@pytest.mark.parametrize("counts", [[1, 1, 1], [0, 9, 4], [20, 20, 20]])
def test_batches_are_those_of_choice(B, sizes, counts):
    """Which batches are drawn, and where the generators are afterwards, does not depend on how many are drawn together."""
    ours, plain = ([np.random.default_rng([7, i]) for i in range(3)] for _ in range(2))
    drawn = Steps(1, B).sampler(np.array(sizes))(ours, sizes, counts)
    for batches, rng, n, count in zip(drawn, plain, sizes, counts, strict=True):
        wanted = [rng.choice(n, B, replace=False, shuffle=False) for _ in range(count)]
        assert np.array_equal(batches, np.reshape(wanted, (count, B)))
    assert [rng.random() for rng in ours] == [rng.random() for rng in plain]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_client_knows_its_fixed_batch(problem, engine):
    """The number of the batch, and its share of the client's examples; several clients at once."""
    B, cohort = 5, np.array([0, 2, 3])
    sizes = problem.splits["train"].sizes

    def drawn(client, x):
        return torch.stack(
            [*(part.to(x) for part in client.batch("xi", "train")), client.sample("xi")["train"].y[0].to(x)]
        )

    x = torch.zeros((), dtype=torch.float64)
    for r in range(20):
        fed = Federation(problem, engine, 0).at(r)
        answers = fed.exchange(
            drawn, x, cohort, combine=lambda of_all, _: of_all.reshape(-1), xi=Steps(1, B, fixed=True)
        )
        for i, (number, share, label) in zip(cohort, answers.reshape(-1, 3).tolist(), strict=True):
            rows = problem.splits["train"][i][int(number) * B : (int(number) + 1) * B]
            assert share == pytest.approx(len(rows) / sizes[i])
            assert label == problem.train.y[rows[0]]


@pytest.mark.parametrize("engine", few(ENGINES, lambda engine: engine is ENGINES[-1]))
@pytest.mark.parametrize(
    ("algo", "name", "words"),
    [
        ("fedavg", "classification", ["algo.tau=31", "algo.B=5", "participation.least=2"]),  # with replacement
        ("fedavg", "classification", ["algo.tau=3 epochs", "algo.B=9", "participation.stragglers=0.5"]),
        ("fednest", "hyper_representation", ["algo.tau_in=2 epochs", "algo.B=16", "algo.tau_out=3"]),  # with hold
        ("localbsgvrm", "quadratic_bilevel", ["algo.p=9", "algo.B=2"]),  # several samples a step, two splits
    ],
)
def test_runs_in_stretches_are_those_in_one_go(engine, algo, name, words, monkeypatch):
    def last(size):
        monkeypatch.setattr(draws, "STRETCH", size)
        e = small(algo, name, *words)
        e.federation.engine = engine
        return leaves(list(iterate(e, 2))[-1])

    one_go = last(2**20)
    for size in (20, 128):
        assert all(torch.equal(a, b) for a, b in zip(last(size), one_go, strict=True))


def test_draws_of_a_name_may_be_taken_again(problem, monkeypatch):
    """From the first on, once they have been passed."""
    monkeypatch.setattr(draws, "STRETCH", 50)

    def twice(client, x):
        labels = lambda carry, xi: torch.cat([carry[1:], xi["train"].y[:1].to(x)])  # noqa: E731
        first = client.scan("local", labels, x)
        return first - client.scan("local", labels, x)

    for engine in ENGINES:
        fed, x = Federation(problem, engine, 0).at(0), torch.zeros(40, dtype=torch.float64)
        assert not fed.exchange(twice, x, np.arange(6), local=Steps(40, 3)).any()


@pytest.mark.parametrize("engine", [OneByOne(), Vectorised()])
@pytest.mark.parametrize("replace", [True, False])
def test_memory_does_not_grow_with_the_steps(problem, engine, replace, monkeypatch):
    monkeypatch.setattr(draws, "STRETCH", 1000)

    def peak(tau):
        local, start = Steps(tau, 4, replace=replace), torch.zeros(2, dtype=torch.float64)
        fed = Federation(problem, engine, 0).at(0)
        tracemalloc.start()
        fed.exchange(count_examples, start, np.arange(2), local=local)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    peak(10)
    before = 26 * 4 * 2 * 2700  # bytes that the draws of 2,700 steps more took when all were made at once
    assert peak(3000) - peak(300) < before / 5


def count_examples(client, message):
    """Sum over the client's steps of (sum of labels, 1), over unpadded examples."""

    def step(carry, sample):
        batch = sample["train"]
        real = (batch.weight > 0).to(message.dtype)
        return carry[0] + (batch.y * real).sum(), carry[1] + 1

    return client.scan("local", step, (message[0], message[1]))


@pytest.mark.parametrize("engine", ENGINES)
def test_ragged_clients(problem, engine):
    """Different numbers of examples and steps: the weighted sum of what each client alone counts."""
    fed = Federation(problem, engine, 0)
    cohort, weights = np.array([5, 0, 3]), np.array([0.5, 2.0, 1.0])
    message = torch.zeros(2, dtype=torch.float64)
    labels, steps_taken = fed.at(0).exchange(count_examples, message, cohort, weights=weights, local=Epochs(2, 7))
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
    fed = Federation(problem, engine, 0, Participation(stragglers=0.5)).at(0)
    for steps in (fed.work(3), np.zeros(6, dtype=np.int64)):
        start, local = torch.zeros(2, dtype=torch.float64), Steps(steps, B, replace=True)
        _, taken = fed.exchange(count_examples, start, fed.everyone(), weights=np.ones(6), local=local)
        assert float(taken) == steps.sum()


def test_stragglers_are_drawn_anew(problem):
    fed = Federation(problem, OneByOne(), 0, Participation(least=2, stragglers=1 / 3))
    late = np.zeros(6)
    for r in range(600):
        work = fed.at(r).work(4)
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
    answer = fed.at(0).exchange(lambda client, x: client.own * 2 + client.index, x, cohort, weights=weights, own=own)
    torch.testing.assert_close(answer, torch.tensor([3 * 413.0, 413.0], dtype=torch.float64))
    np.testing.assert_array_equal(fed.ledger.down, [0, 40, 0, 40, 40, 0])


@pytest.mark.parametrize("engine", ENGINES)
def test_ledger_bills_bytes_per_client(problem, engine):
    fed = Federation(problem, engine, 0)
    message = (torch.zeros(3, dtype=torch.float64), torch.zeros(2, dtype=torch.float32))
    fed.at(0).exchange(lambda client, m: m[1], message, np.array([1, 4]))
    fed.at(1).exchange(lambda client, m: m[0], message, np.array([4]))
    assert fed.ledger.comm_rounds == 2
    np.testing.assert_array_equal(fed.ledger.down, [0, 32, 0, 0, 64, 0])
    np.testing.assert_array_equal(fed.ledger.up, [0, 8, 0, 0, 8 + 24, 0])
    billed = {name: n for name, n in fed.ledger.columns().items() if n}
    assert billed == {"comm_rounds": 2, "bytes_down": 96, "bytes_up": 40, "client_visits": 3}


@pytest.mark.parametrize("engine", ENGINES)
def test_mean_and_memory(problem, engine):
    """A client adds the message to its own row; others keep theirs."""
    fed = Federation(problem, engine, 0).at(0)
    before = torch.arange(6.0, dtype=torch.float64)[:, None] * torch.ones(2, dtype=torch.float64)
    memory = Memory(before.clone())

    def add(client, message):
        return client.memory * 10, client.memory + message

    message, cohort, half = torch.ones(2, dtype=torch.float64), np.array([2, 5]), np.full(2, 0.5)
    mean, after = fed.exchange(add, message, cohort, weights=half, memory=memory)
    assert torch.equal(memory.tensor(), before)
    torch.testing.assert_close(mean, torch.full((2,), 35.0, dtype=torch.float64))
    torch.testing.assert_close(after.tensor()[:, 0], torch.tensor([0.0, 1, 3, 3, 4, 6], dtype=torch.float64))


def test_a_round_has_one_cohort_and_samples_others_by_name(problem):
    fed = Federation(problem, OneByOne(), 0, Participation(cohort=2))
    counts = np.zeros(6)
    for r in range(600):
        of_round = fed.at(r)
        first, second = of_round.cohort(), of_round.new_cohort()
        assert len(set(first)) == 2
        np.testing.assert_array_equal(of_round.cohort(), first)
        counts[first] += 1
        counts[second] += 1
    assert abs(counts - 400).max() < 5 * np.sqrt(400 * 2 / 3)
    np.testing.assert_array_equal(fed.at(5).cohort(), fed.at(5).new_cohort())  # the first draw of either
    of_round = fed.at(5)  # the cohort is a draw of its own in any order
    drawn = [of_round.new_cohort(), of_round.cohort(), of_round.cohort(), of_round.new_cohort()]
    again = fed.at(5)
    expected = [again.new_cohort() for _ in range(3)]
    for S, k in zip(drawn, (0, 1, 1, 2), strict=True):
        np.testing.assert_array_equal(S, expected[k])


def test_oracle_calls_of_finished_clients_are_not_counted(problem):
    def local(client, x):
        return client.scan("local", lambda x, xi: x - client.gradient(x, xi), x)

    for engine in ENGINES:
        fed = Federation(problem, engine, 0)
        fed.at(0).exchange(local, *problem.start(), np.arange(6), local=Epochs(1, 7))
        assert fed.ledger.calls.grad == sum(-(-problem.sizes() // 7))
        assert fed.ledger.calls.grad_examples == sum(problem.sizes())  # each once, in samples of 7 and fewer


def test_examples_of_oracle_calls_are_counted(problem):
    """Each call counts those of its own sample: here two samples of five, or of all where a client has fewer, and one of all."""

    def local(client, x):
        first, whole = client.sample("few"), client.sample("whole")
        x = client.scan("few", lambda x, xi: x - 0.1 * client.gradient(x, xi), x)
        return x - client.gradient(x, first) - client.gradient(x, whole)

    few, cohort = np.minimum(problem.sizes(), 5), np.arange(4)
    for engine in ENGINES:
        fed = Federation(problem, engine, 0)
        fed.at(0).exchange(local, *problem.start(), cohort, few=Steps(lambda i: 1 + i % 2, 5), whole=Steps())
        assert fed.ledger.calls.grad == 2 * len(cohort) + sum(1 + cohort % 2)
        of_scan = (few[cohort] * (1 + cohort % 2)).sum()
        assert fed.ledger.calls.grad_examples == of_scan + few[cohort].sum() + problem.sizes()[cohort].sum()
        assert fed.ledger.visits == len(cohort)


@pytest.fixture
def few_examples():
    """Three clients with 3, 12 and 20 examples."""
    problem = small("fedavg", "classification", "partitioner.clients=3").problem
    problem.splits = {"train": Ragged(np.split(np.arange(35), [3, 15]))}
    return problem


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("wanted", "counts"),  # gradients, examples
    [
        (Steps(4, 5), (12, 4 * 3 + 4 * 5 + 4 * 5)),  # who has fewer than B takes all
        (Steps(4, 5, replace=True), (12, 4 * 5 + 4 * 5 + 4 * 5)),
        (Steps(4), (12, 4 * 3 + 4 * 12 + 4 * 20)),
        (Steps(lambda i: 2 * i, 5), (6, 0 + 2 * 5 + 4 * 5)),  # one takes no step
        (Epochs(2, 5), (2 + 6 + 8, 2 * 3 + 2 * 12 + 2 * 20)),  # of 3, of 5, 5, 2, and of 5, 5, 5, 5
        (Epochs(lambda i: np.array([1, 0.6, 0.25])[i], 5), (1 + 2 + 1, 3 + 10 + 5)),
        (Epochs(2), (6, 2 * 3 + 2 * 12 + 2 * 20)),
    ],
)
def test_examples_of_clients_with_few(few_examples, engine, wanted, counts):
    def local(client, x):
        return client.scan("local", lambda x, xi: x - 0.1 * client.gradient(x, xi), x)

    fed = Federation(few_examples, engine, 0)
    fed.at(0).exchange(local, *few_examples.start(), np.arange(3), local=wanted)
    columns = fed.ledger.columns()
    assert (columns["grad_calls"], columns["grad_examples"]) == counts
    assert [columns[name] for name in ("hvp_calls", "jvp_calls", "hvp_examples", "jvp_examples")] == [0] * 4


@pytest.mark.parametrize("engine", ENGINES)
def test_examples_of_products_and_of_several_points(few_examples, engine):
    """Two gradients, three Hessian-vector and five Jacobian-vector products a use of the map, and gradients at seven points."""

    def local(client, x):
        xi = client.sample("local")
        _, product = client.vjp(lambda x: client.f(x, xi), x, grad=2, hvp=3, jvp=5, sample=xi)
        product(product(torch.ones((), dtype=x.dtype))[0].sum())
        return x + client.at_each(lambda x: client.gradient(x, xi), x.expand(7, -1)).sum()

    fed, of_all = Federation(few_examples, engine, 0), 3 + 5 + 5
    fed.at(0).exchange(local, *few_examples.start(), np.arange(3), local=Steps(1, 5))
    columns = fed.ledger.columns()
    assert [columns[f"{kind}_calls"] for kind in ("grad", "hvp", "jvp")] == [3 * (2 * 2 + 7), 3 * 2 * 3, 3 * 2 * 5]
    examples = [of_all * (2 * 2 + 7), of_all * 2 * 3, of_all * 2 * 5]
    assert [columns[f"{kind}_examples"] for kind in ("grad", "hvp", "jvp")] == examples


@pytest.mark.parametrize("engine", ENGINES)
def test_examples_of_a_fixed_batch(few_examples, engine):
    """The last batch of a client has what is left of its examples: two of twelve in batches of five."""

    def local(client, x):
        zeros = torch.zeros(2, dtype=torch.float64)
        sizes = client.scan("xi", lambda n, xi: n + (xi["train"].weight > 0).sum(), zeros[0])
        return client.scan("xi", lambda x, xi: x - client.gradient(x, xi), x) * 0 + sizes

    fed = Federation(few_examples, engine, 0)
    of_all = fed.at(0).exchange(
        local, *few_examples.start(), np.arange(3), weights=np.ones(3), xi=Steps(30, 5, fixed=True)
    )
    assert fed.ledger.columns()["grad_examples"] == float(of_all[0]) < 30 * (3 + 5 + 5)


@pytest.mark.parametrize("engine", ENGINES)
def test_examples_of_samples_that_a_client_makes(few_examples, engine):
    """They count as the sample that it was given last. Each lives for one step, and so do those of the other draws."""

    def own(sample):
        return {"train": sample["train"]._replace(x=sample["train"].x * 2, weight=sample["train"].weight * 1)}

    def local(client, x):
        def step(x, few):
            x = x - 0.1 * client.gradient(x, own(few))
            return x - 0.1 * client.gradient(x, own(client.sample("whole")))

        return client.scan("few", step, x)

    fed = Federation(few_examples, engine, 0)
    fed.at(0).exchange(local, *few_examples.start(), np.arange(3), few=Steps(100, 4), whole=Steps())
    assert fed.ledger.columns()["grad_calls"] == 2 * 3 * 100
    assert fed.ledger.columns()["grad_examples"] == 100 * (3 + 4 + 4) + 100 * (3 + 12 + 20)


@pytest.mark.parametrize("engine", ENGINES)
def test_examples_of_a_sample_that_a_client_keeps(few_examples, engine):
    """However many others it has been given since. A part counts as the sample that it is taken from."""

    def local(client, x):
        kept = list(client.steps("epoch"))  # of five, five and two where there are twelve
        x = client.scan("few", lambda x, xi: x - 0.1 * client.gradient(x, xi), x)
        for sample in kept[::-1]:
            x = x - 0.1 * client.gradient(x, sample)
        return x - client.grad(lambda x, batch: client.f(x, {"train": batch}), x, kept[-1]["train"])

    fed = Federation(few_examples, engine, 0)
    fed.at(0).exchange(local, *few_examples.start(), np.array([1]), epoch=Epochs(1, 5), few=Steps(40, 4))
    assert fed.ledger.columns()["grad_examples"] == 40 * 4 + 12 + 2


def test_copies_of_a_client_count_for_those_that_still_work():
    """What `hold` returns, in a scan of the client or of its own, and a scan in a scan."""
    e = small("fednest", "hyper_representation")
    x, y = e.problem.start()

    def of_client(client, y):
        held = client.hold(x_of(y))
        return client.scan("local", lambda y, xi: y - 0.01 * held.inner_gradient(x_of(y), y, xi), y)

    def of_copy(client, y):
        held = client.hold(x_of(y))
        y = held.scan("local", lambda y, xi: y - 0.01 * client.inner_gradient(x_of(y), y, xi), y)
        return y - 0.01 * client.inner_gradient(x_of(y), y, client.sample("one"))

    def nested(client, y):
        def outer(y, _):
            return client.scan("two", lambda y, xi: y - 0.01 * client.inner_gradient(x_of(y), y, xi), y)

        return client.scan("local", outer, y)

    def x_of(y):
        return y.new_zeros(size)

    size, steps = len(x), np.arange(e.problem.clients) % 4
    local, one, two = Steps(steps, 3), Steps(1, 3), Steps(2, 3)
    wanted = {of_client: sum(steps), of_copy: sum(steps) + len(steps), nested: 2 * sum(steps)}
    for client_fn, count in wanted.items():
        for engine in ENGINES:
            fed = Federation(e.problem, engine, 0)
            fed.at(0).exchange(client_fn, y, np.arange(len(steps)), local=local, one=one, two=two)
            assert (fed.ledger.calls.grad, fed.ledger.calls.grad_examples) == (count, 3 * count), client_fn


def test_mean_has_the_problems_weights(problem):
    """p_i, divided by their sum over the cohort."""
    fed, cohort = Federation(problem, OneByOne(), 0), np.array([5, 0, 3])
    x, p = torch.zeros(1, dtype=torch.float64), problem.sizes()[cohort] / problem.sizes().sum()
    mean = fed.at(0).exchange(lambda client, x: x + client.index, x, cohort)
    assert float(mean) == pytest.approx(p @ cohort / p.sum(), rel=1e-12)


def test_a_round_is_a_value(problem):
    """The same exchanges, made again, draw the same; another round or another exchange does not."""
    fed = Federation(problem, OneByOne(), 0, Participation(cohort=2))

    def first_labels(r):
        of_round, x = fed.at(r), torch.zeros(5, dtype=torch.float64)
        answers = [
            of_round.exchange(lambda client, x: x + client.sample("xi")["train"].y, x, np.array([2]), xi=Steps(1, 5))
            for _ in range(2)
        ]
        return torch.cat(answers).tolist()

    assert first_labels(3) == first_labels(3) != first_labels(4)
    assert first_labels(3)[:5] != first_labels(3)[5:]


def test_another_name_than_those_of_the_exchange(problem):
    """Is answered with those that there are."""
    fed, x = Federation(problem, OneByOne(), 0).at(0), torch.zeros(1, dtype=torch.float64)
    for asks in (lambda client, x: x * client.own_steps("lokal"), lambda client, x: client.scan("lokal", torch.add, x)):
        with pytest.raises(UserError, match=r"'lokal'.*exchange.*local, outer"):
            fed.exchange(asks, x, np.arange(2), local=Steps(1, 2), outer=Full())
    with pytest.raises(UserError, match=r"'xi'.*exchange"):
        fed.exchange(lambda client, x: client.sample("xi"), x, np.arange(2))


# The fence

X = torch.ones(3)


@dataclass(frozen=True)
class Holder:
    held: object

    def method(self, client, message):
        return message + len(str(self.held))


def offenders():
    """Client functions that carry what they were not sent, each with the variable that has it."""
    x, rows, state = torch.ones(3), np.arange(6), {"deep": [(torch.ones(2),)]}
    rng, generator = np.random.default_rng(0), torch.Generator()
    helper = lambda: x  # noqa: E731
    yield "x", lambda client, message: message + x
    yield "rows", lambda client, message: message + rows[client.index]
    yield "state", lambda client, message: message + state["deep"][0][0]
    yield "rng", lambda client, message: message + rng.random()
    yield "generator", lambda client, message: message + torch.rand(3, generator=generator)
    yield "helper", lambda client, message: message + helper()
    yield "more", lambda client, message, more=x: message + more
    yield "again", lambda client, message, *, again=(x,): message + again[0]
    yield "X", lambda client, message: message + X
    yield "uses_global", lambda client, message: uses_global(message)
    yield "self", Holder(x).method
    yield "partial", partial(lambda x, client, message: message + x, x)
    yield "add", (lambda add: lambda client, message: add(message))(x.add)
    yield "held", marked
    yield "AtClass", lambda client, message: message + AtClass.held
    yield "weights", (lambda weights: lambda client, message: message + weights[0])(array("d", [1.0]))
    iterator = iter([x])
    yield "iterator", lambda client, message: message + next(iterator)


def uses_global(message):
    return message + X


def marked(client, message):
    return message + marked.held


marked.held = X


class AtClass:
    held = X


@pytest.mark.parametrize(("variable", "client_fn"), [pytest.param(v, f, id=v) for v, f in offenders()])
def test_fence_refuses_what_was_not_sent(problem, variable, client_fn):
    """Before anything is billed, and with a message that names the variable."""
    fed = Federation(problem, OneByOne(), 0)
    with pytest.raises(UserError, match=rf"variable \w* ?\w* ?{variable}\b"):
        fed.at(0).exchange(client_fn, torch.ones(3), np.arange(6))
    assert fed.ledger.comm_rounds == 0


@pytest.mark.parametrize(
    "message", [Holder(X), {X}, X.numpy(), (X, [lambda: X])], ids=["object", "set", "array", "function"]
)
def test_fence_refuses_what_is_hidden_in_a_message(problem, message):
    """It would cost nothing."""
    fed = Federation(problem, OneByOne(), 0)
    with pytest.raises(UserError, match=r"message.*tensors"):
        fed.at(0).exchange(lambda client, message: torch.zeros(1), message, np.arange(2))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_message_is_not_written_over(problem, engine):
    """It is the server's, and all clients'."""
    with pytest.raises(UserError, match="writes over its message"):
        Federation(problem, engine, 0).at(0).exchange(
            lambda client, x: x.sub_(1) * client.index, torch.ones(3), np.arange(6)
        )


def test_fence_refuses_answers_that_go_another_way(problem):
    """A client's gradient in a list of the server's is no message."""
    box = []
    fed = Federation(problem, OneByOne(), 0)
    with pytest.raises(UserError, match="variable box"):
        fed.at(0).exchange(lambda client, x: box.append(x) or x[:1], *problem.start(), np.arange(2))


def test_what_a_scan_returns_is_not_written_over(problem):
    """By the steps of the next one."""

    def local(client, x):
        step = lambda x, xi: client.gradient_step_(x, xi, 0.1)  # noqa: E731
        a = client.scan("local", step, x)
        kept = a.clone()
        client.scan("local", step, a)
        return (a - kept).abs().max()

    for engine in ENGINES:
        fed = Federation(problem, engine, 0)
        assert float(fed.at(0).exchange(local, *problem.start(), np.arange(6), local=Steps(3, 4))) == 0


def test_steps_in_place_begin_where_clients_differ(problem):
    """What the first step returns is the same for all clients here, and no memory for what each of them writes."""

    def local(client, x):
        for step in (x, client.index * x):
            x = client.moved_(x, step, 0.5)
        return x

    x = torch.ones(3)
    for engine in ENGINES:
        mean = Federation(problem, engine, 0).at(0).exchange(local, x, np.arange(3), weights=np.full(3, 1 / 3))
        torch.testing.assert_close(mean, torch.zeros(3))
        torch.testing.assert_close(x, torch.ones(3))


def test_clients_that_have_finished_keep_their_carry(problem):
    """Whatever comes of the steps that they go on taking beside the others."""

    def local(client, x):
        def step(carry, xi):
            y, n = carry
            beyond = n / (client.own_steps("local") - n)  # infinite, or NaN, in the first step too many
            return client.gradient_step_(y, xi, 0.1, beyond * torch.ones_like(y)), n + 1

        y, n = client.scan("local", step, (x, torch.tensor(0.0)))
        return y, n

    steps = np.array([3, 1, 2, 0, 3, 1])
    one, all_at_once = (
        Federation(problem, engine, 0).at(0).exchange(local, *problem.start(), np.arange(6), local=Steps(steps, 4))
        for engine in (OneByOne(), Vectorised())
    )
    assert torch.isfinite(one[0]).all()
    torch.testing.assert_close(one, all_at_once)


def test_whole_numbers_have_a_mean_too(problem):
    """Also in a carry of clients with unequal steps."""
    count = lambda client, x: client.scan("local", lambda n, xi: n + 1, torch.tensor(0))  # noqa: E731
    for engine in ENGINES:
        fed, steps = Federation(problem, engine, 0), np.array([1, 2, 3, 5, 0, 1])
        mean = fed.at(0).exchange(count, torch.zeros(1), np.arange(6), weights=np.full(6, 1 / 6), local=Steps(steps, 4))
        assert float(mean) == pytest.approx(2)


def test_fence_refuses_the_problem_and_the_round(problem):
    fed = Federation(problem, OneByOne(), 0)
    of_round = fed.at(0)
    for client_fn in (lambda client, m: m + problem.clients, lambda client, m: m + of_round.r):
        with pytest.raises(UserError, match=r"variable (problem|of_round)"):
            of_round.exchange(client_fn, torch.ones(3), np.arange(6))


def test_fence_admits_hyperparameters_and_takes_microseconds(problem):
    eta, betas, names = 0.1, [0.1, 0.2], {"a": (1, "b")}
    settings = Holder((eta, betas))

    def inner(x):
        return eta * x + sum(betas)

    def client_fn(client, message):
        return torch.sin(inner(message)) * settings.held[0] + len(names) + np.pi

    fence.check(client_fn)
    assert timeit(lambda: fence.check(client_fn), number=1000) < 0.2  # 200 microseconds each, on a busy machine too


def test_nobody_overrides_the_one_way_between_server_and_clients():
    with pytest.raises(UserError, match=r"Mine: fedopt\.Round cannot be subclassed"):
        type("Mine", (Round,), {})


@pytest.mark.parametrize(
    ("convolutional", "parameters", "wins"), [(True, 10**6, True), (True, 10**7, False), (False, 10**7, True)]
)
def test_engine_on_a_gpu(convolutional, parameters, wins):
    """Stacks of large convolutional networks lose on a GPU; any device that is not the CPU stands for one."""
    start = (torch.zeros(parameters, device="meta"),)
    problem = SimpleNamespace(one_by_one="", convolutional=convolutional, start=lambda: start)
    assert isinstance(choose("auto", None, problem, 10), Vectorised if wins else OneByOne)


@pytest.mark.parametrize("engine", ENGINES)
def test_draws_without_examples_or_steps_and_other_carries_are_refused(engine):
    e = small("fedavg", "quadratic_minimisation")
    e.federation.engine = engine
    fed, x = e.federation.at(0), e.problem.start()[0]

    def first(client, x):
        return client.gradient(x, client.sample("xi"))

    def other(client, x):
        return client.scan("xi", lambda carry, xi: (carry[0], (carry[1],)), (x, x))[0]

    for draws_of in (Steps, Epochs):
        with pytest.raises(UserError, match=r"B=0: must be at least 1, or null for all of a client's examples"):
            draws_of(1, B=0)
    with pytest.raises(UserError, match=r"client.sample\('xi'\): the exchange asks for 0 steps"):
        fed.exchange(first, x, fed.everyone(), xi=Steps(0))
    with pytest.raises(UserError, match="the next carry, of the same structure"):
        fed.exchange(other, x, fed.everyone(), xi=Steps(2))
