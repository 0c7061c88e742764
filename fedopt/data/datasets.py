"""Labelled images, tables of features and texts as token ids: their sources, and their checked form `LabelledData`.

MNIST and the digits come with fedopt. Fashion-MNIST and CIFAR-10 are read from the data folder; the first use downloads them
there with torchvision. The data folder is `dataset.root`, else the environment variable FEDOPT_DATA, else ~/.cache/fedopt. If
it has a file `<name>.npz`, that file is read instead. Files with pickled objects are refused.
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
from fedopt.errors import UserError, first_line, memory, some
from fedopt.randomness import Purpose, keyed_rng

_config = ConfigDict(extra="forbid")
Pixels = Literal["standardised", "unit", "raw"]
Channels = Literal["first", "last"]
MOST_CLASSES, SHOWN = 10_000, 4  # of a data set, and in a note
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
    """Labelled examples for training and testing.

    Args:
        x_train, x_test: Images ``[n, channels, height, width]`` or a table ``[n, features]``, uint8 or floating point; or
            token ids ``[n, length]``, int64.
        y_train, y_test: ``[n]``, int64, classes from 0 to classes - 1.
        pixels: How x is scaled for models. ``standardised``: each channel or column has mean 0 and variance 1 over the
            training set. ``unit``: the largest magnitude is 1. ``raw``: as it is.
        owners, owners_test: ``[n]``, the name or number of the client that each example belongs to. None: the data do not
            say.
        validates: ``[n]`` of bool, True for training examples that are kept for validation. None: the data do not say.
        class_names: The names of the classes, in order; empty without names.
        feature_names: The names of a table's columns; empty without names.
        left_out: How many validation examples `without_validation` has removed.
        notes: Lines for the user: what the reader assumed about the file, and what it ignored.
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
        """Whether x has token ids, which are not normalised."""
        return self.x_train.dtype == np.int64

    def without_validation(self) -> "LabelledData":
        """Return the data without the training examples that are kept for validation. Without such marks, return the data
        unchanged.
        """
        if self.validates is None:
            return self
        rows = np.flatnonzero(~self.validates)
        owners = None if self.owners is None else self.owners[rows]
        x, y, left_out = self.x_train[rows], self.y_train[rows], len(self.y_train) - len(rows)
        return replace(self, x_train=x, y_train=y, owners=owners, validates=None, left_out=left_out)

    def digest(self) -> str:
        """Return a hash of the examples, labels, owners, marks and names. Equal data have equal hashes; notes do not count."""
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
        """Return what to subtract from x and what to divide the difference by, in the units of x.

        Both are [channels] for images and [features] for a table. Constant columns and channels are divided by 1.
        """
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
        """Whether each column or channel is constant up to rounding, [columns] of bool.

        Rounding is judged by the column's own magnitude, and by the widest range of all columns.
        """
        least, most = self._bounds
        eps = np.finfo(self.x_train.dtype).eps if self.x_train.dtype.kind == "f" else 0
        range_of = most - least
        own = range_of <= 8 * eps * np.maximum(np.abs(least), np.abs(most))
        return own | (range_of <= LEAST_RANGE * min(1, range_of.max()))

    @property
    def _bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """The smallest and the largest value of each column or channel, as float64."""
        axes = (0, *range(2, self.x_train.ndim))
        return self.x_train.min(axes).astype(np.float64), self.x_train.max(axes).astype(np.float64)

    def rounding(self) -> list[str]:
        """Return a note that names the columns or channels that vary by rounding alone, which are not standardised; [] if there
        are none.
        """
        floating = self.x_train.dtype.kind == "f"
        columns = np.flatnonzero(self._constant & np.less(*self._bounds)).tolist() if floating else []
        which = some((self.feature_names[c] if self.feature_names else c for c in columns), SHOWN)
        what = "columns" if self.x_train.ndim == 2 else "channels"
        return [f"{what} {which} vary by rounding alone, and are not divided by their deviation"] if columns else []

    def redivided(self, test: float, rng: np.random.Generator) -> "LabelledData":
        """Pool all examples and divide them at random into new training and test examples.

        Args:
            test: The fraction for testing.
            rng: The generator of the draw.

        Raises:
            UserError: Only one of the training and the test examples have owners.
        """
        if (self.owners is None) != (self.owners_test is None):
            why = "only one of the training and the test examples have owners, so that they cannot be pooled"
            raise UserError(f"problem.test={test}: {why}; use problem.test=null")
        x, y = np.concatenate([self.x_train, self.x_test]), np.concatenate([self.y_train, self.y_test])
        held_out, rest = np.split(rng.permutation(len(y)), [round(test * len(y))])
        data = replace(self, x_train=x[rest], y_train=y[rest], x_test=x[held_out], y_test=y[held_out])
        if self.owners is None or self.owners_test is None:
            return data
        owners = np.concatenate([self.owners, self.owners_test])
        return replace(data, owners=owners[rest], owners_test=owners[held_out])


