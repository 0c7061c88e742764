"""Groups of a comparison: the keys that define them, and their labels."""

import json

import numpy as np
import pytest
from support.records import FEDAVG, FEDMSA, MCO, change_card, named, record

import fedopt
from fedopt.analysis import groups
from fedopt.analysis.runs import read as read_run
from fedopt.console import as_number, order


def test_groups_by_what_differs(tmp_path):
    def keys(*configs):
        runs = []
        for j, config in enumerate(configs):
            folder = record(tmp_path / f"{len(list(tmp_path.iterdir()))}", (1, 2), seed=j, **config)
            runs.append(read_run(folder, "round"))
        return groups.default_keys(runs)

    apart = [{"hardware": {"threads": j}, "logger": {"_target_": f"l{j}"}, "resume": bool(j)} for j in range(2)]
    assert keys(*apart) == ["algo"]
    assert keys({}, {"algo": FEDAVG}) == ["algo"]  # and not K and eta, which only one of them has
    assert keys({}, {"algo": {**FEDMSA, "K": 1}}) == ["algo.K"]
    assert keys({"algo": FEDAVG}, {}, {"algo": {**FEDMSA, "K": 1}}) == ["algo", "algo.K"]
    assert keys({}, {"problem": {**MCO, "d": 20, "_class_": "other"}}) == ["problem.d"]
    assert keys({"partitioner": {"clients": 2}}, {"partitioner": {"clients": 2.0}}) == ["algo"]
    assert keys({"participation": {"cohort": None}}, {"participation": {"cohort": 3}}) == ["participation.cohort"]
    clients = [{"partitioner": {"clients": n}} for n in (2, 3)]
    assert keys(*clients) == ["partitioner.clients"]


@pytest.mark.pictures
def test_groups_go_by_the_names_that_were_chosen(tmp_path, command, drawn):
    for algo, inner, value in (("fednest", "svrg", 90), ("lfednest", "sgd", 70)):
        for seed in range(3):
            named(
                tmp_path / "runs" / f"{algo}{seed}", algo, 1, value + seed, seed=seed, algo={**FEDMSA, "inner": inner}
            )
    for arguments in ([], ["--group-by", "algo"]):
        _, csv, _, err = command(tmp_path / "runs", *arguments)
        assert err == ""
        assert list(csv["algo"]) == list(csv["label"]) == ["fednest", "lfednest"]
        assert list(csv["final_test_accuracy_mean"]) == [91, 71]
    assert [text.get_text() for text in drawn[0].legends[0].get_texts()] == ["FedNest", "LFedNest"]
    assert "dataset" not in csv  # the config has none


def test_labels_have_no_empty_values(tmp_path, command):
    named(tmp_path / "runs" / "a", "fedmsa", 1, 2)
    named(tmp_path / "runs" / "b", "fedavg", 1, 3, algo=FEDAVG)
    _, csv, _, _ = command(tmp_path / "runs", "--group-by", "algo,algo.K")
    assert list(csv["label"]) == ["fedavg", "fedmsa, algo.K=5"]


def test_labels_have_few_digits_and_the_order_of_the_names(tmp_path, command):
    for alpha in (0.002706822739555228, 0.01, 0.08765318047105343):
        record(tmp_path / "runs" / str(alpha), (1, 80), algo={**FEDMSA, "alpha": alpha})
    _, csv, _, _ = command(tmp_path / "runs")
    assert list(csv["label"]) == ["algo.alpha=0.002707", "algo.alpha=0.01", "algo.alpha=0.08765"]
    names = ["algo.alpha=0.08765=large", "algo.alpha=0.002707=tuned"]
    _, csv, _, err = command(tmp_path / "runs", *(word for name in names for word in ("--names", name)))
    assert list(csv["label"]) == ["large", "tuned", "algo.alpha=0.01"]
    assert "no line has this name" not in err


@pytest.mark.pictures
def test_long_labels_keep_who_takes_part(tmp_path, command, drawn):
    """Other keys go; a limit that a budget lacks is in no label."""
    for algo, K, keys in (("fednest", 10, ["algo.anchor", "budget.comm_rounds"]), ("fedmsa", 1, ["budget.rounds"])):
        budget = {"comm_rounds": 200 if algo == "fednest" else None, "rounds": None if algo == "fednest" else 1000}
        config = {"algo": {**FEDMSA, "K": K, "anchor": algo, "radius": K / 7}, "budget": budget}
        named(tmp_path / algo, algo, 1, 2, tuned=f"{algo}/mco" * (K > 1), **config)
        change_card(tmp_path / algo, **{"departures": keys})
    for number in (0, 1):
        named(tmp_path / str(number), "fednest", 1, 2, algo={**FEDMSA, "K": 1, "anchor": "x" * 40, "radius": number})
    command(*(tmp_path / name for name in ("fednest", "fedmsa", "0", "1")))
    labels = [text.get_text() for text in drawn[0].legends[0].get_texts()]
    assert any("anchor=fednest" in label and "budget.comm_rounds=200" in label for label in labels)
    assert not any("null" in label for label in labels)


