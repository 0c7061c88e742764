#!/usr/bin/env python3
"""Print the tables of docs/availability.md and docs/late-answers.md: how far from the solution methods end if two groups of clients
come in turn, and how many rounds they take for a digit if answers come late.

Problems are random quadratics of ten clients, with full batches and K = 5 local steps (1 where the method's name says so). A
round of a method is then an affine map. The closed form is derived here in NumPy, from the clients' matrices alone.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from fedopt.config import compose
from fedopt.console import markdown_table
from fedopt.running.assemble import Experiment, assemble

SMALL = ["problem.noise=0", "problem.conditioning=2", "partitioner.clients=10", "participation.cohort=null"]
SMALL += ["hardware.threads=1", "preset=none"]
AGES = [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
LATE = ("participation.late=0", "participation.late=3", f"participation.late={AGES}".replace(" ", ""))
TURNS, K, ETA = "participation.pattern={kind: cyclic, groups: 2", 5, 0.1
ITERATES, CHANGES = "iterates", "changes"
GROUPS, ALL = "the group", "all, then the group"

# title -> problem, words with the step {e} and the local steps {K}, who is asked, and what closed form there is: that of local
# steps along the clients' fields (local 1: of one step), that of steps with an anchor, or the solution
METHODS: dict[str, tuple[str, str, str, str]] = {
    "FedAvg, K = 1": ("quadratic_minimisation", "algo=fedavg algo.eta={e} algo.tau=1", GROUPS, "local 1"),
    "FedAvg": ("quadratic_minimisation", "algo=fedavg algo.eta={e} algo.tau={K}", GROUPS, "local"),
    "SCAFFOLD": ("quadratic_minimisation", "algo=scaffold algo.eta={e} algo.tau={K}", GROUPS, "solution"),
    "Local SGDA, K = 1": (
        "quadratic_minimax",
        "algo=local_sgda algo.eta_x={e} algo.eta_y={e} algo.tau=1",
        GROUPS,
        "local 1",
    ),
    "Local SGDA": ("quadratic_minimax", "algo=local_sgda algo.eta_x={e} algo.eta_y={e} algo.tau={K}", GROUPS, "local"),
    "FedGDA-GT": ("quadratic_minimax", "algo=fedgda_gt algo.eta_x={e} algo.eta_y={e} algo.K={K}", ALL, "solution"),
    "FedGDA-GT, `anchor=cohort`": (
        "quadratic_minimax",
        "algo=fedgda_gt algo.anchor=cohort algo.eta_x={e} algo.eta_y={e} algo.K={K}",
        GROUPS,
        "anchored",
    ),
    "CODASCA, `lam=0`": (
        "quadratic_minimax",
        "algo=codasca algo.eta_x={e} algo.eta_y={e} algo.K={K} algo.lam=0 algo.stage=100000",
        GROUPS,
        "solution",
    ),
    "SimFBO": (
        "quadratic_bilevel",
        "algo=simfbo algo.tau={K} "
        + " ".join(f"algo.{step}_{of}={{e}}" for step in ("eta", "gamma") for of in ("x", "y", "v")),
        GROUPS,
        "local",
    ),
    "FedMSA, `rho=1`": (
        "quadratic_bilevel",
        "algo=fedmsa algo.alpha={e} algo.beta={e} algo.rho=1 algo.K={K}",
        ALL,
        "solution",
    ),
    "FedMSA, `rho=1`, `anchor=cohort`": (
        "quadratic_bilevel",
        "algo=fedmsa algo.alpha={e} algo.beta={e} algo.rho=1 algo.K={K} algo.anchor=cohort",
        GROUPS,
        "anchored",
    ),
}


def fields(problem: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return J, [M, d, d], and b, [M, d], of the clients' fields J_i z - b_i, which methods step against."""
    t = {name: v.numpy() for name, v in problem.per_client.items()}

    def blocks(*rows: list[np.ndarray]) -> np.ndarray:
        return np.concatenate([np.concatenate(row, axis=2) for row in rows], axis=1)

    def turned(name: str) -> np.ndarray:
        return t[name].swapaxes(1, 2)

    if "G" in t:  # bilevel, z = (x, y, v)
        zero = np.zeros_like(t["A"])
        J = blocks([t["D"], t["G"], turned("B")], [-t["B"], t["A"], zero], [-turned("G"), -t["F"], t["A"]])
        return J, np.concatenate([t["d"], t["c"], -t["e"]], axis=1)
    if "B" in t:  # minimax, z = (x, y)
        return blocks([t["A"], t["B"]], [-turned("B"), t["D"]]), np.concatenate([t["c"], t["e"]], axis=1)
    return t["A"], t["c"]


def map_of(kind: str, J: np.ndarray, b: np.ndarray, eta: float) -> tuple[np.ndarray, np.ndarray]:
    """Return P and q of a round z -> P z + q of the clients with these fields.

    With R_i = I - eta J_i and S_i = I + R_i + ... + R_i^(K-1), local steps end at R_i^K z + eta S_i b_i. With an anchor they go
    along J_i (u - z) + F(z), F the mean field, and end at z - eta S_i F(z).
    """
    R, steps = np.eye(J.shape[1]) - eta * J, 1 if kind == "local 1" else K
    powers = [np.linalg.matrix_power(R, k) for k in range(steps + 1)]
    S = np.sum(powers[:-1], axis=0)
    if kind == "anchored":
        return np.eye(J.shape[1]) - eta * S.mean(0) @ J.mean(0), eta * S.mean(0) @ b.mean(0)
    return powers[-1].mean(0), eta * np.einsum("mij,mj->i", S, b) / len(b)


