"""Labelled images, tables of features and texts as token ids: where they come from, and their form.

MNIST and the digits come with fedopt. Fashion-MNIST and CIFAR-10 are in the data folder, where torchvision puts them at first.
The data folder is `dataset.root`, else the environment variable FEDOPT_DATA, else ~/.cache/fedopt. A file `<name>.npz` in it is
read instead. Files with pickled objects are refused.
"""

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass as plain_dataclass
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, Protocol
from zipfile import ZipFile

import numpy as np
from pydantic import ConfigDict, StrictBool
from pydantic.dataclasses import dataclass

from fedopt.data.names import identifiers, numbered, one_number
from fedopt.errors import UserError, first_line, memory
from fedopt.randomness import Purpose, keyed_rng

_config = ConfigDict(extra="forbid")
Pixels = Literal["standardised", "unit", "raw"]
Channels = Literal["first", "last"]
MOST_CLASSES = 10_000
LEAST_RANGE = 1e-12  # of a column beside that of others, or 1; less is rounding
MOST_MAGNITUDE = 1e15  # of a feature: sums of squares stay within float32
KEYS = ("x_train", "y_train", "x_test", "y_test")
CLIENTS = ("client_train", "client_test")
VALIDATES = "val_train"
ARRAYS = (*KEYS, *CLIENTS, VALIDATES)  # of an .npz
SHIPPED = Path(__file__).parent  # the folder of the data that come with fedopt
DOWNLOADED = {  # the folder of torchvision's, the shape of an image, and where the data are from
    "fashion_mnist": ("FashionMNIST", "28, 28", "github.com/zalandoresearch/fashion-mnist"),
    "cifar10": ("cifar-10-batches-py", "32, 32, 3", "www.cs.toronto.edu/~kriz/cifar.html"),
}


