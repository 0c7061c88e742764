"""Arrays named as in an .npz, checked and turned into `LabelledData`. Files with pickled objects are refused."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal
from zipfile import ZipFile

import numpy as np

from fedopt.data.labelled import SHOWN, LabelledData
from fedopt.data.names import identifiers, numbered
from fedopt.decimals import exact
from fedopt.errors import UserError, first_line, some
from fedopt.machine import memory
from fedopt.randomness import Purpose, keyed_rng

Channels = Literal["first", "last"]
MOST_CLASSES = 10_000
MOST_MAGNITUDE = 1e15  # of a feature or a target: sums of squares stay within float32
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
    try:
        with ZipFile(path) as archive:
            refuse_larger(path, sum(array.file_size for array in archive.infolist()))
        with np.load(path, allow_pickle=False) as archive:
            arrays = {key: np.asarray(archive[key]) for key in ARRAYS if key in archive}
            unread = ", ".join(name for name in archive.files if name not in ARRAYS)
    except UserError:
        raise
    except Exception as error:  # zipfile, zlib and numpy have many ways to say that a file is broken
        hint = "if the file is damaged, copy it again; save texts with .astype('U'), not as objects"
        raise UserError(f"{path}: cannot be read as .npz ({first_line(error)}); {hint}") from None
    if missing := [key for key in KEYS if key not in arrays]:
        raise UserError(f"{path}: lacks the arrays {', '.join(missing)}; save {', '.join(KEYS)} with numpy.savez")
    data = checked(arrays, path, channels, tokens)
    note = f"the arrays {unread} are ignored; fedopt reads {', '.join(ARRAYS)}"
    return replace(data, notes=(*data.notes, note)) if unread else data


def refuse_larger(path: Path, size: float) -> None:
    """Raise UserError if data would need more memory than the machine has.

    Args:
        path: The file, for the message.
        size: The bytes of its text or its arrays. Five times as many are needed, for copies.
    """
    if 5 * size > memory():
        needed, has = (f"{number / 1e9:.3g} GB" for number in (5 * size, memory()))
        raise UserError(f"{path}: needs about {needed} of memory, and this machine has {has}; use fewer examples")


def split_at_random(
    count: int, test: float, seed: int, path: Path, strata: Sequence[np.ndarray] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Divide range(count) at random into sorted indices (train, test).

    Args:
        count: The number of examples.
        test: The fraction for testing, as in ``dataset.test``.
        seed: The seed of the draw.
        path: The file of the examples, for the message.
        strata: Arrays ``[count]``, such as clients and classes. The fraction is drawn, up to rounding, from the examples that
            have the same value in each of the arrays, and from all with the same value in the last. None: from all examples.

    Raises:
        UserError: No example would be left for training or for testing.
    """
    held_out = round(exact(test * count))
    if not 0 < held_out < count:
        why = f"{test} of {count} examples leaves none to train on, or none to test on"
        raise UserError(f"{path}: dataset.test={test}: {why}; choose another fraction")
    rng = keyed_rng(seed, Purpose.TEST)
    order, tests = rng.permutation(count), np.arange(count) < held_out
    if strata is not None:
        order, tests = _stratified(order, held_out, rng, strata)
    return np.sort(order[~tests]), np.sort(order[tests])


