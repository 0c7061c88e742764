"""One small table in random spellings, types and encodings, through every reader: the same rows, or one clear line."""

import gzip
import random
import tempfile
import traceback
import unicodedata
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from omegaconf import OmegaConf
from PIL import Image
from trials import LONGEST, Failure

from fedopt.config.files import content
from fedopt.data.datasets import Npz
from fedopt.data.folders import Folder
from fedopt.data.labelled import DatasetSource, LabelledData
from fedopt.data.partitioners import ByColumn
from fedopt.data.tables import Csv
from fedopt.data.world import World
from fedopt.errors import UserError

ROWS, TESTED = 12, 4
NAMES = [  # of clients and classes: texts are texts, however much they look like numbers
    ["north", "south", "caf\u00e9"],
    ["1", "2", "10"],
    ["007", "7", "07"],
    ["1e5", "100000", "10e4"],
    ["New York", "1 11", "11 1"],
    ["\u00c5", "x", "-3"],
    ["0", "1", "2"],
]
Row = tuple[list[float], str, str]  # features, of which the first is the row's number; class; client


def same(rng: random.Random, name: str) -> str:
    """A name in a spelling that means the same."""
    ends = ["", "", " ", "\u00a0", "\u3000"]
    name = unicodedata.normalize("NFD", name) if rng.random() < 0.5 else name
    return rng.choice(ends[:4]) + name + rng.choice(ends)


def other(rng: random.Random, name: str) -> str:
    """A name in a spelling that need not mean the same."""
    wide = "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in name)
    forms = [
        name.upper(),
        name.title(),
        name.replace(" ", "\u00a0"),
        wide,
    ]
    return rng.choice([*forms, *([name + ".0", name + ".", "+" + name] if name in ("0", "1", "2", "7", "10") else [])])


def number(rng: random.Random, value: float) -> str:
    forms = [f"{value!r}", f"{value:.12g}", f"{value:+.12g}", f"{value:.17e}", f"{value:.12g} "]
    odd = ["1_0", "0x1", "\u0661", "", "nan", "1e999", f"{value:.12g}".replace(".", ",")]
    return rng.choice(odd) if rng.random() < 0.003 else rng.choice(forms)


def spelt(rng: random.Random, rows: list[Row]) -> list[tuple[list[str], str, str]]:
    change = rng.choice([lambda _, name: name, same, same, other])
    share = rng.choice([0.1, 0.5, 1.0])
    vary = lambda name: change(rng, name) if rng.random() < share else name  # noqa: E731
    return [([number(rng, value) for value in x], vary(label), vary(client)) for x, label, client in rows]


def write(rng: random.Random, path: Path, lines: list[str]) -> Path:
    end = rng.choice(["\n", "\n", "\r\n", "\r"])
    text = end.join(lines) + rng.choice(["", end])
    data = text.encode(rng.choice(["utf-8", "utf-8", "utf-8-sig", "utf-16"]))
    if path.suffix != ".txt" and rng.random() < 0.3:
        path, data = path.with_name(path.name + ".gz"), gzip.compress(data)
    path.write_bytes(data)
    return path


def as_csv(rng: random.Random, folder: Path, rows: list[Row]) -> DatasetSource:
    mark = rng.choice([",", ";", "\t"])
    quote = lambda cell: f'"{cell}"' if mark in cell or rng.random() < 0.1 else cell  # noqa: E731
    lines = [[*x, label, client] for x, label, client in spelt(rng, rows)]
    parts = ["train"] * (ROWS - TESTED) + ["test"] * TESTED
    cells = [["a", "b", "class", "who", "part"], *([*line, part] for line, part in zip(lines, parts, strict=True))]
    path = write(rng, folder / "t.csv", [mark.join(map(quote, line)) for line in cells])
    return Csv(str(path), "class", client="who", split="part")


def as_npz(rng: random.Random, folder: Path, rows: list[Row]) -> DatasetSource:
    texts = spelt(rng, rows)
    x = np.array([x for x, *_ in rows]).astype(rng.choice(["f4", "f8", ">f8", ">f4"]))
    label, client = (np.array(column) for column in list(zip(*texts, strict=True))[1:])
    for k, column in enumerate((label, client)):
        names = [row[2] if k else row[1] for row in rows]
        if all(name.isdecimal() and str(int(name)) == name for name in names) and rng.random() < 0.7:
            kinds = ["i1", "i8", "u2", ">i4", *(["f8", "f4"] if k == 0 else [])]
            column = np.array([*map(int, names)]).astype(rng.choice(kinds))
            label, client = (column, client) if k == 0 else (label, column)
    arrays = {"x": x, "y": label, "client": client}
    of_train, of_test = slice(0, ROWS - TESTED), slice(ROWS - TESTED, None)
    parts: dict[str, Any] = {
        f"{key}_{split}": a[s] for key, a in arrays.items() for split, s in (("train", of_train), ("test", of_test))
    }
    np.savez(folder / "d.npz", **parts)
    return Npz(str(folder / "d.npz"))


