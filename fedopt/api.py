"""The Python interface to runs: start, read and compare them.

torch is imported only when a run starts or its variables are read, so that error messages appear immediately.
"""

import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedopt.config import TURN, last_of_each, of_folder, overrides_of, with_project
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
    """A run on disk, identified by its folder. The run may still be in progress.

    The properties read the folder each time they are used. They raise `UserError` if the folder no longer contains a run.

    Args:
        folder: The run's folder.
        which: Which values `variables` and `model` return: from the ``last`` checkpoint, or from the ``best``
            evaluation, which a run stores if it was started with ``keep=best``.
    """

    folder: Path
    which: Which = "last"
    _cache: dict[int, "Trained"] = field(default_factory=dict, init=False, compare=False)  # by the checkpoint's mtime

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", Path(self.folder).absolute())  # stays valid after os.chdir

    def __repr__(self) -> str:
        try:
            state = ", ".join([str(self.status), *(f"{name}={value:.5g}" for name, value in self.final.items())])
        except UserError:
            state = "unreadable"
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
        """The status of the run: running, finished, diverged, failed, stopped (by ``on_eval``) or interrupted.

        A run is interrupted if it received a signal or its process no longer exists. The status is None if ``summary.json``
        is missing or broken.
        """
        return self._folder.seen()

    @property
    def summary(self) -> dict[str, Any]:
        """The content of ``summary.json``: the status, the costs and the values of the metrics.

        Until the run ends it contains only the status. It is {} if the file is missing or broken.
        """
        return self._folder.summary()

    @property
    def metrics(self) -> "pd.DataFrame":
        """The rows of ``metrics.csv`` so far, one per evaluation. A row that is still being written is left out.

        Raises:
            UserError: The file does not exist yet, or cannot be read.
        """
        from fedopt.files import read_table

        return read_table(self._folder.metrics, growing=True)

    @property
    def final(self) -> dict[str, float]:
        """The finite metrics of the last evaluation so far, by name; {} before the first evaluation."""
        return self._folder.measured("final")

    @property
    def best(self) -> dict[str, float]:
        """The best value of each metric so far, by name. Different metrics may have their best value at different evaluations.

        Metrics without a preferred direction and metrics without a finite value are left out.
        """
        return self._folder.measured("best")

    @property
    def variables(self) -> "dict[str, Tensor]":
        """The solution: the algorithm's output as CPU tensors, by the problem's variable names.

        For a run that diverged these are the values at the last evaluation before it diverged. Reading the variables builds
        the problem again and loads its data.

        Raises:
            UserError: There is no checkpoint, or the problem cannot be built.
        """
        return dict(self._trained.variables)

    def model(self, client: object = None) -> "Model":
        """Return a trained model: a ``torch.nn.Module`` on the CPU, in evaluation mode, that also predicts from data frames.

        As a module, the model takes examples in the units of the data set (for example images as bytes from 0 to 255) and
        normalises them. Its methods `predict` and `predict_proba` take arrays and data frames of raw examples, and `save`
        writes a file that `load_model` reads.

        Args:
            client: A client's name, or its index if clients have no names. Returns the model that this client deploys: its
                personal model if the method trains one for each client, otherwise the common model. Missing values are
                imputed as in this client's training rows. None: the common model.

        Raises:
            UserError: The problem has no network, the method has no common model, the client or the checkpoint does not
                exist, or the problem cannot be built.

        Example:
            ``run.model(client="Aue").predict_proba(pd.read_csv("new.csv"))``
        """
        return self._trained.deployed(client)

    def draw(self, metric: str | None = None, x: str = "comm_rounds", label: str | None = None, **how: Any) -> "Axes":
        """Draw the run's values of a metric over a cost as a line, and return the matplotlib axes.

        Several runs can be drawn on the same axes, in different colours.

        Args:
            metric: The metric's name. None: the problem's first metric.
            x: The cost on the horizontal axis, such as ``comm_rounds`` or ``bytes``.
            label: The line's label in the legend. None: the method's name.
            how: ``ax``: the axes to draw on (default: pyplot's current axes). All other arguments are passed to the ``draw``
                method of the comparison that `compare` returns.

        Raises:
            UserError: There is nothing to draw.
        """
        from matplotlib import pyplot

        ax, one = how.pop("ax", None) or pyplot.gca(), compare([self], metric=metric, x=x)
        groups = {label or name: runs for name, runs in one.groups.items()}
        return replace(one, groups=groups, slots={name: len(ax.lines) for name in groups}).draw(ax=ax, **how)

    @property
    def _folder(self) -> RunFolder:
        """The run's folder, as an object that reads its files."""
        if not (self.folder / "config.yaml").is_file():
            raise UserError(f"{self.folder}: contains no run; give the folder with the run's config.yaml")
        return RunFolder(self.folder)

    @property
    def _trained(self) -> "Trained":
        """The variables and models of the run's checkpoint, read again only if the checkpoint has changed."""
        checkpoint = self._folder.checkpoint
        if not checkpoint.is_file():
            raise UserError(f"{self.folder}: has no checkpoint to read; repeat the run's command with resume=true")
        time = checkpoint.stat().st_mtime_ns
        if time not in self._cache:
            self._cache.clear()
            with TURN, _user_errors():
                from fedopt.running.read_back import read_back

                with_project()
                self._cache[time] = read_back(self.folder, self.which == "best")
        return self._cache[time]


