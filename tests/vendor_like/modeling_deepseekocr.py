"""The whole model: image tokens into the prompt, the decoder, the output projection.

Keywords only; images come as a list of (crops, global view); branches need values; the mask goes to
``.cuda()``; the features are scattered into the embeddings in place.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers.modeling_outputs import CausalLMOutputWithPast

from .configuration_deepseekv2 import DeepseekV2Config  # noqa: TID252
from .deepencoder import ImageEncoderViT, MlpProjector, VitModel  # noqa: TID252
from .modeling_deepseekv2 import DeepseekV2Model, DeepseekV2PreTrainedModel  # noqa: TID252


class DeepseekOCRConfig(DeepseekV2Config):
    """The whole model's configuration."""

    model_type = "DeepseekOCRLike"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)  # transformers 5 would write one of its own otherwise


class DeepseekOCRModel(DeepseekV2Model):
    """The decoder with the towers in it."""

    config_class = DeepseekOCRConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        width = config.projector_config["n_embed"]
        self.sam_model = ImageEncoderViT(config.vision_config)
        self.vision_model = VitModel(config.vision_config)
        self.projector = MlpProjector(config.projector_config)
        self.image_newline = nn.Parameter(torch.randn(width))
        self.view_seperator = nn.Parameter(torch.randn(width))

    def seen(self, pixels: torch.Tensor) -> torch.Tensor:
        """[n, q², width] of views [n, 3, H, H]."""
        sam = self.sam_model(pixels)
        clip = self.vision_model(pixels, sam)
        result: torch.Tensor = self.projector(torch.cat((clip[:, 1:], sam.flatten(2).permute(0, 2, 1)), dim=-1))
        return result

    def forward(  # type: ignore[override]  # the original's signature differs from its parent's too
        self,
        *,
        input_ids: torch.Tensor,
        images: list[tuple[torch.Tensor, torch.Tensor]] | None = None,
        images_seq_mask: torch.Tensor | None = None,
        images_spatial_crop: torch.Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, Any]:
        """Hidden states and cache."""
        inputs_embeds = self.get_input_embeddings()(input_ids)
        if images is not None and input_ids.shape[1] != 1 and torch.sum(images[0][1]).item() != 0:
            assert images_spatial_crop is not None
            assert images_seq_mask is not None
            for i, (image, crop) in enumerate(zip(images, images_spatial_crop, strict=True)):
                patches, whole = image
                parts = []
                if torch.sum(patches).item() != 0:
                    local = self.seen(patches)
                    parts.append(self.rows(local, crop[0], crop[1]))
                parts.append(self.rows(self.seen(whole), 1, 1))
                features = torch.cat([torch.cat([*parts, self.view_seperator[None, :]], dim=0)], dim=0)
                inputs_embeds[i].masked_scatter_(images_seq_mask[i].unsqueeze(-1).cuda(), features)
        return super().forward(inputs_embeds=inputs_embeds, past_key_values=past_key_values)

    def rows(self, features: torch.Tensor, columns: Any, rows: Any) -> torch.Tensor:
        """A map of views as tokens, a newline after every row."""
        _, count, width = features.shape
        side = int(count**0.5)
        features = features.view(rows, columns, side, side, width).permute(0, 2, 1, 3, 4)
        features = features.reshape(rows * side, columns * side, width)
        newline = self.image_newline[None, None, :].expand(rows * side, 1, width)
        return torch.cat([features, newline], dim=1).view(-1, width)


class DeepseekOCRForCausalLM(DeepseekV2PreTrainedModel):
    """The model and its output projection, in float32."""

    config_class = DeepseekOCRConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = DeepseekOCRModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(self, **kwargs: Any) -> CausalLMOutputWithPast:
        """Logits [B, S, vocabulary]."""
        hidden, cache = self.model(**kwargs)
        return CausalLMOutputWithPast(logits=self.lm_head(hidden).float(), past_key_values=cache)
