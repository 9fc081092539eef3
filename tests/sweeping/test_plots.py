"""Pictures of sweeps: what they show, and that they can be drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from costproof.ledger.environment import installed
from costproof.ledger.errors import BadInput
from costproof.reports.plots.strips import WHOLE, strips
from costproof.run.sweep import picture_rows, sweep
from tests.support.running import costproof

needs_matplotlib = pytest.mark.skipif(
    installed("matplotlib") is None, reason="matplotlib is not installed: the extra [plot]"
)


def test_one_name_has_lines_and_areas() -> None:
    (params, flops), heading = strips(picture_rows(sweep("llama", {"batch": "1,2,2000"}, metrics=["params", "flops"])))
    assert heading == "llama"
    assert (flops.stacked, flops.heat, params.stacked) == (True, None, False)
    (lines,) = flops.lines
    # A batch of 2000 is refused.
    assert (lines.name, lines.at, list(lines.stages)) == ("batch", [1, 2], [WHOLE, "prefill", "decode"])
    for i in range(2):
        assert lines.stages[WHOLE][i] == lines.stages["prefill"][i] + lines.stages["decode"][i]
    assert lines.stages[WHOLE][1] == 2 * lines.stages[WHOLE][0]


def test_several_names_go_through_the_first_model_and_span_a_plane() -> None:
    over = {"hidden": "100,64,128", "heads/kv_heads": "32/8,16/2", "batch": "1,2"}
    (strip,), heading = strips(picture_rows(sweep("llama", over, metrics=["flops"], stages=[])))
    assert heading == "llama, around hidden 64, heads/kv_heads 32/8, batch 1"
    assert [line.name for line in strip.lines] == ["hidden", "heads/kv_heads", "batch"]
    assert strip.lines[0].at == [64, 128]
    assert strip.lines[1].at == ["32/8", "16/2"]
    assert strip.heat is not None
    # A width of 100 is refused.
    assert strip.heat.at == ([64, 128], ["32/8", "16/2"])
    assert [row[0] for row in strip.heat.values] == strip.lines[0].stages[WHOLE]


def test_long_axes_are_thinned_with_both_ends() -> None:
    (strip,), _ = strips(picture_rows(sweep("llama", {"text_tokens": "1:10000"}, metrics=["flops"])))
    at = strip.lines[0].at
    assert (len(at), at[0], at[-1]) == (200, 1, 10_000)


def test_nothing_to_draw(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="the sweep has no valid point to draw"):
        strips(picture_rows(sweep("llama", {"hidden": "100,101"})))
    with pytest.raises(BadInput, match="kind of picture"):
        sweep("llama", {"batch": "1"}).plot(tmp_path / "a.gif")


@needs_matplotlib
def test_the_same_sweep_is_drawn_in_the_same_bytes(tmp_path: Path) -> None:
    over = {"text_tokens": "512,1024", "heads/kv_heads": "32/8,16/2"}
    for name in ("a", "b"):
        for kind in ("svg", "png"):
            sweep("llama", over, metrics=["flops"]).plot(tmp_path / f"{name}.{kind}")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


@needs_matplotlib
def test_the_command_draws_without_being_asked(tmp_path: Path) -> None:
    words = ("sweep", "llama", "--over", "batch=1,2", "--metric", "flops", "-o", "a.csv")
    assert "a.svg" in costproof(*words, cwd=tmp_path).stderr
    assert (tmp_path / "a.svg").read_text().startswith("<?xml")
    (tmp_path / "a.svg").unlink()
    assert costproof(*words, "--no-plot", cwd=tmp_path).code == 0
    assert not (tmp_path / "a.svg").exists()
