"""The wheel: what it says of itself, and that it works outside of a checkout."""

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from email import message_from_bytes
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from support.command import ROOT

slow = pytest.mark.slow
EXTRAS = ("", *distribution("fedopt").metadata.get_all("Provides-Extra"))


def test_the_readme_of_the_index():
    """PyPI shows README as the package's users need it: no command is for a checkout, and nothing else is lost."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["metadata"]["hooks"][
        "fancy-pypi-readme"
    ]
    text = readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for step in build["substitutions"]:
        text, found = re.subn(step["pattern"], step["replacement"], text)
        assert found, step
    assert not re.search(r"checkout|constraints|-e [.']|<!--|pytest", text)
    assert "pip install fedopt && .venv/bin/fedopt algo=" in text
    assert text.count("```") == readme.count("```") - 2
    assert re.findall("^#+ .*", text, re.MULTILINE) == re.findall("^#+ .*", readme, re.MULTILINE)


def test_the_container_has_all_that_the_wheel_takes():
    """It is built from the files that the Containerfile copies."""
    copied = re.findall("^COPY (.*) ", (ROOT / "Containerfile").read_text(), re.MULTILINE)
    paths = {word for words in copied for word in words.split()}
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    wanted = [*build["packages"], *build["force-include"], "pyproject.toml", "README.md", "LICENSE"]
    assert not [path for path in wanted if paths.isdisjoint({path, *map(str, Path(path).parents)})]


def test_actions_are_steps_of_known_kinds():
    """Each `run:` step of a workflow is found by scripts/workflows, whose names of jobs are the files' own."""
    done = subprocess.run([sys.executable, ROOT / "scripts" / "workflows", "--list"], capture_output=True, text=True)
    told = {line.split()[0] for line in done.stdout.splitlines()}
    files = [yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "workflows").glob("*.yml")]
    jobs = {f"{file['name']}/{job}" for file in files for job, steps in file["jobs"].items() if "steps" in steps}
    assert told == jobs


def test_constraints_name_all_that_is_installed():
    """Numbers depend on packages that others require, too: each package of the base and of the extras has one version."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    named = {same_name(line.split("==")[0]) for line in lines if "==" in line}
    known, due = set(), ["fedopt"]
    while due:
        name = same_name(due.pop())
        if name not in known and (found := installed_here(name)):
            known.add(name)
            wanted = map(Requirement, found.requires or ())
            due += [w.name for w in wanted if not w.marker or any(w.marker.evaluate({"extra": x}) for x in EXTRAS)]
    missing = sorted(known - named - {"fedopt", "setuptools", "pip"})
    assert not missing


def same_name(name):
    return re.sub("[-_.]+", "-", name).lower()


def installed_here(name):
    """The package's metadata; None for one of an extra that is not installed, such as wandb."""
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built as pip builds it, with the build's own packages from the index."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, ROOT]
    subprocess.run(command, check=True, timeout=600)
    (path,) = folder.glob("fedopt-*.whl")
    return path


@slow
def test_metadata(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("dist-info/METADATA"))
        data = message_from_bytes(archive.read(name))
    assert data["Author"] == "The fedopt authors"
    assert "federated learning" in data["Keywords"]
    assert "Typing :: Typed" in data.get_all("Classifier")
    assert {"wandb", "tensorboard"} <= {*data.get_all("Provides-Extra")}


@slow
def test_the_page_of_results_and_the_data_are_in_the_wheel(wheel):
    page = {f"fedopt/drawing/page.{name}" for name in ("html", "css", "js")}
    page |= {f"fedopt/bench/{name}.md.jinja" for name in ("index", "task")}
    data = {f"fedopt/data/{name}.{kind}" for name in ("mnist", "digits") for kind in ("npz", "md")}
    with zipfile.ZipFile(wheel) as archive:
        assert page | data <= {*archive.namelist()}


@slow
def test_the_readme_of_the_wheel(wheel):
    """Has no link and no picture of the repository, no word on one, and all else of README that users need."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("dist-info/METADATA"))
        text = message_from_bytes(archive.read(name)).get_payload(decode=True).decode()
    assert not re.findall(r"\]\((?!https?:|mailto:)[^)]*\)", text)
    assert not re.search(r"<img|<!--|figure above|docs/\.", text)
    assert "source distribution, from `docs/index.md` on" in text
    renderer = pytest.importorskip("readme_renderer.markdown")
    assert "<h1" in renderer.render(text)


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A folder that has nothing but what the wheel has."""
    folder = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", folder, wheel]
    subprocess.run(pip, check=True, timeout=600)
    return folder


@slow
@pytest.mark.parametrize(
    ("command", "left"),
    [
        ("fedopt algo=fedmsa problem=mco budget.rounds=3", "outputs/fedmsa_mco/*/metrics.csv"),
        (
            "fedopt algo=fedavg problem=classification dataset=digits budget.rounds=2",
            "outputs/fedavg_*/*/partition.png",
        ),
        (
            "fedopt algo=fedavg problem=classification dataset=mnist problem.model=linear budget.rounds=1",
            "outputs/fedavg_*/*/partition.png",
        ),
        ("fedopt new algo mine", "**/mine.py"),
        ("fedopt reproduce --list", ""),
    ],
)
def test_commands_of_the_wheel(command, left, installed, tmp_path):
    program, *words = command.split()
    environment = {**os.environ, "PYTHONPATH": str(installed), "FEDOPT_PICTURES": "1"}
    done = subprocess.run(
        [installed / "bin" / program, *words],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert not left or list(Path(tmp_path).glob(left))
    where = "import fedopt; print(fedopt.__file__)"
    place = subprocess.run([sys.executable, "-c", where], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert place.stdout.startswith(str(installed))


@slow
def test_the_contract_of_the_wheel(installed, tmp_path):
    """It takes a method of one's own outside of a checkout."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(installed), "."]), "FEDOPT_CONTRACT_CONF": "myconf"}
    subprocess.run([installed / "bin" / "fedopt", "new", "algo", "mine"], cwd=tmp_path, env=environment, check=True)
    chosen = "[mine] or [mine-quadratic_minimisation"
    command = [sys.executable, "-P", "-m", "pytest", "--pyargs", "fedopt.testing", "-k", chosen]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout
