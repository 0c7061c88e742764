"""What `fedopt --help` says, and words that the shell completes."""

import json
import os
import shutil
import subprocess
import sys
from importlib import import_module
from itertools import zip_longest

import pytest
from support.cases import few
from support.command import ROOT, fedopt

from fedopt import __version__
from fedopt.commands.completion import completions
from fedopt.commands.keys import keys
from fedopt.commands.list_ import TOPICS
from fedopt.config import classes
from fedopt.config.files import GROUPS, comments, options

# Keys


def row(result, key):
    """The columns that help shows for a key."""
    (line,) = (line for line in result.out.splitlines() if line.split()[:1] == [key])
    return [column.strip() for column in line.split("  ") if column.strip()]


def test_keys_of_a_run(monkeypatch, capsys):
    """Default, tuned value, type and meaning, of the algorithm's keys and of those that every run has."""
    result = fedopt(monkeypatch, capsys, "--help", "algo=fedmsa", "problem=mco")
    assert row(result, "algo.alpha") == ["algo.alpha", "0.05", "0.0001", "step size", "step size of x"]
    assert row(result, "algo.rho")[:3] == ["algo.rho", "0.5", "number from 0 to 1"]
    assert row(result, "algo.anchor")[2] == "all | cohort"
    assert row(result, "problem.x0")[2] == "number from -1e+30 to 1e+30"
    assert row(result, "partitioner.clients")[1:3] == ["2", "whole number from 1"]
    assert row(result, "from")[2] == "text | null"
    assert row(result, "budget.bytes")[2] == "whole number from 0 | null"
    assert row(result, "eval.metric")[1:4] == ["null", "distance", "text | null"]
    assert "step size: a number, at least 0, or a schedule" in result.out
    of_model = fedopt(monkeypatch, capsys, "--help", "problem=classification", "problem.model")
    assert row(of_model, "problem.model")[2] == "text | mapping"
    assert "tuned values: fedmsa/mco" in result.out
    untuned = fedopt(monkeypatch, capsys, "--help", "algo=fednest", "problem=quadratic_minimax")
    assert "no tuned values for fednest on quadratic_minimax" in untuned.out


def test_one_key(monkeypatch, capsys):
    """By its name; without its group's choice in all of the group; a node gives all of its keys."""
    assert row(fedopt(monkeypatch, capsys, "--help", "preset"), "preset")[1:3] == ["auto", "text"]
    assert row(fedopt(monkeypatch, capsys, "--help", "algo=fednest", "algo.beta"), "algo.beta")[-1] == "step size of y"
    result = fedopt(monkeypatch, capsys, "algo.beta", "-h")
    lines = [line.split("  ") for line in result.out.splitlines()]
    meanings = {line[0]: line[-1].strip().split(", ") for line in lines if len(line) > 1}
    assert "fednest" in meanings["step size of y"]
    assert any(
        key.startswith("step size of the sequences z^n") and "fedmsa" in names for key, names in meanings.items()
    )
    budget = fedopt(monkeypatch, capsys, "--help", "budget")
    assert row(budget, "budget.bytes")[1] == "null"
    assert "seed" not in budget.out
    wrong = fedopt(monkeypatch, capsys, "--help", "algo.bta")
    assert (wrong.code, "did you mean algo.beta?" in wrong.err, wrong.err.count("\n")) == (2, True, 1)
    wrong = fedopt(monkeypatch, capsys, "--help", "sed")
    assert (wrong.code, "there is no such key, did you mean seed?" in wrong.err) == (2, True)


def test_keys_of_a_group(monkeypatch, capsys):
    """Those that a variant inherits, with its own defaults, and the problems that it has tuned values for."""
    result = fedopt(monkeypatch, capsys, "--help", "algo=lfednest")
    assert row(result, "algo.inner")[1:3] == ["sgd", "svrg | sgd"]
    assert row(result, "algo.tau_in")[2] == "local work"
    assert "problem.d" not in result.out
    assert "budget.rounds" not in result.out
    assert "\ntuned values for problem=classification, fair_classification, " in result.out
    model = row(fedopt(monkeypatch, capsys, "--help", "problem=robust_nn"), "problem.norm")
    assert model[1:3] == ["l2", "l1 | l2 | linf"]
    wrong = fedopt(monkeypatch, capsys, "--help", "algo=fedmas")
    assert (wrong.code, "did you mean fedmsa" in wrong.err) == (2, True)


