"""The numbers of docs/hospitals.md and docs/applied.md, by scikit-learn on the same table and from the exported files."""

import json
import re
import runpy
import shlex

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.metrics import (
    average_precision_score,
    balanced_accuracy_score,
    brier_score_loss,
    precision_score,
    recall_score,
    roc_auc_score,
)
from support.command import ROOT
from support.pages import blocks

import fedopt

pytestmark = pytest.mark.full
FEATURES = ["age", "pressure", "glucose", "sodium", "weight", "smoker", "earlier_stays", "dose"]
PAGE = (ROOT / "docs" / "hospitals.md").read_text()
SHOWN = re.findall(r"(?m)^\| ([A-Z]\w+) \| \d+ \|", PAGE)  # clinics in the page's table
OTHER = (ROOT / "docs" / "applied.md").read_text()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The folder in which the runs of the page are, with clinics.csv."""
    from _pytest.monkeypatch import MonkeyPatch

    where = tmp_path_factory.mktemp("clinics")
    with MonkeyPatch.context() as patch:
        patch.chdir(where)
        runpy.run_path(str(ROOT / "docs" / "clinics.py"))
        for block in blocks(ROOT / "docs" / "hospitals.md"):
            for command in block.commands if block.language == "bash" else ():
                words = shlex.split(command)
                if words[0] == "fedopt" and words[1] not in ("export", "compare") and "output_dir=splits" not in words:
                    do = fedopt.sweep if words[1] == "-m" else fedopt.run
                    do([word for word in words[1:] if word != "-m"], quiet=True)
    return where


@pytest.fixture(scope="module")
def clinics(runs):
    """The training and the test rows, with features that are standardised by the training rows, and the clinics in order."""
    table = pd.read_csv(runs / "clinics.csv")
    train = table[table.split == "train"]
    table[FEATURES] = (table[FEATURES] - train[FEATURES].mean()) / train[FEATURES].std(ddof=0)
    return table[table.split == "train"], table[table.split == "test"], [*dict.fromkeys(table.clinic)]


def final(runs, pattern):
    (folder,) = runs.glob(pattern)
    return json.loads((folder / "summary.json").read_text())["final"], folder


def predicted(path, table):
    """What a model's file predicts of raw rows, in five lines of pandas."""
    model = json.loads(path.read_text())
    z = (table[model["features"]] - model["means"]) / model["deviations"]
    return z.to_numpy() @ np.array(model["coefficients"]).T + np.array(model["intercept"])


def test_alone_is_the_ridge_of_each_clinic(runs, clinics):
    train, test, names = clinics
    values, folder = final(runs, "days/ditto*lam0.1*")
    rows, errors = pd.read_csv(folder / "clients.csv").set_index("client"), []
    for name in names:
        mine, its = train[train.clinic == name], test[test.clinic == name]
        ridge = RidgeCV(len(mine) * np.logspace(-3, 3, 25)).fit(mine[FEATURES], mine.days)
        errors.append((ridge.predict(its[FEATURES]) - its.days) ** 2)
        assert rows.alone_rmse[name] == pytest.approx(np.sqrt(errors[-1].mean()), rel=1e-6)
        line = f"| {name} | {len(mine)} | {len(its)} | {rows.common_rmse[name]:.2f} | {rows.alone_rmse[name]:.2f} "
        line += f"({rows.alone_rmse_low[name]:.2f} to {rows.alone_rmse_high[name]:.2f}) | {rows.own_rmse[name]:.2f} |"
        assert (line in PAGE) == (name in SHOWN)
        smallest = name in ("Jena", "Kiel", "Lahr")
        assert (rows.common_rmse[name] < rows.alone_rmse[name]) == smallest
        assert not smallest or rows.common_rmse[name] > rows.alone_rmse_low[name]
    assert values["alone_rmse"] == pytest.approx(np.sqrt(np.concatenate(errors).mean()), rel=1e-6)
    common = final(runs, "days/common")[0]["test_rmse"]
    for who, error in (
        ("all", common),
        ("a model per clinic", values["test_rmse"]),
        ("each clinic", values["alone_rmse"]),
    ):
        assert re.search(rf"{error:.2f} (days )?for [^,.]*{who}", PAGE)
        assert f"{error:.2f}" in OTHER
    whole = RidgeCV().fit(train[FEATURES], train.days).predict(test[FEATURES])
    assert common == pytest.approx(np.sqrt(np.mean((whole - test.days) ** 2)), rel=0.02)


