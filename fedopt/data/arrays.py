"""Validate the arrays of a data set and turn them into `LabelledData`.

The arrays are named as in an .npz file (``x_train``, ``y_train``, ...). Files that contain pickled objects are refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal
from zipfile import ZipFile

import numpy as np

from fedopt.data.labelled import SHOWN, LabelledData
from fedopt.data.names import identifiers, numbered
from fedopt.decimals import exact
from fedopt.errors import UserError, first_line, joined
from fedopt.machine import memory
from fedopt.randomness import Purpose, keyed_rng

Channels = Literal["first", "last"]
MOST_CLASSES = 10_000
MOST_MAGNITUDE = 1e15  # largest feature or target: sums of squares fit in float32
KEYS = ("x_train", "y_train", "x_test", "y_test")
CLIENTS = ("client_train", "client_test")
VALIDATES = "val_train"
TrainTest = tuple[np.ndarray, np.ndarray]  # of the training and of the test examples
ARRAYS = (*KEYS, *CLIENTS, VALIDATES)  # the arrays that fedopt reads from an .npz file


def read_npz(path: Path, channels: Channels | None = None, tokens: bool = False) -> LabelledData:
    """Read a data set from an .npz file with the arrays listed in `ARRAYS`.

    ``x_train`` and ``x_test`` have shape ``[n, h, w]``, ``[n, h, w, channels]`` or ``[n, features]``; ``y_train`` and
    ``y_test`` have shape ``[n]``. Three more arrays of shape ``[n]`` are optional: ``client_train`` and ``client_test`` name
    the client that owns each example, and ``val_train`` is true (or 1) for training examples that are kept for validation.

    Args:
        path: The file.
        channels: Position of the channel axis of colour images, ``"first"`` or ``"last"``. None: last.
        tokens: Whether ``x`` contains token ids, ``[n, length]``.

    Returns:
        The data set.

    Raises:
        UserError: The file is missing, damaged or too large, or an array is missing or has the wrong shape or type.
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
    except Exception as error:  # zipfile, zlib and numpy raise many different exceptions for damaged files
        why = f"cannot be read as .npz ({first_line(error)})"
        raise UserError(f"{path}: {why}; save it with numpy.savez, texts as .astype('U')") from None
    if missing := [key for key in KEYS if key not in arrays]:
        raise UserError(f"{path}: lacks the arrays {', '.join(missing)}; save {', '.join(KEYS)} with numpy.savez")
    data = checked(arrays, path, channels, tokens)
    note = f"the arrays {unread} are ignored; fedopt reads {', '.join(ARRAYS)}"
    return replace(data, notes=(*data.notes, note)) if unread else data


def refuse_larger(path: Path, size: float) -> None:
    """Raise UserError if the data would need more memory than the machine has.

    Args:
        path: The file, for the message.
        size: Size of its text or arrays in bytes. Five times as much memory is assumed, because the data are copied.

    Raises:
        UserError: ``5 * size`` exceeds the memory of the machine.
    """
    if 5 * size > memory():
        needed, has = (f"{number / 1e9:.3g} GB" for number in (5 * size, memory()))
        raise UserError(f"{path}: needs about {needed} of memory, and this machine has {has}; use fewer examples")


