"""The pictures in a run's folder: the partition of the data, who is available, who gains, and the metrics."""

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.ticker import MaxNLocator

from fedopt.console import printable
from fedopt.data import Ragged
from fedopt.drawing.figures import OKABE_ITO, WIDTH, Line, describe, draw_lines, is_share, pictures, scale_of, within
from fedopt.files import read_text
from fedopt.metrics import EQUAL, FEW_ROWS, Metric

NOMINAL, HATCHES = [*OKABE_ITO[:6], "#F0E442", "#999999"], ("", "/////", ".....")  # of classes, in this order
COLUMNS = 1000  # of a heat map, which has fewer pixels than some runs have clients
BARS = 20  # up to so many clients, and classes, are drawn as bars, more as a heat map
MODELS = {"own": "with their own model", "common": "with the common model", "alone": "alone"}  # in clients.csv
INTERVALS = f"thin lines: 95 % intervals by each client's test examples; paler: fewer than {FEW_ROWS} of these"
PALE, THIN = 0.35, 0.7  # opacity, and width of a line
NAMES, LETTERS = 40, 90  # of clients: up to so many stand below their bars, and side by side up to so many letters


def partition(path: Path, split: Ragged, labels: np.ndarray, class_names: Sequence[str] = ()) -> None:
    """Draw the number of training examples of each class on each client. Names of clients are shown if there is room.

    Args:
        path: The file to write.
        split: For each client, the indices of its examples.
        labels: The class of each example, by index.
        class_names: The names of the classes. Empty: their indices.
    """
    every = -(-len(split) // COLUMNS)
    clients = np.arange(0, len(split), every)
    counts = np.zeros((len(clients), int(labels[split.rows].max()) + 1))
    for of_client, i in zip(counts, clients, strict=True):
        of_client += np.bincount(labels[split[int(i)]], minlength=len(of_client))
    classes = [_short(name) for name in class_names] or list(map(str, range(counts.shape[1])))
    with pictures([path], 1, width=2 * WIDTH, height=2.6, place="none") as (axes,):
        if max(counts.shape) <= BARS:
            above = np.cumsum(counts, axis=1)
            edges = (clients[:, None] + [-0.45, 0.45]).reshape(-1)
            tops, bottoms = (np.insert(to, range(1, len(split)), np.nan, axis=0) for to in (above, above - counts))
            for c, name in enumerate(classes):  # one patch a class: a bar for each client takes a second to draw
                colour, hatch = NOMINAL[c % len(NOMINAL)], HATCHES[c // len(NOMINAL)]
                fill = {"fill": True, "facecolor": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0}
                axes.stairs(tops[:, c], edges, baseline=bottoms[:, c], label=name, **fill)  # type: ignore[arg-type]
            axes.set(ylabel="training examples", ylim=(0, None))
            columns = 1 if class_names and len(classes) <= 10 else 2
            axes.legend(title="class", ncols=columns, loc="center left", bbox_to_anchor=(1, 0.5))
        else:
            ends = (-0.5, len(split) - 0.5, counts.shape[1] - 0.5, -0.5)
            image = axes.imshow(counts.T, aspect="auto", interpolation="nearest", cmap="cividis", extent=ends)
            axes.figure.colorbar(image, label="training examples")
            axes.set_ylabel("class")
            axes.yaxis.set_major_locator(MaxNLocator(integer=True))
            if len(classes) <= BARS:
                axes.set_yticks(range(len(classes)), classes)
        where = ", whose name stands in run.json" if len(split.names) > NAMES else ""
        axes.set_xlabel(f"client{where}{f', one of {every:,} shown' if every > 1 else ''}")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if 0 < len(split.names) <= NAMES:
            names = list(map(_short, split.names))
            side_by_side = len(names) * (max(map(len, names)) + 2) <= LETTERS
            axes.set_xticks(clients, names, rotation="horizontal" if side_by_side else "vertical")
        sizes = " to ".join(map(str, dict.fromkeys([int(split.sizes.min()), int(split.sizes.max())])))
        axes.set_title(f"{len(split)} clients, {sizes} training examples each")


def availability(path: Path, there: Sequence[np.ndarray], clients: int) -> None:
    """Draw which clients are available in the first rounds of a run, one row a round.

    Args:
        path: The file to write.
        there: The indices of the clients that are available in each round.
        clients: The number of clients.
    """
    every = -(-clients // COLUMNS)
    grid = np.stack([np.isin(np.arange(0, clients, every), present) for present in there])
    with pictures([path], 1, width=2 * WIDTH, height=2.6, place="none") as (axes,):
        ends = (-0.5, clients - 0.5, len(there) - 0.5, -0.5)
        axes.imshow(~grid, aspect="auto", interpolation="nearest", cmap="gray", vmin=0, vmax=1, extent=ends)
        axes.set(xlabel=f"client{f', one of {every:,} shown' if every > 1 else ''}", ylabel="round")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(integer=True))
        mean = np.mean([len(present) for present in there])
        axes.set_title(
            f"available (black): {mean:.3g} of {clients} clients in a round, in the mean of {len(there)} rounds"
        )


def clients(path: Path, table: Path, metric: Metric) -> None:
    """Draw who gains: each client's test metric with its own model, or the common one, against that of another model.

    It has an interval, and is paler where it rests on fewer than `FEW_ROWS` test examples. With one model there is no gain.

    Args:
        path: The file to write.
        table: The run's clients.csv. Clients without test examples are left out.
        metric: The description of the metric.
    """
    rows = list(csv.DictReader(read_text(table).splitlines()))
    columns = {name: np.array([float(row[name] or "nan") for row in rows]) for name in rows[0] if name != "client"}
    kinds = [kind for kind in MODELS if kind in columns]
    known = np.flatnonzero(np.all([np.isfinite(columns[kind]) for kind in kinds], axis=0))
    order = known[np.argsort(-metric.sign * columns[kinds[-1]][known], kind="stable")]
    if not len(order):
        return
    columns, at = {name: of[order] for name, of in columns.items()}, np.arange(len(order))
    values, first, last = [columns[kind] for kind in kinds], MODELS[kinds[0]], MODELS[kinds[-1]]
    gains = [
        np.where(np.isclose(values[0], of, rtol=EQUAL, atol=0), 0, metric.sign * (of - values[0])) for of in values[1:]
    ]
    shares = [f"{100 * np.mean(of > 0):.0f} %" for of in gains]
    than = [f"{share} than {MODELS[kind]}" for share, kind in zip(shares[:-1], kinds[1:], strict=False)]
    title = f"{len(order)} clients {first}"
    if gains:
        title = ", ".join([f"{shares[-1]} of {len(order)} clients do better {first} than {last}", *than])
    few = columns.get("test_rows", np.full(len(at), np.inf)) < FEW_ROWS
    low, high = (columns.get(f"{kinds[0]}_{end}", values[0]) for end in ("low", "high"))
    note = INTERVALS if f"{kinds[0]}_low" in columns else ""
    signs = np.sign(gains[-1]) if gains else np.zeros(len(at))
    looks = (("better", 1, OKABE_ITO[0]), ("worse", -1, OKABE_ITO[1]), ("equal", 0, "0.4"))
    with pictures([path], 1, width=2 * WIDTH, height=2.6, title=title, note=note) as (axes,):
        if gains:
            axes.plot(at, values[-1], color="black", label=last)
        for of, alpha in ((few, PALE), (~few, 1.0)):
            if than and of.any():
                axes.plot(at[of], values[1][of], "x", color="0.4", alpha=alpha, label=MODELS[kinds[1]])
            for name, sign, colour in looks:
                if (mine := of & (signs == sign)).any():
                    axes.vlines(at[mine], values[-1][mine], values[0][mine], color=colour, alpha=alpha * PALE)
                    axes.vlines(at[mine], low[mine], high[mine], color=colour, alpha=alpha, linewidth=THIN)
                    label = f"{first}: {name}" if gains else first
                    axes.plot(at[mine], values[0][mine], "o", color=colour, alpha=alpha, label=label)
        ends = np.concatenate([*values, low[~few], high[~few]])  # intervals by few examples may end outside
        margin = 0.05 * np.ptp(ends) or 1
        axes.set_ylim(ends.min() - margin, ends.max() + margin)
        describe(axes, f"client, from the worst to the best {last}", f"{metric.title}; {metric.better} is better")
        names = [_short(rows[i]["client"]) for i in order] if len(order) <= NAMES else []
        axes.set_xticks(at[: len(names)], names, rotation="vertical")


def metrics(path: Path, table: Path, metrics: Sequence[Metric], title: str = "", source: str = "") -> None:
    """Draw every metric of a run against communication rounds.

    Args:
        path: The file to write.
        table: The run's metrics.csv.
        metrics: The descriptions of its metrics.
        title: A text that names the run.
        source: The run from whose checkpoint this one started; '' if none. Rounds are counted from that start.
    """
    rows = list(csv.DictReader(read_text(table).splitlines()))
    goes_on = f"goes on from {source} after {rows[0]['round']} rounds" if source else ""
    with pictures([path], len(metrics), title="; ".join(filter(None, [title, goes_on]))) as all_axes:
        for axis, metric in zip(all_axes, metrics, strict=True):
            costs, values = (
                np.array([float(row[name] or "nan") for row in rows]) for name in ("comm_rounds", metric.name)
            )
            axis.set_yscale(scale_of(metric, values))
            draw_lines(axis, {"": Line(costs, values)})
            describe(axis, "comm_rounds", metric.title)
            axis.set_ylim(within(axis, is_share(metric.title, values)))


def _short(name: str) -> str:
    return printable(name if len(name) <= 18 else f"{name[:17]}…").replace("$", r"\$")