def test_defaults_of_every_run(monkeypatch, capsys):
    """Not those that a problem's file sets."""
    assert row(fedopt(monkeypatch, capsys, "list", "keys"), "participation.cohort")[1] == "null"


@pytest.mark.parametrize("one_of", few([8, 1], lambda one_of: one_of > 1))
def test_every_key_has_a_meaning_and_a_type(one_of):
    """Of every algorithm and problem, and of all data sets, partitioners and machines: several of them at a time, fit or not."""
    groups = [
        [f"{group}={name}" for name in options(group)] for group in GROUPS if group not in ("logger", "experiment")
    ]
    for words in [*zip_longest(*groups)][::one_of]:
        words = [word or group[0] for word, group in zip(words, groups, strict=True)]
        words = [word.replace("imbalanced_mnist", "loss_tuning") for word in words]  # which refuses data of one's own
        lacking = [key for key, said in keys(words, [])[0].items() if not (said.meaning and said.type)]
        assert not lacking, words


OWN = """
from dataclasses import dataclass
from typing import Annotated, Literal
from pydantic import Field
import nothing.that_is_there
Share = Annotated[float, Field(gt=0, le=1)]

@dataclass
class Base:
    share: Share

@dataclass
class Own(Base):
    how: Literal["this", "that"] | None
"""


def test_own_files(tmp_path, monkeypatch, capsys):
    """Of your config folder: options and meanings. Where the class cannot be imported, the types are those of the values."""
    (tmp_path / "conf" / "algo").mkdir(parents=True)
    text = "# My algorithm\n_target_: own_help.Own\nshare: 0.5 # of all # that there is\nhow: this\n"
    (tmp_path / "conf" / "algo" / "mine.yaml").write_text(text)
    (tmp_path / "own_help.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = ["--config-dir", str(tmp_path / "conf")]
    assert any(
        line.split() == ["mine", "My", "algorithm"]
        for line in fedopt(monkeypatch, capsys, "list", "algorithms", *folder).out.splitlines()
    )
    result = fedopt(monkeypatch, capsys, "--help", *folder, "algo=mine")
    assert row(result, "algo.share")[1:] == ["0.5", "number", "of all # that there is"]
    assert row(result, "algo.how")[1:] == ["this", "text"]
    assert "own_help" not in sys.modules


def test_types_of_an_own_class(tmp_path, monkeypatch, capsys):
    """They are kept: the class is imported again only after its file changes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "algo").mkdir()
    (tmp_path / "algo" / "mine.yaml").write_text("# My algorithm\n_target_: own_kept.Own\nshare: 0.5\nhow: this\n")

    def types(text):
        path = tmp_path / "own_kept.py"
        if text:
            path.write_text(text.replace("import nothing.that_is_there\n", ""))
            os.utime(path, ns=(0, len(text)))
        classes._cached.cache_clear()
        sys.modules.pop("own_kept", None)
        result = fedopt(monkeypatch, capsys, "--help", "--config-dir", str(tmp_path), "algo=mine")
        return row(result, "algo.share")[2], row(result, "algo.how")[2], "own_kept" in sys.modules

    assert types(OWN) == ("number above 0 to 1", "this | that | null", True)
    assert types("") == ("number above 0 to 1", "this | that | null", False)
    assert types(OWN.replace("le=1", "le=20")) == ("number above 0 to 20", "this | that | null", True)
    classes._cached.cache_clear()


def test_what_other_processes_keep_of_classes_stays(tmp_path, monkeypatch):
    """One that has read the cache before them adds its answers; a class that cannot be imported leaves nothing."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    classes._cached.cache_clear()
    classes.about(classes.SETTINGS)
    (file,) = tmp_path.rglob("*.json")
    theirs = {"files": {}, "fields": {}, "fits": [], "before": {}}
    file.write_text(json.dumps(json.loads(file.read_text()) | {"their.Class": theirs}))
    classes.about("fedopt.metrics.Metric")
    assert classes.about("nowhere.Class")["fields"] == {}
    assert set(json.loads(file.read_text())) == {classes.SETTINGS, "their.Class", "fedopt.metrics.Metric"}
    classes._cached.cache_clear()


def test_own_problem_without_data(tmp_path, monkeypatch, capsys):
    """Groups that it does not need are not chosen; help of the whole run says so by leaving their name out."""
    (tmp_path / "problem").mkdir()
    (tmp_path / "problem" / "mine.yaml").write_text("# My problem\n_target_: own_help.Own\nwidth: 3 # how wide\n")
    result = fedopt(monkeypatch, capsys, "--help", "--config-dir", str(tmp_path), "algo=fedmsa", "problem=mine")
    assert (result.code, row(result, "problem.width")[-1]) == (0, "how wide")


def test_comments(tmp_path):
    """Beside values of all kinds, and none from inside a text."""
    path = tmp_path / "some.yaml"
    path.write_text(
        "# head\na: 'x # y' # of a\nb: # of b\n  c: [1, 2] # of c\n  d:\n    - 1\n    - 2\ne: {f: 1} # of e\ng: 1\n"
    )
    assert comments(path) == {"a": "of a", "b": "of b", "b.c": "of c", "e": "of e"}


def test_help_is_quick(tmp_path):
    """It loads none of the packages that take seconds, once it is known what the classes say."""
    keys(["algo=fednest", "problem=saddle"], [])
    slow = {"torch", "torchvision", "pandas", "matplotlib", "scipy", "sklearn", "PIL"}
    code = f"import sys\nfrom fedopt.commands.run import main\nmain()\nassert not {slow} & sys.modules.keys()\n"
    env, words = {**os.environ, "PYTHONPATH": str(ROOT)}, ["--help", "algo=fednest", "problem=saddle"]
    subprocess.run([sys.executable, "-c", code, *words], cwd=tmp_path, env=env, check=True, capture_output=True)


# What there is


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["list"],
        *(["list", topic] for topic in [*TOPICS, "keys"]),
        ["--help", "algo=fedmsa", "problem=mco"],
    ],
    ids=" ".join,
)
def test_it_fits_the_terminal(words, width, monkeypatch, capsys):
    monkeypatch.setattr("fedopt.console.say.PIPED", width)
    lines = fedopt(monkeypatch, capsys, *words).out.splitlines()
    assert max(map(len, lines)) <= width
    assert not [line for line in lines if line.endswith(" ")]


