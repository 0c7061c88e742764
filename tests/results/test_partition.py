"""The picture of a division among more clients than it has pixels."""

import numpy as np

from fedopt.data.ragged import Ragged
from fedopt.drawing import figures, run


def test_a_heat_map_shows_clients_at_equal_distances(monkeypatch, tmp_path):
    drawn = []
    monkeypatch.setattr(figures, "save", lambda figure, *_, **__: drawn.append(figure))
    monkeypatch.setattr(run, "COLUMNS", 30)
    rows, labels = np.random.default_rng(0).permutation(180), np.arange(180) % 3
    run.partition(tmp_path / "a.png", Ragged(rows.reshape(60, 3)), labels)
    axes = drawn[0].axes[0]
    expected = [[(labels[client] == c).sum() for client in rows.reshape(60, 3)[::2]] for c in range(3)]
    np.testing.assert_array_equal(axes.images[0].get_array(), expected)
    assert axes.get_xlim() == (-0.5, 59.5)
    assert axes.get_xlabel() == "client, one of 2 shown"
