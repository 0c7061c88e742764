"""Runs from Python: the command's folder, early stops, variables by name, networks that take raw images, the best evaluation."""

import html
import inspect
import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.cases import few
from support.command import ROOT, TINY, fedopt
from torch.nn import functional as F

import fedopt as api
from fedopt.commands import compare
from fedopt.config.composed import compose
from fedopt.config.overrides import overrides_of, parsed
from fedopt.console import heard
from fedopt.data.datasets import Digits
from fedopt.errors import UserError
from fedopt.problems.classes import named
from fedopt.results import checkpoint
from fedopt.running import loop
from fedopt.running.hardware import restored
from fedopt.testing.harness import small

SHORT = [
    "dataset=digits",
    "partitioner=iid",
    "partitioner.clients=4",
    "participation.cohort=null",
    "hardware.threads=1",
]
SHORT += ["budget.rounds=3", "budget.comm_rounds=null", "eval.target=null"]
WAVERING = [
    *SHORT,
    "algo=fedavg",
    "problem=classification",
    "problem.model=linear",
    "algo.eta=3",
    "algo.tau=2",
    "algo.B=8",
]
BEST = [*WAVERING, "budget.rounds=12", "eval.every=1", "eval.metric=test_accuracy", "keep=best"]


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


def without_time(run: api.Result) -> pd.DataFrame:
    return run.metrics.drop(columns="train_seconds")


# The run that the command makes


def test_the_folder_is_that_of_the_command(monkeypatch, capsys, tmp_path):
    """The same name and the same files; a further run gets the next number, and words are read as a shell does."""
    words = [*TINY, "seed=3", "algo.alpha={kind: inverse_power, initial: 0.1, power: 0.5}"]
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "there")
    assert fedopt(monkeypatch, capsys, *words).code == 0
    (command,) = tmp_path.glob("there/outputs/*/*")
    monkeypatch.chdir(tmp_path)
    run = api.run(words, quiet=True)
    assert run.folder == tmp_path / command.relative_to(tmp_path / "there")
    assert {path.name for path in run.folder.iterdir()} == {path.name for path in command.iterdir()}
    assert (run.folder / "config.yaml").read_bytes() == (command / "config.yaml").read_bytes()
    pd.testing.assert_frame_equal(without_time(run), without_time(api.load(command)))
    cards = [json.loads((folder / "run.json").read_text()) for folder in (run.folder, command)]
    assert cards[0]["overrides"] == cards[1]["overrides"] == words
    assert cards[0]["chosen"] == cards[1]["chosen"]
    text = " ".join(TINY) + " seed=3 'algo.alpha={kind: inverse_power, initial: 0.1, power: 0.5}'"
    assert api.run(text, quiet=True).folder.name == f"{run.folder.name}-2"


def test_what_a_run_says_of_itself():
    run = api.run([*TINY, "eval.every=2"], quiet=True, output_dir="a run, {with} 'odd' ${name}=1")
    assert run.folder.name == "a run, {with} 'odd' ${name}=1"
    assert run.status == "finished"
    assert list(run.metrics["round"]) == [0, 2, 4]
    names = ("distance", "objective", "suboptimality")
    assert run.final == {name: pytest.approx(run.metrics[name].iloc[-1]) for name in names}
    assert run.best == {name: pytest.approx(run.metrics[name].min()) for name in names}
    assert run.config["budget"]["rounds"] == 4


def test_nothing_of_the_process_changes(monkeypatch, capsys):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    environment = dict(os.environ)
    before = torch.get_num_threads(), plt.get_backend(), signal.getsignal(signal.SIGINT), plt.get_fignums()
    api.run([*TINY, "hardware.threads=2", "hardware.deterministic=true"], quiet=True)
    after = torch.get_num_threads(), plt.get_backend(), signal.getsignal(signal.SIGINT), plt.get_fignums()
    assert after == before
    changed = {name for name, _ in os.environ.items() ^ environment.items()}
    assert changed <= {"TORCHINDUCTOR_CACHE_DIR"}  # which torch sets
    assert not torch.are_deterministic_algorithms_enabled()
    assert capsys.readouterr() == ("", "")