def as_images(rng: random.Random, folder: Path, rows: list[Row]) -> DatasetSource:
    """The grey of an image is the row's number, and its height the other feature."""
    kind = rng.choice(["L", "RGB", "RGBA", "P", "F", "u2", "frames", "exif", "mixed"])
    for k, ((x, *_), (_, name, _)) in enumerate(zip(rows, spelt(rng, rows), strict=True)):
        place = folder / ("train" if k < ROWS - TESTED else "test") / name.replace("/", "")
        place.mkdir(parents=True, exist_ok=True)
        image = Image.new("L", (3, 2), int(x[0]))
        how = rng.choice(["L", "u2"]) if kind == "mixed" else kind
        options: dict[str, Any] = {}
        if how == "u2":
            image = Image.fromarray(np.asarray(image).astype("u2"))
        elif how == "exif":
            image, options["exif"] = image.rotate(90, expand=True), Image.Exif()
            options["exif"][0x112] = 6
        elif how == "frames":
            options = {"save_all": True, "append_images": [Image.new("L", (3, 2), 255 - k)]}
        else:
            image = image.convert(how)
        image.save(place / f"{k}.{'tif' if how == 'F' else 'png'}", **options)
    return Folder(str(folder))


MAKERS: list[Callable[[random.Random, Path, list[Row]], DatasetSource]] = [
    as_csv,
    as_npz,
    as_images,
]


def read(source: DatasetSource, folder: Path) -> LabelledData:
    who = folder / "who.txt"
    return World(0, ByColumn(file=str(who) if who.exists() else None), source).load()


def wrong(data: LabelledData, rows: list[Row], images: bool) -> str:
    """What differs from the rows, in words."""
    x = np.concatenate([data.x_train, data.x_test]).reshape(ROWS, -1)
    names = data.class_names or tuple(map(str, range(data.classes)))
    labels = [names[y] for y in (*data.y_train, *data.y_test)]
    clients = [None] * ROWS if images else [str(name) for name in (*data.owners, *data.owners_test)]  # type: ignore[misc]
    found = {round(of[0]): (of, *more) for of, *more in zip(x, labels, clients, strict=True)}
    meant = [dict[str, str](), dict[str, str]()], [dict[str, str](), dict[str, str]()]  # names that are one name
    for values, *given in rows:
        of, *more = found.get(int(values[0]), (np.empty(0), "", ""))
        for one, another, pairs in zip(given, map(str, more), zip(*meant, strict=True), strict=True):
            if (pairs[0].setdefault(one, another), pairs[1].setdefault(another, one)) != (
                another,
                one,
            ) and another != "None":
                return f"{one} is {another} and {pairs[0][one]}, {another} is {one} and {pairs[1][another]}"
        if not len(of) or (not images and not np.allclose(of, values, rtol=1e-6, atol=0)):
            return f"row {values[0]:.0f} has {of}, and not {values}"
    return ""


def of_yaml(rng: random.Random, path: Path) -> str:
    """A number of YAML that is not ten, or a key that stands twice, and is read all the same."""
    text = rng.choice(["10", "+10", "1_0", "0xA", "0b1010", "1e1", "1.0e+1", "10.0", "0o12", "0:10", "'10'", "1E1"])
    key = rng.choice(["seed", "a", "010", "'a b'"])
    lines = [
        rng.choice(["", "# @package _global_"]),
        f"{key}: {text}",
        rng.choice(["b: 1", f"{key}: 11", "b: {c: 1, c: 2}"]),
    ]
    write(rng, path, lines)
    found = content(path)
    values = next(iter(found.values()), 10)
    if lines[2] != "b: 1":
        return f"{lines} is {found}"
    if path.read_bytes()[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return ""  # which Hydra refuses
    with open(path, encoding="utf-8") as file:
        by_hydra = next(iter(OmegaConf.to_container(OmegaConf.load(file)).values()))  # type: ignore[union-attr]
    return "" if values == by_hydra and (isinstance(values, str) or values == 10) else f"{lines} is {found}, {by_hydra}"


def trial(rng: random.Random, number: int) -> Failure | None:
    """The readers in turn, and files of YAML."""
    names, label_names = rng.choice(NAMES), rng.choice(NAMES)
    rows = [
        ([10.0 + k, rng.choice([1, 1.5, 1e-7, 1.7e9 + k])], label_names[k % 3], names[k // 2 % 3]) for k in range(ROWS)
    ]
    made = [*MAKERS, None][number % (len(MAKERS) + 1)]
    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
        warnings.simplefilter("error")
        folder = Path(scratch)
        said = ""
        try:
            if made is None:
                said = of_yaml(rng, folder / "x.txt")
            elif made is as_images:
                said = wrong(made(rng, folder, rows).load(), rows, True)
            else:
                said = wrong(read(made(rng, folder, rows), folder), rows, False)
        except (UserError, yaml.YAMLError) as error:
            line = str(error)
            if "\n" in line or len(line) > LONGEST:
                return Failure("not one line", [str(made)], line)
        except Exception:
            return Failure("traceback", [str(made)], traceback.format_exc())
        if said:
            shown = "".join(
                f"{file.name}: {file.read_bytes()[:1500]!r}\n" for file in folder.rglob("*") if file.is_file()
            )
            return Failure("other numbers", [f"{made.__name__ if made else 'of_yaml'}"], f"{said}\n{shown}")
    return None
