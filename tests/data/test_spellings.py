"""Names of clients and classes are texts, read by one rule from every kind of file."""

import json

import numpy as np
import pytest

from fedopt.data.datasets import Npz
from fedopt.data.examples import Examples
from fedopt.data.leaf import Leaf
from fedopt.data.names import identifiers, numbered
from fedopt.data.partitioners import ByColumn
from fedopt.data.sparse import Libsvm
from fedopt.data.tables import Csv
from fedopt.data.world import World
from fedopt.errors import UserError

X = np.arange(24.0).reshape(12, 2)


def as_csv(path, names, labels):
    rows = [f'{a},{b},"{c}","{name}",{part}' for (a, b), c, name, part in zip(X, labels, names, PARTS, strict=True)]
    path.write_text("\n".join(["a,b,y,who,part", *rows]), encoding="utf-8")
    return Csv(str(path), "y", client="who", split="part")


PARTS = ["train"] * 8 + ["test"] * 4


def as_npz(path, names, labels):
    names, labels = np.array(names), np.array(labels)
    np.savez(
        path,
        **{"x_train": X[:8], "y_train": labels[:8], "x_test": X[8:], "y_test": labels[8:]},
        **{"client_train": names[:8], "client_test": names[8:]},
    )
    return Npz(f"{path}.npz")


def as_leaf(path, names, labels):
    for part, rows in (("train", range(8)), ("test", range(8, 12))):
        users = {}
        for row in rows:
            user = users.setdefault(names[row], {"x": [], "y": []})
            user["x"].append(X[row].tolist())
            user["y"].append(labels[row])
        (path / part).mkdir(parents=True)
        content = {"users": [*users], "num_samples": [len(u["y"]) for u in users.values()], "user_data": users}
        (path / part / "d.json").write_text(json.dumps(content), encoding="utf-8")
    return Leaf(str(path))