def test_modes_of_the_process_change_no_number(tmp_path):
    """A run has its own, in reading back as well, and leaves those that it found."""
    words = "algo=fedavg problem=classification dataset=digits problem.model=support.networks.Normed partitioner=iid "
    words += "partitioner.clients=3 participation.cohort=null budget.rounds=2 hardware.threads=1"
    wanted = api.run(words, output_dir=tmp_path / "wanted", quiet=True)
    modes = [torch.get_default_dtype, torch.get_default_device, torch.is_grad_enabled, torch.is_inference_mode_enabled]
    modes += [np.geterr, torch.get_float32_matmul_precision, lambda: torch.is_autocast_enabled("cpu")]
    with restored():
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("meta")
        torch.set_float32_matmul_precision("medium")
        with np.errstate(all="raise"), torch.autocast("cpu"), torch.inference_mode():
            before = [mode() for mode in modes]
            found = api.run(words, output_dir=tmp_path / "found", quiet=True)
            model = found.model()
            assert [mode() for mode in modes] == before
        torch.set_default_device(None)
        with torch.device("meta"), pytest.raises(UserError, match=r"with torch.device.* sets torch.set_default_device"):
            api.run(words, output_dir=tmp_path / "refused", quiet=True)
    assert found.final == wanted.final
    for one, other in zip(model.parameters(), wanted.model().parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_file_that_changes_modes_is_refused():
    with restored(), pytest.raises(UserError, match=r"sets torch\.set_default_dtype"):
        small("fedavg", "classification", "problem.model=support.networks.Doubling")


@pytest.mark.parametrize(
    ("words", "fragment"),
    [
        ("algo=fedmas", "did you mean fedmsa"),
        ("algo=fedmsa problem=mco algo.alhpa=1", "did you mean algo.alpha"),
        ("algo.K='2", r"algo\.K='2: cannot"),
        (["seed=1,2"], "several values"),
        (["-m", "seed=1"], "override"),
        ("algo=fedavg problem=mco", "do not fit"),
        ("algo=fedmsa problem=mco eval.metric=distanec eval.target=1", "did you mean distance"),
    ],
)
def test_mistakes(words, fragment, tmp_path):
    with pytest.raises(api.UserError, match=fragment):
        api.run(words)
    assert not list(tmp_path.iterdir())


ODD = [
    *(
        None,
        True,
        False,
        0,
        -3,
        1e-05,
        1.5e22,
        0.1,
        float("inf"),
        "",
        "a,b",
        "a b",
        "null",
        "1",
        "1e3",
        "x=1",
        "it's",
        'say "x"',
    ),
    *("${seed}", "\\${x}", "[1,2]", "{a: 1}", "C:\\x\\", "two\nlines", "$x", "ä", "a:b", "(c)", " blank ", "#no", "%"),
    *([1, 2.5, "a,b"], [[1], [2, "x"]], [], {"kind": "inverse_power", "initial": 0.1}, {"a": {"b": [None, "c,d"]}}),
]


@pytest.mark.parametrize("value", few(ODD, lambda value: ODD.index(value) % 5 == 0), ids=repr)
def test_values_of_python_are_what_the_config_has(value):
    (word,) = overrides_of({"problem.note": value})
    assert compose(["algo=fedmsa", "problem=mco", f"+{word}"]).nodes["problem"]["note"] == value
    alternatives = overrides_of({"+problem.note": [value, "other"]}, sweep=True)
    (override,) = parsed(alternatives)
    assert override.is_sweep_override()
    assert len(list(override.sweep_string_iterator())) == 2


def test_values_of_other_types():
    values = {"algo.eta": np.float32(0.5), "seed": np.int64(3), "eval.at": np.arange(3), "problem.widths": (4, 5)}
    assert overrides_of(values) == ["algo.eta=0.5", "seed=3", "eval.at=[0,1,2]", "problem.widths=[4,5]"]
    assert overrides_of({"dataset.path": Path("a b/c.npz"), "x": torch.tensor(2.0)}) == [
        "dataset.path='a b/c.npz'",
        "x=2.0",
    ]
    assert overrides_of({"seed": range(3), "eval.at": [[1, 2]]}, sweep=True) == ["seed=0,1,2", "eval.at=[1,2]"]
    assert overrides_of({"budget": {"rounds": 5, "bytes": None}}) == ["budget.rounds=5", "budget.bytes=null"]
    for wrong in ({"seed": {1}}, {"seed": object()}, {3: 1}, {"a=b": 1}, {"algo.x": {"a b": 1}}, {"~seed": 1}):
        with pytest.raises(api.UserError, match=r"is not a key|must be a"):
            overrides_of(wrong)
    with pytest.raises(api.UserError, match=r"seed=\[\]"):
        overrides_of({"seed": []}, sweep=True)


def test_keyword_arguments_and_dicts():
    """Give the run that the words give; keyword arguments win over what stands before them."""
    config = {
        "algo": "fedmsa",
        "problem": "mco",
        "problem.examples": 40,
        "budget.rounds": 4,
        "algo.K": 2,
        "hardware": {"threads": 1},
    }
    runs = [
        api.run(["algo=fedmsa", *TINY, "algo.K=2"], quiet=True, output_dir="words"),
        api.run(config | {"algo.K": 7}, quiet=True, output_dir=Path("dict"), **{"algo.K": 2}),
        api.run(algo="fedmsa", problem="mco", **{key: config[key] for key in config if "." in key}, quiet=True),
    ]
    for run in runs[1:]:
        pd.testing.assert_frame_equal(without_time(run), without_time(runs[0]))
    assert api.load("dict").config["algo"]["K"] == 2
    with pytest.raises(api.UserError, match=r"did you mean algo\.alpha"):
        api.run(algo="fedmsa", problem="mco", **{"algo.alhpa": 0.1})


# Sweeps


def test_sweep(tmp_path, capsys):
    """All combinations in their order, in the folders of the command; what is there is not run again."""
    runs = api.sweep(TINY, seed=range(2), **{"algo.K": [1, 5]}, quiet=True)
    assert [(run.config["seed"], run.config["algo"]["K"]) for run in runs] == [(0, 1), (0, 5), (1, 1), (1, 5)]
    assert {run.status for run in runs} == {"finished"}
    assert capsys.readouterr() == ("", "")
    sweep_folder = runs[0].folder.parent
    assert sweep_folder.is_relative_to(tmp_path / "outputs" / "multirun")
    assert len(pd.read_csv(sweep_folder / "sweep.csv")) == 4
    times = [run.folder.joinpath("metrics.csv").stat().st_mtime_ns for run in runs]
    again = api.sweep([*TINY, "seed=0,1", "algo.K=1,5"])
    assert [run.folder for run in again] == [run.folder for run in runs]
    assert [run.folder.joinpath("metrics.csv").stat().st_mtime_ns for run in again] == times
    assert capsys.readouterr().out.count("already done") == 4
    assert list(api.compare(runs, metric="distance").table["runs"]) == [2, 2]


def test_sweep_of_configs_with_lists():
    configs = [{"algo": "fedmsa", "problem": "mco"}, {"algo": "fedmsa", "problem": "quadratic_compositional"}]
    runs = api.sweep(configs, seed=[0, 1], output_dir="both", **{"budget.rounds": 2, "eval.at": [[1]]}, quiet=True)
    assert [Path(run.config["problem"]["_target_"]).suffix for run in runs] == [".Mco"] * 2 + [
        ".QuadraticCompositional"
    ] * 2
    assert all(run.config["eval"]["at"] == [1] for run in runs)
    assert {run.folder.parent.name for run in runs} == {"both"}


def test_sweeps_that_go_wrong(tmp_path):
    for wrong, fragment in (
        ({"jobs": 0}, "jobs=0"),
        ({"algo": ["fedmsa", "fedmas"]}, "did you mean"),
        ({"seed": []}, "no values"),
    ):
        with pytest.raises(api.UserError, match=fragment):
            api.sweep(TINY, quiet=True, **wrong)
    with pytest.raises(api.UserError, match="hydra"):
        api.sweep([*TINY, "hydra/launcher=joblib"], quiet=True)
    assert not list(tmp_path.iterdir())
    api.sweep(TINY, seed=[0, 1], output_dir="here", quiet=True)
    config = next(tmp_path.glob("here/*/config.yaml"))
    config.write_text(config.read_text().replace("examples: 40", "examples: 50"))
    with pytest.raises(api.UserError, match="1 of 2 runs could not be started"):
        api.sweep(TINY, seed=[0, 1], output_dir="here", quiet=True)


def test_sweep_in_a_thread_and_interrupted(monkeypatch):
    with ThreadPoolExecutor(1) as pool:
        (run,) = pool.submit(api.sweep, TINY, quiet=True).result(timeout=600)
    assert run.status == "finished"
    spent = loop.share_spent
    monkeypatch.setattr(loop, "share_spent", lambda *of: os.kill(os.getpid(), signal.SIGINT) or spent(*of))
    with pytest.raises(KeyboardInterrupt):
        api.sweep(TINY, seed=[5, 6], output_dir="pressed", quiet=True)
    (run,) = map(api.load, Path("pressed").glob("*/"))
    assert (run.status, run.summary["round"]) == ("interrupted", 0)


@pytest.mark.full
def test_sweep_in_a_script_without_a_guard(tmp_path):
    """Its processes do not run the script again, see the environment of now, and are at the same place.

    What is set for them alone is not left in the environment.
    """
    (tmp_path / "else").mkdir()
    own = "import os\nfrom fedopt.problems.mco import Mco\nprint('spins', os.environ.get('GOMP_SPINCOUNT'))\n"
    (tmp_path / "own.py").write_text(own)
    script = tmp_path / "script.py"
    script.write_text(
        "import os\nimport fedopt\nprint('began')\nos.chdir('else')\nos.environ['FEDOPT_PICTURES'] = '0'\n"
        f"words = {[*TINY, 'problem._target_=own.Mco']}\n"
        "runs = fedopt.sweep(words, seed=[0, 1, 2], jobs=2)\nprint('statuses', [run.status for run in runs])\n"
        "print('left', os.environ.get('GOMP_SPINCOUNT'))\n"
    )
    env = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run([sys.executable, script], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("began") == 1
    assert "statuses ['finished', 'finished', 'finished']" in done.stdout
    begun, *of_processes, left = re.findall("(?:spins|left) .*", done.stdout)  # a process may do two of the runs
    assert (begun, {*of_processes}, left) == ("spins None", {"spins 0"}, "left None")
    assert len(list(tmp_path.glob("else/outputs/multirun/*/*/metrics.csv"))) == 3


def test_folders_of_ones_own(tmp_path):
    (tmp_path / "conf" / "algo").mkdir(parents=True)
    (tmp_path / "conf" / "algo" / "mine.yaml").write_text(
        "# @package _global_\ndefaults: [fedmsa, _self_]\nalgo: {K: 7}\n"
    )
    for folders in ("conf", [tmp_path / "conf"]):
        run = api.run([*TINY, "algo=mine", "preset=none"], folders=folders, quiet=True)
        assert run.config["algo"]["K"] == 7
    with pytest.raises(api.UserError, match="did you mean mine"):
        api.run("algo=mien problem=mco", folders="conf")


# Stops


def test_on_eval_stops_and_the_run_goes_on():
    """With the rows of metrics.csv, without another round; the rows of both parts are those of an undisturbed run."""
    rows = []
    stopped = api.run([*TINY, "eval.every=2"], on_eval=lambda row: rows.append(row) or row["round"] == 2, quiet=True)
    assert (stopped.status, stopped.summary["round"]) == ("stopped", 2)
    pd.testing.assert_frame_equal(pd.DataFrame(rows), stopped.metrics, check_dtype=False)
    assert list(stopped.metrics["round"]) == [0, 2]
    more = api.run([*TINY, "eval.every=2", "resume=true"], on_eval=rows.append, output_dir=stopped.folder, quiet=True)
    assert [row["round"] for row in rows] == [0, 2, 4]
    whole = api.run([*TINY, "eval.every=2"], output_dir="whole", quiet=True)
    assert (more.status, stopped.status) == ("finished", "finished")
    pd.testing.assert_frame_equal(without_time(more), without_time(whole))


def test_a_run_that_begins_where_another_ended():
    """Given as a run, as its folder, or in the words, whatever commas and equals signs the folder has."""
    first = api.run([*TINY, "algo.K=2"], quiet=True, output_dir="K=2,seed=0")
    text = " ".join([*TINY, "budget.rounds=6", "algo.alpha=0.001"])
    ways = [{"start": first}, {"start": str(first.folder)}, {"overrides": f"{text} from={first.folder}"}]
    ends = [api.run(**({"overrides": text} | way), output_dir=f"run{n}", quiet=True) for n, way in enumerate(ways)]
    assert [list(run.metrics["round"]) for run in ends] == [[4, 5, 6]] * 3
    assert ends[0].final == ends[1].final == ends[2].final


def test_a_run_whose_process_is_gone():
    """Says running in its folder, and is shown as interrupted."""
    run = api.run(TINY, quiet=True)
    said = []
    summary = run.folder / "summary.json"
    summary.write_text('{"status": "running"}')
    assert run.status == "interrupted"
    more = api.run(
        [*TINY, "budget.rounds=5", "resume=true"], on_eval=lambda _: said.append(run.status), output_dir=run.folder
    )
    assert set(said) == {"running"}
    assert more.status == "finished"


class Mine:
    """As a method of one's own."""


def test_mistakes_from_python():
    with pytest.raises(api.UserError, match=r"^algo=.*: several values need a sweep; use fedopt.sweep$"):
        api.run(algo=["fedmsa", "soba"], problem="mco")
    with pytest.raises(api.UserError, match=r"^seed=.*; a sweep takes several values, .*in Python fedopt.sweep"):
        api.run(TINY, seed=[0, 1])
    for algo in (Mine, Mine()):
        with pytest.raises(api.UserError, match=r"^algo=.*Mine.*: must be a number, a string"):
            api.run(algo=algo, problem="mco")
    with pytest.raises(api.UserError, match="must be a string or a list of strings"):
        api.run([1])
    with pytest.raises(api.UserError, match="on_eval=3: must be a function"):
        api.run(TINY, on_eval=3)
    with pytest.raises(api.UserError, match="no runs to compare"):
        api.compare([])
    assert {"run", "load", "compare", "UserError"} <= {*dir(api)}


def test_what_on_eval_raises_is_raised():
    """The run has failed; before its first round, its folder is free for the next one."""

    def failing(at, row):
        if row["round"] == at:
            raise ZeroDivisionError("mine")

    for at in (0, 1):
        with pytest.raises(ZeroDivisionError, match="mine"):
            api.run(TINY, on_eval=partial(failing, at), output_dir="run", quiet=True)
    assert api.load("run").status == "failed"
    assert api.run([*TINY, "resume=true"], output_dir="run", quiet=True).status == "finished"


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c(times):
    """The first ends the run after its round, and not the program; the second at once."""

    def pressed(row):
        for _ in range(times if row["round"] == 1 else 0):
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        api.run(TINY, on_eval=pressed, output_dir="run", quiet=True)
    run = api.load("run")
    assert list(run.metrics["round"]) == [0, 1]
    if times == 1:  # the checkpoint is of this round
        assert (run.status, run.summary["round"]) == ("interrupted", 1)
        run = api.run([*TINY, "resume=true"], on_eval=pressed, output_dir="run", quiet=True)
        assert (run.status, list(run.metrics["round"])) == ("finished", [0, 1, 2, 3, 4])
    with pytest.raises(api.UserError, match=r"interrupt: was removed; fedopt\.run raises KeyboardInterrupt"):
        api.run(TINY, interrupt="return")


def test_in_several_threads_at_once(tmp_path):
    """None of them takes what another draws for a mistake, and the numbers are those of a run alone."""
    words = ["algo=fedavg", "problem=classification", "dataset=digits", "partitioner=dirichlet", "budget.rounds=2"]
    alone = api.run(words, output_dir=tmp_path / "alone", quiet=True).final
    with ThreadPoolExecutor(4) as pool:
        runs = [pool.submit(api.run, words, output_dir=tmp_path / str(k), quiet=True) for k in range(6)]
        assert [run.result(timeout=600).final for run in runs] == [alone] * 6
        models = [pool.submit(run.result().model) for run in runs]
        assert all(model.result(timeout=600) is not None for model in models)


def test_in_another_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(api.run(TINY, quiet=True)))
    thread.start()
    thread.join()
    assert found[0].status == "finished"


# What comes out


def test_variables_by_name():
    """At the solution 0 of the saddle, the distances are the norms."""
    run = api.run([*TINY[3:], "algo=fedavg_s", "problem=saddle", "eval.every=1"], quiet=True)
    norms = {f"distance_{name}": value.norm().item() for name, value in run.variables.items()}
    assert norms == {name: pytest.approx(run.metrics[name].iloc[-1], rel=1e-5) for name in ("distance_x", "distance_y")}


@pytest.mark.parametrize(
    ("algo", "problem", "names"),
    [
        ("fedmsa", "mco", ["x", "z1", "z2"]),
        ("fedmsa", "quadratic_compositional", ["x", "z1"]),
        ("fedmsa", "quadratic_bilevel", ["x", "y", "v"]),
        ("fednest", "quadratic_compositional", ["x", "y"]),
        ("fedmsa", "quadratic_minimax", ["x", "y"]),
        ("fedmsa", "classification", ["x"]),
        ("zo_hfl", "implicit_toy", ["x"]),
    ],
)
def test_names_of_variables(algo, problem, names):
    e = small(algo, problem)
    assert list(named(e.problem, e.algorithm.output(e.algorithm.init(e.problem)), False)) == names


DIGITS = Digits().load()
IMAGES = DIGITS.x_test[:, 0].astype(float)


@pytest.mark.parametrize(
    "words",
    few(
        [
            ["algo=fedavg", "problem=classification", "problem.model=linear"],
            ["algo=fedavg", "problem=classification", "problem.model=cnn", "dataset.pixels=unit"],
            ["algo=fedavg", "problem=classification", "problem.model=linear", "hardware.dtype=float64"],
            ["algo=fedmsa", "problem=hyper_representation", "problem.widths=[9]"],
            ["algo=fednest", "problem=hyper_representation", "problem.model=cnn"],
            ["algo=fedmsa", "problem=imbalanced_mnist", "problem.largest=140", "problem.imbalance=0.5"],
            ["algo=fedmsa", "problem=fair_classification", "problem.model=mlp", "problem.widths=[9]"],
            ["algo=fedavg_s", "problem=robust_nn", "problem.model=mlp", "problem.widths=[9]", "problem.ascent=0"],
            ["algo=zo_hfl", "problem=hierarchical", "problem.test=null", "problem.fit=1", "algo.tau=3"],
        ],
        lambda words: words[0] == "algo=fedmsa",
    ),
    ids=lambda words: " ".join(words[:3]),
)
def test_the_network_takes_raw_images(words):
    """And is as good on the test images as metrics.csv says, read back from the folder."""
    run = api.load(api.run([*SHORT, *words], quiet=True).folder)
    network = run.model()
    assert isinstance(network, torch.nn.Module)
    assert not network.training
    images, labels = torch.from_numpy(IMAGES), torch.from_numpy(DIGITS.y_test)
    with torch.no_grad():
        logits = network(images)
        for other in (images[:, None].to(torch.uint8), images.flatten(1).float()):
            torch.testing.assert_close(network(other), logits)
        loss = F.cross_entropy(logits, labels).item()
    assert loss == pytest.approx(run.final["test_loss"], rel=1e-5)
    assert 100 * (logits.argmax(1) == labels).double().mean().item() == pytest.approx(run.final["test_accuracy"])
    with pytest.raises(TypeError, match=r"torch.as_tensor\(x\)"):
        network(IMAGES)
    with pytest.raises(ValueError, match=r"\[B, 1, 8, 8\], not \[1, 8, 8, 1\]"):
        network(images[:1, :, :, None])
    network(images[:3]).sum().backward()
    assert all(p.grad is not None for p in network.parameters())
    assert run.model() is not network


def test_the_network_of_data_in_another_directory(tmp_path, monkeypatch):
    """A relative path is one of the directory where the run began."""
    images, labels = DIGITS.x_train[:, 0], DIGITS.y_train
    (tmp_path / "first").mkdir()
    monkeypatch.chdir(tmp_path / "first")
    arrays = {"x_train": images[:400], "y_train": labels[:400], "x_test": images[400:500], "y_test": labels[400:500]}
    np.savez("own.npz", **arrays)
    words = ["algo=fedavg", "problem=classification", "dataset=npz", "dataset.path=own.npz"]
    run = api.run([*words, "partitioner.clients=5", "participation.cohort=null", "budget.rounds=1"], quiet=True)
    before = run.model()(torch.from_numpy(arrays["x_test"]))
    monkeypatch.chdir(tmp_path)
    torch.testing.assert_close(api.load(run.folder).model()(torch.from_numpy(arrays["x_test"])), before)
    (tmp_path / "first" / "own.npz").unlink()
    with pytest.raises(api.UserError, match=r"first/own\.npz: there is no such file"):
        api.load(run.folder).model()


def test_a_problem_without_a_network():
    run = api.run(TINY, quiet=True)
    with pytest.raises(api.UserError, match="has no network"):
        run.model()


def test_a_run_of_a_gpu_is_read_on_the_cpu():
    run = api.run(TINY, quiet=True)
    config = run.folder / "config.yaml"
    config.write_text(config.read_text().replace("device: cpu", "device: cuda"))
    assert list(api.load(run.folder).variables) == ["x", "z1", "z2"]


def test_folders_that_are_no_runs(tmp_path):
    with pytest.raises(api.UserError, match="contains no run"):
        api.load(tmp_path)
    with pytest.raises(api.UserError, match="must be last or best"):
        api.load(tmp_path, "first")
    run, other = (api.run([*TINY, f"seed={seed}"], quiet=True) for seed in (0, 1))
    shutil.copy(other.folder / "checkpoint.safetensors", run.folder)
    with pytest.raises(api.UserError, match="belongs to another run"):
        _ = run.variables
    (run.folder / "checkpoint.safetensors").unlink()
    (run.folder / "metrics.csv").unlink()
    with pytest.raises(api.UserError, match="no checkpoint"):
        run.model()
    with pytest.raises(api.UserError, match=r"metrics\.csv"):
        _ = run.metrics


@pytest.mark.parametrize("name", ["run", "sweep", "compare", "frame", "tune"])
def test_all_arguments_but_the_first_are_given_by_name(name):
    first, *others = inspect.signature(getattr(api, name)).parameters.values()
    assert first.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    assert all(other.kind >= inspect.Parameter.KEYWORD_ONLY for other in others)


@pytest.mark.pictures
def test_compare(monkeypatch, capsys):
    runs = [api.run([*TINY, f"algo.K={K}", f"seed={seed}"], quiet=True) for K in (1, 5) for seed in (0, 1)]
    found = api.compare([*runs[:2], "outputs"], metric="distance", x="bytes", target=5)
    monkeypatch.setattr(
        sys, "argv", ["fedopt-compare", "outputs", "--metric", "distance", "--x", "bytes", "--target", "5"]
    )
    compare.main()
    pd.testing.assert_frame_equal(found.table, pd.read_csv("compare.csv", dtype={"algo.K": str}), check_dtype=False)
    assert list(found.table["runs"]) == [2, 2]
    found.draw("drawn.png")
    with pytest.raises(api.UserError, match="name"):
        found.draw("two")
    assert found.paired.columns[0] == "pair"
    two = api.compare(runs, metric="distance", names={"algo.K=1": "one"}, exclude=["*seed1*"])
    assert list(two.groups) == ["one", "algo.K=5"]
    assert api.frame("outputs").equals(api.frame(["outputs"]))  # a single folder or run need not be a list
    assert list(api.compare(Path("outputs"), metric="distance").table["runs"]) == [2, 2]
    assert list(api.compare(runs[0], metric="distance").table["runs"]) == [1]
    two.draw("drawn.pdf", title="two", ylim=(0, 10), logy=False)
    with open("drawn.png", "rb") as drawn, open("compare.png", "rb") as picture:
        assert drawn.read() == picture.read()
    for wrong in ({"x": "time"}, {"metric": "distanec"}, {"group_by": "algo.k"}):
        with pytest.raises(api.UserError, match=next(iter(wrong.values()))):
            api.compare(runs, **wrong)
    paths = two.write("paper", ["latex", "csv"], ["final"])
    assert [path.name for path in paths] == ["compare.tex", "compare.csv"]
    assert r"\toprule" in paths[0].read_text()
    assert "best" not in paths[0].read_text()
    for wrong in ({"formats": "latex"}, {"formats": ["tex"]}, {"columns": ["last"]}):
        with pytest.raises(api.UserError, match=f"{next(iter(wrong))}=.*: must be a list of"):
            two.write("paper", **wrong)
    assert repr(two).split()[:2] == ["algo.K", "seeds"]
    assert list(api.compare(runs, group_by=["algo.K", "seed"]).table["runs"]) == [1, 1, 1, 1]


def test_tables_in_notebooks(tmp_path):
    """Labels are texts there, and stand there in full."""
    runs = [api.run([*TINY, f"algo.K={K}"], output_dir=tmp_path / f"<i>{K}", quiet=True) for K in (1, 5)]
    long = "<script>" + 30 * "long" + " end"
    table = api.compare(runs, metric="distance", names={"algo.K=5": long})._repr_html_()
    assert html.escape(long) in table
    assert "<script" not in table
    assert table.count("<tr") == 3
    assert "<b>" in table  # the best one


def test_drawing_on_given_axes(tmp_path):
    """In the style that they have; lines of several runs have their own colours and are all within the limits."""
    runs = [api.run([*TINY, f"algo.K={K}"], output_dir=tmp_path / str(K), quiet=True) for K in (1, 5)]
    _, (one, two) = plt.subplots(1, 2)
    size = one.xaxis.label.get_size()
    comparison = api.compare(runs, metric="distance")
    assert comparison.draw(ax=one, title="both", logy=False) is one
    assert [text.get_text() for text in one.get_legend().get_texts()] == list(comparison.groups)
    assert (one.get_title(), one.get_yscale(), one.xaxis.label.get_size()) == ("both", "linear", size)
    for run in runs:
        assert run.draw("distance", ax=two, label=f"K of {run.folder.name}") is two
    assert len({line.get_color() for line in two.lines}) == 2
    assert [line.get_label() for line in two.lines] == ["K of 1", "K of 5"]
    low, high = two.get_ylim()
    assert all(low <= value <= high for run in runs for value in run.metrics["distance"])
    assert runs[0].draw() is plt.gca()
    plt.close("all")
    other = api.run("algo=fedavg_s problem=saddle budget.rounds=1", output_dir=tmp_path / "saddle", quiet=True)
    with pytest.raises(api.UserError, match="ax: the runs are on 2 problems"):
        api.compare([runs[0], other], metric="distance").draw(ax=one)
    _, axes = plt.subplots(1, 2)
    api.compare([runs[0], other], metric="distance").draw(ax=axes)
    assert [len(drawn.lines) for drawn in axes] == [1, 1]
    assert {drawn.get_title() for drawn in axes} == {"mco", "saddle"}
    plt.close("all")
    assert not list(tmp_path.glob("*.png"))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"legend": "left"}, "legend=left: "),
        ({"legend": False}, "legend="),
        ({"ylim": 0.1}, "ylim=0.1: "),
        ({"ylim": "0,100"}, "ylim=0,100: "),
        ({"ylim": (1, 2, 3)}, "ylim"),
        ({"ylim": (100, 0)}, "begin with the smaller number"),
        ({"titel": "x"}, "titel: .*did you mean title"),
    ],
    ids=str,
)
def test_pictures_that_cannot_be(wrong, said, tmp_path):
    runs = [api.run([*TINY, f"seed={seed}"], output_dir=tmp_path / str(seed), quiet=True) for seed in (0, 1)]
    with pytest.raises(api.UserError, match=said):
        api.compare(runs, metric="distance").draw(tmp_path / "drawn.png", **wrong)
    assert not (tmp_path / "drawn.png").exists()


