"""Arrays named as in an .npz, checked and turned into `LabelledData`. Files with pickled objects are refused."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal
from zipfile import ZipFile

import numpy as np

from fedopt.data.labelled import SHOWN, LabelledData
from fedopt.data.names import identifiers, numbered, one_number
from fedopt.decimals import exact
from fedopt.errors import UserError, first_line, some
from fedopt.machine import memory
from fedopt.randomness import Purpose, keyed_rng

Channels = Literal["first", "last"]
MOST_CLASSES = 10_000
PACKED = (".gz", ".npz")
MOST_UNCHECKED = 2**30  # bytes of memory that packed data may need, whatever the size of their file
MOST_TIMES = 500  # beyond that: how many times its size
MOST_MAGNITUDE = 1e15  # of a feature: sums of squares stay within float32
KEYS = ("x_train", "y_train", "x_test", "y_test")
CLIENTS = ("client_train", "client_test")
VALIDATES = "val_train"
ARRAYS = (*KEYS, *CLIENTS, VALIDATES)  # of an .npz


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
    """Raise UserError if data would need more memory than the machine has, or, packed, far more than the size of their file.

    Args:
        path: The file, for the message.
        size: The bytes of its text or its arrays. Five times as many are needed, for copies.
        numbers: How many numbers its text has. Each is taken to need 48 bytes, a measured value with a margin of a fifth.
    """
    needed = 5 * size + 48 * numbers
    data, about = f"{size / 1e9:.3g} GB of data", f"about {needed / 1e9:.3g} GB of memory"
    if needed > memory():
        has = f"this machine has {memory() / 1e9:.3g} GB; use fewer examples, or a machine with more memory"
        raise UserError(f"{path}: {data} need {about}, and {has}")
    if path.suffix in PACKED and needed > max(MOST_UNCHECKED, MOST_TIMES * path.stat().st_size):
        why = f"{data} need {about}, more than {MOST_TIMES} times the size of this file"
        raise UserError(f"{path}: {why}; if you trust it, unpack it first (gunzip), or save it with numpy.savez")


def divided(
    count: int, test: float, seed: int, path: Path, strata: Sequence[np.ndarray] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Divide range(count) at random into sorted indices (train, test).

    Args:
        count: The number of examples.
        test: The fraction for testing, as in ``dataset.test``.
        seed: The seed of the draw.
        path: The file of the examples, for the message.
        strata: Arrays ``[count]``, such as clients and classes. The fraction is drawn, up to rounding, from the examples that
            have the same value in each, and from all with the same value in the last. None: from all examples.

    Raises:
        UserError: No example would be left for one of the two.
    """
    held_out = round(exact(test * count))
    if not 0 < held_out < count:
        why = f"{test} of {count} examples leaves none to train on, or none to test on"
        raise UserError(f"{path}: dataset.test={test}: {why}; choose another fraction")
    rng = keyed_rng(seed, Purpose.TEST)
    order, tests = rng.permutation(count), np.arange(count) < held_out
    if strata is not None:  # every so many-th example in an order by strata, which have random places
        ranks = [np.unique(stratum, return_inverse=True)[1] for stratum in strata]
        order = np.lexsort([order, *(rng.permutation(rank.max() + 1)[rank] for rank in ranks)])
        tests = np.diff(np.arange(count + 1) * held_out // count) > 0
    return np.sort(order[~tests]), np.sort(order[tests])


def parted(columns: Mapping[str, np.ndarray], rows: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz, such as x_train and x_test, from the arrays of all examples.

    Args:
        columns: The arrays of all examples, by the names x, y and client.
        rows: Two arrays: the indices of the training examples, and those of the test examples.
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
    missing: bool = False,
) -> LabelledData:
    """Check arrays that are named as in an .npz, and return them as `LabelledData`.

    Labels that are texts, or -1 and 1, are numbered in their order. Booleans and floats that are whole numbers become
    integers; other finite floats stay, as targets of a regression. Clients are normalised by `identifiers`.

    Args:
        arrays: The arrays by their names in an .npz; see `read_npz`.
        path: The file, for messages.
        channels: Where the channel axis of colour images is, first or last. None: last.
        tokens: Whether x has token ids.
        names: The names of the classes, if y has their numbers already.
        features: The names of a table's columns.
        missing: Whether features may be nan, for `LabelledData.filled`.

    Raises:
        UserError: A shape, a type, a label, a value or a client's name does not fit. The message names the file and the
            array.
    """
    arrays, named, notes = _numbered(arrays, path)
    names = names or named
    x, y = _examples(arrays, "train", path, channels, tokens, missing)
    x_test, y_test = _examples(arrays, "test", path, channels, tokens, missing)
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
    if y.dtype.kind != "f":
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
        data: The data. Owners that they have already are replaced, or removed if both arrays are None.
        where: Where the names stand, for messages.
        owners, owners_test: The names or numbers of the clients of the training and of the test examples, [n] each. None:
            these examples get no owners.

    Raises:
        UserError: `identifiers` refuses a name.
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
    """Return notes on classes without training examples, and on class names that are one number in two spellings (7, 007).

    Raises UserError if all training examples are of one class.
    y, y_test: [n] classes of training and test examples. names: the names of the classes, or empty. path: for the message.
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
    """Return the arrays with labels as integers if that is unambiguous, the names of the classes, and notes on both.

    The names are empty if labels are numbers from 0. Boolean features become float32. path: the file, for messages.
    """
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
        elif "f" in kinds and "b" not in kinds:  # real numbers
            labels = {key: y.astype(np.float64) for key, y in labels.items()}
    if any(arrays[key].dtype == bool for key in KEYS if key[0] == "x"):
        notes.append("features that are true or false are read as 1 and 0")
        arrays |= {key: arrays[key].astype(np.float32) for key in KEYS if arrays[key].dtype == bool and key[0] == "x"}
    return arrays | labels, names, tuple(notes)


def _examples(
    arrays: dict[str, np.ndarray], split: str, path: Path, channels: Channels | None, tokens: bool, missing: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Check x and y of one split and return them in the form of `LabelledData`.

    split: train or test. The other arguments are those of `checked`. Raises UserError for shapes, types and values that do
        not fit.
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
    real = y.dtype == np.float64 and bool((np.abs(y) <= MOST_MAGNITUDE).all())
    if y.ndim != 1 or not (real or np.issubdtype(y.dtype, np.integer)):
        raise UserError(f"{path}: y_{split} is {y.dtype} {list(y.shape)}; it must be [n] whole numbers")
    if len(x) != len(y) or not x.size:
        shapes = f"{list(x.shape)}, and y_{split} {list(y.shape)}"
        raise UserError(f"{where} is {shapes}; give both the same number of examples, at least one")
    if not real and not 0 <= y.min() <= y.max() < MOST_CLASSES:
        raise UserError(
            f"{path}: y_{split} is {y.min()} to {y.max()}; number the classes from 0 to at most {MOST_CLASSES - 1}"
        )
    if floating:  # in this machine's byte order; half precision would overflow
        x = x.astype(np.float32 if x.dtype.itemsize <= 4 else np.float64, copy=False)
        known = np.nan_to_num(x) if missing else x
        if (wrong := ~(np.abs(known) <= MOST_MAGNITUDE).reshape(len(x), -1).all(axis=1)).any():
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
    return np.ascontiguousarray(x), y if real else y.astype(np.int64)
