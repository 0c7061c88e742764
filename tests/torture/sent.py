"""Files and words that somebody sent, made to run code: none of it runs, whatever is done with them."""

import io
import json
import os
import pickle
import random
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import fuzz
import numpy as np
import yaml
from forked import Command
from trials import ODD, Failure, finished, unreadable

TRACE, SECRET = "trace", "s3cr3t"


class Pickled:
    """Leaves a trace when it is loaded."""

    def __init__(self, trace: Path):
        self.trace = trace

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return os.mkdir, (str(self.trace),)


@cache
def run_folder() -> Path:
    """A run that has finished, in the folder `out`."""
    folder = Path(tempfile.mkdtemp())
    finished([*fuzz.TINY, "output_dir=out"], folder)
    return folder


def payload(rng: random.Random, trace: Path) -> str:
    argument = rng.choice(
        [str(trace), str(trace.with_name("pickle")), f"touch {trace}", f"__import__('os').mkdir('{trace}')"]
    )
    return rng.choice(ODD["targets"]).format(call=rng.choice(ODD["calls"]), argument=argument.replace("'", '"'))


def nested(key: str, value: str) -> str:
    """YAML of a dotted key."""
    names = key.split(".")
    return "".join(f"{'  ' * depth}{name}:\n" for depth, name in enumerate(names))[:-1] + f" {value}\n"


def by_config(rng: random.Random, cwd: Path, trace: Path) -> tuple[str, list[str]]:
    """A config folder with an experiment, a preset, or a file for a group, which the command chooses."""
    group, key = (
        rng.choice(["experiment", "preset", "algo", "problem", "dataset", "hydra/callbacks", "hydra/launcher"]),
        rng.choice(ODD["places"]),
    )
    header = rng.choice(
        ["# @package _global_\n", "# @package _global_\n", "", "# @package hydra\n", "# @package hydra.callbacks\n"]
    )
    path = cwd / "conf" / group / "sent.yaml"
    path.parent.mkdir(parents=True)
    defaults = rng.choice(
        [
            "",
            "",
            "defaults:\n  - override /hydra/launcher: sent\n",
            "defaults:\n  - /hydra/callbacks@x: sent\n",
            "defaults:\n  - _self_\n",
        ]
    )
    path.write_text(header + defaults + nested(key, payload(rng, trace)))
    chosen = [f"{group}=sent"] if rng.random() < 0.8 else []
    return "fedopt", [*rng.choice([[], ["-m"]]), "--config-dir", "conf", *fuzz.TINY, *chosen, "output_dir=out"]


def by_word(rng: random.Random, cwd: Path, trace: Path) -> tuple[str, list[str]]:
    """An override on the command line, as in a script that was sent."""
    sign, key, call = rng.choice(["", "+", "++"]), rng.choice(ODD["places"]), rng.choice(ODD["calls"])
    word = rng.choice([f"{key}={payload(rng, trace)}", f"{key}._target_={call}", f"{key.replace('.', '/')}=sent"])
    return "fedopt", [*rng.choice([[], ["-m"]]), *fuzz.TINY, sign + word, "output_dir=out"]


def by_claim(rng: random.Random, cwd: Path, trace: Path) -> tuple[str, list[str]]:
    """An experiment whose claims, points or cells are expressions."""
    shutil.copytree(fuzz.prepared() / "done", cwd / "done")
    expression = rng.choice(ODD["attacks"]).format(trace=trace)
    node: dict[str, Any] = {**fuzz.EXPERIMENT["experiment"]}
    place = rng.choice(["claims", "point", "cell"])
    node[place] = (
        [{"says": "x", "measure": expression, "at_most": 1, "paper": "y"}] if place == "claims" else expression
    )
    fuzz.write(cwd / "conf", {**fuzz.EXPERIMENT, "experiment": node})
    return "fedopt-reproduce", ["own/tiny", "--config-dir", "conf", "--output", "done", "--jobs", "1"]


def by_data(rng: random.Random, cwd: Path, trace: Path) -> tuple[str, list[str]]:
    """An .npz with pickled arrays, or a pickle under its name."""
    x, y = np.zeros((8, 3)), np.arange(8) % 2
    path = cwd / "sent.npz"
    arrays: dict[str, Any] = {"x_train": x, "y_train": y, "x_test": x, "y_test": y}
    if rng.random() < 0.3:
        path.write_bytes(pickle.dumps(Pickled(trace)))
    else:
        arrays[rng.choice([*arrays, "more"])] = np.array([Pickled(trace)] * 8, dtype=object)
        np.savez(path, **arrays)
    words = [
        "algo=fedavg",
        "problem=classification",
        "dataset=npz",
        "dataset.path=sent.npz",
        "budget.rounds=1",
        "hardware.threads=1",
    ]
    return "fedopt", [
        *words,
        "partitioner.clients=2",
        "participation.cohort=null",
        "problem.model=linear",
        "output_dir=out",
    ]


