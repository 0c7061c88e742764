"""Odd commands: every key of every config with values of every kind, alone and in pairs, other words, flags and sweeps."""

import atexit
import random
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from forked import Command, Ended
from trials import LONGEST, ODD, Failure

from fedopt.config.files import GROUPS, flat
from fedopt.testing import harness

VALUES = ODD["numbers"] + ODD["texts"] + ODD["nodes"] + ODD["special"] + ["\udcff", "x" * 300, "9" * 5000, "[" * 300]
WORDS = [*ODD["words"], "\udcff"]
PLAIN = [*ODD["plain"], "x" * 300, *ODD["expressions"], "+".join(["1"] * 3000)]
TINY = [
    "algo=fedmsa",
    "problem=mco",
    "problem.examples=40",
    "budget.rounds=3",
    "hardware.threads=1",
]  # for FedMSA on mco
BASE = ["budget.rounds=2", "hardware.threads=1", "partitioner.clients=4", "participation.cohort=null", "output_dir=out"]
EXPERIMENT: dict[str, Any] = {
    "defaults": [{"override /algo": "fedmsa"}, {"override /problem": "mco"}],
    "problem": {"examples": 40},
    "budget": {"rounds": 3},
    "hardware": {"threads": 1},
    "experiment": {
        "paper": "own",
        "title": "tiny",
        "minutes": 1,
        "seeds": 2,
        "x": "round",
        "y": ["distance", "objective"],
        "until": 3,
        "scale": "linear",
        "panels": {"both": ["of K"]},
        "constants": {"floor": 0.5},
        "lines": {"K = 1": "algo.K=1", "K = 2": "algo.K=2"},
        "points": {"of K": {1: "K = 1", 2: "K = 2"}},
        "point": "final(line)",
        "table": {"row": {"one": ["K = 1", 0.5], "two": ["K = 2", None]}},
        "cell": "final(line)",
        "claims": [
            {"says": "small", "measure": "final('K = 1', 'distance')", "at_most": 10, "paper": "10"},
            {"says": "ordered", "measure": "final('K = 1') - final('K = 2')", "at_least": -100, "paper": "more"},
        ],
    },
}


@cache
def keys(algo: str, problem: str) -> list[str]:
    """All dotted keys of the config of a pair, and the nodes above them."""
    leaves = flat(harness.config(f"algo={algo}", f"problem={problem}", *harness.contract_overrides(algo, problem)))
    nodes = {leaf.rpartition(".")[0] for leaf in leaves} - {""}
    return sorted({*leaves, *nodes, *GROUPS})


def command(rng: random.Random) -> list[str]:
    """One command, most likely wrong."""
    algo, problem = rng.choice(harness.pairs())
    words = [
        f"algo={algo}",
        f"problem={problem}",
        *harness.contract_overrides(algo, problem),
        *harness.LESS.get(algo, []),
        *BASE,
    ]

    def odd() -> str:
        return f"{rng.choice(keys(algo, problem))}={rng.choice(VALUES)}"

    kind = rng.random()
    if kind < 0.5:
        return [*words, odd()]
    if kind < 0.8:
        return [*words, odd(), odd()]
    if kind < 0.87:
        return [*words, rng.choice(WORDS)]
    if kind < 0.92:
        sign = rng.choice(["+", "++", "~"])
        return [*words, sign + (odd() if sign != "~" else odd().partition("=")[0])]
    if kind < 0.96:
        flags = rng.choice(ODD["flags"]).split(" ")
        at = rng.randrange(len(words) + 1)
        return [*words[:at], *flags, *words[at:]]
    return ["-m", *words, odd(), f"seed={rng.choice(['0,1', '0,x', 'range(2)', 'null,0'])}"]