def split_at_random(count: int, test: float, seed: int, path: Path, strata: Sequence[np.ndarray] = ()) -> TrainTest:
    """Split the indices 0, ..., count - 1 at random into training and test indices.

    Args:
        count: Number of examples.
        test: Fraction of the examples used for testing (``dataset.test``).
        seed: Seed of the random split.
        path: File of the examples, named in the error message.
        strata: Arrays of shape ``[count]``, such as the client and the class of each example. The split is stratified: the
            test fraction is taken, up to rounding, from each combination of their values (such as each class of each client)
            and also from each value of the last array (such as each class). Empty: the split is not stratified.

    Returns:
        The sorted indices of the training examples and of the test examples.

    Raises:
        UserError: The fraction leaves no example for training or for testing.
    """
    held_out = round(exact(test * count))
    if not 0 < held_out < count:
        raise UserError(f"{path}: dataset.test={test} leaves no example to train or to test on; choose another")
    rng = keyed_rng(seed, Purpose.TEST)
    order, tests = rng.permutation(count), np.arange(count) < held_out
    if strata:
        # Systematic sampling: sort the examples by stratum (by the last array first, the strata in random order), and take
        # every (count / held_out)-th example
        ranks = [np.unique(stratum, return_inverse=True)[1] for stratum in strata]
        order = np.lexsort([order, *(rng.permutation(rank.max() + 1)[rank] for rank in ranks)])
        tests = np.diff(np.arange(count + 1) * held_out // count) > 0
    return np.sort(order[~tests]), np.sort(order[tests])


def npz_arrays(columns: Mapping[str, np.ndarray], rows: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """Split arrays of all examples into training and test arrays, named as in an .npz file.

    Args:
        columns: Arrays of all examples, by the names ``x``, ``y`` and ``client``.
        rows: Two arrays: the indices of the training examples, and the indices of the test examples.

    Returns:
        The arrays by name, such as ``x_train`` and ``x_test``.
    """
    splits = list(zip(("train", "test"), rows, strict=True))
    return {f"{key}_{split}": values[its] for key, values in columns.items() for split, its in splits}


def checked(
    arrays: dict[str, np.ndarray],
    path: Path,
    channels: Channels | None = None,
    tokens: bool = False,
    class_names: tuple[str, ...] = (),
    allow_nan: bool = False,
) -> LabelledData:
    """Validate arrays that are named as in an .npz file and return them as `LabelledData`.

    Text labels are class names, numbered in sorted order; integer labels are class indices; floating-point labels are
    regression targets. Client names are normalised by `identifiers`.

    Args:
        arrays: The arrays by name; `read_npz` lists the names and shapes.
        path: The file, for messages.
        channels: Position of the channel axis of colour images, ``"first"`` or ``"last"``. None: last.
        tokens: Whether ``x`` contains token ids.
        class_names: The names of the classes, if ``y`` already contains class indices.
        allow_nan: Whether features may be nan (missing), to be filled in later by `LabelledData.filled`.

    Returns:
        The data set.

    Raises:
        UserError: A shape, type, label, value or client name is invalid. The message names the file and the array.
    """
    x, x_test = (_examples(arrays[key], f"{path}: {key}", channels, tokens, allow_nan) for key in ("x_train", "x_test"))
    if x.shape[1:] != x_test.shape[1:] or (x.dtype == np.uint8) != (x_test.dtype == np.uint8):
        of_train, of_test = (f"{a.dtype} {list(a.shape[1:])}" for a in (x, x_test))
        raise UserError(f"{path}: an example is {of_train} in x_train, and {of_test} in x_test; make them the same")
    counts = {"train": len(x), "test": len(x_test)}
    for key in (key for key in ARRAYS if key[0] != "x" and key in arrays):
        wanted = counts[key.rpartition("_")[2]]
        if arrays[key].shape != (wanted,):
            raise UserError(f"{path}: {key} has shape {[*arrays[key].shape]}; it must be [{wanted}], one per example")
        if key in CLIENTS and arrays[key].dtype.kind not in "iuU":
            raise UserError(f"{path}: {key} is {arrays[key].dtype}; it must be whole numbers or texts")
    if "client_test" in arrays and "client_train" not in arrays:
        raise UserError(f"{path}: has the array client_test, and lacks client_train; save both or neither")
    validates = arrays.get(VALIDATES)
    if validates is not None:
        if not np.isin(validates, (0, 1)).all() or len(np.unique(validates)) < 2:
            raise UserError(f"{path}: {VALIDATES} must contain true and false, and no other values")
        validates = validates.astype(bool)
    (y, y_test), class_names = _labels([arrays["y_train"], arrays["y_test"]], class_names, path)
    notes = _class_notes(y, y_test, class_names, path) if y.dtype.kind != "f" else ()
    data = LabelledData(x, y, x_test, y_test, validates=validates, class_names=class_names, notes=notes)
    return with_owners(data, f"{path}: client", *map(arrays.get, CLIENTS))


def with_owners(data: LabelledData, where: str, owners: np.ndarray | None, test: np.ndarray | None) -> LabelledData:
    """Return the data with the client that owns each example.

    Args:
        data: The data. Owners that it already has are replaced, or removed if ``owners`` is None.
        where: The file or column that the names come from, for messages.
        owners: Client names or numbers of the training examples, ``[n]``. They are normalised by `identifiers`.
        test: Client names or numbers of the test examples, ``[n_test]``. None: the owners of test examples are not known.

    Raises:
        UserError: `identifiers` rejects a name.
    """
    if owners is None:
        return replace(data, owners=None, owners_test=None)
    names = identifiers(owners if test is None else np.concatenate([owners, test]), where)
    return replace(data, owners=names[: len(owners)], owners_test=None if test is None else names[len(owners) :])


def _class_notes(y: np.ndarray, y_test: np.ndarray, class_names: tuple[str, ...], path: Path) -> tuple[str, ...]:
    """Return a note for the user that names the classes without training examples; an empty tuple if there are none.

    Args:
        y: Class indices of the training examples, ``[n]``.
        y_test: Class indices of the test examples, ``[n_test]``.
        class_names: The names of the classes. Empty: the indices are shown.
        path: The file, for the message.

    Raises:
        UserError: All training examples belong to one class.
    """
    counts = np.bincount(y, minlength=max(y.max(), y_test.max()) + 1)
    shown = np.array(class_names or range(len(counts)))
    if np.count_nonzero(counts) < 2:
        raise UserError(f"{path}: all training examples are of the class {shown[y[0]]}; give examples of other classes")
    if counts.all():
        return ()
    return (f"no training example is of the class {joined(shown[counts == 0], SHOWN)}",)


def _labels(labels: list[np.ndarray], names: tuple[str, ...], path: Path) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """Convert labels to class indices (int64) or regression targets (float64).

    Args:
        labels: The labels of the training examples and of the test examples, as stored in the file.
        names: The names of the classes, if the labels are indices of named classes.
        path: The file, for messages.

    Returns:
        The converted labels of the training examples and of the test examples, and the names of the classes.

    Raises:
        UserError: The labels are not texts, integers or finite floating-point numbers.
    """
    kinds = {y.dtype.kind for y in labels}
    if kinds == {"U"}:
        numbers, names = numbered(np.concatenate(labels), f"{path}: y")
        return np.split(numbers, [len(labels[0])]), names
    if kinds <= {*"iub"}:
        least, most = min(y.min() for y in labels), max(y.max() for y in labels)
        if least < 0 or most >= MOST_CLASSES:
            raise UserError(f"{path}: y ranges from {least} to {most}; use classes from 0 to {MOST_CLASSES - 1}")
        return [y.astype(np.int64) for y in labels], names
    if not kinds <= {*"iuf"}:
        types = " and ".join(str(y.dtype) for y in labels)
        raise UserError(f"{path}: y is {types}; give texts or whole numbers for classes, or floating-point targets")
    if not all((np.abs(y) <= MOST_MAGNITUDE).all() for y in labels):
        raise UserError(f"{path}: y has values that are not finite, or larger than {MOST_MAGNITUDE:g}; correct them")
    return [y.astype(np.float64) for y in labels], names


def _examples(x: np.ndarray, where: str, channels: Channels | None, tokens: bool, allow_nan: bool) -> np.ndarray:
    """Validate the inputs ``x`` of one split and convert them to the layout of `LabelledData`.

    Args:
        x: The array as stored in the file.
        where: The file and the array, for messages.
        channels: Position of the channel axis of colour images, ``"first"`` or ``"last"``. None: last.
        tokens: Whether ``x`` contains token ids.
        allow_nan: Whether features may be nan (missing).

    Returns:
        The inputs: images ``[n, channels, h, w]``, a table ``[n, features]``, or token ids ``[n, length]``.

    Raises:
        UserError: The shape, the type or a value is invalid.
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
    if floating:  # native byte order; half precision would overflow
        x = x.astype(np.float32 if x.dtype.itemsize <= 4 else np.float64, copy=False)
        known = np.nan_to_num(x) if allow_nan else x  # nan becomes 0; inf stays too large
        if (wrong := ~(np.abs(known) <= MOST_MAGNITUDE).reshape(len(x), -1).all(axis=1)).any():
            which = f"{wrong.sum()} examples (the first has index {wrong.argmax()})"
            raise UserError(f"{where}: {which} have values that are not finite, or above {MOST_MAGNITUDE:g}; fix them")
    if x.ndim == 4 and channels is None and x.shape[1] <= 4 < x.shape[3]:
        raise UserError(
            f"{where} {list(x.shape)} looks like [n, channels, h, w]; set dataset.channels=first if it is, else last"
        )
    if tokens:
        x = x.astype(np.int64)
    elif x.ndim == 4 and channels != "first":
        x = x.transpose(0, 3, 1, 2)
    elif x.ndim == 3:
        x = x[:, None]
    return np.ascontiguousarray(x)