def by_run(rng: random.Random, cwd: Path, trace: Path) -> tuple[str, list[str]]:
    """The folder of a run with files that are pickles, archives as torch writes them, or YAML with tags."""
    shutil.copytree(run_folder() / "out", cwd / "out")
    name = rng.choice(["config.yaml", "run.json", "summary.json", "metrics.csv", "checkpoint.safetensors"])
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("archive/data.pkl", pickle.dumps(Pickled(trace)))
    tagged = nested(rng.choice(ODD["places"]), payload(rng, trace)).encode()
    (cwd / "out" / name).write_bytes(
        rng.choice(
            [pickle.dumps(Pickled(trace)), archive.getvalue(), tagged, (cwd / "out" / name).read_bytes() + tagged]
        )
    )
    resume = ("fedopt", [*fuzz.TINY, "budget.rounds=6", "output_dir=out", "resume=true"])
    return rng.choice([resume, resume, ("fedopt-compare", ["out"])])


def odd_value(rng: random.Random) -> Any:
    """A value of JSON, of any type and depth, with texts that a terminal, a shell or OmegaConf would obey."""
    plain = [
        None,
        True,
        0,
        -1,
        1.5,
        10**30,
        "",
        "3",
        "nan",
        "2020-01-01",
        "\x1b[2J\x1b]0;x\x07",
        "\u202e",
        "a\nb",
        "=1+1",
    ]
    plain += [
        "${oc.env:SECRET}",
        "${seed}",
        "${.x}",
        "<script>",
        "$\\input{x}$",
        "x" * 3000,
        "../" * 9,
        "/dev/zero",
        "[red]",
    ]
    depth = rng.choice([0, 0, 0, 1, 2, 40])
    value: Any = rng.choice(plain)
    for _ in range(depth):
        value = rng.choice(
            [[value], {"x": value}, {rng.choice(["round", "torch", "", "a.b"]): value}, [value, value][:2]]
        )
        value = value if len(str(value)) < 50_000 else None
    return value


def by_types(rng: random.Random, cwd: Path, trace: Path) -> tuple[str, list[str]]:
    """Values of other types in the JSON and YAML files of a run, beside a good one."""
    for name in ("good", "out"):
        shutil.copytree(run_folder() / "out", cwd / "runs" / name)
    path = cwd / "runs" / "out" / rng.choice(["run.json", "summary.json", "config.yaml"])
    content = yaml.safe_load(path.read_text())
    for _ in range(rng.choice([1, 1, 3])):
        node = content
        while isinstance(inner := node[rng.choice([*node])], dict) and inner and rng.random() < 0.6:
            node = inner
        node[rng.choice([*node, "stretches", "tuned", "metrics", "algo"])] = odd_value(rng)
    path.write_text(json.dumps(content))
    resume = ("fedopt", [*fuzz.TINY, "budget.rounds=6", "output_dir=runs/out", "resume=true"])
    alone = ("fedopt", ["output_dir=runs/out", "resume=true", "budget.rounds=6"])
    sweep = ("fedopt", ["-m", *fuzz.TINY, "seed=0", "output_dir=runs"])
    return rng.choice([("fedopt-compare", ["runs", "--table", "csv,latex,markdown"]), resume, alone, sweep])


def by_expansion(rng: random.Random, cwd: Path, trace: Path) -> tuple[str, list[str]]:
    """A config folder whose aliases, merge keys or references repeat one another."""
    n, ways = rng.randrange(2, 30), rng.choice([2, 3, 9])
    lines = {
        "aliases": lambda k: f"k{k}: &k{k} [{', '.join([f'*k{k - 1}'] * ways)}]",
        "merge": lambda k: f"k{k}: &k{k} {{<<: *k{k - 1}, a: *k{k - 1}, b: *k{k - 1}}}",
        "texts": lambda k: f"k{k}: {f'${{k{k - 1}}}' * ways}",
        "nodes": lambda k: f"k{k}: {{a: '${{k{k - 1}}}', b: '${{.a}}'}}",
        "nested": lambda k: f"k{k}: ${{k${{seed}}}}",
    }
    first = rng.choice(["k0: &k0 {x: 1}", "k0: &k0 [x]", "k0: &k0 xxxx"])
    body = [first, *map(lines[rng.choice([*lines])], range(1, n))]
    if rng.random() < 0.2:
        rng.shuffle(body)
    group = rng.choice(["experiment", "algo", "problem", "tuned", "dataset", "partitioner"])
    path = cwd / "conf" / group / "sent.yaml"
    path.parent.mkdir(parents=True)
    path.write_text("# @package _global_\n" + "\n".join(body) + "\n")
    chosen = [f"{group}=sent"] if group != "tuned" and rng.random() < 0.7 else []
    return "fedopt", [
        *rng.choice([[], ["--help"], ["-m"]]),
        "--config-dir",
        "conf",
        *fuzz.TINY,
        *chosen,
        "output_dir=out",
    ]


