"""TensorBoard event files, read back by TensorBoard's own reader."""

import sys

import pytest

from fedopt.config.build import build_target
from fedopt.errors import UserError
from fedopt.results.trackers import TensorBoard

NODE = {"_target_": "fedopt.results.trackers.TensorBoard"}


def scalars(folder):
    """(step, value) of all points that TensorBoard shows, by name."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = reader.EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def session(folder, first, *points):
    """A process that logs a distance at some steps."""
    tracker = TensorBoard().start(folder, first)
    for step, value in points:
        tracker.log({"distance": value}, step)
    tracker.close()


def test_scalars_are_on_disk_when_log_returns(tmp_path):
    pytest.importorskip("tensorboard")
    tracker = build_target(NODE, "logger").start(tmp_path, 0)
    tracker.log({"distance": 4.0, "comm_rounds": 0}, 0)
    tracker.log({"distance": 0.5, "comm_rounds": 20}, 10)
    shown = scalars(tmp_path)
    tracker.close()
    assert shown == {"distance": [(0, 4.0), (10, 0.5)], "comm_rounds": [(0, 0.0), (10, 20.0)]}


def test_points_after_the_checkpoint_are_dropped_on_resume(tmp_path):
    pytest.importorskip("tensorboard")
    session(tmp_path, 0, (0, 4.0), (2, 3.0), (4, 2.0), (6, 1.5))
    session(tmp_path, 3, (5, 1.0))  # the checkpoint was made after round 2
    assert scalars(tmp_path) == {"distance": [(0, 4.0), (2, 3.0), (5, 1.0)]}


def test_what_was_logged_before_the_first_checkpoint_is_dropped(tmp_path):
    pytest.importorskip("tensorboard")
    session(tmp_path, 0, (0, 4.0), (2, 3.0))
    session(tmp_path, 0, (1, 1.0))
    assert scalars(tmp_path) == {"distance": [(1, 1.0)]}


def test_without_the_package(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(UserError, match="pip install tensorboard"):
        build_target(NODE, "logger")


def test_unknown_key():
    pytest.importorskip("tensorboard")
    with pytest.raises(UserError, match=r"logger\.folder: there is no such key"):
        build_target({**NODE, "folder": "x"}, "logger")