def limit(kind: str, J: np.ndarray, b: np.ndarray, groups: list[np.ndarray], eta: float) -> np.ndarray:
    """Return the point to which rounds of these groups lead, at the end of the last one's."""
    P, q = np.eye(J.shape[1]), np.zeros(J.shape[1])
    for group in groups:
        P_group, q_group = map_of(kind, J[group], b[group], eta)
        P, q = P_group @ P, P_group @ q + q_group
    return np.linalg.solve(np.eye(len(q)) - P, q)


def rounds(e: Experiment) -> np.ndarray:
    """Return the point after each round, [rounds, d], until 20 more rounds change nothing."""
    state, points = e.algorithm.init(e.problem), list[np.ndarray]()
    while len(points) < 20_000 and (len(points) < 40 or np.linalg.norm(points[-1] - points[-21]) >= 1e-12):
        for _ in range(20):
            state = e.algorithm.step(state, e.problem, e.federation.at(len(points)))
            points.append(torch.cat(e.algorithm.output(state)).numpy())
    return np.array(points)


def measured(e: Experiment) -> np.ndarray:
    """Run two rounds again and again until they change nothing, and return the point."""
    return rounds(e)[-1]


def experiment(problem: str, words: str, eta: float, *more: str) -> Experiment:
    algo = compose([*words.format(e=eta, K=K).split()[:1], f"problem={problem}"]).nodes["algo"]
    full = [f"algo.{key}=null" for key in algo if key in ("B", "B_anchor")]
    return assemble(compose([*words.format(e=eta, K=K).split(), f"problem={problem}", *full, *SMALL, *more]))


def columns(title: str) -> Iterator[tuple[Experiment, np.ndarray, np.ndarray]]:
    """Yield the experiment of each column of a method's row, the point where it ends by the closed form, and the solution."""
    problem, words, _, closed = METHODS[title]
    for eta, *more in ((ETA,), (ETA, f"{TURNS}}}"), (ETA / 2, f"{TURNS}}}"), (ETA, f"{TURNS}, stay: 5}}")):
        e = experiment(problem, words, eta, *more)
        solution = torch.cat(e.problem.solution() or ()).numpy()
        groups = [e.federation.at(r).available for r in range(10)]
        yield e, solution if closed == "solution" else limit(closed, *fields(e.problem), groups, eta), solution


SENDS = {
    "FedAvg, K = 1": ITERATES,
    "FedAvg": ITERATES,
    "SCAFFOLD": CHANGES,
    "Local SGDA, K = 1": CHANGES,
    "Local SGDA": CHANGES,
    "FedGDA-GT": "changes, then iterates",
    "CODASCA, `lam=0`": "iterates, changes of controls",
}


def a_digit(points: np.ndarray) -> float:
    """Return the rounds in which the distance from the last point falls tenfold, by a line through its logarithms."""
    off = np.linalg.norm(points - points[-1], axis=1)
    r = np.flatnonzero((off > 1e-10) & (off < 1e-7))
    return float(-1 / np.polyfit(r, np.log10(off[r]), 1)[0])


def a_digit_by_matrices(title: str, problem: Any) -> float:
    """Return the same for clients that are AGES rounds late, by the largest eigenvalue of the map of the last four points.

    A round is z_(r+1) = sum_i p_i (P_i z_(r - a_i) + q_i) with iterates, and z_r + sum_i p_i (P_i z_(r - a_i) + q_i - z_(r - a_i))
    with changes.
    """
    (J, b), kind, iterates = fields(problem), METHODS[title][3], SENDS[title] == ITERATES
    d, P = J.shape[1], [map_of(kind, J[[i]], b[[i]], ETA)[0] for i in range(len(J))]
    top = [np.zeros((d, d)) for _ in range(max(AGES) + 1)]
    for P_i, age in zip(P, AGES, strict=True):
        top[age] += (P_i if iterates else P_i - np.eye(d)) / len(P)
    top[0] += 0 if iterates else np.eye(d)
    companion = np.eye(d * len(top), k=-d)
    companion[:d] = np.concatenate(top, axis=1)
    return float(-1 / np.log10(np.abs(np.linalg.eigvals(companion)).max()))


def late_columns(title: str) -> tuple[list[float], float, float | None]:
    """Return the rounds a digit on time, late as drawn and late as listed; how far apart the ends are; and the closed form."""
    problem, words, _, closed = METHODS[title]
    runs = [experiment(problem, words, ETA, late) for late in LATE]
    points = [rounds(e) for e in runs]
    exact = a_digit_by_matrices(title, runs[0].problem) if closed.startswith("local") else None
    return [*map(a_digit, points)], max(np.abs(of[-1] - points[0][-1]).max() for of in points), exact


def late_rows() -> Iterator[list[str]]:
    for title, sends in SENDS.items():
        digits, apart, exact = late_columns(title)
        print(f"{title}: ends differ by {apart:.0e}; closed form: {exact and round(exact)}", file=sys.stderr)
        yield [title, sends, *(f"{rounds:.0f}" for rounds in digits)]


def rows() -> Iterator[list[str]]:
    for title, (_, _, asked, _) in METHODS.items():
        ends = [(measured(e), exact, solution) for e, exact, solution in columns(title)]
        print(
            f"{title}: off the closed form by {max(np.linalg.norm(z - exact) for z, exact, _ in ends):.0e}",
            file=sys.stderr,
        )
        yield [title, asked, *(f"{np.linalg.norm(z - solution):.4f}" for z, _, solution in ends)]


if __name__ == "__main__":
    heads = ["method", "contacts", "all clients", "two alternating groups", "half the step size", "five rounds each"]
    late_heads = ["method", "clients send", "on time", "sampled", "fixed"]
    for title_row, table in ((heads, rows), (late_heads, late_rows)):
        for line in markdown_table(title_row, table()):
            print(line, flush=True)
        print()
