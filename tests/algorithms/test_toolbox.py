"""A method of one's own from public names alone: K local SOBA steps, and heavy-ball momentum on the server."""

import os
import subprocess
import sys

import pytest
from support.command import ROOT

import fedopt

METHOD = """
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from fedopt import Bilevel, LocalWork, Schedule, Vectors, bilevel_maps, bilevel_start, descend


class State(NamedTuple):
    z: Vectors
    m: Vectors


@dataclass(frozen=True)
class FedSobaM:
    alpha: Schedule
    beta: Schedule
    gamma: float
    tau: LocalWork
    B: int | None

    solves: ClassVar = (Bilevel,)
    uneven: ClassVar = "tau"

    def init(self, problem):
        z = bilevel_start(problem)
        return State(z, 0 * z)

    def step(self, s, problem, fed):
        beta = self.beta(fed.r)
        steps = self.alpha(fed.r), beta, beta

        def local(client, z):
            def step(z_i, xi):
                return descend(client, z_i, bilevel_maps(client, z_i, xi), steps)

            return client.scan("local", step, z)

        z = fed.exchange(local, s.z, fed.cohort(), local=fed.local(self.tau, self.B))
        m = self.gamma * s.m + (s.z - z)
        return State(descend(problem, s.z, m, (1, 1, 1)), m)

    def output(self, s):
        return s.z[:2]
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    (tmp_path / "conf" / "algo").mkdir(parents=True)
    (tmp_path / "fed_soba_m.py").write_text(METHOD)
    text = "_target_: fed_soba_m.FedSobaM\nalpha: 0.01\nbeta: 0.3\ngamma: 0.3\ntau: 5\nB: null\n"
    (tmp_path / "conf" / "algo" / "fed_soba_m.yaml").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_method_from_public_names_alone(project):
    words = ["algo=fed_soba_m", "problem=quadratic_bilevel", "problem.heterogeneity=0", "problem.conditioning=2"]
    distance = fedopt.run([*words, "budget.rounds=80", "eval.every=80"], folders=["conf"], quiet=True).metrics[
        "distance"
    ]
    assert distance.iloc[-1] < 1e-3 * distance.iloc[0]


@pytest.mark.full
def test_it_keeps_the_contract(project):
    env = {**os.environ, "FEDOPT_CONTRACT_CONF": "conf", "PYTHONPATH": f"{project}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--pyargs", "fedopt.testing"]
    done = subprocess.run([*command, "-k", "quadratic_bilevel"], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