def test_help_is_short(monkeypatch, capsys):
    lines = fedopt(monkeypatch, capsys, "--help").out.splitlines()
    assert len(lines) <= 17
    assert "federated nested optimisation" in lines[0]
    assert sum(line.startswith("  fedopt") and "=" in line for line in lines) >= 2
    assert any("fedopt list" in line for line in lines)


def test_screens_of_list(monkeypatch, capsys):
    """Names and texts beside each other; texts below the names where it is narrow."""
    screens = {}
    for width in (40, 60):
        monkeypatch.setattr("fedopt.console.say.PIPED", width)
        screens[width] = fedopt(monkeypatch, capsys, "list", "hardware").out
    assert (
        screens[60]
        == """\
cpu   CPU; processes of torchrun share the clients
cuda  GPU; processes of torchrun share the clients
"""
    )


@pytest.mark.parametrize(
    ("topic", "group"),
    [
        ("algorithms", "algo"),
        ("algo", "algo"),
        ("problem", "problem"),
        ("data", "dataset"),
        ("experiment", "experiment"),
    ],
)
def test_topics(topic, group, monkeypatch, capsys):
    """By the names of groups too, in the singular or the plural."""
    out = fedopt(monkeypatch, capsys, "list", topic).out
    rows = [line for line in out.splitlines() if not line.endswith(":") and not line.startswith("  also ")]
    assert {line.split()[0] for line in rows if line[:3].strip()} >= {*options(group)}


def test_a_list_of_all_methods_is_short(monkeypatch, capsys):
    """A line each at 80 columns, below the classes as pages call them; a class gives all that fit it."""
    monkeypatch.setattr("fedopt.console.say.PIPED", 80)
    lines = fedopt(monkeypatch, capsys, "list", "algorithms").out.splitlines()
    heads = [line.partition(":")[0] for line in lines if line[:1] != " "]
    assert len(lines) <= len(options("algo")) + 17
    assert {"bilevel", "bilevel (local lower level)", "compositional (local)", "risk of pairs"} < {*heads}
    assert not any("_" in head for head in heads)
    fits = fedopt(monkeypatch, capsys, "list", "algorithms", "minimax").out
    assert all(f"\n  {name} " in fits for name in ("local_sgda", "fednest"))
    assert "[Deng & Mahdavi 2021]" in " ".join(fits.split())
    assert (
        fedopt(monkeypatch, capsys, "list", "problems", "risk", "of", "pairs").out.splitlines()[0] == "risk of pairs: 1"
    )
    wrong = fedopt(monkeypatch, capsys, "list", "algorithms", "minmax")
    assert (wrong.code, "did you mean minimax?" in wrong.err) == (2, True)


