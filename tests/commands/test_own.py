"""Custom algorithms and problems: `fedopt new`, and errors in them, which are reported with the file and the line."""

import itertools
import re
import shlex
import sys
from collections import namedtuple
from functools import partial
from importlib import import_module, invalidate_caches
from importlib.util import find_spec, module_from_spec
from textwrap import indent
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.cases import few
from support.command import PAIR, ROOT, code_of, fedopt

from fedopt.commands import compare
from fedopt.commands.new import EXAMPLES, TEMPLATES, new
from fedopt.data.partitioners import Iid
from fedopt.errors import UserError
from fedopt.federation.draws import Steps
from fedopt.federation.memory import Memory
from fedopt.metrics import Metric
from fedopt.problems.function import function
from fedopt.results.card import sources
from fedopt.results.folder import LEFT_OVER
from fedopt.testing.conftest import pytest_configure
from fedopt.testing.harness import small

GUIDES = ("custom", "own-algorithm", "method-recipes", "own-problem", "problem-examples")
PAGE = "".join(
    (ROOT / "docs" / f"{name}.md").read_text() for name in GUIDES
)  # which show the templates, or link to them
COUNT = itertools.count()
CHOSEN = {
    "my_sgd": ["algo=my_sgd", "problem=classification", "dataset=digits", "problem.widths=[4]", "algo.B=4"],
    "my_weights": ["algo=fednest", "problem=my_weights"],
    "my_regression": ["algo=fedavg", "problem=my_regression", "algo.B=4"],
}
GRADIENT, NEW = 'return client.gradient(x, client.sample("xi"))', "return State(s.x - self.eta * g)"
F, START = "return weight @ (a @ x - b) ** 2", "return (torch.zeros_like(self.a[0]),)"
MSE = '{"mse": float(torch.mean((self.a @ x - self.b) ** 2))}'

