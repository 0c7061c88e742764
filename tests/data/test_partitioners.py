"""Every division is disjoint and complete, and its sizes and class mixtures are those of its definition."""

import math
import random
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fedopt.config import Participation
from fedopt.config.build import build_target
from fedopt.data.arrays import split_at_random
from fedopt.data.labelled import LabelledData
from fedopt.data.partitioners import ByColumn, Centralized, Dirichlet, Iid, Proportions, QHeterogeneity, Shards
from fedopt.data.ragged import Ragged
from fedopt.data.world import World
from fedopt.errors import UserError
from fedopt.randomness import Purpose, keyed_rng
from fedopt.testing.harness import small

KINDS = ("iid", "shards", "dirichlet", "q_heterogeneity", "centralized")
seeds = st.integers(0, 2**32 - 1)


def divide(partitioner, labels, seed=0, least=1):
    return partitioner(len(labels), labels, np.random.default_rng(seed), least)


def assert_tiles(parts, count):
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(count))


@st.composite
def class_labels(draw, most=40):
    """Labels in random order, of classes that need not be 0, 1, 2, ..."""
    counts = draw(st.lists(st.integers(1, most), min_size=1, max_size=6))
    classes = np.cumsum(draw(st.lists(st.integers(1, 3), min_size=len(counts), max_size=len(counts)))) - 1
    return np.random.default_rng(draw(seeds)).permutation(np.repeat(classes, counts))


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data(), labels=class_labels(), seed=seeds)
def test_disjoint_complete_and_large_enough(kind, data, labels, seed):
    clients, least = data.draw(st.integers(1, 12), "clients"), data.draw(st.integers(1, 4), "least")
    needed = least
    if kind == "iid":
        partitioner = Iid(clients)
    elif kind == "shards":
        partitioner = Shards(clients, data.draw(st.integers(1, 4), "per_client"))
        # Its shards, which differ by one at most, must have this many examples together even if all are of the smaller kind.
        needed = partitioner.per_client * math.ceil(least / partitioner.per_client)
    elif kind == "dirichlet":
        alpha, min_size = data.draw(st.floats(1e-3, 1e3), "alpha"), data.draw(st.integers(1, 5), "min_size")
        partitioner, needed = Dirichlet(clients, alpha, min_size), max(least, min_size)
    elif kind == "q_heterogeneity":
        partitioner = QHeterogeneity(clients * len(np.unique(labels)), data.draw(st.floats(0, 1), "q"))
    else:
        partitioner = Centralized()

    if len(labels) < partitioner.clients * needed:
        with pytest.raises(UserError, match=rf"partitioner\.clients={partitioner.clients}: "):
            divide(partitioner, labels, seed, least)
        return
    parts = divide(partitioner, labels, seed, least)
    sizes = [len(part) for part in parts]
    assert len(parts) == partitioner.clients
    assert_tiles(parts, len(labels))
    assert min(sizes) >= needed
    if kind in ("iid", "q_heterogeneity"):
        assert max(sizes) - min(sizes) <= 1
    for a, b in zip(parts, divide(partitioner, labels, seed, least), strict=True):
        np.testing.assert_array_equal(a, b)


def example(kind):
    rest = {"iid": {}, "shards": {"per_client": 2}, "dirichlet": {"alpha": 0.5}, "q_heterogeneity": {"q": 0.5}}
    cls = {"iid": Iid, "shards": Shards, "dirichlet": Dirichlet, "q_heterogeneity": QHeterogeneity}[kind]
    return cls(clients=4, **rest[kind])