class DatasetSource(Protocol):
    """The interface of a data set: ``load()`` reads the files and returns `LabelledData`."""

    def load(self) -> LabelledData: ...


def data_folder(root: str | None) -> Path:
    """Return the folder of data sets: ``root``, else the environment variable FEDOPT_DATA, else ~/.cache/fedopt."""
    return expanded(root or os.environ.get("FEDOPT_DATA") or "~/.cache/fedopt")


def expanded(path: str) -> Path:
    """Return the path with ~ replaced by the home folder. The ~NAME of an unknown user stays as it is."""
    return Path(os.path.expanduser(path))


def read_npz(path: Path, channels: Channels | None = None, tokens: bool = False) -> LabelledData:
    """Read the arrays `ARRAYS` of an .npz file.

    x_train and x_test are [n, h, w], [n, h, w, channels] or [n, features]; y_train and y_test are [n]. Optional: client_train
    and client_test, [n], the owner of each example; val_train, [n], true or 1 for training examples to validate on.

    Args:
        path: The file.
        channels: Where the channel axis of colour images is, first or last. None: last.
        tokens: Whether x has token ids, [n, length].

    Raises:
        UserError: The file is missing, broken or too large, or an array is missing or does not fit.
    """
    if not path.is_file():
        raise UserError(f"{path}: there is no such file; give the path of an .npz with {', '.join(KEYS)}")
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
        hint = "if the file is damaged, copy it again; save texts with .astype('U'), not as objects"
        raise UserError(f"{path}: cannot be read as .npz ({key}: {first_line(error)}); {hint}") from None
    missing = [key for key in KEYS if not isinstance(arrays.get(key), np.ndarray)]  # bytes are no array
    if missing:
        raise UserError(f"{path}: lacks the arrays {', '.join(missing)}; save {', '.join(KEYS)} with numpy.savez")
    data = checked(arrays, path, channels, tokens)
    note = f"the arrays {unread} are ignored; fedopt reads {', '.join(ARRAYS)}"
    return replace(data, notes=(*data.notes, *[note] * bool(unread)))


def refuse_larger(path: Path, size: float, numbers: int = 0) -> None:
    """Raise UserError if data would need more memory than the machine has.

    Args:
        path: The file, for the message.
        size: The bytes of its text or its arrays. Five times as many are needed, for copies.
        numbers: How many numbers its text has. Each needs 48 bytes: what was measured, and a fifth more.
    """
    if 5 * size + 48 * numbers > memory():
        data, needed = f"{size / 1e9:.3g} GB of data", f"about {(5 * size + 48 * numbers) / 1e9:.3g} GB of memory"
        has = f"this machine has {memory() / 1e9:.3g} GB; use fewer examples, or a machine with more memory"
        raise UserError(f"{path}: {data} need {needed}, and {has}")