def test_a_cohort_of_one_method_alone_is_in_its_label(tmp_path, command):
    for algo, cohort in (("fednest", 10), ("lfednest", None)):
        named(tmp_path / algo, algo, 1, 2, participation={"cohort": cohort})
        card = json.loads((tmp_path / algo / "run.json").read_text())
        keys = ["participation.cohort"] if cohort else []
        (tmp_path / algo / "run.json").write_text(json.dumps(card | {"departures": keys}))
    _, csv, _, err = command(tmp_path / "fednest", tmp_path / "lfednest")
    assert list(csv["label"]) == ["fednest, participation.cohort=10", "lfednest, participation.cohort=null"]
    assert "the groups differ in participation.cohort as well" in err


@pytest.mark.pictures
def test_who_takes_part_is_in_labels_and_notes(tmp_path, command, drawn):
    """FedNest's tuned values for the saddle ask all 100 clients for the anchor, where LFedNest asks 10: of its four exchanges with
    10 clients each none has an anchor, and FedNest's eight have three.
    """
    for algo in ("fednest", "lfednest", "fedavg_s"):
        words = (
            f"algo={algo} problem=saddle participation.cohort=10 budget.comm_rounds=16 output_dir={tmp_path}/{algo}/0"
        )
        fedopt.run(words)
    _, csv, _, err = command(tmp_path / "fednest", tmp_path / "lfednest")
    assert list(csv["label"]) == ["fednest, algo.anchor=all", "lfednest, algo.anchor=cohort"]
    assert "note: the groups differ in algo.anchor as well" in err
    assert (
        "lfednest, algo.anchor=cohort asks 10 clients in a communication round, fednest, algo.anchor=all asks 43.8"
        in err
    )
    shown = ["FedNest, algo.anchor=all", "LFedNest, algo.anchor=cohort"]
    assert [text.get_text() for text in drawn[-1].legends[0].get_texts()] == shown
    assert (
        "differ in algo.anchor as well" in command(tmp_path / "fednest", tmp_path / "lfednest", "--group-by", "algo")[3]
    )
    _, csv, _, err = command(tmp_path / "fednest", tmp_path / "fedavg_s")
    assert list(csv["label"]) == ["fedavg_s", "fednest, algo.T=3, algo.anchor=all"]
    assert "differ in algo.T, algo.anchor as well" in err


def test_a_label_names_a_key_only_where_its_method_differs_in_it(tmp_path, command):
    for K in (1, 5):
        named(tmp_path / "runs" / f"a{K}", "fedmsa", 1, 90 + K, algo={**FEDMSA, "K": K})
    named(tmp_path / "runs" / "b", "codasca", 1, 80, algo={**FEDMSA, "_target_": "a.Codasca"})
    assert sorted(command(tmp_path / "runs")[1]["label"]) == ["codasca", "fedmsa, algo.K=1", "fedmsa, algo.K=5"]


@pytest.mark.parametrize("odd", [".", "1.2.3", "1..2", "-.", "--", "1e", "٣", "1_0"])
def test_texts_that_are_nearly_numbers(odd, tmp_path, command):
    """Such as a path: they are sorted after the numbers."""
    for K in (odd, 10, 9):
        record(tmp_path / "runs" / f"of {K}", (1, 2), algo={**FEDMSA, "K": K})
    _, csv, _, _ = command(tmp_path / "runs", "--group-by", "algo.K")
    assert list(csv["algo.K"].astype(str).str.lstrip("'")) == ["9", "10", odd]


def test_order_of_texts():
    ordered = ["-inf", "-2", "-1e-3", ".5", "1", "1e5", "inf", "", "1.2.3", "-", ".", "a2", "a10", "nan"]
    assert sorted(sorted(ordered), key=order) == ordered
    assert [as_number(text) for text in ("1e-3", "+2.", "INF", "1.2.3", ".", "--", "٣", "")] == [
        0.001, 2, np.inf, None, None, None, None, None
    ]  # fmt: skip