@pytest.mark.parametrize("kind", KINDS[:-1])
def test_another_seed_divides_otherwise(kind):
    labels = np.arange(200) % 4
    first, second = (divide(example(kind), labels, seed) for seed in (0, 1))
    assert any(set(a) != set(b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("kind", KINDS[1:-1])
def test_division_by_class_needs_labels(kind):
    with pytest.raises(UserError, match=f"partitioner={kind}: these data have no classes"):
        example(kind)(100, None, np.random.default_rng(0))


@pytest.mark.parametrize("partitioner", [Iid(4), Centralized(), Proportions(4, [3, 1])])
def test_others_need_no_labels(partitioner):
    assert_tiles(partitioner(101, None, np.random.default_rng(0)), 101)


@pytest.mark.parametrize(
    ("cls", "fields", "key"),
    [
        (Iid, {"clients": 0}, "clients=0"),
        (Centralized, {"clients": 2}, "clients=2"),
        (Shards, {"clients": 2, "per_client": 0}, "per_client=0"),
        (Dirichlet, {"clients": 2, "alpha": 0.0}, "alpha=0"),
        (Dirichlet, {"clients": 2, "alpha": 1.0, "min_size": 0}, "min_size=0"),
        (QHeterogeneity, {"clients": 2, "q": -0.1}, "q=-0.1"),
        (QHeterogeneity, {"clients": 2, "q": 1.1}, "q=1.1"),
    ],
)
def test_ranges(cls, fields, key):
    with pytest.raises(UserError, match=rf"^partitioner\.{key}"):
        build_target({"_target_": f"{cls.__module__}.{cls.__name__}", **fields}, "partitioner")


# iid


def test_proportions_are_random_parts_of_their_sizes():
    parts = divide(Proportions(10, [250, 1]), np.zeros(5180, dtype=int))
    assert [len(part) for part in parts] == [5000, *[20] * 9]
    assert sorted(np.concatenate(parts)) == list(range(5180))
    assert (np.diff(parts[0]) < 0).any()
    assert [len(part) for part in divide(Proportions(2, [1, 2, 9]), np.zeros(12, dtype=int))] == [4, 8]


def test_iid_ignores_the_classes():
    labels = np.repeat([0, 1], [3000, 1000])
    parts = divide(Iid(10), labels)
    std = math.sqrt(400 * 0.75 * 0.25 * (3600 / 3999))  # hypergeometric
    assert max(abs(np.sum(labels[part] == 0) - 300) for part in parts) < 5 * std


# shards


@given(labels=class_labels(), clients=st.integers(1, 8), per_client=st.integers(1, 4), seed=seeds)
def test_shards_hold_few_classes(labels, clients, per_client, seed):
    assume(len(labels) >= clients * per_client)
    distinct = [len(np.unique(labels[part])) for part in divide(Shards(clients, per_client), labels, seed)]
    _, counts = np.unique(labels, return_counts=True)
    # Each boundary between two classes lies in one shard at most, which it gives one class more.
    assert sum(distinct) <= clients * per_client + len(counts) - 1
    if counts.min() >= math.ceil(len(labels) / (clients * per_client)):
        assert max(distinct) <= 2 * per_client


@pytest.mark.parametrize("per_client", [1, 2, 3])
def test_shards_of_whole_classes(per_client):
    labels = np.random.default_rng(1).permutation(np.repeat(np.arange(6), 12))
    for part in divide(Shards(12, per_client), labels):  # a shard is a part of one class
        _, counts = np.unique(labels[part], return_counts=True)
        assert len(counts) <= per_client
        assert all(counts % (6 // per_client) == 0)
        assert counts.sum() == 6


def test_shards_are_random_within_a_class():
    parts = divide(Shards(2, 1), np.zeros(2000, dtype=int))
    assert abs(parts[0].mean() - 999.5) < 5 * 2000 / math.sqrt(12 * 1000 * 2)


# dirichlet


def test_dirichlet_tends_to_iid():
    labels = np.random.default_rng(2).permutation(np.repeat(np.arange(4), [400, 800, 100, 700]))
    for part in divide(Dirichlet(5, alpha=1e12), labels):
        np.testing.assert_array_equal(np.bincount(labels[part]), [80, 160, 20, 140])


@pytest.mark.parametrize("alpha", [1e-4, 1e-200])  # the second underflows in every gamma draw
def test_small_dirichlet_concentrates(alpha):
    labels = np.arange(2000) % 20
    parts = divide(Dirichlet(4, alpha), labels)
    counts = np.stack([np.bincount(labels[part], minlength=20) for part in parts])
    assert np.all(counts.max(0) >= 97)  # but for the three that may fill up empty clients
    assert len(set(counts.argmax(0))) > 1


@pytest.mark.parametrize("seed", range(5))
def test_dirichlet_fills_up_without_making_others_poor(seed):
    parts = divide(Dirichlet(6, alpha=0.3, min_size=10), np.arange(60) % 4, seed)
    assert [len(part) for part in parts] == [10] * 6


@pytest.mark.parametrize("alpha", [0.3, 2.0])
def test_dirichlet_moments(alpha):
    M, C, n = 4, 600, 200
    labels = np.repeat(np.arange(C), n)
    shares = np.stack([np.bincount(labels[part], minlength=C) for part in divide(Dirichlet(M, alpha), labels)]) / n
    variance = (1 / M) * (1 - 1 / M) / (M * alpha + 1)
    np.testing.assert_allclose(shares.mean(1), 1 / M, atol=5 * math.sqrt(variance / C))
    np.testing.assert_allclose(np.mean((shares - 1 / M) ** 2), variance, rtol=0.15)


# q_heterogeneity


@given(labels=class_labels(), share=st.integers(1, 3), q=st.floats(0, 1), seed=seeds)
def test_q_heterogeneity_groups_have_their_own_class(labels, share, q, seed):
    classes, counts = np.unique(labels, return_counts=True)
    C = len(classes)
    assume(len(labels) >= C * share)
    parts = divide(QHeterogeneity(C * share, q), labels, seed)
    groups = [np.concatenate(parts[c * share : (c + 1) * share]) for c in range(C)]
    sizes = [len(group) for group in groups]
    assert max(sizes) - min(sizes) <= 1
    for c, count, group in zip(classes, counts, groups, strict=True):
        assert np.sum(labels[group] == c) >= min(round(q * len(group)), count)


def test_q_one_is_one_class_a_client():
    labels = np.random.default_rng(3).permutation(np.repeat(np.arange(5), 24))
    for i, part in enumerate(divide(QHeterogeneity(20, 1.0), labels)):
        np.testing.assert_array_equal(labels[part], np.full(6, i // 4))


@pytest.mark.parametrize("q", [0.0, 0.1, 0.6, 1.0])
def test_q_heterogeneity_fills_uniformly_from_what_remains(q):
    counts = np.array([6000, 3000, 1500, 900, 600])
    labels = np.repeat(np.arange(5), counts)  # in order: whatever is not drawn at random shows
    n = 2400
    own = np.minimum(round(q * n), counts)
    left, wanted = counts - own, n - own
    mean = np.diag(own) + np.outer(wanted, left) / left.sum()
    share_left, share_wanted = left / left.sum(), wanted / left.sum()
    std = np.sqrt(left.sum() * np.outer(share_wanted * (1 - share_wanted), share_left * (1 - share_left)))

    parts = divide(QHeterogeneity(10, q), labels)
    clients = np.stack([np.bincount(labels[part], minlength=5) for part in parts])
    assert np.all(np.abs(clients.reshape(5, 2, 5).sum(1) - mean) <= 5 * std + 1e-9)
    halves = clients.reshape(5, 2, 5)  # a group's two clients are random halves of it
    assert np.all(np.abs(halves[:, 0] - halves[:, 1]) <= 5 * np.sqrt(halves.sum(1)))


def test_q_heterogeneity_needs_a_multiple_of_the_classes():
    with pytest.raises(UserError, match=r"partitioner\.clients=7.*multiple.*number.*classes.*3"):
        divide(QHeterogeneity(7, 0.5), np.arange(90) % 3)


# World.split and Ragged


@given(data=st.data(), count=st.integers(2, 200), validation=st.floats(0.01, 0.99), seed=st.integers(0, 2**63 - 1))
def test_split(data, count, validation, seed):
    clients = data.draw(st.integers(1, count // 2), "clients")
    labels = np.arange(count) % 3
    partitioner = data.draw(st.sampled_from([Iid(clients), Dirichlet(clients, 0.3), Shards(clients, 1), Centralized()]))
    splits = World(seed, partitioner).split(count, labels, validation)
    assert set(splits) == {"train", "val"}
    train, val = splits["train"], splits["val"]
    assert_tiles([*train, *val], count)
    assert len(train) == len(val) == partitioner.clients
    for mine, held_out in zip(train, val, strict=True):
        n, target = len(mine) + len(held_out), validation * (len(mine) + len(held_out))
        assert min(len(mine), len(held_out)) >= 1
        assert abs(len(held_out) - np.clip(target, 1, n - 1)) <= 0.5
    again = World(seed, partitioner).split(count, labels, validation)
    assert all(np.array_equal(again[name].rows, splits[name].rows) for name in splits)


def test_halves_of_an_example_are_those_on_paper(tmp_path):
    """0.575 of 100 is 57.5, which rounds to 58; in floating point it is 57.49999999999999. 0.285 of 100 rounds to 28."""
    for share, wanted in ((0.575, 58), (0.285, 28)):
        assert len(World(0, Centralized()).split(100, None, share)["val"][0]) == wanted
        assert len(split_at_random(100, share, 0, tmp_path)[1]) == wanted
        assert len(divide(Proportions(2, [share, 1 - share]), np.zeros(100, dtype=int))[0]) == wanted
        data = LabelledData(np.ones((60, 1)), np.zeros(60, int), np.ones((40, 1)), np.zeros(40, int))
        assert len(data.resplit(share, np.random.default_rng(0)).y_test) == wanted
        who = Participation(stragglers=share)
        fed = small("fedavg", "quadratic_minimisation", "problem.examples=100", "partitioner.clients=100").federation
        assert sum(replace(fed, participation=who).at(0).work(3) == 0) == wanted


def test_a_split_of_many_clients(monkeypatch):
    """Holds out what each client's own stream says, and makes no generator for each of them."""
    parts = Iid(300)(1000, None, keyed_rng(5, Purpose.PARTITION), 2)
    orders = [keyed_rng(5, Purpose.SPLIT, client=i).permutation(part) for i, part in enumerate(parts)]
    made, generator = [], np.random.Generator
    monkeypatch.setattr(np.random, "Generator", lambda philox: made.append(1) or generator(philox))
    splits = World(5, Iid(300)).split(1000, None, 0.4)
    assert len(made) < 5
    for i, order in enumerate(orders):  # of 3 or 4
        np.testing.assert_array_equal(splits["val"][i], order[: round(0.4 * len(order))])
        np.testing.assert_array_equal(splits["train"][i], order[round(0.4 * len(order)) :])


def test_split_without_validation():
    splits = World(5, Iid(7)).split(100)
    assert set(splits) == {"train"}
    assert_tiles(list(splits["train"]), 100)
    assert not np.array_equal(splits["train"].rows, World(6, Iid(7)).split(100)["train"].rows)
    # A client keeps the same examples when some of them are for validation.
    both = World(5, Iid(7)).split(100, None, 0.3)
    for i, whole in enumerate(splits["train"]):
        assert set(whole) == {*both["train"][i], *both["val"][i]}


def test_validation_examples_are_random():
    val = World(0, Centralized()).split(3000, None, 1 / 3)["val"][0]  # that partitioner leaves the examples in order
    assert abs(val.mean() - 1499.5) < 5 * 3000 / math.sqrt(12 * 1000)


@pytest.mark.parametrize(("count", "validation"), [(9, None), (19, 0.2)])
def test_split_of_too_few_examples(count, validation):
    with pytest.raises(UserError, match=r"partitioner\.clients=10"):
        World(0, Iid(10)).split(count, None, validation)


def test_ragged():
    lists = [np.array([4, 1]), np.array([7]), np.array([0, 9, 3])]
    ragged = Ragged(lists)
    assert len(ragged) == 3
    assert ragged.sizes.tolist() == [2, 1, 3]
    for i, (mine, expected) in enumerate(zip(ragged, lists, strict=True)):
        np.testing.assert_array_equal(mine, expected)
        np.testing.assert_array_equal(ragged[i], expected)
    value = np.arange(10.0) ** 2
    weights = np.array([0.2, 0.5, 0.3])
    mean_of_means = sum(p_i * value[rows].mean() for p_i, rows in zip(weights, lists, strict=True))
    assert ragged.example_weights(weights) @ value[ragged.rows] == pytest.approx(mean_of_means, rel=1e-14)


# Divisions by one's own


@dataclass
class Given:
    """Whatever parts, and data of 12 training and 4 test examples."""

    parts: object = None
    clients: int | None = 3
    owners: np.ndarray | None = None
    owners_test: np.ndarray | None = None

    def __call__(self, count, labels, rng, least=1):
        return self.parts

    def load(self):
        x, y = np.arange(16.0)[:, None], np.arange(16) % 2
        return LabelledData(x[:12], y[:12], x[12:], y[12:], owners=self.owners, owners_test=self.owners_test)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([range(5), range(5, 8), range(8, 11)], "must return each index from 0 to 11 exactly once"),
        ([range(6), range(5, 8), range(8, 12)], "must return each index from 0 to 11"),
        ([range(6), [], range(6, 12)], "client 1 gets 0 of 12 examples.*1"),
        ([range(6), range(6, 12)], r"returns 2 clients.*partitioner\.clients=3"),
        ([range(6), range(6, 11), [12]], "must return each index from 0 to 11"),
        ([range(6), range(6, 11), [11.0]], "must return a list with an array"),
        ([[range(4)], [range(4, 8)], [range(8, 12)]], "must return a list"),
        (None, "must return a list"),
    ],
)
def test_what_is_no_division(parts, message):
    parts = parts and [np.array(rows) for rows in parts]
    with pytest.raises(UserError, match=rf"^partitioner._target_=test_partitioners.Given: {message}"):
        World(0, Given(parts)).split(12)


@pytest.mark.parametrize("draw", [np.random.permutation, lambda n: random.sample(range(n), n)])
def test_an_own_division_that_does_not_follow_the_seed(draw):
    class Drawn(Given):
        def __call__(self, count, labels, rng, least=1):
            return np.array_split(draw(count), self.clients)

    with pytest.raises(UserError, match=r"Drawn.__call__ uses the random numbers of .*random,"):
        World(0, Drawn()).split(12)


def test_an_own_division_of_any_number_of_clients():
    parts = [np.array([3, 1]), np.array([0, 2, 4])]
    for clients in (2, None):
        split = World(0, Given(parts, clients)).split(5)["train"]
        assert [rows.tolist() for rows in split] == [[3, 1], [0, 2, 4]]
    with pytest.raises(UserError, match=r"client 1 gets 1 of 5 examples.*2"):
        World(0, Given([np.arange(4), np.array([4])], None)).split(5, None, 0.5)


def test_by_column():
    """Clients in the order of their names, rows in theirs, unequal numbers of them."""
    names = np.array(["bo", "al", "bo", "cy", "bo", "al"])
    world = World(0, ByColumn())
    parts = world.split(6, None, None, names)["train"]
    assert [rows.tolist() for rows in parts] == [[1, 5], [0, 2, 4], [3]]
    both = World(0, ByColumn(2)).split(5, None, 0.5, names[[0, 1, 2, 4, 5]])
    assert [sorted({*t, *v}) for t, v in zip(both["train"], both["val"], strict=True)] == [[1, 4], [0, 2, 3]]
    with pytest.raises(UserError, match=r"cy has fewer than 2 examples"):
        world.split(6, None, 0.5, names)
    with pytest.raises(UserError, match=r"partitioner\.clients=4: the data have 3 clients"):
        World(0, ByColumn(4)).split(6, None, None, names)
    with pytest.raises(UserError, match="owners=NAMES"):
        world.split(6)
    with pytest.raises(UserError, match=r"partitioner=iid partitioner\.clients=N"):
        _ = world.clients


@pytest.mark.parametrize("numbers", [False, True])
@pytest.mark.parametrize("ends", ["", "\n"])
def test_by_a_file(numbers, ends, tmp_path):
    names = [f"{10 - i % 4}" if numbers else f"w{10 - i % 4}" for i in range(12)]
    path = tmp_path / "whose.txt"
    path.write_text("\n".join(names) + ends)
    world = World(0, ByColumn(file=str(path)), Given())
    data = world.load()
    parts = world.split(12, data.y_train, None, data.owners)["train"]
    order = [7, 8, 9, 10] if numbers else ["w10", "w7", "w8", "w9"]
    assert [{names[row] for row in rows} for rows in parts] == [{str(name)} for name in order]
    with pytest.raises(UserError, match=r"problem\.test=0\.5.*clients are named for x_train or x_test only"):
        data.resplit(0.5, np.random.default_rng(0))
    path.write_text("\n".join([*names, *"abab"]))
    whole = world.load().resplit(0.5, np.random.default_rng(0))
    owner = dict(enumerate([*names, *"abab"]))
    assert [str(name) for name in whole.owners] == [owner[int(x)] for x in whole.x_train[:, 0]]
    for text, message in (("a\nb", "it has 2 lines"), ("a\n" * 5 + "\n" + "a\n" * 6, "row 6: a name must have 1 to")):
        path.write_text(text)
        with pytest.raises(UserError, match=message):
            world.load()
    with pytest.raises(UserError, match=r"must have a client.s name on each line"):
        World(0, ByColumn(file=str(tmp_path)), Given()).load()


def test_by_a_column_that_is_not_there():
    with pytest.raises(UserError, match=r"partitioner=by_column: .*partitioner.file=FILE"):
        World(0, ByColumn(), Given()).load()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, r"self.world.split\(n, owners=NAMES\)"),
        ({"owners": np.array([1, 2, 2])}, r"owners has shape \[3\]; it must be \[4\], one per row"),
        ({"owners": np.arange(4), "labels": np.zeros((4, 1))}, r"labels has shape \[4, 1\]; "),
        ({"owners": np.arange(4), "validation": np.array([True])}, r"validation has shape \[1\]; "),
    ],
)
def test_a_division_of_ones_own_data_says_what_it_lacks(given, said):
    with pytest.raises(UserError, match=said):
        World(0, ByColumn()).split(4, **given)
