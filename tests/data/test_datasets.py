"""Files of images: layouts, normalisation, broken files, torchvision's own, and the long tail.

Tests of Fashion-MNIST and CIFAR-10 need the environment variable FEDOPT_DATA.
"""

import json
import os
import socket
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from urllib.error import URLError
from zipfile import ZipFile

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from support.command import fedopt
from support.samples import real

from fedopt.data.arrays import KEYS, read_npz
from fedopt.data.datasets import SHIPPED, Digits, Npz, Torchvision, data_folder
from fedopt.data.examples import Examples
from fedopt.data.folders import Folder
from fedopt.data.labelled import LabelledData
from fedopt.data.partitioners import ByColumn, Iid
from fedopt.data.tables import Csv
from fedopt.data.world import World
from fedopt.errors import UserError
from fedopt.problems.loss_tuning import long_tail
from fedopt.testing.harness import small


def random_arrays(shape, dtype, n=(12, 5)):
    rng = np.random.default_rng(0)
    arrays = {}
    for split, count in zip(("train", "test"), n, strict=True):
        pixels = rng.uniform(0, 256, (count, *shape))
        arrays[f"x_{split}"] = np.floor(pixels).astype(dtype) if dtype == np.uint8 else (pixels / 256).astype(dtype)
        arrays[f"y_{split}"] = rng.permutation(np.arange(count) % 4)
    return arrays


@pytest.fixture
def saved(tmp_path):
    """Writes <name>.npz, some of whose arrays may be replaced or (None) left out."""

    def save(name="images", **changes):
        arrays = {**random_arrays((4, 3), np.uint8), **changes}
        path = tmp_path / f"{name}.npz"
        np.savez_compressed(path, **{key: value for key, value in arrays.items() if value is not None})
        return path

    return save


@pytest.fixture(scope="module")
def torchvision():
    """Takes seconds to import."""
    return import_module("fedopt.networks.torchvision_import").torchvision


@pytest.fixture
def offline(monkeypatch, torchvision):
    """No download succeeds, and none is tried."""

    def fail(*args, **kwargs):
        raise URLError("Temporary failure in name resolution")

    for module in (torchvision.datasets.mnist, torchvision.datasets.cifar):
        monkeypatch.setattr(module, "download_and_extract_archive", fail)


# npz


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
@pytest.mark.parametrize(("shape", "channels"), [((4, 3), 1), ((4, 3, 2), 2)])
def test_layouts(saved, shape, channels, dtype):
    arrays = random_arrays(shape, dtype)
    data = Npz(str(saved(**arrays))).load()
    for split in ("train", "test"):
        x, expected = getattr(data, f"x_{split}"), arrays[f"x_{split}"]
        assert x.dtype == dtype
        assert x.shape[1] == channels
        assert x.flags.c_contiguous
        for channel in range(channels):
            plane = expected[..., channel] if channels > 1 else expected
            np.testing.assert_array_equal(x[:, channel].reshape(plane.shape), plane)
        y = getattr(data, f"y_{split}")
        np.testing.assert_array_equal(y, arrays[f"y_{split}"])
        assert y.dtype == np.int64
    assert data.classes == 4

    pixels = arrays["x_train"].astype(np.float64)
    axes = (0, 1, 2) if channels > 1 else None
    mean, std = data.normalisation()
    np.testing.assert_allclose(mean, np.atleast_1d(pixels.mean(axes)), rtol=1e-6)
    np.testing.assert_allclose(std, np.atleast_1d(pixels.std(axes)), rtol=1e-6)


def test_columns_of_a_table_have_their_own_scale(saved):
    """Each column of what models see has mean 0 and variance 1, and a constant one is 0, also where it is large."""
    rng = np.random.default_rng(0)
    year, age, tall, same = (
        rng.integers(1990, 2020, 12),
        rng.normal(40, 9, 12),
        rng.normal(1.7, 1e-3, 12),
        np.full(12, 0.1),
    )
    x = np.stack([1e6 * year, age, tall, same], 1)
    path = saved(x_train=x, x_test=x[:5] + np.array([0, 9, 0, 2]))
    data = Npz(str(path)).load()
    assert data.x_train.shape == (12, 4)
    mean, std = data.normalisation()
    np.testing.assert_allclose(mean, x.mean(0), rtol=1e-12)
    np.testing.assert_allclose(std, [*x[:, :3].std(0), 1], rtol=1e-12)
    seen = Examples(data.x_train, data.y_train, data, World(0, Iid(2))).x.numpy()
    np.testing.assert_allclose(seen, np.c_[(x[:, :3] - x[:, :3].mean(0)) / x[:, :3].std(0), 0 * same], atol=1e-5)
    tests = Examples(data.x_test, data.y_test, data, World(0, Iid(2))).x.numpy()
    np.testing.assert_allclose(tests[:, 1], (x[:5, 1] + 9 - x[:, 1].mean()) / x[:, 1].std(), atol=1e-5)
    np.testing.assert_allclose(tests[:, 3], 2, rtol=1e-6)
    _, largest = Npz(str(path), pixels="unit").load().normalisation()
    np.testing.assert_allclose(largest, np.abs(x).max(0))


def test_channels_first(saved):
    arrays = random_arrays((3, 8, 6), np.uint8)
    first = Npz(str(saved(**arrays)), channels="first").load()
    np.testing.assert_array_equal(first.x_train, arrays["x_train"])
    last = Npz(str(saved(**arrays)), channels="last").load()
    np.testing.assert_array_equal(last.x_train, arrays["x_train"].transpose(0, 3, 1, 2))


