"""The side of a view as a symbol: what torch.export keeps, when the graph holds, and that nothing is left behind."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from costproof.algebra.symbols import parse, text
from costproof.ledger.errors import Incomplete
from costproof.models.families.deepseek_ocr import proof as ocr_proof
from costproof.models.families.deepseek_ocr.config import OcrConfig
from costproof.models.families.deepseek_ocr.proof import AnySideOcr
from costproof.models.pages.config import SamConfig
from costproof.models.pages.page import page_of
from costproof.models.specs import ExportJob, SymbolicSize
from costproof.patches.modules import symbolic_int
from costproof.run.proof_pieces import carry_out_piece
from costproof.tracers.exported import Exported, export_graph
from costproof.tracers.exporting import plain_sympy
from costproof.tracers.guards import holds_at


class Windows(nn.Module):
    """[n, H, 2] padded up to whole windows of 3 and cut into them; at H = 10 nothing is added."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n, H, 2] -> [n, ceiling(H/3), 3, 2]."""
        side = x.shape[1]
        padded = nn.functional.pad(x, (0, 0, 0, (3 - side % 3) % 3))
        if side == 10:
            return padded.reshape(x.shape[0], padded.shape[1] // 3, 3, 2)
        return padded.reshape(x.shape[0], padded.shape[1] // 3, 3, 2) + 1


class Wrapper(nn.Module):
    """Around :class:`Windows`, as an export wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.part = Windows()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n, H, 2] -> [n, ceiling(H/3), 3, 2]."""
        result: torch.Tensor = self.part(x)
        return result


def windows() -> Exported:
    sizes = [SymbolicSize(("x",), 0, "n"), SymbolicSize(("x",), 1, "H", 2)]
    return export_graph(
        ExportJob("w", "s", ("i",), Wrapper(), {"part": ""}, {"x": torch.empty(5, 14, 2, device="meta")}, sizes)
    )


def test_a_padded_side_is_a_ceiling() -> None:
    found = windows()
    shape = [text(parse(str(s))) for s in found.graph.outputs[0].shape]
    assert shape == ["n", "ceiling(H/3)", "3", "2"]


def test_a_graph_holds_where_its_guards_do() -> None:
    points = [{"n": 2, "H": side} for side in (2, 4, 7, 8, 10, 14, 100)]
    # Not at 2, less than two steps; not at 7, no multiple of 2; not at 10, where the module takes another branch.
    assert holds_at(windows(), points) == (False, True, False, True, False, True, True)


@pytest.mark.parametrize(
    "condition",
    [
        "H % 4 == 0", "4*((3 + H) // 4) <= H", "N != H", "max(3, (-5) + H) > min(N, 4)", "H*H - 2**3 > 100",
        "not H == 8", "((-1)*H) + (-14)*(((-1)*H) // 14) <= 9 and H >= 6", "N < H < 14 or H / 3 > 5",
    ],
)  # fmt: skip
def test_guards_are_read_as_python_reads_them(condition: str) -> None:
    found = windows()
    dims = {s.symbol.upper(): s.dim for s in found.job.sizes}
    guard = re.sub(r"[NH]", lambda m: f"L['x'].size()[{dims[m[0]]}]", condition)
    made = Exported(found.job, found.graph, found.parameters, found.buffers, found.cache_inputs, (guard,))
    points = [{"n": n, "H": side} for n in (2, 5) for side in (4, 6, 8, 14, 16)]
    names = {"min": min, "max": max, "__builtins__": {}}
    assert holds_at(made, points) == tuple(eval(condition, names, {"N": p["n"], "H": p["H"]}) for p in points)


@pytest.mark.parametrize(
    "guard", ["L['x'].stride()[0] == 2", "L['y'].size()[0] == 2", "abs(L['x'].size()[0]) > 1", "x"]
)
def test_a_guard_about_something_else_is_refused(guard: str) -> None:
    found = windows()
    strange = Exported(found.job, found.graph, found.parameters, found.buffers, found.cache_inputs, (guard,))
    with pytest.raises(Incomplete, match="something other than the sizes"):
        holds_at(strange, [{"n": 2, "H": 4}])


def test_what_rounds_has_one_form() -> None:
    assert plain_sympy(parse("floor(-H/7)")) == -parse("ceiling(H/7)")


def small(window: int) -> OcrConfig:
    """One layer, with windows; layers without are in the lines of README (tests/docs/test_command_lines.py)."""
    drawn = ocr_proof.draw(1, 0).target.config
    sam = SamConfig(8, 1, 2, 12, 64, 2, window, (), 4, (6, drawn.clip.hidden))
    return OcrConfig(sam, drawn.clip, drawn.text, drawn.image_token)


def test_the_side_that_stands_for_all() -> None:
    # Stride 8, windows of 3 patches of 2 pixels: whole windows at lcm(8, 6) = 24.
    config = small(3)
    assert AnySideOcr(config).whole_step == 24
    side = page_of(AnySideOcr(config).run())
    whole = page_of(AnySideOcr(config, tiled=True).run())
    assert side is not None
    assert whole is not None
    assert (side.base_size % 8, side.base_size % 24 > 0, whole.base_size % 24) == (0, True, 0)
    # Windows of 4 patches are 8 pixels, the stride: every side is tiled.
    assert AnySideOcr(small(4)).whole_step == 8


@pytest.mark.thorough
def test_every_side_is_described() -> None:
    config = small(3)
    answer = carry_out_piece(ocr_proof._any_side(config)[0])
    assert {c.method for c in answer.claims} == {"identity"}
    assert answer.counterexamples == ()
    assert {c.invocation for c in answer.claims} == {"", "any"}
    # One feature has no neighbours; 24, 48, 72 … are tiled by windows; 64 is the position table's own side.
    assert set(ocr_proof.symbolic_sides(config)) - set(answer.sizes["sam"]) == {8, 64, *range(24, 1025, 24)}
    products = [c for c in answer.claims if (c.kind, c.metric) == ("attention", "flops")]
    (attention,) = (c for c in products if "layers.0" in c.module and "sam" in c.module)
    # 2 products of 2, 9 x 9 pairs in each of ceiling(H/6)**2 windows, 8 wide.
    assert attention.at_config == f"{2 * 2 * 81 * 8}*n*ceiling(H/6)**2"


def test_the_native_int_is_put_back() -> None:
    from transformers.models.unlimited_ocr import modeling_unlimited_ocr as modeling

    assert "int" not in vars(modeling)
    with symbolic_int():
        assert modeling.int(3.5) == 3
    with pytest.raises(ZeroDivisionError), symbolic_int():
        raise ZeroDivisionError
    assert "int" not in vars(modeling)


def test_jobs_of_whole_windows_are_sams() -> None:
    config = ocr_proof.draw(1, 0).target.config
    for target, stages in (
        (AnySideOcr(config), ["sam", "clip", "projector"]),
        (AnySideOcr(config, tiled=True), ["sam"]),
    ):
        workload = target.run()
        assert [j.stage for j in target.export_jobs(target.build(workload), workload)] == stages
