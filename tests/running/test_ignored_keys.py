"""Keys of `participation` without effect, since everyone takes part: the first line of a run says so, and a sweep refuses them."""

import pytest
from support.command import TINY, fedopt

from fedopt.config import Participation
from fedopt.errors import UserError
from fedopt.jobs.sweep import plan

BY_WEIGHT = {"sampling": "by_weight"}


@pytest.mark.parametrize(
    ("who", "ignored"),
    [
        ({}, []),
        ({"cohort": 3}, []),
        ({"cohort": 3, "cohort_from": 6}, []),
        ({"cohort": 3, "cohort_from": 7}, ["cohort"]),
        (BY_WEIGHT, ["sampling"]),
        (BY_WEIGHT | {"cohort": 6}, ["sampling"]),
        (BY_WEIGHT | {"cohort": 5}, []),
        (BY_WEIGHT | {"dropout": 0.5}, []),
        (BY_WEIGHT | {"cohort": 3, "cohort_from": 7}, ["cohort", "sampling"]),
    ],
)
def test_ignored_keys(who, ignored):
    assert Participation(**who).ignored(6) == ignored


def test_the_first_line_of_a_run_names_them(monkeypatch, capsys, tmp_path):
    words = [*TINY, "participation.sampling=by_weight", "partitioner.clients=3"]
    everyone = fedopt(monkeypatch, capsys, *words, "participation.cohort=null", f"output_dir={tmp_path / 'a'}").err
    assert "participation.sampling has no effect, since all clients take part" in everyone.splitlines()[0]
    assert (
        "no effect"
        not in fedopt(monkeypatch, capsys, *words, "participation.cohort=2", f"output_dir={tmp_path / 'b'}").err
    )


def test_a_sweep_refuses_them():
    words = [*TINY, "partitioner.clients=3", "participation.cohort=null"]
    with pytest.raises(
        UserError, match=r"by_weight: participation\.sampling has no effect, since all clients take part"
    ):
        plan([*words, "participation.sampling=uniform,by_weight"], ())
    with pytest.raises(UserError, match=r"cohort=2: participation\.cohort has no effect"):
        plan([*words[:-1], "participation.cohort=null,2", "participation.cohort_from=20"], ())
    for allowed in ("participation.cohort=null,2", "algo.alpha=0.1,0.2"):
        plan([*words[:-1], allowed, "participation.sampling=by_weight"], ())
    plan([*words[:-1], "participation.sampling=uniform,by_weight", "participation.cohort=2"], ())