# A line of a template, what stands there instead, what is said, and the function that it is said of; none: the line
IN_ALGORITHM = {
    "a client without return": (GRADIENT, GRADIENT[7:], "gradient returns None", "def gradient"),
    "a client with a float": (GRADIENT, "return 0.5", "gradient returns a float", "def gradient"),
    "step without return": (NEW, NEW[7:], "returns None", "def step"),
    "step of another shape": (NEW, "return State(s.x[:3])", "from [310] of torch.float32 to [3]", "def step"),
    "step of another type": (NEW, "return State(s.x.double())", "to [310] of torch.float64", "def step"),
    "step with a float": (NEW, "return State(0.5)", "float", "def step"),
    "init without return": ("return State(*", "State(*", "returns None", "def init"),
    "init of a plain tuple": ("return State(*", "return tuple(", "a NamedTuple of tensors", "def init"),
    "output without return": ("return (s.x,)", "(s.x,)", "returns None", "def output"),
    "uneven work of no field": (
        "solves: ClassVar",
        "uneven: ClassVar = 'tau'; solves: ClassVar",
        "no field tau",
        "@dataclass",
    ),
    "output of no tuple": ("return (s.x,)", "return s.x", "a tuple of tensors", "def output"),
    "in place on the state": (
        NEW,
        "s.x.sub_(g); return State(s.x)",
        "MySgd.step changes its arguments in place",
        "def step",
    ),
    "in place on the message": (GRADIENT, f"x -= 1; {GRADIENT}", "gradient writes over its message", "def gradient"),
    "randn on the server": (NEW, "return State(s.x + g.clone().normal_())", "the random numbers of torch", "def step"),
    "if": (GRADIENT, f"g = {GRADIENT[7:]}; return g if g.sum() > 0 else -g", "RuntimeError", None),
    "item": (GRADIENT, f"{GRADIENT}.sum().item() * x", "RuntimeError", None),
    "randn": (GRADIENT, "import torch; return torch.randn(len(x))", "random", None),
    "numpy": (GRADIENT, f"import numpy; return x * numpy.sum({GRADIENT[7:]}.numpy())", "RuntimeError", None),
    "a step of a scan without return": (
        GRADIENT,
        'def step(y, xi): client.gradient(y, xi)\n            return client.scan("xi", step, x)',
        "gradient.<locals>.step returns None",
        None,
    ),
    "an oracle of another class": (
        GRADIENT,
        "return client.inner_gradient(x, x, client.sample('xi'))",
        "needs a bilevel or local_bilevel problem, and Classification is minimisation here, which offers client.f, ",
        None,
    ),
    "a server's gradient": (
        NEW,
        "return State(s.x - fed.server_gradient(s.x, 1))",
        "Classification",
        NEW,
    ),
    "a mistyped oracle": (GRADIENT, GRADIENT.replace(".gradient", ".gradinet"), "did you mean gradient?", None),
    "a mistyped variable": (GRADIENT, GRADIENT.replace("gradient(x", "gradient(xx"), "'xx' is not defined", None),
    "an argument too few": (GRADIENT, "return client.gradient(x)", "missing 1 required positional argument", None),
    "a schedule as a number": ("import Minimisation,", "import Schedule as float, Minimisation,", "'Constant'", NEW),
    "no new row of the memory": (
        "g = fed.exchange(gradient, s.x, fed.cohort(), xi=Steps(1, self.B))",
        "from fedopt import Memory; g = fed.exchange(gradient, s.x, fed.cohort(), memory=Memory([s.x] * 99), xi=Steps(1, 2))",
        "(answer, new row of its memory)",
        "def gradient",
    ),
    "a tensor as memory": (
        "g = fed.exchange(gradient, s.x, fed.cohort(), xi=Steps(1, self.B))",
        "g = fed.exchange(gradient, s.x, fed.cohort(), memory=s.x, xi=Steps(1, 2))",
        "not a fedopt.Memory",
        "def gradient",
    ),
    "a memory with too few rows": (
        "g = fed.exchange(gradient, s.x, fed.cohort(), xi=Steps(1, self.B))",
        "from fedopt import Memory; g = fed.exchange(gradient, s.x, fed.cohort(), memory=Memory([s.x]), xi=Steps(1, 2))",
        "has no row in a Memory of 1 rows",
        None,
    ),
    "a batch of no example": ("Steps(1, self.B)", "Steps(1, 0)", "B=0: must be at least 1", None),
    "a state of another type": (
        "return State(*problem.start())",
        "return State(problem.start()[0].double())",
        "s.x of torch.float64, but hardware.dtype is torch.float32",
        "def init",
    ),
    "memory of an exchange without": (GRADIENT, "return client.memory", "does not pass memory to the clients", None),
    "nothing sent to it alone": (GRADIENT, "return client.own", "fed.exchange(..., own=...)", None),
    "shapes": (GRADIENT, "return client.gradient(x[:3], client.sample('xi'))", "split_sizes to sum exactly to 3", None),
    "types": (GRADIENT, "return client.gradient(x.double(), client.sample('xi'))", "found Double", None),
}
IN_PROBLEM = {
    "f without return": (F, F[7:], "returns None", "def f"),
    "f of several numbers": (F, "return (a @ x - b) ** 2", "shape [2]; it must return a tensor of one number", "def f"),
    "f with a float": (F, f"return float({F[7:]})", "returns a float", "def f"),
    "f of another type": (F, f"return ({F[7:]}).double()", "returns torch.float64", "def f"),
    "start without return": (START, START[7:], "returns None", "def start"),
    "start of a matrix": (
        START,
        "return (torch.zeros(2, 5),)",
        "shape [2, 5]; it must return flat vectors",
        "def start",
    ),
    "start of no tuple": (START, "return torch.zeros_like(self.a[0])", "a tuple of one vector", "def start"),
    "start of another type": (START, "return (torch.zeros(10).double(),)", "returns torch.float64", "def start"),
    "evaluate without return": (f"return {MSE}", MSE, "returns None", "def evaluate"),
    "evaluate of several numbers": (MSE, '{"mse": x}', "several numbers", "def evaluate"),
    "sample without return": ("return self.a[index],", "self.a[index],", "NoneType", "a, b, weight ="),
    "data of another type": ("self.world.tensor(a @ x", "torch.from_numpy(a @ x", "Double", F),
    "in place on the sample": (F, f"b -= a @ x; {F}", "MyRegression.f changes its arguments in place", "def f"),
    "in place on x": (F, f"x *= 2; {F}", "MyRegression.f changes its arguments in place", "def f"),
    "randn in f": (F, "return weight @ torch.randn(2)", "the random numbers of torch", "def f"),
    "nobody has examples": ("self.splits = ", "splits = ", "MyRegression has no splits", "@dataclass"),
    "shapes in f": (F, "return weight @ (a.T @ x - b) ** 2", "size mismatch", None),
    "a mistyped name": (F, "return wieght @ (a @ x - b) ** 2", "'wieght' is not defined", None),
    "an if in f": (F, f"return x.sum() if x.sum() > 0 else {F[7:]}", "RuntimeError", None),
    "item in f": (F, f"{F} * weight.sum().item()", "RuntimeError", None),
    "a mistyped key": (F, "sample = {'train': 1}; sample['valid']", "KeyError: 'valid'", None),
    "numpy in f": (F, f"import numpy; {F} * numpy.sum(x.numpy())", "RuntimeError", None),
}


