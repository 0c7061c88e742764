"""The picture of how examples are divided among clients."""

import numpy as np
import pytest

from fedopt.data.ragged import Ragged
from fedopt.drawing import figures, run


@pytest.mark.parametrize(
    ("names", "ticks"),
    [
        ([], None),
        (["north", "south"], ["north", "south"]),
        (["of a very long name", "a$b$"], ["of a very long na…", r"a\$b\$"]),
        ([f"h{i}" for i in range(60)], None),
    ],
)
def test_clients_have_names_or_whole_numbers(names, ticks, tmp_path, monkeypatch):
    kept = []
    monkeypatch.setattr(figures.Figure, "savefig", lambda figure, *_, **__: kept.append(figure))
    split = Ragged(np.split(np.arange(120), [3, *range(5, 5 + max(0, len(names) - 2))]), names)
    run.partition(tmp_path / "a.png", split, np.arange(120) % 3)
    monkeypatch.undo()
    axes = kept[0].axes[0]
    shown = [text.get_text() for text in axes.get_xticklabels()]
    assert shown == ticks or ticks is None
    assert not set(shown) & {*names} or ticks is not None
    assert all(tick == round(tick) for tick in axes.get_xticks())
    assert ("run.json" in axes.get_xlabel()) == (len(names) > 40)
    if len(split) <= run.BARS:
        assert [text.get_text() for text in axes.get_legend().get_texts()] == ["0", "1", "2"]


@pytest.mark.parametrize(("clients", "classes", "bars"), [(3, 2, True), (20, 20, True), (3, 21, False), (21, 2, False)])
def test_bars_are_as_high_as_the_counts(clients, classes, bars, tmp_path, monkeypatch):
    """Bars on each other, one colour a class, or the same counts as an image."""
    kept = []
    monkeypatch.setattr(figures, "save", lambda figure, *_, **__: kept.append(figure))
    labels = np.arange(3 * clients * classes + 1) % classes
    split = Ragged(np.array_split(np.arange(len(labels)), clients))
    run.partition(tmp_path / "a.png", split, labels)
    counts = np.array([np.bincount(labels[rows], minlength=classes) for rows in split])
    axes = kept[0].axes[0]
    if bars:
        drawn = [patch.get_data() for patch in axes.patches]
        np.testing.assert_array_equal([(of.values - of.baseline)[::2] for of in drawn], counts.T)
        np.testing.assert_array_equal([of.values[::2] for of in drawn], counts.cumsum(1).T)
        looks = {(patch.get_facecolor(), patch.get_hatch()) for patch in axes.patches}
        assert len(looks) == classes  # nominal: not along a scale
        assert len({look[0] for look in looks}) == min(classes, len(run.NOMINAL))
    else:
        np.testing.assert_array_equal(axes.images[0].get_array(), counts.T)
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("client", "class")
