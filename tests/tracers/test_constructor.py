from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from costproof.tracers.callgraph import constructor_params
from tests.tracers.small import model


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (nn.Linear(3, 5, bias=False), {"in_features": 3, "out_features": 5, "bias": False}),
        (nn.LayerNorm((4, 6), eps=1e-3), {"normalized_shape": (4, 6), "eps": 1e-3, "elementwise_affine": True,
                                          "bias": True}),
        (nn.Embedding(9, 4, padding_idx=0), {"num_embeddings": 9, "embedding_dim": 4, "padding_idx": 0}),
        (nn.MultiheadAttention(8, 2, batch_first=True), {"embed_dim": 8, "num_heads": 2, "head_dim": 4, "kdim": 8,
                                                         "vdim": 8, "batch_first": True, "bias": True}),
        (nn.MaxPool2d(3, stride=2), {"kernel_size": 3, "stride": 2, "padding": 0, "dilation": 1, "ceil_mode": False}),
    ],
)  # fmt: skip
def test_layers_of_torch(module: nn.Module, expected: dict[str, Any]) -> None:
    assert constructor_params(module) == expected


def test_a_convolution_has_all_its_sides() -> None:
    assert constructor_params(nn.Conv2d(4, 8, (5, 3), stride=2, padding=1, groups=2)) == {
        "bias": True,
        "dilation": (1, 1),
        "groups": 2,
        "in_channels": 4,
        "kernel_size": (5, 3),
        "out_channels": 8,
        "padding": (1, 1),
        "padding_mode": "zeros",
        "stride": (2, 2),
        "transposed": False,
    }
    assert constructor_params(nn.ConvTranspose1d(2, 2, 3, output_padding=1, stride=2))["output_padding"] == (1,)


def test_other_classes_by_arguments_configuration_and_parameters() -> None:
    class Config:
        def __init__(self) -> None:
            self.num_heads, self.vocab_size, self.dropout = 6, 100, 0.1

    class Odd(nn.Module):
        def __init__(self, config: Config, width: int) -> None:
            super().__init__()
            self.config, self.width, self.head_dim = config, width, width // config.num_heads
            self.other, self._hidden_size = 5, 6
            self.table = nn.Parameter(torch.empty(width, 2))

    tupled = Odd(Config(), 12)
    tupled.config = ("num_heads", 6)  # type: ignore[assignment]  # a configuration in name alone
    assert constructor_params(tupled) == {"head_dim": 2, "table.shape": (12, 2), "width": 12}
    # vocab_size is in the configuration, but this constructor never looks at it.
    assert constructor_params(Odd(Config(), 12)) == {"head_dim": 2, "num_heads": 6, "table.shape": (12, 2), "width": 12}


def test_a_subclass_of_a_layer_adds_to_it() -> None:
    class Scaled(nn.Linear):
        def __init__(self, width: int, top_k: int) -> None:
            super().__init__(width, width)
            self.top_k = top_k

    found = constructor_params(Scaled(4, 2))
    assert found == {"bias": True, "bias.shape": (4,), "in_features": 4, "out_features": 4, "top_k": 2,
                     "weight.shape": (4, 4)}  # fmt: skip


def test_the_sizes_of_a_real_decoder() -> None:
    # The values are those of the configuration in tests/tracers/small.py.
    layer = "model.language_model.layers.1"
    assert constructor_params(model().get_submodule(f"{layer}.mlp.gate"))["top_k"] == 3
    experts = constructor_params(model().get_submodule(f"{layer}.mlp.experts"))
    assert experts["num_experts"] == 8
    assert experts["gate_up_proj.shape"] == (8, 2 * 24, 80)
    attention = constructor_params(model().get_submodule(f"{layer}.self_attn"))
    assert (attention["num_attention_heads"], attention["num_key_value_heads"], attention["head_dim"]) == (5, 5, 16)
    sam = constructor_params(model().get_submodule("model.vision_tower.sam_encoder"))
    assert (sam["window_size"], sam["patch_size"], sam["global_attn_indexes"]) == (3, 16, (1,))
