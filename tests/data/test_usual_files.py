"""Files of the kinds that people have: read where they are unambiguous, with a note, and never wrongly without a word."""

import gzip
import json
import os
import tracemalloc

import numpy as np
import pytest
from PIL import Image
from support.command import ROOT
from support.pages import blocks

from fedopt.data.arrays import split_at_random
from fedopt.data.datasets import Npz
from fedopt.data.folders import Folder
from fedopt.data.partitioners import ByColumn
from fedopt.data.tables import Csv
from fedopt.data.world import World
from fedopt.errors import UserError

ROWS = [(k, k / 4, "ab"[k % 2]) for k in range(10)]


def table(path, names="age,dose,label", separator=",", decimal=".", encoding="utf-8", end="\n", rows=ROWS):
    lines = [separator.join((str(a), f"{b:.2f}".replace(".", decimal), c)) for a, b, c in rows]
    content = end.join([names.replace(",", separator), *lines, ""]).encode(encoding)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def features(data):
    """All rows in the order of their first column."""
    x, y = np.concatenate([data.x_train, data.x_test]), np.concatenate([data.y_train, data.y_test])
    order = np.argsort(x[:, 0])
    return x[order].tolist(), y[order].tolist()


WANTED = [[k, k / 4] for k in range(10)], [k % 2 for k in range(10)]


@pytest.mark.parametrize(
    ("name", "how", "note"),
    [
        ("t.csv", {}, ""),
        ("t.tsv", {"separator": "\t"}, ""),
        ("t.tsv.gz", {"separator": "\t"}, ""),
        ("t.csv.gz", {}, ""),
        ("t.csv", {"separator": ", "}, ""),
        ("t.csv", {"end": "\r\n"}, ""),
        ("t.csv", {"encoding": "utf-8-sig"}, ""),
        ("t.csv", {"separator": ";"}, "cells are separated by ;"),
        ("t.csv", {"separator": "\t"}, "cells are separated by tabs"),
        ("t.csv", {"separator": ";", "decimal": ","}, "decimal commas"),
        ("t.csv", {"names": "größe,dose,label", "encoding": "latin-1"}, "read as Latin-1"),
        ("t.csv", {"names": "1,2.5,label"}, ""),
    ],
)
def test_tables_as_people_have_them(name, how, note, tmp_path):
    data = Csv(str(table(tmp_path / name, **how)), "label").load()
    assert features(data) == WANTED
    assert data.class_names == ("a", "b")
    assert note in "; ".join(data.notes)
    assert bool(data.notes) == bool(note)


def test_options_say_how_a_table_is_written(tmp_path):
    path = table(tmp_path / "t.txt", separator="|", decimal=",", names="größe,dose,label", encoding="cp1252")
    data = Csv(str(path), "label", separator="|", decimal=",", encoding="cp1252").load()
    assert (features(data), data.notes, data.feature_names) == (WANTED, (), ("größe", "dose"))
    with pytest.raises(UserError, match="is not text in ascii"):
        Csv(str(path), "label", encoding="ascii").load()
    with pytest.raises(UserError, match="unknown encoding"):
        Csv(str(path), "label", encoding="nope").load()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("age,dose,label\n1,1,659,a\n2,2,659,b\n", "row 1 below the header has 4 cells, not 3; correct it, or set"),
        ("age,dose,label\n0,2,5,1\n1,3,5,0\n", "row 1 below the header has 4 cells"),  # pandas would shift the columns
        ("age,label\n1,a,\n2,b,\n", "row 1 below the header has 3 cells"),  # a last column without a name
        ("age,label\n1,a\n2\n", "row 2 below the header has 1 cells"),
        ("label,age\na,1\nb\n", "row 2 below the header has 1 cells"),  # pandas would fill it
        ("age,label\n1,a\n2,b,3\n", "row 2 below the header has 3 cells"),
        ("age;dose,label\n1;2,a\n", "age;dose"),
    ],
)
def test_rows_that_do_not_fit_their_names(text, said, tmp_path):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(UserError, match=said):
        Csv(str(tmp_path / "t.csv"), "label", missing="mean").load()