def test_token_ids_are_not_normalised(saved):
    rng = np.random.default_rng(0)
    x, x_test = rng.integers(0, 300, (12, 5)).astype(np.uint16), rng.integers(0, 300, (5, 5)).astype(np.uint16)
    data = Npz(str(saved(x_train=x, x_test=x_test)), tokens=True).load()
    assert data.tokens
    seen = Examples(data.x_test, data.y_test, data, World(0, Iid(2))).batch(torch.tensor([3, 1]), torch.ones(2)).x
    assert seen.tolist() == x_test[[3, 1]].tolist()
    for wrong in (x.astype(float), x[:, 0], -x.astype(int)):
        with pytest.raises(UserError, match=r"x_train is .* must be \[n, length\] whole numbers"):
            Npz(str(saved(x_train=wrong)), tokens=True).load()


def test_real_targets_are_for_problems_that_ask_for_them(saved):
    y = np.linspace(-1, 1.5, 12)
    path = saved(y_train=y, y_test=np.arange(5))
    world = World(0, Iid(2), Npz(str(path)))
    data = world.load(real=True)
    assert data.real
    assert data.y_train.tolist() == y.tolist()
    assert data.y_test.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    with pytest.raises(UserError, match=rf"{path}: y must have classes: whole numbers"):
        world.load()


# CSV files

ROWS = "age,city,income,label,hospital\n" + "".join(
    f"{20 + i},{i % 4},{i * i},{'ba'[i % 2]},h{i % 3}\n" for i in range(20)
)


WIDE = ",".join([*(f"c{j}" for j in range(70)), "label"]) + "\n" + ",".join(["1"] * 71) + "\n"


def csv(tmp_path, text=ROWS, **fields):
    (tmp_path / "own.csv").write_text(text)
    return Csv(str(tmp_path / "own.csv"), "label", **fields)


def test_csv(tmp_path):
    data = csv(tmp_path, client="hospital", test=0.25).load()
    assert (data.x_train.shape, data.x_test.shape, data.classes) == ((15, 3), (5, 3), 2)
    rows = np.concatenate([data.x_train, data.x_test])[:, 0].astype(int) - 20
    assert sorted(rows) == list(range(20))
    for x, y, owners, of in (
        (data.x_train, data.y_train, data.owners, rows[:15]),
        (data.x_test, data.y_test, data.owners_test, rows[15:]),
    ):
        np.testing.assert_array_equal(x, np.stack([20 + of, of % 4, of**2], 1))
        np.testing.assert_array_equal(y, (of + 1) % 2)  # a is 0, b is 1
        assert owners.tolist() == [f"h{i % 3}" for i in of]
    again, other = (csv(tmp_path, features=["age", "income"], test=0.25, split_seed=seed).load() for seed in (0, 1))
    np.testing.assert_array_equal(again.x_train[:, 0], data.x_train[:, 0])
    assert set(other.x_test[:, 0]) != set(data.x_test[:, 0])


def test_data_say_what_is_for_validation(saved, tmp_path):
    """In a column or an array; problems that validate get it, and others train without."""
    text = ROWS.replace("city", "part").replace(",0,", ",test,").replace(",1,", ",val,")
    table = csv(tmp_path, text.replace(",2,", ",train,").replace(",3,", ",train,"), split="part", client="hospital")
    ages, of = table.load().x_train[:, 0], table.load().validates
    assert ages[of].tolist() == [21, 25, 29, 33, 37]
    whole, left = (World(0, ByColumn(), table).load(validation) for validation in (True, False))
    np.testing.assert_array_equal(whole.validates, of)
    assert left.x_train[:, 0].tolist() == ages[~of].tolist() == [22, 23, 26, 27, 30, 31, 34, 35, 38, 39]
    assert left.owners.tolist() == whole.owners[~of].tolist()
    splits = World(0, ByColumn(), table).split(15, None, of, whole.owners)
    for i, name in enumerate(["h0", "h1", "h2"]):
        for split, wanted in (("val", of), ("train", ~of)):
            assert splits[split][i].tolist() == np.flatnonzero(wanted & (whole.owners == name)).tolist()
    with pytest.raises(UserError, match="client h0 has no examples in the split val"):
        World(0, ByColumn(), table).split(15, None, of & (whole.owners != "h0"), whole.owners)
    arrays = random_arrays((4, 3), np.uint8)
    marked = np.arange(len(arrays["y_train"])) % 2
    np.testing.assert_array_equal(Npz(str(saved(**arrays, val_train=marked))).load().validates, marked == 1)
    for wrong in (marked[1:], marked + 1, marked * 0, marked.astype(str)):
        with pytest.raises(UserError, match="val_train"):
            Npz(str(saved(**arrays, val_train=wrong))).load()


def test_csv_says_what_is_for_testing(tmp_path):
    text = ROWS.replace("city", "part").replace(",0,", ",test,").replace(",1,", ",train,")
    text = text.replace(",2,", ",train,").replace(",3,", ",train,")
    data = csv(tmp_path, text, split="part", client="hospital").load()
    assert data.x_test[:, 0].tolist() == [20, 24, 28, 32, 36]
    assert data.x_train.shape == (15, 2)