@plain_dataclass(frozen=True)
class LabelledData:
    """x_*: images [n, channels, height, width] or a table [n, features], uint8 or float, or token ids [n, length], int64;
    y_*: [n], int64, 0 .. classes - 1.

    pixels: the form in which models see them, `standardised` to mean 0 and variance 1 over the training set (each channel, or each
        column of a table), `unit`, with the largest magnitude at 1, or `raw`, the numbers as they are.
    owners, owners_test: whose each example is, [n] of names or numbers, None where nothing says so.
    validates: which of the training examples are for validation, [n] of bool, None where nothing says so.
    class_names, feature_names: of the classes in order, and of a table's features, where they have names.
    left_out: how many examples for validation `without_validation` has left out. notes: what was taken for what, and what nothing
        reads.
    """

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    pixels: Pixels = "standardised"
    owners: np.ndarray | None = None
    owners_test: np.ndarray | None = None
    validates: np.ndarray | None = None
    class_names: tuple[str, ...] = ()
    feature_names: tuple[str, ...] = ()
    left_out: int = 0
    notes: tuple[str, ...] = ()

    @property
    def tokens(self) -> bool:
        """Whether x are token ids, which are not normalised."""
        return self.x_train.dtype == np.int64

    def without_validation(self) -> "LabelledData":
        """Without the training examples that are for validation, where something says which these are."""
        if self.validates is None:
            return self
        rows = np.flatnonzero(~self.validates)
        owners = None if self.owners is None else self.owners[rows]
        x, y, left_out = self.x_train[rows], self.y_train[rows], len(self.y_train) - len(rows)
        return replace(self, x_train=x, y_train=y, owners=owners, validates=None, left_out=left_out)

    def digest(self) -> str:
        """The same for the same data: examples, labels, owners, marks and names; notes do not count."""
        digest = sha256()
        for part in (name for name in self.__dataclass_fields__ if name != "notes"):
            array = np.asarray(getattr(self, part))
            array = np.ascontiguousarray(array.astype(str) if array.dtype == object else array)
            digest.update(f"{part} {array.dtype.str} {array.shape} ".encode())
            digest.update(array.reshape(-1).view(np.uint8).data)
        return digest.hexdigest()[:32]

    @property
    def classes(self) -> int:
        return int(max(self.y_train.max(), self.y_test.max())) + 1

    def normalisation(self) -> tuple[np.ndarray, np.ndarray]:
        """What is subtracted from x, and what the difference is then divided by, each [channels], or [features] of a table, in the
        units of x."""
        if self.pixels == "raw":
            return np.zeros(self.x_train.shape[1]), np.ones(self.x_train.shape[1])
        if self.x_train.ndim == 2:
            x, constant = self.x_train.astype(np.float64, copy=False), self._constant
            if self.pixels == "unit":
                largest = np.maximum(x.max(0), -x.min(0))
                return np.zeros(x.shape[1]), np.where(largest > 0, largest, 1)
            return np.where(constant, x[0], x.mean(0)), np.where(constant, 1, x.std(0))
        channels = self.x_train.shape[1]
        if self.pixels == "unit":
            return np.zeros(channels), np.full(channels, float(np.abs(self.x_train).max()) or 1.0)
        if self.x_train.dtype == np.uint8:  # exact, and without a larger copy of the data
            counts = np.zeros((channels, 256), dtype=np.int64)
            for images in np.array_split(self.x_train, -(-self.x_train.size // 2**26)):
                counts += [np.bincount(images[:, c].reshape(-1), minlength=256) for c in range(channels)]
            values, n = np.arange(256), counts[0].sum()
            mean, constant = counts @ values / n, counts.max(1) == n
            return mean, np.where(constant, 1, np.sqrt(counts @ values**2 / n - mean**2))
        in_double = [pixels.astype(np.float64, copy=False) for pixels in self.x_train.transpose(1, 0, 2, 3)]
        mean, std = np.array([(pixels.mean(), pixels.std()) for pixels in in_double]).T
        return mean, np.where(self._constant, 1, std)

    @property
    def _constant(self) -> np.ndarray:
        """Whether the values of each column or channel differ by no more than rounding, of their own or of the largest ones."""
        least, most = self._bounds
        eps = np.finfo(self.x_train.dtype).eps if self.x_train.dtype.kind == "f" else 0
        range_of = most - least
        own = range_of <= 8 * eps * np.maximum(np.abs(least), np.abs(most))
        return own | (range_of <= LEAST_RANGE * min(1, range_of.max()))

    @property
    def _bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """The least and the largest value of each column or channel, in double."""
        axes = (0, *range(2, self.x_train.ndim))
        return self.x_train.min(axes).astype(np.float64), self.x_train.max(axes).astype(np.float64)

    def rounding(self) -> list[str]:
        """A note on columns or channels that are constant but for rounding, which are not standardised."""
        floating = self.x_train.dtype.kind == "f"
        columns = np.flatnonzero(self._constant & np.less(*self._bounds)).tolist() if floating else []
        some = ", ".join(self.feature_names[c] if self.feature_names else str(c) for c in columns[:4])
        what = "columns" if self.x_train.ndim == 2 else "channels"
        said = f"differ by rounding alone, and are not divided by their deviation: {what} {some}{', ...' * (len(columns) > 4)}"
        return [said] if columns else []

    def redivided(self, test: float, rng: np.random.Generator) -> "LabelledData":
        """All examples, the fraction `test` of them, at random, for testing, and the rest for training.

        Raises UserError where only the training examples have owners.
        """
        if (self.owners is None) != (self.owners_test is None):
            raise UserError(f"problem.test={test}: the test examples have no owners; use problem.test=null")
        x, y = np.concatenate([self.x_train, self.x_test]), np.concatenate([self.y_train, self.y_test])
        held_out, rest = np.split(rng.permutation(len(y)), [round(test * len(y))])
        data = replace(self, x_train=x[rest], y_train=y[rest], x_test=x[held_out], y_test=y[held_out])
        if self.owners is None or self.owners_test is None:
            return data
        owners = np.concatenate([self.owners, self.owners_test])
        return replace(data, owners=owners[rest], owners_test=owners[held_out])


class DatasetSource(Protocol):
    """Where labelled data are loaded from."""

    def load(self) -> LabelledData: ...


def data_folder(root: str | None) -> Path:
    """The folder that data sets are read from."""
    return expanded(root or os.environ.get("FEDOPT_DATA") or "~/.cache/fedopt")


def expanded(path: str) -> Path:
    """With ~ as the home folder; the ~ of an unknown user stays."""
    return Path(os.path.expanduser(path))


def read_npz(path: Path, channels: Channels | None = None, tokens: bool = False) -> LabelledData:
    """The arrays `ARRAYS` of an .npz file; x is [n, h, w], [n, h, w, channels] or [n, features].

    client_train, client_test: [n], the owner of each example, optional; val_train: [n], true or 1 for training examples to
    validate on, optional. channels: where the dimension of the channels is, None for the last; tokens: x is [n, length], token ids.
    """
    if not path.is_file():
        raise UserError(f"{path}: there is no such file; it should be an .npz with {', '.join(KEYS)}")
    arrays, key = {}, "the archive"
    try:
        with ZipFile(path) as archive:
            refuse_larger(path, 1.4 * sum(array.file_size for array in archive.infolist()))  # bytes become float32
        with np.load(path, allow_pickle=False) as archive:
            for key in [key for key in ARRAYS if key in archive]:
                arrays[key] = archive[key]
            unread = ", ".join(name for name in archive.files if name not in ARRAYS)
    except UserError:
        raise
    except Exception as error:  # zipfile, zlib and numpy have many ways to say that a file is broken
        why = f"{key}: {first_line(error)}; a broken file is copied again, texts are saved with .astype('U')"
        raise UserError(f"{path}: not a readable .npz: {why}") from None
    missing = [key for key in KEYS if not isinstance(arrays.get(key), np.ndarray)]  # bytes are no array
    if missing:
        raise UserError(f"{path}: {', '.join(missing)} missing, or no array; an .npz needs {', '.join(KEYS)}")
    data = checked(arrays, path, channels, tokens)
    note = f"nothing reads the arrays {unread}; those known are {', '.join(ARRAYS)}"
    return replace(data, notes=(*data.notes, *[note] * bool(unread)))


def refuse_larger(path: Path, size: float, numbers: int = 0) -> None:
    """Raises UserError for more data than the memory here can take.

    Args:
        path: The file, for the message.
        size: The bytes of its text or its arrays, of which five copies are reckoned with.
        numbers: Those that are made of a text, of which each is reckoned with as 48 bytes: what was measured, and a fifth more.
    """
    if 5 * size + 48 * numbers > memory():
        large = f"{size / 1e9:.3g} GB" + (f" with {numbers:,} numbers" if numbers else "")
        raise UserError(f"{path}: {large} are too large for the {memory() / 1e9:.3g} GB of memory here")


def divided(count: int, test: float, seed: int, path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Which of so many examples are for training, and which for testing. Raises UserError where one of them has none."""
    held_out = round(test * count)
    if not 0 < held_out < count:
        raise UserError(f"{path}: dataset.test={test} of {count} examples leaves none to train or none to test on")
    order = keyed_rng(seed, Purpose.TEST).permutation(count)
    return np.sort(order[held_out:]), np.sort(order[:held_out])


def parted(columns: Mapping[str, np.ndarray], rows: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays of an .npz from x, y and client of all examples. rows: those for training, and those for testing."""
    splits = list(zip(("train", "test"), rows, strict=True))
    return {f"{key}_{split}": values[part] for key, values in columns.items() for split, part in splits}


def checked(
    arrays: dict[str, np.ndarray],
    path: Path,
    channels: Channels | None = None,
    tokens: bool = False,
    names: tuple[str, ...] = (),
    features: tuple[str, ...] = (),
) -> LabelledData:
    """Data from arrays by the names of an .npz. Raises UserError, which names the file, where they do not fit.

    Labels that are texts, or -1 and 1, are numbered in their order; true, false and whole numbers of floating point are taken as
    whole numbers. names: of the classes, where they are numbered already; features: names of columns. Clients are `identifiers`.
    """
    arrays, named, notes = _numbered(arrays, path)
    names = names or named
    x, y = _examples(arrays, "train", path, channels, tokens)
    x_test, y_test = _examples(arrays, "test", path, channels, tokens)
    if x.shape[1:] != x_test.shape[1:] or (x.dtype == np.uint8) != (x_test.dtype == np.uint8):
        kinds = [f"{a.dtype} {list(a.shape[1:])}" for a in (x, x_test)]
        raise UserError(f"{path}: x_train is {kinds[0]} and x_test {kinds[1]}; examples must have one shape and type")
    for key, labels in zip(CLIENTS, (y, y_test), strict=True):
        if key in arrays and (arrays[key].shape != labels.shape or arrays[key].dtype.kind not in "iuU"):
            raise UserError(f"{path}: {key} must be [{len(labels)}] whole numbers or texts, one for each example")
    validates = arrays.get(VALIDATES)
    if validates is not None:
        if validates.shape != y.shape or not np.isin(validates, (0, 1)).all() or len(np.unique(validates)) < 2:
            raise UserError(f"{path}: {VALIDATES} must be [{len(y)}] of true and false, some of each")
        validates = validates.astype(bool)
    notes += _classes_told(y, y_test, names, path)
    data = LabelledData(
        x, y, x_test, y_test, validates=validates, class_names=names, feature_names=features, notes=notes
    )
    data = replace(data, notes=(*notes, *data.rounding()))
    return with_owners(data, f"{path}: client", *map(arrays.get, CLIENTS))


def with_owners(
    data: LabelledData, where: str, owners: np.ndarray | None, owners_test: np.ndarray | None
) -> LabelledData:
    """The data with the names of their clients, one for each example, as `identifiers`. where: what has them, for messages."""
    given = [names for names in (owners, owners_test) if names is not None]
    if not given:
        return replace(data, owners=None, owners_test=None)
    if len({names.dtype.kind for names in given}) > 1:
        given = [names.astype(str) for names in given]
    names = identifiers(np.concatenate(given), where)
    parts = iter(np.split(names, [len(given[0])]))
    owners, owners_test = (None if part is None else next(parts) for part in (owners, owners_test))
    notes = one_number(np.unique(names).tolist(), "clients") if names.dtype.kind == "U" else []
    return replace(data, owners=owners, owners_test=owners_test, notes=(*data.notes, *notes))


def _classes_told(y: np.ndarray, y_test: np.ndarray, names: tuple[str, ...], path: Path) -> tuple[str, ...]:
    """Notes on classes without training examples, and on names that are one number. Raises UserError for one class alone."""
    counts = [np.bincount(labels, minlength=max(y.max(), y_test.max()) + 1) for labels in (y, y_test)]
    of = lambda wanted: [names[c] if names else str(c) for c in np.flatnonzero(wanted)]  # noqa: E731
    if len(alone := of(counts[0])) < 2:
        raise UserError(f"{path}: all training examples are of the class {alone[0]}, and there must be two or more")
    notes = one_number(names, "classes")
    for classes, said in (
        (of((counts[0] == 0) & (counts[1] > 0)), "test examples alone are of the class"),
        (of(counts[0] + counts[1] == 0), f"classes are 0 to {len(counts[0]) - 1}, and no example is of"),
    ):
        if classes:
            notes.append(f"{said} {', '.join(classes[:4])}{', ...' * (len(classes) > 4)}")
    return tuple(notes)


def _numbered(
    arrays: dict[str, np.ndarray], path: Path
) -> tuple[dict[str, np.ndarray], tuple[str, ...], tuple[str, ...]]:
    """The arrays with labels as whole numbers where that is clear, the names of classes that had others, and notes on both."""
    arrays, notes, names = dict(arrays), list[str](), tuple[str, ...]()
    labels = {key: arrays[key] for key in KEYS if key[0] == "y"}
    if any(y.ndim == 2 and y.shape[1] == 1 for y in labels.values()):
        labels = {key: y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y for key, y in labels.items()}
        notes.append("labels [n, 1] are taken as [n]")
    kinds = {y.dtype.kind if y.ndim == 1 and y.size else "" for y in labels.values()}
    if "" not in kinds and (kinds == {"U"} or kinds <= {*"ifb"}):
        together = np.concatenate(list(labels.values()))
        values = np.unique(together)
        if kinds == {"U"} or values.tolist() == [-1, 1]:
            numbers, names = numbered(together, f"{path}: y")
            labels = dict(zip(labels, np.split(numbers, [len(labels["y_train"])]), strict=True))
            shown = ", ".join(f"{name} is {number}" for number, name in enumerate(names[:4]))
            notes.append(f"classes are numbered: {shown}{', ...' * (len(names) > 4)}")
        elif "i" not in kinds and np.isin(values, np.arange(MOST_CLASSES)).all():
            labels = {key: y.astype(np.int64) for key, y in labels.items()}
            notes.append("labels are taken as whole numbers")
    if any(arrays[key].dtype == bool for key in KEYS if key[0] == "x"):
        notes.append("features that are true or false are taken as 1 and 0")
        arrays |= {key: arrays[key].astype(np.float32) for key in KEYS if arrays[key].dtype == bool and key[0] == "x"}
    return arrays | labels, names, tuple(notes)


def _examples(
    arrays: dict[str, np.ndarray], split: str, path: Path, channels: Channels | None, tokens: bool
) -> tuple[np.ndarray, np.ndarray]:
    """x in its form in `LabelledData`, and y, of the split `train` or `test`."""
    x, y, where = arrays[f"x_{split}"], arrays[f"y_{split}"], f"{path}: x_{split}"
    floating = np.issubdtype(x.dtype, np.floating)
    if tokens:
        wanted = "[n, length] whole numbers from 0 on with dataset.tokens=true"
        fits = x.ndim == 2 and np.issubdtype(x.dtype, np.integer) and (not x.size or 0 <= x.min() <= x.max() < 2**31)
    else:
        wanted = "[n, h, w], [n, h, w, channels] or [n, features], uint8 or floating point; token ids need dataset.tokens=true"
        fits = x.ndim in (2, 3, 4) and (floating or x.dtype == np.uint8)
    if not fits:
        raise UserError(f"{where} is {x.dtype} {list(x.shape)} and must be {wanted}")
    if y.ndim != 1 or not np.issubdtype(y.dtype, np.integer):
        raise UserError(f"{path}: y_{split} is {y.dtype} {list(y.shape)} and must be [n] whole numbers")
    if len(x) != len(y) or not x.size:
        raise UserError(f"{where} {list(x.shape)} and y_{split} {list(y.shape)} must have as many examples, and some")
    if not 0 <= y.min() <= y.max() < MOST_CLASSES:
        raise UserError(f"{path}: y_{split} is {y.min()} to {y.max()}; classes are 0 to {MOST_CLASSES - 1} at the most")
    if floating:  # in this machine's byte order; half precision would overflow
        x = x.astype(np.float32 if x.dtype.itemsize <= 4 else np.float64, copy=False)
        if (wrong := ~(np.abs(x) <= MOST_MAGNITUDE).reshape(len(x), -1).all(axis=1)).any():
            some = f"{wrong.sum()} examples, such as number {wrong.argmax()},"
            raise UserError(f"{where}: {some} have values that are not finite, or beyond {MOST_MAGNITUDE:g}")
    if x.ndim == 4 and channels is None and x.shape[1] <= 4 < x.shape[3]:
        raise UserError(f"{where} {list(x.shape)} looks like [n, channels, h, w]: set dataset.channels=first or last")
    if tokens:
        x = x.astype(np.int64)
    elif x.ndim == 4 and channels != "first":
        x = x.transpose(0, 3, 1, 2)
    elif x.ndim == 3:
        x = x[:, None]
    return np.ascontiguousarray(x), y.astype(np.int64)


@dataclass(frozen=True, config=_config)
class Torchvision:
    """One of torchvision's data sets, or the .npz file of its name."""

    name: Literal["mnist", "fashion_mnist", "cifar10"]
    root: str | None = None
    pixels: Pixels = "standardised"

    @property
    def path(self) -> str:
        """The file, or the folder of torchvision's, that it is read from, or will be."""
        npz = data_folder(self.root) / f"{self.name}.npz"
        if self.name == "mnist":
            return str(npz if npz.exists() else SHIPPED / npz.name)
        return str(npz if npz.exists() else npz.with_name(DOWNLOADED[self.name][0]))

    def load(self) -> LabelledData:
        """Returns the data, downloaded where the data folder has none. Raises UserError."""
        path = Path(self.path)
        return replace(read_npz(path) if path.suffix else self._torchvision(path), pixels=self.pixels)

    def _torchvision(self, path: Path) -> LabelledData:
        from fedopt.networks.torchvision_import import torchvision

        cls = {"fashion_mnist": torchvision.datasets.FashionMNIST, "cifar10": torchvision.datasets.CIFAR10}[self.name]
        before, found = socket.getdefaulttimeout(), path.exists()
        socket.setdefaulttimeout(20)  # a network that swallows packets must not hang the run
        above = next(folder for folder in path.parents if folder.exists())
        try:
            with TemporaryDirectory(
                prefix=".download-", dir=None if found else above
            ) as work:  # a failure leaves nothing
                sets = [cls(path.parent if found else work, train=train, download=not found) for train in (True, False)]
                if not found:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    Path(work, path.name).rename(path)
        except Exception as error:  # torchvision has many ways to say that a file is broken or out of reach
            what = f"{path} is not whole: delete it" if found else f"no copy in {path.parent}, and no download"
            _, shape, source = DOWNLOADED[self.name]
            raise UserError(
                f"dataset={self.name}: {what} ({first_line(error).rstrip(':')}); put {self.name}.npz there, made from the files of "
                f"{source}: x_train and x_test [n, {shape}] of uint8, y_train and y_test [n] of whole numbers. "
                "FEDOPT_DATA names another folder. dataset=mnist and dataset=digits need no file"
            ) from None
        finally:
            socket.setdefaulttimeout(before)
        arrays = [np.asarray(array) for data in sets for array in (data.data, data.targets)]
        return checked(dict(zip(KEYS, arrays, strict=True)), path.parent)


@dataclass(frozen=True, config=_config)
class Npz:
    """A user's own .npz file: x_train, y_train, x_test, y_test. channels, tokens: as of `read_npz`."""

    path: str
    pixels: Pixels = "standardised"
    channels: Channels | None = None
    tokens: StrictBool = False

    def load(self) -> LabelledData:
        return replace(read_npz(expanded(self.path), self.channels, self.tokens), pixels=self.pixels)


@dataclass(frozen=True, config=_config)
class Digits:
    """1797 images of 8 x 8 pixels from 0 to 16; every fifth is a test example. digits.md says where they are from."""

    pixels: Pixels = "standardised"

    def load(self) -> LabelledData:
        return replace(read_npz(SHIPPED / "digits.npz"), pixels=self.pixels)
