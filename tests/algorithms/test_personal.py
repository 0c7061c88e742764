"""Methods of personal models on linear regressions of unequal clients, whose models have closed forms, against NumPy."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import RidgeCV
from support.cases import few
from support.derivatives import central_differences
from support.samples import real
from support.settled import settled

from fedopt.config.composed import compose
from fedopt.errors import UserError
from fedopt.running.assemble import assemble
from fedopt.running.loop import Progress, evaluate
from fedopt.testing.harness import small, steps

UNEQUAL = ["partitioner=proportions", "partitioner.shares=[9,4,2,1]", "problem.features=2", "problem.ridge=0.1"]
EXACT = [*UNEQUAL, "algo.B=null", "participation.cohort=null", "partitioner.clients=4", "preset=none"]
CLOSE = {"rtol": 1e-9, "atol": 1e-11}


def experiment(algo, *words):
    return small(algo, "linear_regression", *EXACT, *words)


def quadratics(e):
    """A_i, c_i and p_i of f_i(x) = 1/2 x'A_i x - c_i'x + constant, from the examples."""
    p, A, c = e.problem, [], []
    for rows in p.splits["train"]:
        z, t = p.train.x[rows].numpy(), p.train.y[rows].numpy()
        A.append(z.T @ z / len(t) + 0.1 * np.diag([1, 1, 0]))
        c.append(z.T @ t / len(t))
    sizes = np.array([len(rows) for rows in p.splits["train"]])
    return np.array(A), np.array(c), sizes / sizes.sum()


def proximal(A, c, lam, w):
    """The minimisers of f_i(theta) + lam/2 |theta - w|^2."""
    return np.array([np.linalg.solve(A_i + lam * np.eye(len(w)), c_i + lam * w) for A_i, c_i in zip(A, c, strict=True)])


def alone(A, c):
    return proximal(A, c, 0, np.zeros(A.shape[1]))


def gradient(A, c, i, x):
    return A[i] @ x - c[i]


# What a round does, in NumPy


@pytest.mark.parametrize("trained", ["cohort", "all"])
@pytest.mark.parametrize("stragglers", [0, 0.5])
def test_a_round_of_pfedme(trained, stragglers):
    """theta is kept from one local round to the next, and begins at w; the server averages the cohort alone.

    A client without local rounds keeps its theta.
    """
    lam, eta, delta, beta = 2, 0.05, 0.1, 1.5
    values = [f"algo.lam={lam}", f"algo.eta={eta}", f"algo.delta={delta}", f"algo.beta={beta}", "algo.R=3", "algo.K=2"]
    e = experiment(
        "pfedme", *values, f"algo.trained={trained}", "participation.cohort=2", f"participation.stragglers={stragglers}"
    )
    A, c, p = quadratics(e)
    w, thetas = np.zeros(3), np.zeros((4, 3))
    for r, state in enumerate(steps(e, 4)[1:]):
        fed = e.federation.at(r)
        S, work, new = fed.cohort(), fed.work(np.full(4, 3)), {}
        for i in range(4) if trained == "all" else S:
            w_i, theta = w, w
            for _ in range(work[i]):
                for _ in range(2):
                    theta = theta - delta * (gradient(A, c, i, theta) + lam * (theta - w_i))
                w_i = w_i - lam * eta * (w_i - theta)
            new[i], thetas[i] = w_i, theta if work[i] else thetas[i]
        w = (1 - beta) * w + beta * sum(p[i] * new[i] for i in S) / p[S].sum()
        np.testing.assert_allclose(state.w, w, **CLOSE)
        np.testing.assert_allclose(state.theta.tensor(), thetas, **CLOSE)


def test_a_round_of_ditto():
    """A straggler keeps its model, and a client that is not there too; theta is drawn to what the server sent."""
    lam, eta, eta_theta, gamma = 0.7, 0.1, 0.2, 0.8
    values = [f"algo.lam={lam}", f"algo.eta={eta}", f"algo.eta_theta={eta_theta}", f"algo.gamma={gamma}", "algo.tau=3"]
    e = experiment("ditto", *values, "participation.cohort=2", "participation.stragglers=0.5")
    A, c, p = quadratics(e)
    w, thetas = np.zeros(3), np.zeros((4, 3))
    for r, state in enumerate(steps(e, 4)[1:]):
        fed = e.federation.at(r)
        S, work, change = fed.cohort(), fed.work(np.full(4, 3)), 0
        for i in S:
            w_i = w
            for _ in range(work[i]):
                thetas[i] -= eta_theta * (gradient(A, c, i, thetas[i]) + lam * (thetas[i] - w))
                w_i = w_i - eta * gradient(A, c, i, w_i)
            change = change + p[i] / p[S].sum() * (w_i - w)
        w = w + gamma * change
        np.testing.assert_allclose(state.w, w, **CLOSE)
        np.testing.assert_allclose(state.theta.tensor(), thetas, **CLOSE)


def test_a_round_of_fedrep():
    """The head first, and then the representation at the new head."""
    eta_h, eta_phi, gamma = 0.3, 0.1, 0.8
    values = [f"algo.eta_h={eta_h}", f"algo.eta_phi={eta_phi}", f"algo.gamma={gamma}", "algo.tau_h=3", "algo.tau_phi=2"]
    e = experiment("fedrep", *values, "participation.cohort=2", "algo.own=1")
    A, c, p = quadratics(e)
    phi, heads = np.zeros(2), np.zeros((4, 1))
    for r, state in enumerate(steps(e, 4)[1:]):
        S, change = e.federation.at(r).cohort(), 0
        for i in S:
            phi_i = phi
            for _ in range(3):
                heads[i] -= eta_h * gradient(A, c, i, np.append(phi, heads[i]))[2:]
            for _ in range(2):
                phi_i = phi_i - eta_phi * gradient(A, c, i, np.append(phi_i, heads[i]))[:2]
            change = change + p[i] / p[S].sum() * (phi_i - phi)
        phi = phi + gamma * change
        np.testing.assert_allclose(state.phi, phi, **CLOSE)
        np.testing.assert_allclose(state.heads.tensor(), heads, **CLOSE)
        np.testing.assert_allclose(e.algorithm.output(state)[0], np.append(phi, heads.mean()), **CLOSE)
        personal = e.algorithm.personal(state, e.problem, e.federation.at(r))
        np.testing.assert_allclose(personal, np.column_stack([np.tile(phi, (4, 1)), heads]), **CLOSE)


@pytest.mark.parametrize("algo", ["per_fedavg", "per_fedavg_hvp"])
def test_a_step_of_per_fedavg_is_along_the_gradient_after_adaptation(algo):
    """Of a network, by finite differences; first order leaves the factor I - alpha grad^2 f out."""
    alpha, beta = 0.3, 0.1
    words = [f"algo.alpha={alpha}", f"algo.beta={beta}", "algo.tau=1", "algo.B=null", "partitioner.clients=1"]
    e = small(algo, "classification", *words, "participation.cohort=null", "problem.model=softmax", "preset=none")
    x, whole = e.problem.start()[0] + 0.1, torch.from_numpy(e.problem.splits["train"][0])
    sample = e.problem.sample(0, {"train": (whole, torch.full((len(whole),), 1 / len(whole), dtype=x.dtype))})
    adapted = x - alpha * torch.func.grad(e.problem.f)(x, sample)
    new = e.algorithm.step(e.algorithm.init(e.problem)._replace(w=x), e.problem, e.federation.at(0)).w
    if algo == "per_fedavg":
        expected = torch.func.grad(e.problem.f)(adapted, sample)
    else:
        after = lambda x: e.problem.f(x - alpha * torch.func.grad(e.problem.f)(x, sample), sample)  # noqa: E731
        expected = central_differences(after, x)
    np.testing.assert_allclose((x - new) / beta, expected, rtol=1e-6, atol=1e-9)
    models = e.algorithm.personal(e.algorithm.init(e.problem)._replace(w=x), e.problem, e.federation.at(0))
    np.testing.assert_allclose(models[0], adapted, **CLOSE)


# Where rounds lead to


def test_pfedme_finds_the_models_of_the_moreau_envelope():
    lam = 0.6
    e = experiment("pfedme", f"algo.lam={lam}", "algo.eta=0.5", "algo.delta=0.3", "algo.R=1", "algo.K=200")
    A, c, p = quadratics(e)
    state, eye = settled(e), np.eye(3)
    B = np.array([eye - lam * np.linalg.inv(A_i + lam * eye) for A_i in A])  # grad F_i = lam (B_i w - b_i)
    b = proximal(A, c, lam, np.zeros(3))
    w = np.linalg.solve(np.tensordot(p, B, 1), p @ b)
    np.testing.assert_allclose(state.w, w, rtol=1e-7)
    np.testing.assert_allclose(state.theta.tensor(), proximal(A, c, lam, w), rtol=1e-7)


def test_a_round_of_pfedme_is_a_gradient_step_on_the_envelope():
    """R = 1, and so many K that theta is exact: a step of length lam eta along w - theta, beta eta along the gradient."""
    lam, eta, beta = 0.6, 0.2, 0.7
    words = [f"algo.lam={lam}", f"algo.eta={eta}", f"algo.beta={beta}", "algo.delta=0.3", "algo.R=1", "algo.K=300"]
    e = experiment("pfedme", *words)
    A, c, p = quadratics(e)

    def envelope(w):
        theta = proximal(A, c, lam, np.asarray(w))
        values = [
            0.5 * t @ A[i] @ t - c[i] @ t + lam / 2 * np.sum((t - np.asarray(w)) ** 2) for i, t in enumerate(theta)
        ]
        return p @ values

    one, two = steps(e, 2)[1:]
    slope = central_differences(envelope, one.w)
    np.testing.assert_allclose(two.w, one.w.numpy() - beta * eta * slope, rtol=1e-7)


def test_pfedme_with_a_strong_pull_is_fedavg():
    lam, ends = 1e7, []
    pulled = experiment("pfedme", f"algo.lam={lam}", f"algo.delta={1 / lam}", "algo.eta=0.1", "algo.R=4", "algo.K=3")
    for e in (pulled, experiment("fedavg", "algo.eta=0.1", "algo.tau=4")):
        ends.append(e.algorithm.output(steps(e, 3)[-1])[0])
    np.testing.assert_allclose(*ends, rtol=1e-5)


@pytest.mark.parametrize(("algo", "step"), [("pfedme", "delta"), ("ditto", "eta_theta")])
def test_without_pull_each_client_is_alone(algo, step):
    """theta is off by the order of lam."""
    words = ["algo.R=1", "algo.K=500", "algo.eta=0.1"] if algo == "pfedme" else ["algo.tau=500"]
    off = []
    for lam in (2e-4, 1e-4):
        e = experiment(algo, f"algo.lam={lam}", f"algo.{step}=0.4", *words)
        A, c, _ = quadratics(e)
        off.append(np.abs(steps(e, 3)[-1].theta.tensor().numpy() - alone(A, c)).max())
    assert off[1] < 1e-3
    assert 1.9 < off[0] / off[1] < 2.1


def test_ditto_settles_at_the_models_drawn_to_fedavgs():
    lam = 0.6
    e = experiment("ditto", f"algo.lam={lam}", "algo.eta=0.2", "algo.eta_theta=0.3", "algo.tau=1")
    A, c, p = quadratics(e)
    state, w = settled(e), np.linalg.solve(np.tensordot(p, A, 1), p @ c)
    np.testing.assert_allclose(state.w, w, rtol=1e-8)
    np.testing.assert_allclose(state.theta.tensor(), proximal(A, c, lam, w), rtol=1e-8)


@pytest.mark.parametrize("B", ["null", "4"])
def test_the_common_model_of_ditto_is_fedavgs(B):
    words = [f"algo.B={B}", "algo.eta=0.1", "algo.tau=3", "participation.cohort=2"]
    ditto, fedavg = (steps(experiment(algo, *words), 4)[-1] for algo in ("ditto", "fedavg"))
    torch.testing.assert_close(ditto.w, fedavg.x, rtol=1e-13, atol=0)


def test_fedrep_with_own_intercepts_is_least_squares_with_one_for_each_client():
    words = ["problem.ridge=0", "algo.own=1", "algo.eta_h=1", "algo.eta_phi=0.2", "algo.tau_h=1", "algo.tau_phi=1"]
    e = experiment("fedrep", *words)
    state, p = settled(e), e.problem
    owner = np.repeat(np.arange(4), p.splits["train"].sizes)
    rows = p.splits["train"].rows
    design = np.column_stack([p.train.x[rows].numpy()[:, :-1], np.eye(4)[owner]])
    best = np.linalg.lstsq(design, p.train.y[rows].numpy())[0]
    np.testing.assert_allclose(state.phi, best[:2], rtol=1e-8)
    np.testing.assert_allclose(state.heads.tensor()[:, 0], best[2:], rtol=1e-8)


def test_local_only_sends_nothing_and_finds_each_clients_own_minimum():
    e = experiment("local_only", "algo.eta_h=0.3", "algo.tau_h=400")
    A, c, _ = quadratics(e)
    state = steps(e, 2)[-1]
    np.testing.assert_allclose(state.heads.tensor(), alone(A, c), rtol=1e-7)
    assert not e.federation.ledger.down.any()
    assert not e.federation.ledger.up.any()


@pytest.mark.parametrize("algo", ["per_fedavg", "per_fedavg_hvp"])
def test_per_fedavg_settles_at_the_best_point_to_adapt_from(algo):
    """First order: at another one, where the mean of the gradients after adaptation is zero."""
    alpha = 0.2
    e = experiment(algo, f"algo.alpha={alpha}", "algo.beta=0.2", "algo.tau=1")
    A, c, p = quadratics(e)
    factor = [np.linalg.matrix_power(np.eye(3) - alpha * A_i, 2 if "hvp" in algo else 1) for A_i in A]
    matrix = sum(p_i * F_i @ A_i for p_i, F_i, A_i in zip(p, factor, A, strict=True))
    w = np.linalg.solve(matrix, sum(p_i * F_i @ c_i for p_i, F_i, c_i in zip(p, factor, c, strict=True)))
    np.testing.assert_allclose(settled(e).w, w, rtol=1e-8)


# Metrics


def test_metrics_are_taken_at_the_clients_models_and_cost_nothing():
    """Each client's error on its own test examples, which are dealt out in turn."""
    e = experiment("per_fedavg", "algo.alpha=0.3", "problem.ridge=0.1")
    state = steps(e, 2)[-1]
    before = e.federation.ledger.columns()
    found, *_ = evaluate(e, state, Progress(round=2))
    assert e.federation.ledger.columns() == before
    A, c, _ = quadratics(e)
    w, x, t = state.w.numpy(), e.problem.test_examples.x.numpy(), e.problem.test_examples.y.numpy()
    owner = np.arange(len(t)) % 4

    def rmse(models):
        return np.array([np.sqrt(np.mean((x[owner == i] @ models[i] - t[owner == i]) ** 2)) for i in range(4)])

    models = [w - 0.3 * gradient(A, c, i, w) for i in range(4)]
    of_clients = rmse(models)
    assert found["personal_rmse"] == pytest.approx(of_clients.mean())
    assert found["worst_personal_rmse"] == pytest.approx(of_clients.max())
    examples = [
        (e.problem.train.x[rows].numpy(), e.problem.train.y[rows].numpy()) for rows in e.problem.splits["train"]
    ]
    fits = [RidgeCV(len(t) * np.logspace(3, -3, 25)).fit(z[:, :-1], t) for z, t in examples]
    of_alone = rmse([np.append(fit.coef_, fit.intercept_) for fit in fits])
    assert found["better_than_alone"] == 100 * np.mean(of_clients < of_alone)
    counts = np.bincount(owner)
    assert found["alone_rmse"] == pytest.approx(np.sqrt(counts @ of_alone**2 / counts.sum()))
    assert found["test_rmse"] == pytest.approx(np.sqrt(counts @ of_clients**2 / counts.sum()))
    assert found["common_rmse"] == pytest.approx(np.sqrt(np.mean((x @ w - t) ** 2)))