def mistaken(example, change, engine, monkeypatch, capsys, folder):
    """The outcome of a run of an example with one line changed, and the place that its message should name."""
    right, wrong, _, named = change
    name = f"{example}_{next(COUNT)}"  # modules are imported once
    text = (TEMPLATES / f"{example}.py").read_text()
    assert text.count(right) == 1
    (folder / f"{name}.py").write_text(text.replace(right, wrong))
    group = folder / "myconf" / ("algo" if example == "my_sgd" else "problem")
    group.mkdir(parents=True)
    node = (TEMPLATES / f"{example}.yaml").read_text().replace(f" {example}.", f" {name}.")
    (group / f"{example}.yaml").write_text(node)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.chdir(folder)
    words = [*CHOSEN[example], "budget.rounds=2", "hardware.threads=1", f"hardware.engine={engine}"]
    at = text[: text.index(named or right)].count("\n") + 1
    return fedopt(monkeypatch, capsys, "--config-dir", "myconf", *words), f"fedopt: {name}.py:{at}: "


def changing(monkeypatch, folder):
    """Makes algo=mine of the template, in myconf in the folder; gives a function that replaces words of it, as an editor between
    two commands does, and gives the module's name."""
    name = f"my_sgd_{next(COUNT)}"
    text = (TEMPLATES / "my_sgd.py").read_text()
    (folder / f"{name}.py").write_text(text)
    group = folder / "myconf" / "algo"
    group.mkdir(parents=True)
    (group / "mine.yaml").write_text((TEMPLATES / "my_sgd.yaml").read_text().replace(": my_sgd.", f": {name}."))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.chdir(folder)

    def change(words, others):
        assert words in text
        (folder / f"{name}.py").write_text(text.replace(words, others))
        sys.modules.pop(name, None)
        invalidate_caches()
        return name

    return change


MISTAKES = [*IN_ALGORITHM, *IN_PROBLEM]


@pytest.mark.parametrize("mistake", few(MISTAKES, lambda mistake: MISTAKES.index(mistake) % 5 == 0))
def test_mistakes(mistake, monkeypatch, capsys, tmp_path):
    example = "my_sgd" if mistake in IN_ALGORITHM else "my_regression"
    change = {**IN_ALGORITHM, **IN_PROBLEM}[mistake]
    result, place = mistaken(example, change, "vectorised", monkeypatch, capsys, tmp_path)
    line = result.err.splitlines()[-1]
    assert result.code == 2, line
    assert line.startswith(place)
    assert change[2] in line
    assert ("hardware.engine=one_by_one" in line) == (mistake in OF_VMAP)
    assert "this is a bug" not in line


UNCALLED = [
    (
        "    def start(self):",
        "    def project(self, y):\n        return y\n\n    def start(self):",
        "MyRegression.project has project",
    ),
    (
        "    weighting =",
        '    f_split = "train"\n    weighting =',
        "MyRegression has f_split, which only bilevel, ",
    ),
]


@pytest.mark.parametrize("change", UNCALLED)
def test_a_hook_that_the_class_never_calls(change, monkeypatch, capsys, tmp_path):
    right, wrong, said = change
    named = None if "def" in right else "@dataclass"
    result, place = mistaken("my_regression", (right, wrong, said, named), "vectorised", monkeypatch, capsys, tmp_path)
    line = result.err.splitlines()[-1]
    assert (result.code, line.startswith(place), said in line) == (2, True, True), line
    assert "not minimisation problems" in line


OF_VMAP = [
    "if",
    "shapes",
    "item",
    "randn",
    "numpy",
    "types",
    "an if in f",
    "item in f",
    "numpy in f",
]  # may be, as far as blame knows
ONE_BY_ONE = ["a client without return", "in place on the message", "randn", "types", "if", "item"]