def test_exported_models_give_the_errors_of_the_runs(runs):
    table = pd.read_csv(runs / "clinics.csv")
    test = table[table.split == "test"]
    values, folder = final(runs, "days/ditto*lam0.1*")
    squares = []
    for name, rows in test.groupby("clinic"):
        file = runs / f"{name}.json"
        fedopt.load(folder).model(client=name).save(file)
        squares.append((predicted(file, rows).ravel() - rows.days) ** 2)
    assert values["test_rmse"] == pytest.approx(np.sqrt(np.concatenate(squares).mean()), rel=1e-6)


def scores(positive, probability, decision):
    return {
        "balanced_accuracy": 100 * balanced_accuracy_score(positive, decision),
        "recall_yes": 100 * recall_score(positive, decision),
        "precision_yes": 100 * precision_score(positive, decision),
        "auc": roc_auc_score(positive, probability),
        "average_precision": average_precision_score(positive, probability),
        "brier": brier_score_loss(positive, probability),
        "calibration": probability.mean() / positive.mean(),
    }


@pytest.mark.parametrize(
    ("run", "words"),
    [("plain", "FedAvg"), ("weighted", "FedAvg, balanced class weights"), ("tuned", "loss tuning (FedMSA)")],
)
def test_the_rare_outcome(run, words, runs, clinics):
    """Each number by scikit-learn from the exported model."""
    table = pd.read_csv(runs / "clinics.csv")
    test = table[table.split == "test"]
    values, file = final(runs, f"readmitted/{run}")[0], runs / f"{run}.json"
    fedopt.load(runs / "readmitted" / run).model().save(file)
    logits, positive = predicted(file, test), (test.readmitted == "yes").to_numpy()
    probability = np.exp(logits[:, 1]) / np.exp(logits).sum(1)
    wanted = scores(positive, probability, probability > 0.5)
    for name, value in wanted.items():
        assert values[f"test_{name}"] == pytest.approx(value, rel=1e-4), name
    percent = " | ".join(f"{wanted[name]:.1f} %" for name in ("balanced_accuracy", "recall_yes", "precision_yes"))
    rest = f"{wanted['auc']:.3f} | {wanted['brier']:.3f} | {wanted['calibration']:.2f}"
    assert f"| {words} | {percent} | {rest} |" in PAGE
    if run == "tuned":
        model = json.loads(file.read_text())
        tuned = logits * model["scale"] + model["shift"]
        p = np.exp(tuned[:, 1]) / np.exp(tuned).sum(1)
        assert f"| | | | | {brier_score_loss(positive, p):.3f} | {p.mean() / positive.mean():.2f} |" in PAGE
    if run == "plain":
        train = clinics[0]
        pooled = LogisticRegression().fit(train[FEATURES], train.readmitted).predict_proba(clinics[1][FEATURES])[:, 1]
        assert wanted["auc"] == pytest.approx(roc_auc_score(positive, pooled), abs=0.01)
        assert wanted["brier"] == pytest.approx(brier_score_loss(positive, pooled), abs=0.001)


def test_the_tables_words(runs):
    """The counts in the text, the traffic, and the row of the clinics alone."""
    table = pd.read_csv(runs / "clinics.csv")
    test = table[table.split == "test"]
    share = (table.readmitted == "yes").mean()
    assert f"{len(table):,} patients of twelve clinics" in PAGE
    assert f"*yes* for {share:.1%}.".replace("%", " %") in PAGE
    assert f"{(test.readmitted == 'yes').sum()} of which are *yes*" in PAGE
    down, up = (
        pd.read_csv(runs / "readmitted" / "tuned" / "traffic.csv")[f"bytes_{way}"].max() for way in ("down", "up")
    )
    assert f"loss tuning takes {(down + up) / 1e5:.0f} kB in total" in OTHER  # in each of 100 rounds
    assert pd.read_csv(runs / "days" / "common" / "traffic.csv").bytes_up.max() == 7200
    v = final(runs, "readmitted/plain")[0]
    percent = " | ".join(f"{v[f'alone_{name}']:.1f} %" for name in ("balanced_accuracy", "recall_yes", "precision_yes"))
    assert (
        f"| each clinic alone | {percent} | {v['alone_auc']:.3f} | {v['alone_brier']:.3f} | {v['alone_calibration']:.2f} |"
        in PAGE
    )
