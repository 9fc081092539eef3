"""What other code raises, in one line; names that somebody probably meant."""

from __future__ import annotations

import pytest

from costproof.ledger.errors import BadInput, did_you_mean, first_line, invalid_choice, no_such, setting_fix


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("\n bad shape \nand a trace below"), "ValueError: bad shape"),
        (KeyError("x"), "KeyError: 'x'"),
        (RuntimeError(), "RuntimeError"),
        (RuntimeError("y" * 1000), "RuntimeError: " + "y" * 300),
    ],
)
def test_first_line(error: Exception, expected: str) -> None:
    assert first_line(error) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [("sams", "did you mean sam?"), ("CLIP", "did you mean clip?"), ("mode", "did you mean Model?"), ("zzz", None)],
)
def test_did_you_mean(name: str, expected: str | None) -> None:
    assert did_you_mean(name, ["sam", "clip", "Model"]) == expected


def test_a_setting_that_has_another_name_is_told_by_it() -> None:
    """Not the most similar name, ``new_tokens``, which is another setting."""
    told = "write seq_len, as for all models without formulas of their own"
    assert setting_fix("text_tokens", "", ["new_tokens", "seq_len"]) == told
    assert setting_fix("text_tokens", "", ["new_tokens"]) == "did you mean new_tokens?"


def test_which_targets_have_a_setting_is_said_of_settings_only() -> None:
    """A layout, a stage or a dtype of the same name is another thing."""
    assert did_you_mean("rows", ["column", "row"]) == "did you mean row?"
    assert no_such("stage", "rows", ["prefill"]).fix is None
    assert "unequal rows" in str(no_such("setting", "rows", ["batch"]).fix)
    assert invalid_choice("--dtype", "flash_attention_2", ["bfloat16"]).fix is None
    assert "FlashAttention" in str(setting_fix("attention", "flash_attention_2", ["sdpa"]))


def test_an_empty_fix_is_none() -> None:
    error = BadInput("what", where="place", fix="")
    assert error.fix is None
    assert str(error) == "what\n  where:    place"
