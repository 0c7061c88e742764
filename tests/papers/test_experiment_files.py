"""Experiment files: names that stand for lines, user errors, and fedopt's own files."""

from dataclasses import replace

import pytest
import yaml
from support.cases import few
from support.command import fedopt
from support.experiments import FEDMSA
from support.records import FEDAVG

from fedopt.config.build import build, checked, target
from fedopt.config.settings import Budget, Evaluation, Participation
from fedopt.errors import UserError
from fedopt.papers import published
from fedopt.results import identity


def test_fedopt_composes_an_experiment(tmp_path, experiment, monkeypatch, capsys):
    experiment("one")
    monkeypatch.chdir(tmp_path)
    arguments = ["--config-dir", "conf", "experiment=test/one", "algo.K=2", "output_dir=run"]
    assert fedopt(monkeypatch, capsys, *arguments).code == 0
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert (config["algo"]["K"], config["problem"]["examples"]) == (2, 40)
    assert "experiment" not in config
    assert fedopt(monkeypatch, capsys, *arguments, "resume=true").code == 0
    unknown = fedopt(monkeypatch, capsys, "experiment=fedmsa/fig22")
    assert unknown.code == 2
    assert unknown.err.startswith(
        "fedopt: experiment=fedmsa/fig22: there is no such experiment, did you mean fedmsa/fig2?"
    )


WHERE = {"K": [1, 2, 4], "q": ["a", 0.5], "s(q)": [3, 7], "least(K, q)": {1: [0.1, 0.2], 2: {"a": 0.3, 0.5: None}}}


def test_what_refers_to_lines_names_their_axes(experiment, tmp_path):
    """In keys, texts and lists; the axis that is given first varies slowest."""
    experiment(
        "one",
        where=WHERE,
        lines={"K = {K}, {q}": "algo.K={K} seed={s}", "all": ["algo.K=1"], "of {q}": ["seed={s}"]},
        panels={"to {q} ({s})": ["all", "K = {K}, {q}"]},
        table={"{q}": {"({K})": ["K = {K}, {q}", "{K}.5"]}, "all": {"(2)": ["all", None]}},
        claims=[
            {"says": "least", "for": {"q": "a"}, "measure": {"min": ["final('K = {K}, {q}')"]}, "at_most": "{s}"},
            {
                "for": ["q"],
                "claims": [
                    {"says": "{K}", "for": {"K": [2, 1]}, "measure": "final('K = {K}, {q}')", "within": 1},
                    {"says": "of {q}", "measure": "final('of {q}') - {s}", "equals": 0, "paper": "{s}"},
                ],
            },
            {"says": "{least}", "for": {"K": 1}, "measure": "1", "equals": 1},
        ],
    )
    points = {"points": {"p {q}": {"{K}": "K = {K}, {q}"}}, "point": {"p {q}": "final(line) - {s}"}}
    experiment("two", where=WHERE, lines={"K = {K}, {q}": "algo.K={K}"}, panels={"all": ["p {q}"]}, **points)
    found, of_points = (published.load(f"test/{name}", [tmp_path / "conf"]) for name in ("one", "two"))
    labels = [f"K = {K}, {q}" for K in (1, 2, 4) for q in ("a", 0.5)]
    assert list(found.lines) == [*labels, "all", "of a", "of 0.5"]
    assert (found.lines["K = 2, 0.5"], found.lines["of a"]) == (["algo.K=2", "seed=7"], ["seed=3"])
    assert found.panels == {f"to {q} ({s})": ["all", *labels[i::2]] for i, (q, s) in enumerate([("a", 3), (0.5, 7)])}
    assert of_points.panels == {"all": ["p a", "p 0.5"]}
    assert of_points.points == {f"p {q}": {K: f"K = {K}, {q}" for K in (1, 2, 4)} for q in ("a", 0.5)}
    texts = {series: measure.text for series, measure in of_points.point.items()}
    assert texts == {"p a": "final(line) - 3", "p 0.5": "final(line) - 7"}
    assert found.table["0.5"] == {f"({K})": (f"K = {K}, 0.5", K + 0.5) for K in (1, 2, 4)}
    assert found.table["all"] == {"(2)": ("all", None)}
    least, *grouped, first, second = found.claims
    assert least.measure.text == "min(final('K = 1, a'), final('K = 2, a'), final('K = 4, a'))"
    assert least.bound == "<= 3"
    assert [claim.says for claim in grouped] == ["1", "2", "of a", "1", "2", "of 0.5"]
    assert [claim.measure.text for claim in grouped[2:4]] == ["final('of a') - 3", "final('K = 1, 0.5')"]
    assert (grouped[2].paper, first.says, second.says) == ("3", "0.1", "0.2")


