"""What quadratic problems share: the key `delta`, and the constants of the mean problem, against their definitions."""

import numpy as np
import pytest
import torch
from support.derivatives import F64, central_differences, full, mean, normal, whole

from fedopt.config import compose
from fedopt.data.partitioners import Iid
from fedopt.data.world import World
from fedopt.errors import UserError
from fedopt.problems.pl_minimax import PlMinimax
from fedopt.problems.quadratic_bilevel import QuadraticBilevel
from fedopt.problems.quadratic_compositional import QuadraticCompositional
from fedopt.problems.quadratic_hierarchical import QuadraticHierarchical
from fedopt.problems.quadratic_local_bilevel import QuadraticLocalBilevel
from fedopt.problems.quadratic_local_compositional import QuadraticLocalCompositional
from fedopt.problems.quadratic_minimax import QuadraticMinimax
from fedopt.problems.quadratic_minimisation import QuadraticMinimisation
from fedopt.results.identity import digits
from fedopt.running.assemble import assemble

# The dimensions, and the positive definite terms
PROBLEMS = {
    QuadraticBilevel: ({"dx": 3, "dy": 5}, ["A", "H"]),
    QuadraticLocalBilevel: ({"dx": 3, "dy": 5}, ["A", "H"]),
    PlMinimax: ({"d": 4, "rho": 1.2, "coupling": 1.5}, ["A", "D"]),
    QuadraticMinimax: ({"dx": 4, "dy": 3, "mismatch": None}, ["A", "D"]),
    QuadraticCompositional: ({"d0": 3, "d1": 5}, ["Q"]),
    QuadraticLocalCompositional: ({"d0": 3, "d1": 5}, ["Q"]),
    QuadraticMinimisation: ({"dim": 4}, ["A"]),
    QuadraticHierarchical: ({"d": 4}, ["A"]),
}
every_problem = pytest.mark.parametrize("cls", PROBLEMS)


def make(cls, clients=4, seed=0, **changes):
    fields = {"conditioning": 10.0, "heterogeneity": 1.0, "noise": 1.0, "examples": 40, "delta": 0.5, **changes}
    return cls(World(seed, Iid(clients), dtype=F64), **{**PROBLEMS[cls][0], **fields})


def terms(p):
    """The clients' terms, [M, ...], unless their sum is zero; in bilevel problems H, the Hessian of f, is one."""
    own = {name: v.numpy() for name, v in p.per_client.items() if (type(p), name) != (PlMinimax, "e")}
    if "F" in own:
        D, F, G = own.pop("D"), own.pop("F"), own.pop("G")
        own["H"] = np.concatenate([np.concatenate([D, G], 2), np.concatenate([G.swapaxes(1, 2), F], 2)], 1)
    return own


@every_problem
def test_the_mean_is_the_same_for_all_delta_and_its_spectrum_is_chosen(cls):
    p = make(cls)
    others = [{"delta": 0.0}, {"delta": 0.9}, {"examples": 60}, {"noise": 0.0}, {"heterogeneity": 0.0}, {"clients": 7}]
    for other in (make(cls, **changes) for changes in [*others, {"clients": 1}]):
        for name, of_clients in terms(other).items():
            np.testing.assert_allclose(of_clients.mean(0), terms(p)[name].mean(0), rtol=0, atol=1e-14)
    for name in PROBLEMS[cls][1]:
        values = np.linalg.eigvalsh(terms(p)[name].mean(0))
        np.testing.assert_allclose(values, np.geomspace(0.1, 1, len(values)), rtol=1e-12)


@every_problem
@pytest.mark.parametrize("clients", [2, 5])
def test_clients_are_as_far_from_the_mean_as_delta_says(cls, clients):
    for name, own in terms(make(cls, clients, delta=0.9)).items():
        common = own.mean(0)
        if name in PROBLEMS[cls][1]:
            half = np.linalg.inv(np.linalg.cholesky(common))
            relative = half @ (own - common) @ half.T  # its eigenvalues are those of delta S_i
            assert np.linalg.norm(relative, 2, axis=(1, 2)).max() == pytest.approx(0.9, rel=1e-10)
            assert np.linalg.eigvalsh(own).min() > 0
        else:
            squares = ((own - common) ** 2).sum(axis=tuple(range(1, own.ndim)))
            assert np.sqrt(squares.mean()) == pytest.approx(0.9 * np.linalg.norm(common), rel=1e-10)
            assert squares.min() > 0


@every_problem
def test_clients_are_equal_without_delta(cls):
    p = make(cls, delta=0.0)
    for own in p.per_client.values():
        torch.testing.assert_close(own, own[:1].expand_as(own), rtol=0, atol=1e-15)


def test_a_client_is_semidefinite_up_to_delta_1():
    Q = terms(make(QuadraticCompositional, clients=2, delta=1.0))["Q"]
    np.testing.assert_allclose(np.linalg.eigvalsh(Q).min(), 0, atol=1e-14)


@pytest.mark.parametrize(
    ("name", "algo"), [("quadratic_local_bilevel", "fedbioacc_local"), ("quadratic_minimax", "fsgda")]
)
def test_delta_is_refused_beyond_where_problems_are_solvable(name, algo):
    bound = 1 if "local" in name else 1.1
    with pytest.raises(UserError, match=r"problem\.delta"):
        assemble(compose([f"algo={algo}", f"problem={name}", f"problem.delta={bound}"]))


