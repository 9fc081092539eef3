"""Configuration: every key of the JSON object is an attribute, those of ``language_config`` at top level too."""

from __future__ import annotations

from typing import Any

from transformers import PretrainedConfig


class DeepseekV2Config(PretrainedConfig):  # type: ignore[misc]
    """The decoder's sizes."""

    model_type = "deepseek_v2_like"

    def __init__(self, **kwargs: Any) -> None:
        for key, value in dict(kwargs.get("language_config") or {}).items():
            setattr(self, key, value)
        self.vision_config: dict[str, Any] = kwargs.pop("vision_config", {})
        self.language_config: dict[str, Any] = kwargs.pop("language_config", {})
        self.projector_config: dict[str, Any] = kwargs.pop("projector_config", {})
        kwargs.pop("model_type", None)
        super().__init__(**kwargs)
