"""Where a way along one number ends: each kind of comparison, against every value one by one."""

from __future__ import annotations

import pytest

from costproof.parametric.concolic import BranchCondition, PathCondition, SizeExpr, branch_limit

X: SizeExpr = ("var", "x")
LINE: SizeExpr = ("+", ("*", X, ("int", 3)), ("int", -20))
PARABOLA: SizeExpr = ("-", ("*", X, X), ("*", ("int", 11), X))
"""0 at 11; x^2 - 11 x is -30 at 5 and 6."""
TWICE: SizeExpr = ("+", ("-", ("*", X, X), ("*", ("int", 13), X)), ("int", 36))
"""0 at 4 and at 9."""
FAR = 60


@pytest.mark.parametrize("how", ["==", "<", "<="])
@pytest.mark.parametrize("left", [X, LINE, PARABOLA, TWICE])
@pytest.mark.parametrize("right", [("int", 0), ("int", 7), ("int", -30), ("int", -31), ("+", X, ("int", 1)), X])
def test_it_ends_at_the_first_value_that_breaks_a_condition(how: str, left: SizeExpr, right: SizeExpr) -> None:
    for start in range(1, 20):
        for outcome in (True, False):
            one = BranchCondition(how, left, right, outcome)
            if not one.holds({"x": start}, {}):
                continue
            first = next((x for x in range(start, FAR) if not one.holds({"x": x}, {})), None)
            assert branch_limit(PathCondition([one]), "x", start) == first


def test_of_several_conditions_the_first_ends_it() -> None:
    way = PathCondition([BranchCondition("<", X, ("int", 30), True), BranchCondition("<", ("int", 9), X, False)])
    assert branch_limit(way, "x", 2) == 10
    assert branch_limit(PathCondition([]), "x", 2) is None


def test_beside_a_comparison_that_is_not_solved_nothing_is_known() -> None:
    assert branch_limit(PathCondition([BranchCondition("==", ("%", X, ("int", 2)), ("int", 0), True)]), "x", 4) == 5
