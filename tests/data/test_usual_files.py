"""Files of the kinds that people have: read where they are unambiguous, with a note, and never wrongly without a word."""

import gzip
import json
import os
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from fedopt.data import arrays
from fedopt.data.arrays import divided
from fedopt.data.datasets import Npz
from fedopt.data.folders import Folder
from fedopt.data.leaf import Leaf
from fedopt.data.partitioners import ByColumn
from fedopt.data.sparse import Libsvm
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
        ("age,dose,label\n1,1,659,a\n2,2,659,b\n", "row.*1 below.*names.*4 cells.*3 names"),
        ("age,label\n1,a,\n2,b,\n", "row.*1.*below.*names.*3 cells"),  # a last column without a name
        ("age,label\n1,a\n2\n", "row.*2.*below.*names.*1 cells"),
        ("age,label\n1,a\n2,b,3\n", "row.*2 below.*names.*3 cells"),
        ("age;dose,label\n1;2,a\n", "age;dose"),
    ],
)
def test_rows_that_do_not_fit_their_names(text, said, tmp_path):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(UserError, match=said):
        Csv(str(tmp_path / "t.csv"), "label").load()


def test_a_first_line_that_looks_like_values(tmp_path):
    (tmp_path / "t.csv").write_text("5.1,3.5,0\n" + "".join(f"{k},{2 * k},{k % 2}\n" for k in range(10)))
    data = Csv(str(tmp_path / "t.csv"), "0").load()
    assert "looks like values (5.1, 3.5, 0)" in data.notes[0]


def test_mixed_columns_give_no_warning_of_pandas(tmp_path):
    rows = "".join(f"{k},{k if k % 2 else 'x'},{k % 2}\n" for k in range(300_000))
    (tmp_path / "t.csv").write_text("age,other,label\n" + rows)
    with pytest.raises(UserError, match=r"column.*other"):
        Csv(str(tmp_path / "t.csv"), "label").load()


# .npz


@pytest.mark.parametrize(
    ("labels", "wanted", "names"),
    [
        (np.array([-1, 1] * 4), [0, 1] * 4, ("-1", "1")),
        (np.array([-1.0, 1.0] * 4), [0, 1] * 4, ("-1", "1")),
        (np.array(["yes", "no"] * 4), [1, 0] * 4, ("no", "yes")),
        (np.array([0.0, 1.0] * 4), [0, 1] * 4, ()),
        (np.array([0, 1] * 4)[:, None], [0, 1] * 4, ()),
        (np.array([True, False] * 4), [1, 0] * 4, ()),
    ],
)
def test_labels_as_people_have_them(labels, wanted, names, tmp_path):
    x = np.arange(16.0).reshape(8, 2)
    np.savez(tmp_path / "d.npz", x_train=x, y_train=labels, x_test=x[:2], y_test=labels[:2])
    data = Npz(str(tmp_path / "d.npz")).load()
    assert (data.y_train.tolist(), data.y_test.tolist(), data.class_names) == (wanted, wanted[:2], names)
    assert len(data.notes) == 1


