"""Published experiments. Each figure or table of a paper has a file conf/experiment/<paper>/<name>.yaml."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, ConfigDict, Field, PositiveFloat, PositiveInt, ValidationInfo
from pydantic.dataclasses import dataclass

from fedopt.config import Composed, compose, key_of, options
from fedopt.config.build import build
from fedopt.errors import UserError, nearest
from fedopt.papers.claims import Claim, Kind
from fedopt.papers.measure import Measure, parsed
from fedopt.papers.where import filled
from fedopt.results import digits

Splits = BeforeValidator(lambda value: value.split() if isinstance(value, str) else value)
Wraps = BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
Words = Annotated[list[str], Splits]


def _each_series(point: Any, info: ValidationInfo) -> Any:
    """Return the mapping series -> measure, for the field ``point`` of `Published`.

    Args:
        point: The value in the file: such a mapping, or a single measure, which is then used for all series.
        info: The fields that pydantic has validated before, among them ``points``, whose keys are the series.
    """
    return point if isinstance(point, dict) else dict.fromkeys(info.data.get("points") or [""], point)


EachSeries = BeforeValidator(_each_series)
Cell = tuple[str, float | None]


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Published:
    """A published experiment: the node `experiment` of its file, after `fedopt.papers.where` has replaced names by values.

    Args:
        paper, title: The paper, and the title of the figure.
        minutes: The minutes that all runs take on two cores, or on a GPU if the file chooses one.
        seeds: The number of seeds of each line.
        lines: label -> overrides of a line, in addition to the overrides of the whole file: a list, or one text with blanks
            between overrides.
        quick: Overrides that the option --quick adds to all lines.
        x: The cost axis.
        until: The upper end of the x axis; runs may be longer.
        y: Columns of metrics.csv; each has a picture. A measure that names no metric uses the first column.
        y_from: The lower end of the y axis.
        transform: A function applied to the values before drawing.
        scale: The scale of the y axis, and of x for points; auto: logarithmic if values span decades.
        panels: title -> labels of lines, or names of series of points. There is one picture per panel and metric.
        x_label, y_label: One text for all panels, or panel title -> text.
        constants: name -> a number of the published figure that no run computes. It is drawn as a dotted line.
        points: series -> {x: label of a line}. If set, the measure `point` is drawn against x, and no curves are drawn.
        point: A measure that may use the names `line` and `x`: one measure for all series, or series -> measure.
        cell: The measure that is printed in the cells of a table.
        table: row -> {column: [label of a line, the number in the paper's table or None]}. If set, the measure `cell` of
            each line is printed, and no curves are drawn.
        small, changes: line -> how its runs are smaller than the paper's runs, and line -> how their settings differ from
            the published ones. They apply to each claim that measures the line and does not set its own (see `Claim`).
        claims: The claims. A claim that names axes is expanded to several claims (`fedopt.papers.where`).
        headlines: The rows of the table of results on the paper's page; scripts/docs computes their verdicts from the claims.
            figure: the paper's name of the figure, such as 'Figure 3'. says: what the paper says about the figure. why: one
            sentence on the verdict. also: other experiments whose claims are counted too. about: a regular expression; only
            claims that match it are counted.
        kind: The kind of all claims that do not set one (see `Claim`).
    """

    paper: str
    title: str
    minutes: PositiveFloat
    lines: Annotated[dict[str, Words], Field(min_length=1)]
    y: Annotated[list[str], Wraps, Field(min_length=1)]
    x: Literal["round", "comm_rounds", "bytes", "seconds"] = "comm_rounds"
    until: PositiveFloat | None = None
    y_from: float | None = None
    seeds: PositiveInt = 3
    scale: Literal["auto", "linear", "log"] = "auto"
    transform: Literal["none", "square"] = "none"
    panels: dict[str, list[str]] = Field(default_factory=dict)
    constants: dict[str, float] = Field(default_factory=dict)
    points: dict[str, Annotated[dict[float, str], Field(min_length=1)]] = Field(default_factory=dict)
    point: Annotated[dict[str, Annotated[Measure, parsed("line", "x")]], EachSeries] = Field(default_factory=dict)
    table: dict[str, dict[str, Cell]] = Field(default_factory=dict)
    cell: Annotated[Measure, parsed("line")] = Field(default_factory=lambda: Measure.parse("final(line)", "line"))
    x_label: str | dict[str, str] = ""
    y_label: str | dict[str, str] = ""
    quick: Words = Field(default_factory=lambda: ["budget.rounds=4", "eval.every=1"])
    small: dict[str, str] = Field(default_factory=dict)
    changes: dict[str, str] = Field(default_factory=dict)
    claims: list[Claim] = Field(default_factory=list)
    headlines: list[dict[str, Any]] = Field(default_factory=list)
    kind: Kind = "paper"

    def check_labels(self) -> None:
        """Check that every label of a line or series that the experiment uses, for example in panels or measures, exists.

        Raises:
            UserError: A line is not in `lines`, a series is not in `points`, or `points` and `point` do not have the same
                series.
        """
        if set(self.points) != set(self.point):
            raise UserError(
                "the keys 'points' and 'point' must list the same series; add or remove series in one of them"
            )
        cells = [label for row in self.table.values() for label, _ in row.values()]
        points = [label for series in self.points.values() for label in series.values()]
        labels: list[tuple[str, str, Any]] = []  # where, kind, label
        labels += [("", "line", label) for label in chain(cells, points, self.small, self.changes)]
        labels += [("", "series" if self.points else "line", label) for label in chain(*self.panels.values())]
        measures = [(f"claim '{claim.says}'", claim.measure) for claim in self.claims]
        measures += [("cell", self.cell), *(("point", measure) for measure in self.point.values())]
        for where, measure in measures:
            for name, label, _ in measure.calls:
                if label is not None or name == "fit":
                    labels.append((f"{where}: {name}() of ", "series" if name == "fit" else "line", label))
        for where, kind, label in labels:
            present = list(self.points if kind == "series" else self.lines)
            if label not in present:
                raise UserError(f"{where}{label}: the figure has no such {kind}{nearest(str(label), present)}")


class Task(NamedTuple):
    """A run that a line needs.

    Attributes:
        line: The label of the line.
        seed: The seed of the run.
        composed: The composed config of the run.
        folder: The name of the run's folder within the folder of all runs. Tasks with equal configs share a folder.
    """

    line: str
    seed: int
    composed: Composed
    folder: str


def names(folders: Sequence[Path] = ()) -> list[str]:
    """Return the names <paper>/<name> of all experiment files.

    Args:
        folders: The user's config folders.
    """
    return [name for name in options("experiment", folders) if name.count("/") == 1]


def chosen(wanted: Sequence[str], folders: Sequence[Path] = ()) -> list[str]:
    """Return the names of the wanted experiments, each once.

    Args:
        wanted: Names <paper>/<name>. The name of a paper alone selects all its experiments.
        folders: The user's config folders.

    Raises:
        UserError: A name is unknown.
    """
    every, found = names(folders), list[str]()
    for name in wanted:
        its = [experiment for experiment in every if name.strip("/") in (experiment, experiment.partition("/")[0])]
        if not its:
            near = nearest(name, [*every, *(experiment.partition("/")[0] for experiment in every)])
            raise UserError(f"{name}: there is no such experiment{near}; --list shows all experiments")
        found += its
    return list(dict.fromkeys(found))


@contextmanager
def _naming(where: str) -> Iterator[None]:
    """Return a context that puts a text before the message of a UserError raised inside it.

    Args:
        where: The text, such as the name of a file.
    """
    try:
        yield
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def load(name: str, folders: Sequence[Path] = ()) -> Published:
    """Read a published experiment from its file.

    Args:
        name: <paper>/<name>.
        folders: The user's config folders.

    Raises:
        UserError: The file is broken.
    """
    with _naming(f"experiment/{name}.yaml"):
        node = compose([f"experiment={name}"], folders).experiment
        if not node:
            raise UserError("must have a node experiment, a mapping of keys to values")
        if "experiment" in node:
            raise UserError("must begin with the line '# @package _global_'")
        published = build(Published, filled(node), "experiment")
        published.check_labels()
    return replace(published, claims=[_completed(claim, published) for claim in published.claims])


def _completed(claim: Claim, published: Published) -> Claim:
    """Return the claim with its `kind` filled in from the experiment and its `small` and `changes` from the lines that it
    measures, where the claim does not set its own.
    """
    lines, every = claim.measure.lines(published.points), (published.small, published.changes)
    small, changes = (" ".join(dict.fromkeys(filter(None, map(texts.get, lines)))) for texts in every)
    kind = published.kind if claim.kind == "paper" else claim.kind
    return replace(claim, kind=kind, small=claim.small or small, changes=claim.changes or changes)


def takes(name: str, published: Published, folders: Sequence[Path] = ()) -> str:
    """Return how long an experiment takes as text, such as '3' (minutes), followed by 'on a GPU' if it needs one.

    Args:
        name: <paper>/<name>.
        published: The experiment.
        folders: The user's config folders.

    Raises:
        UserError: The experiment's file is broken.
    """
    with _naming(f"experiment/{name}.yaml"):
        device = compose([f"experiment={name}"], folders).settings.hardware.device
    return f"{published.minutes:g}" + ("" if device == "cpu" else " on a GPU")


def tasks(
    name: str,
    published: Published,
    seeds: int,
    further: Sequence[str] = (),
    folders: Sequence[Path] = (),
    lines: Sequence[str] | None = None,
) -> list[Task]:
    """Return the runs that the lines of an experiment need.

    Args:
        name: <paper>/<name>.
        published: The experiment.
        seeds: The number of seeds; they are 0, ..., seeds - 1.
        further: Overrides that take precedence over the overrides of a line.
        folders: The user's config folders.
        lines: The labels of the lines. None: all lines.

    Raises:
        UserError: An override is invalid.
    """
    needed = []
    for line, words in published.lines.items():
        if lines is not None and line not in lines:
            continue
        with _naming(f"experiment/{name}.yaml: line '{line}'"):
            if taken := [o for o in words if key_of(o) in ("seed", "output_dir", "resume", "from", "experiment")]:
                raise UserError(f"{taken[0]}: a line cannot set this key; remove it (fedopt reproduce sets it)")
            composed = compose([f"experiment={name}", *words, *further], folders)
        module = {group: composed.nodes[group]["_target_"].split(".")[-2] for group in ("algo", "problem")}
        for seed in range(seeds):
            seeded = composed.changed(seed=seed)
            folder = f"{module['algo']}_{module['problem']}-{digits(seeded.nodes)}"
            needed.append(Task(line, seed, seeded, folder))
    return needed
