"""One run in its folder: begin or resume, follow the loop, end.

The loop is in `loop`, resuming in `resume`, checkpoints in `sinks`, failures in `failure`.
"""

from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import torch

from fedopt.config import Composed, experimental
from fedopt.console import Bar, counted, interruptible, note
from fedopt.console import say as console
from fedopt.errors import UserError
from fedopt.federation import effective_weights, ranks
from fedopt.files import yaml_text
from fedopt.machine import number_of
from fedopt.results import Checkpoint, MetricsFile, RunFolder, continued, facts, journal, run_card, stamp
from fedopt.running import resume, sinks
from fedopt.running.assemble import Experiment, assemble
from fedopt.running.display import Display, announced
from fedopt.running.failure import mistakes_named, recorded
from fedopt.running.loop import Progress, begin, costs, loop, point_of, unmoved
from fedopt.running.pictures import drawn


def execute(
    composed: Composed,
    locate: Callable[[], Path],
    jobs: int = 1,
    on_eval: sinks.OnEval | None = None,
    quiet: bool = False,
    bar: Bar | None = None,
    pictures: bool = True,
) -> tuple[str, RunFolder]:
    """Do a run, or resume it, in the folder that ``locate`` gives. Return its status and its folder.

    The status is finished, diverged, stopped (by on_eval) or interrupted. A run that fails raises; if it had begun, it leaves
    its traceback in the folder. Of several ranks, the first that fails reports.

    Args:
        composed: The config.
        locate: A function that returns the folder. It is called again if another run takes that folder first.
        jobs: How many runs share the machine.
        on_eval: A function that is called with each row of metrics.csv. If it returns true, the run stops.
        quiet: If true, no progress is shown.
        bar: The progress bar that this run shares with other runs. None: the run makes one.
        pictures: Whether the run draws its pictures at its end. With FEDOPT_PICTURES=0 it does not.

    Raises:
        UserError: A mistake that a user can mend.
        Exception: What on_eval raises, and bugs of fedopt.
        KeyboardInterrupt: Ctrl-C was pressed twice, or before the run began.
    """
    try:
        ranks.start()
        run = Run(composed, locate, RunFolder(ranks.from_main(locate)), jobs, on_eval, quiet, bar, pictures)
        with closing(run), recorded(run), mistakes_named(run.callback):
            status = run()
            ranks.finish()
        return status, run.folder
    except BaseException:
        console.speaks = ranks.first()  # where it is, the others fail because this one does
        raise
    finally:
        ranks.stop()