def clients_of(source, folder, names):
    """The rows of the clients of a source, as texts, by client."""
    data = World(0, ByColumn(), source).load()
    whole = zip(np.concatenate([data.x_train, data.x_test])[:, 0], [*data.owners, *data.owners_test], strict=True)
    clients = {}
    for x, name in whole:
        clients.setdefault(str(name), []).append(int(x) // 2)
    return {name: sorted(rows) for name, rows in clients.items()}, data


SOURCES = [as_csv, as_npz, as_leaf]


@pytest.mark.parametrize("make", SOURCES)
@pytest.mark.parametrize(
    ("spellings", "wanted", "note"),
    [
        (["007", "7", "07"], ["007", "7", "07"], "two clients"),
        (["1e5", "100000", "10e4"], ["1e5", "100000", "10e4"], "two clients"),
        (["1e999", "inf", "7"], ["1e999", "inf", "7"], ""),
        (["3", "3.0", "10"], ["3", "3", "10"], ""),
        (["caf\u00e9", "cafe\u0301", "bar"], ["caf\u00e9", "caf\u00e9", "bar"], ""),
        (["north\u00a0", "north", "\ufeffnorth\u200b"], ["north", "north", "north"], ""),
        (["1 11", "11 1", "111"], ["1 11", "11 1", "111"], ""),
    ],
)
def test_clients_are_texts(make, spellings, wanted, note, tmp_path):
    names, labels = spellings * 4, ["yes", "no"] * 6
    found, data = clients_of(make(tmp_path / "d", names, labels), tmp_path, names)
    expected = {}
    for row, name in enumerate(wanted * 4):
        expected.setdefault(name, []).append(row)
    assert found == expected
    assert note in "; ".join(data.notes)
    assert data.class_names == ("no", "yes")
    # The file of the partitioner has the same names
    (tmp_path / "who.txt").write_text("\n".join(names), encoding="utf-8")
    plain = make(tmp_path / "plain", ["a", "b", "c"] * 4, labels)
    by_file = World(0, ByColumn(file=str(tmp_path / "who.txt")), plain).load()
    if make is not as_leaf:  # whose rows are by user
        np.testing.assert_array_equal(by_file.owners, data.owners)
        np.testing.assert_array_equal(by_file.owners_test, data.owners_test)


@pytest.mark.parametrize("make", SOURCES)
@pytest.mark.parametrize(
    "spellings",
    [
        ("North", "north"),
        ("New York", "New\u00a0 York"),
        ("New York", "NewYork"),
        ("ab", "a\u200bb"),
        ("007", "0\u200b07"),
        ("1 11", "1  11"),
        ("ward 7", "ward \uff17"),
        ("1", "1.0", "x"),
        ("7", "+7", "007"),
    ],
)
def test_names_that_look_alike_are_refused(make, spellings, tmp_path):
    names = [spellings[k % len(spellings)] for k in range(12)]
    with pytest.raises(UserError, match="write them the same") as caught:
        make(tmp_path / "d", names, ["yes", "no"] * 6).load()
    assert str(tmp_path / "d") in str(caught.value)
    with pytest.raises(UserError, match="write them the same"):
        make(tmp_path / "e", ["a", "b"] * 6, names).load()
    (tmp_path / "who.txt").write_text("\n".join(names), encoding="utf-8")
    with pytest.raises(UserError, match=r"who\.txt has .*write them the same"):
        World(0, ByColumn(file=str(tmp_path / "who.txt")), make(tmp_path / "f", ["a", "b"] * 6, ["u", "v"] * 6)).load()


@pytest.mark.parametrize(
    ("labels", "numbers", "names"),
    [
        (["01", "1"], [0, 1], ("01", "1")),
        (["10", "9", "-1"], [2, 1, 0], ("-1", "9", "10")),
        (["+1", "-1"], [1, 0], ("-1", "1")),
        (["10.0", "9.0"], [1, 0], ("9", "10")),
        (["1,0", "2,0"], [0, 1], ("1", "2")),
        (["1.000000000000000000e+01", "9.000000000000000000e+00"], [1, 0], ("9", "10")),
        (["a", "1.5"], [1, 0], ("1.5", "a")),
        ([str(2**63), "1"], [1, 0], ("1", str(2**63))),
    ],
)
def test_classes_are_texts(labels, numbers, names):
    found, named = numbered(np.array(labels, dtype=object), "here")
    assert (found.tolist(), named) == (numbers, names)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["a", " \u200b"], "here, row 2.*name"),
        (["a", "x" * 1001], "here, row 2.*more than 1000 letters"),
    ],
)
def test_what_is_no_name(names, said):
    with pytest.raises(UserError, match=said):
        identifiers(np.array(names), "here")


# Classes


@pytest.mark.parametrize("make", SOURCES)
@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (["a"] * 12, "training examples.*class.*two.*more"),
        (["a"] * 8 + ["b"] * 4, "all training examples are of the class a"),
    ],
)
def test_one_class_is_refused(make, labels, said, tmp_path):
    with pytest.raises(UserError, match=said):
        make(tmp_path / "d", ["u", "v"] * 6, labels).load()


@pytest.mark.parametrize("make", SOURCES)
def test_a_class_of_test_examples_alone_is_said(make, tmp_path):
    data = make(tmp_path / "d", ["u", "v"] * 6, ["a", "b"] * 4 + ["a", "b", "c", "c"]).load()
    assert "no training example, only test examples, are of the class c" in data.notes
    assert data.classes == 3


@pytest.mark.parametrize("make", [as_npz, as_leaf])
def test_classes_without_an_example_are_said(make, tmp_path):
    data = make(tmp_path / "d", ["u", "v"] * 6, [1, 3] * 6).load()
    assert "classes are 0 to 3, and no example is of the class 0, 2" in data.notes
    assert as_csv(tmp_path / "t.csv", ["u", "v"] * 6, [1, 3] * 6).load().class_names == ("1", "3")


# Byte order marks


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_texts_with_marks_and_ends_of_any_system(encoding, end, tmp_path):
    labels, names = ["1", "-1"] * 6, ["u", "w\u00e4"] * 6
    lines = [f"{y} 1:{a} 2:{b}" for y, (a, b) in zip(labels, X, strict=True)]
    (tmp_path / "t.svm").write_bytes(end.join([*lines, ""]).encode(encoding))
    (tmp_path / "w.txt").write_bytes(end.join([*names, ""]).encode(encoding))
    rows = [f"{a},{b},{y},{name}" for (a, b), y, name in zip(X, labels, names, strict=True)]
    (tmp_path / "t.csv").write_bytes(end.join(["a,b,y,who", *rows, ""]).encode(encoding))
    table = Csv(str(tmp_path / "t.csv"), "y", client="who").load()
    sparse = World(0, ByColumn(file=str(tmp_path / "w.txt")), Libsvm(str(tmp_path / "t.svm"), features=2))
    for data in (table, sparse.load()):
        assert (data.class_names, {*data.owners}) == (("-1", "1"), {"u", "w\u00e4"})
    assert [*sparse.load().owners, *sparse.load().owners_test] == names