@cache
def prepared() -> Path:
    """A folder with runs to compare, `runs`, and with those of the experiment `own/tiny`, `done`; it is not changed."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    write(folder / "conf", EXPERIMENT)
    sweep = ["-m", *TINY, "seed=0,1", "algo.K=1,2", "output_dir=runs"]
    for program, words in (
        ("fedopt", sweep),
        ("fedopt-reproduce", ["own/tiny", "--config-dir", "conf", "--output", "done", "--jobs", "1"]),
    ):
        ended = Command(words, folder, program).wait(120)
        assert ended.code == 0, ended
    return folder


def write(conf: Path, node: dict[str, Any]) -> Path:
    """The file of the experiment own/tiny in a config folder."""
    path = conf / "experiment" / "own" / "tiny.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("# @package _global_\n" + yaml.safe_dump(node, sort_keys=False))
    return path


def compare(rng: random.Random) -> list[str]:
    """A command of fedopt-compare."""
    words = ["runs", "runs", str(prepared() / "runs"), "nowhere", "canary", "."][rng.randrange(6) :][:1]
    words = [str(prepared() / "runs")] if words == ["runs"] else words
    for _ in range(rng.choice([1, 1, 2, 3])):
        flag = rng.choice(["--metric", "--x", "--target", "--group-by", "--out", "--nope", "--metric", "--group-by"])
        words += [
            flag,
            rng.choice(
                [*VALUES, "distance", "objective", "algo.K", "seed", "algo,algo.K", "bytes", "train_seconds", "round"]
            ),
        ]
    return words


def mutated(rng: random.Random, node: Any, values: list[Any]) -> Any:
    """A copy of a nested node in which something is odd."""
    if isinstance(node, dict) and node and rng.random() < 0.9:
        key = rng.choice([*node])
        kind = rng.random()
        if kind < 0.1:
            return {k: v for k, v in node.items() if k != key}
        if kind < 0.15:
            return {**node, rng.choice(["nope", 1, "", "a b"]): rng.choice(values)}
        return {**node, key: mutated(rng, node[key], values)}
    if isinstance(node, list) and node and rng.random() < 0.9:
        at = rng.randrange(len(node))
        return [*node[:at], mutated(rng, node[at], values), *node[at + 1 :]]
    return rng.choice(values)


def experiment(rng: random.Random, cwd: Path) -> list[str]:
    """An odd experiment file, and a command that reads it, checks it, or judges the runs that are done by it."""
    node = mutated(rng, EXPERIMENT, PLAIN)
    path = write(cwd / "conf", mutated(rng, node, PLAIN) if rng.random() < 0.3 else node)
    if rng.random() < 0.2:
        text = bytearray(path.read_bytes())
        for _ in range(rng.choice([1, 3])):
            text[rng.randrange(len(text))] = rng.choice(b"\x00\xff:{}[]'\n\t &*!%@`#-")
        path.write_bytes(text)
    if rng.random() < 0.2:
        return ["--config-dir", "conf", "experiment=own/tiny", "output_dir=out"]
    return [
        "own/tiny",
        "--config-dir",
        "conf",
        "--output",
        "done",
        "--jobs",
        "1",
        *rng.choice([[], [], [], ["--list"], ["--seeds", "0"]]),
    ]


def trial(rng: random.Random, number: int, seconds: float = 12) -> Failure | None:
    """Run a command in a folder of its own and say what is wrong with how it ends."""
    with tempfile.TemporaryDirectory() as folder:
        cwd = Path(folder) / "a" / "b"
        cwd.mkdir(parents=True)
        (cwd / "canary").write_text("sings")
        kind = rng.random()
        if kind < 0.8:
            program, arguments = "fedopt", command(rng)
        elif kind < 0.9:
            program, arguments = "fedopt-compare", compare(rng)
        else:
            shutil.copytree(prepared() / "done", cwd / "done")
            arguments = experiment(rng, cwd)
            program = "fedopt" if "output_dir=out" in arguments else "fedopt-reproduce"
        before = {path.relative_to(cwd) for path in cwd.rglob("*")}
        ended = Command(arguments, cwd, program).wait(seconds)
        wrong = _wrong(program, arguments, ended, cwd, before)
        if not wrong:
            return None
        sent = "".join(path.read_text(errors="replace") for path in cwd.glob("conf/*/*/*.yaml"))
        said = f"exit {ended.code} after {ended.seconds:.1f} s\n{ended.out[-500:]}{ended.err[-1500:]}{sent}"
        return Failure(wrong, [program, *arguments], said)


def _wrong(program: str, arguments: list[str], ended: Ended, cwd: Path, before: set[Path]) -> str | None:
    said = ended.out + ended.err
    if ended.hung:
        return "hangs"
    if "Traceback (most" in said:
        return "traceback"
    if "is a bug" in said:
        return "'this is a bug'"
    if "Warning" in said:
        return "warning"
    may_fail = (
        {0, 1, 2, 130} if program == "fedopt-reproduce" or {"-m", "--multirun"} & {*arguments} else {0, 2, 3, 130}
    )
    if ended.code not in may_fail:
        return "other exit code"
    written = {path.relative_to(cwd) for path in cwd.rglob("*")} - before
    begun = any(path.name == "run.json" for path in written)
    if ended.code == 2 and not begun:
        lines = ended.err.strip("\n").split("\n")
        skipped = [line for line in lines if "skipped" in line] if program == "fedopt-compare" else []
        if len(lines) - len(skipped) != 1 or not lines[-1].startswith("fedopt: ") or len(lines[-1]) > LONGEST:
            return "not one line"
        if program == "fedopt" and (ended.out.strip() or written):
            return "half-written"
    asked = any("../x" in word for word in arguments)
    if (cwd / "canary").read_text() != "sings" or len(list(cwd.parent.iterdir())) > 1 + asked:
        return "outside"
    return None
