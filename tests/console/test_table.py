"""Tables on a terminal of any width: no word is broken, and a wider one shows no less."""

import pytest

from fedopt.console import show_table

HEADS = ["algo", "distance to the solution", "trials", "status", "best values of the keys"]
ROWS = [
    [
        "local_sgda_plus_m, algo.K=5",
        "0.208 ± 0.046",
        "31",
        "2 finished, 1 diverged",
        "participation.stragglers=0.05, algo.gamma_y=0.1",
    ],
    ["sgda", "(1.87 ± 0.21)e-05", "4", "3 finished", "algo.gamma_x=0.5"],
]


@pytest.mark.parametrize("width", range(40, 170, 10))
def test_no_word_is_broken(width, monkeypatch, capsys):
    monkeypatch.setattr("fedopt.console.say.PIPED", width)
    show_table(HEADS, ROWS, right=HEADS[1:3], below=[["a reason why it is so, /with/a/path/to/look/at"], []])
    lines = capsys.readouterr().out.splitlines()
    words = " ".join(lines).split()
    assert {word for row in ROWS for cell in row for word in cell.split()} <= {*words}
    assert {"algo", "/with/a/path/to/look/at"} <= {*words}
    assert max(map(len, lines)) <= width
    for number in (row[1] for row in ROWS):
        assert any(number in line for line in lines)


def test_layout(monkeypatch, capsys):
    """Numbers to the right, heads folded; below its row, with its head, what does not fit."""
    monkeypatch.setattr("fedopt.console.say.PIPED", 54)
    show_table(HEADS[:4], [row[:4] for row in ROWS], right=HEADS[1:3])
    assert (
        capsys.readouterr().out
        == """\
                               distance to the
algo                                  solution  trials
local_sgda_plus_m, algo.K=5      0.208 ± 0.046      31
    2 finished, 1 diverged
sgda                         (1.87 ± 0.21)e-05       4
    3 finished
"""
    )


def test_names_of_a_list_are_not_folded(monkeypatch, capsys):
    """They may be commands."""
    monkeypatch.setattr("fedopt.console.say.PIPED", 50)
    show_table(["", ""], [("fedopt algo=fedmsa problem=mco --cfg job", "show the config and do not run")])
    assert capsys.readouterr().out == "fedopt algo=fedmsa problem=mco --cfg job\n    show the config and do not run\n"
