"""From a resolved config to the objects of a run."""

from dataclasses import dataclass, replace
from typing import Any

import torch

from fedopt import hardware as machine
from fedopt.data.partitioners import Centralized
from fedopt.data.world import World
from fedopt.errors import UserError
from fedopt.federation import engines
from fedopt.federation.federation import Federation
from fedopt.problems.classes import Problem, class_of, covered, name, reduce
from fedopt.settings import Budget, Evaluation, Settings, build, build_target


@dataclass(frozen=True)
class Experiment:
    """An algorithm on a problem: `problem` as the algorithm sees it, after any reduction; `original` as it was named."""

    algorithm: Any
    original: Any
    problem: Problem
    federation: Federation
    budget: Budget
    evaluation: Evaluation
    device: torch.device


def assemble(config: dict[str, Any], jobs: int = 1) -> Experiment:
    """Check all values, load the data and build everything. Raises UserError for whatever a user can mend."""
    settings = build(Settings, config)
    seed, participation, hardware = settings.seed, settings.participation, settings.hardware
    algorithm = build_target(config["algo"], "algo")
    unbuilt = build_target(config["problem"], "problem")
    partitioner = build_target(config["partitioner"], "partitioner")
    dataset = build_target(config["dataset"], "dataset") if config["dataset"].get("_target_") else None
    if isinstance(partitioner, Centralized):
        participation = replace(participation, cohort=None)
    if participation.cohort is not None and participation.cohort > partitioner.clients:
        raise UserError(
            f"participation.cohort={participation.cohort}: must be at most partitioner.clients={partitioner.clients}"
        )
    if participation.uneven and not getattr(algorithm, "uneven", False):
        raise UserError(
            "participation.least, participation.work, participation.stragglers: "
            f"{type(algorithm).__name__} has no uneven local work"
        )
    if participation.stragglers and not round(participation.stragglers * partitioner.clients):
        raise UserError(
            f"participation.stragglers={participation.stragglers}: is no client of {partitioner.clients}, to the nearest number"
        )
    if participation.work is not None and len(participation.work) != partitioner.clients:
        raise UserError(
            f"participation.work={participation.work}: must have an entry for each of the {partitioner.clients} clients"
        )
    if name(class_of(unbuilt)) not in covered(algorithm.solves):
        raise UserError(
            f"{type(algorithm).__name__} solves {', '.join(sorted(covered(algorithm.solves)))} problems, "
            f"and {type(unbuilt).__name__} is {name(class_of(unbuilt))}"
        )

    device = machine.configure(hardware, jobs)
    autocast = hardware.autocast and getattr(torch, hardware.autocast)
    world = World(seed, partitioner, dataset, device, getattr(torch, hardware.dtype), autocast)
    original = unbuilt.build(world)
    problem = reduce(original, algorithm.solves)
    engine = engines.choose(hardware.engine, hardware.stack, problem, participation.cohort or problem.clients)
    federation = Federation(problem, engine, seed, participation)
    return Experiment(algorithm, original, problem, federation, settings.budget, settings.eval, device)
