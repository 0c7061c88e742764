"""Runs from Python: begin, read and compare them.

torch is imported only when a run starts or its variables are read, so that mistakes are answered at once.
"""

import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedopt.config import TURN, last_of_each, of_folder, with_project, words_of
from fedopt.console import counted, ctrl_c_kept
from fedopt.console.say import say
from fedopt.errors import UserError, first_line, mistake
from fedopt.results import RunFolder
from fedopt.running.configured import configured
from fedopt.running.place import place

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from torch import Tensor

    from fedopt.analysis import Comparison
    from fedopt.data import Model
    from fedopt.running import Trained

Which = Literal["last", "best"]
Config = str | Sequence[str] | Mapping[str, Any]


@dataclass(frozen=True)
class Result:
    """A run, given by its folder. It may still be running.

    Properties read the folder when they are used. They raise `UserError` if it no longer holds a run.

    Args:
        folder: The run's folder.
        which: Whether `variables` and `model` are those of the ``last`` checkpoint, or of the ``best`` evaluation, which a
            run stores with ``keep=best``.
    """

    folder: Path
    which: Which = "last"
    _read: dict[int, Any] = field(default_factory=dict, init=False, compare=False)  # of `_trained`, by the file's time

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", Path(self.folder).absolute())  # also after os.chdir

    def __repr__(self) -> str:
        try:
            state = ", ".join([str(self.status), *(f"{name}={value:.5g}" for name, value in self.final.items())])
        except UserError:
            state = "which cannot be read"
        return f"Result({str(self.folder)!r}, {state})"

    @property
    def config(self) -> dict[str, Any]:
        """The content of ``config.yaml``.

        Raises:
            UserError: The file cannot be read.
        """
        return self._folder.config()

    @property
    def status(self) -> str | None:
        """The status of the run: running, finished, diverged, failed, stopped (by ``on_eval``), or interrupted.

        A run is interrupted by a signal, or if its process is gone. None: ``summary.json`` is missing or broken.
        """
        return self._folder.seen()

    @property
    def summary(self) -> dict[str, Any]:
        """The content of ``summary.json``: the status, the costs, the values of the metrics.

        It has only the status until the run ends; {} if the file is missing or broken.
        """
        return self._folder.summary()

    @property
    def metrics(self) -> "pd.DataFrame":
        """The rows of ``metrics.csv`` so far, one per evaluation. A row that is just being written is left out.

        Raises:
            UserError: There is no such file yet, or it cannot be read.
        """
        from fedopt.files import read_table

        return read_table(self._folder.metrics, growing=True)

    @property
    def final(self) -> dict[str, float]:
        """The finite values of the metrics at the last evaluation so far, by name; {} before the first evaluation."""
        return self._folder.measured("final")

    @property
    def best(self) -> dict[str, float]:
        """The best value of each metric so far, by name. Different metrics may be best at different evaluations.

        Metrics for which neither direction is better, and those without a finite value, are left out.
        """
        return self._folder.measured("best")

    @property
    def variables(self) -> "dict[str, Tensor]":
        """The solution: the algorithm's output on the CPU, by the problem's names of its variables.

        A run that diverged has the values of its last evaluation before that. Reading them builds the problem again, with its
        data.

        Raises:
            UserError: There is no checkpoint, or the problem cannot be built.
        """
        return dict(self._trained.variables)

    def model(self, client: object = None) -> "Model":
        """Return a trained model, on the CPU and in evaluation mode: a ``torch.nn.Module`` that also predicts from data frames.

        As a module it takes examples in the data set's units, such as images as bytes from 0 to 255, and normalises them
        itself. Its `predict` and `predict_proba` take arrays and data frames of raw examples; its `save` writes a file that
        `load_model` reads.

        Args:
            client: A client's name, or its number where clients have no names. The model is the one that this client deploys:
                its own, if the method trains one for each client, else the common model. Missing values are filled in as in
                this client's training rows. None: the common model.

        Raises:
            UserError: The problem has no network, or the method no common one; there is no such client or no checkpoint; or
                the problem cannot be built.

        Example:
            ``run.model(client="Aue").predict_proba(pd.read_csv("new.csv"))``
        """
        return self._trained.deployed(client)

    def draw(self, metric: str | None = None, x: str = "comm_rounds", label: str | None = None, **how: Any) -> "Axes":
        """Draw a metric as a line, and return matplotlib's axes. Further lines on the same axes get different colours.

        Args:
            metric: The metric's name. None: the problem's first metric.
            x: The cost on the horizontal axis, as in `compare`.
            label: The line's name in the legend. None: the method's name.
            how: ``ax``: the axes to draw on (default: pyplot's current axes). Other arguments go to the ``draw`` of the
                comparison that `compare` returns.

        Raises:
            UserError: There is nothing to draw.
        """
        from matplotlib import pyplot

        ax, one = how.pop("ax", None) or pyplot.gca(), compare([self], metric=metric, x=x)
        groups = {label or name: runs for name, runs in one.groups.items()}
        return replace(one, groups=groups, slots={name: len(ax.lines) for name in groups}).draw(ax=ax, **how)

    @property
    def _folder(self) -> RunFolder:
        if not (self.folder / "config.yaml").is_file():
            raise UserError(f"{self.folder}: there is no run in it; give the folder that has the run's config.yaml")
        return RunFolder(self.folder)

    @property
    def _trained(self) -> "Trained":
        checkpoint = self._folder.checkpoint
        if not checkpoint.is_file():
            raise UserError(
                f"{self.folder}: there is no checkpoint in it; repeat the run's command with resume=true, "
                "which starts the run over"
            )
        time = checkpoint.stat().st_mtime_ns
        if time not in self._read:
            self._read.clear()
            with TURN, _mistakes_said():
                from fedopt.running.read_back import read_back

                with_project()
                self._read[time] = read_back(self.folder, self.which == "best")
        return self._read[time]


