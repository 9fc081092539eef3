"""Rules of thumb for models that are no decoders, by parameters and tokens, or by the elements of an image."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from costproof import count
from costproof.claims.effects import Mistakes
from costproof.claims.judge import judge_claim
from costproof.claims.truth import ClaimCase
from costproof.claims.types import Amount, PublishedClaim
from tests.claims.test_windows import causes, counted, judged

# ViT-L/16: 303,301,632 parameters and 1,025 for each class, 1,000 here; images of 3 x 224 x 224; 197 tokens.
BODY, CLASS, ELEMENTS = 303_301_632, 1025, 3 * 224 * 224
TRUTH = 123_109_425_152


def float32(number: int) -> int:
    """The nearest float32, as torch has it."""
    return int(torch.tensor(number, dtype=torch.float64).to(torch.float32).item())


@pytest.mark.parametrize(
    ("published", "value", "expected"),
    [
        (None, 2 * (BODY + 1000 * CLASS) * ELEMENTS, {"2ND: elements of the input for tokens"}),
        (None, 6 * (BODY + 1000 * CLASS) * ELEMENTS, {"2ND: elements of the input for tokens", "6ND"}),
        (None, float32(6 * (BODY + 1000 * CLASS) * ELEMENTS), {"total_flos"}),
        # Two classes, unless somebody says how many.
        (273_934_171_766_784, float32(6 * (BODY + 2 * CLASS) * ELEMENTS), {"total_flos, two classes"}),
        (91_311_390_588_928, float32(6 * (BODY + 2 * CLASS) * ELEMENTS) // 3, {"total_flos of one pass, two classes"}),
        (None, 2 * (BODY + 1000 * CLASS) * 197, {"2ND: all"}),
        (None, 6 * (BODY + 1000 * CLASS) * 197, {"2ND: all", "6ND"}),
        # 24 layers of 12 x 1,024 x 1,024.
        (None, 2 * 197 * 24 * 12 * 1024**2, {"2ND: matrices of layers"}),
    ],
)
def test_an_image_by_parameters(published: int | None, value: int, expected: set[str]) -> None:
    assert published in (None, value)
    found = judged(counted("vit-l-16"), "total", "flops", value)
    assert (found.truth, found.status) == (TRUTH, "explained")
    assert expected in causes(found)


@pytest.mark.parametrize("value", [2 * BODY * 1000, TRUTH * 97 // 101, 6 * BODY * ELEMENTS // 7])
def test_other_numbers_are_not_explained(value: int) -> None:
    assert judged(counted("vit-l-16"), "total", "flops", value).status not in ("right", "explained")


class Layer(nn.Module):
    """A norm, and two matrices on tokens beside one on a condition."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(48)
        self.up, self.down, self.condition = nn.Linear(48, 160), nn.Linear(160, 48), nn.Linear(48, 48)

    def forward(self, x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        """Add what the condition and the tokens give."""
        out: torch.Tensor = x + self.down(self.up(self.norm(x))) + self.condition(c)[:, None]
        return out


class Net(nn.Module):
    """Patches of 4 of an image of 3 x 28 x 28, 49 tokens, two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 48, 4, 4)
        self.layers = nn.ModuleList(Layer() for _ in range(2))

    def forward(self, x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        """Run the layers."""
        y: torch.Tensor = self.patch(x).flatten(2).transpose(1, 2)
        for layer in self.layers:
            y = layer(y, c)
        return y


TOKENS, WIDTH = 49, 48
MATRICES = 2 * TOKENS * 2 * 2 * 48 * 160
WORK = MATRICES + 2 * TOKENS * 48 * 48 + 2 * 2 * 48 * 48
"""Of the layers; the patches; what works on the condition, a row each."""
HELD = 48 * 48 + 48 + 2 * (2 * 48 + 2 * 48 * 160 + 160 + 48 + 48 * 48 + 48)


def test_a_module_without_formulas() -> None:
    capture = count(Net(), torch.ones(1, 3, 28, 28), torch.ones(1, 48)).capture
    ledger = capture.by_source["static"]

    def found(value: int) -> list[set[str]]:
        claim = PublishedClaim("c", "$", "total", "flops", Amount(str(value), value, value))
        judgement = judge_claim(ClaimCase(claim, capture, ledger, Mistakes()))
        assert judgement.truth == WORK
        return causes(judgement)

    assert found(2 * HELD * TOKENS) == [{"2ND: all"}]
    assert {"2ND: all", "6ND"} in found(6 * HELD * TOKENS)
    assert found(MATRICES) == [{"2ND: matrices of layers"}]
    assert {"2ND: elements of the input for tokens"} in found(2 * HELD * 3 * 28 * 28)
    assert {"norms at 1", "mac"} in found(WORK // 2 + 2 * TOKENS * WIDTH)


def test_a_forgotten_batch_of_a_module_without_formulas() -> None:
    capture = count(Net(), torch.ones(2, 3, 28, 28), torch.ones(2, 48)).capture
    claim = PublishedClaim("c", "$", "total", "flops", Amount(str(WORK), WORK, WORK))
    judgement = judge_claim(ClaimCase(claim, capture, capture.by_source["static"], Mistakes()))
    assert (judgement.truth, judgement.status) == (2 * WORK, "explained")
    (step,) = judgement.explanations[0].steps
    assert step.cause == "mac"
    assert "batch forgotten" in step.or_else