def divided(count: int, test: float, seed: int, path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Divide range(count) at random into sorted indices (train, test).

    Args:
        count: The number of examples.
        test: The fraction for testing, as in ``dataset.test``.
        seed: The seed of the draw.
        path: The file of the examples, for the message.

    Raises:
        UserError: No example would be left for one of the two.
    """
    held_out = round(test * count)
    if not 0 < held_out < count:
        why = f"{test} of {count} examples leaves none to train on, or none to test on"
        raise UserError(f"{path}: dataset.test={test}: {why}; choose another fraction")
    order = keyed_rng(seed, Purpose.TEST).permutation(count)
    return np.sort(order[held_out:]), np.sort(order[:held_out])


def parted(columns: Mapping[str, np.ndarray], rows: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz, such as x_train and x_test, from the arrays of all examples.

    Args:
        columns: The arrays of all examples, by the names x, y and client.
        rows: The indices for training, and those for testing.
    """
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
    """Check arrays that are named as in an .npz, and return them as `LabelledData`.

    Labels that are texts, or -1 and 1, are numbered in their order. Booleans and floats that are whole numbers become
    integers. Clients are normalised by `identifiers`.

    Args:
        arrays: The arrays by their names in an .npz; see `read_npz`.
        path: The file, for messages.
        channels: Where the channel axis of colour images is, first or last. None: last.
        tokens: Whether x has token ids.
        names: The names of the classes, if y has their numbers already.
        features: The names of a table's columns.

    Raises:
        UserError: A shape, a type, a label, a value or a client's name does not fit. The message names the file and the
            array.
    """
    arrays, named, notes = _numbered(arrays, path)
    names = names or named
    x, y = _examples(arrays, "train", path, channels, tokens)
    x_test, y_test = _examples(arrays, "test", path, channels, tokens)
    if x.shape[1:] != x_test.shape[1:] or (x.dtype == np.uint8) != (x_test.dtype == np.uint8):
        kinds = [f"{a.dtype} {list(a.shape[1:])}" for a in (x, x_test)]
        raise UserError(
            f"{path}: x_train has examples {kinds[0]}, and x_test {kinds[1]}; give both the same shape and type"
        )
    for key, labels in zip(CLIENTS, (y, y_test), strict=True):
        if key in arrays and (arrays[key].shape != labels.shape or arrays[key].dtype.kind not in "iuU"):
            raise UserError(f"{path}: {key} must have {len(labels)} whole numbers or texts, one for each example")
    validates = arrays.get(VALIDATES)
    if validates is not None:
        if validates.shape != y.shape or not np.isin(validates, (0, 1)).all() or len(np.unique(validates)) < 2:
            raise UserError(f"{path}: {VALIDATES} must have {len(y)} values true or false, and both must occur")
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
    """Return the data with the client that each example belongs to. Names are normalised by `identifiers`.

    Args:
        data: The data. Owners that they have already are replaced.
        where: Where the names stand, for messages.
        owners, owners_test: [n] names or numbers for the training and the test examples; None for either without.
    """
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
    """Return notes on classes without training examples, and on class names that are one number written twice, such as 7 and
    007.

    y, y_test: [n] classes of training and test examples. names: the names of the classes, or empty. path: for the message.
        Raises UserError if all training examples are of one class.
    """
    counts = [np.bincount(labels, minlength=max(y.max(), y_test.max()) + 1) for labels in (y, y_test)]
    of = lambda wanted: [names[c] if names else str(c) for c in np.flatnonzero(wanted)]  # noqa: E731
    if len(alone := of(counts[0])) < 2:
        raise UserError(
            f"{path}: all training examples are of the class {alone[0]}; give examples of two or more classes"
        )
    notes = one_number(names, "classes")
    for classes, said in (
        (of((counts[0] == 0) & (counts[1] > 0)), "no training example, only test examples, are of the class"),
        (of(counts[0] + counts[1] == 0), f"classes are 0 to {len(counts[0]) - 1}, and no example is of the class"),
    ):
        if classes:
            notes.append(f"{said} {some(classes, SHOWN)}")
    return tuple(notes)


def _numbered(
    arrays: dict[str, np.ndarray], path: Path
) -> tuple[dict[str, np.ndarray], tuple[str, ...], tuple[str, ...]]:
    """Return the arrays with labels as integers if that is unambiguous, the class names that labels had, and notes on both."""
    arrays, notes, names = dict(arrays), list[str](), tuple[str, ...]()
    labels = {key: arrays[key] for key in KEYS if key[0] == "y"}
    if any(y.ndim == 2 and y.shape[1] == 1 for y in labels.values()):
        labels = {key: y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y for key, y in labels.items()}
        notes.append("labels of shape [n, 1] are read as [n]")
    kinds = {y.dtype.kind if y.ndim == 1 and y.size else "" for y in labels.values()}
    if "" not in kinds and (kinds == {"U"} or kinds <= {*"ifb"}):
        together = np.concatenate(list(labels.values()))
        values = np.unique(together)
        if kinds == {"U"} or values.tolist() == [-1, 1]:
            numbers, names = numbered(together, f"{path}: y")
            labels = dict(zip(labels, np.split(numbers, [len(labels["y_train"])]), strict=True))
            shown = some((f"{name} is {number}" for number, name in enumerate(names)), SHOWN)
            notes.append(f"classes are numbered: {shown}")
        elif "i" not in kinds and np.isin(values, np.arange(MOST_CLASSES)).all():
            labels = {key: y.astype(np.int64) for key, y in labels.items()}
            notes.append("labels, which are not integers in the file, are read as whole numbers")
    if any(arrays[key].dtype == bool for key in KEYS if key[0] == "x"):
        notes.append("features that are true or false are read as 1 and 0")
        arrays |= {key: arrays[key].astype(np.float32) for key in KEYS if arrays[key].dtype == bool and key[0] == "x"}
    return arrays | labels, names, tuple(notes)


def _examples(
    arrays: dict[str, np.ndarray], split: str, path: Path, channels: Channels | None, tokens: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Check x and y of one split and return them in the form of `LabelledData`.

    split: train or test. The others are those of `checked`. Raises UserError for shapes, types and values that do not fit.
    """
    x, y, where = arrays[f"x_{split}"], arrays[f"y_{split}"], f"{path}: x_{split}"
    floating = np.issubdtype(x.dtype, np.floating)
    if tokens:
        wanted = "[n, length] whole numbers, 0 or more, with dataset.tokens=true"
        fits = x.ndim == 2 and np.issubdtype(x.dtype, np.integer) and (not x.size or 0 <= x.min() <= x.max() < 2**31)
    else:
        wanted = "[n, h, w], [n, h, w, channels] or [n, features], uint8 or floating point; token ids need dataset.tokens=true"
        fits = x.ndim in (2, 3, 4) and (floating or x.dtype == np.uint8)
    if not fits:
        raise UserError(f"{where} is {x.dtype} {list(x.shape)}; it must be {wanted}")
    if y.ndim != 1 or not np.issubdtype(y.dtype, np.integer):
        raise UserError(f"{path}: y_{split} is {y.dtype} {list(y.shape)}; it must be [n] whole numbers")
    if len(x) != len(y) or not x.size:
        shapes = f"{list(x.shape)}, and y_{split} {list(y.shape)}"
        raise UserError(f"{where} is {shapes}; give both the same number of examples, at least one")
    if not 0 <= y.min() <= y.max() < MOST_CLASSES:
        raise UserError(
            f"{path}: y_{split} is {y.min()} to {y.max()}; number the classes from 0 to at most {MOST_CLASSES - 1}"
        )
    if floating:  # in this machine's byte order; half precision would overflow
        x = x.astype(np.float32 if x.dtype.itemsize <= 4 else np.float64, copy=False)
        if (wrong := ~(np.abs(x) <= MOST_MAGNITUDE).reshape(len(x), -1).all(axis=1)).any():
            which = f"{wrong.sum()} examples (the first has index {wrong.argmax()})"
            why = f"have values that are not finite, or larger than {MOST_MAGNITUDE:g}"
            raise UserError(f"{where}: {which} {why}; remove or mend them")
    if x.ndim == 4 and channels is None and x.shape[1] <= 4 < x.shape[3]:
        raise UserError(f"{where} {list(x.shape)} looks like [n, channels, h, w]; set dataset.channels=first or last")
    if tokens:
        x = x.astype(np.int64)
    elif x.ndim == 4 and channels != "first":
        x = x.transpose(0, 3, 1, 2)
    elif x.ndim == 3:
        x = x[:, None]
    return np.ascontiguousarray(x), y.astype(np.int64)


@dataclass(frozen=True, config=_config)
class Torchvision:
    """One of torchvision's data sets, or an .npz file with its name in the data folder.

    Args:
        name: The data set.
        root: The data folder; None as in `data_folder`.
        pixels: As in `LabelledData`.
    """

    name: Literal["mnist", "fashion_mnist", "cifar10"]
    root: str | None = None
    pixels: Pixels = "standardised"

    @property
    def path(self) -> str:
        """The .npz file, or the folder of torchvision's files, that the data are read from or downloaded to."""
        npz = data_folder(self.root) / f"{self.name}.npz"
        if self.name == "mnist":
            return str(npz if npz.exists() else SHIPPED / npz.name)
        return str(npz if npz.exists() else npz.with_name(DOWNLOADED[self.name][0]))

    def load(self) -> LabelledData:
        """Return the data, downloading them if the data folder lacks them.

        Raises:
            UserError: The files are broken, or the download fails.
        """
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
            what = f"{path} is incomplete, delete it" if found else f"is not in {path.parent}, and the download failed"
            _, shape, source = DOWNLOADED[self.name]
            raise UserError(
                f"dataset={self.name}: {what} ({first_line(error).rstrip(':')}); make {self.name}.npz from the files "
                f"of {source} and "
                f"put it there: x_train and x_test [n, {shape}] of uint8, y_train and y_test [n] of whole numbers. "
                "FEDOPT_DATA may name another folder. dataset=mnist and dataset=digits need no download"
            ) from None
        finally:
            socket.setdefaulttimeout(before)
        arrays = [np.asarray(array) for data in sets for array in (data.data, data.targets)]
        return checked(dict(zip(KEYS, arrays, strict=True)), path.parent)


@dataclass(frozen=True, config=_config)
class Npz:
    """A user's .npz file with x_train, y_train, x_test and y_test.

    Args:
        path: The file.
        pixels: As in `LabelledData`.
        channels, tokens: As in `read_npz`.
    """

    path: str
    pixels: Pixels = "standardised"
    channels: Channels | None = None
    tokens: StrictBool = False

    def load(self) -> LabelledData:
        return replace(read_npz(expanded(self.path), self.channels, self.tokens), pixels=self.pixels)


@dataclass(frozen=True, config=_config)
class Digits:
    """1797 images of 8 x 8 pixels with values 0 to 16. Every fifth is a test example. digits.md names their source."""

    pixels: Pixels = "standardised"

    def load(self) -> LabelledData:
        return replace(read_npz(SHIPPED / "digits.npz"), pixels=self.pixels)
