"""Labelled examples after validation: images, tables of features, or texts as token ids."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Literal, NamedTuple, Protocol

import numpy as np

from fedopt.decimals import exact
from fedopt.errors import UserError, joined

Pixels = Literal["standardised", "unit", "raw"]
SHOWN = 4  # names shown in a note
LEAST_RANGE = 1e-12  # a range below this, relative to the widest column (at most 1), is rounding


class Validation(NamedTuple):
    """Validation examples that are not among the training examples.

    Args:
        x: Inputs, in the layout of `LabelledData`.
        y: Classes or targets, ``[n]``.
        owners: Name or number of the client that owns each example, ``[n]``. None: the owners are not known.
    """

    x: np.ndarray
    y: np.ndarray
    owners: np.ndarray | None


@dataclass(frozen=True)
class LabelledData:
    """Labelled examples for training and testing.

    Args:
        x_train, x_test: Images ``[n, channels, height, width]`` or a table ``[n, features]``, uint8 or floating point; or
            token ids ``[n, length]``, int64.
        y_train, y_test: Class indices ``[n]``, int64; or regression targets ``[n]``, float64.
        pixels: How inputs are scaled for models. ``standardised``: each channel or column has mean 0 and variance 1 over
            the training set. ``unit``: the largest magnitude is 1. ``raw``: not scaled.
        owners, owners_test: Name or number of the client that owns each example, ``[n]``. None: the owners are not known.
        validates: Boolean array ``[n]``, true for training examples that are kept for validation. None: the data do not mark
            any.
        class_names: Names of the classes, in order; empty if they have none.
        feature_names: Column names of a table; empty if it has none.
        fills: Means that replace missing values of a table, ``[features]`` for each client name; the key ``""`` is for
            other clients. Empty: missing values are nan until `filled` is called. None: values must not be missing.
        left_out: Number of validation examples that `without_validation` removed.
        validation: The removed validation examples. None: `without_validation` was not called.
        numbers: Position of each training example in the data set, ``[n]``, from 0. Test examples come after all training
            examples. None: the examples are in their original order.
        notes: Lines for the user: what the reader assumed about the file and what it ignored.
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
    fills: Mapping[str, np.ndarray] | None = None
    left_out: int = 0
    validation: Validation | None = None
    numbers: np.ndarray | None = None
    notes: tuple[str, ...] = ()

    @property
    def tokens(self) -> bool:
        """Whether the inputs are token ids, which are not normalised."""
        return self.x_train.dtype == np.int64

    @property
    def real(self) -> bool:
        """Whether the targets are real numbers (regression) instead of classes."""
        return self.y_train.dtype.kind == "f"

    def without_validation(self) -> "LabelledData":
        """Return the data without the examples marked for validation, which move to the attribute ``validation``.

        Data without such marks are returned unchanged.
        """
        if self.validates is None:
            return self

        def examples(rows: np.ndarray) -> Validation:
            owners = None if self.owners is None else self.owners[rows]
            return Validation(self.x_train[rows], self.y_train[rows], owners)

        rows, validation = np.flatnonzero(~self.validates), examples(np.flatnonzero(self.validates))
        x, y, owners = examples(rows)
        kept = replace(self, x_train=x, y_train=y, owners=owners, validates=None, numbers=rows)
        return replace(kept, left_out=len(validation.y), validation=validation)

    def filled(self, by_owner: bool) -> "LabelledData":
        """Return the data with missing feature values replaced by means, which are stored in ``fills``.

        Data without ``fills`` (missing values are not to be filled) are returned unchanged.

        With ``by_owner``, a missing value becomes the mean of its column over the client's training examples, not counting
        validation examples. Clients without any value, and unknown clients, get the clients' means, weighted by numbers of
        training examples (0 after standardisation). Otherwise every missing value becomes the mean over all training examples.

        Args:
            by_owner: Whether to use each client's own mean.

        Raises:
            UserError: A column has no value in any training example.
        """
        if self.fills is None:
            return self
        import pandas as pd  # already imported by the reader of tables

        train = self.without_validation()

        def clients(owners: np.ndarray | None, x: np.ndarray) -> np.ndarray:
            return owners.astype(str) if by_owner and owners is not None else np.full(len(x), "")

        by_client = pd.DataFrame(train.x_train).groupby(clients(train.owners, train.x_train))
        means = by_client.mean()
        weights = means.notna().mul(by_client.size(), axis=0)
        common = (means * weights).sum() / weights.sum()
        names = np.array(self.feature_names)
        if lacking := names[common.isna()].tolist():
            drop = ",".join(lacking)
            raise UserError(f"dataset.missing=mean: columns without training values; set dataset.drop=[{drop}]")
        means.loc[""] = common
        means = means.fillna(common)
        sets = ((self.x_train, self.owners), (self.x_test, self.owners_test))
        x_train, x_test = (np.where(np.isnan(x), means.reindex(clients(of, x)).fillna(common), x) for x, of in sets)
        empty = sum(np.isnan(x).sum(0) for x, _ in sets)
        of_rows = "the training rows of each client" if by_owner else "all training rows"
        told = f"{np.sum(empty):,} empty cells ({joined(names[empty > 0], SHOWN)}) are filled with means of {of_rows}"
        fills = {str(name): mean.to_numpy() for name, mean in means.iterrows()}
        notes = (*self.notes, *[told] * bool(np.any(empty)))
        return replace(self, x_train=x_train, x_test=x_test, fills=fills, notes=notes)

    def digest(self) -> str:
        """Return a hash of the data set. Equal data have equal hashes.

        The hash covers all fields except `notes` and the fields that are derived from the file's content: `fills`,
        `validation` and `numbers`.
        """
        digest = sha256()
        derived = ("notes", "fills", "validation", "numbers")
        for name in (name for name in self.__dataclass_fields__ if name not in derived):
            array = np.asarray(getattr(self, name))
            array = np.ascontiguousarray(array.astype(str) if array.dtype == object else array)
            digest.update(f"{name} {array.dtype.str} {array.shape} ".encode())
            digest.update(array.reshape(-1).view(np.uint8).data)
        return digest.hexdigest()[:32]

    @property
    def classes(self) -> int:
        """The number of classes; 0 for regression."""
        labels = [self.y_train, self.y_test, *([self.validation.y] if self.validation else [])]
        return 0 if self.real else int(max(y.max() for y in labels)) + 1

    def normalisation(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the shift and the scale of the normalisation that ``pixels`` asks for.

        The normalised input is::

            (x - shift) / scale

        Constant columns and channels have scale 1. Validation examples are not taken into account.

        Returns:
            The shift and the scale, ``[channels]`` each for images and ``[features]`` each for a table, in the units of x.
        """
        if self.validates is not None:
            return self.without_validation().normalisation()
        if self.pixels == "raw":
            return np.zeros(self.x_train.shape[1]), np.ones(self.x_train.shape[1])
        if self.pixels == "unit":
            largest = np.abs(self.x_train).max(0 if self.x_train.ndim == 2 else None).astype(np.float64)
            return np.zeros(self.x_train.shape[1]), np.full(self.x_train.shape[1], np.where(largest > 0, largest, 1))
        if self.x_train.ndim == 2:
            x, constant = self.x_train.astype(np.float64, copy=False), self._constant
            return np.where(constant, x[0], x.mean(0)), np.where(constant, 1, x.std(0))
        channels = self.x_train.shape[1]
        if self.x_train.dtype == np.uint8:  # exact, without a larger copy of the data
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
        """Whether each column or channel is constant up to rounding, a boolean array ``[columns]``.

        Rounding is judged by the magnitude of the column and by the widest range of all columns.
        """
        axes = (0, *range(2, self.x_train.ndim))
        # fmin and fmax ignore nan
        least, most = (of.reduce(self.x_train, axes).astype(np.float64) for of in (np.fmin, np.fmax))
        eps = np.finfo(self.x_train.dtype).eps if self.x_train.dtype.kind == "f" else 0
        range_of = most - least
        own = range_of <= 8 * eps * np.maximum(np.abs(least), np.abs(most))
        return own | (range_of <= LEAST_RANGE * min(1, range_of.max()))

    def resplit(self, test: float, rng: np.random.Generator) -> "LabelledData":
        """Pool all examples, split them at random into new training and test examples, and return the new data set.

        The data must have no validation marks; call `without_validation` first.

        Args:
            test: Fraction of the examples for testing.
            rng: Generator of the random split.

        Raises:
            UserError: Only one of the training and test sets names its clients, or missing values are filled in.
        """
        if self.fills is not None:
            raise UserError(f"problem.test={test}: is not possible with dataset.missing=mean; use dataset.test={test}")
        if (self.owners is None) != (self.owners_test is None):
            raise UserError(f"problem.test={test}: clients are named for x_train or x_test only; set it to null")
        x, y = np.concatenate([self.x_train, self.x_test]), np.concatenate([self.y_train, self.y_test])
        held_out, rest = np.split(rng.permutation(len(y)), [round(exact(test * len(y)))])
        numbers = np.arange(len(y) + self.left_out)
        if self.numbers is not None:
            numbers = np.concatenate([self.numbers, numbers[-len(self.y_test) :]])
        data = replace(self, x_train=x[rest], y_train=y[rest], x_test=x[held_out], y_test=y[held_out])
        data = replace(data, numbers=numbers[rest])
        if self.owners is None or self.owners_test is None:
            return data
        owners = np.concatenate([self.owners, self.owners_test])
        return replace(data, owners=owners[rest], owners_test=owners[held_out])


class DatasetSource(Protocol):
    """The interface of a data set: ``load()`` reads the files and returns `LabelledData`."""

    def load(self) -> LabelledData: ...