def test_a_method_without_personal_models_is_measured_at_its_common_one():
    e = experiment("fedavg", "algo.eta=0.1", "algo.tau=3")
    state = steps(e, 2)[-1]
    found, *_ = evaluate(e, state, Progress(round=2))
    everyone = state.x.expand(4, -1)
    assert found["personal_rmse"] == pytest.approx(e.problem.evaluate(state.x, everyone)["personal_rmse"], rel=1e-9)
    assert found["personal_rmse"] != pytest.approx(e.problem.evaluate(state.x, 0 * everyone)["personal_rmse"])


def test_accuracy_is_that_of_the_clients_own_models():
    """Two labels a client: alone it is far better on its own examples than the common model."""
    labels = ["partitioner=shards", "problem.own_test=0.25", "problem.model=softmax", "participation.cohort=null"]
    found = {}
    for algo, work in (("fedavg", "tau"), ("local_only", "tau_h")):
        e = small(algo, "classification", *labels, f"algo.{work}=5", "preset=none")
        found[algo], *_ = evaluate(e, steps(e, 5)[-1], Progress(round=5))
    assert found["local_only"]["personal_accuracy"] > 5 + found["fedavg"]["personal_accuracy"]


def test_what_is_own_must_fit_the_model():
    with pytest.raises(UserError, match=r"algo\.own=9: the model has 3 parameters"):
        steps(experiment("fedrep", "algo.own=9"), 0)
    with pytest.raises(UserError, match="has no last layer"):
        steps(small("fedrep", "invariant_logistic", "algo.own=last_layer"), 0)
    assert steps(experiment("fedrep", "algo.own=last_layer"), 0)[0].heads.shape == (4, 1)  # the intercept
    e = small("fedrep", "classification", "algo.own=last_layer")
    assert steps(e, 0)[0].heads.shape == (6, 10 * 9 + 10)


