"""Runs of a sweep that are computed together."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import TypeVar

from fedopt.config import Composed
from fedopt.console import Bar
from fedopt.jobs.job import Job
from fedopt.jobs.local import Done, Local
from fedopt.results import RunFolder

Name = TypeVar("Name", bound=Hashable)


def alike(configs: Mapping[Name, Composed]) -> list[list[Name]]:
    """Return groups of configurations that differ only in keys of one algorithm, and in the place of the run.

    Args:
        configs: name -> configuration. The groups consist of names.
    """
    groups = dict[str, list[Name]]()
    for name, one in configs.items():
        shared = {key: node for key, node in one.nodes.items() if key not in ("algo", "output_dir")}
        groups.setdefault(repr((one.nodes["algo"]["_target_"], shared)), []).append(name)
    return [*groups.values()]


@dataclass(frozen=True)
class AtOnce(Local):
    """A `Launcher` that computes runs together if they differ only in real numbers of the algorithm.

    `Local` does all others: runs that have begun before, runs with keep=best, and runs that cannot be computed
    together. Groups of runs are computed one after the other, in this process.
    """

    def __call__(self, jobs: Sequence[Job], bar: Bar) -> Iterator[Done]:
        from fedopt.running import at_once

        left = dict.fromkeys(jobs)
        begun = {job for job in jobs if RunFolder(job.folder).used or job.composed.nodes["keep"] == "best"}
        for group in alike({job: job.composed for job in jobs if job not in begun}):
            started = monotonic()
            done = at_once([job.composed for job in group], bar.move, fallback=False) if len(group) > 1 else []
            together = {job: one for job, one in zip(group, done, strict=bool(done)) if one.at_end}
            seconds = (monotonic() - started) / max(len(together), 1)
            for job, one in together.items():
                del left[job]
                yield job, replace(job, computed=one).do(processes=1, bar=bar), seconds
        yield from super().__call__([*left], bar)