def run(
    words: Config = "",
    *,
    on_eval: Callable[[dict[str, Any]], object] | None = None,
    output_dir: str | Path | None = None,
    start: Result | str | Path | None = None,
    folders: str | Path | Sequence[str | Path] = (),
    quiet: bool = False,
    **values: Any,
) -> Result:
    """Do what the command ``fedopt WORDS`` does, with the same folder and files, and return the run.

    Runs in several threads wait for each other; runs in several processes work at the same time. A run that ``on_eval`` or
    Ctrl-C stopped can be resumed with ``resume=true``. A second Ctrl-C raises KeyboardInterrupt at once. A run that diverged
    is returned too: see its status.

    Args:
        words: Overrides as on the command line: a list of texts, or one text with a shell's quotes. Or a dict of keys and
            values, such as ``{"algo": "fedavg", "algo.eta": 0.1}``. A nested dict means dotted keys.
        on_eval: A function that is called with each row of ``metrics.csv``, a dict. If it returns true, the run stops. If it
            raises, the run fails.
        output_dir: The run's folder, like the key ``output_dir``, without quotes.
        start: A run, or its folder. The new run begins at its last checkpoint, as with the key ``from``.
        folders: Your config folders, like ``--config-dir``.
        quiet: If true, no progress is shown.
        values: Overrides as keyword arguments, which win over ``words``: ``algo="fedavg", seed=1, **{"algo.eta": 0.1}``.
            Texts need no quotes.

    Raises:
        UserError: A mistake that the command would answer in one line.
        Exception: What ``on_eval`` raises.
        KeyboardInterrupt: Ctrl-C was pressed. The run has written a checkpoint.
    """
    if on_eval is not None and not callable(on_eval):
        raise UserError(f"on_eval={on_eval}: must be a function that takes a row")
    if isinstance(start, Result) and start.which == "best":
        raise UserError(f"start: {start.folder}: a run begins at the last checkpoint; load it without which=best")
    places = {"output_dir": output_dir, "from": start}
    folders_of_runs = {key: _folder_of(given) for key, given in places.items() if given is not None}
    overrides = last_of_each([*_words(words), *words_of(values | folders_of_runs)])
    with TURN, _mistakes_said(overrides):
        composed = configured(overrides, with_project(folders))
        from fedopt.running import Options, execute, restored

        with restored():
            status, folder = execute(composed, lambda: place(composed), Options(on_eval=on_eval, quiet=quiet))
    if status == "interrupted":
        rounds = counted(folder.summary()["round"], "round")
        say(f"interrupted after {rounds}, in {folder.path}; resume it with resume=true")
        raise KeyboardInterrupt
    return Result(folder.path)