MISTAKES_IN_NAMES = [
    ({"lines": {"A {qq}": []}}, "'A {qq}': {qq} has no value here, did you mean q?"),
    ({"lines": {"A": "algo.K={K}"}}, "'algo.K={K}': {K} has several values here (1, 2, 4)"),
    ({"lines": {"A {K} {q}": "algo.alpha={least}"}}, "{least} has no value here"),
    ({"lines": {"A {K}": [], "A 1": []}}, "A 1: is expanded to A 1 twice"),
    ({"panels": {"{q}": ["FedMSA {q}"]}}, "FedMSA a: the figure has no such line, did you mean FedMSA?"),
    ({"where": 3}, "where: cannot be read"),
    ({"where": {"K": 3}}, "where: cannot be read"),
    ({"where": {"K": "abc"}}, "where: an axis has no list of values"),
    ({"where": {"K": []}}, "where: an axis has no list of values"),
    ({"where": {"K": [1], "p(KK)": [3]}}, "where: cannot be read"),
    ({"where": {"K": [1], "p(K)": [3, 4]}}, "where: cannot be read"),
    ({"where": {"K": [1], "p(K)": 3}}, "where: cannot be read"),
    ({"claims": {"says": "a"}}, "claims: must be a list of claims"),
    ({"claims": [{"for": ["q"], "claims": 3}]}, "claims: must be a list of claims"),
    ({"claims": [{"says": "a", "claims": []}]}, "claims: groups have only 'for' and 'claims'; remove says"),
    ({"claims": [{"for": 3, "says": "a"}]}, "for.3: there is no such axis"),
    ({"claims": [{"for": ["qq"], "claims": []}]}, "for.qq: there is no such axis, did you mean q?"),
    ({"claims": [{"for": {"K": [3]}, "says": "a"}]}, "for.K=[3]: choose from 1, 2, 4"),
    ({"claims": [{"for": {"K": []}, "says": "a"}]}, "for.K=[]: choose from 1, 2, 4"),
    (
        {"claims": [{"says": "a", "measure": "final('{K}')", "at_least": 0}]},
        "'final('{K}')': {K} has several values here (1, 2, 4)",
    ),
    (
        {"claims": [{"says": "a", "measure": {"mean": ["1"]}, "at_least": 0}]},
        "claim 'a': 'mean(1)' cannot be evaluated: there is no mean()",
    ),
    ({"claims": [{"says": "a", "measure": {"min": "final('A')"}, "at_least": 0}]}, "cannot be evaluated"),
    ({"cell": "finl(line)"}, "cell: 'finl(line)' cannot be evaluated: there is no finl(), did you mean final?"),
    ({"points": {"s": {1: "FedMSA"}}, "point": "final(lin)"}, "point: 'final(lin)' cannot be evaluated: 'lin' is not"),
    ({"points": {"s": {1: "FedMSA"}}, "point": "fit(line)"}, "point: fit() of None: the figure has no such series"),
    ({"points": {"s": {1: "FedMSA"}}}, "the keys 'points' and 'point' must list the same series"),
    ({"point": "final(line)"}, "the keys 'points' and 'point' must list the same series"),
]


@pytest.mark.parametrize(
    ("node", "said"),
    few(MISTAKES_IN_NAMES, lambda case: MISTAKES_IN_NAMES.index(case) % 5 == 0),
)
def test_mistakes_in_names(node, said, experiment, command):
    experiment("one", **{"where": WHERE, **node})
    result = command("test/one")
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert result.err.startswith("fedopt: experiment/test/one.yaml: ")
    assert said in result.err


GLOBAL = "# @package _global_\n"


ON_MCO = GLOBAL + "defaults: [{override /problem: mco}, {override /algo: fedmsa}]\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GLOBAL + "experiment: [1", 'one.yaml", line 3'),
        (GLOBAL + "experiment: {<<: *x}", "found undefined alias"),
        (ON_MCO + "budget: {rounds: 3}", "must have a node experiment"),
        (ON_MCO + "experiment: 3", "must have a node experiment"),
        ("experiment: {paper: A}", "add '# @package _global_' as the first line"),
        (ON_MCO + "experiment: {paper: A}", "experiment.title: is missing"),
        (
            ON_MCO + "experiment: {paper: A, title: B, minutes: 1, y: c, lines: {d: []}, lnies: {}}",
            "lnies: there is no such key",
        ),
        (GLOBAL + "defaults: [{override /algo: fedmas}]", "algo=fedmas: there is no such algo, did you mean fedmsa?"),
    ],
)
def test_broken_files(text, said, experiment, command):
    experiment("one").write_text(text + "\n")
    result = command("test/one")
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert result.err.startswith("fedopt: experiment/test/one.yaml: ")
    assert said in result.err


