"""What a user can get wrong: one clear line, exit code not 0, no traceback, nothing half-written."""

import itertools
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from omegaconf import Node
from support.cases import few
from support.command import PAIR, ROOT, TINY, fedopt, one_line, run, without_time

import fedopt as api
from fedopt.config import hydra as config
from fedopt.results.folder import RunFolder
from fedopt.results.metrics_file import MetricsFile

DIGITS = ["problem=classification", "algo=fedavg", "dataset=digits", "problem.model=linear", "budget.rounds=1"]
COHORT = ["partitioner.clients=6", "participation.cohort=4"]

# arguments, what the line must say
WRONG = {
    "unknown key": (["algo.alhpa=1"], ["algo.alhpa", "did you mean algo.alpha"]),
    "unknown top-level key": (["sede=1"], ["sede", "did you mean seed"]),
    "key of another algorithm": (
        ["algo=fedavg", "problem=classification", "algo.rho=0.1"],
        ["algo.rho", "no such key"],
    ),
    "unknown algorithm": (["algo=fedmas"], ["algo=fedmas", "did you mean fedmsa", "adafbio"]),
    "unknown problem": (["problem=moc"], ["problem=moc", "did you mean mco"]),
    "unknown partitioner": (["partitioner=dirichelt"], ["did you mean dirichlet"]),
    "unknown data set": (["dataset=mnits"], ["did you mean mnist"]),
    "unknown group": (["agorithm=fedmsa"], ["agorithm", "no such key", "fedopt --help"]),
    "override": (["nothing"], ["nothing: is not an override; write KEY=VALUE, such as seed=1"]),
    "wrong class of problem": (["algo=fedavg", "problem=mco"], ["do not fit", "algo=fedmsa", "problem=classification"]),
    "a sweep without -m": (["algo.alpha=0.1,0.2"], ["algo.alpha=0.1,0.2", "-m", "square brackets"]),
    "wrong type": (["algo.K=many"], ["algo.K=many", "whole number"]),
    "fraction for a whole number": (["algo.K=2.5"], ["algo.K=2.5", "whole number"]),
    "out of range": (["algo.rho=1.5"], ["algo.rho=1.5", "at most 1"]),
    "no local steps": (["algo.K=0"], ["algo.K=0", "greater than 0"]),
    "negative step size": (["algo.alpha=-0.1"], ["algo.alpha", "at least 0"]),
    "broken schedule": (["algo.alpha={kind: exponential, initial: 1.0}"], ["algo.alpha.decay", "missing"]),
    "unknown schedule": (["algo.alpha={kind: cosine}"], ["algo.alpha", "cosine"]),
    "negative seed": (["seed=-1"], ["seed=-1"]),
    "seed that is no number": (["seed=abc"], ["seed=abc", "whole number"]),
    "fraction for a seed": (["seed=1.0"], ["seed=1.0", "whole number"]),
    "seed too large": (["seed=9223372036854775808"], ["seed=9223372036854775808", "less than"]),
    "resume that is neither": (["resume=maybe"], ["resume=maybe", "true or false"]),
    "folder that is a list": (["output_dir=[1]"], ["output_dir=[1]", "a string"]),
    "new top-level key": (["+nonsense=1"], ["nonsense", "no such key"]),
    "new key of a node": (["+budget.epochs=1"], ["budget.epochs", "no such key"]),
    "value for a node": (["participation=uneven"], ["participation=uneven", "participation.KEY=VALUE"]),
    "unknown preset": (["preset=fednest/sadle"], ["preset=fednest/sadle", "did you mean fednest/saddle?", "none"]),
    "family without a problem": (
        ["preset=fedmsa"],
        ["preset=fedmsa: there is no such preset, did you mean fedmsa/mco?"],
    ),
    "a graphics card": (["hardware=gpu"], ["hardware=gpu", "did you mean cuda?"]),
    "a data set as a problem": (["problem=mnist"], ["problem=mnist: there is no such problem, did you mean"]),
    "a learning rate": ([*DIGITS, "lr=0.1"], ["lr: ", "did you mean algo.eta or algo.gamma?"]),
    "a learning rate of the algorithm": (["algo.learning_rate=0.1"], ["did you mean algo.alpha or algo.beta?"]),
    "a batch size": ([*DIGITS, "batch_size=3"], ["did you mean algo.B?"]),
    "an option with dashes": (["--algo", "fedavg"], ["unrecognized arguments: --algo", "algo=fedavg"]),
    "a figure of all papers": (
        ["experiment=fig2"],
        ["fedmsa/fig2 or fednest/fig2a or fednest/fig2b or fednest/fig2c or zohfl/fig2?"],
    ),
    "a figure of another paper": (["experiment=fedmsa/fig9"], ["did you mean fednormsgda/fig9?"]),
    "a word as a number": (["budget.rounds=x"], ["budget.rounds=x: must be a whole number"]),
    "a word as a step": (["eval.diverged=x"], ["eval.diverged=x: must be a number"]),
    "a number as a truth value": (["hardware.tf32=7"], ["hardware.tf32=7: must be true or false"]),
    "a choice that is none": (["algo.anchor=x"], ["algo.anchor=x: must be 'all' or 'cohort'"]),
    "a partitioner that is no class": (
        [*DIGITS, "partitioner._target_=False"],
        ["partitioner._target_=False", "imported"],
    ),
    "no class of a partitioner": (["partitioner._target_=null"], ["partitioner._target_="]),
    "no budget": (["budget.rounds=null"], ["budget", "at least one"]),
    "negative budget": (["budget.rounds=-5"], ["budget.rounds=-5"]),
    "autocast in double": (["hardware.autocast=bfloat16", "hardware.dtype=float64"], ["hardware", "float32"]),
    "unknown engine": (["hardware.engine=fast"], ["hardware.engine=fast", "vectorised"]),
    "unknown device": (["hardware.device=tpu"], ["hardware.device=tpu"]),
    "cohort larger than the federation": (
        ["participation.cohort=3"],
        ["participation.cohort=3", "number of clients, 2"],
    ),
    "fewer examples than clients": (["partitioner.clients=50"], ["partitioner.clients=50", "40 examples"]),
    "classes where there are none": (["partitioner=shards"], ["partitioner", "no classes", "iid"]),
    "more local work than there is": (
        [*DIGITS, "participation.least=2"],
        ["participation.least=2", "algo.tau", "1 epochs"],
    ),
    "local work of another unit": ([*DIGITS, "algo.tau=3 rounds"], ["algo.tau=3 rounds", "number of steps", "epochs"]),
    "fraction of a local step": ([*DIGITS, "algo.tau=2.5"], ["algo.tau=2.5", "number of steps"]),
    "no growth of local steps": ([*DIGITS, "algo.tau={kind: growing}"], ["algo.tau.tau", "missing"]),
    "a server without data": (
        ["algo=zo_hfl", "problem=hierarchical", "dataset=digits", "problem.server=0.0001"],
        ["problem.server=0.0001", "less than one example"],
    ),
    "pre-training without data": (
        [*DIGITS, "problem.pretrain=3"],
        ["problem.pretrain=3", "no examples", "problem.server"],
    ),
    "nothing to test on": ([*DIGITS, "problem.test=0.0001"], ["problem.test=0.0001", "less than one example"]),
    "a proximal term that overshoots": (
        ["algo=fed_norm_sgda", "problem=quadratic_minimax", "algo.mu=40"],
        ["algo", "mu * eta_x"],
    ),
    "SCAFFOLD without steps": ([*DIGITS, "algo=scaffold", "algo.eta=0"], ["eta must be greater than 0"]),
    "SCAFFOLD without steps from some round on": (
        [*DIGITS, "algo=scaffold", "algo.eta={kind: piecewise, values: [0.1, 0], boundaries: [9]}"],
        ["eta must be greater than 0"],
    ),
    "nobody a straggler": (
        [*DIGITS, "participation.stragglers=0.001"],
        ["participation.stragglers=0.001", "no client of 100"],
    ),
    "everyone a straggler": ([*DIGITS, "participation.stragglers=1"], ["participation.stragglers=1", "less than 1"]),
    "stragglers where work is even": (
        ["algo=localbsgm", "problem=quadratic_bilevel", "participation.stragglers=0.5"],
        ["participation.stragglers", "LocalBSGM"],
    ),
    "server with everything": ([*DIGITS, "problem.server=1"], ["problem.server=1", "less than 1"]),
    "hierarchical for another algorithm": (
        ["algo=zo_hfl", "problem=classification"],
        ["do not fit", "problem=hierarchical|implicit_toy", "amigo"],
    ),
    "clients no multiple of the classes": (
        [*DIGITS, "partitioner=q_heterogeneity", "partitioner.clients=15"],
        ["multiple"],
    ),
    "unknown model": ([*DIGITS, "problem.model=resnet"], ["problem.model=resnet", "vgg11", "PACKAGE.CLASS"]),
    "model that cannot be imported": (
        [*DIGITS, "problem.model=nowhere.Net"],
        ["problem.model=nowhere.Net", "imported"],
    ),
    "model that is no network": ([*DIGITS, "problem.model=os.system"], ["problem.model=os.system", "torch.nn.Module"]),
    "wrong argument of a model": (
        [*DIGITS, "problem.model={_target_: support.networks.Normed, wdith: 3}"],
        ["problem.model=support.networks.Normed", "wdith"],
    ),
    "model with a running mean": (
        [*DIGITS, "problem.model=support.networks.Running"],
        ["2.running_mean", "BatchNorm", "GroupNorm"],
    ),
    "model of other classes": ([*DIGITS, "problem.model=support.networks.FiveClasses"], ["[2, 5]", "10 classes"]),
    "a number for a model": ([*DIGITS, "problem.model=5"], ["problem.model=5"]),
    "stacks of what vmap cannot run": (
        [*DIGITS, "problem.model=support.networks.Branch", "hardware.engine=vectorised"],
        ["hardware.engine=vectorised", "hardware.engine=one_by_one"],
    ),
    "csv without a label": ([*DIGITS, "dataset=csv", "dataset.path=x.csv"], ["dataset.label"]),
    "csv that is not there": (
        [*DIGITS, "dataset=csv", "dataset.path=x.csv", "dataset.label=y"],
        ["x.csv", "no such file"],
    ),
    "clients of a column, divided otherwise": (
        [*DIGITS, "dataset=csv", "dataset.path=x.csv", "dataset.label=y", "dataset.client=ward"],
        ["dataset.client=ward: ", "add partitioner=by_column, or set partitioner=", "to use another partition"],
    ),
    "images that are not there": ([*DIGITS, "dataset=images", "dataset.path=nowhere"], ["nowhere", "is missing"]),
    "size of images": ([*DIGITS, "dataset=images", "dataset.path=x", "dataset.size=[3]"], ["dataset.size"]),
    "natural division of what has none": ([*DIGITS, "partitioner=by_column"], ["by_column", "partitioner.file=FILE"]),
    "natural division of what a problem makes": (
        ["partitioner=by_column"],
        ["by_column", "self.world.split(n, owners=NAMES)"],
    ),
    "natural division by a file": (
        [*DIGITS, "partitioner=by_column", "partitioner.file=nowhere"],
        ["partitioner.file=nowhere", "No such file"],
    ),
    "images too small": ([*DIGITS, "problem.model=vgg11"], ["32 x 32"]),
    "no data set": ([*DIGITS, "dataset=none"], ["dataset=mnist"]),
    "npz without a path": (["algo=fedavg", "problem=classification", "dataset=npz"], ["dataset.path"]),
    "metric that is not there": (["eval.metric=accuracy", "eval.target=1"], ["eval.metric=accuracy", "distance"]),
    "target without metric": (["eval.metric=null", "eval.target=1"], ["eval.target needs eval.metric"]),
    "best by no goal": (
        ["algo=fed_norm_sgda", "problem=fair_classification", "dataset=digits", "keep=best", "eval.metric=weight_0"],
        ["keep=best", "weight_0 cannot be optimised"],
    ),
    "neither last nor best": (["keep=first"], ["keep=first", "'last' or 'best'"]),
    "algorithm that cannot be imported": (["algo._target_=fedopt.nothing.Here"], ["algo._target_=fedopt.nothing.Here"]),
    "a number for an algorithm": (["algo=5"], ["algo=5", "no such algo"]),
    "nothing for an experiment": (["experiment=null"], ["experiment=null", "no such experiment"]),
    "a path out of the group": (["algo=../problem/mco"], ["algo=../problem/mco", "no such algo"]),
    "a preset that is not there": (["preset=fedmsa_mc0"], ["preset=fedmsa_mc0", "did you mean fedmsa/mco"]),
    "a number for a folder": (["output_dir=2024"], ["output_dir=2024", "a string"]),
    "a seed for a folder": (["output_dir=${seed}"], ["output_dir=0", "a string"]),
    "no seed": (["~seed"], ["seed", "missing"]),
    "no algorithm": (["~algo"], ["algo", "missing"]),
    "no budget node": (["~budget"], ["budget"]),
    "thousands of digits": (["seed=" + "9" * 5000], ["digits"]),
    "thousands of brackets": (["seed=" + "[" * 3000], ["seed=[["]),
    "unknown interpolation": (["seed=${nope}"], ["seed: ", "nope"]),
    "a list for a node": (["participation=[1]"], ["participation=[1]", "participation.KEY=VALUE"]),
    "a line end in a value": (["algo.K=a\nb"], ["algo.K=a\\nb"]),
    "control characters": (["problem=\x1b[31m"], ["problem=\\x1b[31m"]),
    "bytes that are no text": (["dataset=\udcff"], ["dataset=\\udcff"]),
    "thousands of letters": (["algo=" + "x" * 5000], ["algo=xxx", "...xxx", "no such algo"]),
    "thousands of digits in a sweep": (["-m", "algo.K=" + "9" * 5000, "seed=0,1"], ["digits"]),
    "a word that names nothing": (["=1"], ["=1: is not an override; write KEY=VALUE, such as seed=1"]),
    "blanks around =": (["algo", "=", "fedmsa"], ["is not an override", "without spaces around ="]),
    "a blank for =": (["seed", "1"], ["seed: is not an override; write KEY=VALUE, such as seed=1"]),
    "a colon in a word": (["seed:1"], ["seed:1: is not an override; write KEY=VALUE, such as seed=1"]),
    "a method alone": (["fedmsa", "mco"], ["fedmsa: write algo=fedmsa"]),
    "a problem alone": (["algo=fedmsa", "mco"], ["mco: write problem=mco"]),
    "a comma between words": (
        ["algo=fedmsa,problem=mco"],
        ["algo=fedmsa,problem=mco: is not an override", "spaces between overrides"],
    ),
    "a node with a key": (["budget=rounds=5"], ["budget=rounds=5: is not an override", "'budget=\"rounds=5\"'"]),
    "a verb": (["run", "algo=fedmsa"], ["run: is not an override; write KEY=VALUE"]),
    "an option of a node": (["--budget", "rounds", "10"], ["--budget rounds 10; write overrides without dashes"]),
    "a range of seeds": (
        ["seed=0..2"],
        ["seed=0..2: must be a whole number; a sweep takes several values, fedopt -m seed=A,B,..."],
    ),
    "seeds in brackets": (
        ["-m", "seed=[0,1,2]"],
        ["must be a whole number; a sweep takes several values, fedopt -m seed=A,B,..."],
    ),
    "all clients by a word": (["participation.cohort=all"], ["participation.cohort=all: must be a whole number"]),
    "a list of step sizes": (["algo.alpha=[0.1,1]"], ["algo.alpha=[0.1, 1]: must be a number, or a schedule such as"]),
    "a table without its reader": (
        ["algo=fedavg", "problem=classification", "dataset.path=t.csv"],
        ["dataset.path: there is no such key in the chosen dataset; choose dataset="],
    ),
    "a key of another partitioner": (
        ["algo=fednest", "problem=quadratic_bilevel", "partitioner.alpha=1"],
        ["partitioner.alpha: there is no such key in the chosen partitioner; choose partitioner=dirichlet"],
    ),
    "a reference to itself": (["algo.K=${algo.K}"], ["algo.K: the reference cannot be resolved", "set a value"]),
    "a cohort for a method that needs all": (
        ["algo=proxskip_gda", "problem=quadratic_minimax", "partitioner.clients=4", "participation.cohort=3"],
        ["ProxSkipGda needs all clients in every round; set participation.cohort=null"],
    ),
    "clients that are away from a method that needs all": (
        ["algo=proxskip_gda", "problem=quadratic_minimax", "participation.dropout=0.1"],
        ["ProxSkipGda needs all clients in every round; set", "participation.dropout=0"],
    ),
    "a rule that trims everything": (
        ["algo=br_fedbi", "problem=quadratic_bilevel", "algo.rule=trimmed", "algo.trim=2", *COHORT],
        ["participation.cohort=4", "BRFedBi needs at least 5 clients in a round"],
    ),
    "a config folder that is not there": (
        ["--config-dir", "nowhere", "algo=mine"],
        ["--config-dir=nowhere", "no such folder"],
    ),
    "steps before the run that nobody can stop": (
        ["algo=fedavg", "problem=classification_with_server", "dataset=digits", "problem.pretrain=2147483648"],
        ["problem.pretrain=2147483648", "at most"],
    ),
    "a count beyond 64 bits": (["algo.K=18446744073709551616"], ["algo.K: must be at most 1000000000"]),
    "a group that would need a list of 10^11 numbers": (
        ["participation.pattern={kind: cyclic, groups: [0, 100000000000]}"],
        ["participation.pattern", "groups must be numbered 0, 1, ..."],
    ),
    "a count in a list": (["eval.at=[1,9223372036854775807]"], ["eval.at: must be at most 1000000000"]),
    "a count in a schedule": (
        ["algo=fednest", "problem=quadratic_bilevel", "algo.tau_in={kind:growing,tau:[1,10000000000],power:0}"],
        ["algo.tau_in.tau.1=10000000000", "at most 1000000"],
    ),
    "infinite noise": (["problem=quadratic_bilevel", "problem.noise=inf"], ["problem.noise=inf", "finite"]),
    "a target that is no number": (["eval.target=nan"], ["eval.target=nan", "finite"]),
    "a step beyond float32": (["algo.alpha=1e154"], ["algo.alpha", "1e+154", "at most"]),
    "too many threads": (["hardware.threads=100000"], ["hardware.threads=100000", "at most"]),
    "examples too many": (
        ["problem=quadratic_bilevel", "problem.examples=1e9", "partitioner.clients=4"],
        ["problem.examples=1e9", "needs more memory"],
    ),
    "more memory than there is": (
        ["problem=quadratic_bilevel", "problem.examples=1000", "problem.dx=1000000"],
        ["problem.dx=1000000", "needs more memory"],
    ),
    "a key that one algorithm of a sweep has": (
        ["-m", "algo=fedmsa,fednest", "algo.K=2"],
        ["algo.K: there is no such key", "algo=fednest"],
    ),
    "a node as one value": (
        ["participation=some", "participation.cohort=2"],
        ["participation=some: cannot be set as a whole"],
    ),
    "true for a number": (["algo.K=true"], ["algo.K=true", "must be a number"]),
    "true for a step size": (["algo.alpha=true"], ["algo.alpha=true", "must be a number"]),
    "true in a node": (["hardware.threads=true"], ["hardware.threads=true", "must be a number"]),
    "a start beyond float32": (["problem.x0=1e308"], ["problem.x0=1e+308", "at most"]),
    "a device beyond all numbers": (["hardware.device=cuda:" + "9" * 20], ["hardware.device=cuda:999"]),
    "nothing to begin from": (["from=''"], ["from=", "at least 1"]),
    "growth without end": ([*DIGITS, "algo.tau={kind: growing, tau: 1e300}"], ["algo.tau.tau=1e+300", "at most"]),
    "too much local work": ([*DIGITS, "algo.tau=" + "9" * 20], ["algo.tau", "at most"]),
    "no home": (
        ["algo=fedavg", "problem=classification", "dataset=npz", "dataset.path='~no-such-user/x'"],
        ["~no-such-user/x"],
    ),
    "a sweep of nothing": (["-m", "seed=range(0)"], ["no run"]),
    "a sweep without end": (["-m", "seed=range(10000000000)"], ["more than 10,000 runs"]),
    "two folders for a sweep": (["-m", "output_dir=a,b"], ["output_dir=", "sweep"]),
    "a wrong value in a sweep": (["-m", "seed=0,x"], ["seed=x", "whole number"]),
    "combinations that do not fit": (
        ["-m", "algo=fedmsa,fedavg", "seed=0,1"],
        ["algo=fedavg", "do not fit"],
    ),
    "a launcher of one's own": (
        ["-m", "seed=0,1", "hydra.launcher._target_=os.system"],
        ["hydra.launcher._target_: ", "--jobs N"],
    ),
    "a sweeper of Hydra's": (["-m", "seed=0,1", "hydra/sweeper=optuna"], ["hydra/sweeper: ", "fedopt tune"]),
    "an interval": (["-m", "algo.alpha=interval(0.1, 0.2)"], ["algo.alpha=interval(0.1, 0.2): ", "list the values"]),
    "unknown flag": (["--shell-completion"], ["--shell-completion", "--help"]),
    "another config": (["--config-name", "x"], ["--config-name"]),
    "a flag of Hydra's": (["--resolve"], ["--resolve", "--help"]),
    "rerun from a pickle": (["--experimental-rerun", "x.pickle"], ["--experimental-rerun"]),
}


