"""Where local steps end on unlike clients: a correction of their drift leads to the solution, without one there is a bias."""

import pytest

from fedopt.testing.harness import config, small, steps


def unlike_clients(algo, problem, *words):
    """Full batches, and several local steps of all clients, which are unlike."""
    batches = [f"algo.{key}=null" for key in config(f"algo={algo}")["algo"] if key[0] == "B"]
    setting = ["partitioner.clients=3", "participation.cohort=null", "problem.conditioning=2"]
    return small(algo, problem, *setting, *batches, *words)


def distance(e, rounds):
    return e.problem.evaluate(*e.algorithm.output(steps(e, rounds)[-1]))["distance"]


GAME = ("quadratic_minimax", "algo.eta_x=0.2", "algo.eta_y=0.2")
CORRECTED = {
    "scaffold": ("quadratic_minimisation", "algo.eta=0.2", "algo.tau=5"),
    "fednest": ("quadratic_minimax", "algo.alpha=0.2", "algo.beta=0.2", "algo.tau_in=3", "algo.tau_out=3"),
    "fedgda_gt": GAME,
    "cd_mage_mb": GAME,
    "cd_mage_vr": GAME,
    "sagda": GAME,
    "catalyst_scaffold_s": (*GAME, "algo.stage=4"),
    "codasca": (*GAME, "algo.decay=1", "algo.stage=4"),
    "proxskip_gda": ("quadratic_minimax", "algo.gamma_x=0.4", "algo.gamma_y=0.4"),
}
UNCORRECTED = {
    "fedavg": ("quadratic_minimisation", "eta", "algo.tau=5"),
    "fedprox": (
        "quadratic_minimisation",
        "eta",
        "algo.tau=5",
    ),  # its term shortens the drift, and leaves a bias all the same
    "local_sgda": ("quadratic_minimax", "eta_x", "eta_y", "algo.tau=5"),
    "coda_plus": ("quadratic_minimax", "eta_x", "eta_y", "algo.decay=1"),
    "local_eg": ("quadratic_minimax", "eta_x", "eta_y"),
}


@pytest.mark.full
@pytest.mark.parametrize("algo", CORRECTED)
def test_corrected_steps_end_at_the_solution(algo):
    assert distance(unlike_clients(algo, *CORRECTED[algo]), 60) < 1e-9


@pytest.mark.full
@pytest.mark.parametrize("algo", UNCORRECTED)
def test_uncorrected_steps_leave_the_solution_in_proportion_to_their_size(algo, monkeypatch):
    """From the solution on, for as long as it takes to come near where they end."""
    problem, *words = UNCORRECTED[algo]
    at = {}
    for eta, rounds in ((0.04, 30), (0.02, 60)):
        e = unlike_clients(algo, problem, *(word if "=" in word else f"algo.{word}={eta}" for word in words))
        solution = e.problem.solution()
        monkeypatch.setattr(type(e.problem), "start", lambda _, solution=solution: solution)
        at[eta] = distance(e, rounds)
    assert at[0.02] > 3e-4
    assert 1.8 < at[0.04] / at[0.02] < 2.2