@pytest.mark.parametrize(
    ("text", "fields", "message"),
    [
        (
            ROWS,
            {"client": "clinic"},
            r"dataset\.client=clinic.*column.*age, city, income, label, hospital",
        ),
        (ROWS, {"client": "HOSPITAL"}, r"did you mean hospital\?"),
        (ROWS.replace(",", ":"), {"client": "hospital"}, "age:city"),
        (WIDE, {"client": "x"}, r"c0, .*, c7, \.\.\. \(71 in all\)$"),
        (ROWS, {"features": ["age", "size"]}, "dataset.features=size"),
        (ROWS, {}, r"hospital \(h0, h1, h2; first in row 1 below.*dataset\.client"),
        (
            ROWS.replace("24,0,", ",0,"),
            {"client": "hospital"},
            r"1 of 20 rows have empty cells: age \(1\); set dataset\.missing=mean",
        ),
        (
            ROWS.replace(",a,", ",,"),
            {"client": "hospital"},
            r"row 2 below.*header.*nan is empty.*\(10 such cells",
        ),
        (
            ROWS.replace(",a,", ",1.5,").replace(",b,", ",2,"),
            {"client": "hospital"},
            r"column label.*fractions.*1\.5",
        ),
        (ROWS, {"client": "hospital", "real": True}, r"row 1 .*column label: b .*leave out dataset\.real=true"),
        (ROWS, {"client": "hospital", "split": "city"}, r"dataset\.split=city.*0"),
        (ROWS, {"client": "hospital", "test": 0.01}, r"dataset\.test=0\.01 leaves no example"),
        ("label\na\nb\n", {}, "columns except label"),
        ("age,label\n", {}, "has no rows"),
        ("", {}, "CSV"),
        ("a,b\n1,2,3\n1\n1,2,3,4\n", {}, "row 1 below the header has 3 cells"),
        (
            "age,label\n1,0\ninf,1\n2,0\n3,1\ninf,0\n",
            {},
            r"age \(inf; first in row 2 below",
        ),
        (
            ROWS.replace("24,0,", "<5,0,"),
            {"client": "hospital"},
            r"not finite numbers: age \(<5; first in row 5 below",
        ),
        (ROWS, {"features": ["age", "label"]}, r"dataset\.label.*column"),
        (ROWS, {"client": "city", "features": ["age", "city"]}, r"dataset\.client.*column"),
        (ROWS.replace("city", "age"), {"client": "hospital"}, "a column name is empty or occurs twice"),
        (ROWS.replace("age", ""), {"client": "hospital"}, "a column name is empty or occurs twice"),
        (
            ROWS.replace(",h0", ",H0", 1),
            {"client": "hospital"},
            "column hospital.*'H0'.*'h0'.*use one spelling",
        ),
    ],
)
def test_wrong_csv(text, fields, message, tmp_path):
    with pytest.raises(UserError, match=message) as caught:
        csv(tmp_path, text, **fields).load()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("separator", "decimal"), [(",", "."), (";", ",")])
@pytest.mark.parametrize("days", [[0.5, 2.25, -1.0, 4.0], [2, 9, 40, 3]])
def test_targets_of_a_csv_are_the_numbers_of_its_cells(days, separator, decimal, tmp_path):
    """They are no classes, which would be numbered."""
    cells = [[str(v + 0.5), str(d)] for v, d in enumerate(days)]
    lines = [separator.join(["age", "label"]), *(separator.join(row).replace(".", decimal) for row in cells)]
    data = csv(tmp_path, "\n".join(lines), real=True, test=0.25).load()
    assert sorted([*data.y_train, *data.y_test]) == sorted(days)
    assert not data.class_names


def test_all_columns_with_texts_or_empty_cells_are_listed(tmp_path):
    text = ROWS.replace("age,", "sex,age,").replace("\n2", "\nf,2").replace("\n3", "\nm,3")
    with pytest.raises(
        UserError,
        match=r"sex \(f, m; first in row 1 .*, hospital \(h0, h1, h2; first in row 1 below",
    ):
        csv(tmp_path, text).load()
    text = ROWS.replace("23,3,", ",3,").replace(",16,", ",,").replace("\n29,1,", "\n29,,").replace("\n21,1,", "\n,,")
    with pytest.raises(UserError, match=r"4 of 20 rows have empty cells: age \(2\), city \(2\), income \(1\); set"):
        csv(tmp_path, text, client="hospital").load()


def test_columns_are_left_out(tmp_path):
    assert csv(tmp_path, drop=["hospital", "age"]).load().feature_names == ("city", "income")
    assert csv(tmp_path, features=["age", "city"], drop=["city"]).load().feature_names == ("age",)
    for drop, said in (
        (["hospitl"], r"dataset\.drop=hospitl.*did you mean hospital"),
        (["label"], r"dataset\.label=label.*more than once"),
        (["age", "city", "income", "hospital"], "no columns except label, age"),
    ):
        with pytest.raises(UserError, match=said):
            csv(tmp_path, drop=drop).load()


@pytest.fixture
def gaps(tmp_path):
    """A table of three clinics with empty cells, and its file. Clinic c has no values of b at all."""
    rng = np.random.default_rng(5)
    table = pd.DataFrame(rng.normal(3, 2, (60, 2)), columns=["a", "b"])
    table = table.assign(clinic=np.repeat(["a", "b", "c"], [30, 20, 10]), label=rng.integers(0, 2, 60))
    table["part"] = np.resize(["train", "test", "val", "train", "train"], 60)
    table.loc[rng.random(60) < 0.2, "a"] = np.nan
    table.loc[table.clinic.eq("c") | (rng.random(60) < 0.3), "b"] = np.nan
    table.to_csv(tmp_path / "own.csv", index=False)
    return table, Csv(str(tmp_path / "own.csv"), "label", client="clinic", split="part", missing="mean")


def test_missing_values_become_means_of_the_client_s_training_rows(gaps):
    table, source = gaps
    train = table[table.part == "train"]
    means = {clinic: train.loc[train.clinic == clinic, ["a", "b"]].mean().to_numpy(copy=True) for clinic in "abc"}
    means["c"][1] = np.average([means["a"][1], means["b"][1]], weights=[18, 12])  # rows of a and of b, of 6 in ten
    data = World(0, ByColumn(), source).load()
    wanted = np.array(
        [np.where(np.isnan(row), means[clinic], row) for clinic, *row in table[["clinic", "a", "b"]].values]
    )
    np.testing.assert_allclose(data.x_train, wanted[table.part == "train"])
    np.testing.assert_allclose(data.x_test, wanted[table.part == "test"])
    assert data.fills.keys() == {"", *"abc"}
    for clinic in "abc":
        np.testing.assert_allclose(data.fills[clinic], means[clinic])
    np.testing.assert_allclose(data.fills[""], wanted[table.part == "train"].mean(0))
    np.testing.assert_allclose((data.fills["c"] - data.normalisation()[0])[1], 0, atol=1e-12)
    used = table[["a", "b"]]
    assert (
        f"{used.isna().sum().sum()} empty cells (a, b) are filled with means of the training rows of each"
        in data.notes[-1]
    )
    whole = World(0, ByColumn(), source).load(validation=True)
    np.testing.assert_allclose(whole.x_train[whole.validates], wanted[table.part == "val"])


