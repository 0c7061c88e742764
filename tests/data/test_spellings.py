"""Names of clients and classes are texts, read by one rule from every kind of file."""

import numpy as np
import pytest

from fedopt.data.datasets import Npz
from fedopt.data.examples import Examples
from fedopt.data.names import identifiers, numbered
from fedopt.data.partitioners import ByColumn
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


def clients_of(source, folder, names):
    """The rows of the clients of a source, as texts, by client."""
    data = World(0, ByColumn(), source).load()
    whole = zip(np.concatenate([data.x_train, data.x_test])[:, 0], [*data.owners, *data.owners_test], strict=True)
    clients = {}
    for x, name in whole:
        clients.setdefault(str(name), []).append(int(x) // 2)
    return {name: sorted(rows) for name, rows in clients.items()}, data


SOURCES = [as_csv, as_npz]


@pytest.mark.parametrize("make", SOURCES)
@pytest.mark.parametrize(
    ("spellings", "wanted"),
    [
        (["1e5", "100000", "10e4"], ["1e5", "100000", "10e4"]),
        (["1e999", "inf", "7"], ["1e999", "inf", "7"]),
        (["3", "3.0", "10"], ["3", "3", "10"]),
        (["caf\u00e9", "cafe\u0301", "bar"], ["caf\u00e9", "caf\u00e9", "bar"]),
        (["north\u00a0", "north", " north"], ["north", "north", "north"]),
        (["1 11", "11 1", "111"], ["1 11", "11 1", "111"]),
    ],
)
def test_clients_are_texts(make, spellings, wanted, tmp_path):
    names, labels = spellings * 4, ["yes", "no"] * 6
    found, data = clients_of(make(tmp_path / "d", names, labels), tmp_path, names)
    expected = {}
    for row, name in enumerate(wanted * 4):
        expected.setdefault(name, []).append(row)
    assert found == expected
    assert data.class_names == ("no", "yes")
    # The file of the partitioner has the same names
    (tmp_path / "who.txt").write_text("\n".join(names), encoding="utf-8")
    plain = make(tmp_path / "plain", ["a", "b", "c"] * 4, labels)
    by_file = World(0, ByColumn(file=str(tmp_path / "who.txt")), plain).load()
    np.testing.assert_array_equal(by_file.owners, data.owners)
    np.testing.assert_array_equal(by_file.owners_test, data.owners_test)


@pytest.mark.parametrize(
    "spellings",
    [
        ("North", "north"),
        ("New York", "New\u00a0 York"),
        ("ward 7", "ward \uff17"),
        ("1", "1.0", "x"),
        ("7", "+7", "007"),
    ],
)
def test_names_that_look_alike_are_refused(spellings, tmp_path):
    names = [spellings[k % len(spellings)] for k in range(12)]
    for number, make in enumerate(SOURCES):
        with pytest.raises(UserError, match="use one spelling") as caught:
            make(tmp_path / f"d{number}", names, ["yes", "no"] * 6).load()
        assert str(tmp_path / f"d{number}") in str(caught.value)
        with pytest.raises(UserError, match="use one spelling"):
            make(tmp_path / f"e{number}", ["a", "b"] * 6, names).load()
    (tmp_path / "who.txt").write_text("\n".join(names), encoding="utf-8")
    source = as_csv(tmp_path / "f", ["a", "b"] * 6, ["u", "v"] * 6)
    with pytest.raises(UserError, match=r"who\.txt has .*use one spelling"):
        World(0, ByColumn(file=str(tmp_path / "who.txt")), source).load()


@pytest.mark.parametrize(
    ("labels", "numbers", "names"),
    [
        (["01", "2"], [0, 1], ("01", "2")),
        (["10", "9", "-1"], [2, 1, 0], ("-1", "9", "10")),
        (["+1", "-1"], [1, 0], ("-1", "1")),
        (["10.0", "9.0"], [1, 0], ("9", "10")),
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
        (["a", " \u00a0"], "here, row 2: a name must have 1 to 1000 characters"),
        (["a", "x" * 1001], "here, row 2: a name must have 1 to 1000 characters"),
    ],
)
def test_what_is_no_name(names, said):
    with pytest.raises(UserError, match=said):
        identifiers(np.array(names), "here")


# Classes


@pytest.mark.parametrize("make", SOURCES)
def test_one_class_is_refused(make, tmp_path):
    with pytest.raises(UserError, match=r"all training examples are of the class a; give examples of other classes"):
        make(tmp_path / "d", ["u", "v"] * 6, ["a"] * 8 + ["b"] * 4).load()


@pytest.mark.parametrize("make", SOURCES)
def test_a_class_of_test_examples_alone_is_said(make, tmp_path):
    data = make(tmp_path / "d", ["u", "v"] * 6, ["a", "b"] * 4 + ["a", "b", "c", "c"]).load()
    assert "no training example is of the class c" in data.notes
    assert data.classes == 3


def test_classes_without_an_example_are_said(tmp_path):
    data = as_npz(tmp_path / "d", ["u", "v"] * 6, [1, 3] * 6).load()
    assert "no training example is of the class 0, 2" in data.notes
    assert as_csv(tmp_path / "t.csv", ["u", "v"] * 6, [1, 3] * 6).load().class_names == ("1", "3")


# Byte order marks


@pytest.mark.parametrize(("encoding", "end"), [("utf-8", "\n"), ("utf-8-sig", "\r\n"), ("utf-16", "\r")])
def test_texts_with_marks_and_ends_of_any_system(encoding, end, tmp_path):
    labels, names = ["1", "-1"] * 6, ["u", "w\u00e4"] * 6
    (tmp_path / "w.txt").write_bytes(end.join([*names, ""]).encode(encoding))
    rows = [f"{a},{b},{y},{name}" for (a, b), y, name in zip(X, labels, names, strict=True)]
    (tmp_path / "t.csv").write_bytes(end.join(["a,b,y,who", *rows, ""]).encode(encoding))
    data = Csv(str(tmp_path / "t.csv"), "y", client="who").load()
    assert (data.class_names, {*data.owners}) == (("-1", "1"), {"u", "w\u00e4"})
    by_file = World(0, ByColumn(file=str(tmp_path / "w.txt")), as_npz(tmp_path / "d", ["a", "b"] * 6, labels)).load()
    assert [*by_file.owners, *by_file.owners_test] == names


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
    arrays = {"x_train": x.reshape(shape)[:8], "x_test": x.reshape(shape)[8:]}
    np.savez(tmp_path / "d.npz", **arrays, y_train=labels[:8], y_test=labels[8:])
    rows = [f"{a!r},{b!r},{y},{part}" for (a, b), y, part in zip(x.tolist(), labels, PARTS, strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(["a,b,y,part", *rows]))
    sources = [Npz(str(tmp_path / "d.npz"), channels="first"), Csv(str(tmp_path / "t.csv"), "y", split="part")]
    for source in sources[: 2 if len(shape) == 2 else 1]:
        np.testing.assert_allclose(standardised(source), (x - x[:8].mean(0)) / x[:8].std(0), atol=1e-6)


def test_what_differs_by_rounding_alone_keeps_its_scale(tmp_path):
    """A column of zeros with one 1e-14, where test examples have ordinary values."""
    x = np.random.default_rng(0).standard_normal((12, 3)).astype(np.float32)
    x[:8, 2], x[3, 2] = 0, 1e-14
    labels = np.arange(12) % 2
    np.savez(tmp_path / "d.npz", x_train=x[:8], y_train=labels[:8], x_test=x[8:], y_test=labels[8:])
    np.testing.assert_allclose(standardised(Npz(str(tmp_path / "d.npz")))[8:, 2], x[8:, 2], rtol=1e-6)
    np.savez(tmp_path / "d.npz", x_train=1e-20 * x[:8], y_train=labels[:8], x_test=x[8:], y_test=labels[8:])
    small = standardised(Npz(str(tmp_path / "d.npz")))  # small numbers are judged by their range
    np.testing.assert_allclose(small[:8, :2].std(0), 1, rtol=1e-5)


def test_a_table_of_bytes(tmp_path):
    x, labels = np.arange(24, dtype=np.uint8).reshape(12, 2), np.arange(12) % 2
    np.savez(tmp_path / "d.npz", x_train=x[:8], y_train=labels[:8], x_test=x[8:], y_test=labels[8:])
    np.testing.assert_allclose(
        standardised(Npz(str(tmp_path / "d.npz"))), (x - x[:8].mean(0)) / x[:8].std(0), atol=1e-6
    )