def by_environment(rng: random.Random, cwd: Path, trace: Path) -> tuple[str, list[str]]:
    """A config folder that reads the environment."""
    secret = rng.choice(
        ["${oc.env:SECRET}", "x${oc.env:SECRET}y", "${oc.decode:${oc.env:SECRET}}", "${hydra:runtime.cwd}"]
    )
    key, value = rng.choice(
        [
            ("seed", secret),
            ("output_dir", f"outputs/{secret}"),
            ("from", secret),
            ("preset", secret),
        ]
    )
    path = cwd / "conf" / "experiment" / "sent.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(f"# @package _global_\n{key}: {json.dumps(value)}\n")
    return "fedopt", [*rng.choice([[], ["-m"]]), "--config-dir", "conf", *fuzz.TINY, "experiment=sent"]


def by_kind_of_file(rng: random.Random, cwd: Path, trace: Path) -> tuple[str, list[str]]:
    """A pipe, a device, a folder or a link in place of a file that is read."""
    shutil.copytree(run_folder() / "out", cwd / "out")
    names = ["config.yaml", "run.json", "summary.json", "metrics.csv", "checkpoint.safetensors", ".lock"]
    path = cwd / rng.choice([*(f"out/{name}" for name in names), "owners.txt", "t.csv", "d.npz"])
    path.unlink(missing_ok=True)
    how = rng.choice(["pipe", "device", "folder", "nowhere"])
    if how == "pipe":
        os.mkfifo(path)
    elif how == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if how == "device" else "/nowhere")
    classify = ["algo=fedavg", "problem=classification", "problem.model=linear", "budget.rounds=1", "output_dir=new"]
    words = {
        "owners.txt": ["dataset=digits", "partitioner=by_column", "partitioner.file=owners.txt"],
        "t.csv": ["dataset=csv", "dataset.path=t.csv", "dataset.label=y"],
        "d.npz": ["dataset=npz", "dataset.path=d.npz"],
    }
    if path.name in words:
        return "fedopt", [*classify, *words[path.name]]
    resume = ("fedopt", [*fuzz.TINY, "budget.rounds=6", "output_dir=out", "resume=true"])
    return rng.choice([resume, ("fedopt", ["output_dir=out", "resume=true"]), ("fedopt-compare", ["."])])


def outside(folder: Path, cwd: Path) -> dict[Path, bytes | None]:
    """All files but those of the working directory, and what Python caches of modules."""
    files = [path for path in folder.rglob("*") if not path.is_relative_to(cwd) and "__pycache__" not in path.parts]
    return {path: path.read_bytes() if path.is_file() else None for path in files}


def _prepare(path: str) -> None:
    sys.path.insert(0, path)
    os.environ["SECRET"] = SECRET


WAYS: list[Callable[[random.Random, Path, Path], tuple[str, list[str]]]] = [
    by_config,
    by_word,
    by_claim,
    by_data,
    by_run,
    by_types,
    by_expansion,
    by_environment,
    by_kind_of_file,
]


def trial(rng: random.Random, number: int) -> Failure | None:
    """The ways in turn."""
    with tempfile.TemporaryDirectory() as folder:
        cwd, trace = Path(folder) / "cwd", Path(folder) / TRACE
        (Path(folder) / "path").mkdir()
        (Path(folder) / "path" / "trap.py").write_text(
            f"import os\ndef touch(*_, **__): os.mkdir({str(trace)!r})\nclass Touch:\n    __init__ = __new__ = __call__ = touch\n"
        )
        cwd.mkdir()
        (Path(folder) / "pickle").write_bytes(pickle.dumps(Pickled(trace)))
        (cwd / "sitecustomize.py").write_text(f"import os\nos.mkdir({str(trace)!r})\n")
        program, arguments = WAYS[number % len(WAYS)](rng, cwd, trace)

        before = outside(Path(folder), cwd)
        ended = Command(arguments, cwd, program, lambda: _prepare(f"{folder}/path")).wait(20)
        files = "".join(file.read_text(errors="replace") for file in cwd.glob("conf/**/*.yaml"))
        said = f"exit {ended.code}\n{ended.out[-500:]}{ended.err[-1000:]}{files}"
        if SECRET in said or any(SECRET in str(path) for path in Path(folder).rglob("*")):
            return Failure("secret told", [program, *arguments], said)
        if controls := [c for c in ended.out + ended.err if not (c.isprintable() or c == "\n")]:
            return Failure("escapes", [program, *arguments], f"{controls[:5]} {said}")
        if trace.exists():
            return Failure("code run", [program, *arguments], said)
        if outside(Path(folder), cwd) != before:
            return Failure("outside", [program, *arguments], said)
        if wrong := unreadable(ended):
            return Failure(wrong, [program, *arguments], said)
    return None
