"""Runs from Python: begun, read, compared.

Nothing here imports torch before a run starts or its variables are read, so that mistakes are answered at once.
"""

import math
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from copy import deepcopy
from dataclasses import dataclass, field, replace
from io import StringIO
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, Literal

from fedopt.config.words import last_of_each, of_folder, words_of
from fedopt.console.interrupts import ctrl_c_kept
from fedopt.console.say import say
from fedopt.console.texts import counted, html_text
from fedopt.errors import UserError, first_line, mistake
from fedopt.results.folder import RunFolder, described, numbers_of
from fedopt.results.metrics_file import whole_rows
from fedopt.running.place import configured, place

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from torch import Tensor, nn

    from fedopt.comparing.comparison import Comparison
    from fedopt.metrics import Metric

Which = Literal["last", "best"]
Config = str | Sequence[str] | Mapping[str, Any]
_turn = RLock()  # threads, dtypes and generators of torch belong to the process: runs in its threads take turns


@dataclass(frozen=True)
class Result:
    """A run by its folder, as the `fedopt` command leaves it; also one that is still going. All is read from the folder when it is
    asked for, and raises UserError where there is no run in it any more.

    which: whether `variables` and `model` are those of the last checkpoint, or of the best evaluation, which keep=best keeps.
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

    def _repr_html_(self) -> str:
        """For notebooks: where, how it ended, and its last values."""
        cells: dict[str, Any] = {"run": self.folder}
        try:
            chosen = self._folder.card().get("chosen", {})
            cells |= {group: chosen.get(group) for group in ("algo", "problem")} | {"status": self.status}
            cells |= {name: f"{value:.5g}" for name, value in self.final.items()}
        except UserError as error:
            cells[""] = error
        rows = (f"<tr><th>{html_text(name)}</th><td>{html_text(str(cell))}</td></tr>" for name, cell in cells.items())
        return f"<table>{''.join(rows)}</table>"

    @property
    def config(self) -> dict[str, Any]:
        """config.yaml. Raises UserError where it cannot be read."""
        return self._folder.config()

    @property
    def status(self) -> str | None:
        """running, finished, diverged, stopped (by on_eval), interrupted (by a signal, or its process is gone) or failed."""
        return self._folder.seen()

    @property
    def summary(self) -> dict[str, Any]:
        """summary.json: the status, what was spent, the values of the metrics. Little while the run is going."""
        return self._folder.summary()

    @property
    def metrics(self) -> "pd.DataFrame":
        """metrics.csv so far, a row an evaluation. Raises UserError where there is none yet."""
        import pandas as pd

        path = self._folder.metrics
        try:
            return pd.read_csv(StringIO(whole_rows(path)))
        except (OSError, ValueError) as error:
            raise UserError(f"{path}: cannot be read ({first_line(error)})") from None

    @property
    def final(self) -> dict[str, float]:
        """The values of the metrics at the last evaluation, without those that are not finite; so far while the run is going."""
        return self._measured("final", lambda _, values: values.iloc[-1])

    @property
    def best(self) -> dict[str, float]:
        """The best value of each metric by name, each of its own evaluation, as `final`."""
        return self._measured("best", lambda metric, values: metric.best(values))

    @property
    def variables(self) -> "dict[str, Tensor]":
        """The algorithm's output by the names that the problem gives its variables, on the CPU; of a run that diverged, at the last
        evaluation before. Reading them builds the problem anew, with its data. Raises UserError where that is not possible."""
        return dict(self._trained[0])

    def model(self) -> "nn.Module":
        """The network with the trained parameters, as `networks.flat.Normalised`, on the CPU and ready to be evaluated: it takes
        examples as the data set has them, images as bytes from 0 to 255, and normalises them itself.

        Raises UserError where the problem has no network, and as `variables`.
        """
        network = self._trained[1]
        if network is None:
            raise UserError(f"{self.folder}: this problem has no network; its solution is in variables")
        return deepcopy(network)

    def draw(self, metric: str | None = None, x: str = "comm_rounds", label: str | None = None, **how: Any) -> "Axes":
        """Draw a metric, by default the problem's first one, on matplotlib's axes `ax`, by default those of pyplot; returns them.

        x: as of `compare`; label: in the legend; how: as of `Comparison.draw`. Lines on the same axes get different colours.
        Raises UserError where there is nothing to draw.
        """
        from matplotlib import pyplot

        ax, one = how.pop("ax", None) or pyplot.gca(), compare([self], metric, x)
        groups = {label or name: runs for name, runs in one.groups.items()}
        return replace(one, groups=groups, slots={name: len(ax.lines) for name in groups}).draw(ax=ax, **how)

    @property
    def _folder(self) -> RunFolder:
        if not (self.folder / "config.yaml").is_file():
            raise UserError(f"{self.folder}: there is no run in it; a run's folder has config.yaml")
        return RunFolder(self.folder)

    def _measured(self, name: str, value_of: "Callable[[Metric, pd.Series], float]") -> dict[str, float]:
        """That part of the summary; of a run that has none, since it is going or ended hard, from its rows."""
        summary = self.summary
        if name in summary or not self._folder.metrics.is_file():
            return numbers_of(summary.get(name))
        import pandas as pd

        rows = self.metrics.apply(pd.to_numeric, errors="coerce")
        metrics = [metric for metric in described(self.folder) if metric.name in rows and len(rows)]
        values = {metric.name: float(value_of(metric, rows[metric.name])) for metric in metrics}
        return {key: value for key, value in values.items() if math.isfinite(value)}

    @property
    def _trained(self) -> "tuple[dict[str, Tensor], nn.Module | None]":
        checkpoint = self._folder.checkpoint
        if not checkpoint.is_file():
            raise UserError(f"{self.folder}: there is no checkpoint in it")
        time = checkpoint.stat().st_mtime_ns
        if time not in self._read:
            self._read.clear()
            with _turn, _mistakes_said():
                from fedopt.running.read_back import read_back

                self._read[time] = read_back(self.folder, self.which == "best")
        return self._read[time]


def run(
    words: Config = "",
    on_eval: Callable[[dict[str, Any]], object] | None = None,
    *,
    output_dir: str | Path | None = None,
    start: Result | str | Path | None = None,
    folders: str | Path | Sequence[str | Path] = (),
    quiet: bool = False,
    interrupt: Literal["raise", "return"] = "raise",
    **values: Any,
) -> Result:
    """Do what `fedopt WORDS` does, in the same folder with the same files, and return the run.

    words: overrides as on the command line, as a list or as one text with the quotes of a shell; or a dict of keys and values,
        {"algo": "fedavg", "algo.eta": 0.1}. The groups choose, dotted keys set; {"budget": {"rounds": 9}} is {"budget.rounds": 9}.
    values: the same as keyword arguments, which win: algo="fedavg", seed=1, **{"algo.eta": 0.1}. Texts mean just themselves.
    on_eval: called with each row of metrics.csv, a dict; where it returns true, the run stops. What it raises ends the run, as
        failed.
    output_dir: the run's folder, as the key of this name, without quotes.
    start: a run, or its folder, at whose last checkpoint this one begins, as the key `from`.
    folders: your config folders, as of --config-dir; quiet: show no progress.
    interrupt: what Ctrl-C does after the round, when the run has kept a checkpoint: raise KeyboardInterrupt, or return the run.

    Runs in several threads take turns; several processes run at once. A run that on_eval stops has the status stopped, one that
    Ctrl-C stops interrupted; both go on with resume=true. A second Ctrl-C raises KeyboardInterrupt at once. Raises UserError for
    what the command would answer in one line.
    """
    if interrupt not in ("raise", "return"):
        raise UserError(f"interrupt={interrupt}: must be raise or return")
    if on_eval is not None and not callable(on_eval):
        raise UserError(f"on_eval={on_eval}: must be a function of a row")
    if isinstance(start, Result) and start.which == "best":
        raise UserError(f"start: {start.folder} was loaded with which=best; a run begins at a last checkpoint")
    places = {"output_dir": output_dir, "from": start}
    folders_of_runs = {key: _folder_of(given) for key, given in places.items() if given is not None}
    overrides = last_of_each([*_words(words), *words_of(values | folders_of_runs)])
    with _turn, _mistakes_said(overrides):
        composed = configured(overrides, [folders] if isinstance(folders, str | Path) else folders)
        from fedopt.running.hardware import restored
        from fedopt.running.lifecycle import execute

        with restored():
            status, folder = execute(composed, lambda: place(composed), on_eval=on_eval, quiet=quiet)
    if status == "interrupted":
        rounds = counted(folder.summary()["round"], "round")
        say(f"interrupted after {rounds}, in {folder.path}; resume=true goes on")
        if interrupt == "raise":
            raise KeyboardInterrupt
    return Result(folder.path)


def sweep(
    words: Config | Sequence[Mapping[str, Any]] = "",
    *,
    jobs: int = 1,
    output_dir: str | Path | None = None,
    folders: str | Path | Sequence[str | Path] = (),
    quiet: bool = False,
    **values: Any,
) -> list[Result]:
    """Do what `fedopt -m WORDS` does, in the same folders with the same files, and return the runs, which `compare` takes.

    words, values: as of `run`. A list has alternatives, seed=[0, 1, 2], and all combinations run; [[1, 2]] is one list. A list of
        dicts has configs that each get the other values too.
    jobs: how many run at once, each in a process of its own, which does not run your script again.
    output_dir: the folder of all runs; folders, quiet: as of `run`.

    Runs that are there are not run again, interrupted ones go on. One that failed is among those that are returned, as its status
    says. Raises UserError for mistakes, and at the end for runs that could not begin; KeyboardInterrupt as `run`.
    """
    if not isinstance(jobs, int) or jobs < 1:
        raise UserError(f"jobs={jobs}: must be a whole number from 1")
    configs = [words] if isinstance(words, str | Mapping) or not all(isinstance(w, Mapping) for w in words) else words
    values |= {} if output_dir is None else {"output_dir": output_dir}
    others = [str(folder) for folder in ([folders] if isinstance(folders, str | Path) else folders)]
    given = [last_of_each([*_words(config, sweep=True), *words_of(values, sweep=True)]) for config in configs or [""]]
    with open(os.devnull, "w", encoding="utf-8") as nowhere, ExitStack() as stack:
        for redirect in (redirect_stdout, redirect_stderr) if quiet else ():
            stack.enter_context(redirect(nowhere))
        stack.enter_context(_turn)
        stack.enter_context(_mistakes_said())
        from fedopt.jobs.sweep import sweep_all
        from fedopt.running.hardware import restored
        from fedopt.running.lifecycle import execute as _  # before `ending_at_once`, which would end a notebook  # noqa: F401

        stack.enter_context(restored())
        return [Result(path) for path in sweep_all(given, others, jobs)]


def load(folder: str | Path, which: Which = "last") -> Result:
    """The run in a folder. which: as of `Result`. Raises UserError where there is no run."""
    if which not in ("last", "best"):
        raise UserError(f"which={which}: must be last or best")
    loaded = Result(_folder_of(folder), which)
    _ = loaded._folder  # which raises where there is no run
    return loaded


def compare(
    runs: Sequence[Result | str | Path],
    metric: str | None = None,
    x: str = "comm_rounds",
    target: float | None = None,
    group_by: str | Sequence[str] | None = None,
    names: Mapping[str, str] | None = None,
    at: float | None = None,
    exclude: Sequence[str] = (),
    label: str | None = None,
) -> "Comparison":
    """What `fedopt-compare` makes of runs, or of folders that hold some: `table` and `paired`, DataFrames, `draw(PATH)` and
    `write(FOLDER)`.

    metric, x, target, group_by (a key, or a list of them), at, exclude, label: as the options of the command; names: new ones by
    the old. Raises UserError where there is nothing to compare.
    """
    from fedopt.comparing.comparison import compared

    if not runs:
        raise UserError("no run to compare: the list of runs is empty")
    renamed = [f"{old}={new}" for old, new in (names or {}).items()]
    group_by = group_by if group_by is None or isinstance(group_by, str) else ",".join(group_by)
    with _mistakes_said():
        return compared([_folder_of(run) for run in runs], metric, x, target, group_by, renamed, at, exclude, label)


def _folder_of(run: Result | str | Path) -> Path:
    if not isinstance(run, Result | str | Path):
        raise UserError(f"{run}: must be a run, or the path of its folder")
    return run.folder if isinstance(run, Result) else Path(run)


def _words(words: Any, sweep: bool = False) -> list[str]:
    if isinstance(words, Mapping):
        return words_of(words, sweep)
    if not isinstance(words, Sequence) or not all(isinstance(word, str) for word in words):
        raise UserError(
            f"{words}: must be words as on the command line, key=value, in one text or in a list of texts, or a dict"
        )
    try:
        return [of_folder(word) for word in (shlex.split(words) if isinstance(words, str) else words)]
    except ValueError as error:
        raise UserError(f"{words}: cannot be read as words ({first_line(error)})") from None


@contextmanager
def _mistakes_said(arguments: Sequence[str] = ()) -> Iterator[None]:
    """Whatever a user can mend comes as a UserError. HYDRA_FULL_ERROR=1 shows where it came from."""
    try:
        with ctrl_c_kept():
            yield
    except Exception as error:
        line = mistake(error, arguments)
        if not line or isinstance(error, UserError) or os.environ.get("HYDRA_FULL_ERROR") == "1":
            raise
        raise UserError(line) from None
