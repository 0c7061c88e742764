"""The runs that a comparison reads: broken ones, copies, and runs on other data."""

import json

import pytest
import yaml
from support.records import FEDAVG, named, record


def test_an_unfinished_row_is_not_read(tmp_path, command):
    folder = record(tmp_path / "runs" / "0", (10, 50, 97), status="running")
    whole = (folder / "metrics.csv").read_text()
    (folder / "metrics.csv").write_text(whole[:-2])  # 9 in place of 97
    code, csv, out, err = command(tmp_path / "runs")
    assert (code, csv["final_test_accuracy_mean"][0]) == (0, 50)
    assert "not finished: FedMSA (1 of 1 interrupted): the table has their latest values" in err
    assert "1 interrupted" in out
    (folder / "summary.json").unlink()
    assert "1 unknown" in command(tmp_path / "runs")[2]


def test_broken_runs_are_skipped(tmp_path, command):
    runs = tmp_path / "runs"
    record(runs / "good", (10, 50))
    record(runs / "no_rows", ())
    (record(runs / "no_table", (1,)) / "metrics.csv").unlink()
    (record(runs / "no_config", (1,)) / "config.yaml").unlink()
    (record(runs / "empty", (1,)) / "metrics.csv").write_bytes(b"")
    (record(runs / "bytes", (1,)) / "metrics.csv").write_bytes(b"\xff\xfe\n\x00\n")
    (record(runs / "ragged", (1,)) / "metrics.csv").write_text("round,comm_rounds,test_accuracy\n0,0,1\n1,2,3,4\n")
    (record(runs / "no_x", (1,)) / "metrics.csv").write_text("round,test_accuracy\n0,1\n")
    (record(runs / "short", (1,)) / "metrics.csv").write_text("round,test_accuracy,comm_rounds\n0,1\n")
    (record(runs / "no_yaml", (1,)) / "config.yaml").write_text("seed: [1\n")
    (record(runs / "no_dict", (1,)) / "config.yaml").write_text("- 1\n")
    record(runs / "other", (1, 2), 1, metric="distance")
    code, csv, _, err = command(runs, runs / "good")
    assert (code, list(csv["runs"])) == (0, [1])
    one, other = err.splitlines()
    assert one.startswith("note: 10 folders skipped: ")
    for folders, why in [
        (("empty", "no_rows"), "metrics.csv has no rows, since the run has not been evaluated yet"),
        (("no_table",), "no metrics.csv"),
        (("no_config",), "no config.yaml"),
        (("no_x",), "metrics.csv lacks the column comm_rounds; choose another cost axis (--x)"),
        (("short",), "metrics.csv has rows without a number for comm_rounds; delete or rerun the run"),
    ]:
        assert f"{', '.join(str(runs / folder) for folder in folders)} ({why})" in one
    assert other.endswith("1 folder skipped: " + f"{runs / 'other'} (no metric test_accuracy)")


def test_a_hundred_skipped_folders_take_one_line(tmp_path, command):
    record(tmp_path / "good", (1, 2))
    for j in range(100):
        record(tmp_path / "bad" / f"{j:02}", ())
    err = command(tmp_path)[3]
    assert err.count("\n") == 1
    assert "100 folders skipped: " in err
    assert "(metrics.csv" in err


def test_nothing_to_compare(tmp_path, command):
    (record(tmp_path / "runs" / "0", (1,)) / "metrics.csv").unlink()
    (tmp_path / "empty").mkdir()
    code, csv, _, err = command(tmp_path / "runs", tmp_path / "empty")
    assert (code, csv) == (2, None)
    skipped, last = err.splitlines()
    assert "2 folders skipped" in skipped
    assert f"{tmp_path / 'runs' / '0'} (no metrics.csv)" in skipped
    assert f"{tmp_path / 'empty'} (no run in it)" in skipped
    assert last.startswith("fedopt: no run to compare in ")


def test_a_config_and_seed_count_once(tmp_path, command):
    for copy in range(3):
        record(tmp_path / "runs" / str(copy), (1, 80), seed=0, hardware={"threads": copy})
    record(tmp_path / "runs" / "begun", (1,), seed=0, status="interrupted")
    record(tmp_path / "runs" / "other", (1, 90), seed=1)
    _, csv, _, err = command(tmp_path / "runs")
    assert (csv["runs"][0], csv["seeds"][0], csv["final_test_accuracy_mean"][0]) == (2, 2, 85)
    assert csv["status"][0] == "2 finished"
    assert (err.count("\n"), "3 of 5 runs left out" in err) == (1, True)
    for folder in ("failed", "failed again"):
        record(tmp_path / "runs" / folder, (1, 80), seed=0, status="failed")
    assert "5 of 7 runs left out" in command(tmp_path / "runs")[3]