def test_a_broken_file_in_the_list(experiment, command):
    experiment("one").write_text(GLOBAL + "experiment: [1\n")
    result = command("--list", "test/one")
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert result.err.startswith("fedopt: experiment/test/one.yaml: the config cannot be read (")
    assert "line 3" in result.err


@pytest.mark.parametrize(
    ("node", "said"),
    [
        ({"lines": {"A": "algo=fedmas"}}, "line 'A': algo=fedmas: there is no such algo, did you mean fedmsa?"),
        ({"lines": {"A": "seed=3"}}, "line 'A': seed=3"),
        ({"lines": {"A": "output_dir=x"}}, "line 'A': output_dir=x"),
        ({"lines": {"A": "hydra.run.dir=x"}}, "line 'A': hydra.run.dir"),
        ({"lines": {"A": "algo.Q=3"}}, "line 'A': algo.Q: there is no such key"),
        ({"lines": {"A": "algo=fedavg"}}, "line 'A': algo and problem do not fit"),
        ({"panels": {"p": ["B"]}}, "B: the figure has no such line"),
        ({"points": {"s": {1: "FedMSA"}}}, "the keys 'points' and 'point' must list the same series"),
        ({"claims": [{"says": "a", "measure": "1"}]}, "must have exactly one of at_least, at_most, within, equals"),
        ({"claims": [{"says": "a", "measure": "1", "at_least": 1, "kind": "ours"}]}, "kind"),
    ],
)
def test_mistakes_in_files(node, said, experiment, command):
    experiment("one", **node)
    result = command("test/one")
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert result.err.startswith("fedopt: experiment/test/one.yaml: ")
    assert said in result.err


FIRST = {name.partition("/")[0]: name for name in reversed(published.names())}.values()  # of each paper


@pytest.mark.parametrize("name", few(published.names(), lambda name: name in FIRST))
def test_published_experiments_compose(name):
    """Each line, and a quick one, gives a config that can be built."""
    described = published.load(name)
    lines = published.tasks(name, described, 1)
    for task in [*lines, *published.tasks(name, described, 1, described.quick, lines=[lines[0].line])]:
        config = task.composed.nodes
        for cls, key in ((Budget, "budget"), (Evaluation, "eval"), (Participation, "participation")):
            build(cls, config[key], key)
        for group in ("algo", "problem", "partitioner"):
            checked(*target(config[group], group), group, *(["world"] if group == "problem" else []))
    assert len({task.folder for task in lines}) == len(lines)


def test_file_that_builds_on_another(experiment, tmp_path):
    """As Hydra merges them: runs and what is measured of them agree."""
    experiment("one", claims=[{"says": "a", "measure": "1", "at_least": 0}])
    node = {"title": "another", "lines": {"more": "algo.K=3"}}
    content = {"defaults": ["test/one", "_self_"], "participation": {"least": 2}, "experiment": node}
    experiment("two").write_text("# @package _global_\n" + yaml.safe_dump(content))
    folders = [tmp_path / "conf"]
    one, two = (published.load(f"test/{name}", folders) for name in ("one", "two"))
    assert two == replace(one, title="another", lines={**one.lines, "more": ["algo.K=3"]})
    (first,), (same, more) = (
        published.tasks(f"test/{name}", of, 1, (), folders) for name, of in (("one", one), ("two", two))
    )
    assert (same.composed.nodes["participation"]["least"], more.composed.nodes["algo"]["K"]) == (2, 3)
    assert same.composed.nodes["budget"] == first.composed.nodes["budget"]
    content["defaults"][0] = "test/three"
    experiment("two").write_text("# @package _global_\n" + yaml.safe_dump(content))
    with pytest.raises(UserError, match=r"test/two\.yaml: experiment=test/three: there is no such experiment"):
        published.load("test/two", folders)


def test_identity_is_what_the_numbers_depend_on():
    (task,) = published.tasks("fedmsa/fig2", one_line("fedmsa/fig2"), 1)
    same = {**task.composed.nodes, "output_dir": "x", "resume": True, "logger": {"_target_": "y"}}
    same["hardware"] = {**task.composed.nodes["hardware"], "threads": 3, "engine": "one_by_one"}
    same["preset"] = "none"
    assert identity.digits(same) == identity.digits(task.composed.nodes)
    longer = {"budget": {**task.composed.nodes["budget"], "rounds": 3}}
    for other in (
        {"seed": 1},
        longer,
        {"hardware": {**task.composed.nodes["hardware"], "dtype": "float64"}},
        {"algo": FEDAVG},
    ):
        assert identity.digits({**task.composed.nodes, **other}) != identity.digits(task.composed.nodes)


def one_line(name):
    described = published.load(name)
    label = next(iter(described.lines))
    return build(published.Published, {**FEDMSA, "lines": {label: described.lines[label]}}, "experiment")