def run(
    overrides: Config = "",
    *,
    on_eval: Callable[[dict[str, Any]], object] | None = None,
    output_dir: str | Path | None = None,
    start: Result | str | Path | None = None,
    folders: str | Path | Sequence[str | Path] = (),
    quiet: bool = False,
    **values: Any,
) -> Result:
    """Run an experiment as the command ``fedopt OVERRIDES`` does, with the same folder and files, and return the run.

    Runs in several threads wait for each other; runs in several processes run in parallel. A run that was stopped by
    ``on_eval`` or Ctrl-C can be resumed with ``resume=true``; pressing Ctrl-C twice raises KeyboardInterrupt immediately.
    A run that diverged is returned like any other; check its ``status``.

    Args:
        overrides: Overrides as on the command line: a list of strings, or one string with shell quoting. Alternatively a
            dict of keys and values, such as ``{"algo": "fedavg", "algo.eta": 0.1}``; nested dicts stand for dotted keys.
        on_eval: A function that is called with each row of ``metrics.csv`` (a dict). If it returns true, the run stops. If
            it raises an exception, the run fails. None: no function is called.
        output_dir: The run's folder, like the key ``output_dir``, but without quotes. None: a folder under outputs/ whose
            name follows from the overrides.
        start: A run or its folder. The new run starts from the last checkpoint of this run, as with the key ``from``. None:
            a fresh start.
        folders: Your config folders, as with ``--config-dir``.
        quiet: Whether to hide the progress bar.
        values: Overrides as keyword arguments, for example ``algo="fedavg", seed=1, **{"algo.eta": 0.1}``. They take
            precedence over ``overrides``. Strings need no quotes.

    Returns:
        The run.

    Raises:
        UserError: Invalid input, which the command would report in one line.
        Exception: Whatever ``on_eval`` raises.
        KeyboardInterrupt: Ctrl-C was pressed. The run has written a checkpoint.

    Example:
        >>> run = fedopt.run("algo=fedmsa problem=mco budget.rounds=2", output_dir="first", quiet=True)
        >>> run.status
        'finished'
        >>> sorted(run.final)
        ['distance', 'objective', 'suboptimality']
    """
    if on_eval is not None and not callable(on_eval):
        raise UserError(f"on_eval={on_eval}: must be a function that takes a row of metrics.csv")
    if isinstance(start, Result) and start.which == "best":
        raise UserError(f"start={start.folder}: a run starts from the last checkpoint of another run; omit which=best")
    places = {"output_dir": output_dir, "from": start}
    paths = {key: _folder_of(run) for key, run in places.items() if run is not None}
    overrides = last_of_each([*_overrides(overrides), *overrides_of(values | paths)])
    with TURN, _user_errors(overrides):
        composed = configured(overrides, with_project(folders))
        from fedopt.running import Options, execute, restored

        with restored():
            status, folder = execute(composed, lambda: place(composed), Options(on_eval=on_eval, quiet=quiet))
    if status == "interrupted":
        rounds = counted(folder.summary()["round"], "round")
        say(f"interrupted after {rounds}, in {folder.path}; resume the run with resume=true")
        raise KeyboardInterrupt
    return Result(folder.path)