def test_mixed_columns_give_no_warning_of_pandas(tmp_path):
    rows = "".join(f"{k},{k if k % 2 else 'x'},{k % 2}\n" for k in range(300_000))
    (tmp_path / "t.csv").write_text("age,other,label\n" + rows)
    with pytest.raises(UserError, match=r"column.*other"):
        Csv(str(tmp_path / "t.csv"), "label").load()


def test_commas_of_texts_are_no_decimal_commas_and_blank_lines_come_before_the_names(tmp_path):
    rows = "".join(f"{k};{'no, never' if k % 2 else 'yes'}\n" for k in range(10))
    (tmp_path / "t.csv").write_text("\nage;label\n" + rows)
    data = Csv(str(tmp_path / "t.csv"), "label", separator=";").load()
    assert (data.class_names, data.notes) == (("no, never", "yes"), ())


# .npz


def test_clients_of_an_npz_are_whole_numbers_or_texts(tmp_path):
    arrays = {"x_train": np.eye(4), "y_train": [0, 1] * 2, "x_test": np.eye(4), "y_test": [0, 1] * 2}
    np.savez(tmp_path / "t.npz", **arrays, client_train=[0.0, 1.0, np.nan, 1.0])
    with pytest.raises(UserError, match="client_train is float64; it must be whole numbers or texts"):
        Npz(str(tmp_path / "t.npz")).load()


@pytest.mark.parametrize(
    ("labels", "wanted", "names"),
    [
        (["yes", "no"] * 4, [1, 0] * 4, ("no", "yes")),
        (np.array([3, 1] * 4, dtype=">u8"), [3, 1] * 4, ()),
        (np.array([True, False] * 4), [1, 0] * 4, ()),
        (np.array([0.0, 1.0] * 4, dtype="f4"), [0.0, 1.0] * 4, ()),
    ],
)
def test_texts_and_whole_numbers_are_classes_and_floats_are_targets(labels, wanted, names, tmp_path):
    x = np.arange(16.0).reshape(8, 2)
    np.savez(tmp_path / "d.npz", x_train=x, y_train=labels, x_test=x[:2], y_test=labels[:2])
    data = Npz(str(tmp_path / "d.npz")).load()
    assert (data.y_train.tolist(), data.y_test.tolist(), data.class_names) == (wanted, wanted[:2], names)
    assert data.real == isinstance(wanted[0], float)


# Folders of images


def images(folder, *names, count=4, start=0):
    for k, name in enumerate(names):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            Image.fromarray(np.full((2, 2), start + 20 * k + i, dtype=np.uint8)).save(
                folder / name / f"{start + i}.png"
            )


def test_folders_for_training_and_validation(tmp_path):
    for number, split in enumerate(("train", "val")):
        images(tmp_path / split, "ants", "bees", start=100 * number)
    data = Folder(str(tmp_path)).load()
    assert data.class_names == ("ants", "bees")
    assert len(data.y_train) + len(data.y_test) == 16
    assert data.validates.tolist() == (data.x_train[:, 0, 0, 0] >= 100).tolist()


def test_three_splits(tmp_path):
    for number, split in enumerate(("train", "val", "test")):
        images(tmp_path / split, "ants", "bees", start=50 * number)
    data = Folder(str(tmp_path)).load()
    assert (len(data.y_train), len(data.y_test), int(data.validates.sum())) == (16, 8, 8)
    assert data.x_test.min() >= 100


def test_what_is_no_class(tmp_path):
    images(tmp_path / "deep" / "flowers", "bees", "ants")
    with pytest.raises(UserError, match=r"flowers: is missing, or has no images; .*deep must have a folder of images"):
        Folder(str(tmp_path / "deep")).load()
    images(tmp_path / "single", "bees")
    with pytest.raises(UserError, match="all training examples are of the class bees"):
        Folder(str(tmp_path / "single")).load()