# Precision


def standardised(source):
    """All training and test examples as networks see them."""
    data = source.load()
    world = World(0, ByColumn(), source)
    return np.concatenate(
        [Examples(*part, data, world).x for part in ((data.x_train, data.y_train), (data.x_test, data.y_test))]
    )


@pytest.mark.parametrize("shape", [(12, 2), (12, 2, 1, 1)])
def test_every_reader_is_in_double_until_columns_are_standardised(shape, tmp_path):
    """Unix times of a minute, beside a column of small numbers."""
    x = np.stack([1.7e9 + 5 * np.arange(12.0), 1e-9 * np.arange(12.0)], 1)
    labels = [0, 1] * 6
    wanted = (x - x[:8].mean(0)) / x[:8].std(0)
    np.savez(
        tmp_path / "d.npz",
        **{
            "x_train": x.reshape(shape)[:8],
            "y_train": labels[:8],
            "x_test": x.reshape(shape)[8:],
            "y_test": labels[8:],
        },
    )
    sources = [Npz(str(tmp_path / "d.npz"), channels="first")]
    for part, rows in (("train", slice(0, 8)), ("test", slice(8, 12))):
        table = {"x": x.reshape(shape)[rows].tolist(), "y": labels[rows]}
        (tmp_path / "leaf" / part).mkdir(parents=True)
        content = {"users": ["u"], "num_samples": [len(table["y"])], "user_data": {"u": table}}
        (tmp_path / "leaf" / part / "d.json").write_text(json.dumps(content))
        lines = [f"{y} 1:{a!r} 2:{b!r}" for (a, b), y in zip(x[rows].tolist(), table["y"], strict=True)]
        (tmp_path / f"{part}.svm").write_text("\n".join(lines))
    if len(shape) == 2:
        sources += [Leaf(str(tmp_path / "leaf"))]
        sources += [Libsvm(str(tmp_path / "train.svm"), str(tmp_path / "test.svm"), pixels="standardised")]
    for source in sources:
        np.testing.assert_allclose(standardised(source), wanted, atol=1e-6)
        assert "rounding" not in "; ".join(source.load().notes)


def test_what_differs_by_rounding_alone_is_said(tmp_path):
    """A column of zeros with one 1e-14, where test examples have ordinary values."""
    x = np.random.default_rng(0).standard_normal((12, 3)).astype(np.float32)
    x[:8, 2], x[3, 2] = 0, 1e-14
    labels = np.arange(12) % 2
    np.savez(tmp_path / "d.npz", x_train=x[:8], y_train=labels[:8], x_test=x[8:], y_test=labels[8:])
    source = Npz(str(tmp_path / "d.npz"))
    assert source.load().notes == ("columns 2 vary by rounding alone, and are not divided by their deviation",)
    np.testing.assert_allclose(standardised(source)[8:, 2], x[8:, 2], rtol=1e-6)
    np.savez(tmp_path / "d.npz", x_train=1e-20 * x[:8], y_train=labels[:8], x_test=x[8:], y_test=labels[8:])
    assert len(Npz(str(tmp_path / "d.npz")).load().notes) == 1  # small numbers are judged beside each other


def test_a_table_of_bytes(tmp_path):
    x, labels = np.arange(24, dtype=np.uint8).reshape(12, 2), np.arange(12) % 2
    np.savez(tmp_path / "d.npz", x_train=x[:8], y_train=labels[:8], x_test=x[8:], y_test=labels[8:])
    np.testing.assert_allclose(
        standardised(Npz(str(tmp_path / "d.npz"))), (x - x[:8].mean(0)) / x[:8].std(0), atol=1e-6
    )
