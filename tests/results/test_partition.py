"""The picture of a partition of the data: the counts, the names of clients, and more clients than it has pixels."""

import numpy as np
import pytest

from fedopt.data.ragged import Ragged
from fedopt.drawing import figures, run


@pytest.fixture
def drawn(monkeypatch):
    """The figures that are drawn."""
    kept = []
    monkeypatch.setattr(figures, "save", lambda figure, *_, **__: kept.append(figure))
    return kept


@pytest.mark.parametrize(
    ("names", "ticks"),
    [
        ([], None),
        (["north", "south"], ["north", "south"]),
        (["of a very long name", "a$b$"], ["of a very long na…", r"a\$b\$"]),
        ([f"h{i}" for i in range(60)], None),
    ],
)
def test_clients_have_names_or_whole_numbers(names, ticks, tmp_path, drawn):
    split = Ragged(np.split(np.arange(120), [3, *range(5, 5 + max(0, len(names) - 2))]), names)
    run.partition(tmp_path / "a.png", split, np.arange(120) % 3, ["a", "b", "c"])
    (axes, _) = drawn[0].axes
    shown = [text.get_text() for text in axes.get_xticklabels()]
    assert shown == ticks or ticks is None
    assert not set(shown) & {*names} or ticks is not None
    assert all(tick == round(tick) for tick in axes.get_xticks())
    assert [text.get_text() for text in axes.get_yticklabels()] == ["a", "b", "c"]


@pytest.mark.parametrize(("clients", "classes"), [(3, 2), (16, 16), (3, 17), (17, 2)])
def test_a_heat_map_has_the_counts(clients, classes, tmp_path, drawn):
    """Also as numbers, where there are few."""
    labels = np.arange(3 * clients * classes + 1) % classes
    split = Ragged(np.array_split(np.arange(len(labels)), clients))
    run.partition(tmp_path / "a.png", split, labels)
    counts = np.array([np.bincount(labels[rows], minlength=classes) for rows in split])
    axes = drawn[0].axes[0]
    np.testing.assert_array_equal(axes.images[0].get_array(), counts.T)
    numbers = {text.get_position(): int(text.get_text()) for text in axes.texts}
    assert numbers == (dict(np.ndenumerate(counts)) if max(clients, classes) <= run.NUMBERS else {})


def test_a_heat_map_shows_clients_at_equal_distances(monkeypatch, tmp_path, drawn):
    monkeypatch.setattr(run, "COLUMNS", 30)
    rows, labels = np.random.default_rng(0).permutation(180), np.arange(180) % 3
    run.partition(tmp_path / "a.png", Ragged(rows.reshape(60, 3)), labels)
    axes = drawn[0].axes[0]
    expected = [[(labels[client] == c).sum() for client in rows.reshape(60, 3)[::2]] for c in range(3)]
    np.testing.assert_array_equal(axes.images[0].get_array(), expected)
    assert axes.get_xlim() == (-0.5, 59.5)
    assert axes.get_xlabel() == "client, one of 2 shown"
