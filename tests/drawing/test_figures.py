"""Figures that are written in several formats."""

from matplotlib.layout_engine import ConstrainedLayoutEngine

from fedopt.drawing import figures


def test_a_figure_is_laid_out_once_for_all_formats(monkeypatch, tmp_path):
    laid, execute = [], ConstrainedLayoutEngine.execute
    monkeypatch.setattr(ConstrainedLayoutEngine, "execute", lambda *given: laid.append(execute(*given)))
    paths = [tmp_path / f"figure.{form}" for form in figures.FORMATS]
    with figures.pictures(paths, 2, title="two") as axes:
        for axis in axes:
            axis.plot([0, 1], [0, 1])
    assert len(laid) == 1
    assert all(path.exists() for path in paths)
