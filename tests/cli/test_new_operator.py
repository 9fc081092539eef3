"""An operator that nobody has ruled, as its user meets it: incomplete, bounded, named; then one function rules it.

``tests/data/mylib`` is a distribution of the user's: ``mylib_ops`` registers ``mylib::fancy_matmul`` with torch,
``mylib_target`` offers a model with it as a target, ``my_rules.py`` is the rule. Nothing of ours knows them.

By hand, 5 sequences of 4: the linear layer 6 -> 8 does 2 * 20 * 6 * 8 = 1,920 FLOPs. The fancy layer 8 -> 12 is
called on two halves of 10 rows, 2 * 10 * 8 * 12 = 1,920 each. UnknownCost, a call is bounded by 2 x its 10 * 12
outputs x the longest dimension, 12: 2,880.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from costproof import read
from costproof.algebra.symbols import sym
from costproof.ledger.errors import BadInput
from costproof.ledger.node import NO_RULE, UnknownOp, unknown_clause
from costproof.opgraph.costed import bound_unknown, cost_graph
from costproof.opgraph.graph import Graph, OpCall, Value
from costproof.opgraph.rules.cost import OpCost
from costproof.opgraph.rules.files import rules_from
from costproof.opgraph.rules.registry import UnknownCost, cost_of, registered, rule_table
from tests.support.running import Result, costproof

MYLIB = Path(__file__).parents[1] / "data" / "mylib"
RULES = str(MYLIB / "my_rules.py")
WHO = "operator mylib.fancy_matmul has no rule (2 calls in fancy, no bound of its FLOPs)"
WRITE = 'give it a rule: a function with @costproof.operator_rule("mylib.fancy_matmul") in a file, and --rules FILE'


@pytest.fixture(autouse=True, scope="module")
def mylib() -> Iterator[None]:
    """The distribution is installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(MYLIB)
        yield


def report(folder: Path, sources: str, *arguments: str) -> Result:
    given = ("--sources", sources, *arguments, "--progress", "never", "-o", "r")
    return costproof("report", "fancy", *given, cwd=folder)


def test_without_a_rule_nothing_is_claimed(tmp_path: Path) -> None:
    told = report(tmp_path, "dynamic,isolated")  # both traced: no export is needed to notice it
    assert told.code == 3
    for source in ("dynamic", "isolated"):
        assert f"{source}: {WHO}" in told.stdout
    assert WRITE in told.stdout
    assert "≥ 1.92 kFLOP" in told.stdout
    (stage,) = json.loads((tmp_path / "r" / "static_compute.json").read_text(encoding="utf-8"))["stages"]
    assert (stage["flops"], stage["at_least"]["flops"]) == (None, 1920)
    coverage = json.loads((tmp_path / "r" / "discrepancy.json").read_text(encoding="utf-8"))["coverage"]
    assert {s: (c["known_flops"], c["bound_flops"]) for s, c in coverage.items()} == dict.fromkeys(
        ("dynamic", "isolated"), (1920, None)
    )
    assert 'costproof.operator_rule("mylib.fancy_matmul")' in (tmp_path / "r" / "discrepancy.md").read_text(
        encoding="utf-8"
    )


def test_one_function_makes_it_exact(tmp_path: Path) -> None:
    told = report(tmp_path, "static,dynamic,isolated", "--rules", RULES)
    assert told.code == 0, told.stderr
    (stage,) = json.loads((tmp_path / "r" / "static_compute.json").read_text(encoding="utf-8"))["stages"]
    for source in ("static", "dynamic", "isolated"):
        assert stage["sources"][source]["flops"] == 1920 + 2 * 1920
    assert stage["flops_by_kind"] == {"aten.linear": 1920, "mylib.fancy_matmul": 2 * 1920}
    assert "mylib.fancy_matmul" not in {r.operator for r in rule_table()}
    # A gate takes the same rules for the same work alone.
    digest = hashlib.sha256(Path(RULES).read_bytes()).hexdigest()[:12]
    assert read(tmp_path / "r").environment["rules"] == f"my_rules.py {digest}"


def test_the_export_says_the_same(tmp_path: Path) -> None:
    told = costproof("capture", "fancy", "--sources", "static", "-o", "c.json", "--progress", "never", cwd=tmp_path)
    assert told.code == 3
    assert "no cost rule for mylib.fancy_matmul (2 calls in fancy, no bound of its FLOPs)" in told.stderr
    assert WRITE in told.stderr