def test_missing_values_without_clients_become_means_of_all_training_rows(gaps):
    table, source = gaps
    mean = table.loc[table.part == "train", ["a", "b"]].mean()
    data = World(0, Iid(3), source).load()
    np.testing.assert_allclose(data.x_test, table.loc[table.part == "test", ["a", "b"]].fillna(mean))
    np.testing.assert_allclose(data.fills[""], mean)
    assert list(data.fills) == [""]
    with pytest.raises(UserError, match=r"problem\.test=0\.5.*dataset\.test=0\.5"):
        data.resplit(0.5, np.random.default_rng(0))


def test_a_column_without_a_value_to_train_on_is_refused(gaps, tmp_path):
    table, source = gaps
    table.loc[table.part == "train", "b"] = np.nan
    table.to_csv(tmp_path / "own.csv", index=False)
    with pytest.raises(UserError, match=r"columns without training values; set dataset\.drop=\[b\]"):
        World(0, ByColumn(), source).load()


def test_data_that_differ_in_a_filled_cell_have_other_digests(gaps, tmp_path):
    table, source = gaps
    digest = World(0, ByColumn(), source).load().digest()
    assert digest != World(0, Iid(3), source).load().digest()
    table.to_csv(tmp_path / "own.csv", index=False)
    assert digest == World(0, ByColumn(), source).load().digest()


def noted(tmp_path, table, **fields):
    return "; ".join(csv(tmp_path, table.to_csv(index=False), **fields).load().notes)


def test_notes_on_columns_that_may_be_no_features(tmp_path):
    """Numbers of patients, times in order, constants, and columns by which the label is known."""
    rng = np.random.default_rng(3)
    days, age = rng.gamma(2, 4, 400).round(1), rng.integers(20, 90, 400)
    table = pd.DataFrame({"age": age, "dose": rng.normal(0, 1, 400) + (days > 9), "unit": 7})
    table = table.assign(patient=rng.permutation(400) + 1000, came=np.sort(rng.random(400)))
    assert noted(tmp_path, table.assign(label=days > 9, days=days)) == (
        "some columns have the same value in all training rows; leave them out with dataset.drop=[unit]; "
        "some columns have a different value in each row, like identifiers; leave them out with dataset.drop=[patient,came]; "
        "some columns nearly determine label, like another outcome; leave them out with dataset.drop=[days]"
    )
    plain = table[["age", "dose"]]
    for label, outcome in (
        (days, days + rng.normal(0, 1, 400)),  # correlation .98
        (days, np.exp(days / 3)),  # in the same order
        (days, (days > 9).astype(int)),
        (np.digitize(days, [5, 9]), days),
        (np.where(days > 9, "long", "short"), np.where(rng.random(400) < 0.005, days.mean(), days)),
    ):
        other = {"real": not isinstance(label[0], str) and len(np.unique(label)) > 3}
        assert "drop=[outcome]" in noted(tmp_path, plain.assign(outcome=outcome, label=label), **other)
    for label, feature in (
        (days, days + rng.normal(0, 4, 400)),  # correlation .8
        (np.digitize(days, [5, 9]), (days < 5).astype(int)),  # tells one class of three
        (days > 9, days + rng.normal(0, 2, 400)),
        (np.arange(400) < 1, np.where(np.arange(400) < 1, 200, age)),  # one row
    ):
        other = {"real": label.dtype == float}
        assert "drop" not in noted(tmp_path, plain.assign(feature=feature, label=label), **other)


def test_stratified_rows_for_testing(tmp_path):
    """A fifth of each class of each client and of each class, up to rounding; another fifth with another split_seed."""
    sizes, rng = {"a": 403, "b": 151, "c": 44, "d": 40}, np.random.default_rng(0)
    table = pd.DataFrame({"row": range(638), "clinic": np.repeat([*sizes], [*sizes.values()])}).sample(
        frac=1, random_state=0
    )
    table["label"] = np.where(rng.random(638) < 0.1, "yes", "no")
    tests = []
    for split_seed in (0, 1):
        data = csv(tmp_path, table.to_csv(index=False), client="clinic", stratify=True, split_seed=split_seed).load()
        tests.append(set(data.x_test[:, 0]))
        held = table.assign(test=table.row.isin(tests[-1]))
        for keys in (["label", "clinic"], ["label"]):
            groups = held.groupby(keys).test
            assert (groups.sum() - 128 / 638 * groups.size()).abs().max() < 1
        assert (held.groupby("clinic").test.sum() - 128 / 638 * pd.Series(sizes)).abs().max() < 2
        assert len(data.y_test) == 128
    assert len(tests[0] & tests[1]) < 60
    real = csv(
        tmp_path,
        table.assign(label=rng.normal(size=638)).to_csv(index=False),
        client="clinic",
        stratify=True,
        real=True,
    )
    counts = pd.Series(real.load().owners_test).value_counts()
    assert (counts - 128 / 638 * pd.Series(sizes)).abs().max() < 1


def test_csv_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match="there is no such file"):
        Csv(str(tmp_path / "no.csv"), "label").load()


# Folders of images


def pictures(folder, names=("cat", "dog"), count=5, shape=(4, 6), colours=False):
    """Returns the images of each class."""
    rng, made = np.random.default_rng(0), {}
    for name in names:
        (folder / name).mkdir(parents=True)
        made[name] = rng.integers(0, 256, (count, *shape, *([3] if colours else [])), dtype=np.uint8)
        for i, image in enumerate(made[name]):
            Image.fromarray(image).save(folder / name / f"{i}.png")
    return made


