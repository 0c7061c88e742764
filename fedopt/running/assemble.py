"""Build the objects of a run from a checked config."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from fedopt.algorithms import Algorithm
from fedopt.config import Budget, Composed, Evaluation, Participation, build_target
from fedopt.data import World
from fedopt.decimals import exact
from fedopt.errors import UserError, WrongFunction, among
from fedopt.federation import Federation, engines
from fedopt.files import expanded
from fedopt.problems import Problem, Supervised, check, marked, projects, reduce, scales
from fedopt.results import division, refuse_other_data
from fedopt.running import hardware as machine


@dataclass(frozen=True)
class Experiment:
    """The objects of a run: an algorithm on a problem.

    Args:
        algorithm: The algorithm.
        original: The problem that the config names.
        problem: The problem that the algorithm solves: the original problem, or its reduction to another problem class. If there
            are hostile clients, both problems give them the weight 0, so that metrics ignore them. The federation has a problem
            of its own, in which they keep their weights.
        federation: The clients and the server.
        budget: The budget, which determines when the run ends.
        evaluation: The evaluation settings, such as the rounds in which metrics are computed.
        keep: ``last``: a checkpoint contains the last state. ``best``: it also contains the variables at the best evaluation.
        device: The device of all tensors.
        digest: A hash of the data set. None: the problem generates its own data.
    """

    algorithm: Algorithm
    original: Problem
    problem: Problem
    federation: Federation
    budget: Budget
    evaluation: Evaluation
    keep: Literal["last", "best"]
    device: torch.device
    digest: str | None

    @property
    def data(self) -> dict[str, str | None]:
        """The hashes of the data: ``data`` for the data set, and ``division`` for the partition among clients."""
        return {"data": self.digest, "division": division(self.original)}

    @property
    def own(self) -> bool:
        """Whether the algorithm trains a model for each client."""
        return hasattr(self.algorithm, "personal")


def check_parts(composed: Composed, swept: Collection[str] = ()) -> None:
    """Check a config as far as possible without loading data.

    Exceptions other than UserError come from the user's code. They are ignored here, since the run reports their line.

    Args:
        composed: The config.
        swept: The keys over which a sweep runs.

    Raises:
        UserError: The algorithm, the partitioner or the data set refuses a value, or a key of the sweep has no effect.
    """
    try:
        participation_of(composed)
        clients = getattr(composed.parts["partitioner"], "clients", None)
        ignored = composed.settings.participation.ignored(clients) if clients else []
        for key in {f"participation.{key}" for key in ignored} & {*swept}:
            raise UserError(f"{key} has no effect, since all clients take part; remove it from the sweep")
    except Exception as error:
        if isinstance(error, UserError):
            raise


def participation_of(composed: Composed, clients: int | None = None) -> Participation:
    """Return the participation settings of a config.

    If there are fewer clients than ``participation.cohort_from``, the cohort size is set to None (all clients).

    Args:
        composed: The config.
        clients: The number of clients. None: the partitioner's number of clients. If only the data determine this number, the
            settings are not checked here but by `assemble`.

    Raises:
        UserError: The settings do not fit the number of clients or the algorithm.
    """
    participation = composed.settings.participation
    clients = clients or getattr(composed.parts["partitioner"], "clients", None)
    if clients is not None and clients < participation.cohort_from:
        participation = replace(participation, cohort=None)
    if clients is not None:
        check_participation(participation, composed.parts["algo"], clients)
    return participation


def assemble(composed: Composed, jobs: int = 1) -> Experiment:
    """Check all values, load the data and build the objects of a run.

    This also sets the number of threads and the modes of torch and NumPy for the whole process (see `hardware.configure`).

    Args:
        composed: The config.
        jobs: The number of runs that share the machine and its cores.

    Raises:
        UserError: A value is invalid, the data or a file cannot be used, or the hardware is not available.

    Example:
        >>> experiment = fedopt.assemble(fedopt.compose(["algo=fedmsa", "problem=mco"]))
        >>> experiment.problem.clients
        2
    """
    settings, parts, _ = composed.settings, composed.parts, participation_of(composed)
    algorithm, partitioner, dataset = parts["algo"], parts["partitioner"], parts.get("dataset")
    hardware, evaluation = settings.hardware, settings.eval

    device = machine.configure(hardware, jobs)
    autocast = hardware.autocast and getattr(torch, hardware.autocast)
    hostile = settings.participation.hostile
    mislabelled = hostile.clients if hostile and hostile.attack == "labels" else None
    world = World(settings.seed, partitioner, dataset, device, getattr(torch, hardware.dtype), autocast, mislabelled)
    original: Problem = parts["problem"](world=world)
    if hasattr(original, "deploys"):
        own = original.own_models and hasattr(algorithm, "personal")
        original.deploys(own, common := getattr(algorithm, "common", True))
        if not common and not own:
            lacking = f"{type(algorithm).__name__} has no common model; metrics are computed at the mean of its clients' models"
            original.notes = [*original.notes, lacking]
    if not (known := {metric.name: metric for metric in getattr(original, "metrics", ())}):
        declare = "does not declare its metrics; write metrics = (Metric(...),) with each value that evaluate returns"
        raise UserError(f"{type(original).__name__} {declare}")
    check(original)
    if not projects(type(original), algorithm):
        raise UserError(
            f"{type(algorithm).__name__} does not project x, and {type(original).__name__} constrains x; choose a method that "
            f"sets projects_x, such as algo=fedavg"
        )
    participation = participation_of(composed, original.clients)
    if mislabelled and (original.labels is None or not isinstance(original, Supervised)):
        why = "this problem has no classes of a data set"
        raise UserError(f"participation.hostile.attack=labels: {why}; choose another attack")
    trained = problem = reduce(original, algorithm.solves)
    _check_rule(participation, algorithm, trained)
    if hostile:  # metrics are those of the honest clients
        original = original.without(hostile.clients(original.clients))
        problem = reduce(original, algorithm.solves)
    if (wanted := evaluation.metric) is not None and wanted not in known:
        raise UserError(f"eval.metric={wanted}: there is no such metric{among(wanted, [*known])}")
    if wanted is not None and evaluation.target is not None:
        known[wanted].check_goal(f"eval.target={evaluation.target:g}")
    if settings.keep == "best":
        goals = [name for name, metric in known.items() if metric.better != "neither"]
        evaluation = replace(evaluation, metric=wanted or next(iter(goals), next(iter(known))))
        known[str(evaluation.metric)].check_goal("keep=best")
    machine.refuse_changed("your own code that this run uses")
    engine = engines.choose(hardware.engine, hardware.stack, problem, participation.cohort or problem.clients)
    if hardware.engine == "auto" and problem.one_by_one:
        why = f"clients run one by one, since torch.vmap cannot run this problem ({problem.one_by_one})"
        original.notes = [*original.notes, why]
    fed = Federation(trained, engine, settings.seed, participation, getattr(algorithm, "first_order", False))
    read = "+".join(sorted(world.read)) or None
    return Experiment(algorithm, original, problem, fed, settings.budget, evaluation, settings.keep, device, read)


def _check_rule(participation: Participation, algorithm: Algorithm, problem: Problem) -> None:
    """Raise UserError if a rule would combine the numerator of one client's ratio with the denominator of another client's."""
    rule = participation.rule
    if rule and rule.kind in ("median", "trimmed") and any(scales(problem, h) is not None for h in marked(problem)):
        why = f"pairs numerators and denominators of different clients in the ratios that {type(algorithm).__name__} averages"
        raise UserError(f"participation.rule.kind={rule.kind}: {why}; choose krum, multikrum, geometric or clipping")


def refuse_changed_data(folder: Path, before: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Raise UserError if the data set has changed since a run that has ended.

    The data are read and compared only if their files were modified after the start of the run. Missing files are ignored.

    Args:
        folder: The run's folder.
        before: The hashes that the run has recorded, by name.
        config: The run's config.
    """
    nodes = {group: config[group] for group in ("dataset", "partitioner")}
    if before.get("data") is None or not nodes["dataset"].get("_target_"):
        return
    given = nodes["dataset"].get("path"), nodes["partitioner"].get("file")
    paths = [expanded(path).absolute() for path in given if isinstance(path, str)]
    files = [file for path in paths for file in (path, *path.rglob("*")) if path.exists()]
    begun = (folder / "config.yaml").stat().st_mtime
    if all(path.exists() for path in paths) and any(file.stat().st_mtime > begun for file in files):
        dataset, partitioner = (build_target(node, group) for group, node in nodes.items())
        world = World(0, partitioner, dataset)
        world.load(real=True)
        refuse_other_data(folder, before, {"data": next(iter(world.read))})