def test_hidden_files_are_ignored(tmp_path):
    for number, split in enumerate(("train", "test")):
        images(tmp_path / split, "ants", "bees", start=50 * number)
    before = Folder(str(tmp_path)).load()
    images(tmp_path / "train", ".thumbs")
    for name in ("._0.png", ".DS_Store", "notes.txt"):
        (tmp_path / "train" / "bees" / name).write_bytes(b"x")
    np.testing.assert_array_equal(Folder(str(tmp_path)).load().x_train, before.x_train)


GREY = np.random.default_rng(0).integers(0, 256, (8, 5, 4), dtype=np.uint8)


def odd_images(folder, ending, made, **how):
    """Eight images that `made` makes of grey ones, in two classes, in their order."""
    for number, grey in enumerate(GREY):
        (folder / "ab"[number // 4]).mkdir(exist_ok=True, parents=True)
        made(grey).save(folder / "ab"[number // 4] / f"{number}.{ending}", **how)
    data = Folder(str(folder), test=0.25).load()
    _, test = split_at_random(8, 0.25, 0, folder)
    x = np.empty((8, *data.x_train.shape[1:]), data.x_train.dtype)
    x[np.setdiff1d(np.arange(8), test)], x[test] = data.x_train, data.x_test
    return x


@pytest.mark.parametrize(("kind", "ending"), [("u2", "png"), ("i4", "tif"), ("f4", "tif")])
def test_images_of_more_than_8_bits_are_refused(kind, ending, tmp_path):
    with pytest.raises(UserError, match=r"0\.(png|tif): .* more than 8 bits per channel; dataset=npz"):
        odd_images(tmp_path, ending, lambda grey: Image.fromarray(grey.astype(kind)))


@pytest.mark.parametrize(("mode", "channels"), [("LA", 1), ("RGBA", 3)])
def test_transparency_is_left_out(mode, channels, tmp_path):
    def transparent(grey):
        return Image.merge(mode, [*[Image.fromarray(grey)] * channels, Image.new("L", (4, 5), 7)])

    np.testing.assert_array_equal(odd_images(tmp_path, "png", transparent), np.stack([GREY] * channels, 1))


@pytest.mark.parametrize(("orientation", "turns"), [(3, 2), (6, -1), (8, 1)])
def test_images_stand_upright(orientation, turns, tmp_path):
    exif = Image.Exif()
    exif[0x112] = orientation
    x = odd_images(tmp_path, "png", Image.fromarray, exif=exif)
    np.testing.assert_array_equal(x[:, 0], np.rot90(GREY, turns, (1, 2)))


def test_names_of_classes_are_those_of_all_other_data(tmp_path):
    """Accents of a Mac are those of others."""
    images(tmp_path / "same" / "train", "caf\u00e9", "tea")
    images(tmp_path / "same" / "test", "cafe\u0301", "tea", start=100)
    data = Folder(str(tmp_path / "same")).load()
    assert (data.class_names, len(data.y_test)) == (("caf\u00e9", "tea"), 8)
    images(tmp_path / "odd", "a tea", "a\u00a0tea")
    with pytest.raises(UserError, match=r"odd.*use one spelling"):
        Folder(str(tmp_path / "odd")).load()


# Other formats


@pytest.fixture
def conversion(tmp_path, monkeypatch):
    """Run a script of the page on data formats, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    scripts = {block.text.split("\n")[0]: block.text for block in blocks(ROOT / "docs" / "data-formats.md")}
    return lambda name: exec(scripts[f"# {name}"], {})


def leaf(path, **examples):
    data = {name: {"x": x, "y": y} for name, (x, y) in examples.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    counts = [len(y) for _, y in examples.values()]
    path.write_text(json.dumps({"users": [*data], "num_samples": counts, "user_data": data}))


def test_leaf_keeps_its_users(conversion, tmp_path):
    """Users are clients, of training and of test examples; a user may be in several files."""
    leaf(tmp_path / "leaf/train/a.json", f1=([[0, 1], [2, 3]], [3, 1]), f0=([[4, 5]], [0]), f2=([], []))
    leaf(tmp_path / "leaf/train/b.json", f1=([[6, 7.5]], [2]))
    leaf(tmp_path / "leaf/test/a.json", f0=([[8, 9], [10, 11]], [1, 2]))
    conversion("from_leaf.py")
    data = Npz("leaf.npz").load()
    assert data.x_train.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7.5]]
    assert (data.y_train.tolist(), data.owners.tolist()) == ([3, 1, 0, 2], ["f1", "f1", "f0", "f1"])
    assert data.x_test.tolist() == [[8, 9], [10, 11]]
    assert (data.y_test.tolist(), data.owners_test.tolist()) == ([1, 2], ["f0", "f0"])
    world = World(0, ByColumn(), Npz("leaf.npz"))
    splits = world.split(4, owners=world.load().owners)
    assert (splits["train"].names, splits["train"].sizes.tolist()) == (["f0", "f1"], [1, 3])


def test_libsvm(conversion, tmp_path):
    (tmp_path / "a9a").write_text("+1 1:0.5 3:2 # a comment\n-1 2:-1e-1\n-1\n+1 3:4\n")
    (tmp_path / "a9a.t").write_text("-1 1:3\n+1 2:1\n")
    conversion("from_libsvm.py")
    data = Npz("a9a.npz").load()
    np.testing.assert_allclose(data.x_train, [[0.5, 0, 2], [0, -0.1, 0], [0, 0, 0], [0, 0, 4]])
    assert (data.y_train.tolist(), data.class_names) == ([1, 0, 0, 1], ("-1", "1"))
    np.testing.assert_allclose(data.x_test, [[3, 0, 0], [0, 1, 0]])
    assert data.y_test.tolist() == [0, 1]


def test_files_that_cannot_be_read(tmp_path):
    """Are one line: none there, a torn archive, a pipe."""
    with pytest.raises(UserError, match="there is no such file"):
        Csv(str(tmp_path / "none.csv"), "label").load()
    torn = bytearray(gzip.compress(b"1,2,label\n" * 1000))
    torn[15:25] = b"\xff" * 10
    for content in (bytes(torn), torn[:20], b"no archive"):
        (tmp_path / "d.csv.gz").write_bytes(content)
        with pytest.raises(UserError, match="cannot be read"):
            Csv(str(tmp_path / "d.csv.gz"), "label").load()
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(UserError, match="must be a regular file"):
        Csv(str(tmp_path / "pipe.csv"), "label").load()


# Memory


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.csv", "a,y\n" + "1,1\n1,2\n" * 10_000),
        ("t.csv.gz", "a,b,c,d,e,f,g,h,y\n" + f"{'0,' * 8}1\n{'0,' * 8}2\n" * 10_000),
        ("t.csv", "a,y\n" + "0.123456,a\n0.123456,b\n" * 10_000),
    ],
)
def test_what_reading_takes_is_reckoned_with(name, text, tmp_path, monkeypatch):
    """A file is refused with no more memory than reading takes, and not with five times as much."""
    path, content = tmp_path / name, text.encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    table = Csv(str(path), "y")
    table.load()  # what is imported first counts for nobody
    tracemalloc.start()
    table.load()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    monkeypatch.setattr("fedopt.data.arrays.memory", lambda: memory)
    memory = peak
    with pytest.raises(UserError, match=r"GB of memory, and this machine has"):
        table.load()
    memory = 5 * peak
    table.load()


def test_small_files_that_hold_much_are_refused(tmp_path, monkeypatch):
    """A table whose cells are one digit each, in a .gz: numbers are counted before they are made."""
    monkeypatch.setattr("fedopt.data.arrays.memory", lambda: 10**6)
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(("a,b,y\n" + "0,0,1\n0,1,2\n" * 5000).encode()))
    with pytest.raises(UserError, match=r"needs about 0\.0013 GB of memory, and this machine has 0\.001 GB"):
        Csv(str(tmp_path / "t.csv.gz"), "y").load()
