"""Checks of the columns of a table: texts, empty cells, and columns that are probably not features."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd

from fedopt.data.labelled import LabelledData
from fedopt.errors import MOST_NAMED, UserError, joined

LEAST_ROWS = 30  # with fewer rows, a column is not examined
MOST_ROWS = 10_000  # largest number of rows that are compared with the labels
LEAST_OF_CLASS = 5
CORRELATION, AUC = 0.95, 0.99  # above these, a feature nearly determines the label


def refuse_cells(table: pd.DataFrame, wrong: pd.DataFrame, path: Path, why: str) -> None:
    """Raise UserError if any cell is invalid; the message names the first one.

    Args:
        table: The cells.
        wrong: Boolean table ``[rows, columns]``, true for invalid cells.
        path: The file, for the message.
        why: What is wrong with these cells and how to fix it, for the message.
    """
    if len(cells := np.argwhere(np.asarray(wrong))):
        row, column = cells[0]
        cell = f"row {row + 1} below the header, column {table.columns[column]}: {table.iloc[row, column]}"
        raise UserError(f"{path}: {cell} {why} ({len(cells)} such cells)")


def numbers(table: pd.DataFrame, path: Path) -> np.ndarray:
    """Convert features to numbers.

    Args:
        table: The feature columns.
        path: The file, for the message.

    Returns:
        The numbers, ``[rows, columns]``, with nan for empty cells.

    Raises:
        UserError: Some cells are not finite numbers. The message lists all such columns and explains how to encode texts.
    """
    found = table.apply(pd.to_numeric, errors="coerce").to_numpy(np.float64)
    listed = list[str]()
    for name, values in zip(table.columns, found.T, strict=True):
        wrong = table[name][~np.isfinite(values) & table[name].notna()]
        texts = [*map(str, wrong.unique())]
        if texts:
            listed.append(f"{name} ({joined(texts, 3)}; first in row {wrong.index[0] + 1} below the header)")
    if listed:
        how = "correct them, encode texts (pandas.get_dummies), name the clients' column with dataset.client, or set dataset.drop"
        raise UserError(f"{path}: columns have cells that are not finite numbers: {joined(listed, MOST_NAMED)}; {how}")
    return found


def refuse_empty(x: np.ndarray, names: list[str], path: Path) -> None:
    """Raise UserError if a feature has empty cells. The message lists all such columns.

    Args:
        x: Features, ``[rows, columns]``, with nan for empty cells.
        names: Names of the columns.
        path: The file, for the message.
    """
    empty = np.isnan(x)
    if empty.any():
        listed = joined([f"{names[c]} ({empty[:, c].sum():,})" for c in np.flatnonzero(empty.any(0))], MOST_NAMED)
        how = "set dataset.missing=mean (of the client's training rows), fill in values, or set dataset.drop=[...]"
        raise UserError(f"{path}: {empty.any(1).sum():,} of {len(x):,} rows have empty cells: {listed}; {how}")


def column_notes(data: LabelledData, label: str) -> list[str]:
    """Return notes for the user, one text each, on columns that are probably not features.

    These are constant columns, identifiers, and columns that reveal the label.

    Only the training rows are examined.

    Args:
        data: The data set.
        label: Name of the label column, for the notes.
    """
    found = dict[str, list[str]]()
    every = -(-len(data.y_train) // MOST_ROWS)
    for name, column in zip(data.feature_names, data.x_train.T, strict=True):
        known = ~np.isnan(column)
        values, labels = column[known], data.y_train[known]
        if len(values) and values.min() == values.max():
            found.setdefault("have the same value in all training rows", []).append(name)
        elif len(values) >= LEAST_ROWS and _identifies(values):
            found.setdefault("have a different value in each row, like identifiers", []).append(name)
        elif len(values) >= LEAST_ROWS and _determines(values[::every], labels[::every], data.real):
            found.setdefault(f"nearly determine {label}, like another outcome", []).append(name)
    return [f"some columns {why}; leave them out with dataset.drop=[{','.join(names)}]" for why, names in found.items()]


def _identifies(values: np.ndarray) -> bool:
    """Return whether a column looks like an identifier, such as a patient number or a time.

    All its values are different, and they are integers, increasing throughout or decreasing throughout.

    Args:
        values: The values of the column, ``[n]``.
    """
    steps = np.diff(values)
    whole = (values == np.rint(values)).all() and len(np.unique(values)) == len(values)
    return bool(whole or (steps > 0).all() or (steps < 0).all())


def _determines(values: np.ndarray, labels: np.ndarray, real: bool) -> bool:
    """Return whether a feature nearly determines the label.

    For a classification, this means that a threshold on the feature separates any two classes. For a regression, it means
    that the rank correlation with the target is close to 1 or -1, or, if the feature has two values, that a threshold on the
    target separates them.

    Args:
        values: The feature, ``[n]``.
        labels: Classes or targets, ``[n]``.
        real: Whether the labels are regression targets.
    """
    if real and len(np.unique(values)) == 2:
        return _separates(labels, values == values.max())
    if real:
        return bool(abs(pd.Series(values).rank().corr(pd.Series(labels).rank())) > CORRELATION)
    pairs = combinations(np.unique(labels), 2)
    return all(_separates(values[of := np.isin(labels, pair)], labels[of] == pair[0]) for pair in pairs)


def _separates(values: np.ndarray, of: np.ndarray) -> bool:
    """Return whether a threshold on a feature nearly separates two groups of rows, judged by the area under the ROC curve.

    Args:
        values: The feature, ``[n]``.
        of: Boolean array ``[n]``, true for the rows of the first group. Both groups must have rows.
    """
    ones, others = of.sum(), (~of).sum()
    area = (pd.Series(values).rank()[of].sum() - ones * (ones + 1) / 2) / max(ones * others, 1)
    return bool(min(ones, others) >= LEAST_OF_CLASS and abs(area - 0.5) > AUC - 0.5)