@every_problem
def test_curvature_noise_is_a_factor_of_the_matrices_with_mean_one(cls):
    """Over a client's examples of a split it has mean 1 and the given deviation, and vectors have the noise that they had."""
    quiet, noisy = make(cls, clients=2, examples=800), make(cls, clients=2, examples=800, curvature_noise=0.3)
    for one, other in zip(full(quiet, 1), full(noisy, 1), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    factors = {}
    for split, rows in noisy.splits.items():
        for row in rows[1]:
            at = {split: whole(row[None])}
            for name, own, before in zip(noisy.per_client, noisy.sample(1, at), quiet.sample(1, at), strict=True):
                if own.ndim == 1:
                    assert torch.equal(own, before)
                else:
                    factors.setdefault(name, {}).setdefault(split, []).append(float(own.sum() / before.sum()))
                    torch.testing.assert_close(own, factors[name][split][-1] * before, rtol=1e-9, atol=1e-12)
    for of_splits in factors.values():
        ((mean, deviation),) = [
            (np.mean(f), np.std(f)) for f in of_splits.values() if np.std(f) > 1e-6
        ]  # one split has it
        assert mean == pytest.approx(1, abs=1e-12)
        assert deviation == pytest.approx(0.3, rel=0.2)


def test_configs_without_delta_have_the_identity_that_they_had():
    words = ["algo=local_sgda", "problem=quadratic_minimax"]
    config = dict(compose(words).nodes)
    before = {
        **config,
        "problem": {k: v for k, v in config["problem"].items() if k not in ("delta", "coupling", "curvature_noise")},
    }
    assert digits(config) == digits(before)
    for word in ("problem.delta=0.5", "problem.coupling=2", "problem.curvature_noise=0.1"):
        assert digits(compose([*words, word]).nodes) != digits(before)


def jacobian_constants(p):
    """kappa and L_x by differences of the gradient."""
    gradient = getattr(p, "hypergradient", None) or getattr(p, "gradient", None)
    values = np.linalg.eigvalsh(central_differences(gradient, normal(p.start()[0].numel())))
    return values[-1] / values[0], values[-1]


@pytest.mark.parametrize("cls", [c for c in PROBLEMS if c not in (QuadraticMinimax, QuadraticMinimisation)])
def test_constants_are_those_of_the_outer_objective(cls):
    p = make(cls)
    constants = p.constants()
    np.testing.assert_allclose([constants["kappa"], constants["L_x"]], jacobian_constants(p), rtol=1e-6)
    # The largest eigenvalue of the mean, and of an identity
    assert constants["L_y"] == pytest.approx(1 + 2 * getattr(p, "rho", 0), rel=1e-12)


@pytest.mark.parametrize("changes", [{"dx": 7, "dy": 5}, {"dx": 3, "dy": 6}, {"dx": 5, "dy": 5, "seed": 2}])
def test_outer_condition_of_bilevel_problems_is_bounded(changes):
    """It is that of [I S]' H [I S] with S = A^-1 B of norm 1: at most twice that of H."""
    p = make(QuadraticBilevel, conditioning=100.0, **changes)
    A, B = (p.per_client[name].numpy().mean(0) for name in "AB")
    assert np.linalg.norm(np.linalg.solve(A, B), 2) == pytest.approx(1, rel=1e-10)
    assert 3 < p.constants()["kappa"] <= 200
    assert p.constants()["L_x"] <= 2


def test_constants_of_minimisation():
    assert make(QuadraticMinimisation).constants() == pytest.approx({"kappa": 10, "L_x": 1}, rel=1e-12)


def descent_ascent_field(p):
    """The matrix of (grad_x f, -grad_y f), by differences."""
    dx = p.dx

    def field(w):
        x, y = w[:dx], w[dx:]
        of_x, of_y = (mean(p, lambda s, k=k: torch.func.grad(p.f, k)(x, y, s)) for k in (0, 1))
        return torch.cat([of_x, -of_y])

    return central_differences(field, normal(dx + p.dy))


def test_constants_of_the_game():
    p = make(QuadraticMinimax, coupling=2.0)
    J = descent_ascent_field(p)
    mu = np.linalg.eigvalsh((J + J.T) / 2)[0]
    A, B, D = J[:4, :4], J[:4, 4:], J[4:, 4:]
    best = np.linalg.eigvalsh(A + B @ np.linalg.inv(D) @ B.T)[-1]
    expected = {"kappa": np.linalg.norm(J, 2) / mu, "L_x": best, "L_y": np.linalg.eigvalsh(D)[-1]}
    assert p.constants() == pytest.approx(expected, rel=1e-6)


def largest_step(J):
    """Of w <- w - step J w, which shrinks where |1 - step lambda| < 1 for every eigenvalue."""
    values = np.linalg.eigvals(J)
    return (2 * values.real / abs(values) ** 2).min()


def test_a_coupled_game_turns_and_forces_small_steps():
    """Coupling multiplies B alone; eigenvalues turn to the imaginary axis, and steps of descent-ascent shrink with its square."""
    weak, strong = make(QuadraticMinimax), make(QuadraticMinimax, coupling=10.0)
    for name, own in weak.per_client.items():
        torch.testing.assert_close(strong.per_client[name], 10 * own if name == "B" else own, rtol=0, atol=0)
    fields = [descent_ascent_field(p) for p in (weak, strong)]
    assert largest_step(fields[1]) < largest_step(fields[0]) / 30
    values = np.linalg.eigvals(fields[1])
    assert abs(values.imag).max() > 10 * values.real[abs(values.imag).argmax()]
