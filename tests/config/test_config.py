"""What the config files compose to: tuned values, clients, participation; and what is refused before torch is imported."""

import dataclasses
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf
from support.cases import few
from support.command import PAIR, ROOT, fedopt, one_line

from fedopt.config.composed import compose, merge
from fedopt.config.files import CONF, content, display_name, flat, options
from fedopt.config.fits import that_fit
from fedopt.config.settings import Participation
from fedopt.config.tuned import tuned_names
from fedopt.errors import UserError
from fedopt.files.reading import read_config
from fedopt.files.writing import yaml_text
from fedopt.running.assemble import assemble
from fedopt.testing.harness import composed, config, names

# Tuned values


@pytest.mark.parametrize("name", few(tuned_names(), lambda name: tuned_names().index(name) % 8 == 0))
def test_tuned_values_belong_to_a_pair_that_fits(name):
    """They have values, say where these come from, and are those of their algorithm."""
    algo, problem = name.split("/")
    composed = compose([f"algo={algo}", f"problem={problem}", *(["dataset=digits"] if "mnist" in problem else [])])
    assert (composed.tuned.name, composed.tuned.effective) == (name, True)
    written = yaml.safe_load((CONF / "tuned" / f"{algo}.yaml").read_text())
    assert written.get(problem, {"source": written.get("like")})["source"]


@pytest.mark.parametrize(
    ("overrides", "values"),
    [
        (["algo=fednest", "problem=saddle"], {"algo.T": 3, "algo.inner": "svrg", "budget.rounds": 200}),
        (["algo=lfednest", "problem=saddle"], {"algo.T": 3, "algo.inner": "sgd", "algo.alternating": True}),
        (["algo=lfednest_nonalt", "problem=saddle"], {"algo.T": 3, "algo.inner": "sgd", "algo.alternating": False}),
        (["algo=fednest", "problem=saddle", "preset=none"], {"algo.T": 1, "algo.tau_out": 1}),
        (["algo=fednest_sgd", "problem=robust_nn", "preset=fednest/saddle"], {"algo.T": 3, "algo.inner": "sgd"}),
        (["algo=fednest", "problem=saddle", "algo.T=2"], {"algo.T": 2, "algo.tau_out": 15}),
        (["algo=local_sgda_plus", "problem=robust_nn"], {"algo.eta_x": 0.1, "algo.rho": 0.0, "budget.rounds": 30}),
        (["algo=local_sgda_plus_m", "problem=robust_nn"], {"algo.eta_x": 0.01, "algo.S": 5, "budget.rounds": 30}),
        (["algo=local_sgda_m", "problem=saddle", "preset=fed_norm_sgda/saddle"], {"algo.eta_x": 0.01, "algo.rho": 0.9}),
        (["algo=fedprox", "problem=classification"], {"algo.mu": 0.1, "eval.target": 95.0}),
        (["algo=localbsgvrm", "problem=quadratic_compositional"], {"algo.Q": 10, "algo.S": 5, "algo.rho2": 0.4}),
    ],
)
def test_tuned_values(overrides, values):
    found = flat(config(*overrides))
    assert {key: found[key] for key in values} == values