def test_features_that_are_true_or_false(tmp_path):
    x, y = np.eye(4, dtype=bool), np.array([0, 1, 0, 1])
    np.savez(tmp_path / "d.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    data = Npz(str(tmp_path / "d.npz")).load()
    assert data.x_train.tolist() == np.eye(4).tolist()
    assert "true or false" in data.notes[0]


# libsvm


LINES = "+1 1:0.5 3:2 # a comment\n-1 2:-1e-1\n\n# all of a line\n-1\n+1 3:4\n"


@pytest.mark.parametrize("name", ["a9a", "a9a.gz"])
def test_libsvm(name, tmp_path):
    for file, text in ((name, LINES), (f"test{name}", "-1 1:3\n+1 2:1\n")):
        content = text.encode()
        (tmp_path / file).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    data = Libsvm(str(tmp_path / name), str(tmp_path / f"test{name}")).load()
    np.testing.assert_allclose(data.x_train, [[0.5, 0, 2], [0, -0.1, 0], [0, 0, 0], [0, 0, 4]])
    assert (data.y_train.tolist(), data.class_names) == ([1, 0, 0, 1], ("-1", "1"))
    np.testing.assert_allclose(data.x_test, [[3, 0, 0], [0, 1, 0]])
    assert data.y_test.tolist() == [0, 1]
    assert Libsvm(str(tmp_path / name), features=5, test=0.25).load().x_train.shape == (3, 5)
    with pytest.raises(UserError, match=r"feature 3.*dataset\.features=2"):
        Libsvm(str(tmp_path / name), features=2).load()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1 a:2\n", "line.*1.*form"),
        ("1 1:2\n2,3 1:2\n", "line.*2.*form 'label index:value.*label.*2,3 1:2"),
        ("1 1:2\n1 2\n", "line.*2.*form"),
        ("1 0:2\n-1 1:1\n", "line.*1.*index 0.*1"),
        ("1 1:2\n-1 1:1 2:1 1:3\n", "line.*2.*index 1 more than once"),
        ("1.5 1:2\n2 1:1\n", "has fractions such as 1.5"),
        ("1 1:x\n-1 1:1\n", "line 1: could not convert"),
        ("1 1:1_0\n-1 1:1\n", "line.*1.*form"),
        ("1 1:2\n\0\n", "is not text in UTF-8, since it has zero bytes"),
        ("", "has no lines"),
        ("1 9999999999:1\n-1 1:1\n", "GB of memory"),
    ],
)
def test_lines_that_are_none_of_libsvm(text, said, tmp_path):
    (tmp_path / "t").write_text(text)
    with pytest.raises(UserError, match=said):
        Libsvm(str(tmp_path / "t")).load()


# Folders of images


def images(folder, *names, count=4, start=0):
    for k, name in enumerate(names):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            Image.fromarray(np.full((2, 2), start + 20 * k + i, dtype=np.uint8)).save(
                folder / name / f"{start + i}.png"
            )


@pytest.mark.parametrize("names", [("train", "val"), ("Train", "VALID"), ("training", "Validation")])
def test_folders_for_training_and_validation(names, tmp_path):
    for number, split in enumerate(names):
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


def test_what_is_no_split_and_no_class(tmp_path):
    images(tmp_path / "deep" / "flowers", "bees", "ants")
    with pytest.raises(UserError, match=r"lies.*folder.*flowers"):
        Folder(str(tmp_path / "deep")).load()
    images(tmp_path / "single", "bees")
    with pytest.raises(UserError, match="bees is the only class"):
        Folder(str(tmp_path / "single")).load()
    for split in ("train", "test", "other"):
        images(tmp_path / "three" / split, "ants", "bees")
    with pytest.raises(UserError, match="and also the folder other"):
        Folder(str(tmp_path / "three")).load()


def test_hidden_files_are_passed_over_and_equal_ones_said(tmp_path):
    for number, split in enumerate(("train", "test")):
        images(tmp_path / split, "ants", "bees", start=50 * number)
    before = Folder(str(tmp_path)).load()
    assert before.notes == ()
    images(tmp_path / "train" / "ants", ".ipynb_checkpoints")
    images(tmp_path / "train", "__MACOSX", ".thumbs")
    for name in ("._0.png", "Thumbs.db", ".DS_Store", "notes.txt"):
        (tmp_path / "train" / "bees" / name).write_bytes(b"x")
    data = Folder(str(tmp_path)).load()
    np.testing.assert_array_equal(data.x_train, before.x_train)
    assert data.notes == ("16 files are ignored, since they are hidden, or not images in a folder of a class",)
    (tmp_path / "test" / "ants" / "copy.png").write_bytes((tmp_path / "train" / "ants" / "0.png").read_bytes())
    assert Folder(str(tmp_path)).load().notes[1] == "1 training images are equal to a test image"


GREY = np.random.default_rng(0).integers(0, 256, (8, 5, 4), dtype=np.uint8)


def odd_images(folder, ending, made, **how):
    """Eight images that `made` makes of grey ones, in two classes; the data, and the images in their order."""
    for number, grey in enumerate(GREY):
        (folder / "ab"[number // 4]).mkdir(exist_ok=True, parents=True)
        made(grey).save(folder / "ab"[number // 4] / f"{number}.{ending}", **how)
    data = Folder(str(folder), test=0.25).load()
    _, test = divided(8, 0.25, 0, folder)
    x = np.empty((8, *data.x_train.shape[1:]), data.x_train.dtype)
    x[np.setdiff1d(np.arange(8), test)], x[test] = data.x_train, data.x_test
    return data, x


def deep(kind, factor):
    return lambda grey: Image.fromarray((grey * np.array(factor)).astype(kind))


@pytest.mark.parametrize(
    ("ending", "made", "factor"),
    [
        ("png", deep("u2", 257), 257),
        ("tif", deep("u2", 257), 257),
        ("pgm", deep("i4", 257), 257),
        ("tif", deep("i4", 2**20), 2**20),
        ("tif", deep("f4", 0.25), 0.25),
        ("tif", deep("f4", 1e6), 1e6),
    ],
)
def test_images_of_more_than_8_bits_keep_their_numbers(ending, made, factor, tmp_path):
    _, x = odd_images(tmp_path, ending, made)
    np.testing.assert_array_equal(x[:, 0], GREY * np.float32(factor))


def of_alpha(mode):
    """Black, with grey as the transparency."""
    return lambda grey: Image.merge(mode, [*[Image.new("L", (4, 5))] * (len(mode) - 1), Image.fromarray(grey)])


@pytest.mark.parametrize(("mode", "channels"), [("LA", 2), ("RGBA", 4)])
def test_transparency_is_a_channel(mode, channels, tmp_path):
    data, x = odd_images(tmp_path, "png", of_alpha(mode))
    assert x.shape[1] == channels
    np.testing.assert_array_equal(x[:, -1], GREY)
    assert data.notes == ("some images are transparent: transparency is the last channel",)


def test_a_transparent_colour_is_transparency(tmp_path):
    _, x = odd_images(tmp_path, "png", lambda grey: Image.fromarray(grey % 2 * 200), transparency=200)
    np.testing.assert_array_equal(x[:, 1], np.where(GREY % 2, 0, 255))


def test_what_is_opaque_has_no_transparency(tmp_path):
    opaque = lambda grey: Image.merge("LA", [Image.fromarray(grey), Image.new("L", (4, 5), 255)])  # noqa: E731
    data, x = odd_images(tmp_path, "png", opaque)
    np.testing.assert_array_equal(x, GREY[:, None])
    assert data.notes == ()


@pytest.mark.parametrize(("orientation", "turns"), [(3, 2), (6, -1), (8, 1)])
def test_images_stand_upright(orientation, turns, tmp_path):
    exif = Image.Exif()
    exif[0x112] = orientation
    _, x = odd_images(tmp_path, "png", Image.fromarray, exif=exif)
    np.testing.assert_array_equal(x[:, 0], np.rot90(GREY, turns, (1, 2)))


def test_images_that_would_lose_something_are_refused(tmp_path):
    more = [Image.fromarray(255 - GREY[0])]
    for ending in ("gif", "png", "tif"):
        with pytest.raises(UserError, match=rf"{ending}: has 2 frames; save"):
            odd_images(tmp_path / ending, ending, Image.fromarray, save_all=True, append_images=more)
    with pytest.raises(UserError, match="has numbers of more than 24 bits"):
        odd_images(tmp_path / "large", "tif", lambda grey: Image.fromarray(grey.astype("i4") + 2**30))
    with pytest.raises(UserError, match=r"png: has more than 8 bits per pixel, and .*png has 8"):
        odd_images(
            tmp_path / "mixed", "png", lambda grey: Image.fromarray(grey.astype("u2") if grey[0, 0] % 2 else grey)
        )


def test_classes_whose_folders_look_alike(tmp_path):
    """Names as those of all other data: accents of a Mac are those of others."""
    images(tmp_path / "same" / "train", "caf\u00e9", "tea")
    images(tmp_path / "same" / "test", "cafe\u0301", "tea", start=100)
    data = Folder(str(tmp_path / "same")).load()
    assert (data.class_names, len(data.y_test)) == (("caf\u00e9", "tea"), 8)
    images(tmp_path / "odd", "a tea", "a\u00a0tea")
    with pytest.raises(UserError, match=r"odd.*write them"):
        Folder(str(tmp_path / "odd")).load()


# LEAF


def leaf(path, examples, **changed):
    """A file that says of each user its x and y."""
    data = {name: {"x": x, "y": y} for name, (x, y) in examples.items()}
    content = {"users": [*data], "num_samples": [len(y) for _, y in examples.values()], "user_data": data} | changed
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def rows_of(start, count, width=4):
    return (start + np.arange(count * width).reshape(count, width)).tolist()


def test_leaf_in_folders(tmp_path):
    """Users are owners, of training and of test examples; a user may stand in several files."""
    leaf(tmp_path / "train" / "a.json", {"f1": (rows_of(0, 2), [3, 1]), "f0": (rows_of(50, 1), [0]), "f2": ([], [])})
    leaf(tmp_path / "train" / "b.json.gz", {"f1": (rows_of(20, 1), [2])})
    leaf(tmp_path / "test" / "a.json", {"f0": (rows_of(90, 2), [1, 2])})
    (tmp_path / "train" / "._a.json").write_bytes(b"\0")
    (tmp_path / "sampled_data").mkdir()
    data = Leaf(str(tmp_path)).load()
    assert data.x_train.tolist() == [*rows_of(0, 2), *rows_of(50, 1), *rows_of(20, 1)]
    assert (data.y_train.tolist(), data.owners.tolist()) == ([3, 1, 0, 2], ["f1", "f1", "f0", "f1"])
    assert (data.y_test.tolist(), data.owners_test.tolist()) == ([1, 2], ["f0", "f0"])
    assert len(data.notes) == 1
    assert "2 users" in data.notes[0]
    world = World(0, ByColumn(), Leaf(str(tmp_path)))
    splits = world.split(4, owners=world.load().owners)
    assert (splits["train"].names, splits["train"].sizes.tolist()) == (["f0", "f1"], [1, 3])
    images = Leaf(str(tmp_path), shape=[2, 2]).load()
    np.testing.assert_array_equal(images.x_train[:, 0].reshape(4, 4), data.x_train)


@pytest.mark.parametrize("name", ["d.json", "d.json.gz", "folder/d.json"])
def test_leaf_in_one_file(name, tmp_path):
    users = {f"u{i}": (rows_of(100 * i, 5), ["no", "yes", "no", "yes", "yes"]) for i in range(4)}
    path = leaf(tmp_path / name, users)
    data = Leaf(str(path.parent if "/" in name else path)).load()
    assert (len(data.y_train), len(data.y_test), data.class_names) == (16, 4, ("no", "yes"))
    for x, y, owner in zip(data.x_train, data.y_train, data.owners, strict=True):
        user, row = divmod(int(x[0]), 100)
        assert (owner, ["no", "yes", "no", "yes", "yes"][row // 4]) == (f"u{user}", data.class_names[y])
    assert [note.split(":")[0].split(",")[0] for note in data.notes] == ["4 users", "classes are numbered"]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"users": ["u"]}, "must have users, num_samples and user_data"),
        ({"user_data": []}, "must have users, num_samples and user_data"),
        ({"users": None}, "must have users, num_samples and user_data"),
        ({"users": ["u", "u", "w"]}, "must have users, num_samples and user_data"),
        ({"num_samples": [2]}, "must have users, num_samples and user_data"),
        ({"num_samples": [2, 3]}, "user w: has 2 examples, and num_samples says 3"),
        ({"num_samples": ["2", 2]}, "user u: has 2 examples"),
    ],
)
def test_files_that_are_none_of_leaf(changed, said, tmp_path):
    users = {name: ([[1, 2], [3, 4]], [0, 1]) for name in "uw"}
    path = leaf(tmp_path / "d.json", users, **changed)
    with pytest.raises(UserError, match=rf"d\.json: {said}"):
        Leaf(str(path)).load()


@pytest.mark.parametrize(
    ("x", "y", "said"),
    [
        (["to be", "or no"], ["t", "t"], "x must be a list of"),
        ([[1, 2], [3]], [0, 1], "x must be a list of"),
        ([[1, "2"], [3, 4]], [0, 1], "x must be a list of"),
        ([[1, None], [3, 4]], [0, 1], "x must be a list of"),
        ([1, 2], [0, 1], "x must be a list of"),
        (None, [0, 1], "x must be a list of"),
        ([[1, 2]], [0, 1], "x must be a list of"),
        ([[1, 2], [3, 4]], "01", "x must be a list of"),
        ([[1, 2], [3, 4]], [0, "1"], "whole numbers.*texts"),
        ([[1, 2], [3, 4]], [0, 1.5], "whole numbers.*texts"),
        ([[1, 2], [3, 4]], [True, False], "whole numbers.*texts"),
        ([[1, 2, 3], [4, 5, 6]], [0, 1], "the shape of examples or the type of labels"),
        ([[1, 2], [3, 4]], ["a", "b"], "the type of labels differs from .* u;"),
    ],
)
def test_users_whose_examples_are_odd(x, y, said, tmp_path):
    path = leaf(tmp_path / "d.json", {"u": ([[1, 2], [3, 4]], [0, 1]), "odd": (x, y)}, num_samples=[2, 2])
    with pytest.raises(UserError, match=rf"d\.json: user odd.*{said}"):
        Leaf(str(path)).load()


def test_leaf_with_other_shapes_or_nothing(tmp_path):
    path = leaf(tmp_path / "d.json", {"u": ([[1, 2], [3, 4], [5, 6]], [0, 1, 1])})
    with pytest.raises(UserError, match=r"dataset\.shape=\[2, 2\]"):
        Leaf(str(path), shape=[2, 2]).load()
    with pytest.raises(UserError, match="has no examples"):
        Leaf(str(leaf(tmp_path / "none.json", {}))).load()
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"examples.*json files"):
        Leaf(str(tmp_path / "empty")).load()
    for text in ("{", "[" * 100_000, '{"users": 1e'):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(UserError, match=r"bad\.json.*JSON"):
            Leaf(str(tmp_path / "bad.json")).load()
    for text in ("[]", "1", "null"):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(UserError, match=r"bad\.json.*users"):
            Leaf(str(tmp_path / "bad.json")).load()


READERS = {"csv": lambda path: Csv(path, "label"), "txt": Libsvm, "json": Leaf}


@pytest.mark.parametrize("end", READERS)
def test_files_that_cannot_be_read(end, tmp_path):
    """Are one line: none there, a torn archive, a folder, a pipe."""
    read = lambda path: READERS[end](str(path)).load()  # noqa: E731
    with pytest.raises(UserError, match="there is no such file"):
        read(tmp_path / f"none.{end}")
    torn = bytearray(gzip.compress(b"1,2,label\n" * 1000))
    torn[15:25] = b"\xff" * 10
    for content in (bytes(torn), torn[:20], b"no archive"):
        (tmp_path / f"d.{end}.gz").write_bytes(content)
        with pytest.raises(UserError, match="cannot be read"):
            read(tmp_path / f"d.{end}.gz")
    os.mkfifo(tmp_path / f"pipe.{end}")
    with pytest.raises(UserError, match="must be a regular file"):
        read(tmp_path / f"pipe.{end}")


def test_labels_of_libsvm_that_are_one_number(tmp_path):
    (tmp_path / "t").write_text("1 1:1\n1.0 1:2\n+1 1:3\n10 1:4\n2 1:5\n")
    data = Libsvm(str(tmp_path / "t"), str(tmp_path / "t")).load()
    assert (data.y_train.tolist(), data.class_names) == ([0, 0, 0, 2, 1], ("1", "2", "10"))


# Memory


def leaf_text(row, count):
    x, y = ",".join([row] * count), ",".join(["0,1"] * (count // 2))
    return f'{{"users":["u"],"num_samples":[{count}],"user_data":{{"u":{{"x":[{x}],"y":[{y}]}}}}}}'


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "text", "make"),
    [
        ("t.csv", "a,y\n" + "1,1\n1,2\n" * 10_000, lambda path: Csv(path, "y")),
        ("t.csv.gz", "a,b,c,d,e,f,g,h,y\n" + f"{'0,' * 8}1\n{'0,' * 8}2\n" * 10_000, lambda path: Csv(path, "y")),
        ("t.csv", "a,y\n" + "0.123456,a\n0.123456,b\n" * 10_000, lambda path: Csv(path, "y")),
        ("t.svm", "1 1:1 2:1 3:1 4:1\n2 1:1\n" * 3000, Libsvm),
        ("t.svm", "1 1:1\n2\n" * 5000, Libsvm),
        ("t.json", leaf_text("[1]", 10_000), Leaf),
        ("t.json", leaf_text("[0.5,0.5,0.5]", 10_000), Leaf),
    ],
)
def test_what_reading_takes_is_reckoned_with(name, text, make, tmp_path, monkeypatch):
    """A file is refused with no more memory than reading takes, and not with five times as much."""
    path, content = tmp_path / name, text.encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    make(str(path)).load()  # what is imported first counts for nobody
    tracemalloc.start()
    make(str(path)).load()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    monkeypatch.setattr("fedopt.data.arrays.memory", lambda: memory)
    memory = peak
    with pytest.raises(UserError, match=r"GB of memory, and this machine has"):
        make(str(path)).load()
    memory = 5 * peak
    make(str(path)).load()


def test_small_files_that_hold_much_are_refused(tmp_path, monkeypatch):
    """A table whose cells are one digit each, in a .gz: numbers are counted before they are made."""
    monkeypatch.setattr("fedopt.data.arrays.memory", lambda: 10**6)
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(("a,b,y\n" + "0,0,1\n0,1,2\n" * 5000).encode()))
    with pytest.raises(UserError, match=r"6e-05 GB.*0\.001.*GB.*memory"):
        Csv(str(tmp_path / "t.csv.gz"), "y").load()
    for source in (
        Libsvm(str(written(tmp_path / "t.svm", "1 1:1\n" * 9000))),
        Leaf(str(leaf(tmp_path / "d.json", {"u": ([[1]] * 9000, [0] * 9000)}))),
    ):
        with pytest.raises(UserError, match="GB of memory"):
            source.load()


