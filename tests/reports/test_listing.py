"""``explain --graph``: the operators of an exported stage, each with its cost; numbers by hand."""

from __future__ import annotations

from pathlib import Path

import costproof
from costproof.ledger.callgraph import OperatorLine, OperatorListing, ReuseBytes
from costproof.reports.listing import listing_text
from tests.support.running import costproof as command

MODEL = Path(__file__).parents[2] / "docs" / "examples" / "my_model.py"


def line(
    label: str, module: str, flops: int | None = 0, *, returns: tuple[str, ...] = ("[2] float32",)
) -> OperatorLine:
    return OperatorLine(label, "aten.op", module, ("%x",), returns, flops, 0, "" if flops is not None else "no rule")


def test_every_operator_has_its_cost(tmp_path: Path) -> None:
    (found,) = costproof.operators(f"{MODEL}:make", "forward")
    # Three rows: 2 * 3 * 16 * 32 and 2 * 3 * 32 * 8, a bias adds nothing; a comparison for each of 3 * 32 elements.
    assert [(x.operator, x.module, x.flops, x.vector_flops, x.returns) for x in found.lines] == [
        ("aten.linear.default", "0", 3072, 0, ("[3, 32] float32",)),
        ("aten.relu.default", "1", 0, 96, ("[3, 32] float32",)),
        ("aten.linear.default", "2", 1536, 0, ("[3, 8] float32",)),
    ]
    # In float32: rows of 192, 384, 384 and 96 bytes; weights and biases of 2048 + 128 and 1024 + 32.
    assert [x.bytes for x in found.lines] == [192 + 2176 + 384, 384 + 384, 384 + 1056 + 96]
    assert found.reuse == ReuseBytes(floor=192 + 2176 + 1056 + 96, fused=2752 + 768 + 1536, unfused=2752 + 768 + 1536)
    assert found.lines[0].reads[1:] == ("0.weight", "0.bias")
    assert found.lines[1].reads == (f"%{found.lines[0].label}",)
    (part,) = costproof.operators(f"{MODEL}:make", "forward", module="2")
    assert ([x.flops for x in part.lines], part.reuse) == ([1536], None)
    moved = "  moved: 3,520 B at least, 5,056 B module by module, 5,056 B operator by operator"
    assert moved in command("explain", f"{MODEL}:make", "forward", "--graph", cwd=tmp_path).stdout.splitlines()
    for words in (("--module", "nowhere"), ("-f", "md")):
        done = command("explain", f"{MODEL}:make", "forward", "--graph", *words, cwd=tmp_path)
        assert (done.code, done.stdout) == (2, "")


def test_equal_layers_are_written_once() -> None:
    layers = [line(f"{name}_{i}", f"m.layers.{i}.{name}", 5 if i < 3 else 7) for i in range(4) for name in ("a", "b")]
    text = listing_text([OperatorListing("s", "c", "p", (line("first", "m"), *layers))])
    assert text.splitlines() == [
        "s[c], export p: 9 operators, 44 FLOP",
        "  %first = aten.op(%x) -> [2] float32  # m",
        "  for 3: m.layers.[0-2]",
        "    %a_0 = aten.op(%x) -> [2] float32  # 5 FLOP 11.4 %; m.layers.0.a",
        "    %b_0 = aten.op(%x) -> [2] float32  # 5 FLOP 11.4 %; m.layers.0.b",
        "  %a_3 = aten.op(%x) -> [2] float32  # 7 FLOP 15.9 %; m.layers.3.a",
        "  %b_3 = aten.op(%x) -> [2] float32  # 7 FLOP 15.9 %; m.layers.3.b",
    ]


def test_what_is_not_known_stays_so_and_checks_are_left_out() -> None:
    text = listing_text([OperatorListing("s", "c", "p", (line("a", "", None), line("check", "", returns=())))])
    assert text.splitlines() == [
        "s[c], export p: 2 operators, ? FLOP",
        "  %a = aten.op(%x) -> [2] float32  # ? FLOP; no rule; (root)",
    ]
