"""What trackers were given, read back by their own readers: TensorBoard, and Weights & Biases offline."""

import json
import struct
import sys
from dataclasses import dataclass
from typing import ClassVar

import pytest
from support.command import TINY

import fedopt as api
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
    with pytest.raises(UserError, match=r"^logger=tensorboard needs .* pip install 'fedopt\[tensorboard\]'$"):
        build_target(NODE, "logger")


def test_unknown_key():
    pytest.importorskip("tensorboard")
    with pytest.raises(UserError, match=r"logger\.folder: there is no such key"):
        build_target({**NODE, "folder": "x"}, "logger")


def test_without_wandb(monkeypatch, tmp_path):
    """One line before anything runs."""
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match=r"^logger=wandb needs .* pip install 'fedopt\[wandb\]'$"):
        api.run([*TINY, "logger=wandb"], output_dir=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run" / "metrics.csv").exists()


def in_two_parts(folder, *words):
    """A run that is stopped after two of its four rounds and goes on; its rows."""
    words = [*TINY, "eval.every=1", *words]
    stopped = api.run(words, lambda row: row["round"] == 2, output_dir=folder, quiet=True)
    assert stopped.status == "stopped"
    run = api.run([*words, "resume=true"], output_dir=folder, quiet=True)
    assert run.status == "finished"
    return run.metrics


def test_wandb(tmp_path, monkeypatch):
    """Offline, without being asked for; both parts of a run are one run, by rounds, with the config."""
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    rows = in_two_parts(tmp_path / "run", "logger=wandb", "logger.wandb.project=mine")
    files = sorted((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))
    records = [record for file in files for record in records_of(file)]
    begun = [record.run for record in records if record.HasField("run")]
    assert {run.run_id for run in begun} == {json.loads((tmp_path / "run" / "run.json").read_text())["id"]}
    assert {run.project for run in begun} == {"mine"}
    config = {item.key: json.loads(item.value_json) for item in begun[0].config.update}
    assert (config["budget.rounds"], config["algo._target_"]) == (4, "fedopt.algorithms.fedmsa.FedMSA")
    points = [
        {(item.key or item.nested_key[0]): json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.HasField("history")
    ]
    assert [point["round"] for point in points] == [0, 1, 2, 3, 4]
    assert [point["distance"] for point in points] == pytest.approx(list(rows["distance"]))


def records_of(file):
    """What a file of wandb's holds: a head of 7 bytes, then blocks of 32 kB with parts of records, as LevelDB has them."""
    from wandb.proto import wandb_internal_pb2

    data, at, part = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        length, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        part += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            record = wandb_internal_pb2.Record()
            record.ParseFromString(part)
            part = b""
            yield record


def test_nobody_is_asked_to_log_in(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setattr(wandb, "login", lambda prompt: prompt)
    with pytest.raises(UserError, match="you are not logged in"):
        api.run([*TINY, "logger=wandb", "logger.wandb.mode=online"], output_dir=tmp_path / "run", quiet=True)
    with pytest.raises(UserError, match=r"logger\.wandb\.mode=on"):
        api.run([*TINY, "logger=wandb", "logger.wandb.mode=on"], output_dir=tmp_path / "run", quiet=True)


def test_several_at_once(tmp_path, monkeypatch):
    """And a tracker of one's own, whose node has no name."""
    pytest.importorskip("tensorboard")
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    words = ["logger=[tensorboard,wandb]", f"+logger._target_={__name__}.Failing"]
    run = api.run([*TINY, "eval.every=2", *words, "+logger.at=[9]"], output_dir=tmp_path / "run", quiet=True)
    assert [step for step, _ in scalars(run.folder)["distance"]] == [0, 2, 4]
    assert list(run.folder.glob("wandb/offline-run-*/*.wandb"))
    assert Failing.logged[-1] == 4


@dataclass(frozen=True)
class Failing:
    """A tracker that fails at these rounds; -1: at its start."""

    at: list[int]
    logged: ClassVar[list[int]] = []

    def start(self, folder, first):
        if -1 in self.at:
            raise ConnectionError("no route")
        return self

    def log(self, row, step):
        self.logged.append(step)
        if step in self.at:
            raise ConnectionError("no route")

    def close(self):
        raise ConnectionError("no route")


@pytest.mark.parametrize("at", [-1, 2, 9])
def test_a_tracker_that_fails_ends_no_run(at, tmp_path, capsys):
    """It is said once, and the tracker is left alone from then on."""
    words = [f"logger._target_={__name__}.Failing", f"+logger.at=[{at}]", "eval.every=1"]
    Failing.logged.clear()
    run = api.run([*TINY, *words], output_dir=tmp_path / "run", quiet=True)
    assert (run.status, list(run.metrics["round"])) == ("finished", [0, 1, 2, 3, 4])
    assert Failing.logged == {-1: [], 2: [0, 1, 2], 9: [0, 1, 2, 3, 4]}[at]
    assert capsys.readouterr().err.count("Failing: no route; the run continues without this tracker") == 1
    assert "no route" in (run.folder / "log.txt").read_text()


def test_a_folder_that_is_a_link(tmp_path):
    """Nothing outside of the run's folder is written."""
    pytest.importorskip("wandb")
    (tmp_path / "run").mkdir()
    (tmp_path / "else").mkdir()
    (tmp_path / "run" / "wandb").symlink_to(tmp_path / "else")
    with pytest.raises(UserError, match="is a symbolic link"):
        api.run([*TINY, "logger=wandb"], output_dir=tmp_path / "run", quiet=True)
    assert not list((tmp_path / "else").iterdir())