@pytest.mark.parametrize("mistake", [*ONE_BY_ONE, "a step of a scan without return"])
def test_mistakes_one_by_one(mistake, monkeypatch, capsys, tmp_path):
    """Nothing is said of vmap, and what only vmap cannot do runs."""
    change = IN_ALGORITHM[mistake]
    result, place = mistaken("my_sgd", change, "one_by_one", monkeypatch, capsys, tmp_path)
    if mistake in ("if", "item"):
        assert result.code == 0, result.err
        return
    assert result.code == 2
    line = result.err.splitlines()[-1]
    assert line.startswith(place) or "MySgd.step uses the random numbers" in line
    assert "vmap" not in line


def test_mistakes_in_the_config_are_told_by_their_keys(monkeypatch, capsys, tmp_path):
    """Of a problem of one's own, whose call of set_up is where a network and data are made."""
    for suffix in ("py", "yaml"):
        (tmp_path / f"my_weights.{suffix}").write_text((TEMPLATES / f"my_weights.{suffix}").read_text())
    (tmp_path / "problem").mkdir()
    (tmp_path / "my_weights.yaml").rename(tmp_path / "problem" / "my_weights.yaml")
    monkeypatch.syspath_prepend(str(tmp_path))
    words = ["--config-dir", str(tmp_path), "algo=fednest", "problem=my_weights", "output_dir=out"]
    for word, said in (
        ("problem.model=support.networks.Nobody", "problem.model=support.networks.Nobody cannot be imported"),
        ("dataset=npz dataset.path=no.npz", "no.npz: there is no such file"),
    ):
        result = fedopt(monkeypatch, capsys, *words, *word.split())
        assert (result.code, said in result.err.splitlines()[-1]) == (2, True), result.err


HEADLESS = "its keys belong to the top level"
OWN = {  # the file that is changed, what stands there, what instead, and what is said; {}: the number of the module
    "a field without a key": (
        "py",
        "    eta: float",
        "    eta: float\n    mu: float",
        "algo.mu: is missing; the keys are eta, mu, B",
    ),
    "a key without a field": ("yaml", "eta:", "etta:", "algo.etta: there is no such key, did you mean eta?"),
    "a mistyped class": (
        "yaml",
        ".MySgd",
        ".MySgb",
        "has no MySgb, did you mean MySgd?",
    ),
    "another class": ("yaml", ".MySgd", ".Other", "my_sgd_{0} has no Other"),
    "a node in a node": ("yaml", "_target_: ", "algo:\n  _target_: ", f"myconf/algo/my_sgd.yaml: {HEADLESS}"),
}


@pytest.mark.parametrize("mistake", OWN)
def test_keys_and_classes(mistake, monkeypatch, capsys, tmp_path):
    suffix, right, wrong, said = OWN[mistake]
    number = next(COUNT)
    name, group = f"my_sgd_{number}", tmp_path / "myconf" / "algo"
    texts = {kind: (TEMPLATES / f"my_sgd.{kind}").read_text() for kind in ("py", "yaml")}
    texts["yaml"] = texts["yaml"].replace(": my_sgd.", f": {name}.")
    texts[suffix] = texts[suffix].replace(right, wrong)
    group.mkdir(parents=True)
    (tmp_path / f"{name}.py").write_text(texts["py"])
    (group / "my_sgd.yaml").write_text(texts["yaml"])
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    result = fedopt(monkeypatch, capsys, "--config-dir", "myconf", *CHOSEN["my_sgd"][:-1])
    assert result.code == 2
    assert said.format(number) in result.err.splitlines()[-1]


def test_a_run_that_goes_on_after_its_class_changed(monkeypatch, capsys, tmp_path):
    """Its config folder is not known any more."""
    change = changing(monkeypatch, tmp_path)
    words = ["algo=mine", *CHOSEN["my_sgd"][1:], "budget.rounds=2", "output_dir=run"]
    assert fedopt(monkeypatch, capsys, "--config-dir", "myconf", *words).code == 0
    change("    eta: float", "    eta: float\n    mu: float")
    result = fedopt(monkeypatch, capsys, "resume=true", "output_dir=run", "budget.rounds=3")
    assert result.code == 2
    assert "algo.mu" in result.err


def test_runs_of_code_that_has_changed(monkeypatch, capsys, tmp_path):
    """A sweep keeps them and says so, and so does a comparison with runs of the new code."""
    change = changing(monkeypatch, tmp_path)
    words = ["--config-dir", "myconf", "-m", "algo=mine,fedavg", *CHOSEN["my_sgd"][1:], "output_dir=runs"]
    sweep = partial(fedopt, monkeypatch, capsys, *words, "budget.rounds=2", "hardware.threads=1", "preset=none")
    assert sweep("seed=0").code == 0
    again = sweep("seed=0")
    assert again.out.count("already done") == 2
    assert "changed" not in again.err
    name = change("s.x - self.eta * g", "s.x - 0 * self.eta * g")
    folder = next(path for path in (tmp_path / "runs").iterdir() if path.name.startswith("mine"))
    before = (folder / "metrics.csv").read_bytes()
    more = sweep("seed=0,1")
    assert (
        more.err.count(
            f": {name} changed since this run started; it continues with the new code; to start again, delete the folder\n"
        )
        == 1
    )
    assert (folder / "metrics.csv").read_bytes() == before
    monkeypatch.setattr(sys, "argv", ["fedopt-compare", "runs"])
    assert code_of(compare.main) == 0
    assert f"the runs were made by 2 versions of {name}; delete the older ones" in capsys.readouterr().err
    longer = fedopt(
        monkeypatch, capsys, "resume=true", f"output_dir='{folder.relative_to(tmp_path)}'", "budget.rounds=3"
    )
    assert longer.code == 0, longer.err
    assert f": {name} changed since this run started; it continues" in longer.err


def test_modules_that_ones_own_code_takes_from_count(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(tmp_path))
    names = [f"{part}_{next(COUNT)}" for part in ("method", "helper", "constants", "other")]
    method, helper, constants, other = names
    (tmp_path / f"{method}.py").write_text(f"from {helper} import f\nimport torch\nclass Mine:\n    pass\n")
    (tmp_path / f"{helper}.py").write_text(f"import {constants}\ndef f():\n    return {constants}.C\n")
    (tmp_path / f"{constants}.py").write_text("C = 1\n")
    (tmp_path / f"{other}.py").write_text("")
    invalidate_caches()
    import_module(other)
    assert sorted(sources({"algo": {"_target_": f"{method}.Mine"}, "problem": {"model": "mlp"}})) == sorted(names[:3])
    assert list(sources({"problem": {"model": f"{constants}.Net"}})) == [constants]
    assert sources({"algo": {"_target_": "fedopt.algorithms.fedmsa.FedMSA"}, "problem": {"model": "no.such"}}) == {}


def test_a_run_that_fails_in_its_first_step_leaves_its_folder_to_the_next(monkeypatch, capsys, tmp_path):
    change = changing(monkeypatch, tmp_path)
    words = ["--config-dir", "myconf", "algo=mine", *CHOSEN["my_sgd"][1:], "budget.rounds=3", "output_dir=run"]
    change("s.x - self.eta * g", "s.y")
    assert fedopt(monkeypatch, capsys, *words).code != 0
    assert sorted(path.name for path in (tmp_path / "run").iterdir() if path.name != ".lock") == sorted(LEFT_OVER)
    change("s.x - self.eta * g", "s.y if fed.r else s.x - self.eta * g")
    assert fedopt(monkeypatch, capsys, *words).code != 0
    change("s.x - self.eta * g", "s.x - self.eta * g")
    refused = fedopt(monkeypatch, capsys, *words)  # a round of it was computed
    assert "already contains a run (failed); resume it with resume=true" in refused.err
    assert fedopt(monkeypatch, capsys, *words, "resume=true").code == 0


def test_a_run_that_goes_on_with_another_division(monkeypatch, capsys, tmp_path):
    words = [f"output_dir={tmp_path / 'run'}", "hardware.threads=1"]
    began = fedopt(
        monkeypatch, capsys, *CHOSEN["my_sgd"][1:], "algo=fedavg", "partitioner=iid", "budget.rounds=2", *words
    )
    assert began.code == 0, began.err
    before = (tmp_path / "run" / "metrics.csv").read_bytes()
    monkeypatch.setattr(Iid, "__call__", lambda self, count, *_: np.array_split(np.arange(count), self.clients))
    result = fedopt(monkeypatch, capsys, "resume=true", "budget.rounds=3", *words)
    assert result.code == 2
    assert result.err.splitlines()[-1].endswith("restore them, or start a new run in another output_dir")
    assert (tmp_path / "run" / "metrics.csv").read_bytes() == before


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("experiment/mine", "budget:\n  rounds: 2\n"),
        ("experiment/mine", "defaults:\n  - override /algo: fedavg\n"),
    ],
)
def test_a_file_without_its_first_line(option, text, monkeypatch, capsys, tmp_path):
    file = tmp_path / "conf" / f"{option}.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    result = fedopt(monkeypatch, capsys, "--config-dir", str(tmp_path / "conf"), option.replace("/", "="))
    assert result.code == 2
    assert f"{file}: {HEADLESS}" in result.err


def test_examples_that_f_is_taken_on(monkeypatch, capsys, tmp_path):
    """Of a bilevel problem whose clients have one split."""
    set_up = "self.set_up(self.world.load(validation=True), held_out=self.validation)"
    change = (set_up, "self.set_up(self.world.load())", "", "@dataclass")
    result, place = mistaken("my_weights", change, "vectorised", monkeypatch, capsys, tmp_path)
    assert result.code == 2
    assert f"{place}MyWeights evaluates f on the split val, and self.splits has train; set f_split" in result.err


def test_a_direct_part_that_is_denied(monkeypatch, capsys, tmp_path):
    line = "return cross_entropy(self.net(y, batch.x, *batch.keys), batch)"
    change = (line, f"{line} + x.sum()", "", "def f")
    result, place = mistaken("my_weights", change, "vectorised", monkeypatch, capsys, tmp_path)
    assert result.code == 2
    assert f"{place}MyWeights.f depends on x, but the class has direct = False" in result.err


def test_a_mistake_of_ours_is_ours(monkeypatch, capsys, tmp_path):
    """Where nothing of the user's was at work."""
    monkeypatch.setattr("fedopt.running.lifecycle.costs", lambda *_: [][0])
    monkeypatch.setattr("fedopt.blame.is_own", lambda path: path.startswith(str(tmp_path)))
    result = fedopt(
        monkeypatch, capsys, *PAIR, "problem.examples=40", "budget.rounds=1", f"output_dir={tmp_path / 'run'}"
    )
    assert result.code == 1
    assert "this is a bug" in result.err


SKELETONS = [pytest.param(*begun, marks=[] if "minimisation" in begun else pytest.mark.full) for begun in EXAMPLES]


@pytest.mark.parametrize(("kind", "of"), SKELETONS)
def test_a_skeleton_runs_and_passes_its_test(kind, of, monkeypatch, capsys, tmp_path):
    name = f"my_{of}_{kind}"
    monkeypatch.chdir(tmp_path)
    result = fedopt(monkeypatch, capsys, "new", kind, name, "--class", of)
    assert result.code == 0
    written = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.*"))
    assert written == sorted(["fedopt.toml", f"{name}.py", f"myconf/{kind}/{name}.yaml", f"test_{name}.py"])
    last = result.out.splitlines()[-1].removeprefix("to run it: ")
    assert last.startswith("fedopt ")
    run = fedopt(monkeypatch, capsys, *shlex.split(last)[1:], "budget.rounds=2", "hardware.threads=1")
    assert "finished after 2 rounds" in run.out, run.err
    tests = [test for called, test in vars(import_module(f"test_{name}")).items() if called.startswith("test_")]
    assert len(tests) == 4
    for test in tests:
        test(*[tmp_path] * test.__code__.co_argcount)


@pytest.mark.parametrize("row", ["s.x.sum()", "s.x.view(2, -1)"])
def test_the_test_of_a_method_reads_rows_of_any_shape_back(row, monkeypatch, tmp_path):
    """A method whose clients keep a number, or a matrix, goes on as if nothing had happened."""
    name = f"my_sgd_{next(COUNT)}"
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    new(["algo", name])
    path = tmp_path / f"{name}.py"
    changes = {
        "x: Tensor": "x: Tensor; memory: Memory",
        "return State(*problem.start())": f"s = State(*problem.start(), ()); return State(s.x, Memory([0 * {row}] * 99))",
        GRADIENT: f"{GRADIENT} + 0.1 * client.memory.sum(), client.memory + 1",
        "g = fed.exchange(gradient, s.x, fed.cohort()": "g, memory = fed.exchange(gradient, s.x, fed.cohort(), memory=s.memory",
        NEW: NEW.replace("g)", "g, memory)"),
        "from fedopt import ": "from fedopt import Memory, ",
    }
    text = path.read_text()
    for right, other in changes.items():
        assert text.count(right) == 1, right
        text = text.replace(right, other)
    path.write_text(text)
    import_module(f"test_{name}").test_resume(tmp_path)