def check_participation(participation: Participation, algorithm: Algorithm, clients: int) -> None:
    """Check that the participation settings fit the number of clients and the algorithm.

    Args:
        participation: The participation settings.
        algorithm: The algorithm. Its attribute ``uneven`` names the fields with amounts of local work that may differ between
            clients.
        clients: The number of clients.

    Raises:
        UserError: The settings do not fit.
        WrongFunction: The algorithm lacks a field that its attribute ``uneven`` names.
    """
    keys = getattr(algorithm, "uneven", ())
    keys = (keys,) if isinstance(keys, str) else keys
    for key in keys:
        if not hasattr(algorithm, key):
            what = f"sets uneven = {key!r}, but has no field {key}; name the field with its amount of local work"
            raise WrongFunction(type(algorithm), what)
    refused = (
        _refused_clients(participation, algorithm, clients),
        _refused_work(participation, algorithm, clients, keys),
    )
    for refusal in chain(*refused):
        raise UserError(refusal)


def _refused_clients(who: Participation, algorithm: Algorithm, clients: int) -> Iterator[str]:
    """Yield one message for each setting that does not fit the number of clients, or that the algorithm does not support.

    Args:
        who: The participation settings.
        algorithm: The algorithm.
        clients: The number of clients.
    """
    name = type(algorithm).__name__
    if who.cohort is not None and who.cohort > clients:
        yield f"participation.cohort={who.cohort}: must be at most the number of clients, {clients}; use null for all clients"
    pattern = asdict(who.pattern) if who.pattern else {}
    lists = {"work": who.work, "late": who.late} | {f"pattern.{key}": value for key, value in pattern.items()}
    for key, value in lists.items():
        if isinstance(value, list) and len(value) != clients:
            yield f"participation.{key}={value}: must be a list with an entry for each of the {clients} clients"
    if isinstance(groups := pattern.get("groups"), int) and groups > clients:
        yield f"participation.pattern.groups={groups}: must be at most the number of clients, {clients}"
    if not who.punctual and getattr(algorithm, "on_time", False):
        yield f"participation.late={who.late}: {name} needs all answers on time; set participation.late=0"
    most = min(who.cohort or clients, clients)
    if getattr(algorithm, "everyone", False) and (most < clients or who.dropout or who.pattern or not who.punctual):
        null = "participation.cohort=null participation.dropout=0 participation.pattern=null participation.late=0"
        yield f"{name} needs all clients in every round; set {null}"
    if most < (least := getattr(algorithm, "least_clients", 1)):
        key = f"partitioner.clients={clients}" if who.cohort is None else f"participation.cohort={who.cohort}"
        yield f"{key}: {name} needs at least {least} clients in a round with its current keys; use more clients"
    if who.rule and most < who.rule.least:
        yield f"participation.rule={{kind: {who.rule.kind}, f: {who.rule.f}}}: needs at least {who.rule.least} clients in a round"
    if who.hostile and (
        len(bad := who.hostile.clients(clients)) >= clients or max(bad, default=-1) >= clients or not len(bad)
    ):
        yield f"participation.hostile.who={who.hostile.who}: must be some of the {clients} clients, but not all of them"
    if who.sampling == "by_weight" and who.rule and who.rule.kind not in ("mean", "geometric"):
        yield f"participation.rule.kind={who.rule.kind}: counts a client once that by_weight draws twice; use sampling=uniform"
    if who.sampling == "by_weight" and getattr(algorithm, "each_once", False):
        why = f"{name} is not defined for clients that are drawn twice"
        yield f"participation.sampling=by_weight: {why}; use uniform"
    if who.stragglers and not round(exact(who.stragglers * clients)):
        yield f"participation.stragglers={who.stragglers}: rounds to no client of {clients}; use 0, or a larger fraction"


def _refused_work(who: Participation, algorithm: Algorithm, clients: int, keys: Sequence[str]) -> Iterator[str]:
    """Yield one message for each setting of local work that does not fit the algorithm.

    Args:
        who: The participation settings.
        algorithm: The algorithm.
        clients: The number of clients.
        keys: The algorithm's fields with amounts of local work that may differ between clients.
    """
    if who.uneven and not keys:
        uneven = next(name for name in ("least", "work", "stragglers") if getattr(who, name))
        yield f"participation.{uneven}: clients of {type(algorithm).__name__} must do equal work; remove this key"
    if isinstance(who.work, list) and len(keys) > 1:
        several = " and ".join(f"algo.{key}" for key in keys)
        why = f"this algorithm has {len(keys)} amounts of local work, {several}, but a list can set only one"
        yield f"participation.work={who.work}: {why}; use participation.least instead"
    for key in keys:
        local = getattr(algorithm, key)
        most = int(np.min(local(0, clients) if callable(local) else local))
        if who.least is not None and who.least > most:
            unit = getattr(local, "unit", "steps")
            yield f"participation.least={who.least}: must be at most algo.{key}, which is {most} {unit}"