def test_runs_that_should_be_copies_and_are_not_all_count(tmp_path, command):
    for name, last in (("one", 80), ("copy", 80), ("other code", 81)):
        record(tmp_path / "runs" / name, (1, 70, last))
    record(tmp_path / "runs" / "begun", (1, 70), status="interrupted")
    record(tmp_path / "runs" / "failed", (1, 71), status="failed")
    _, csv, _, err = command(tmp_path / "runs")
    assert (csv["runs"][0], csv["seeds"][0]) == (2, 1)
    left_out, unlike = err.splitlines()
    assert "3 of 5 runs left out" in left_out
    assert "gave" in unlike
    assert "other code" in unlike


def test_when_one_looks_is_no_property_of_a_method(tmp_path, command):
    for seed, every in enumerate((1, 10)):
        record(tmp_path / "runs" / str(seed), (1, 80), seed, eval={"every": every})
    record(tmp_path / "runs" / "again", (1, 2, 80), 0, every=5, eval={"every": 5})
    _, csv, _, err = command(tmp_path / "runs")
    assert list(csv["runs"]) == [2]
    assert err.startswith("note: 1 of 3 runs left out")


@pytest.mark.parametrize("group", ["algo", "problem"])
def test_a_config_without_a_group(group, tmp_path, command):
    """Of a folder that somebody sent."""
    named(tmp_path / "runs" / "0", "fednest", 1, 2, tuned="fednest/mco")
    path = tmp_path / "runs" / "0" / "config.yaml"
    config = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({key: value for key, value in config.items() if key != group}))
    assert command(tmp_path / "runs")[0] == 0


def test_other_budgets_and_precisions_are_other_runs(tmp_path, command):
    for seed in (0, 1):
        for rounds in (5, 50):
            record(tmp_path / f"{seed}-{rounds}", (1, rounds), seed, budget={"rounds": rounds})
        record(
            tmp_path / f"{seed}-f64", (1, 7), seed, budget={"rounds": 5}, hardware={"dtype": "float64", "threads": seed}
        )
    _, csv, _, _ = command(tmp_path)
    assert sorted(csv["final_test_accuracy_mean"]) == [5, 7, 50]
    assert set(csv["seeds"]) == {2}
    assert {"budget.rounds", "hardware.dtype"} <= set(csv.columns)
    assert "hardware.threads" not in csv.columns


def noted(folder, data):
    """A run that notes the digest of its data."""
    card = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**card, "data": data}))


def test_one_config_on_other_data_is_another_group(tmp_path, command):
    """Labelled by the data, unless something else tells the groups apart; what an older run does not note is not compared."""
    for data in ("ab" * 16, "cd" * 16):
        for seed in (0, 1):
            noted(record(tmp_path / "runs" / f"{data}{seed}", (1, 80), seed), data)
    record(tmp_path / "old" / "run", (1, 80), 2)
    _, csv, _, err = command(tmp_path / "runs")
    assert list(csv["label"]) == ["data=abababab", "data=cdcdcdcd"]
    assert list(csv["runs"]) == [2, 2]
    assert "left out" not in err
    assert "differ" in command(tmp_path / "runs", "--group-by", "algo")[3]
    _, csv, _, err = command(tmp_path / "old", tmp_path / "runs", "--exclude", "cd*")
    assert list(csv["runs"]) == [3]
    assert "data" not in err
    noted(record(tmp_path / "two" / "a", (1, 80)), "ab" * 16)
    noted(record(tmp_path / "two" / "b", (1, 80), algo=FEDAVG), "cd" * 16)
    _, csv, _, err = command(tmp_path / "two")
    assert set(csv["label"]) == {"FedMSA", "FedAvg"}
    assert "the groups differ in data as well" in err


@pytest.mark.pictures
def test_runs_left_out(tmp_path, command, drawn):
    for seed, status in enumerate(["finished", "finished", "interrupted"]):
        record(tmp_path / "runs" / f"seed={seed}", (10, 90), seed, status=status)
    _, csv, _, err = command(tmp_path / "runs")
    assert "not finished: FedMSA (1 of 3 interrupted)" in err
    assert drawn[0].legends[0].get_texts()[0].get_text() == "FedMSA (1 of 3 interrupted)"
    _, csv, _, err = command(tmp_path / "runs", "--exclude", "*=2", "--exclude", "nothing")
    assert csv["runs"][0] == 2
    assert err.splitlines() == [
        "note: --exclude=*=2: 1 of 3 folders left out",
        "note: --exclude=nothing: 0 of 2 folders left out",
    ]
