"""The one loop: step until the budget is spent; evaluate, record, checkpoint."""

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import torch
import yaml
from pydantic import NonNegativeFloat, NonNegativeInt, TypeAdapter

from fedopt.algorithms.checks import first_state, first_step
from fedopt.blame import called
from fedopt.config.build import build_target
from fedopt.config.files import file_of, options
from fedopt.config.tuned import Asked
from fedopt.console.interrupts import interruptible
from fedopt.console.say import say
from fedopt.errors import UserError, WrongKeys, number_of
from fedopt.federation import ranks
from fedopt.federation.ledger import Ledger
from fedopt.metrics import Metric
from fedopt.problems.classes import named
from fedopt.results import checkpoint, figures, journal
from fedopt.results.card import changed, division, facts, run_card
from fedopt.results.files import read_json
from fedopt.results.folder import RunFolder, described
from fedopt.results.identity import digits, numbers, refuse_other
from fedopt.results.metrics_file import MetricsFile, rows_hash
from fedopt.results.trackers import Tracker
from fedopt.running.assemble import Experiment, assemble
from fedopt.running.progress import Display, announced

# Wall time between checkpoints, at least
CHECKPOINT_SECONDS = number_of("FEDOPT_CHECKPOINT_SECONDS", 5.0)
CHECKPOINT_SHARE = 20  # and at least so many times what one takes
OF_OLD_CODE = "{}: is a run from before {} changed; delete the folder to run it anew"
OF_MIXED_CODE = "{}: goes on with another {} than it began with; delete the folder to run it anew"
START_OVER = "put back a good copy, or delete checkpoint.safetensors to start this run over with resume=true"


