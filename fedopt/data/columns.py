"""The columns of a table: which are texts, have empty cells, or look like something that is no feature."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd

from fedopt.data.labelled import LabelledData
from fedopt.errors import MOST_NAMED, UserError, some

MOST_VALUES = 20  # texts of a column that get a column each
LEAST_ROWS = 30  # fewer say too little about a column
MOST_ROWS = 10_000  # that are compared with the labels
LEAST_OF_CLASS = 5
CORRELATION, AUC = 0.95, 0.99  # above these, a feature nearly determines the label


def refuse_cells(table: pd.DataFrame, wrong: pd.DataFrame, path: Path, why: str) -> None:
    """Raise UserError if a cell is wrong; the message names the first one.

    table: the cells. wrong: [rows, columns] of bool. path: the file. why: what is wrong, and the remedy.
    """
    if len(cells := np.argwhere(np.asarray(wrong))):
        row, column = cells[0]
        cell = f"row {row + 1} below the names, column {table.columns[column]}: {table.iloc[row, column]}"
        raise UserError(f"{path}: {cell} {why} ({len(cells)} such cells)")


def numbers(table: pd.DataFrame, path: Path) -> np.ndarray:
    """Return the features as numbers, [rows, columns], nan for empty cells.

    Raises:
        UserError: Cells are no finite numbers. The message lists all such columns, and how texts are encoded.
    """
    found = table.apply(pd.to_numeric, errors="coerce").to_numpy(np.float64)
    listed, encoded = list[str](), list[str]()
    for name, values in zip(table.columns, found.T, strict=True):
        wrong = table[name][~np.isfinite(values) & table[name].notna()]
        texts = [*map(str, wrong.unique())]
        if texts:
            listed.append(f"{name} ({some(texts, 3)}; first in row {wrong.index[0] + 1} below the names)")
            if len(wrong) == table[name].count() and len(texts) <= MOST_VALUES:
                encoded.append(name)
    if listed:
        how = f"mend such cells, encode texts before (pandas.get_dummies(table, columns={encoded}, dtype=int)), "
        how += "name the clients' column with dataset.client, or leave columns out with dataset.drop=[...]"
        raise UserError(f"{path}: columns have cells that are not finite numbers: {some(listed, MOST_NAMED)}; {how}")
    return found


def refuse_empty(x: np.ndarray, names: list[str], path: Path) -> None:
    """Raise UserError if features, [rows, columns], have empty cells (nan). The message lists all such columns."""
    empty = np.isnan(x)
    if empty.any():
        listed = some([f"{names[c]} ({empty[:, c].sum():,})" for c in np.flatnonzero(empty.any(0))], MOST_NAMED)
        raise UserError(
            f"{path}: {empty.any(1).sum():,} of {len(x):,} rows have empty cells: {listed}; set dataset.missing=mean, which "
            "fills in the mean of the client's own training rows, fill in values before, or leave columns out with "
            "dataset.drop=[...]"
        )


def noted(data: LabelledData, label: str) -> list[str]:
    """Return notes on features that may be none, judged by the training rows: constants, identifiers, other outcomes.

    label: the label's name.
    """
    found = dict[str, list[str]]()
    every = -(-len(data.y_train) // MOST_ROWS)
    for name, column in zip(data.feature_names, data.x_train.T, strict=True):
        known = ~np.isnan(column)
        values, labels = column[known], data.y_train[known]
        if len(values) and values.min() == values.max():
            found.setdefault("have the same value in all training rows", []).append(name)
        elif len(values) >= LEAST_ROWS and _identifies(values):
            found.setdefault("have a different value in each row, as identifiers do", []).append(name)
        elif len(values) >= LEAST_ROWS and _determines(values[::every], labels[::every], data.real):
            found.setdefault(f"nearly determine {label}, as other outcomes do", []).append(name)
    return [f"some columns {why}; leave them out with dataset.drop=[{','.join(names)}]" for why, names in found.items()]


def _identifies(values: np.ndarray) -> bool:
    """Return whether all values differ, and are whole numbers or rise or fall throughout, as do numbers of patients and times."""
    steps = np.diff(values)
    whole = (values == np.rint(values)).all() and len(np.unique(values)) == len(values)
    return bool(whole or (steps > 0).all() or (steps < 0).all())


def _determines(values: np.ndarray, labels: np.ndarray, real: bool) -> bool:
    """Return whether a feature nearly determines the labels, [n]: by its correlation, or by a threshold between any two classes."""
    if real and len(np.unique(values)) == 2:
        return _separates(labels, values == values.max())
    if real:
        ranks = pd.Series(values).rank(), pd.Series(labels).rank()
        with np.errstate(invalid="ignore"):  # of equal labels
            return max(abs(np.corrcoef(*pair)[0, 1]) for pair in ((values, labels), ranks)) > CORRELATION
    pairs = combinations(np.unique(labels), 2)
    return all(_separates(values[of := np.isin(labels, pair)], labels[of] == pair[0]) for pair in pairs)


def _separates(values: np.ndarray, of: np.ndarray) -> bool:
    """Return whether values, [n], separate the rows of one kind from the others: by the area under the ROC curve.

    of: [n] of bool. There must be some of both.
    """
    ones, others = of.sum(), (~of).sum()
    area = (pd.Series(values).rank()[of].sum() - ones * (ones + 1) / 2) / max(ones * others, 1)
    return bool(min(ones, others) >= LEAST_OF_CLASS and abs(area - 0.5) > AUC - 0.5)
