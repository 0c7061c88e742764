"""Notes on what makes a comparison unequal."""

import json

from support.records import FEDAVG, named, record


def test_who_ends_worse_than_they_began_is_said(tmp_path, command):
    for seed, values in enumerate(((10, 80, 5), (10, 80, 90), (10, 20, 9))):
        record(tmp_path / "runs" / str(seed), values, seed)
    assert command(tmp_path / "runs")[3] == (
        "note: FedMSA: 2 of 3 runs end with a worse test_accuracy than at round 0; use smaller step sizes\n"
    )


def test_runs_that_end_elsewhere(tmp_path, command):
    """The table's last values are then not those at the end of the line, which is said."""
    for seed, values in enumerate([(0, 10), (0, 10, 40)]):
        record(tmp_path / "runs" / str(seed), values, seed)
    of_one = "runs of FedMSA end between 20 communication rounds and 40 communication rounds"
    assert of_one in command(tmp_path / "runs")[-1]
    assert command(tmp_path / "runs", "--x", "seconds")[-1] == ""
    for seed, values in enumerate([(0, 10), (0, 10, 40, 50)]):
        record(tmp_path / "runs" / f"b{seed}", values, seed, algo=FEDAVG)
    of_two = "runs of FedAvg end between 20 communication rounds and 60 communication rounds"
    err = command(tmp_path / "runs")[-1]
    assert of_one in err
    assert of_two in err


def test_pooled_runs_are_named(tmp_path, command):
    for seed in (0, 1):
        for rounds in (5, 50):
            dtype = {"dtype": "float64"} if rounds == 5 else {"dtype": "float32"}
            record(tmp_path / "runs" / f"{seed}-{rounds}", (1, rounds), seed, budget={"rounds": rounds}, hardware=dtype)
    _, csv, _, err = command(tmp_path / "runs", "--group-by", "algo")
    assert csv["runs"][0] == 4
    assert err.count("\n") == 1
    assert "hardware.dtype, budget.rounds" in err
    again = "algo,hardware.dtype,budget.rounds"
    assert f"separate them with --group-by {again}" in err
    assert command(tmp_path / "runs", "--group-by", again)[3] == ""


def test_unequal_tuning_is_said(tmp_path, command):
    named(tmp_path / "runs" / "a", "fednest", 1, 2, tuned="fednest/mco")
    named(tmp_path / "runs" / "b", "fedmsa", 1, 3)
    err = command(tmp_path / "runs")[3]
    assert err.count("\n") == 1
    assert "mco: fednest ran with tuned values, fedmsa without" in err
    named(tmp_path / "same" / "a", "fednest", 1, 2)
    named(tmp_path / "same" / "b", "fedmsa", 1, 3)
    assert command(tmp_path / "same")[3] == ""
    named(tmp_path / "searched" / "a", "fednest", 1, 2, tuned="fednest/mco")
    named(tmp_path / "searched" / "b", "fedmsa", 1, 3, tuned="fedmsa/mco", defaults=True)
    assert command(tmp_path / "searched")[3] == ""


def test_unlike_weights_of_clients_are_said(tmp_path, command):
    """Groups are those that count clients alike; older runs, which do not say, are left out."""
    seen = {"fedavg": [0.4, 0.35, 0.25], "ditto": [0.4, 0.35, 0.25], "scaffold": None}
    for choice, weights in {**seen, "old": ()}.items():
        folder = tmp_path / "runs" / choice
        named(folder, choice, 1, 2)
        card = json.loads((folder / "run.json").read_text())
        card |= {} if weights == () else {"effective_weights": weights}
        (folder / "run.json").write_text(json.dumps(card))
    said = command(tmp_path / "runs")[3]
    assert said.startswith("note: these solve differently weighted problems on mco: ditto, fedavg; scaffold; ")
    assert "effective_weights in run.json" in said
    assert "participation.sampling=by_weight" in said
    assert command(tmp_path / "runs" / "fedavg", tmp_path / "runs" / "ditto", tmp_path / "runs" / "old")[3] == ""


def test_keys_that_differ_besides_the_data_set_are_named(tmp_path, command):
    for name, alpha in (("mnist", 0.1), ("fashion", 5)):
        config = {"dataset": {"_target_": f"x.{name}", "path": name}, "partitioner": {"alpha": alpha}}
        record(tmp_path / "runs" / name, (1, 80), **config)
    assert command(tmp_path / "runs", "--group-by", "dataset")[3] == (
        "note: the groups differ in partitioner.alpha as well\n"
    )
    assert command(tmp_path / "runs", "--group-by", "dataset,partitioner.alpha")[3] == ""