def sweep(
    overrides: Config | Sequence[Mapping[str, Any]] = "",
    *,
    jobs: int = 1,
    at_once: bool = False,
    output_dir: str | Path | None = None,
    folders: str | Path | Sequence[str | Path] = (),
    quiet: bool = False,
    **values: Any,
) -> list[Result]:
    """Run a sweep as the command ``fedopt -m OVERRIDES`` does, with the same folders and files, and return the runs.

    Runs that have ended are not run again; interrupted runs are resumed. A run that failed is returned like any other; check
    its ``status``. The runs are returned in the order of the combinations, and equal configs share one run.

    Args:
        overrides: Overrides, in any form that `run` accepts. Alternatively a list of dicts, one per config; ``values`` are
            added to each.
        jobs: The number of runs in parallel. Each has its own process, which does not execute your script again.
        at_once: Whether runs that differ only in real-valued keys of the algorithm, such as step sizes, are computed
            together, which is faster. The last digits of their metrics may differ from separate runs.
        output_dir: The folder that will contain the folders of all runs. None: a new folder under outputs/.
        folders: Your config folders, as with ``--config-dir``.
        quiet: Whether to write nothing to stdout and stderr.
        values: Overrides as keyword arguments, which take precedence over ``overrides``. A list gives alternatives, such as
            ``seed=[0, 1, 2]``, and all combinations are run. Write ``[[1, 2]]`` for the single value ``[1, 2]``.

    Returns:
        The runs, one for each combination.

    Raises:
        UserError: The input is invalid; or some runs could not start, which is raised after the other runs have ended.
        KeyboardInterrupt: Ctrl-C was pressed.

    Example:
        >>> runs = fedopt.sweep("algo=fedmsa problem=mco budget.rounds=2", seed=[0, 1], output_dir="seeds", quiet=True)
        >>> [run.config["seed"] for run in runs]
        [0, 1]
    """
    if not isinstance(jobs, int) or jobs < 1:
        raise UserError(f"jobs={jobs}: must be a whole number, 1 or more")
    one = isinstance(overrides, str | Mapping) or not all(isinstance(config, Mapping) for config in overrides)
    values |= {} if output_dir is None else {"output_dir": output_dir}
    configs, added = ([overrides] if one else overrides) or [""], overrides_of(values, sweep=True)
    commands = [last_of_each([*_overrides(config, sweep=True), *added]) for config in configs]
    with open(os.devnull, "w", encoding="utf-8") as devnull, ExitStack() as stack:
        for redirect in (redirect_stdout, redirect_stderr) if quiet else ():
            stack.enter_context(redirect(devnull))
        stack.enter_context(TURN)
        stack.enter_context(_user_errors())
        from fedopt.jobs import AtOnce, Local, sweep_all
        from fedopt.running import execute as _  # before `ending_at_once`, which would end a notebook  # noqa: F401
        from fedopt.running import restored

        stack.enter_context(restored())
        launcher = AtOnce(jobs) if at_once else Local(jobs)
        return [Result(path) for path in sweep_all(commands, with_project(folders), launcher)]


def load(folder: str | Path, which: Which = "last") -> Result:
    """Return a run that was started earlier, in this or another process, by its folder.

    Args:
        folder: The run's folder.
        which: Which values `Result.variables` and `Result.model` return: from the ``last`` checkpoint, or from the
            ``best`` evaluation, which a run stores if it was started with ``keep=best``.

    Returns:
        The run.

    Raises:
        UserError: The folder contains no run.

    Example:
        >>> fedopt.load("first").metrics["round"].tolist()
        [0, 1, 2]
    """
    if which not in ("last", "best"):
        raise UserError(f"which={which}: must be last or best")
    loaded = Result(_folder_of(folder), which)
    _ = loaded._folder  # raises UserError if there is no run
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
    """Compare the values of a metric between groups of runs, as ``fedopt compare`` does. Runs of a group differ only in seeds.

    Args:
        runs: A run or a folder, or a list of runs and folders. Folders are searched for runs at any depth.
        metric: The metric's name. None: the problem's first metric.
        x: The cost by which runs are compared, such as ``comm_rounds`` or ``bytes``.
        target: A value of the metric. The table then has the cost of reaching this value. None: the table has no such
            column.
        group_by: A config key, or a list of keys, whose values define the groups. None: all keys in which the runs differ,
            except seeds.
        names: Old label -> new label of a group. The old label may also be one part of a label with several parts. None:
            labels are unchanged.
        at: A value of ``x``. Each run is judged by its last evaluation up to this cost. None: each run is judged by its last
            evaluation.
        exclude: Patterns of folders to leave out, such as ``*seed3*``.
        label: The metric's label in tables and figures, including its unit. None: the label that the problem defines.

    Returns:
        A comparison with the data frames ``table`` and ``paired`` and the methods ``draw(PATH)`` and ``write(FOLDER)``.

    Raises:
        UserError: There is nothing to compare, or a name, key or value does not match the runs.

    Example:
        >>> fedopt.compare("seeds", metric="objective").table["seeds"].tolist()
        [2]
    """
    from fedopt.analysis import compared, usable

    folders = _folders_of(runs)
    renamed = [f"{old}={new}" for old, new in (names or {}).items()]
    group_by = group_by if group_by is None or isinstance(group_by, str) else ",".join(group_by)
    with _user_errors():
        recorded = usable(folders, x, exclude)
        return compared(recorded, metric=metric, target=target, group_by=group_by, names=renamed, at=at, label=label)


def frame(runs: Result | str | Path | Sequence[Result | str | Path], *, exclude: Sequence[str] = ()) -> "pd.DataFrame":
    """Return the evaluations of runs as one tidy pandas table, one row per evaluation.

    The columns are ``run`` (its folder), ``method``, ``problem`` and ``seed``, the other config keys in which the runs
    differ, ``round`` and the other costs (cumulative), and the metrics. ``attrs["metrics"]`` maps each metric's name to its
    ``label``, ``unit`` and ``better``. Copies of a run are counted once. A note on stderr names the runs that are left out.

    Args:
        runs: A run or a folder, or a list of runs and folders. Folders are searched for runs at any depth.
        exclude: Patterns of folders to leave out, such as ``*seed3*``.

    Returns:
        The table.

    Raises:
        UserError: No run can be read.

    Example:
        >>> table = fedopt.frame("seeds")
        >>> table.groupby("seed").size().to_dict()
        {0: 3, 1: 3}
    """
    from fedopt.analysis import usable
    from fedopt.analysis.frame import frame

    with _user_errors():
        return frame(usable(_folders_of(runs), "round", exclude))


def _folders_of(runs: Result | str | Path | Sequence[Result | str | Path]) -> list[Path]:
    """Return the folders of one or several runs.

    Raises:
        UserError: There are no runs, or one of the values is neither a run nor a path.
    """
    several = [runs] if isinstance(runs, Result | str | Path) else runs
    if not several:
        raise UserError("no runs to compare; give at least one run or folder")
    return [_folder_of(run) for run in several]


def _folder_of(run: Result | str | Path) -> Path:
    """Return the folder of a run, which may be given as a path.

    Raises:
        UserError: The value is neither a run nor a path.
    """
    if not isinstance(run, Result | str | Path):
        raise UserError(f"{run}: must be a run or the path of its folder")
    return run.folder if isinstance(run, Result) else Path(run)


def _overrides(overrides: Any, sweep: bool = False) -> list[str]:
    """Return the overrides that a user has passed to `run` or `sweep`, as a list of strings.

    Args:
        overrides: A string, a list of strings or a dict.
        sweep: Whether a list in a dict contains alternatives.

    Raises:
        UserError: ``overrides`` has another form.
    """
    if isinstance(overrides, Mapping):
        return overrides_of(overrides, sweep)
    if not isinstance(overrides, Sequence) or not all(isinstance(override, str) for override in overrides):
        raise UserError(f"{overrides}: must be a string or a list of strings with overrides KEY=VALUE, or a dict")
    try:
        return [of_folder(text) for text in (shlex.split(overrides) if isinstance(overrides, str) else overrides)]
    except ValueError as error:
        raise UserError(f"{overrides}: cannot be split ({first_line(error)}); close the quotes") from None


@contextmanager
def _user_errors(arguments: Sequence[str] = ()) -> Iterator[None]:
    """Turn an exception whose cause the user can fix, such as a full disk, into a UserError.

    With HYDRA_FULL_ERROR=1 the exception is raised unchanged.

    Args:
        arguments: The overrides of the run, for the message.
    """
    try:
        with ctrl_c_kept():
            yield
    except Exception as error:
        line = mistake(error, arguments)
        if not line or isinstance(error, UserError) or os.environ.get("HYDRA_FULL_ERROR") == "1":
            raise
        raise UserError(line) from None