@dataclass(eq=False)
class Run:
    """One run in its folder. Its arguments are those of `execute`, and ``folder``, the first result of ``locate``.

    writing: whether a failure is to be recorded in the folder.
    first: the round at which the run began; None if it resumes.
    """

    composed: Composed
    locate: Callable[[], Path]
    folder: RunFolder
    jobs: int
    on_eval: sinks.OnEval | None
    quiet: bool
    bar: Bar | None
    pictures: bool

    def __post_init__(self) -> None:
        self.config = dict(self.composed.nodes)
        self.interrupt = Event()
        self.callback = sinks.Callback(self.on_eval, self.interrupt)
        self.main = ranks.rank() == 0  # only this rank writes and shows anything
        self.pictures = (
            self.pictures and number_of("FEDOPT_PICTURES", 1) > 0
        )  # small runs take ten times as long with them
        self.writing = False
        self.progress = Progress()
        self.first: int | None = None
        self.keeper: sinks.Keeper | None = None  # of the main rank

    @property
    def untouched(self) -> bool:
        """Whether the run has not completed a round since it began; False for a run that resumes."""
        return self.progress.round == self.first

    def __call__(self) -> str:
        """Do the run to its end and return its status. Raises UserError, and OSError if the disk is full or gone."""
        entry = ranks.from_main(lambda: resume.enter(self.folder, self.config))
        if entry == "done":
            return "finished"
        loggers = sinks.loggers(self.config["logger"]) if self.main else []
        e, state, checkpoint, rows_size = self._set_up(entry)
        # Sinks too are interruptible: a library that Ctrl-C comes down in, such as one that draws, may lose it
        with interruptible(self.interrupt), ExitStack() as opened:
            ranks.from_main(lambda: self._begin(e, resuming=entry != "anew"))
            taking = self._sinks(opened, e, checkpoint, rows_size, loggers) if self.main else []
            for moment in loop(e, state, self.progress, self.interrupt.is_set):
                for sink in taking:
                    sink(moment)
            status = moment.status or ("stopped" if self.callback.stopped else "interrupted")
            point = ()
            if status in ("finished", "stopped"):  # a run that was killed after its last row does not take it again
                point = moment.point or point_of(e, moment.state, moment.round)
                if (still := unmoved(e, point, moment.round)) and self.main and not self.quiet:
                    note(f"{self.folder.path}: {still}")
            if self.keeper is not None:
                self.keeper.end(moment)
                sinks.write_clients(self.folder, e.problem, point)
                sinks.write_traffic(self.folder, e.problem, e.federation.ledger)
                self._summary(status, e)
            self.writing = False
        return status

    def _set_up(self, entry: resume.Entry) -> tuple[Experiment, Any, Checkpoint, int | None]:
        """Return the experiment, the state to begin with, the checkpoint, and the bytes of metrics.csv to keep (None for a new
        file).

        entry: how the run begins, from `resume.enter`.
        """
        what = "reading the data and setting up the problem"
        if self.bar is not None:
            self.bar.move(0, [what])
        with announced(what, quiet=self.quiet or self.bar is not None or not self.main):
            e = assemble(self.composed, self.jobs)
            ranks.refuse_different(facts(self.config, e.data))
            state, self.progress = begin(e)
        checkpoint, rows_size = Checkpoint(self.folder.checkpoint, state), None
        if entry != "anew":
            state, self.progress, rows_size = resume.restored(self.folder, checkpoint, e, entry == "longer")
        elif (source := self.config["from"]) is not None:
            state, self.progress = resume.taken_from(Path(source), self.config["algo"], state, e)
        self.first = self.progress.round if entry == "anew" else None
        return e, state, checkpoint, rows_size

    def _begin(self, e: Experiment, resuming: bool) -> None:
        """Take the folder, and write down what the run is. Raises UserError if another run has begun there in the meantime.

        e: the objects of the run. resuming: whether its metrics and checkpoint are kept; else they are deleted.
        """
        if not self.folder.held:
            self._take_folder()
            if self.config["resume"] and not self.quiet:
                note(f"resume=true: there is no run in {self.folder.path} yet, so that one begins")
        self.writing = True
        self.folder.write_text("config.yaml", yaml_text(self.config))
        if not resuming:
            for stale in (self.folder.metrics, self.folder.checkpoint, *(self.folder.path / n for n in journal.NAMES)):
                stale.unlink(missing_ok=True)
            weights = effective_weights(e.federation, getattr(e.algorithm, "cohort_weights", "mean"))
            data = {**e.data, "effective_weights": weights}
            self.folder.write_json("run.json", run_card(self.composed, e.original, data))
            sinks.write_division(self.folder, e.original)
        else:
            self.folder.write_json("run.json", continued(self.folder, self.progress.round, self.config))
        (self.folder.path / "traceback.txt").unlink(missing_ok=True)
        self.folder.write_json("summary.json", {"status": "running"})
        how = f"{'resumed' if resuming else 'started'} with {torch.get_num_threads()} threads"
        self.folder.log(
            "; ".join(
                filter(None, [how, tuned_words(self.folder, self.composed), e.original.remark, *e.original.notes])
            )
        )

    def _take_folder(self) -> None:
        """Lock the folder. If another run has begun there since `resume.enter`, take the next folder.

        Raises UserError instead if the command names the folder.
        """
        try:
            self.folder.open()
            if self.folder.used:
                resume.refuse_used(self.folder)
        except UserError:
            self.folder.close()
            if (path := self.locate()) == self.folder.path:
                raise
            self.folder = RunFolder(path)
            self._take_folder()

    def close(self) -> None:
        self.folder.close()

    def _sinks(
        self, opened: ExitStack, e: Experiment, checkpoint: Checkpoint, rows_size: int | None, loggers: list[Any]
    ) -> list[sinks.Sink]:
        """Return the sinks of the run: each moment goes to all of them, in this order. Set `keeper`, the last of them.

        opened: closes them at its end, the pictures last. e: the objects of the run. checkpoint: the keeper writes to it.
            rows_size: the bytes of metrics.csv to keep, None for a run that begins. loggers: the objects whose `start` makes
            the trackers.
        """
        new = 0 if rows_size is None else self.progress.round + 1
        if self.pictures:
            opened.enter_context(drawn(self.folder, e, self.config["from"]))
        rows = opened.enter_context(closing(MetricsFile(self.folder.metrics, rows_size)))
        trackers = [opened.enter_context(sinks.tracker(logger, self.folder, new)) for logger in loggers]
        display = opened.enter_context(closing(self._display(opened, e)))
        self.keeper = sinks.Keeper(e, self.progress, checkpoint, rows, stamp(self.config) | e.data)
        return [sinks.on_rows(rows.append), *trackers, display, sinks.on_rows(self.callback), self.keeper]

    def _display(self, opened: ExitStack, e: Experiment) -> Display:
        """Return the display of the progress. A run by itself first prints three lines: what runs, on what data, and where."""
        chosen, problem = self.composed.chosen, e.original
        bar = self.bar or opened.enter_context(closing(Bar(quiet=self.quiet)))
        if self.bar is None:
            algo = chosen.get("algo", type(e.algorithm).__name__)
            if warning := experimental(algo):
                bar.line(warning)
            bar.line(
                f"{algo} on {chosen.get('problem', type(problem).__name__)}; {tuned_words(self.folder, self.composed)}"
            )
            bar.line("; ".join(filter(None, [e.federation.participation.described(problem.clients), problem.remark])))
            bar.line(f"in {self.folder.path}")
        for text in problem.notes:
            bar.note(text)
        prefix = f"{self.folder.path.name}: " if self.jobs > 1 else ""  # its lines come between those of other runs
        return Display(bar, [metric.name for metric in e.problem.metrics], prefix)

    def _summary(self, status: str, e: Experiment) -> None:
        ledger, progress = e.federation.ledger, self.progress
        largest = {f"bytes_{way}_per_client_max": int(getattr(ledger, way).max()) for way in ("down", "up")}
        values = {"final": progress.final, "best": progress.best, "to_target": progress.to_target}
        error = {"error": progress.diverged} if progress.diverged else {}
        summary = {"status": status, **costs(e, progress), **ledger.columns(), **largest, **values, **error}
        self.folder.write_json("summary.json", summary)
        self.folder.log(": ".join([f"{status} after {counted(progress.round, 'round')}", *error.values()]))


def tuned_words(folder: RunFolder, composed: Composed) -> str:
    """Return a text on the tuned values that apply: those that run.json in the folder records, else those of the config.

    A command that resumes a run need not name the tuned values with which the run began.
    """
    return str(folder.card().get("tuned", composed.tuned))
