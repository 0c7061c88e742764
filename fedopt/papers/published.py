"""Published experiments: a file conf/experiment/<paper>/<name>.yaml for each figure or table."""

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
    return point if isinstance(point, dict) else dict.fromkeys(info.data.get("points") or [""], point)


EachSeries = BeforeValidator(_each_series)
OF_THE_COMMAND = ("seed", "output_dir", "resume", "from", "experiment")  # keys that no line sets
Cell = tuple[str, float | None]


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Published:
    """A published experiment: the node `experiment` of a file, after `fedopt.papers.where` has filled in its texts.

    Args:
        paper, title: The paper, and the figure's title.
        minutes: The time of all runs on two cores, or on a GPU if the file asks for one.
        seeds: The number of seeds of each line.
        lines: label -> overrides, in addition to the overrides of the whole file; a list, or one text split at blanks.
        quick: Overrides that --quick adds to all lines.
        x: The cost axis.
        until: The upper end of the x axis; runs may be longer.
        y: Columns of metrics.csv, with a picture for each. A measure that names no metric uses the first.
        y_from: The lower end of the y axis.
        transform: A function applied to the values before drawing.
        scale: The scale of the y axis, and of x for points; auto: logarithmic if values span decades.
        panels: title -> labels of lines, or series of points; there is a picture per panel and metric.
        x_label, y_label: One text for all panels, or panel title -> text.
        constants: name -> a number of the published figure that no run gives, drawn as a dotted line.
        points: series -> {x: label of a line}. If set, `point` is drawn against x instead of curves.
        point: A measure that may use the names `line` and `x`; one for all series, or series -> measure.
        table: row -> {column: [label of a line, the number in the paper's table or None]}. If set, the measure `cell` of each
            line is printed and no curves are drawn.
        small, changes: line -> how its runs are smaller than the paper's, and how their settings differ from the published
            ones. They are the `Claim.small` and `Claim.changes` of all claims that measure the line and set none.
        claims: See `Claim`. A claim that names axes is expanded to several (`fedopt.papers.where`).
        headlines: The lines of a paper's page of results, for scripts/docs, which computes their verdicts from the claims.
            figure: the paper's name for it, such as 'Figure 3'. says: what the paper says about it. why: one sentence on the
            verdict. also: other experiments whose claims count too. about: a regular expression; only claims that match it
            count.
        kind: The `Claim.kind` of claims that do not set one.
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
        """Check the labels in panels, table, points, measures, small and changes.

        Raises UserError for a line that is not in `lines`, or, in a `fit`, a series that is not in `points`, or if `points` and
        `point` have other series.
        """
        if set(self.points) != set(self.point):
            raise UserError("points and point must have the same series")
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
                raise UserError(f"{where}{label}: there is no such {kind}{nearest(str(label), present)}")


class Task(NamedTuple):
    """A run that a line needs.

    Attributes:
        folder: The name of its folder, within the folder of all runs. Tasks with equal configs share it.
    """

    line: str
    seed: int
    composed: Composed
    folder: str


def names(folders: Sequence[Path] = ()) -> list[str]:
    """Return the names <paper>/<name> of all experiment files. folders: the user's config folders."""
    return [name for name in options("experiment", folders) if name.count("/") == 1]


def chosen(wanted: Sequence[str], folders: Sequence[Path] = ()) -> list[str]:
    """Return the wanted experiments, each once; the name of a paper selects all its experiments. Raises UserError for an
    unknown name.
    """
    every, found = names(folders), list[str]()
    for name in wanted:
        its = [experiment for experiment in every if name.strip("/") in (experiment, experiment.partition("/")[0])]
        if not its:
            near = nearest(name, [*every, *(experiment.partition("/")[0] for experiment in every)])
            raise UserError(f"{name}: there is no such experiment{near}; --list shows them")
        found += its
    return list(dict.fromkeys(found))


@contextmanager
def _naming(where: str) -> Iterator[None]:
    """Prefix a UserError raised in the `with` block with the name of a file."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def load(name: str, folders: Sequence[Path] = ()) -> Published:
    """Read the experiment <paper>/<name>. Raises UserError if its file is broken."""
    with _naming(f"experiment/{name}.yaml"):
        node = compose([f"experiment={name}"], folders).experiment
        if not node:
            raise UserError("must have a node experiment")
        if "experiment" in node:
            raise UserError("must begin with the line '# @package _global_'")
        published = build(Published, filled(node), "experiment")
        published.check_labels()
    return replace(published, claims=[_completed(claim, published) for claim in published.claims])


def _completed(claim: Claim, published: Published) -> Claim:
    """Return the claim with the experiment's `kind`, and `small` and `changes` of its lines, where it sets none itself."""
    lines, every = claim.measure.lines(published.points), (published.small, published.changes)
    small, changes = (" ".join(dict.fromkeys(filter(None, map(texts.get, lines)))) for texts in every)
    kind = published.kind if claim.kind == "paper" else claim.kind
    return replace(claim, kind=kind, small=claim.small or small, changes=claim.changes or changes)


def takes(name: str, published: Published, folders: Sequence[Path] = ()) -> str:
    """Return as text the minutes that an experiment takes, with 'on a GPU' if it needs one. Raises UserError if its file is
    broken.
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
    """Return the runs of the lines (None: all), for the seeds below `seeds`.

    Args:
        name: <paper>/<name>.
        further: Overrides that win over a line's.

    Raises:
        UserError: An override is wrong.
    """
    needed = []
    for line, words in published.lines.items():
        if lines is not None and line not in lines:
            continue
        with _naming(f"experiment/{name}.yaml: line '{line}'"):
            if taken := [word for word in words if key_of(word) in OF_THE_COMMAND]:
                raise UserError(f"{taken[0]}: must not be set by a line; fedopt reproduce sets it")
            composed = compose([f"experiment={name}", *words, *further], folders)
        module = {group: composed.nodes[group]["_target_"].split(".")[-2] for group in ("algo", "problem")}
        for seed in range(seeds):
            seeded = composed.changed(seed=seed)
            folder = f"{module['algo']}_{module['problem']}-{digits(seeded.nodes)}"
            needed.append(Task(line, seed, seeded, folder))
    return needed