def sweep(
    words: Config | Sequence[Mapping[str, Any]] = "",
    *,
    jobs: int = 1,
    at_once: bool = False,
    output_dir: str | Path | None = None,
    folders: str | Path | Sequence[str | Path] = (),
    quiet: bool = False,
    **values: Any,
) -> list[Result]:
    """Do what the command ``fedopt -m WORDS`` does, with the same folders and files, and return the runs.

    Runs that have ended are not run again; interrupted ones are resumed. A run that failed is returned too: see its status.
    Runs come in the order of the combinations. Equal configs give one run.

    Args:
        words: As in `run`. Or a list of dicts, one per config, to each of which ``values`` are added.
        jobs: How many runs work at the same time. Each has its own process, which does not execute your script again.
        at_once: Whether runs that differ only in real numbers of the algorithm are computed together, which is faster. The last
            digits of their metrics may differ from those of separate runs.
        output_dir: The folder that holds the folders of all runs.
        folders: As in `run`.
        quiet: If true, nothing is written to stdout and stderr.
        values: As in `run`, but a list holds alternatives, ``seed=[0, 1, 2]``, and all combinations run. ``[[1, 2]]`` is the
            value ``[1, 2]``.

    Raises:
        UserError: There is a mistake in the arguments; or, after the other runs have ended, some runs could not begin.
        KeyboardInterrupt: Ctrl-C was pressed.
    """
    if not isinstance(jobs, int) or jobs < 1:
        raise UserError(f"jobs={jobs}: must be a whole number, 1 or more")
    configs = [words] if isinstance(words, str | Mapping) or not all(isinstance(w, Mapping) for w in words) else words
    values |= {} if output_dir is None else {"output_dir": output_dir}
    given = [last_of_each([*_words(config, sweep=True), *words_of(values, sweep=True)]) for config in configs or [""]]
    with open(os.devnull, "w", encoding="utf-8") as nowhere, ExitStack() as stack:
        for redirect in (redirect_stdout, redirect_stderr) if quiet else ():
            stack.enter_context(redirect(nowhere))
        stack.enter_context(TURN)
        stack.enter_context(_mistakes_said())
        from fedopt.jobs import AtOnce, Local, sweep_all
        from fedopt.running import execute as _  # before `ending_at_once`, which would end a notebook  # noqa: F401
        from fedopt.running import restored

        stack.enter_context(restored())
        launcher = AtOnce(jobs) if at_once else Local(jobs)
        return [Result(path) for path in sweep_all(given, with_project(folders), launcher)]


def load(folder: str | Path, which: Which = "last") -> Result:
    """Return the run in a folder.

    Args:
        folder: The run's folder.
        which: As in `Result`.

    Raises:
        UserError: The folder does not hold a run.
    """
    if which not in ("last", "best"):
        raise UserError(f"which={which}: must be last or best")
    loaded = Result(_folder_of(folder), which)
    _ = loaded._folder  # which raises where there is no run
    return loaded