def _stratified(
    order: np.ndarray, held_out: int, rng: np.random.Generator, strata: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Return an order of the examples, and which places in it are for testing.

    Systematic sampling: sort by strata, the last one first, in random order, and take every (count / held_out)-th example.
    Within strata examples stay in ``order``.
    """
    ranks = [np.unique(stratum, return_inverse=True)[1] for stratum in strata]
    places = [rng.permutation(rank.max() + 1)[rank] for rank in ranks]
    return np.lexsort([order, *places]), np.diff(np.arange(len(order) + 1) * held_out // len(order)) > 0


def npz_arrays(columns: Mapping[str, np.ndarray], rows: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz, such as x_train and x_test, from the arrays of all examples.

    Args:
        columns: The arrays of all examples, by the names x, y and client.
        rows: Two arrays: the indices of the training examples, and the indices of the test examples.
    """
    splits = list(zip(("train", "test"), rows, strict=True))
    return {f"{key}_{split}": values[part] for key, values in columns.items() for split, part in splits}


def checked(
    arrays: dict[str, np.ndarray],
    path: Path,
    channels: Channels | None = None,
    tokens: bool = False,
    class_names: tuple[str, ...] = (),
    features: tuple[str, ...] = (),
    allow_nan: bool = False,
) -> LabelledData:
    """Check arrays that are named as in an .npz, and return them as `LabelledData`.

    Labels that are texts are the names of classes, and are numbered in the order of names; whole numbers are the numbers of
    classes; floating-point numbers are the targets of a regression. Clients are normalised by `identifiers`.

    Args:
        arrays: The arrays by their names in an .npz; see `read_npz`.
        path: The file, for messages.
        channels: Where the channel axis of colour images is, first or last. None: last.
        tokens: Whether x has token ids.
        class_names: The names of the classes, if y has the numbers of classes already.
        features: The names of a table's columns.
        allow_nan: Whether features may be nan, for `LabelledData.filled`.

    Raises:
        UserError: A shape, a type, a label, a value or a client's name does not fit. The message names the file and the
            array.
    """
    x, x_test = (_examples(arrays[key], f"{path}: {key}", channels, tokens, allow_nan) for key in ("x_train", "x_test"))
    if x.shape[1:] != x_test.shape[1:] or (x.dtype == np.uint8) != (x_test.dtype == np.uint8):
        of_train, of_test = (f"{a.dtype} {list(a.shape[1:])}" for a in (x, x_test))
        advice = "give both the same shape, and both or neither uint8"
        raise UserError(f"{path}: x_train has examples {of_train}, and x_test {of_test}; {advice}")
    counts = {"train": len(x), "test": len(x_test)}
    for key in (key for key in ARRAYS if key[0] != "x" and key in arrays):
        wanted = counts[key.rpartition("_")[2]]
        if arrays[key].shape != (wanted,):
            raise UserError(f"{path}: {key} is {list(arrays[key].shape)}; it must be [{wanted}], one for each example")
        if key in CLIENTS and arrays[key].dtype.kind not in "iuU":
            raise UserError(f"{path}: {key} is {arrays[key].dtype}; it must be whole numbers or texts")
    if "client_test" in arrays and "client_train" not in arrays:
        raise UserError(f"{path}: has the array client_test, and lacks client_train; save both or neither")
    validates = arrays.get(VALIDATES)
    if validates is not None:
        if not np.isin(validates, (0, 1)).all() or len(np.unique(validates)) < 2:
            raise UserError(f"{path}: {VALIDATES} must have values true or false, and both must occur")
        validates = validates.astype(bool)
    y, y_test, class_names = _labels(arrays["y_train"], arrays["y_test"], class_names, path)
    notes = _class_notes(y, y_test, class_names, path) if y.dtype.kind != "f" else ()
    data = LabelledData(
        x, y, x_test, y_test, validates=validates, class_names=class_names, feature_names=features, notes=notes
    )
    return with_owners(data, f"{path}: client", *map(arrays.get, CLIENTS))


def with_owners(
    data: LabelledData, where: str, owners: np.ndarray | None, owners_test: np.ndarray | None
) -> LabelledData:
    """Return the data with the client that each example belongs to. Names are normalised by `identifiers`.

    Args:
        data: The data. Owners that the data have already are replaced, or removed if ``owners`` is None.
        where: Where the names are, for messages.
        owners: The names or numbers of the clients of the training examples, ``[n]``.
        owners_test: The names or numbers of the clients of the test examples. None: test examples get no owners.

    Raises:
        UserError: `identifiers` refuses a name.
    """
    if owners is None:
        return replace(data, owners=None, owners_test=None)
    names = identifiers(owners if owners_test is None else np.concatenate([owners, owners_test]), where)
    of_test = None if owners_test is None else names[len(owners) :]
    return replace(data, owners=names[: len(owners)], owners_test=of_test)


def _class_notes(y: np.ndarray, y_test: np.ndarray, class_names: tuple[str, ...], path: Path) -> tuple[str, ...]:
    """Return a note on classes without training examples. Raises UserError if all training examples are of one class.

    y, y_test: [n] classes of training and test examples. class_names: the names of the classes, or empty. path: for the message.
    """
    counts = np.bincount(y, minlength=max(y.max(), y_test.max()) + 1)
    shown = np.array(class_names or range(len(counts)))
    if np.count_nonzero(counts) < 2:
        why = f"all training examples are of the class {shown[y[0]]}"
        raise UserError(f"{path}: {why}; give examples of two or more classes")
    if counts.all():
        return ()
    return (f"no training example is of the class {some(shown[counts == 0], SHOWN)}",)


def _labels(
    y: np.ndarray, y_test: np.ndarray, class_names: tuple[str, ...], path: Path
) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Return the labels of training and of test examples, numbers of classes or real targets, and the names of the classes.

    y, y_test: the labels as in the file. class_names: the names, if labels are numbers of named classes. path: the file, for
        messages. Raises UserError for other labels than texts, whole numbers and floating-point numbers.
    """
    labels = [y, y_test]
    kinds = {part.dtype.kind for part in labels}
    if kinds == {"U"}:
        numbers, class_names = numbered(np.concatenate(labels), f"{path}: y")
        return numbers[: len(y)], numbers[len(y) :], class_names
    if kinds <= {*"iub"}:
        least, most = min(part.min() for part in labels), max(part.max() for part in labels)
        if least < 0 or most >= MOST_CLASSES:
            raise UserError(f"{path}: y is {least} to {most}; number the classes from 0 to at most {MOST_CLASSES - 1}")
        return y.astype(np.int64), y_test.astype(np.int64), class_names
    if not kinds <= {*"iuf"}:
        wanted = "give texts or whole numbers for classes, or floating-point numbers as targets"
        raise UserError(f"{path}: y_train is {y.dtype}, and y_test {y_test.dtype}; {wanted}")
    if not all((np.abs(part) <= MOST_MAGNITUDE).all() for part in labels):
        raise UserError(f"{path}: y has values that are not finite, or larger than {MOST_MAGNITUDE:g}; mend them")
    return y.astype(np.float64), y_test.astype(np.float64), class_names


def _examples(x: np.ndarray, where: str, channels: Channels | None, tokens: bool, allow_nan: bool) -> np.ndarray:
    """Check the x of one split and return it in the form of `LabelledData`.

    where: the file and the array, for messages. The other arguments are as in `checked`. Raises UserError for shapes,
        types and values that do not fit.
    """
    floating = np.issubdtype(x.dtype, np.floating)
    if tokens:
        wanted = "[n, length] whole numbers, 0 or more, with dataset.tokens=true"
        fits = x.ndim == 2 and np.issubdtype(x.dtype, np.integer) and (not x.size or 0 <= x.min() <= x.max() < 2**31)
    else:
        wanted = "[n, h, w], [n, h, w, channels] or [n, features], uint8 or floating point; token ids need dataset.tokens=true"
        fits = x.ndim in (2, 3, 4) and (floating or x.dtype == np.uint8)
    if not fits or not x.size:
        raise UserError(f"{where} is {x.dtype} {list(x.shape)}; it must be {wanted}")
    if floating:  # in this machine's byte order; half precision would overflow
        x = x.astype(np.float32 if x.dtype.itemsize <= 4 else np.float64, copy=False)
        known = np.nan_to_num(x) if allow_nan else x  # nan becomes 0, inf stays too large
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
    return np.ascontiguousarray(x)