@pytest.mark.parametrize(
    ("table", "lam", "delta", "found_there"),
    few(
        [
            ("exam", 1, 0.28, [0.726, 0.71, 68.75]),
            ("hsb82", 3, 0.11, [0.865, 0.838, 66.25]),
            ("chem97", 1, 0.33, [0.735, 0.73, 58.015]),
        ],
        lambda case: case[0] == "exam",
    ),
)
def test_the_optimum_on_real_tables(table, lam, delta, found_there):
    """The clients' models by NumPy are a fixed point of pFedMe, and their errors are those of the problem's page."""
    path = real(f"{table}.npz") / f"{table}.npz"
    words = ["dataset=npz", f"dataset.path={path}", "dataset.pixels=raw", "partitioner=by_column", "preset=none"]
    sizes = ["algo.B=null", f"algo.lam={lam}", f"algo.eta={0.5 / lam}", f"algo.delta={delta}", "algo.R=1", "algo.K=120"]
    chosen = ["algo=pfedme", "problem=linear_regression", "hardware.threads=1", *words, *sizes]
    e, data = assemble(compose(chosen)), np.load(path)
    names, owner, owner_test = e.problem.splits["train"].names, data["client_train"], data["client_test"]
    z, z_test = (np.column_stack([data[x].astype(float), np.ones(len(data[x]))]) for x in ("x_train", "x_test"))
    of = [(z[owner == name], data["y_train"][owner == name]) for name in names]
    A, c = np.array([x.T @ x / len(x) for x, _ in of]), np.array([x.T @ y / len(x) for x, y in of])
    p, eye = np.array([len(x) for x, _ in of]) / len(z), np.eye(z.shape[1])
    envelope = sum(p_i * (eye - lam * np.linalg.inv(A_i + lam * eye)) for p_i, A_i in zip(p, A, strict=True))
    w = np.linalg.lstsq(envelope, p @ proximal(A, c, lam, np.zeros(len(eye))), rcond=1e-10)[0]
    models = proximal(A, c, lam, w)
    state = e.algorithm.init(e.problem)._replace(w=torch.from_numpy(w))
    state = e.algorithm.step(state, e.problem, e.federation.at(0))
    np.testing.assert_allclose(state.w, w, atol=1e-6)
    np.testing.assert_allclose(state.theta.tensor(), models, atol=1e-6)
    found, *_ = evaluate(e, state, Progress(round=1))
    predicted = [row @ models[names.index(name)] for row, name in zip(z_test, owner_test, strict=True)]
    assert found["test_rmse"] == pytest.approx(np.sqrt(np.mean((predicted - data["y_test"]) ** 2)), rel=1e-5)
    alone = np.array([np.linalg.lstsq(*of_client, rcond=1e-10)[0] for of_client in of])
    errors = {
        name: [
            np.mean((z_test[owner_test == name] @ model - data["y_test"][owner_test == name]) ** 2) for model in pair
        ]
        for name, *pair in zip(names, models, alone, strict=True)
        if name in owner_test
    }
    found["better_than_unpenalised"] = 100 * np.mean([own < of_alone for own, of_alone in errors.values()])
    for metric, value in zip(("test_rmse", "personal_rmse", "better_than_unpenalised"), found_there, strict=True):
        assert round(found[metric], 3) == value
