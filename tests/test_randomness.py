"""Streams of random numbers: each belongs to one place of the package, and no name of a user's shares one."""

import sys
from collections import defaultdict

import numpy as np
import pandas as pd
import pytest
import sklearn.linear_model  # noqa: F401  # before a test replaces np.random.Generator
from support.cases import few

from fedopt.data.datasets import Digits
from fedopt.data.partitioners import Iid
from fedopt.data.world import World
from fedopt.errors import UserError
from fedopt.randomness import Part, Purpose, keyed_rng, keyed_rngs
from fedopt.testing.harness import config, pairs, small, steps

PASSED_ON = {"keyed_rng", "torch_seed", "rng"}  # the functions through which a place asks for a stream
FURTHER = {  # what draws more than the usual options do
    "hierarchical": ["problem.test=0.2", "problem.pretrain=2", "problem.pretrain_step=0.1", "problem.server=0.1"],
    "classification_with_server": [
        "problem.test=0.2",
        "problem.pretrain=2",
        "problem.server=0.1",
        "problem.own_test=0.2",
    ],
    "hyper_representation": ["problem.dropout=0.5"],
}
FIRST = {pair[which]: pair for which in (0, 1) for pair in reversed(pairs())}  # of each algorithm and of each problem
BOTH = sorted(set(FIRST.values()))


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Digits as a CSV, whose test examples are drawn."""
    data, path = Digits().load(), tmp_path_factory.mktemp("table") / "digits.csv"
    frame = pd.DataFrame(data.x_train.reshape(len(data.x_train), -1)).add_prefix("pixel")
    frame.assign(digit=data.y_train).to_csv(path, index=False)
    return path


@pytest.mark.parametrize(
    ("algo", "problem"), few(BOTH, lambda pair: pair[1] in FURTHER or BOTH.index(pair) % 24 == 0, pytest.mark.slow)
)
def test_no_two_places_draw_from_one_stream(algo, problem, table, monkeypatch):
    places, generator = defaultdict(set), np.random.Generator

    def recorded(philox):
        frame = sys._getframe(1)
        while frame.f_code.co_name in PASSED_ON:
            frame = frame.f_back
        key, counter = philox.state["state"]["key"], philox.state["state"]["counter"]
        places[*key.tolist(), *counter.tolist()].add(f"{frame.f_code.co_filename}:{frame.f_lineno}")
        return generator(philox)

    monkeypatch.setattr(np.random, "Generator", recorded)
    labelled = config(f"problem={problem}")["problem"].get("model") is not None
    data = ["dataset=csv", f"dataset.path={table}", "dataset.label=digit"] if labelled else []
    e = small(algo, problem, *data, *FURTHER.get(problem, []), "participation.dropout=0.3")
    steps(e, 2)
    e.problem.evaluate(*e.algorithm.output(e.algorithm.init(e.problem)))
    assert len(places) > 5
    assert not {key: found for key, found in places.items() if len(found) > 1}


def first_numbers(rng):
    return tuple(rng.random(4))


def test_a_users_streams_are_apart_from_all_others():
    """A client's draws are apart from the server's, a problem's from an algorithm's, and names from numbers."""
    world = World(0, Iid(3))
    fed = small("fedavg", "quadratic_minimisation").federation.at(0)
    streams = [world.rng("a"), world.rng("b"), *(world.rng(part) for part in Part)]
    streams += [fed.rng("a"), fed.rng("b"), *(fed.rng("a", client=i) for i in range(3)), fed.rng("a", exchange=1)]
    streams += [keyed_rng(0, purpose) for purpose in Purpose if purpose != Purpose.PROBLEM]
    assert len({first_numbers(rng) for rng in streams}) == len(streams)
    assert first_numbers(world.rng("a")) == first_numbers(World(0, Iid(5)).rng("a"))
    assert first_numbers(world.rng("a")) != first_numbers(World(1, Iid(3)).rng("a"))


@pytest.mark.parametrize("given", [(), (1,), (0,), (None,)])
def test_a_stream_without_a_name_is_refused(given):
    fed = small("fedavg", "quadratic_minimisation").federation.at(0)
    for rng in (World(0, Iid(3)).rng, fed.rng):
        with pytest.raises(UserError, match="needs a name"):
            rng(*given)


def test_generators_of_many_clients_in_turn():
    """Are those of each client by itself, at whatever point the last one was left."""
    clients, draws = [0, 5, 2**40], lambda rng: [rng.random(3).tolist(), int(rng.integers(7, dtype=np.uint32))]
    alone = [draws(keyed_rng(3, Purpose.SPLIT, client=i)) for i in clients]
    assert list(map(draws, keyed_rngs(3, Purpose.SPLIT, clients))) == alone