def compare(
    runs: Result | str | Path | Sequence[Result | str | Path],
    *,
    metric: str | None = None,
    x: str = "comm_rounds",
    target: float | None = None,
    group_by: str | Sequence[str] | None = None,
    names: Mapping[str, str] | None = None,
    at: float | None = None,
    exclude: Sequence[str] = (),
    label: str | None = None,
) -> "Comparison":
    """Compare runs as ``fedopt compare`` does.

    Returns a comparison with the DataFrames ``table`` and ``paired``, and the methods ``draw(PATH)`` and ``write(FOLDER)``.

    Args:
        runs: Runs, or folders that hold some at any depth; or a single one of them.
        metric: The metric's name. None: the problem's first metric.
        x: The cost that runs are compared by, such as ``bytes``.
        target: A value of the metric. The table then has the cost of reaching it.
        group_by: A key, or a list of keys, whose values are compared. None: all keys that differ.
        names: New labels of groups, by their old labels, or by one of the parts that commas separate in old labels.
        at: A value of ``x``: each run is judged by its last evaluation up to this cost. None: by its very last evaluation.
        exclude: Patterns of folders to leave out, such as ``*seed3*``.
        label: The metric's label in tables and figures, with its unit. None: as the problem says.

    Raises:
        UserError: There is nothing to compare, or a name, key or value does not fit the runs.
    """
    from fedopt.analysis import compared, usable

    folders = _folders_of(runs)
    renamed = [f"{old}={new}" for old, new in (names or {}).items()]
    group_by = group_by if group_by is None or isinstance(group_by, str) else ",".join(group_by)
    with _mistakes_said():
        read = usable(folders, x, exclude)
        return compared(read, metric=metric, target=target, group_by=group_by, names=renamed, at=at, label=label)


def frame(runs: Result | str | Path | Sequence[Result | str | Path], *, exclude: Sequence[str] = ()) -> "pd.DataFrame":
    """Return the evaluations of runs as one tidy pandas table, one row per evaluation.

    The columns are ``run`` (its folder), ``method``, ``problem`` and ``seed``; the other keys in which the runs differ;
    ``round`` and the other costs, summed since the run began; the metrics. ``attrs["metrics"]`` maps the name of a metric to
    its ``label``, ``unit`` and ``better``. Copies of a run count once; a note on stderr names what is left out.

    Args:
        runs: Runs, or folders that hold some at any depth; or a single one of them.
        exclude: As in `compare`.

    Raises:
        UserError: There is no run that can be read.
    """
    from fedopt.analysis import usable
    from fedopt.analysis.frame import frame

    with _mistakes_said():
        return frame(usable(_folders_of(runs), "round", exclude))


def _folders_of(runs: Result | str | Path | Sequence[Result | str | Path]) -> list[Path]:
    if isinstance(runs, Result | str | Path):
        runs = [runs]
    if not runs:
        raise UserError("there is no run to compare; give at least one")
    return [_folder_of(run) for run in runs]


def _folder_of(run: Result | str | Path) -> Path:
    if not isinstance(run, Result | str | Path):
        raise UserError(f"{run}: must be a run, or the path of its folder")
    return run.folder if isinstance(run, Result) else Path(run)


def _words(words: Any, sweep: bool = False) -> list[str]:
    if isinstance(words, Mapping):
        return words_of(words, sweep)
    if not isinstance(words, Sequence) or not all(isinstance(word, str) for word in words):
        raise UserError(
            f"{words}: must be overrides as on the command line, KEY=VALUE, in one text or a list of texts, or a dict"
        )
    try:
        return [of_folder(word) for word in (shlex.split(words) if isinstance(words, str) else words)]
    except ValueError as error:
        raise UserError(f"{words}: cannot be split into overrides ({first_line(error)}); close all quotes") from None


@contextmanager
def _mistakes_said(arguments: Sequence[str] = ()) -> Iterator[None]:
    """Turn an exception whose cause a user can mend, such as a full disk, into a UserError.

    With HYDRA_FULL_ERROR=1 it is raised unchanged. arguments: the overrides, for the message.
    """
    try:
        with ctrl_c_kept():
            yield
    except Exception as error:
        line = mistake(error, arguments)
        if not line or isinstance(error, UserError) or os.environ.get("HYDRA_FULL_ERROR") == "1":
            raise
        raise UserError(line) from None
