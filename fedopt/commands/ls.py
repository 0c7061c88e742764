"""`fedopt ls`: a table of the runs in folders, from run.json and summary.json. config.yaml is read only if one of its keys is
asked for.

It formats the rows itself: rich takes two seconds for a table of a thousand.
"""

import os
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from fedopt.commands.answer import Parser
from fedopt.config import flat
from fedopt.console import as_number, columns, counted, note, order, printable, show
from fedopt.errors import UserError, nearest, some
from fedopt.jobs import queued
from fedopt.results import LOST, OVER, TEXTS, RunFolder, numbers_of

NUMBERS = ("seed", "value", "time", "size")  # flush right
UNITS: dict[str, dict[str, float]] = {  # of what a unit counts, the largest first
    "size": {"GB": 1e9, "MB": 1e6, "kB": 1e3, "B": 1},
    "time": {"d": 86400, "h": 3600, "min": 60, "s": 1},
}
COLUMNS = ("status", "algo", "problem", "seed", "metric", "value", "time", "size", "folder")
LEFT_OUT = ("size", "time", "seed", "problem", "algo")  # in this order on narrow terminals: folders tell most of them


def ls(arguments: list[str]) -> None:
    """Print a table of runs, and how to resume an interrupted one.

    Raises UserError for a folder, a column or a key that does not exist.
    """
    parser = Parser(prog="fedopt ls", description="The runs in folders, at any depth.")
    what = "a folder (default: outputs), or KEY=VALUE,... of a column or a config key: only the runs that fit, such as algo=fed*"
    parser.add_argument("words", nargs="*", metavar="WORD", help=what)
    parser.add_argument("--sort", metavar="KEY", help=f"{', '.join(COLUMNS)}, or a config key (default: folder)")
    parser.add_argument("--reverse", "-r", action="store_true", help="the largest, or last, first")
    given = parser.parse_intermixed_args(arguments)
    filters = [word for word in given.words if "=" in word and not Path(word).exists()]
    paths = [word for word in given.words if word not in filters]
    rows = list(_rows(paths or ["outputs"])) if paths or Path("outputs").is_dir() else []
    _add_queued(rows, paths or ["outputs"])
    if broken := [str(row["folder"]) for row in rows if row["status"] is None]:
        note(f"skipped {counted(len(broken), 'folder')} whose summary.json cannot be read: {some(broken, 3)}")
    rows = runs = [row for row in rows if row["status"] is not None]
    for key in filter(None, [given.sort, *(word.partition("=")[0] for word in filters)]):
        names = [*COLUMNS, *dict.fromkeys(name for row in runs if key not in COLUMNS for name in _config(row))]
        if key not in names:
            raise UserError(f"{key}: none of these runs has such a column or config key{nearest(key, names)}")
    for key, _, wanted in (word.partition("=") for word in filters):
        rows = [row for row in rows if any(_fits(_value(row, key), value) for value in wanted.split(","))]
    values = [(row, _value(row, given.sort or "folder")) for row in rows]
    values.sort(key=lambda pair: (pair[1] is None, order(str(pair[1]))), reverse=given.reverse)
    rows = [row for row, _ in values]
    if rows:
        _print(rows)
    show(_last_line(rows, len(runs), paths or ["outputs"], filters))


def _rows(paths: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield a row (see `_row`) for each run in the folders, each run once. Symbolic links are not followed.

    The status is None if summary.json cannot be read. Raises UserError for a missing folder.
    """
    seen = set()
    for path in paths:
        if not os.path.isdir(path):
            raise UserError(f"{path}: there is no such folder; give one that holds runs")
        for place, _, files in os.walk(path):
            if {*files} & {*TEXTS[:4]} and (real := os.path.realpath(place)) not in seen:
                seen.add(real)
                yield _row(Path(place), files)


def _add_queued(rows: list[dict[str, Any]], paths: Sequence[str]) -> None:
    """Add to `rows`, in place, the runs below these paths that wait in a cluster's queue.

    A run that already has a row gets the status queued there, unless it is running or over.
    """
    there = {row["folder"].resolve(): row for row in rows}
    for folder in (entry.folder.resolve() for entry in queued()):
        row = there.get(folder)
        if row is None and any(folder.is_relative_to(Path(path).resolve()) for path in paths):
            rows.append(row := _row(Path(os.path.relpath(folder)), ()))
        if row is not None and row["status"] not in ("running", *OVER):
            row["status"] = "queued"


def _row(path: Path, files: Sequence[str]) -> dict[str, Any]:
    folder, size = RunFolder(path), 0
    card, summary = folder.card(), folder.summary()
    for name in files:
        with suppress(OSError):  # it is gone by now
            size += os.lstat(path / name).st_size
    status, metric = summary.get("status"), next((metric.name for metric in card.get("metrics", ())), None)
    chosen = card.get("chosen", {})
    return {
        "status": "interrupted" if status == "running" and not folder.alive else status,
        "algo": chosen.get("algo"),
        "problem": chosen.get("problem"),
        "seed": card.get("seed"),
        "metric": metric,
        "value": numbers_of(None if status in LOST else summary.get("final")).get(metric or ""),
        "time": summary.get("seconds"),
        "size": size,
        "folder": path,
        "chosen": chosen,
        "why": printable(str(summary["error"])) if status == "failed" and "error" in summary else "",
    }


def _config(row: dict[str, Any]) -> dict[str, Any]:
    """Return a run's config as dotted key -> value, together with config group -> chosen option. If config.yaml is broken, only
    the options.

    The result is cached in the row, under the key config. row: as `_row` returns it.
    """
    if "config" not in row:
        row["config"] = dict(row["chosen"])
        with suppress(UserError):  # it cannot be read
            row["config"] |= flat(RunFolder(row["folder"]).config())
    return row["config"]


def _value(row: dict[str, Any], key: str) -> Any:
    return row[key] if key in COLUMNS else _config(row).get(key)


def _fits(value: Any, wanted: str) -> bool:
    """Return whether a value equals `wanted` as a number, or matches it as a shell pattern."""
    if (size := as_number(str(value))) is not None and size == as_number(wanted):
        return True
    words = {"None": "null", "True": "true", "False": "false"}
    return fnmatchcase(words.get(str(value), str(value)), wanted)


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if units := UNITS.get(name):
        unit, one = next((item for item in units.items() if value >= item[1]), [*units.items()][-1])
        return f"{value / one:.3g} {unit}"
    return f"{value:.4g}" if name == "value" else printable(str(value))


def _print(rows: Sequence[dict[str, Any]]) -> None:
    """Print the rows, with as many columns as fit the terminal. A folder that does not fit, and why a run failed, go on lines
    below.
    """
    table = {name: [name, *(_cell(name, row[name]) for row in rows)] for name in COLUMNS}
    widths = {name: max(map(len, cells)) for name, cells in table.items()}

    def fits(names: Sequence[str]) -> bool:
        return sum(widths[name] + 2 for name in names) - 2 <= columns()

    choices = [[name for name in COLUMNS if name not in LEFT_OUT[:k]] for k in range(len(LEFT_OUT) + 1)]
    beside = next(filter(fits, choices), None)
    *others, _ = beside or next((names for names in choices if fits(names[:-1])), choices[-1])
    between = "  " if beside else "\n  "
    reasons = ["", *(row["why"] for row in rows)]
    for why, *cells in zip(reasons, *(table[name] for name in (*others, "folder")), strict=True):
        aligned = [
            cell.rjust(widths[name]) if name in NUMBERS else cell.ljust(widths[name])
            for name, cell in zip(others, cells[:-1], strict=True)
        ]
        show(f"{'  '.join(aligned)}{between}{cells[-1]}", *[f"  {why}"[: columns()]] * bool(why))


def _last_line(rows: Sequence[dict[str, Any]], runs: int, paths: Sequence[str], filters: Sequence[str]) -> str:
    if not rows:
        begin = "" if runs else "; fedopt algo=fedmsa problem=mco begins one"
        wanted = f" with {' '.join(filters)}" if filters else ""
        return f"no run{wanted} in {', '.join(paths)}, which has {runs}{begin}"
    counts = Counter(row["status"] for row in rows)
    line = f"{counted(len(rows), 'run')}: {', '.join(f'{number} {status}' for status, number in counts.items())}"
    line += f"\nto compare: fedopt-compare {shlex.join(paths)}" if len(rows) > 1 else ""
    stopped = next((row["folder"] for row in rows if row["status"] == "interrupted"), None)
    return line + (f"\nto go on: fedopt resume=true {shlex.quote(f'output_dir={stopped}')}" if stopped else "")