def test_derive_needs_no_target(tmp_path: Path) -> None:
    told = costproof("derive", "mylib_ops:Model", cwd=tmp_path)
    assert told.code == 3
    assert "mylib.fancy_matmul, 2 calls in fancy, no bound of its FLOPs" in told.stderr
    assert WRITE in told.stderr
    told = costproof("derive", "mylib_ops:Model", "--rules", RULES, "--points", "1", cwd=tmp_path)
    assert (told.code, told.stdout.splitlines()[3]) == (0, f"total = {5760 // 5}*B")


@pytest.mark.parametrize(
    ("text", "what", "got"),
    [
        ("x = 1", "registers no operator rule", None),
        ("1 / 0", "cannot be run", "ZeroDivisionError: division by zero"),
        ("raise SystemExit(0)", "cannot be run", "SystemExit: 0"),
        ("def f(:", "cannot be run", "SyntaxError: "),
        ("import costproof\n@costproof.operator_rule('my.new', 'aten.linear')\ndef f(op): ...", "two rules", "rules.f"),
        ("import costproof\n@costproof.operator_rule('my.new')\ndef f(op): ...\n1 / 0", "cannot be run", "Zero"),
        (None, "no such Python file", None),
    ],
)
def test_a_file_that_holds_no_rules(text: str | None, what: str, got: str | None, tmp_path: Path) -> None:
    before, file = rule_table(), tmp_path / "rules.py"
    if text is not None:
        file.write_text(text, encoding="utf-8")
    with pytest.raises(BadInput, match=what) as error, rules_from([RULES, file]):
        pytest.fail("nothing is in force")
    assert str(file) in str(error.value.where)
    assert got is None or got in str(error.value.got)
    assert rule_table() == before


def test_a_transform_of_a_file_holds_as_long_as_its_rules(tmp_path: Path) -> None:
    before, file = registered(), tmp_path / "mine.py"
    file.write_text(
        "from costproof.opgraph.rules.registry import graph_transform\n"
        "@graph_transform\ndef same(graph): return graph\n"
    )
    with rules_from([file]):
        assert registered() - before == {"rules_mine.same"}
    assert registered() == before


def test_a_tensor_that_no_operator_made_is_unknown() -> None:
    """TorchLens calls so what it did not see: an operator that it passed over would be 0 FLOPs."""

    def made(dtype: str) -> OpCall:
        return OpCall("none_1", "none", "fancy", 1, (), (Value("y", (10, 12), dtype),))

    unknown = cost_of(made("bfloat16"))
    assert isinstance(unknown, UnknownCost)
    assert unknown.bound is None
    assert isinstance(cost_of(made("int64")), OpCost)


def test_a_bound_needs_sizes() -> None:
    """A sparse [B, P] x [P, 12] in three steps at P = 5, B = 4: at most the full product, 2 x 4 x 5 x 12 a step."""
    batch, past = sym("B"), sym("P")
    tensors = (Value("x", (batch, past), "bfloat16"), Value("w", (past, 12), "bfloat16"))
    op = OpCall("mm_1", "aten._sparse_mm", "fancy", 1, tensors, (Value("y", (batch, 12), "bfloat16"),))
    work = cost_graph(Graph((op,), ()))
    (found,) = bound_unknown([UnknownOp("aten._sparse_mm", "s", "fancy", 1, None, "")], work, {"B": 4, "P": 5}, 3)
    assert (found.count, found.bound_flops) == (3, 3 * 2 * 4 * 5 * 12)


def test_shapes_alone_bound_nothing() -> None:
    """An operator without a rule may do anything with its tensors: a bound from one product's shapes was too low."""
    op = OpCall("new_1", "mylib.new", "fancy", 1, (Value("x", (4, 12), "float32"),), (Value("y", (4, 12), "float32"),))
    (found,) = bound_unknown([UnknownOp("mylib.new", "s", "fancy", 1, None, NO_RULE)], cost_graph(Graph((op,), ())), {})
    assert found.bound_flops is None
    assert unknown_clause([found]) == "1 call in fancy, no bound of its FLOPs"


def test_a_file_that_is_named_twice_is_run_once() -> None:
    with rules_from([RULES, RULES]), rules_from([RULES]):
        assert "mylib.fancy_matmul" in {r.operator for r in rule_table()}
    assert "mylib.fancy_matmul" not in {r.operator for r in rule_table()}
