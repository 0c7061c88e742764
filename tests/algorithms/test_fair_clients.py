"""docs/studies/fair.py, which compares fair methods: what is exact against scipy, the divisions, and tables of small data."""

import runpy

import numpy as np
import pytest
from scipy.optimize import minimize
from support.command import ROOT

SCRIPT, PAGE = runpy.run_path(str(ROOT / "docs" / "studies" / "fair.py")), ROOT / "docs" / "fair-clients.md"


def table(real, M=12, n=30, d=2):
    """Clients of unlike sizes and models."""
    rng = np.random.default_rng(0)
    client = np.repeat(np.arange(M), rng.integers(n // 2, n, M))
    x = rng.standard_normal((len(client), d))
    z = (x * rng.normal(1, 0.7, (M, d))[client]).sum(1) + rng.standard_normal(len(client))
    return SCRIPT["Table"](x.astype(np.float32), z if real else (z > 0).astype(int), client, real)


def client_losses(t, w):
    z = t.x @ w[:-1] + w[-1]
    of_rows = 0.5 * (z - t.y) ** 2 if t.real else -np.log(np.where(t.y == 1, 1, 0) + (1 - 2 * t.y) / (1 + np.exp(z)))
    return np.array([of_rows[t.client == i].mean() for i in range(t.client.max() + 1)])


def programmed(t, of):
    """The least value by sequential quadratic programming with a bound for each client: f_i <= s, or f_i <= s + e_i."""
    M, d = t.client.max() + 1, t.x.shape[1] + 1
    if of == "mean":
        return minimize(lambda w: client_losses(t, w).mean(), np.zeros(d), method="SLSQP", tol=1e-12).fun
    extra = 0 if of == "max" else M
    objective = lambda v: v[d] + v[d + 1 :].sum() / 2  # noqa: E731
    bounds = {"type": "ineq", "fun": lambda v: v[d] + (v[d + 1 :] if extra else 0) - client_losses(t, v[:d])}
    start = np.concatenate([np.zeros(d), [1.0], np.ones(extra)])
    positive = [(None, None)] * (d + 1) + [(0, None)] * extra
    options = {"maxiter": 500, "ftol": 1e-12}
    return minimize(objective, start, method="SLSQP", constraints=bounds, bounds=positive, options=options).fun


@pytest.mark.parametrize("real", [True, False])
@pytest.mark.parametrize("of", ["mean", "cvar", "max"])
def test_exact_minimisers(of, real):
    t = table(real)
    losses = client_losses(t, SCRIPT["least"](t, of))
    value = {"mean": losses.mean(), "max": losses.max()}.get(of)
    if of == "cvar":  # a tenth of 12 clients counts as two
        value = np.sort(losses)[::-1][:2].mean()
    assert value == pytest.approx(programmed(t, of), abs=3e-3)


def test_a_penalty_spares_the_intercept():
    t = table(real=True)
    z, M = np.c_[t.x, np.ones(len(t.y))].astype(float), t.client.max() + 1
    of_rows = (1 / (M * np.bincount(t.client)))[t.client]
    expected = np.linalg.solve((z.T * of_rows) @ z + np.diag([0.3, 0.3, 0]), (z.T * of_rows) @ t.y)
    np.testing.assert_allclose(SCRIPT["least"](t, "mean", 0.3), expected, atol=1e-4)


def test_divisions_are_within_clients_and_apart():
    client = np.repeat([0, 1, 2], [10, 3, 40])
    rest, aside = SCRIPT["cut"](client, np.arange(53), 0.2, 1)
    assert np.bincount(client[aside]).tolist() == [2, 1, 8]
    assert sorted([*rest, *aside]) == [*range(53)]
    others, judged = SCRIPT["cut"](client, rest, 0.25, 2)
    assert np.bincount(client[judged]).tolist() == [2, 1, 8]
    assert sorted([*others, *judged]) == rest.tolist()
    assert judged.tolist() != SCRIPT["cut"](client, rest, 0.25, 3)[1].tolist()


def test_the_worst_tenth_of_eleven_are_two():
    assert SCRIPT["worst"](np.arange(11.0)) == 9.5


@pytest.mark.full
@pytest.mark.parametrize(("name", "real"), [("hsb82", True), ("adult", False)])
def test_tables_have_the_rows_of_the_page(name, real, tmp_path, monkeypatch, capsys):
    t = table(real, M=3, n=60)
    labels = t.y if real else np.where(t.y == 1, ">50K", "<=50K")
    parts = {"train": slice(0, None, 2), "test": slice(1, None, 2)}
    columns = {"x": t.x, "y": labels, "client": t.client}
    np.savez(
        tmp_path / f"{name}.npz", **{f"{k}_{of}": v[part] for k, v in columns.items() for of, part in parts.items()}
    )
    monkeypatch.setenv("FEDOPT_DATA", str(tmp_path))
    with pytest.raises(SystemExit, match=f"has 3 clients, not .*scripts/data {name}"):
        SCRIPT["main"]([name])
    capsys.readouterr()
    monkeypatch.setitem(SCRIPT["CLIENTS"], name, 3)
    SCRIPT["main"]([name, "--trials", "2", "--seeds", "2", "--rounds", "2"])
    lines = capsys.readouterr().out.splitlines()
    page = PAGE.read_text(encoding="utf-8")
    assert lines[0] in page
    titles = [line.split(" | ")[0] for line in lines[2:]]
    assert len(titles) == (13 if real else 14)
    section = page[page.index(lines[0]) :].splitlines()[2 : 2 + len(titles)]
    assert [line.split(" | ")[0] for line in section] == titles
    assert all(line.count("|") == lines[0].count("|") for line in lines)