def test_own_algorithms_and_families(tmp_path, monkeypatch, capsys):
    """A variant takes the tuned values of the file it builds on; your own algorithm brings some, or has none."""
    (tmp_path / "algo").mkdir()
    (tmp_path / "tuned").mkdir()
    (tmp_path / "algo" / "variant.yaml").write_text("defaults: [fednest, _self_]\nN: 7\n")
    (tmp_path / "algo" / "faster.yaml").write_text("defaults: [fedmsa, _self_]\nalpha: 3.0\n")
    (tmp_path / "algo" / "mine.yaml").write_text("# @package _global_\ndefaults: [fedmsa, _self_]\nalgo: {K: 3}\n")
    (tmp_path / "tuned" / "mine.yaml").write_text("mco: {source: by hand, algo: {alpha: 0.25}, budget: {rounds: 5}}\n")
    (tmp_path / "algo" / "plain.yaml").write_text("_target_: fedopt.algorithms.fedmsa.FedMSA\nK: 4\n")

    def nodes(*words):
        return merge(words, [tmp_path]).nodes

    assert {key: nodes("algo=variant", "problem=saddle")["algo"][key] for key in "TN"} == {"T": 3, "N": 7}
    faster = nodes("algo=faster", "problem=mco")["algo"]  # what a file changes is not tuned away
    assert (faster["alpha"], faster["beta"]) == (3.0, 0.9)
    mine = nodes("algo=mine", "problem=mco")
    assert (mine["algo"]["alpha"], mine["algo"]["K"], mine["budget"]["rounds"]) == (0.25, 3, 5)
    assert nodes("algo=mine", "problem=quadratic_bilevel")["algo"]["beta"] == 0.3  # of fedmsa, which it builds on
    assert nodes("algo=mine", "problem=mco", "preset=fedmsa/mco")["algo"]["alpha"] == 1e-4
    assert nodes(*PAIR, "preset=mine/mco")["budget"]["rounds"] == 5
    assert nodes("algo=plain", "problem=mco")["algo"] == {"_target_": "fedopt.algorithms.fedmsa.FedMSA", "K": 4}
    with pytest.raises(UserError, match=r"preset=mine/moc: there is no such preset, did you mean mine/mco\?"):
        merge([*PAIR, "preset=mine/moc"], [tmp_path])
    result = fedopt(monkeypatch, capsys, "--help", f"--config-dir={tmp_path}", "algo=plain")
    assert result.out.endswith("no tuned values for any problem\n")
    assert nodes("algo=plain", "problem=mco", "preset=none")["algo"] == nodes("algo=plain", "problem=mco")["algo"]


@pytest.mark.parametrize(
    "text", ["mco: 3\n", "mco: {seed: 5}\n", "- mco\n", "like: mine\n", "like: [nothing]\n", "mco: {\n"]
)
def test_a_tuned_file_that_is_none(text, monkeypatch, capsys, tmp_path):
    (tmp_path / "algo").mkdir()
    (tmp_path / "tuned").mkdir()
    (tmp_path / "algo" / "mine.yaml").write_text("defaults: [fedmsa, _self_]\n")
    (tmp_path / "tuned" / "mine.yaml").write_text(text)
    result = fedopt(monkeypatch, capsys, f"--config-dir={tmp_path}", "algo=mine", "problem=mco", "--cfg", "job")
    if (
        text != "- mco\n" and "nothing" not in text
    ):  # an empty file, and a file that builds on nothing, have no tuned values
        one_line(result, "mine.yaml")


def test_tuned_keys_of_all_parts(tmp_path):
    """Where the chosen option has the key; the method's own one of the same name keeps its value."""
    (tmp_path / "tuned").mkdir()
    (tmp_path / "tuned" / "fedmsa.yaml").write_text(
        "mco: {partitioner: {clients: 5, alpha: 7.0}, problem: {examples: 40}}\n"
    )
    usual = compose(PAIR).nodes
    nodes = compose([*PAIR, "partitioner=dirichlet"], [tmp_path]).nodes
    assert (nodes["partitioner"]["clients"], nodes["partitioner"]["alpha"], nodes["problem"]["examples"]) == (
        5,
        7.0,
        40,
    )
    assert nodes["algo"] == usual["algo"]
    iid = compose([*PAIR, "partitioner=iid"], [tmp_path])
    assert "alpha" not in iid.nodes["partitioner"]
    assert "partitioner.alpha" not in iid.tuned.keys
    assert (
        compose([*PAIR, "partitioner=dirichlet", "partitioner.alpha=2"], [tmp_path]).nodes["partitioner"]["alpha"] == 2
    )


def test_an_experiment_wins_over_tuned_values(tmp_path):
    (tmp_path / "experiment" / "mine").mkdir(parents=True)
    text = "# @package _global_\ndefaults: [override /algo: fednest, override /problem: saddle]\nalgo: {T: 9}\n"
    (tmp_path / "experiment" / "mine" / "steps.yaml").write_text(text)
    nodes = merge(["experiment=mine/steps", "algo.tau_in=2"], [tmp_path]).nodes
    assert {key: nodes["algo"][key] for key in ("T", "tau_in", "tau_out")} == {"T": 9, "tau_in": 2, "tau_out": 15}


TABLE = ["experiment=table", "dataset.path=table.csv", "dataset.label=y", "dataset.client=site"]
WORK = ("tau", "tau_in", "tau_h", "tau_phi", "R", "K", "I")  # fields of local work