def written(path, text):
    path.write_text(text)
    return path


@pytest.mark.parametrize("kind", ["csv.gz", "svm.gz", "npz"])
def test_a_small_file_that_unpacks_to_much_is_refused(kind, monkeypatch, tmp_path):
    """In one line that says how to read it all the same; a file whose content is as large as it seems is read."""
    monkeypatch.setattr(arrays, "MOST_UNCHECKED", 2**20, raising=False)
    path, rows, y = tmp_path / f"own.{kind}", 60_000, np.arange(60_000) % 2
    if kind == "npz":
        made = {"x_train": np.zeros((rows, 3)), "y_train": y, "x_test": np.zeros((2, 3)), "y_test": y[:2]}
        np.savez_compressed(path, **made)
        source = Npz(str(path))
    else:
        text = "a,y\n" + "1,0\n2,1\n" * (rows // 2) if kind == "csv.gz" else "0 1:1\n1 1:2\n" * (rows // 2)
        path.write_bytes(gzip.compress(text.encode()))
        source = Csv(str(path), "y") if kind == "csv.gz" else Libsvm(str(path))
    with pytest.raises(UserError, match=r"more than 500 times the size of this file; .* unpack it first \(gunzip\)"):
        source.load()
    if kind == "npz":
        np.savez(path, **made)
    else:
        path.with_suffix("").write_text(text)
        source = replace(source, path=str(path.with_suffix("")))
    assert len(source.load().y_train) > 0.7 * rows