@pytest.mark.parametrize("colours", [False, True])
def test_folder_of_images(colours, tmp_path):
    made = pictures(tmp_path, colours=colours)
    data = Folder(str(tmp_path), test=0.3).load()
    assert (len(data.y_train), len(data.y_test), data.classes) == (7, 3, 2)
    assert data.x_train.shape[1:] == (3 if colours else 1, 4, 6)
    expected = np.concatenate([made["cat"], made["dog"]]).reshape(10, 4, 6, -1).transpose(0, 3, 1, 2)
    found, labels = np.concatenate([data.x_train, data.x_test]), np.concatenate([data.y_train, data.y_test])
    place = [next(i for i, image in enumerate(expected) if (image == x).all()) for x in found]
    assert sorted(place) == list(range(10))
    assert [i // 5 for i in place] == labels.tolist()


def test_folders_for_training_and_testing(tmp_path):
    made, _ = pictures(tmp_path / "train"), pictures(tmp_path / "test", ("dog",), 2)
    data = Folder(str(tmp_path)).load()
    np.testing.assert_array_equal(data.x_train[:, 0], np.concatenate([made["cat"], made["dog"]]))
    assert data.y_test.tolist() == [1, 1]
    pictures(tmp_path / "test", ("fox",), 1)
    assert Folder(str(tmp_path)).load().notes == ("no training example is of the class fox",)


def test_images_of_several_sizes(tmp_path):
    pictures(tmp_path)
    pictures(tmp_path, ("fox",), 2, (8, 8), True)
    with pytest.raises(UserError, match=r"fox/0\.png.*8 x 8 pixels, not 4 x 6 like .*dataset.size"):
        Folder(str(tmp_path)).load()
    assert Folder(str(tmp_path), 5).load().x_train.shape[1:] == (3, 5, 5)
    assert Folder(str(tmp_path), [2, 3]).load().x_train.shape[1:] == (3, 2, 3)


def test_folders_without_images(tmp_path):
    with pytest.raises(UserError, match="is missing, or has no images"):
        Folder(str(tmp_path)).load()
    pictures(tmp_path)
    (tmp_path / "fox").mkdir()
    with pytest.raises(UserError, match="fox: is missing, or has no images"):
        Folder(str(tmp_path)).load()
    (tmp_path / "fox" / "x.png").write_text("hello")
    with pytest.raises(UserError, match="cannot be read as an image"):
        Folder(str(tmp_path)).load()
    with pytest.raises(UserError, match="nowhere: is missing, or has no images"):
        Folder(str(tmp_path / "nowhere")).load()


def test_classes_of_the_test_examples_count(saved):
    assert read_npz(saved(y_test=np.array([0, 1, 6, 2, 3], dtype=np.uint8))).classes == 7


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(500, 2, 3, 3), (500, 2)])
def test_what_is_constant_to_rounding_is_not_blown_up(shape, dtype):
    """A channel, or a column, whose values differ in their last digits alone; the other one varies."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape).astype(dtype)
    x[:, 0] = 0.1 * (1 + np.finfo(dtype).eps * rng.integers(-2, 3, x[:, 0].shape))
    y = np.zeros(len(x), dtype=np.int64)
    mean, std = LabelledData(x, y, x, y).normalisation()
    assert std[0] == 1
    assert std[1] == pytest.approx(1, rel=0.1)
    assert mean[0] == pytest.approx(0.1, rel=1e-5)
    x[:, 0] = 0.1 + 1e-4 * rng.standard_normal(x[:, 0].shape)
    assert LabelledData(x, y, x, y).normalisation()[1][0] == pytest.approx(1e-4, rel=0.1)


def test_constant_images_normalise_without_a_warning():
    x, y = np.full((7, 1, 3, 3), 201, dtype=np.uint8), np.zeros(7, dtype=np.int64)
    mean, std = LabelledData(x, y, x, y).normalisation()
    assert (mean.tolist(), std.tolist()) == ([201.0], [1.0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_test": None}, "lacks .* y_test;"),
        ({"x_train": None, "y_train": None}, "lacks .* x_train, y_train;"),
        ({"x_train": np.array([[1], [2, 3]], dtype=object)}, "Object arrays .*astype"),
        ({"y_train": np.zeros(11, dtype=int)}, r"y_train has shape \[11\]; it must be \[12\]"),
        (
            {"x_test": np.zeros((0, 4, 3), dtype=np.uint8), "y_test": np.zeros(0, dtype=int)},
            r"x_test.*\[0, 4, 3\]",
        ),
        ({"y_train": np.arange(12) - 1}, "y ranges from -1 to 10"),
        ({"y_test": np.array([0.5, 1, 2, 3, np.nan])}, r"y has values that are not finite"),
        ({"y_train": np.zeros((12, 2), dtype=int)}, r"y_train has shape \[12, 2\]; it must be \[12\]"),
        (
            {"x_train": np.zeros((12, 4, 3), dtype=np.int64)},
            r"x_train.*int64 \[12, 4, 3\].*uint8.*floating point",
        ),
        (
            {"x_test": np.pad(np.full((2, 4, 3), np.nan), ((3, 0), (0, 0), (0, 0)))},
            "x_test: 2 examples.*3",
        ),
        ({"x_train": np.zeros(12, dtype=np.uint8)}, "x_train is .* must be .*n, h, w"),
        ({"x_train": np.zeros((12, 4, 4), dtype=np.uint8)}, "make them the same"),
        ({"x_train": np.zeros((12, 4, 0), dtype=np.uint8)}, r"x_train.*\[12, 4, 0\]"),
        ({"y_test": np.full(5, 2**63, dtype=np.uint64)}, "y ranges from 0 to 9223372036854775808"),
        ({"y_test": np.array(["a"] * 5)}, "y is int64 and <U1; give texts or whole numbers"),
        ({"x_train": np.full((12, 4, 3), np.inf, dtype="f2")}, "not finite"),
        ({"x_train": np.full((12, 4, 3), 1e300)}, r"x_train: 12 examples.*1e\+15"),
        ({"x_test": np.zeros((5, 4, 3))}, "uint8.* in x_train, and float64.* in x_test; make them the same"),
        ({"x_train": np.zeros((12, 3, 8, 6), np.uint8)}, r"x_train \[12, 3, 8, 6\].*dataset.channels=first"),
        ({"x_train": np.zeros((12, 7), np.int64)}, "x_train is int64 .*dataset.tokens=true"),
        ({"client_train": np.zeros(11, int)}, "client_train"),
        ({"client_test": np.zeros(5, int)}, "has the array client_test, and lacks client_train"),
    ],
)
def test_wrong_arrays_are_refused(saved, changes, message):
    assert_refused(saved(**changes), message)


@pytest.mark.parametrize("dtype", ["<f2", ">f4", ">f8", "<f4"])
def test_other_kinds_of_floating_point(saved, dtype):
    """Half precision and another byte order: pixels are standardised as those of float64 are."""
    rng = np.random.default_rng(0)
    arrays = {key: rng.integers(0, 65_000, (n, 4, 3)).astype("f2") for key, n in (("x_train", 12), ("x_test", 5))}
    found = read_npz(saved(**{key: x.astype(dtype) for key, x in arrays.items()}))
    assert found.x_train.dtype in (np.float32, np.float64)
    assert found.x_train.dtype.isnative
    mean, std = found.normalisation()
    np.testing.assert_allclose(mean, arrays["x_train"].astype("f8").mean(), rtol=1e-5)
    np.testing.assert_allclose(std, arrays["x_train"].astype("f8").std(), rtol=1e-4)


def test_an_entry_that_is_no_array(saved, tmp_path):
    with ZipFile(saved()) as archive, ZipFile(tmp_path / "odd.npz", "w") as odd:
        for name in archive.namelist():
            odd.writestr(name, b"hello" if name == "x_test.npy" else archive.read(name))
    assert_refused(tmp_path / "odd.npz", r"x_test is \|S5 \[\]")


def test_more_than_the_memory(saved, monkeypatch):
    """An archive says how large its arrays are before they are unpacked."""
    path = saved()
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 1000, "SC_PHYS_PAGES": 2}.__getitem__)
    assert_refused(path, "GB of memory")


def truncated(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def corrupted(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 4] ^= 0xFF
    path.write_bytes(content)


def pickled(path):
    np.array([{}], dtype=object).dump(path)


def npy(path):
    with path.open("wb") as file:
        np.save(file, np.zeros(3))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncated, "cannot be read as .npz"),
        (corrupted, "cannot be read as .npz"),
        (lambda path: path.write_bytes(b""), "cannot be read as .npz"),
        (pickled, "cannot be read as .npz"),
        (npy, "cannot be read as .npz"),
        (Path.unlink, "there is no such file"),
        (lambda path: (path.unlink(), path.mkdir()), "there is no such file"),
        (lambda path: (path.unlink(), os.mkfifo(path)), "there is no such file"),
    ],
)
def test_broken_files_are_refused(saved, damage, message):
    path = saved()
    damage(path)
    assert_refused(path, message)


def assert_refused(path, message):
    with pytest.raises(UserError, match=message) as caught:
        Npz(str(path)).load()
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


# Where data sets are looked for


def test_data_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("FEDOPT_DATA", raising=False)
    assert data_folder(None) == tmp_path / ".cache" / "fedopt"
    monkeypatch.setenv("FEDOPT_DATA", "/from/environment")
    assert data_folder(None) == Path("/from/environment")
    assert data_folder("~/mine") == tmp_path / "mine"


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "cifar10"])
def test_npz_comes_first(saved, offline, monkeypatch, name):
    path = saved(name)
    monkeypatch.setenv("FEDOPT_DATA", str(path.parent))
    np.testing.assert_array_equal(Torchvision(name).load().x_train, read_npz(path).x_train)


@pytest.mark.parametrize(
    ("name", "shape"), [("fashion_mnist", "[n, 28, 28]"), ("cifar10", "[n, 32, 32, 3]")], ids=lambda x: x
)
def test_missing_data_without_network(offline, tmp_path, name, shape):
    """One line says which arrays are wanted, from where, and what runs without; no folder is left."""
    timeout = socket.getdefaulttimeout()
    with pytest.raises(UserError) as caught:
        Torchvision(name, root=str(tmp_path / "data" / "sets")).load()
    message = str(caught.value)
    assert "\n" not in message
    wanted = (
        f"dataset={name}: ",
        str(tmp_path / "data" / "sets"),
        f"{name}.npz",
        "FEDOPT_DATA",
        f"x_train and x_test {shape}",
    )
    for part in (*wanted, "y_train and y_test [n]", "the files of ", "dataset=mnist", "digits"):
        assert part in message
    assert socket.getdefaulttimeout() == timeout
    assert not list(tmp_path.iterdir())


def test_a_data_folder_that_cannot_be_made(offline, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file/sets, and cannot be downloaded .*Not a directory.*FEDOPT_DATA"):
        Torchvision("cifar10", root=str(tmp_path / "file" / "sets")).load()


def test_mnist_comes_with_fedopt(offline, monkeypatch, tmp_path):
    """Whole, without a network or a folder of data; its digest is the one that runs of 0.3 noted of the downloaded copy."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("FEDOPT_DATA", raising=False)
    data = Torchvision("mnist").load()
    assert data.digest() == "c1791423822ba8903a8560f1318d8129"
    assert (data.x_train.shape, data.x_test.shape) == ((60000, 1, 28, 28), (10000, 1, 28, 28))
    # The sizes of the classes, and the mean and deviation of the pixels, as published
    assert np.bincount(data.y_train).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    for got, published in zip(data.normalisation(), (0.1307, 0.3081), strict=True):
        np.testing.assert_allclose(got / 255, published, atol=6e-5)
    page = (SHIPPED / "mnist.md").read_text(encoding="utf-8")
    assert sha256((SHIPPED / "mnist.npz").read_bytes()).hexdigest() in page
    assert "CC BY-SA 3.0" in page
    assert not list(tmp_path.iterdir())