EQUAL = {
    "classification": ["fedavg", "ditto", "fedrep", "local_only", "pfedme", "per_fedavg", "scaffold", "drfa"],
    "linear_regression": ["fedavg", "ditto", "local_only", "pfedme"],
    "imbalanced_mnist": ["fednest", "fedmsa", "simfbo", "fedbio"],
}


@pytest.mark.parametrize(("problem", "algo"), [(problem, algo) for problem in EQUAL for algo in EQUAL[problem]])
def test_equal_starting_points_on_a_table(problem, algo):
    """Rounds, batches, local steps, cohorts and models are equal, whatever the method's defaults and tuned values are."""
    found = compose([*TABLE, f"algo={algo}", f"problem={problem}"])
    nodes, single = found.nodes, {("pfedme", "K"), ("fedbio", "tau")}  # a method's own number, and a step size
    assert not found.tuned.effective
    assert {nodes["algo"][key] for key in WORK if key in nodes["algo"] and (algo, key) not in single} == {10}
    assert {nodes["algo"].get(key, 32) for key in ("B", "B_out")} == {32}
    assert (nodes["budget"]["rounds"], nodes["problem"].get("model", "linear")) == (100, "linear")
    assert (nodes["participation"]["cohort"], nodes["participation"]["cohort_from"]) == (10, 20)
    assert [found.chosen[group] for group in ("dataset", "partitioner")] == ["csv", "by_column"]


def test_a_command_wins_over_equal_starting_points():
    nodes = compose(
        [*TABLE, "algo=ditto", "algo.tau=3 epochs", "algo.B=null", "problem.model=mlp", "preset=auto"]
    ).nodes
    assert (nodes["algo"]["tau"], nodes["algo"]["B"], nodes["problem"]["model"]) == ("3 epochs", None, "mlp")
    assert (
        compose([*TABLE, "algo=soba", "problem=imbalanced_mnist"]).nodes["algo"]["K"] == 1
    )  # a single step is the method


@pytest.mark.parametrize(("clients", "taking_part"), [(12, 12), (19, 19), (20, 10), (25, 10)])
def test_few_clients_all_take_part(clients, taking_part, tmp_path):
    rows = "".join(f"{i % 7},{i % 2},site{i % clients}\n" for i in range(20 * clients))
    (tmp_path / "table.csv").write_text(f"a,y,site\n{rows}")
    e = assemble(compose([*TABLE, f"dataset.path={tmp_path / 'table.csv'}", "hardware.threads=1"]))
    assert len(e.federation.at(0).cohort()) == taking_part


def test_help_says_what_equal_starting_points_are(monkeypatch, capsys):
    said = " ".join(fedopt(monkeypatch, capsys, "experiment=table", "--help").out.split())
    assert (
        "experiment=table: Equal untuned settings for a custom table: a linear model, 100 rounds of 10 local steps"
        in said
    )


def test_fields_that_an_own_file_leaves_out(tmp_path, monkeypatch, capsys):
    """The message says how to set one; what is misspelt is said to be."""
    (tmp_path / "partitioner").mkdir()
    (tmp_path / "partitioner" / "mine.yaml").write_text("_target_: fedopt.data.partitioners.Dirichlet\nalpha: 1.0\n")
    words = [f"--config-dir={tmp_path}", "algo=fedavg", "problem=classification", "partitioner=mine"]
    result = fedopt(monkeypatch, capsys, *words, "partitioner.min_size=2")
    assert result.code == 2
    assert "partitioner.min_size: there is no such key" in result.err
    assert "a field that your file leaves out with +partitioner.min_size=VALUE" in result.err
    assert "min_size: 2" in fedopt(monkeypatch, capsys, *words, "+partitioner.min_size=2", "--cfg", "job").out
    assert "did you mean partitioner.alpha?" in fedopt(monkeypatch, capsys, *words, "partitioner.alhpa=2").err
    assert "did you mean partitioner.clients?" in fedopt(monkeypatch, capsys, *words, "partitioner.cleints=2").err


def test_keys_are_named_as_a_config_has_them():
    with pytest.raises(
        UserError, match=r"fromm: there is no such key, did you mean from[?]; .* output_dir, from, budget"
    ):
        compose(["algo=fedmsa", "problem=mco", "+fromm=run"])


