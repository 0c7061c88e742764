"""Baselines: a linear model fitted to each client's own training examples, with a penalty chosen by cross-validation.

Both models are scikit-learn's. Ridge regression minimises, over n examples (x_j, t_j)::

    sum_j (w'x_j + b - t_j)^2 + n a |w|^2

The factor a is chosen from `RATIOS` by leave-one-out errors. The intercept b is not penalised. For logistic regression, the
inverse C of the penalty is chosen from `INVERSES` by the log loss in a cross-validation with at most `FOLDS` folds.
"""

import warnings

import numpy as np

from fedopt.machine import one_blas_thread
from fedopt.metrics import EQUAL

RATIOS = np.logspace(3, -3, 25)  # the strongest penalty comes first, since the first of equal errors is chosen
INVERSES = np.logspace(-3, 3, 7)
FOLDS = 5
UNPENALISED = 1e6  # the C of the "unpenalised" classifier, finite so that it exists for separable classes
MOST_NUMBERS, MOST_CLIENTS = 500_000, 20  # limits of rows x features and of clients, for about five seconds


def ridge(x: np.ndarray, t: np.ndarray) -> np.ndarray:
    """Fit a client's ridge regression and return its coefficients and intercept, ``[features + 1]``.

    The penalty is chosen by leave-one-out cross-validation. With one example, the prediction is constant.

    Args:
        x: Features of the client's examples, ``[n, features]``.
        t: Their targets, ``[n]``.
    """
    from sklearn.linear_model import RidgeCV  # slow to import

    if len(t) == 1:  # leave-one-out errors need two rows
        return np.append(np.zeros(x.shape[1]), t)
    model = RidgeCV(len(t) * RATIOS).fit(x, t)
    return np.append(model.coef_, model.intercept_)


def logistic(x: np.ndarray, y: np.ndarray, tests: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Fit logistic regression to a client's examples, with and without a penalty, and predict log probabilities.

    A class without training examples gets the probability 1 / (n + C), for n examples and C classes. If all examples belong to
    one class, nothing is fitted, and each class c with n_c examples gets the probability (n_c + 1) / (n + C). If a class has a
    single example, there is no cross-validation, and scikit-learn's default inverse penalty of 1 is used.

    Args:
        x: Features of the client's training examples, ``[n, features]``.
        y: Their classes, ``[n]``.
        tests: Features of the examples to predict, ``[tests, features]``.
        weights: Weights of the classes in the loss, ``[C]``.

    Returns:
        Log probabilities, ``[2, tests, C]``: the regression with a penalty, and the regression without.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression, LogisticRegressionCV

    counts = np.bincount(y, minlength=len(weights))
    smoothed, present = (counts + 1) / (len(y) + len(weights)), np.flatnonzero(counts)
    shares = np.tile(smoothed, (2, len(tests), 1))
    if len(present) > 1 and len(tests):
        folds = min(FOLDS, counts[present].min())
        options = {"class_weight": {c: weights[c] for c in present}, "max_iter": 1000}
        models = [LogisticRegression(**options), LogisticRegression(C=UNPENALISED, **options)]
        if folds > 1:
            options |= {"Cs": INVERSES, "cv": int(folds), "scoring": "neg_log_loss"}
            models[0] = LogisticRegressionCV(l1_ratios=(0,), use_legacy_attributes=False, **options)
        with one_blas_thread(), warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # separable classes cause this warning
            for its, model in zip(shares, models, strict=True):
                its[:, present] = smoothed[present].sum() * model.fit(x, y).predict_proba(tests)
    return np.log(np.maximum(shares, 1e-300))


def compared(own: np.ndarray, alone: np.ndarray, sign: int) -> dict[str, float]:
    """Return the percentages of clients whose model is better than, or as good as, the baseline fitted to their own examples.

    Values that differ only by rounding count as equal.

    Args:
        own: The metric of the model that each client uses, ``[M]``.
        alone: The metric of each client's baseline, ``[M]``.
        sign: 1 if lower values of the metric are better, -1 otherwise (`Metric.sign`).

    Returns:
        The percentages ``better_than_alone`` and ``as_good_as_alone``.
    """
    gain, equal = sign * (alone - own), EQUAL * np.abs(alone)
    shares = {"better_than_alone": gain > equal, "as_good_as_alone": np.abs(gain) <= equal}
    return {name: 100 * float(np.where(np.isfinite(own), of, np.nan).mean()) for name, of in shares.items()}