def write_idx(folder, name, array):
    folder.mkdir(parents=True, exist_ok=True)
    header = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    (folder / name).write_bytes(header + array.astype(np.uint8).tobytes())


def raw_layout(root):
    arrays = random_arrays((4, 3), np.uint8)
    raw = root / "FashionMNIST" / "raw"
    for split, prefix in (("train", "train"), ("test", "t10k")):
        write_idx(raw, f"{prefix}-images-idx3-ubyte", arrays[f"x_{split}"])
        write_idx(raw, f"{prefix}-labels-idx1-ubyte", arrays[f"y_{split}"])
    return arrays, raw


def same(data, arrays):
    for key in KEYS:
        np.testing.assert_array_equal(getattr(data, key), arrays[key][:, None] if key[0] == "x" else arrays[key])


def test_torchvision_layout(offline, tmp_path):
    arrays, _ = raw_layout(tmp_path)
    same(Torchvision("fashion_mnist", root=str(tmp_path)).load(), arrays)


def test_a_download(torchvision, monkeypatch, tmp_path):
    """Comes whole into the data folder, which is made, and stays; nothing else is left."""
    made = []

    def download(url, download_root, **more):
        made.append(raw_layout(Path(download_root).parents[1])[0])

    monkeypatch.setattr(torchvision.datasets.mnist, "download_and_extract_archive", download)
    root = tmp_path / "new" / "folder"
    same(Torchvision("fashion_mnist", root=str(root)).load(), made[0])
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
    assert [path.name for path in root.iterdir()] == ["FashionMNIST"]
    count = len(made)
    same(Torchvision("fashion_mnist", root=str(root)).load(), made[-1])
    assert len(made) == count


