"""Execute one run in its folder: start or resume it, run the loop, and write the results.

The loop itself is in `loop`, resuming in `resume`, checkpoints are in `sinks`, and failures in `failure`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedopt.config import Composed, experimental
from fedopt.console import Bar, counted, interruptible, note
from fedopt.console import say as console
from fedopt.errors import UserError
from fedopt.federation import effective_weights, ranks
from fedopt.files import yaml_text
from fedopt.machine import number_of
from fedopt.results import Checkpoint, MetricsFile, RunFolder, facts, run_card, say_other_versions, stamp
from fedopt.running import resume, sinks
from fedopt.running.assemble import Experiment, assemble
from fedopt.running.display import Display
from fedopt.running.failure import mistakes_named, record_failure
from fedopt.running.loop import Progress, begin, costs, loop, point_of, unmoved
from fedopt.running.pictures import draw
from fedopt.running.together import Outcome


@dataclass(frozen=True)
class Options:
    """Options of the execution of a run. They do not change its numbers.

    Args:
        jobs: The number of runs that share the machine.
        on_eval: A function that is called with each row of metrics.csv. If it returns true, the run stops. None: no function.
        quiet: Whether to hide the progress.
        bar: The progress bar that this run shares with other runs. None: the run has its own progress bar.
        pictures: Whether to draw the figures of the run at its end. The environment variable FEDOPT_PICTURES=0 disables them too.
        computed: The outcome of the run, if it was computed together with others. None: it is computed now.
    """

    jobs: int = 1
    on_eval: sinks.OnEval | None = None
    quiet: bool = False
    bar: Bar | None = None
    pictures: bool = True
    computed: Outcome | None = None


def execute(composed: Composed, locate: Callable[[], Path], options: Options = Options()) -> tuple[str, RunFolder]:
    """Execute or resume a run, and return its status and its folder.

    The status is finished, diverged, stopped (by on_eval) or interrupted. If the run fails after it has started, the traceback is
    written into its folder. With several ranks, only the first rank that fails reports the error.

    Args:
        composed: The config.
        locate: A function that returns the run's folder. It is called again if another run has taken this folder.
        options: Options of the execution.

    Raises:
        UserError: The run failed because of an error that the user can fix.
        Exception: on_eval raised an exception, or fedopt has a bug.
        KeyboardInterrupt: Ctrl-C was pressed twice, or before the run started.
    """
    try:
        ranks.start()
        run = Run(composed, locate, options)
        with closing(run), _recorded(run), mistakes_named(run.callback):
            status = run()
            ranks.finish()
        return status, run.folder
    except BaseException:
        console.speaks = ranks.first()  # only the first rank reports; the other ranks fail because of it
        raise
    finally:
        ranks.stop()


class Start(NamedTuple):
    """The objects and the state with which a run starts or resumes.

    Attributes:
        e: The objects of the run.
        state: The algorithm's state.
        checkpoint: The run's checkpoint.
        rows_size: The number of bytes of metrics.csv to keep when the run resumes. None: the run starts.
    """

    e: Experiment
    state: Any
    checkpoint: Checkpoint
    rows_size: int | None


@contextmanager
def _recorded(run: "Run") -> Iterator[None]:
    """Record failures within the context in the run's folder, if the run has started to write there.

    Errors of the disk are converted to UserError.

    Args:
        run: The run.
    """
    try:
        yield
    except Exception as error:
        path = run.folder.path
        if not run.writing:  # a refused run changes nothing in the folder of another run
            raise
        if not path.is_dir():
            raise UserError(f"{path}: another program removed this folder during the run; start it again") from error
        # If the first round fails, the corrected command can use this folder
        record_failure(run.folder, error, run.composed, run.progress.round == 0 and not isinstance(error, OSError))
        if not isinstance(error, OSError):
            raise
        why = f"{error.filename or path}: {error.strerror or error}"
        raise UserError(f"{why}; fix this and run again with resume=true; nothing recorded is lost") from error


class Run:
    """One run in its folder.

    Args:
        composed: The config.
        locate: A function that returns the run's folder. It is called again if another run has taken this folder.
        options: Options of the execution.

    Attributes:
        folder: The run's folder. It is the first result of ``locate`` until the run starts to write.
        writing: Whether a failure should be recorded in the folder.
        progress: The progress of the run.
        callback: The user's function ``on_eval``.
    """

    def __init__(self, composed: Composed, locate: Callable[[], Path], options: Options):
        self.composed, self._locate, self._options = composed, locate, options
        self._config = dict(composed.nodes)
        self.folder = RunFolder(ranks.from_main(locate))
        self.callback = sinks.Callback(options.on_eval)
        self.progress, self.writing = Progress(), False

    def __call__(self) -> str:
        """Execute the run to its end, and return its status.

        Raises:
            UserError: The run cannot start, or fails because of an error that the user can fix.
            OSError: The disk is full or cannot be reached.
        """
        entry = ranks.from_main(lambda: resume.enter(self.folder, self._config))
        if entry == "done":
            return "finished"
        options, main = self._options, ranks.rank() == 0  # only the main rank writes files and shows progress
        loggers = sinks.loggers(self._config["logger"]) if main else []
        with ExitStack() as opened:
            bar = options.bar or opened.enter_context(closing(Bar(quiet=options.quiet or not main)))
            bar.move(0, ["reading the data and setting up the problem"])
            start = self._set_up(entry)
            e = start.e
            # This includes the sinks: a library that receives Ctrl-C itself, such as a plotting library, may ignore it
            opened.enter_context(interruptible(self.callback.interrupt))
            ranks.from_main(lambda: self._begin(start))
            with ExitStack() as closed:
                taking, keeper = self._sinks(closed, start, loggers, bar) if main else ([], None)
                moments = loop(e, start.state, self.progress, self.callback.interrupt.is_set)
                for moment in options.computed.moments(e, self.progress) if options.computed else moments:
                    for sink in taking:
                        sink(moment)
                status = moment.status or ("stopped" if self.callback.stopped else "interrupted")
                point = ()
                if status in ("finished", "stopped"):  # not evaluated again after a kill
                    point = moment.point or point_of(e, moment.state, moment.round)
                if keeper is not None:
                    keeper.end(moment)
                    self._end(status, e, point)
            self.writing = False
            if main and options.pictures and number_of("FEDOPT_PICTURES", 1) > 0:
                draw(self.folder, e, self._config["from"])
        return status

    def _set_up(self, entry: resume.Entry) -> Start:
        """Build the objects of the run, and load its checkpoint if it resumes.

        Args:
            entry: How the run starts; see `resume.enter`.
        """
        e = assemble(self.composed, self._options.jobs)
        ranks.refuse_different(facts(self._config, e.data))
        state, self.progress = begin(e)
        checkpoint, rows_size = Checkpoint(self.folder.checkpoint, state), None
        if entry != "begin":
            state, self.progress, rows_size = resume.restored(self.folder, checkpoint, e, entry == "longer")
        elif (source := self._config["from"]) is not None:
            state, self.progress = resume.taken_from(Path(source), self._config["algo"], state, e)
        return Start(e, state, checkpoint, rows_size)

    def _begin(self, start: Start) -> None:
        """Lock the folder, and write the files that describe the run.

        If the run resumes, its metrics and its checkpoint are kept; otherwise, old files of this kind are deleted.

        Args:
            start: The objects and the state with which the run starts.

        Raises:
            UserError: Another run has started in the folder in the meantime.
        """
        e, resuming = start.e, start.rows_size is not None
        if not self.folder.held:
            self._take_folder()
            if self._config["resume"] and not self._options.quiet:
                note(f"resume=true: there is no run in {self.folder.path} yet, so a new run starts")
        self.writing = True
        self.folder.write_text("config.yaml", yaml_text(self._config))
        (self.folder.path / "traceback.txt").unlink(missing_ok=True)
        if resuming:
            say_other_versions(self.folder)
        else:
            self.folder.metrics.unlink(missing_ok=True)
            self.folder.checkpoint.unlink(missing_ok=True)
            weights = effective_weights(e.federation, getattr(e.algorithm, "cohort_weights", "mean"))
            data = {**e.data, "effective_weights": weights}
            done = self._options.computed
            together = {"computed": f"at once with {counted(done.others, 'other')}"} if done else {}
            self.folder.write_json("run.json", run_card(self.composed, e.original, data) | together)
            sinks.write_division(self.folder, e.original)
        self.folder.write_json("summary.json", {"status": "running"})
        how = f"{'resumed' if resuming else 'started'} with {torch.get_num_threads()} threads"
        self.folder.log("; ".join(filter(None, [how, self._tuned(), e.original.remark, *e.original.notes])))

    def _take_folder(self) -> None:
        """Lock the folder. If another run has started there in the meantime, use the next free folder.

        Raises:
            UserError: Another run has started in the folder, and the command names this folder.
        """
        while not self.folder.held:
            try:
                self.folder.open()
                if self.folder.used:
                    resume.refuse_used(self.folder)
            except UserError:
                self.folder.close()
                if (path := self._locate()) == self.folder.path:
                    raise
                self.folder = RunFolder(path)

    def close(self) -> None:
        self.folder.close()

    def _sinks(
        self, closed: ExitStack, start: Start, loggers: Sequence[Any], bar: Bar
    ) -> tuple[list[sinks.Sink], sinks.Keeper]:
        """Return the sinks of the run, which receive each moment in this order, and the last sink, which writes checkpoints.

        Args:
            closed: The context that closes the sinks at its end.
            start: The objects and the state with which the run starts.
            loggers: The objects whose method ``start`` creates the trackers.
            bar: The progress bar.
        """
        e, new = start.e, 0 if start.rows_size is None else self.progress.round + 1
        rows = closed.enter_context(closing(MetricsFile(self.folder.metrics, start.rows_size)))
        trackers = [closed.enter_context(sinks.tracker(logger, self.folder, new)) for logger in loggers]
        if self._options.bar is None:
            self._introduce(e, bar)
        for text in e.original.notes:
            bar.note(text)
        display = Display(bar, [metric.name for metric in e.problem.metrics])
        keeper = sinks.Keeper(e, self.progress, start.checkpoint, rows, stamp(self._config) | e.data)
        return [sinks.on_rows(rows.append), *trackers, display, sinks.on_rows(self.callback), keeper], keeper

    def _introduce(self, e: Experiment, bar: Bar) -> None:
        """Print three lines: the method and the problem, the clients and the data, and the folder.

        Args:
            e: The objects of the run.
            bar: The progress bar, which prints the lines.
        """
        chosen, problem = self.composed.chosen, e.original
        algo = chosen.get("algo", type(e.algorithm).__name__)
        if warning := experimental(algo):
            bar.line(warning)
        ignored = self.composed.settings.participation.ignored(problem.clients)
        idle = [f"participation.{key} has no effect, since all clients take part" for key in ignored]
        bar.line("; ".join([f"{algo} on {chosen.get('problem', type(problem).__name__)}", self._tuned(), *idle]))
        bar.line("; ".join(filter(None, [e.federation.participation.described(problem.clients), problem.remark])))
        bar.line(f"in {self.folder.path}")

    def _end(self, status: str, e: Experiment, point: tuple[Any, ...]) -> None:
        """Write summary.json and the tables of the clients.

        Args:
            status: The status of the run.
            e: The objects of the run.
            point: The final variables; () if the run has not reached its end.
        """
        if (still := unmoved(e, point, self.progress.round)) and not self._options.quiet:
            note(f"{self.folder.path}: {still}")
        ledger, progress = e.federation.ledger, self.progress
        sinks.write_clients(self.folder, e.problem, point)
        sinks.write_traffic(self.folder, e.problem, ledger)
        largest = {f"bytes_{way}_per_client_max": int(getattr(ledger, way).max()) for way in ("down", "up")}
        values = {"final": progress.final, "best": progress.best, "to_target": progress.to_target}
        error = {"error": progress.diverged} if progress.diverged else {}
        summary = {"status": status, **costs(e, progress), **ledger.columns(), **largest, **values, **error}
        self.folder.write_json("summary.json", summary)
        self.folder.log(": ".join([f"{status} after {counted(progress.round, 'round')}", *error.values()]))

    def _tuned(self) -> str:
        """Describe the tuned values that the run uses. run.json records them, since a command that resumes may omit them."""
        return str(self.folder.card().get("tuned", self.composed.tuned))