@pytest.mark.parametrize("case", few(WRONG, lambda case: [*WRONG].index(case) % 5 == 0))
def test_one_line(case, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    arguments, fragments = WRONG[case]
    tiny = [] if {"dataset=digits", "problem=classification"} & set(arguments) else TINY
    result = fedopt(monkeypatch, capsys, *tiny, "output_dir=here", *arguments)
    assert not list(tmp_path.iterdir())  # all is checked before anything is written
    one_line(result, *fragments)


def test_traceback_on_demand(tmp_path):
    result = run("algo.K=0", cwd=tmp_path, env={"HYDRA_FULL_ERROR": "1"})
    assert result.code == 1
    assert "Traceback" in result.err


BROKEN = {"x_train": np.zeros((4, 3, 3), np.uint8), "y_train": np.arange(4), "x_test": np.zeros((4, 3, 3), np.uint8)}


@pytest.mark.parametrize("kind", ["missing", "truncated", "pickled", "incomplete", "not an npz"])
def test_data_files(kind, monkeypatch, capsys, tmp_path):
    path = tmp_path / "own.npz"
    if kind == "truncated":
        np.savez(path, **BROKEN, y_test=np.arange(4))
        path.write_bytes(path.read_bytes()[:-200])
    elif kind == "pickled":
        np.savez(path, **BROKEN, y_test=np.array([print, 1, 2, 3], dtype=object))
    elif kind == "incomplete":
        np.savez(path, **BROKEN)
    elif kind == "not an npz":
        path.write_text("hello")
    wanted = {"missing": "no such file", "pickled": "Object arrays", "incomplete": "y_test"}.get(
        kind, "cannot be read as .npz"
    )
    result = fedopt(
        monkeypatch, capsys, *DIGITS[:2], "dataset=npz", f"dataset.path={path}", f"output_dir={tmp_path / 'o'}"
    )
    one_line(result, str(path), wanted)
    assert not (tmp_path / "o").exists()


def test_missing_data_without_network(monkeypatch, capsys, tmp_path):
    from urllib.error import URLError

    from fedopt.networks.torchvision_import import torchvision

    def refuse(*args, **kwargs):
        raise URLError("no network")

    monkeypatch.setattr(torchvision.datasets.mnist, "download_and_extract_archive", refuse)
    result = fedopt(
        monkeypatch,
        capsys,
        "algo=fedmsa",
        "problem=imbalanced_mnist",
        "dataset=fashion_mnist",
        f"dataset.root={tmp_path}",
        f"output_dir={tmp_path / 'o'}",
    )
    one_line(
        result.__class__(result.code, "", result.err.splitlines()[-1]),
        "fashion_mnist.npz",
        str(tmp_path),
        "FEDOPT_DATA",
    )


def test_unwritable_output(monkeypatch, capsys, tmp_path):
    (tmp_path / "file").write_text("in the way")
    one_line(fedopt(monkeypatch, capsys, *TINY, f"output_dir={tmp_path / 'file' / 'run'}"), str(tmp_path / "file"))


def test_second_run_in_a_folder(monkeypatch, capsys, tmp_path):
    arguments = [*TINY, f"output_dir={tmp_path / 'run'}"]
    assert fedopt(monkeypatch, capsys, *arguments).code == 0
    metrics = (tmp_path / "run" / "metrics.csv").read_bytes()
    one_line(fedopt(monkeypatch, capsys, *arguments), "already contains a run", "resume=true")
    assert (tmp_path / "run" / "metrics.csv").read_bytes() == metrics


def test_two_processes_in_a_folder(monkeypatch, capsys, tmp_path):
    folder = RunFolder(tmp_path)
    folder.open()
    folder.write_json("summary.json", {"status": "running"})
    folder.write_text("config.yaml", "seed: 0\n")
    one_line(fedopt(monkeypatch, capsys, *TINY, f"output_dir={tmp_path}"), "another run is writing here")
    assert folder.status() == "running"
    folder.close()


def test_resume_of_what_has_not_begun(monkeypatch, capsys, tmp_path):
    """Says so and begins; so does a run that failed before its first row, under another config."""
    arguments = ["algo=fedmsa", *TINY, f"output_dir={tmp_path / 'run'}", "resume=true"]
    result = fedopt(monkeypatch, capsys, *arguments, "eval.metric=distanec", "eval.target=1")
    one_line(result, "eval.metric=distanec")
    result = fedopt(monkeypatch, capsys, *arguments)
    assert result.code == 0
    assert "there is no run in" in result.err
    assert RunFolder(tmp_path / "run").status() == "finished"


@pytest.mark.parametrize("words", [["output_dir=none"], ["output_dir=none", "budget.rounds=3", "seed=1"]])
def test_going_on_with_what_is_not_there(words, monkeypatch, capsys, tmp_path):
    """Where no algorithm and no problem is named, it is a mistyped folder and not a run to begin."""
    monkeypatch.chdir(tmp_path)
    one_line(fedopt(monkeypatch, capsys, "resume=true", *words), "none")
    assert not list(tmp_path.iterdir())
    with pytest.raises(api.UserError, match="contains no run"):
        api.run(["resume=true", *words], quiet=True)


def test_going_on_with_another_method(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert fedopt(monkeypatch, capsys, "algo=fedmsa", *TINY, "output_dir=run").code == 0
    words = ["resume=true", "output_dir=run", "problem=mco"]
    one_line(fedopt(monkeypatch, capsys, *words, "algo=soba,fedmsa"), "several values")
    one_line(fedopt(monkeypatch, capsys, *words, "algo=soba"), "the run in run has algo.", "another output_dir")


def test_config_folder_after_an_equals_sign(monkeypatch, capsys, tmp_path):
    own = tmp_path / "own" / "algo" / "mine.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("defaults: [fedmsa, _self_]\nK: 2\n")
    monkeypatch.chdir(tmp_path)
    assert fedopt(monkeypatch, capsys, "-m", "--config-dir=own", *TINY, "algo=mine").code == 0


def test_resume_with_other_values(monkeypatch, capsys, tmp_path):
    arguments = [*TINY, f"output_dir={tmp_path / 'run'}"]
    assert fedopt(monkeypatch, capsys, *arguments).code == 0
    one_line(fedopt(monkeypatch, capsys, *arguments, "algo.K=4", "resume=true"), "algo.K=5", "not 4")


def test_corrupted_checkpoint(monkeypatch, capsys, tmp_path):
    arguments = [*TINY, f"output_dir={tmp_path / 'run'}"]
    assert fedopt(monkeypatch, capsys, *arguments).code == 0
    checkpoint = tmp_path / "run" / "checkpoint.safetensors"
    checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    metrics = (tmp_path / "run" / "metrics.csv").read_bytes()
    result = fedopt(monkeypatch, capsys, *arguments, "budget.rounds=8", "resume=true")
    one_line(result, "checkpoint.safetensors", "cannot be read", "delete checkpoint.safetensors")
    assert (tmp_path / "run" / "metrics.csv").read_bytes() == metrics


@pytest.mark.full
def test_full_disk(monkeypatch, capsys, tmp_path):
    """A file may not grow beyond 8 kB: the row that does not fit is not there by half, and the run can go on."""

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (8_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

    monkeypatch.chdir(tmp_path)
    setting = [*TINY, "budget.rounds=150", "output_dir=run"]
    # figures are larger than the limit: begin without it, and interrupt nothing but the growth of metrics.csv
    first = fedopt(monkeypatch, capsys, *TINY, "output_dir=run")
    assert first.code == 0
    uncompiled = {"PYTHONDONTWRITEBYTECODE": "1"}  # the limit would cut what Python keeps of modules
    result = run(*setting, "resume=true", cwd=tmp_path, preexec_fn=limit, env=uncompiled)
    one_line(result._replace(err=result.err.splitlines()[-1]), "metrics.csv", "resume=true")
    content = (tmp_path / "run" / "metrics.csv").read_text()
    assert content.endswith("\n")
    assert len({line.count(",") for line in content.splitlines()}) == 1
    assert fedopt(monkeypatch, capsys, *setting, "resume=true").code == 0
    undisturbed = fedopt(monkeypatch, capsys, *TINY, "budget.rounds=150", "output_dir=whole")
    assert undisturbed.code == 0
    assert without_time(tmp_path / "run" / "metrics.csv") == without_time(tmp_path / "whole" / "metrics.csv")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_no_permission(monkeypatch, capsys, tmp_path):
    tmp_path.chmod(0o500)
    one_line(fedopt(monkeypatch, capsys, *TINY, f"output_dir={tmp_path / 'run'}"), "Permission denied")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param("WORLD_SIZE", "abc", marks=pytest.mark.full),
        pytest.param("WORLD_SIZE", "-1", marks=pytest.mark.slow),
        pytest.param("LOCAL_WORLD_SIZE", "abc", marks=pytest.mark.slow),
        pytest.param("FEDOPT_CHECKPOINT_SECONDS", "abc", marks=pytest.mark.full),
        pytest.param("FEDOPT_PICTURES", "no", marks=pytest.mark.slow),
    ],
)
def test_odd_environment(name, value, tmp_path):
    one_line(run(*TINY, "output_dir=run", cwd=tmp_path, env={name: value}), f"{name}={value}")
    assert not (tmp_path / "run").exists()


@pytest.mark.full
@pytest.mark.pictures
def test_environment_of_other_programs(tmp_path):
    """A rank of a world that is not named, and a backend of figures that is not there, change nothing."""
    env = {"RANK": "5", "LOCAL_WORLD_SIZE": "0", "MPLBACKEND": "nope"}
    result = run(*TINY, "output_dir=run", cwd=tmp_path, env=env)
    assert result.code == 0, result.err
    assert "results: run" in result.out


@pytest.mark.full
def test_a_rank_that_is_none_says_its_mistakes(tmp_path):
    """By itself, or as one of several that torchrun has not started."""
    for size in ("1", "4"):
        result = run("algo=fedvag", "problem=mco", cwd=tmp_path, env={"WORLD_SIZE": size, "RANK": "3"})
        one_line(result, "algo=fedvag", "did you mean fedavg")


@pytest.mark.full
def test_ranks_that_nobody_started(tmp_path):
    result = run(*TINY, "output_dir=run", cwd=tmp_path, env={"WORLD_SIZE": "2", "RANK": "0"})
    one_line(result, "other processes cannot be reached", "MASTER_ADDR")


@pytest.mark.parametrize(
    "shut",
    [
        *(pytest.param(shut, marks=pytest.mark.slow) for shut in ("err", "reader")),
        pytest.param("full", marks=pytest.mark.full),
    ],
)
def test_nobody_reads_the_progress(shut, tmp_path):
    """A run does not end because of what shows it."""
    command = [sys.executable, "-m", "fedopt", *TINY, "output_dir=run"]
    ends = {"err": "2>&-", "reader": "2> >(true)", "full": "2>/dev/full"}
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(["bash", "-c", f"{shlex.join(command)} {ends[shut]}"], cwd=tmp_path, env=env, capture_output=True)
    assert RunFolder(tmp_path / "run").status() == "finished"


OWN = """
import sys
from dataclasses import dataclass
from fedopt.algorithms.fedmsa import FedMSA


@dataclass(frozen=True)
class Ends(FedMSA):
    def step(self, s, problem, fed):
        sys.exit(0)
"""


def test_an_algorithm_that_ends_the_program(monkeypatch, capsys, tmp_path):
    (tmp_path / "ends.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = RunFolder(tmp_path / "run")
    result = fedopt(monkeypatch, capsys, *TINY, "algo._target_=ends.Ends", f"output_dir={folder.path}")
    assert result.code == 2
    assert "sys.exit(0)" in result.err
    assert folder.status() is None or folder.summary()["status"] == "failed"


@pytest.mark.parametrize("name", ["run.json", "log.txt", "partition.png", "traceback.txt"])
def test_names_that_are_taken(name, monkeypatch, capsys, tmp_path):
    (tmp_path / name).write_text("mine")
    one_line(fedopt(monkeypatch, capsys, *TINY, f"output_dir={tmp_path}"), str(tmp_path), "choose another")
    assert (tmp_path / name).read_text() == "mine"


@pytest.mark.parametrize("name", ["sweep.csv"])
def test_a_sweep_writes_through_no_link(name, monkeypatch, capsys, tmp_path):
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / name).symlink_to(tmp_path / "victim")
    result = fedopt(monkeypatch, capsys, "-m", *TINY, "seed=0,1", f"output_dir={tmp_path / 'sweep'}")
    one_line(result, name, "link")
    with pytest.raises(api.UserError, match=f"{name}.*link"):
        api.sweep(TINY, seed=[0, 1], output_dir=tmp_path / "sweep", quiet=True)
    assert (tmp_path / "victim").read_text() == "precious"
    assert [*(tmp_path / "sweep").iterdir()] == [tmp_path / "sweep" / name]


@pytest.mark.parametrize("how", ["replaced", "emptied", "gone"])
def test_rows_that_another_program_takes_away(how, monkeypatch, capsys, tmp_path):
    """The run ends in one line instead of writing where nobody reads."""
    append, csv = MetricsFile.append, tmp_path / "run" / "metrics.csv"

    def meddled(self, row):
        append(self, row)
        if row["round"] == 2:
            content = csv.read_bytes()
            if how == "emptied":
                os.truncate(csv, 0)
            else:
                csv.unlink()
            if how == "replaced":
                csv.write_bytes(content)

    monkeypatch.setattr(MetricsFile, "append", meddled)
    result = fedopt(monkeypatch, capsys, *TINY, f"output_dir={tmp_path / 'run'}")
    assert result.code == 2
    assert "another program" in result.err.splitlines()[-1]
    assert "bug" not in result.err


@pytest.mark.parametrize("summary", ['{"status": "finished", "final": [3]}', '{"final": {"a": "b"}, "best": 1}'])
def test_an_odd_summary(summary, monkeypatch, capsys, tmp_path):
    arguments = [*TINY, f"output_dir={tmp_path / 'run'}"]
    assert fedopt(monkeypatch, capsys, *arguments).code == 0
    (tmp_path / "run" / "summary.json").write_text(summary)
    assert fedopt(monkeypatch, capsys, *arguments, "resume=true").code == 0


@pytest.mark.parametrize(
    ("module", "seconds"),
    few(
        itertools.product(["fedopt", "fedopt.commands.reproduce"], [0.05, 0.2, 0.4]),
        lambda case: case == ("fedopt", 0.2),
    ),
)
def test_ctrl_c_while_python_imports(module, seconds, tmp_path):
    command = {"fedopt": "main()", "fedopt.commands.reproduce": "reproduce()"}[module]
    program = f"from fedopt import __main__; print(flush=True); __main__.{command}"
    process = subprocess.Popen(
        [sys.executable, "-c", program, "--list"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout.readline() == "\n"
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=600)
    assert "Traceback" not in out + err
    assert "bug" not in err
    assert err.count("\n") <= 1


@pytest.mark.parametrize("words", [["--cfg", "job"], [*TINY, "output_dir=run"], ["-m", *TINY, "seed=0,1"]])
def test_ctrl_c_that_omegaconf_loses(words, monkeypatch, capsys, tmp_path):
    """An assignment to a config that is interrupted fails while it is cleaned up, and the error hides Ctrl-C."""
    key = Node._key

    def interrupted(self):
        if sys._getframe(1).f_code.co_name == "_set_item_impl":
            raise KeyboardInterrupt
        return key(self)

    monkeypatch.chdir(tmp_path)
    config.chosen_files.cache_clear()
    monkeypatch.setattr(Node, "_key", interrupted)
    result = fedopt(monkeypatch, capsys, "algo=fedmsa", "problem=mco", "algo.K=3", *words)
    assert (result.code, result.err) == (130, "fedopt: stopped\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("how", ["moved", "removed"])
def test_a_folder_that_another_program_takes_away(how, monkeypatch, capsys, tmp_path):
    """One line, and no new folder with half a run in it."""
    append, folder = MetricsFile.append, tmp_path / "run"

    def meddled(self, row):
        append(self, row)
        if row["round"] == 2:
            folder.rename(tmp_path / "moved")
            if how == "removed":
                shutil.rmtree(tmp_path / "moved")

    monkeypatch.setattr(MetricsFile, "append", meddled)
    result = fedopt(monkeypatch, capsys, *TINY, f"output_dir={folder}")
    assert result.code == 2
    assert "removed this folder" in result.err.splitlines()[-1]
    assert not folder.exists()
    monkeypatch.setattr(MetricsFile, "append", append)
    if how == "moved":
        assert fedopt(monkeypatch, capsys, *TINY, f"output_dir={tmp_path / 'moved'}", "resume=true").code == 0


ODD_STATES = """
from dataclasses import dataclass
from typing import Any, NamedTuple
import torch
from fedopt.algorithms.fedmsa import FedMSA


class Silent(Exception):
    def __str__(self):
        raise ValueError("cannot be shown")


@dataclass(frozen=True)
class Fails(FedMSA):
    def step(self, s, problem, fed):
        raise Silent


@dataclass(frozen=True)
class FailsWithoutAWord(FedMSA):
    def step(self, s, problem, fed):
        raise RuntimeError


class Odd(NamedTuple):
    more: Any
    s: Any


@dataclass(frozen=True)
class Grows(FedMSA):
    def init(self, problem):
        return Odd(torch.zeros(1), super().init(problem))

    def output(self, s):
        return super().output(s.s)

    def step(self, s, problem, fed):
        return Odd(torch.zeros(len(s.more) + 1), super().step(s.s, problem, fed))


@dataclass(frozen=True)
class HoldsAnything(Grows):
    def step(self, s, problem, fed):
        return Odd(object(), FedMSA.step(self, s.s, problem, fed))
"""


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [
        ("Fails", "Silent"),
        ("FailsWithoutAWord", "RuntimeError"),
        ("Grows", "must keep the shapes"),
        ("HoldsAnything", "to a object"),
    ],
)
def test_algorithms_that_do_what_nobody_expects(algorithm, said, monkeypatch, capsys, tmp_path):
    (tmp_path / "odd_states.py").write_text(ODD_STATES)
    monkeypatch.syspath_prepend(str(tmp_path))
    more = [f"algo._target_=odd_states.{algorithm}", f"output_dir={tmp_path / 'run'}"]
    result = fedopt(monkeypatch, capsys, *TINY, *more)
    assert result.code in (1, 2)
    assert said in result.err.splitlines()[-1]
    assert said in RunFolder(tmp_path / "run").summary()["error"]


# Sweeps


def test_refused_jobs_are_failures(monkeypatch, capsys, tmp_path):
    """A folder in which another process is writing: the sweep says so with its exit code, too."""
    folder = RunFolder(tmp_path / "sweep" / "fedmsa_mco-seed0-K2-rounds4-threads1-examples40")
    folder.open()
    result = fedopt(monkeypatch, capsys, "-m", *TINY, "algo.K=2,3", f"output_dir={tmp_path / 'sweep'}")
    folder.close()
    assert result.code == 1
    assert "another run is writing here" in result.err
    assert "1 finished" in result.out


def test_a_folder_of_another_run_is_passed_by(monkeypatch, capsys, tmp_path):
    folder = tmp_path / "sweep" / "fedmsa_mco-seed0-K2-rounds4-threads1-examples40"
    assert fedopt(monkeypatch, capsys, *TINY, "algo.K=3", f"output_dir='{folder}'").code == 0
    assert fedopt(monkeypatch, capsys, "-m", *TINY, "algo.K=2", f"output_dir={tmp_path / 'sweep'}").code == 0
    assert RunFolder(folder).config()["algo"]["K"] == 3
    assert RunFolder(folder.with_name(f"{folder.name}-2")).config()["algo"]["K"] == 2


def test_each_job_has_a_folder_of_its_own(monkeypatch, capsys, tmp_path):
    """Values that differ only in what no folder's name holds."""
    values = "algo.alpha={kind: inverse_power, initial: 0.01},{kind: inverse_power, initial: 0.01, power: 1}"
    result = fedopt(monkeypatch, capsys, "-m", *TINY, values, f"output_dir={tmp_path / 'sweep'}")
    assert result.code == 0, result.err
    assert len(list(tmp_path.glob("sweep/*/metrics.csv"))) == 2


def test_a_folder_that_is_null_is_the_usual_one(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert fedopt(monkeypatch, capsys, "-m", *TINY, "seed=0,1", "output_dir=null").code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["outputs"]


# Config folders

OWN_FILE = "# @package _global_\nbudget: {rounds: 1}\n"


def put(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def test_config_folders_of_any_name(monkeypatch, capsys, tmp_path):
    """Several of them, in a run and in a sweep."""
    names = {"a": "one,two", "b": "it's", "c": "[x]", "d": "${seed}", "e": 'a"b'}
    for name, folder in names.items():
        put(tmp_path / folder / "experiment" / f"{name}.yaml", OWN_FILE)
    folders = [word for folder in names.values() for word in ("--config-dir", str(tmp_path / folder))]
    for name in names:
        arguments = [*folders, *PAIR, *TINY[2:3], f"experiment={name}", f"output_dir={tmp_path / 'runs' / name}"]
        assert fedopt(monkeypatch, capsys, *arguments).code == 0
    sweep = ["-m", *folders, *TINY, f"experiment={','.join(names)}", f"output_dir={tmp_path / 'sweep'}"]
    result = fedopt(monkeypatch, capsys, *sweep)
    assert (result.code, result.err.count("Warning")) == (0, 0)
    assert len(list(tmp_path.glob("sweep/*/metrics.csv"))) == len(names)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("algo/fedmsa.yaml", OWN_FILE, "fedopt has a file of this name"),
        ("config.yaml", OWN_FILE, "fedopt has a file of this name"),
        ("experiment/own.yaml", b"seed: \xff", "UTF-8"),
        ("experiment/own.yaml", "# @package _global_\n2\n", "int"),
        ("experiment/own.yaml", "# @package _global_\n[1]\n", "ListConfig"),
        ("experiment/own.yaml", "# @package _global_\ndefaults: [own]\n", "form a cycle"),
    ],
)
def test_files_that_could_not_be_used(name, content, said, monkeypatch, capsys, tmp_path):
    put(tmp_path / "conf" / name, content)
    chosen = ["experiment=own"] if name.startswith("experiment") else []
    result = fedopt(monkeypatch, capsys, *TINY, "--config-dir", str(tmp_path / "conf"), *chosen)
    one_line(result, said)


@pytest.mark.pictures
def test_a_folder_named_like_a_home(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert fedopt(monkeypatch, capsys, *TINY, "output_dir='~/x'").code == 0
    assert (tmp_path / "~" / "x" / "metrics.csv").exists()