@pytest.mark.parametrize("left", [0.0, 0.6])
def test_broken_torchvision_layout(offline, tmp_path, left):
    _, raw = raw_layout(tmp_path)
    file = raw / "train-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[: int(left * file.stat().st_size)])
    with pytest.raises(UserError, match=r"dataset=fashion_mnist: .* incomplete, delete it") as caught:
        Torchvision("fashion_mnist", root=str(tmp_path)).load()
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert file.exists()


# Digits and the long tail


def test_digits():
    data = Digits().load()
    assert (len(data.x_train), len(data.x_test), data.classes) == (1437, 360, 10)
    assert data.x_train.shape[1:] == (1, 8, 8)
    assert data.x_train.dtype == np.uint8
    assert data.digest() == "2a402e53e1e1d0005d62d39048862bdb"  # of scikit-learn's load_digits, every fifth for testing


def test_long_tail():
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 6500))
    kept = long_tail(labels, 6000, 0.01)
    # 6000 * 0.01^(c/9), rounded; the second is named in FedNest, Sec. 4.2.
    assert np.bincount(labels[kept]).tolist() == [6000, 3597, 2156, 1293, 775, 465, 278, 167, 100, 60]
    assert np.all(np.diff(kept) > 0)
    for c in range(10):  # the first ones of each class
        mine = kept[labels[kept] == c]
        np.testing.assert_array_equal(mine, np.flatnonzero(labels == c)[: len(mine)])


def test_long_tail_of_small_classes():
    labels = np.repeat([0, 1, 2], [30, 200, 200])
    kept = long_tail(labels, 100, 0.25)
    assert np.bincount(labels[kept]).tolist() == [30, 50, 25]
    assert len(long_tail(labels, 1000, 1.0)) == 430


def test_long_tail_of_data_that_say_what_is_for_validation(saved):
    """The rare class loses training examples, and none of those to validate on."""
    rng = np.random.default_rng(0)
    y, validates = np.arange(300) % 3, np.arange(300) % 5 == 0
    x, x_test = rng.normal(size=(300, 2)), rng.normal(size=(9, 2))
    path = saved(x_train=x, y_train=y, x_test=x_test, y_test=y[:9], val_train=validates)
    words = [
        "dataset=npz",
        f"dataset.path={path}",
        "partitioner=iid",
        "partitioner.clients=1",
        "participation.cohort=null",
    ]
    problem = small("fedmsa", "loss_tuning", *words, "problem.largest=64", "problem.imbalance=0.25").original
    sizes = {split: np.bincount(problem.labels[of.rows]).tolist() for split, of in problem.splits.items()}
    assert sizes == {"train": [64, 32, 16], "val": [20, 20, 20]}
    assert problem.remark == "112 training, 9 test, 60 validation examples"
    assert problem.notes == ["problem.largest and problem.imbalance keep 112 of 240 training examples"]


@pytest.mark.parametrize("pixels", ["standardised", "unit"])
def test_examples_for_validation_do_not_enter_the_standardisation(pixels):
    rng, validates = np.random.default_rng(0), np.arange(60) % 3 == 0
    for shape in ((60, 2), (60, 2, 3, 3)):
        x = rng.normal(size=shape)
        x[validates] += 100
        data = LabelledData(x, np.zeros(60, int), x[:3], np.zeros(3, int), pixels=pixels, validates=validates)
        axes, train = (0, *range(2, x.ndim)), x[~validates]
        shift, scale = data.normalisation()
        if pixels == "unit":
            assert (shift.any(), scale.max()) == (False, np.abs(train).max())
        else:
            np.testing.assert_allclose(shift, train.mean(axes), rtol=1e-12)
            np.testing.assert_allclose(scale, train.std(axes), rtol=1e-12)