def test_a_key_of_another_name_lists_those_there_are(monkeypatch, capsys):
    words = ["algo=fednest", "problem=quadratic_bilevel"]
    assert (
        "no such key; algo has the keys alpha, beta, T, tau_in, "
        in fedopt(monkeypatch, capsys, *words, "algo.eta_x=1").err
    )
    assert "no such key, did you mean algo.tau_in?" in fedopt(monkeypatch, capsys, *words, "algo.tau_inn=1").err
    assert "no such key; eval has the keys every, " in fedopt(monkeypatch, capsys, *words, "eval.interval=1").err


def test_tuned_values_that_are_all_overridden():
    keys = ["alpha", "beta", "T", "tau_in", "tau_out", "B", "B_out"]
    words = ["algo=fednest", "problem=saddle", "algo.anchor=all", *(f"algo.{key}=1" for key in keys)]
    assert compose(words).tuned.keys == ("budget.rounds",)
    assert not compose([*words, "budget.rounds=2"]).tuned.effective
    assert not compose(["algo=fednest", "problem=quadratic_bilevel"]).tuned.effective


def test_misspelt_preset_in_a_sweep(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    result = fedopt(monkeypatch, capsys, "-m", *PAIR, "preset=none,fedmsa/mcoo")
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert result.err.startswith("fedopt: preset=fedmsa/mcoo: there is no such preset, did you mean fedmsa/mco?")
    assert not list(tmp_path.iterdir())


# Clients and participation


@pytest.mark.parametrize(
    "problem", few(names("problem"), ("mco", "classification", "hierarchical").__contains__, pytest.mark.slow)
)
def test_numbers_of_clients(problem):
    """The problem's number holds for every partitioner, but in one place there is one client, and some data have clients."""
    usual = config(f"problem={problem}")["partitioner"]
    partitioners = names("partitioner")
    another = partitioners[names("problem").index(problem) % len(partitioners)]
    for partitioner in {"centralized", "by_column", another}:
        chosen = config(f"problem={problem}", f"partitioner={partitioner}")["partitioner"]
        assert chosen["clients"] == {"centralized": 1, "by_column": None}.get(partitioner, usual["clients"])
    assert config(f"problem={problem}", "partitioner=iid", "partitioner.clients=3")["partitioner"]["clients"] == 3


def test_clients_of_an_own_problem(tmp_path):
    """It is divided evenly unless its file says otherwise."""
    (tmp_path / "problem").mkdir()
    (tmp_path / "problem" / "own.yaml").write_text("_target_: own.Own\n")
    partitioner = merge(["algo=fedmsa", "problem=own"], [tmp_path]).nodes["partitioner"]
    assert partitioner == {"_target_": "fedopt.data.partitioners.Iid", "clients": 10}


def test_participation_has_independent_values():
    """config.yaml lists all fields with their defaults; a problem sets the cohort alone."""
    listed = yaml.safe_load((CONF / "config.yaml").read_text())["participation"]
    assert listed == dataclasses.asdict(Participation())
    values = {"dropout": 0.1, "stragglers": 0.5, "cohort": 2}
    for key, value in values.items():
        assert config(f"participation.{key}={value}")["participation"] == {**listed, "cohort": 1, key: value}


def test_one_client_takes_part_alone():
    e = assemble(composed("algo=fednest", "problem=quadratic_bilevel", "partitioner=centralized"))
    assert (e.problem.clients, e.federation.at(0).cohort_size) == (1, 1)


# Checks


def test_checks_import_no_torch(tmp_path):
    """Mistakes at the top level, in a preset's name and in a pair are answered before torch is imported, once it is known what
    classes say."""
    code = """
import sys
from pathlib import Path
from fedopt.commands import run as cli
for words in ["resume=maybe"], ["+nonsense=1"], ["seed=abc"], ["output_dir=[1]"], ["preset=no"], ["algo=fedavg"], ["eval.at=x"]:
    sys.argv = ["fedopt", *words]
    try:
        cli.main()
    except SystemExit as stop:
        assert stop.code == 2, words
    else:
        raise AssertionError(words)
assert "torch" not in sys.modules
"""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    that_fit("algo", that_fit("problem", []))
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == ["fedopt"] * 7
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("value", ["true", "false"])
def test_values_that_are_right(value):
    composed = compose([*PAIR, f"resume={value}", "seed=9223372036854775807", "output_dir=a/b", "budget.rounds=0"])
    for values in (vars(composed.settings), composed.nodes):
        assert (values["resume"], values["seed"]) == (value == "true", 2**63 - 1)
    assert "experiment" not in composed.nodes


@pytest.mark.parametrize("problem", ["fair_classification", "robust_nn"])
@pytest.mark.parametrize(("overrides", "count"), [([], 1437), (["problem.examples=200"], 200)])
def test_examples_are_at_most_those_that_there_are(problem, overrides, count):
    """The default is more than the digits have."""
    small = ["dataset=digits", "partitioner=iid", "problem.model=linear", "hardware.threads=1"]
    e = assemble(composed("algo=local_sgda", f"problem={problem}", *small, *overrides))
    assert sum(len(rows) for rows in e.problem.splits["train"]) == len(e.original.train) == count


def test_flat():
    nested = {"a": 1, "b": {"c": [1, {"d": 2}], "e": {}, "f": {"g": None}}}
    assert flat(nested) == {"a": 1, "b.c": [1, {"d": 2}], "b.e": {}, "b.f.g": None}
    assert flat({}) == {}


def test_where_an_own_option_is(monkeypatch, capsys, tmp_path):
    """A config folder that was not named on the command line."""
    monkeypatch.chdir(tmp_path)
    for option in ("algo/extra", "experiment/mine/steps"):
        path = tmp_path / "myconf" / f"{option}.yaml"
        path.parent.mkdir(parents=True)
        path.write_text("")
        group, _, name = option.partition("/")
        for words in ([f"{group}={name}"], ["-m", f"{group}={name}", "seed=0,1"]):
            said = f"{group}={name}: is in myconf/{option}.yaml; add --config-dir myconf so that it is found\n"
            assert fedopt(monkeypatch, capsys, *words).err.endswith(said)


def test_methods_have_names_of_their_own():
    names = [display_name(algo) for algo in options("algo")]
    assert len({*names}) == len(names)
    assert {"FedNest", "Local SGDA+", "stocBiO"} <= {*names}
    assert [display_name(other) for other in ("mine", "../config")] == ["mine", "../config"]


# Files of YAML


@pytest.mark.parametrize("text", ["seed: 1\nseed: 2", "algo: {seed: 1, seed: 2}"])
def test_keys_that_occur_twice(text, tmp_path):
    """Also in files that other commands read."""
    path = tmp_path / "experiment" / "x.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(f"# @package _global_\n{text}\n")
    for read in (content, read_config, lambda _: compose([*MINE, "experiment=x"], [tmp_path])):
        with pytest.raises((UserError, yaml.YAMLError), match=r"key seed"):
            read(path)


MINE = ["algo=fedavg", "problem=quadratic_minimisation"]


@pytest.mark.parametrize(
    "text", ["1e-3", "1E5", "-2.5e+3", "10", "0.5", ".5", "1_000", "'010'", "2020-01-01", "1:x", "08"]
)
def test_files_mean_what_hydra_reads(text, tmp_path):
    (tmp_path / "x.yaml").write_text(f"a: {text}\n")
    read = content(tmp_path / "x.yaml")
    assert read == OmegaConf.to_container(OmegaConf.load(tmp_path / "x.yaml"))
    assert isinstance(read["a"], type(OmegaConf.load(tmp_path / "x.yaml").a))


@pytest.mark.parametrize("value", ["1e5", "010", "1:30", "2020-01-01", "no", "1e-3", 1e-5, 1e300, "", None, "\u00e4"])
def test_what_is_written_is_read(value, tmp_path):
    (tmp_path / "x.yaml").write_text(yaml_text({"a": value}), encoding="utf-8")
    assert read_config(tmp_path / "x.yaml") == {"a": value}


@pytest.mark.parametrize(
    "word", ["algo.eta=-1", "eval.metric=xx", "problem.conditioning=-1", "participation.cohort=50"]
)
def test_a_config_that_a_run_refuses_is_not_shown(word, monkeypatch, capsys):
    shown = fedopt(monkeypatch, capsys, "algo=fedavg", "problem=quadratic_minimisation", word, "--cfg", "job")
    assert (shown.code, shown.out) == (2, "")
    assert word in shown.err


def test_a_path_with_an_equals_sign(monkeypatch, capsys, tmp_path):
    """It is read if it exists; else the advice, as a shell reads it, is right."""
    monkeypatch.chdir(tmp_path)
    Path("day=1").mkdir()
    Path("day=1", "x.npz").write_text("no archive")
    words = ["algo=fedavg", "problem=classification", "dataset=npz"]
    assert "day=1/x.npz: cannot be read as .npz" in fedopt(monkeypatch, capsys, *words, "dataset.path=day=1/x.npz").err
    advice = fedopt(monkeypatch, capsys, *words, "dataset.path=day=2/x.npz").err.rpartition(": ")[2]
    assert shlex.split(advice) == ['dataset.path="day=2/x.npz"']
    assert "day=2/x.npz: there is no such file" in fedopt(monkeypatch, capsys, *words, *shlex.split(advice)).err


# Step sizes, momenta and their factors, local work, and batch sizes, of the methods that have tuned values
OF_STEPS = {
    "alpha",
    "beta",
    "gamma",
    "gamma_l",
    "gamma_local",
    "gamma_x",
    "gamma_y",
    "eta",
    "eta_h",
    "eta_phi",
    "eta_theta",
    "eta_x",
    "eta_y",
    "delta",
    "rho",
    "rho1",
    "rho2",
    "lam",
    "l",
    "theta",
    "K",
    "p",
    "tau",
    "tau_h",
    "tau_in",
    "tau_out",
    "tau_phi",
    "B",
    "B_out",
}


@pytest.mark.parametrize("name", tuned_names())
def test_tuned_values_of_more_than_steps_depart(name):
    """They are what labels and notes of a comparison name."""
    algo, problem = name.split("/")
    composed, usual = (
        compose([f"algo={algo}", f"problem={problem}", f"preset={preset}"]) for preset in ("auto", "none")
    )
    now, before = flat(composed.nodes), flat(usual.nodes)
    parts = ("algo", "budget", "participation", "problem", "partitioner", "dataset", "hardware")
    other = {key for key in now if key.split(".")[0] in parts and now[key] != before.get(key)}
    assert {*composed.departures} == {key for key in other if key.split(".")[1] not in OF_STEPS}
    assert usual.departures == []
    known = {"fednest/saddle": {"algo.T", "algo.anchor"}, "fedmsa/mco": {"algo.warm_up", "budget.rounds"}}
    assert {*composed.departures} == known.get(name, {*composed.departures})


OWN = ["dataset=csv", "dataset.path=t.csv", "dataset.label=c"]


@pytest.mark.parametrize("own", [OWN, ["dataset=npz", "dataset.path=t.npz"], ["dataset=images", "dataset.path=t"]])
def test_values_of_mnist_do_not_follow_onto_data_of_ones_own(own):
    pair = ["algo=fedavg", "problem=classification"]
    assert compose(pair).nodes["eval"]["target"] == 95
    assert compose([*pair, *own]).nodes["eval"]["target"] is None
    asked = ["eval.metric=test_accuracy", "eval.target=80"]
    assert compose([*pair, *own, *asked]).nodes["eval"]["target"] == 80
    plain = compose([*pair, *own, "preset=none"])
    assert compose([*pair, *own]).nodes | {"preset": "none"} == plain.nodes  # nor do step sizes
    assert compose([*pair, *own]).tuned.name == ""
    assert compose([*pair, *own, "preset=fedavg/classification"]).tuned.name == "fedavg/classification"
    with pytest.raises(
        UserError, match=r"^dataset=\w+: problem=imbalanced_mnist .*; choose problem=loss_tuning for your data$"
    ):
        compose(["algo=fedmsa", "problem=imbalanced_mnist", *own])
    tuning = compose(["algo=fedmsa", "problem=loss_tuning", *own]).nodes
    assert (tuning["problem"]["largest"], tuning["problem"]["imbalance"], tuning["eval"]["target"]) == (None, 1, None)
    assert compose(["algo=fedmsa", "problem=imbalanced_mnist", "dataset=digits"]).nodes["problem"]["largest"] == 6000
