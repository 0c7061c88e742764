"""The wheel: what it says of itself, and that it works outside of a checkout."""

import os
import re
import subprocess
import sys
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest
from support.command import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built as pip builds it, with the build's own packages from the index."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, ROOT]
    subprocess.run(command, check=True, timeout=600)
    (path,) = folder.glob("fedopt-*.whl")
    return path


def test_metadata(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("dist-info/METADATA"))
        data = message_from_bytes(archive.read(name))
    assert data["Author"] == "The fedopt authors"
    assert "federated learning" in data["Keywords"]
    assert "Typing :: Typed" in data.get_all("Classifier")
    assert {"wandb", "tensorboard"} <= {*data.get_all("Provides-Extra")}


def test_the_page_of_results_and_the_data_are_in_the_wheel(wheel):
    page = {f"fedopt/drawing/page.{name}" for name in ("html", "css", "js")}
    page |= {f"fedopt/bench/{name}.md.jinja" for name in ("index", "task")}
    data = {f"fedopt/data/{name}.{kind}" for name in ("mnist", "digits") for kind in ("npz", "md")}
    with zipfile.ZipFile(wheel) as archive:
        assert page | data <= {*archive.namelist()}


def test_the_readme_of_the_wheel(wheel):
    """Has no link and no picture of the repository, no word on one, and all else of README."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("dist-info/METADATA"))
        text = message_from_bytes(archive.read(name)).get_payload(decode=True).decode()
    assert not re.findall(r"\]\((?!https?:|mailto:)[^)]*\)", text)
    assert not re.search(r"<img|<!--|figure above|docs/\.", text)
    assert "source distribution, from `docs/index.md` on" in text
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.findall("^#+ .*", text, re.MULTILINE) == re.findall("^#+ .*", readme, re.MULTILINE)
    assert text.count("```") == readme.count("```")
    renderer = pytest.importorskip("readme_renderer.markdown")
    assert "<h1" in renderer.render(text)


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A folder that has nothing but what the wheel has."""
    folder = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", folder, wheel]
    subprocess.run(pip, check=True, timeout=600)
    return folder


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
        ("fedopt-reproduce --list", ""),
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


def test_the_contract_of_the_wheel(installed, tmp_path):
    """It takes a method of one's own outside of a checkout."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(installed), "."]), "FEDOPT_CONTRACT_CONF": "myconf"}
    subprocess.run([installed / "bin" / "fedopt", "new", "algo", "mine"], cwd=tmp_path, env=environment, check=True)
    chosen = "[mine] or [mine-quadratic_minimisation"
    command = [sys.executable, "-P", "-m", "pytest", "--pyargs", "fedopt.testing", "-k", chosen]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout
