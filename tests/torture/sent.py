"""Files and words that somebody sent, made to run code: none of it runs, whatever is done with them."""

import io
import pickle
import random
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import fuzz
import numpy as np
from forked import Command
from torture import Failure, finished, unreadable

TRACE = "trace"
# What leaves a trace when it is called; the last two are names of a module of the user's own, which is on the path
CALLS = ["builtins.exec", "builtins.eval", "builtins.open", "os.system", "os.mkdir", "subprocess.check_output", "pathlib.Path.touch", "shutil.copy"]
CALLS += ["pandas.read_pickle", "numpy.load", "torch.load", "joblib.load", "pickle.load", "runpy.run_path", "importlib.import_module", "trap.touch", "trap.Touch"]
NODES = [
    "{{_target_: {call}, _args_: ['{argument}'], file: '{argument}', path: '{argument}', mode: w}}",
    "{{_target_: {call}, _partial_: true, _args_: ['{argument}']}}",
    "{{_target_: fedopt.data.partitioners.Iid, clients: {{_target_: {call}, _args_: ['{argument}']}}}}",
    "'${{oc.create:{{_target_: {call}}}}}'",
    "!!python/object/apply:{call} ['{argument}']",
    "!!python/object/new:{call} ['{argument}']",
    "!!python/name:{call}",
    "'${{eval:{call}}}'",
]
PLACES = ["algo", "problem", "dataset", "partitioner", "logger", "hardware", "budget", "eval", "participation", "seed", "output_dir", "algo.alpha"]
PLACES += ["hydra", "hydra.callbacks.x", "hydra.launcher", "hydra.sweeper", "hydra.run", "hydra.job_logging", "hydra.searchpath", "experiment", "new"]
CLAIMS = ["__import__('os').mkdir('{trace}')", "().__class__.__bases__[0].__subclasses__()", "open('{trace}', 'w')", "exec('1')", "line.__class__.__mro__"]
CLAIMS += ["'{{0.__class__}}'.format(line)", "[c for c in ().__class__.__base__.__subclasses__()]", "final.__globals__", "final.__self__", "(lambda: 1)()", "f'{{line.__class__}}'"]


class Pickled:
    """Leaves a trace when it is loaded."""

    def __init__(self, trace: Path):
        self.trace = trace

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        import os

        return os.mkdir, (str(self.trace),)


@cache
def run_folder() -> Path:
    """A run that has finished, in the folder `out`."""
    folder = Path(tempfile.mkdtemp())
    finished([*fuzz.TINY, "output_dir=out"], folder)
    return folder


def trials(rng: random.Random) -> Iterator[Failure | None]:
    """Without end, every way in turn."""
    while True:
        for way in (by_config, by_word, by_claim, by_data, by_run):
            yield trial(rng, way)


def payload(rng: random.Random, trace: Path) -> str:
    argument = rng.choice([str(trace), str(trace.with_name("pickle")), f"touch {trace}", f"__import__('os').mkdir('{trace}')"])
    return rng.choice(NODES).format(call=rng.choice(CALLS), argument=argument.replace("'", '"'))


def nested(key: str, value: str) -> str:
    """YAML of a dotted key."""
    names = key.split(".")
    return "".join(f"{'  ' * depth}{name}:\n" for depth, name in enumerate(names))[:-1] + f" {value}\n"


def by_config(rng: random.Random, cwd: Path, trace: Path) -> tuple[str, list[str]]:
    """A config folder with an experiment, a preset, or a file for a group, which the command chooses."""
    group, key = rng.choice(["experiment", "preset", "algo", "problem", "dataset", "hydra/callbacks", "hydra/launcher"]), rng.choice(PLACES)
    header = rng.choice(["# @package _global_\n", "# @package _global_\n", "", "# @package hydra\n", "# @package hydra.callbacks\n"])
    path = cwd / "conf" / group / "sent.yaml"
    path.parent.mkdir(parents=True)
    defaults = rng.choice(["", "", "defaults:\n  - override /hydra/launcher: sent\n", "defaults:\n  - /hydra/callbacks@x: sent\n", "defaults:\n  - _self_\n"])
    path.write_text(header + defaults + nested(key, payload(rng, trace)))
    chosen = [f"{group}=sent"] if rng.random() < 0.8 else []
    return "fedopt", [*rng.choice([[], ["-m"]]), "--config-dir", "conf", *fuzz.TINY, *chosen, "output_dir=out"]


def by_word(rng: random.Random, cwd: Path, trace: Path) -> tuple[str, list[str]]:
    """An override on the command line, as in a script that was sent."""
    sign, key = rng.choice(["", "+", "++"]), rng.choice(PLACES)
    word = rng.choice([f"{key}={payload(rng, trace)}", f"{key}._target_={rng.choice(CALLS)}", f"{key.replace('.', '/')}=sent"])
    return "fedopt", [*rng.choice([[], ["-m"]]), *fuzz.TINY, sign + word, "output_dir=out"]


def by_claim(rng: random.Random, cwd: Path, trace: Path) -> tuple[str, list[str]]:
    """An experiment whose claims, points or cells are expressions."""
    shutil.copytree(fuzz.prepared() / "done", cwd / "done")
    expression = rng.choice(CLAIMS).format(trace=trace)
    node = {**fuzz.EXPERIMENT["experiment"]}
    place = rng.choice(["claims", "point", "cell"])
    node[place] = [{"says": "x", "measure": expression, "at_most": 1, "paper": "y"}] if place == "claims" else expression
    fuzz.write(cwd / "conf", {**fuzz.EXPERIMENT, "experiment": node})
    return "fedopt-reproduce", ["own/tiny", "--config-dir", "conf", "--output", "done", "--jobs", "1"]


def by_data(rng: random.Random, cwd: Path, trace: Path) -> tuple[str, list[str]]:
    """An .npz with pickled arrays, or a pickle under its name."""
    path, arrays = cwd / "sent.npz", {"x_train": np.zeros((8, 3)), "y_train": np.arange(8) % 2, "x_test": np.zeros((8, 3)), "y_test": np.arange(8) % 2}
    if rng.random() < 0.3:
        path.write_bytes(pickle.dumps(Pickled(trace)))
    else:
        arrays[rng.choice([*arrays, "more"])] = np.array([Pickled(trace)] * 8, dtype=object)
        np.savez(path, **arrays)
    words = ["algo=fedavg", "problem=classification", "dataset=npz", "dataset.path=sent.npz", "budget.rounds=1", "hardware.threads=1"]
    return "fedopt", [*words, "partitioner.clients=2", "participation.cohort=null", "problem.model=linear", "output_dir=out"]


def by_run(rng: random.Random, cwd: Path, trace: Path) -> tuple[str, list[str]]:
    """The folder of a run with files that are pickles, archives as torch writes them, or YAML with tags."""
    shutil.copytree(run_folder() / "out", cwd / "out")
    name = rng.choice(["config.yaml", "run.json", "summary.json", "metrics.csv", "checkpoint.safetensors"])
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("archive/data.pkl", pickle.dumps(Pickled(trace)))
    tagged = nested(rng.choice(PLACES), payload(rng, trace)).encode()
    (cwd / "out" / name).write_bytes(rng.choice([pickle.dumps(Pickled(trace)), archive.getvalue(), tagged, (cwd / "out" / name).read_bytes() + tagged]))
    resume = ("fedopt", [*fuzz.TINY, "budget.rounds=6", "output_dir=out", "resume=true"])
    return rng.choice([resume, resume, ("fedopt-compare", ["out"])])


def trial(rng: random.Random, way: Callable[[random.Random, Path, Path], tuple[str, list[str]]]) -> Failure | None:
    with tempfile.TemporaryDirectory() as folder:
        cwd, trace = Path(folder) / "cwd", Path(folder) / TRACE
        (Path(folder) / "path").mkdir()
        (Path(folder) / "path" / "trap.py").write_text(
            f"import os\ndef touch(*_, **__): os.mkdir({str(trace)!r})\nclass Touch:\n    __init__ = __new__ = __call__ = touch\n"
        )
        cwd.mkdir()
        (Path(folder) / "pickle").write_bytes(pickle.dumps(Pickled(trace)))
        (cwd / "sitecustomize.py").write_text(f"import os\nos.mkdir({str(trace)!r})\n")
        program, arguments = way(rng, cwd, trace)

        def path() -> None:
            import sys

            sys.path.insert(0, str(Path(folder) / "path"))

        before = {file for file in Path(folder).rglob("*") if not file.is_relative_to(cwd)}
        ended = Command(arguments, cwd, program, path).wait(20)
        files = "".join(file.read_text(errors="replace") for file in cwd.glob("conf/**/*.yaml"))
        said = f"exit {ended.code}\n{ended.out[-500:]}{ended.err[-1000:]}{files}"
        if trace.exists() or {file for file in Path(folder).rglob("*") if not file.is_relative_to(cwd)} != before:
            caches = {file for file in Path(folder).rglob("*") if "__pycache__" in file.parts}
            if trace.exists() or {file for file in Path(folder).rglob("*") if not file.is_relative_to(cwd)} - caches != before:
                return Failure("code run", [program, *arguments], said)
        if wrong := unreadable(ended):
            return Failure(wrong, [program, *arguments], said)
    return None