@pytest.mark.parametrize(
    ("name", "said"),
    [("taken", "taken.py"), ("random", "installed"), ("Mine", "in lower case"), ("mco", "of fedopt")],
)
def test_names_that_cannot_be_taken(name, said, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken.py").write_text("kept")
    result = fedopt(monkeypatch, capsys, "new", "problem", name)
    assert result.code == 2
    assert said in result.err
    assert [path.name for path in tmp_path.iterdir()] == ["taken.py"]
    assert (tmp_path / "taken.py").read_text() == "kept"


@pytest.mark.parametrize("path", sorted(TEMPLATES.glob("my_*")), ids=lambda path: path.name)
def test_a_guide_shows_the_template_or_links_to_it(path):
    assert f"<!-- generated: template {path.name} -->" in PAGE or f"](../fedopt/templates/{path.stem}.py)" in PAGE
    assert len(path.read_text().splitlines()) <= 55


def test_random_directions_on_the_page():
    e = small("fedavg", "classification")
    (x,) = e.problem.start()
    kinds = {"np": np, "torch": torch, "Steps": Steps, "self": SimpleNamespace(B=4)}
    names = {**kinds, "fed": e.federation.at(0), "s": SimpleNamespace(x=x)}
    _, random = re.findall(r"```python\n(# in step: .*?)```", PAGE, re.DOTALL)
    exec(random, names)
    assert names["g"].shape == x.shape
    assert names["g"].norm() > 0


def test_general_derivatives_on_the_page():
    e = small("fednest", "quadratic_bilevel")
    x, y = e.problem.start()
    fed = e.federation.at(0)
    names = {
        "torch": torch,
        "Steps": Steps,
        "self": SimpleNamespace(B=None),
        "fed": fed,
        "s": SimpleNamespace(x=x, y=y),
    }
    exec(re.search(r"```python\n(# in step: the gradient in x .*?)```", PAGE, re.DOTALL)[1], names)
    expected, cohort = 0 * x, e.federation.at(0).cohort()
    for i in cohort:
        m = {name: rows[i] for name, rows in e.problem.per_client.items()}
        slope = m["A"] @ y - m["B"] @ x - m["c"]
        expected += (m["D"] @ x - m["d"] + m["G"] @ y - 0.2 * m["B"].T @ slope) / len(cohort)
    torch.testing.assert_close(names["d"], expected)
    assert (e.federation.ledger.calls.grad, e.federation.ledger.calls.jvp) == (len(cohort), len(cohort))


def test_the_gradient_that_a_function_owns_on_the_page():
    block = re.search(r"```python\n# in the class, with [^\n]*\n(.*?)```", PAGE, re.DOTALL)[1]
    names = {"function": function}
    exec("class Faster:\n" + indent(block, "    "), names)
    p, generator = names["Faster"](), torch.Generator().manual_seed(0)
    a, b, weight, x = (torch.rand(*shape, generator=generator) for shape in ((5, 3), (5,), (5,), (3,)))
    automatic = torch.func.grad(p.f)(x, (a, b, weight))
    torch.testing.assert_close(p.f.gradient(x, (a, b, weight)), automatic)


def test_the_metric_of_test_examples_on_the_page():
    """The accuracy of the worst class, as NumPy finds it from the logits of all test examples."""
    (block,) = re.findall(r"```python\n# in MyWeights, with [^\n]*\n(.*?)```", PAGE, re.DOTALL)
    p, names = small("fedavg", "classification").original, {"Metric": Metric}
    exec(block, names)
    y = p.start()[0] + 0.3 * torch.sin(torch.arange(len(p.start()[0])))
    of_test = p.test_examples
    right = (p.net(y, of_test.x).argmax(1) == of_test.y).numpy()
    expected = 100 * min(right[of_test.y.numpy() == c].mean() for c in range(p.classes))
    assert names["evaluate"](p, None, y) == {"worst_class": pytest.approx(expected)}


def test_the_memory_on_the_page():
    """Of each client it has the gradient of the last round."""
    e = small("fedavg", "classification")
    (block,) = re.findall(r"```python\n(# class State.*?)```", PAGE, re.DOTALL)
    names = {"Steps": Steps, "Memory": Memory, "State": namedtuple("State", ("x", "memory"))}
    exec(block, names)
    me = SimpleNamespace(B=None, eta=0.1)
    first = names["init"](me, e.problem)
    second = names["step"](me, first, e.problem, e.federation.at(0))
    third = names["step"](me, second, e.problem, e.federation.at(1))
    x, cohort = e.problem.start()[0], e.federation.at(0).cohort()
    weights = torch.from_numpy(e.problem.weights[cohort] / e.problem.weights[cohort].sum())
    gradient = weights.to(x) @ second.memory.rows(cohort)
    torch.testing.assert_close(second.x, x - 0.1 * gradient)
    assert sorted(third.memory.changed(second.memory)) == sorted(e.federation.at(1).cohort())
    assert not torch.equal(third.x, second.x)
    with pytest.raises(
        UserError,
        match=r"a Memory's rows have shape \[\] .*, but a new row has .*; make it with a row for each",
    ):
        Memory(x.new_zeros(6)).replaced(cohort, second.memory.rows(cohort))


def test_a_module_that_is_not_found(monkeypatch, capsys, tmp_path):
    """Also where it lies in the working directory: the line says what to type."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere.py").write_text("")
    result = fedopt(monkeypatch, capsys, *PAIR, "algo._target_=elsewhere.Mine")
    assert result.code == 2
    assert 'if elsewhere.py is in this folder, write python_path = "." into fedopt.toml' in result.err


def test_a_module_with_a_mistake(monkeypatch, capsys, tmp_path):
    (tmp_path / "broken_at_3.py").write_text("\n\nx = 1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert (
        "broken_at_3.py:3: ZeroDivisionError"
        in fedopt(monkeypatch, capsys, *PAIR, "algo._target_=broken_at_3.Mine").err
    )


def with_folder(folder, monkeypatch):
    """The contract's tests as they are about the files of a config folder, which they read as they are imported."""
    monkeypatch.setenv("FEDOPT_CONTRACT_CONF", str(folder))
    for name in ("harness", "test_contract"):
        spec = find_spec(f"fedopt.testing.{name}")
        module = module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)
        monkeypatch.setattr(f"fedopt.testing.{name}", module, raising=False)
        spec.loader.exec_module(module)
    return module


