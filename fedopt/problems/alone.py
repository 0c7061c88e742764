"""What each client would do alone: a linear model of its own training rows, penalised as cross-validation chooses.

Both are scikit-learn's. Ridge regression minimises sum_j (w'x_j + b - t_j)^2 + n a |w|^2 over n rows, with a one of `RATIOS`, by
leave-one-out errors. The intercept b is not penalised. Logistic regression has C one of `INVERSES`, by the log loss of up to
`FOLDS` folds.
"""

import warnings

import numpy as np

from fedopt.metrics import EQUAL

RATIOS = np.logspace(3, -3, 25)  # of ties the strongest is taken
INVERSES = np.logspace(-3, 3, 7)
FOLDS = 5
UNPENALISED = 1e6  # C of the classifier that is as good as unpenalised, and exists where classes can be separated
MOST_NUMBERS, MOST_CLIENTS = 500_000, 20  # of all clients' rows times features: what takes about five seconds


def ridge(x: np.ndarray, t: np.ndarray) -> np.ndarray:
    """Return the coefficients and the intercept of a client's ridge regression, ``[features + 1]``.

    Args:
        x: The features of its rows, ``[n, features]``.
        t: Their targets, ``[n]``.
    """
    from sklearn.linear_model import RidgeCV  # slow to import

    if len(t) == 1:  # nothing is left where one row is left out
        return np.append(np.zeros(x.shape[1]), t)
    model = RidgeCV(len(t) * RATIOS).fit(x, t)
    return np.append(model.coef_, model.intercept_)


def logistic(x: np.ndarray, y: np.ndarray, tests: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return a client's log probabilities of classes by its penalised and unpenalised logistic regression, ``[2, tests, C]``.

    Classes without rows have their smoothed share, (n_c + 1) / (n + C), and so do all classes if there are rows of one only. If
    a class has a single row, there are no folds, and C is scikit-learn's default, 1.

    Args:
        x: The features of its rows, ``[n, features]``.
        y: Their classes, ``[n]``.
        tests: The features of the rows to predict.
        weights: The weights of the classes, ``[C]``.
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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # where classes can be separated
            for its, model in zip(shares, models, strict=True):
                its[:, present] = smoothed[present].sum() * model.fit(x, y).predict_proba(tests)
    return np.log(np.maximum(shares, 1e-300))


def compared(own: np.ndarray, alone: np.ndarray, sign: int) -> dict[str, float]:
    """Return the shares of clients that are better off than alone, and as well off up to rounding, in percent.

    Args:
        own: A number of each client, ``[M]``.
        alone: The same of its model alone, ``[M]``.
        sign: `Metric.sign`, 1 if lower numbers are better.
    """
    gain, equal = sign * (alone - own), EQUAL * np.abs(alone)
    shares = {"better_than_alone": gain > equal, "as_good_as_alone": np.abs(gain) <= equal}
    return {name: 100 * float(np.where(np.isfinite(own), of, np.nan).mean()) for name, of in shares.items()}
