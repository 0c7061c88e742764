"""docs/studies/pfedme_clients.py: the clients of pFedMe's experiments on MNIST."""

import runpy
import sys
from itertools import chain

import numpy as np
import pytest
from support.command import ROOT

from fedopt.data.datasets import SHIPPED, Npz

SCRIPT = runpy.run_path(str(ROOT / "docs" / "studies" / "pfedme_clients.py"))


@pytest.fixture(scope="module")
def labels():
    with np.load(SHIPPED / "mnist.npz") as mnist:
        return np.concatenate([mnist["y_train"], mnist["y_test"]])


def test_they_have_the_papers_sizes_and_share_images(labels):
    """The paper: from 1,165 to 3,834 training images, three quarters of a client's, of two labels."""
    clients = SCRIPT["clients"](labels)
    sizes = np.array([*map(len, clients)])
    assert (len(sizes), int(0.75 * sizes.min()), int(0.75 * sizes.max())) == (20, 1165, 3834)
    assert [set(labels[rows]) for rows in clients] == [{i % 10, (i + 1) % 10} for i in range(20)]
    assert all(len(set(rows)) == len(rows) for rows in clients)
    assert (sizes.sum(), len({*chain(*clients)})) == (69_969, 23_536)


@pytest.mark.full
def test_the_file(monkeypatch, capsys, tmp_path):
    """No image to test on is a client's."""
    monkeypatch.setattr(sys, "argv", ["pfedme_clients", str(tmp_path / "clients.npz")])
    SCRIPT["main"]()
    assert capsys.readouterr().out.endswith("69,969 rows of 20 clients, 23,536 different images\n")
    data = Npz(str(tmp_path / "clients.npz")).load()
    assert len(data.x_test) == len(np.unique(data.x_test, axis=0)) == 10_000
    assert not {row.tobytes() for row in data.x_test} & {row.tobytes() for row in data.x_train}