def test_an_unknown_topic(monkeypatch, capsys):
    result = fedopt(monkeypatch, capsys, "list", "algoritms")
    assert (result.code, "did you mean algorithms?" in result.err, result.err.count("\n")) == (2, True, 1)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("run", ["--version"]),
        ("run", ["ls", "--version"]),
        ("run", ["new", "--version"]),
        ("run", ["list", "--version"]),
        ("compare", ["--version"]),
        ("reproduce", ["--version"]),
    ],
)
def test_version_of_every_command(module, words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["fedopt", *words])
    with pytest.raises(SystemExit) as stop:
        import_module(f"fedopt.commands.{module}").main()

    assert (stop.value.code, capsys.readouterr().out) == (0, f"fedopt {__version__}\n")


# Completion


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("fedopt al", {"algo.", "algo="}),
        ("fedopt l", {"list", "logger=", "ls"}),
        ("fedopt list p", {"partitioners", "problems"}),
        ("fedopt new ", {"algo", "problem"}),
        ("fedopt algo=fedav", {"algo=fedavg", "algo=fedavg_s"}),
        ("fedopt -m algo=fedmsa,fedn", {"algo=fedmsa,fednest", "algo=fedmsa,fednest_sgd"}),
        ("fedopt algo=fednest algo.in", {"algo.inner=", "algo.inverse="}),
        ("fedopt algo=fednest algo.inner=", {"algo.inner=svrg", "algo.inner=sgd"}),
        ("fedopt problem=mco problem.d", {"problem.d=", "problem.delta="}),
        ("fedopt budget.r", {"budget.rounds="}),
        ("fedopt hardware.device=", {"hardware.device=cpu"}),
        ("fedopt preset=fedmsa/m", {"preset=fedmsa/mco"}),
        ("fedopt algo=nothing_that_is problem=m", {"problem=maml", "problem=maml_conditional", "problem=mco"}),
    ],
)
def test_completions(line, words):
    assert set(completions(line)) == words


def test_own_options_are_completed(tmp_path):
    (tmp_path / "algo").mkdir()
    (tmp_path / "algo" / "mine.yaml").write_text("_target_: nobody.Knows\nown_key: 1\n")
    assert completions(f"fedopt --config-dir {tmp_path} algo=mi") == ["algo=mine"]
    assert completions(f"fedopt --config-dir={tmp_path} algo=mine algo.") == ["algo.own_key="]


# What asks for the words that the tab key shows
TAB = {
    "bash": """
    eval "$(fedopt -sc install=bash)"
    COMP_LINE="fedopt algo=fedmsa algo.an" COMP_POINT=25 COMP_CWORD=2
    $(complete -p fedopt | sed 's/.*-F \\([^ ]*\\) .*/\\1/')
    echo "${COMPREPLY[@]}"
    """,
    "fish": """
    fedopt -sc install=fish | source
    complete -C "fedopt algo=fedmsa algo.an"
    """,
}


@pytest.mark.parametrize("shell", TAB)
def test_shells_complete(shell, tmp_path):
    """As the tab key does it: the script that is installed, the function that it names, and the words that come out."""
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    program = tmp_path / "fedopt"
    program.write_text(f"#!{sys.executable}\nfrom fedopt.__main__ import main\nmain()\n")
    program.chmod(0o755)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run([shell, "-c", TAB[shell]], env=env, cwd=tmp_path, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("algo.anchor=\n", "")


@pytest.mark.parametrize("words", [[], ["install"], ["install=tcsh"], ["remove=bash"]])
def test_completion_of_no_shell(words, monkeypatch, capsys):
    result = fedopt(monkeypatch, capsys, "-sc", *words)
    assert (result.code, result.err) == (
        2,
        "fedopt: -sc: needs install, uninstall or query with bash, zsh or fish, such as -sc install=bash\n",
    )