def test_contract_settings_and_metrics_of_ones_own(monkeypatch, tmp_path):
    """contract.yaml makes a problem small, and its first metric must improve, whatever it is called and whichever way is better.
    It gives a pair its steps, without which fedopt's algorithms need not improve, and says how far from the solution an approximate
    inverse may lead."""
    text = (TEMPLATES / "my_regression.py").read_text()
    declared = 'Metric("fit", "negative error", better="higher"), Metric("size", "|x|")'
    text = text.replace('Metric("mse", "mean squared error", scale="log", bounds=True),', declared)
    text = text.replace(MSE, '{"fit": -float(torch.mean((self.a @ x - self.b) ** 2)), "size": float(x.norm())}')
    (tmp_path / "my_regression.py").write_text(text.replace(F, F.replace("weight", "1e-9 * weight")))
    conf = tmp_path / "myconf"
    (conf / "problem").mkdir(parents=True)
    node = (TEMPLATES / "my_regression.yaml").read_text().replace("examples: 400", "examples: -1")
    (conf / "problem" / "my_regression.yaml").write_text(node)
    (conf / "algo").mkdir()
    (tmp_path / "my_nest.py").write_text((TEMPLATES / "my_nest.py").read_text())
    (conf / "algo" / "my_nest.yaml").write_text((TEMPLATES / "my_nest.yaml").read_text().replace("N: 10", "N: -1"))
    (conf / "contract.yaml").write_text(
        "my_regression: [problem.examples=60]\nmy_nest: [algo.N=30]\nscaffold my_regression: [algo.eta=1e+8]\n"
        "approximate: {my_nest: 0.01}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    contract = with_folder(conf, monkeypatch)
    contract.test_metric_improves("scaffold", "my_regression")
    with pytest.raises(pytest.skip.Exception, match="set 'fedprox my_regression' in contract"):
        contract.test_metric_improves("fedprox", "my_regression")
    contract.test_solution_is_a_fixed_point("my_nest", "quadratic_bilevel", monkeypatch)


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("myconfig", "=myconfig: contains no folder algo or problem"),
        ("myconf", "my_sgd.yaml cannot be imported: the module my_sgd is neither "),
    ],
)
def test_files_that_the_contract_does_not_find_are_one_line(where, said, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    new(["algo", "my_sgd"])
    (tmp_path / "fedopt.toml").unlink()  # which says where the module is
    monkeypatch.setenv("FEDOPT_CONTRACT_CONF", where)
    monkeypatch.delitem(sys.modules, "fedopt.testing.harness")  # which reads the folder as it is imported
    monkeypatch.delattr("fedopt.testing.harness")
    with pytest.raises(pytest.UsageError, match=said):
        pytest_configure(SimpleNamespace(addinivalue_line=lambda *_: None))
