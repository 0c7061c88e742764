"""Which checks of the contract run by default: one a usual pair, in turn."""

from collections import Counter

from fedopt.testing import test_contract
from fedopt.testing.harness import in_turn, names, pairs, usual_pairs, variants, with_variants
from fedopt.testing.test_contract import checks

ELSEWHERE = {"test_a_round_stays_on_the_device"}


def test_every_check_has_its_turn():
    """Every algorithm but variants, every problem and every setting has cases by default; their other checks are full."""
    cases = [
        (test, *case.values, {mark.name for mark in case.marks}) for test, of in in_turn(checks).items() for case in of
    ]
    default = [case for case in cases if not case[-1]]
    assert Counter(case[1:3] for case in default) == Counter(usual_pairs())
    assert {algo for _, algo, *_ in default} == {*names("algo")} - variants()
    assert {problem for _, _, problem, *_ in default} == {*names("problem")}
    often = Counter((test, *setting) for test, _, _, *setting, _ in default)
    assert {*often} == {check for pair in pairs() for check in checks(*pair)}
    assert min(often.values()) >= 5
    assert {case[1:3] for case in cases if "slow" not in case[-1]} == with_variants()
    assert {test for test, *_ in cases} <= {*vars(test_contract)} | ELSEWHERE