@contextmanager
def advising(what: str) -> Iterator[None]:
    """Add to a UserError what can be done."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{error}; {what}") from error


@contextmanager
def naming_files(asked: Asked) -> Iterator[None]:
    """Add to a UserError on the keys of a config group the file that they stand in."""
    try:
        yield
    except WrongKeys as error:
        group, option = error.group, asked.chosen.get(error.group)
        known = option in options(group, asked.folders)  # not where a run goes on, whose keys are in its config.yaml
        where = f"; they stand in {file_of(group, option, asked.folders)}" if option and known else ""
        raise UserError(f"{error}{where}") from error


@dataclass
class Progress:
    """How far a run is: what a checkpoint holds besides the state and the ledger.

    evaluated: whether the metrics of this round were taken; seconds: of training; rows_size: bytes of metrics.csv.
    final, best: the values of the metrics by name; to_target: what it took to reach the target, None while it is not reached.
    """

    round: NonNegativeInt = 0
    evaluated: bool = True
    seconds: NonNegativeFloat = 0.0
    rows_size: NonNegativeInt = 0
    final: dict[str, float] = field(default_factory=dict)
    best: dict[str, float] = field(default_factory=dict)
    to_target: dict[str, Any] | None = None


def progress_of(said: Mapping[str, Any]) -> Progress:
    """From what a checkpoint says. Raises UserError for a wrong type or a negative number."""
    try:
        own = {name: value for name, value in said.items() if name in Progress.__dataclass_fields__}
        return TypeAdapter(Progress).validate_python(own)
    except ValueError as error:
        raise UserError(f"the checkpoint says what cannot be: {' '.join(str(error).split())}") from None


OnEval = Callable[[dict[str, Any]], object]


def refuse_foreign(folder: RunFolder, said: Mapping[str, Any], run: str) -> None:
    """Raises UserError where a checkpoint does not say that it is of the run with these digits."""
    if said.get("run") != run:
        raise UserError(
            f"{folder.checkpoint}: it belongs to a run with other values; put back this run's own, or delete it to start over"
        )


class Run:
    """One run in its folder. config: resolved; asked: how; jobs: processes that share the machine.

    on_eval: called with each row of metrics.csv; where it returns true, the run stops as after Ctrl-C. quiet: show no progress.
    """

    def __init__(
        self,
        config: dict[str, Any],
        folder: RunFolder,
        asked: Asked,
        jobs: int = 1,
        on_eval: OnEval | None = None,
        quiet: bool = False,
    ):
        self.config = config
        self.belongs = {"run": digits(config, numbers), "length": digits(config)}  # said in its checkpoints
        self.folder = folder
        self.asked = asked
        self.jobs = jobs
        self.on_eval, self.quiet = on_eval, quiet
        self.stopped = False  # by on_eval
        self.of_on_eval: Exception | None = None  # what it raised, which its caller gets as it is
        self.interrupt = Event()
        self.main = ranks.rank() == 0  # only this rank writes and shows anything
        self.writing = False
        self.at = Progress()
        self.first = -1  # the round that it begins with, where it does not go on with what is there
        self.next_checkpoint = -math.inf
        self.metrics: MetricsFile | None = None  # of the main rank
        self.tracker: Tracker | None = None

    def __call__(self) -> str:
        """Run, or go on, to the end. Returns the status. Raises UserError, and OSError when the disk is full or gone."""
        begin = ranks.from_main(self._enter)
        if begin == "done":
            ranks.from_main(self._draw_metrics)  # it may have been killed before
            return "finished"
        resuming = begin in ("resume", "longer")
        node = self.config["logger"]
        logger = build_target(node, "logger") if self.main and node.get("_target_") else None
        with (
            announced("reading the data and setting up the problem", quiet=not self.main),
            naming_files(self.asked),
        ):
            e = assemble(self.config, self.jobs)
            ranks.refuse_different(facts(self.config, e.original, e.data))
            started = time.perf_counter()
            state = first_state(e.algorithm, e.problem)
        self.at.seconds = time.perf_counter() - started
        self.checkpoint = checkpoint.Checkpoint(self.folder.checkpoint, state)
        if not resuming and self.config["from"] is not None:
            state = self._begin_at(Path(self.config["from"]), state, e)
        if resuming:
            with advising(START_OVER):
                state, progress = self.checkpoint.restore(e.federation.ledger)
            self._refuse_other_data(e)
            self.at = progress_of(progress)
            if begin == "longer" and self._share_spent(e) > 1:
                raise UserError(f"budget: the run in {self.folder.path} is past it, after {self.at.round} rounds")
        self.first = -1 if resuming else self.at.round
        chosen = self.asked.chosen
        title = (
            f"{chosen.get('algo', type(e.algorithm).__name__)} on {chosen.get('problem', type(e.original).__name__)}"
        )
        row = f"{self.folder.path.name}: " if self.jobs > 1 else ""  # whose rows come between those of others
        names = [metric.name for metric in e.problem.metrics]
        display = Display(title, names, quiet=self.quiet or not self.main, row=row)
        with interruptible(self.interrupt):  # figures too: a library that an exception comes down in may lose it
            try:
                ranks.from_main(lambda: self._begin(e, resuming))
                display.line(
                    "; ".join(filter(None, [f"{title}, in {self.folder.path}", self._tuned(), e.original.remark]))
                )
                status = self._loop(e, state, display, resuming, logger)
            finally:
                display.close()
                for writer in (self.metrics, self.tracker):
                    if writer is not None:
                        writer.close()
            if self.main:
                self._draw(e.problem.metrics)
        self.writing = False
        return status

    def _enter(self) -> str:
        """Whether to begin anew ("anew"), at the checkpoint ("resume", with another budget "longer"), or not at all ("done").

        A folder in which there is a run is locked. Raises UserError where it is another run's, or not as its run left it.
        """
        folder = self.folder
        if not folder.used:
            return "anew"
        if self.config["resume"] or folder.status() == "running":  # or else it was killed
            folder.open()
        if not self.config["resume"]:
            self._refuse_used()
        before = folder.config()
        refuse_other(folder.path, numbers(before), numbers(self.config))
        if not os.path.lexists(folder.checkpoint):
            if folder.metrics.exists():
                say(f"{folder.path}: there is no checkpoint, so the run starts over")
            return "anew"
        with advising(START_OVER):
            said = checkpoint.read(folder.checkpoint)[1]
        refuse_foreign(folder, said, self.belongs["run"])
        size = progress_of(said).rows_size
        if rows_hash(folder.metrics, size) != said.get("rows"):
            raise UserError(f"{folder.metrics}: its rows are not those that the checkpoint counts; {START_OVER}")
        longer = said.get("length") != self.belongs["length"]
        done = not longer and folder.status() == "finished" and folder.metrics.stat().st_size == size
        if modules := changed(folder, self.config):
            say((OF_OLD_CODE if done else OF_MIXED_CODE).format(folder.path, modules))
        return "longer" if longer else "done" if done else "resume"

    def _begin_at(self, source: Path, state: Any, e: Experiment) -> Any:
        """The state of another run's checkpoint; rounds, bytes and seconds count on. Raises UserError where it does not fit."""
        folder = RunFolder(source)
        if not folder.checkpoint.is_file():
            raise UserError(f"from={source}: there is no run with a checkpoint in it")
        algo, own = folder.config().get("algo"), self.config["algo"]["_target_"]
        if not isinstance(algo, dict) or algo.get("_target_") != own:
            known = isinstance(algo, dict) and algo.get("_target_")
            theirs, ours = (str(name).rpartition(".")[2] for name in (known or "no algorithm", own))
            raise UserError(
                f"from={source}: it is a run of {theirs}, whose state does not fit {ours}; from takes over no values: "
                "algo= and problem= are given again"
            )
        with advising(
            f"from={source} goes with the algorithm's options, the model and the number of clients that are there"
        ):
            state, progress = checkpoint.Checkpoint(folder.checkpoint, state).restore(e.federation.ledger)
        at = progress_of(progress)
        self.at = Progress(round=at.round, seconds=at.seconds)
        if self._share_spent(e) >= 1:
            raise UserError(
                f"budget: from={source} has spent it, after {at.round} rounds; its rounds and bytes count on"
            )
        return state

    def _refuse_other_data(self, e: Experiment) -> None:
        """Raises UserError where the data, or whose they are, are not those that the run began with."""
        before = read_json(self.folder.path / "run.json").get("division")
        if isinstance(before, str) and before != division(e.original):
            raise UserError(
                f"{self.folder.path}: the run began with other data, or with another division of them among clients: bring these "
                "back, or begin anew in another output_dir"
            )

    def _draw_metrics(self) -> None:
        """metrics.png of a run that was killed when all but this was done."""
        metrics = described(self.folder.path)
        if not (self.folder.path / "metrics.png").exists() and metrics:
            with suppress(KeyError, ValueError):  # somebody's own metrics.csv
                self._draw(metrics)

    def _draw(self, metrics: Sequence[Metric]) -> None:
        figures.metrics(self.folder.path / "metrics.png", self.folder.metrics, metrics, self.config["from"])

    def _refuse_used(self) -> None:
        path, status = self.folder.path, self.folder.status()
        if not os.path.lexists(path / "config.yaml"):
            raise UserError(f"output_dir={path} holds files of the names of a run's: choose another one")
        raise UserError(
            f"output_dir={path} holds a run already ({status}): resume=true goes on with it, another output_dir starts anew"
        )

    def _loop(self, e: Experiment, state: Any, display: Display, resuming: bool, logger: Any) -> str:
        if self.main:
            self.metrics = MetricsFile(self.folder.metrics, self.at.rows_size if resuming else None)
        if logger is not None:
            self.tracker = logger.start(self.folder.path, self.at.round + 1 if resuming else 0)
        if not resuming:
            self._evaluate(e, state, display)
            self._checkpoint(state, e)
        good = self._kept(state, e)
        step: Callable[..., Any] = partial(first_step, e.algorithm)

        while True:
            at = self.at
            spent = self._share_spent(e)
            display.round(spent, at.round)
            ended = ranks.agree(spent >= 1, e.device)
            if not at.evaluated and (ended or (at.round % e.evaluation.every == 0 or at.round in e.evaluation.at)):
                self._evaluate(e, state, display)
                if self._diverged(e):
                    self._store(*good)
                    status = "diverged"
                    break
                good = self._kept(state, e)
            stop = ended or ranks.agree(self.interrupt.is_set(), e.device)
            if stop or time.monotonic() > self.next_checkpoint:
                self._checkpoint(state, e)
            if stop:
                status = "finished" if ended else "stopped" if self.stopped else "interrupted"
                break
            started = time.perf_counter()
            state = step(state, e.problem, e.federation.at(at.round))
            step = e.algorithm.step
            at.seconds += time.perf_counter() - started
            at.round += 1
            at.evaluated = False
        if self.main:
            self._summary(status, e)
        return status

    def _share_spent(self, e: Experiment) -> float:
        ledger = e.federation.ledger
        return e.budget.spent(self.at.round, ledger.comm_rounds, ledger.total_bytes, self.at.seconds)

    def _begin(self, e: Experiment, resuming: bool) -> None:
        if not self.folder.held:
            self.folder.open()
            if self.folder.used:  # since `_enter`
                self._refuse_used()
            if self.config["resume"] and not self.quiet:
                say(f"resume=true: there is no run in {self.folder.path} yet, so one begins")
        self.writing = True
        self.folder.write_text("config.yaml", yaml.safe_dump(self.config, sort_keys=False, allow_unicode=True))
        if not resuming:
            for stale in (self.folder.metrics, self.folder.checkpoint, *(self.folder.path / n for n in journal.NAMES)):
                stale.unlink(missing_ok=True)
            split = e.original.splits["train"]
            self.folder.write_json("run.json", run_card(self.asked, self.config, e.original))
            figures.partition(self.folder.path / "partition.png", split, e.original.labels, e.original.class_names)
        (self.folder.path / "traceback.txt").unlink(missing_ok=True)
        self.folder.write_json("summary.json", {"status": "running"})
        how = f"{'resumed' if resuming else 'started'} with {torch.get_num_threads()} threads"
        self.folder.log("; ".join(filter(None, [how, self._tuned(), e.original.remark])))

    def _tuned(self) -> str:
        """Which tuned values apply, by the words that the run was begun with: one that goes on need not be given them again."""
        words = read_json(self.folder.path / "run.json").get("overrides")
        begun = map(str, words) if isinstance(words, list) else ()
        return replace(self.asked, overrides=[*dict.fromkeys([*begun, *self.asked.overrides])]).tuned

    def _evaluate(self, e: Experiment, state: Any, display: Display) -> None:
        at, metrics = self.at, {metric.name: metric for metric in e.problem.metrics}
        point = e.algorithm.output(state)
        found = e.problem.evaluate(*point)
        if not isinstance(found, dict) or set(found) != set(metrics):
            given = found if isinstance(found, dict) else [str(found)]
            raise UserError(
                f"{called(e.original.evaluate)} gives {', '.join(given)}, and its metrics are {', '.join(metrics)}"
            )
        if several := [name for name, value in found.items() if np.ndim(value) != 0]:
            raise UserError(f"{called(e.original.evaluate)} gives more than one number as {several[0]}")
        at.evaluated, at.final = (
            True,
            {name: float(f"{float(found[name]):.10g}") for name in metrics},
        )  # as in metrics.csv
        before, wanted, target = at.best, e.evaluation.metric, e.evaluation.target
        goals = [m for m in e.problem.metrics if m.better != "neither"]
        at.best = {m.name: m.best([at.final[m.name], before.get(m.name, math.nan)]) for m in goals}
        if e.keep == "best" and wanted is not None and at.final[wanted] == at.best[wanted] != before.get(wanted):
            self.checkpoint.best = named(e.problem, point)
        if wanted is not None and target is not None and at.to_target is None:
            at.to_target = self._spent(e) if metrics[wanted].reached(at.final[wanted], target) else None
        row = {"round": at.round, **e.federation.ledger.columns(), "train_seconds": at.seconds, **at.final}
        if self.metrics is not None:
            self.metrics.append(row)
        if self.tracker is not None:
            self.tracker.log({name: value for name, value in row.items() if name != "round"}, at.round)
        display.row(row)
        if self.main and self.on_eval is not None:
            try:
                if self.on_eval(dict(row)):
                    self.stopped = True
                    self.interrupt.set()
            except Exception as error:
                self.of_on_eval = error
                raise

    def _spent(self, e: Experiment) -> dict[str, Any]:
        ledger = e.federation.ledger
        spent = {"round": self.at.round, "comm_rounds": ledger.comm_rounds, "bytes": ledger.total_bytes}
        return spent | {"seconds": round(self.at.seconds, 3)}

    def _diverged(self, e: Experiment) -> bool:
        bounded, limit = {metric.name for metric in e.problem.metrics if metric.bounds}, e.evaluation.diverged
        return any(not math.isfinite(v) or (name in bounded and abs(v) > limit) for name, v in self.at.final.items())

    def _kept(self, state: Any, e: Experiment) -> tuple[Any, Ledger, dict[str, Any]]:
        """What a checkpoint of this moment holds."""
        if self.metrics is None:  # another rank than the main one
            return state, e.federation.ledger, {}
        self.at.rows_size = self.metrics.written
        return state, deepcopy(e.federation.ledger), {**self.belongs, "rows": self.metrics.hash, **asdict(self.at)}

    def _checkpoint(self, state: Any, e: Experiment) -> None:
        started = time.monotonic()
        self._store(*self._kept(state, e))
        done = time.monotonic()
        self.next_checkpoint = done + max(CHECKPOINT_SECONDS, CHECKPOINT_SHARE * (done - started))

    def _store(self, state: Any, ledger: Ledger, said: dict[str, Any]) -> None:
        """By the main rank, when the rows that are counted are on the disk."""
        if self.metrics is not None:
            self.metrics.sync()
            self.checkpoint.store(state, ledger, said)

    def _summary(self, status: str, e: Experiment) -> None:
        ledger, at = e.federation.ledger, self.at
        largest = {f"bytes_{way}_per_client_max": int(getattr(ledger, way).max()) for way in ("down", "up")}
        values = {"final": at.final, "best": at.best, "to_target": at.to_target}
        summary = {"status": status, **self._spent(e), **ledger.columns(), **largest, **values}
        self.folder.write_json("summary.json", summary)
        self.folder.log(f"{status} after {at.round} rounds")