def test_arrays_that_nothing_reads_are_said(saved):
    """Such as `val` where `val_train` was meant."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 2)), np.arange(60) % 3
    path = saved(x_train=x, y_train=y, x_test=x[:9], y_test=y[:9], val=y > 1)
    words = [
        "dataset=npz",
        f"dataset.path={path}",
        "partitioner=iid",
        "partitioner.clients=2",
        "participation.cohort=2",
    ]
    (note,) = small("fedavg", "classification", *words).original.notes
    assert note.startswith("the arrays val are ignored; fedopt reads x_train, y_train, x_test, y_test, client_train, ")


# The real data


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "mean", "std"),
    [
        ("fashion_mnist", [0.2860], [0.3530]),
        ("cifar10", [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]),
    ],
)
def test_pixel_statistics(name, mean, std):
    root = real(f"{name}.npz")
    data = Torchvision(name, root=str(root)).load()
    n = 50000 if name == "cifar10" else 60000
    assert (len(data.x_train), len(data.x_test), data.classes) == (n, 10000, 10)
    for got, published in zip(data.normalisation(), (mean, std), strict=True):
        np.testing.assert_allclose(got / 255, published, atol=6e-5)


def test_unit_pixels():
    """From 0 to 1: nothing subtracted, divided by the largest training pixel."""
    x = np.array([0, 51, 255], np.uint8).reshape(3, 1, 1, 1)
    y = np.arange(3)
    shift, scale = LabelledData(x, y, x, y, "unit").normalisation()
    np.testing.assert_array_equal((x[:, 0, 0, 0] - shift) / scale, [0, 0.2, 1])
    assert Digits(pixels="unit").load().normalisation()[1] == 16
    assert LabelledData(-x.astype(float), y, x, y, "unit").normalisation()[1] == 255


@pytest.mark.parametrize("shape", [(3, 1, 1, 1), (3, 1)])
def test_raw_values(shape):
    x, y = np.array([7, 51, 255.0]).reshape(shape), np.arange(3)
    shift, scale = LabelledData(x, y, x, y, "raw").normalisation()
    assert (shift.tolist(), scale.tolist()) == ([0], [1])


# As a user sees them


def test_a_table_with_clients_of_its_own(monkeypatch, capsys, tmp_path):
    """As many clients as the column has names, of unequal sizes, none of whom takes part without being asked."""
    rng = np.random.default_rng(0)
    hospital = rng.choice(["north", "south", "east"], 120, p=[0.6, 0.3, 0.1])
    x = rng.normal(size=(120, 2)) * [1e5, 1e-3] + [3e6, 0]
    rows = [f"{a},{b},{'yes' if b > 0 else 'no'},{h}" for (a, b), h in zip(x, hospital, strict=True)]
    (tmp_path / "own.csv").write_text("\n".join(["a,b,ill,hospital", *rows]))
    words = ["algo=fedavg", "problem=classification", "problem.model=linear", "dataset=csv", "dataset.label=ill"]
    words += [f"dataset.path={tmp_path / 'own.csv'}", "dataset.client=hospital", "partitioner=by_column"]
    words += ["budget.rounds=20", "algo.eta=1.0", "hardware.threads=1"]
    refused = fedopt(monkeypatch, capsys, *words, f"output_dir={tmp_path / 'run'}")
    assert refused.code == 2
    assert "participation.cohort=10" in refused.err
    result = fedopt(monkeypatch, capsys, *words, "participation.cohort=null", f"output_dir={tmp_path / 'run'}")
    assert result.code == 0, result.err
    table = pd.read_csv(tmp_path / "run" / "metrics.csv")
    assert table["test_accuracy"].iloc[-1] > 90  # column b alone tells the classes apart
    card = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (card["clients"], card["classes"]) == (["east", "north", "south"], ["no", "yes"])
    assert card["features"] == ["a", "b"]
    assert result.err.splitlines()[1].endswith("; 96 training, 24 test examples of 2 features: a, b; classes no, yes")
    others = [*words[:-4], "partitioner=iid", "partitioner.clients=3", "participation.cohort=null", "budget.rounds=1"]
    unused = fedopt(monkeypatch, capsys, *others, f"output_dir={tmp_path / 'other'}").err.splitlines()
    assert "note: the client that the data name for each row is not used; partitioner=by_column uses it" in unused
    bytes_of_a_model = 4 * (2 * 2 + 2)
    assert table["bytes_up"].iloc[-1] == 20 * len({*hospital}) * bytes_of_a_model


def test_a_text_of_token_ids(monkeypatch, capsys, tmp_path, saved):
    """A network that embeds them learns which word was there; those that see numbers are refused."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 30, (200, 7))
    path = saved(x_train=x, y_train=x[:, -1] % 10, x_test=x[:50], y_test=x[:50, -1] % 10)
    words = ["algo=fedavg", "problem=classification", "dataset=npz", f"dataset.path={path}", "dataset.tokens=true"]
    words += ["partitioner=iid", "partitioner.clients=4", "participation.cohort=null", "hardware.threads=1"]
    words += ["budget.rounds=10", "algo.eta=2.0", "algo.B=10", f"output_dir={tmp_path / 'run'}"]
    refused = fedopt(monkeypatch, capsys, *words)
    assert "problem.model=mlp" in refused.err
    own = "problem.model={_target_: support.networks.Words, dropout: 0.1}"
    assert fedopt(monkeypatch, capsys, *words, own).code == 0
    table = pd.read_csv(tmp_path / "run" / "metrics.csv")
    assert table["train_loss"].iloc[-1] < 0.8 * table["train_loss"].iloc[0]