def test_a_run_is_what_its_folder_is_now(monkeypatch, tmp_path):
    """After the run went on, also in another working directory, and no more when the folder is gone."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "else").mkdir()
    run = api.run([*TINY, "budget.rounds=2", "eval.every=1"], output_dir="here", quiet=True)
    before = run.variables["z1"]
    monkeypatch.chdir(tmp_path / "else")
    api.run([*TINY, "budget.rounds=4", "eval.every=1", "resume=true"], output_dir=run.folder, quiet=True)
    assert run.summary["round"] == 4
    assert not torch.equal(run.variables["z1"], before)
    assert f"{tmp_path / 'here'}" in repr(run)
    assert "finished" in repr(run)
    with pytest.raises(KeyError, match="y"):
        run.variables["y"]
    (run.folder / "config.yaml").unlink()
    for asked in ("status", "final", "best", "summary", "metrics", "config", "variables"):
        with pytest.raises(api.UserError, match="contains no run"):
            getattr(run, asked)
    assert "unreadable" in repr(run)


def test_values_of_a_run_that_ended_hard(tmp_path):
    def fails(row):
        if row["round"] == 3:
            raise KeyError("accuracy")

    with pytest.raises(KeyError, match="accuracy"):
        api.run([*TINY, "budget.rounds=4", "eval.every=1"], on_eval=fails, output_dir=tmp_path / "run", quiet=True)
    run = api.load(tmp_path / "run")
    assert (run.status, run.summary["error"]) == ("failed", "KeyError: 'accuracy'")
    assert "failed: KeyError: 'accuracy'" in (run.folder / "log.txt").read_text()
    rows = run.metrics["distance"]
    assert (run.final["distance"], run.best["distance"]) == (rows.iloc[-1], rows.min())
    text = (run.folder / "metrics.csv").read_text()
    (run.folder / "metrics.csv").write_text(text.rstrip().rpartition(",")[0] + ",words\n")  # of somebody's own
    assert isinstance(repr(run), str)


def test_starts_that_cannot_be(tmp_path):
    run = api.run([*TINY, "keep=best", "eval.metric=distance"], output_dir=tmp_path / "run", quiet=True)
    with pytest.raises(api.UserError, match="a run starts from the last checkpoint of another run; omit which=best"):
        api.run(TINY, start=api.load(run.folder, which="best"), output_dir=tmp_path / "other")
    with pytest.raises(api.UserError, match=r"run.*FedMSA, whose state does.*FedAvg.*algo="):
        api.run("algo=fedavg problem=classification", start=run, output_dir=tmp_path / "other")
    for wrong in (3, None):
        with pytest.raises(api.UserError, match="must be a run or the path of its folder"):
            api.load(wrong)
    with pytest.raises(api.UserError, match="None"):
        api.run(None)


def test_a_mistake_has_no_causes_behind_it():
    with pytest.raises(api.UserError, match=r"did you mean algo.alpha") as raised:
        api.run("algo=fedmsa problem=mco algo.alhpa=0.1")
    assert raised.value.__suppress_context__
    assert raised.value.__cause__ is None


# Checkpoints


def test_tensors_are_named():
    run = api.run([*SHORT, "algo=scaffold", "problem=classification", "problem.model=linear"], quiet=True)
    tensors = load_file(run.folder / "checkpoint.safetensors")
    memory = {"clients.state.memory", "rows.state.memory"}
    assert {name for name in tensors if "ledger" not in name} == {"state.x", "state.c", "progress", "hash"} | memory
    assert torch.equal(run.variables["x"], tensors["state.x"])
    run = api.run(TINY, quiet=True)
    tensors = load_file(run.folder / "checkpoint.safetensors")
    for n, value in enumerate(run.variables.values()):
        torch.testing.assert_close(tensors[f"state.u.{n}"], value, rtol=0, atol=0)


def test_names_of_odd_states():
    """By number where names would not tell them apart."""

    def names(state):
        return list(checkpoint._flat(state)[0])

    assert names({"a": (1, [2]), "b": {3: 4}}) == ["state.a.0", "state.a.1.0", "state.b.3"]
    assert names({"a.b": 1, "a": {"b": 2}}) == ["state.0", "state.1"]
    assert names(1.0) == ["state"]


def test_a_checkpoint_of_before(monkeypatch, capsys):
    run = api.run(TINY, quiet=True)
    path = run.folder / "checkpoint.safetensors"
    tensors = load_file(path)
    names = sorted(name for name in tensors if name.startswith("state."))
    old = {f"state.{names.index(name)}" if name in names else name: tensor for name, tensor in tensors.items()}
    del old["hash"]
    save_file(old | {"hash": checkpoint._hash(old)}, path)
    result = fedopt(monkeypatch, capsys, *TINY, "budget.rounds=8", "resume=true", f"output_dir='{run.folder}'")
    assert result.code == 2
    assert "algorithm" in result.err


# keep=best


@pytest.fixture
def rare(monkeypatch):
    """Checkpoints at the start and at the end alone."""
    monkeypatch.setattr("fedopt.running.sinks.CHECKPOINT_SECONDS", 1000)


def test_the_best_evaluation_is_kept(rare):
    """The variables are those of a run that ends there."""
    run = api.run(BEST, output_dir="run", quiet=True)
    accuracy = run.metrics["test_accuracy"]
    at = int(run.metrics["round"][accuracy.idxmax()])
    assert 0 < at < 12
    ending = api.run([*BEST, f"budget.rounds={at}", "keep=last"], output_dir="ending", quiet=True)
    best = api.load("run", which="best")
    assert best.variables.keys() == {"x"}
    assert torch.equal(best.variables["x"], ending.variables["x"])
    assert not torch.equal(run.variables["x"], best.variables["x"])
    images, labels = torch.from_numpy(IMAGES), torch.from_numpy(DIGITS.y_test)
    hits = best.model()(images).argmax(1) == labels
    assert 100 * hits.double().mean().item() == pytest.approx(accuracy.max())
    with pytest.raises(api.UserError, match="keep=best"):
        _ = api.load("ending", which="best").variables


def test_the_best_evaluation_without_a_metric_is_that_of_the_first(rare):
    by_name = api.run(BEST, output_dir="named", quiet=True)
    run = api.run([*BEST, "eval.metric=null"], output_dir="run", quiet=True)
    assert run.metrics.columns[-3] == "test_accuracy"
    assert torch.equal(*(api.load(folder, which="best").variables["x"] for folder in ("run", by_name.folder)))


@pytest.mark.parametrize("stop", ["killed", "stopped"])
def test_the_best_after_a_kill_is_that_of_an_undisturbed_run(stop, rare):
    """Wherever it came: also after a better evaluation that no checkpoint counts."""
    api.run(BEST, output_dir="whole", quiet=True)
    whole = load_file("whole/checkpoint.safetensors")
    for round in (2, 9):

        def ending(row, round=round):
            if row["round"] == round and stop == "killed":
                raise KeyboardInterrupt
            return row["round"] == round

        try:
            stopped = api.run(BEST, on_eval=ending, output_dir=f"run{round}", quiet=True)
            best = max(stopped.metrics["test_accuracy"])
            assert stopped.best["test_accuracy"] == pytest.approx(best)
        except KeyboardInterrupt:
            assert stop == "killed"
        api.run([*BEST, "resume=true"], output_dir=f"run{round}", quiet=True)
        found = load_file(f"run{round}/checkpoint.safetensors")
        assert found.keys() == whole.keys()
        for name in found.keys() - {"progress", "hash"}:  # which have the seconds
            assert torch.equal(found[name], whole[name])


# The example


def test_example(capsys):
    runpy.run_path(str(ROOT / "docs" / "example.py"))
    out = capsys.readouterr().out
    assert out.startswith("stopped after")
    (line,) = [line for line in out.splitlines() if line.startswith("test accuracy")]
    ours, theirs = (float(word) for word in line.replace("%", "").split() if word[0].isdigit())
    assert ours == theirs > 50


@pytest.mark.parametrize(("alpha", "notes"), [(1e-9, 1), (0.05, 0)])
def test_an_outer_variable_that_does_not_move_is_told(alpha, notes, tmp_path):
    words = f"algo=fednest problem=quadratic_bilevel algo.alpha={alpha} budget.rounds=20 problem.examples=40"
    with heard() as said:
        api.run(words, output_dir=tmp_path / "run")
    assert [line for line in said if "x has hardly moved in" in line][:1] == said[:notes]
    assert len(said) == notes


def test_an_own_method_has_its_title_in_figures(monkeypatch, tmp_path):
    """As fedopt's methods have, where the folder is a project with its config."""
    monkeypatch.chdir(tmp_path)
    Path("fedopt.toml").write_text('config_dir = "myconf"\n')
    Path("myconf/algo").mkdir(parents=True)
    Path("myconf/algo/mine.yaml").write_text("# My-MSA: a method of one's own\ndefaults: [fedmsa, _self_]\n")
    runs = [api.run([*TINY, f"algo={algo}"], output_dir=f"runs/{algo}", quiet=True) for algo in ("fedmsa", "mine")]
    ax = api.compare(runs, metric="distance").draw(ax=plt.subplots()[1])
    assert {text.get_text() for text in ax.get_legend().get_texts()} == {"FedMSA", "My-MSA"}
    plt.close("all")
