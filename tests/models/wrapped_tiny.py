"""Tiny random models that read pictures, made by transformers, around a text model each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.models import tiny

_TEXT = dict(tiny.BASE, num_hidden_layers=3)
_WIDE = dict(_TEXT, head_dim=12)
_SIGLIP = dict(
    hidden_size=24,
    intermediate_size=40,
    num_hidden_layers=2,
    num_attention_heads=2,
    image_size=32,
    patch_size=8,
)
_GEMMA4_SEES = dict(
    hidden_size=24,
    intermediate_size=40,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    head_dim=12,
    patch_size=4,
    position_embedding_size=16,
)
_QWEN = dict(
    depth=2,
    hidden_size=32,
    num_heads=2,
    intermediate_size=48,
    out_hidden_size=32,
    patch_size=4,
    spatial_merge_size=2,
    temporal_patch_size=2,
)
_TOKENS = dict(
    image_token_id=90, video_token_id=91, vision_start_token_id=92, vision_end_token_id=93
)


def _axes(section: list[int], **values: Any) -> dict[str, Any]:
    rope = dict(rope_type="default", rope_theta=1e4, mrope_section=section, **values)
    return dict(rope_parameters=rope)


_HYBRID = dict(
    tiny.HYBRID,
    rope_parameters=dict(
        rope_type="default",
        rope_theta=1e4,
        partial_rotary_factor=0.5,
        mrope_section=[2, 1, 1],
        mrope_interleaved=True,
    ),
)

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma3": (
        "Gemma3Config",
        dict(
            text_config=dict(_WIDE, sliding_window=5, num_hidden_layers=6),
            vision_config=_SIGLIP,
            mm_tokens_per_image=4,
            boi_token_index=92,
            eoi_token_index=93,
            image_token_index=90,
        ),
    ),
    "gemma4": (
        "Gemma4Config",
        dict(  # as E2B, which hears too
            text_config=dict(tiny.VARIANTS["gemma4"][1], use_bidirectional_attention="vision"),
            vision_config=_GEMMA4_SEES,
            audio_config=dict(
                hidden_size=16,
                num_hidden_layers=1,
                num_attention_heads=2,
                subsampling_conv_channels=[4, 4],
                output_proj_dims=24,
            ),
            # beyond the vocabulary: their embedding is that of padding
            image_token_id=97,
            video_token_id=98,
            audio_token_id=99,
        ),
    ),
    "llama4": (
        "Llama4Config",
        dict(
            text_config=dict(tiny.VARIANTS["llama4"][1], moe_layers=[1, 3]),
            vision_config=dict(
                hidden_size=24,
                intermediate_size=96,
                num_hidden_layers=2,
                num_attention_heads=2,
                image_size=32,
                patch_size=8,
                projector_input_dim=24,
                projector_output_dim=24,
                vision_output_dim=24,
            ),
            image_token_index=90,
        ),
    ),
    "gemma4-moe": (
        "Gemma4Config",
        dict(
            text_config=dict(tiny.VARIANTS["gemma4-moe"][1], use_bidirectional_attention="vision"),
            vision_config=_GEMMA4_SEES,
            image_token_id=97,
            video_token_id=98,
        ),
    ),
    "mistral3": (
        "Mistral3Config",
        dict(
            text_config=dict(_WIDE, model_type="mistral", sliding_window=None),
            vision_config=dict(_SIGLIP, model_type="pixtral", head_dim=12),
            image_token_index=90,
            tie_word_embeddings=False,
        ),
    ),
    "ministral3": (
        "Mistral3Config",
        dict(
            text_config=dict(_WIDE, model_type="ministral3"),
            vision_config=dict(_SIGLIP, model_type="pixtral", head_dim=12),
            image_token_index=90,
        ),
    ),
    "internvl": (
        "InternVLConfig",
        dict(
            text_config=dict(_TEXT, model_type="qwen2"),
            vision_config=dict(_SIGLIP, image_size=[32, 32], patch_size=[8, 8]),
            image_token_id=90,
            image_seq_length=4,
            tie_word_embeddings=False,
        ),
    ),
    "smolvlm": (
        "SmolVLMConfig",
        dict(
            text_config=dict(_TEXT, model_type="llama"),
            vision_config=_SIGLIP,
            scale_factor=2,
            image_token_id=90,
        ),
    ),
    "qwen2-vl": (
        "Qwen2VLConfig",
        dict(
            text_config=dict(_TEXT, **_axes([1, 1, 2])),
            vision_config=dict(
                depth=2,
                embed_dim=32,
                hidden_size=32,
                num_heads=2,
                patch_size=4,
                spatial_merge_size=2,
                temporal_patch_size=2,
            ),
            **_TOKENS,
        ),
    ),
    "qwen2.5-vl": (
        "Qwen2_5_VLConfig",
        dict(
            text_config=dict(
                _TEXT,
                tie_word_embeddings=True,
                use_sliding_window=True,
                sliding_window=5,
                max_window_layers=1,
                **_axes([1, 1, 2]),
            ),
            vision_config=dict(_QWEN, window_size=16, fullatt_block_indexes=[1]),
            **_TOKENS,
        ),
    ),
    "qwen3-vl": (
        "Qwen3VLConfig",
        dict(
            text_config=dict(_WIDE, **_axes([2, 2, 2], mrope_interleaved=True)),
            vision_config=dict(_QWEN, num_position_embeddings=16, deepstack_visual_indexes=[0, 1]),
            **_TOKENS,
        ),
    ),
    "qwen3.5": (
        "Qwen3_5Config",
        dict(
            text_config=_HYBRID,
            vision_config=dict(_QWEN, num_position_embeddings=16),
            **_TOKENS,
        ),
    ),
    "qwen3.5-moe": (
        "Qwen3_5MoeConfig",
        dict(
            text_config=dict(
                {k: v for k, v in _HYBRID.items() if k != "intermediate_size"},
                **tiny.GATED_EXPERTS,
                num_hidden_layers=3,
                layer_types=["linear_attention", "full_attention", "linear_attention"],
            ),
            vision_config=dict(_QWEN, num_position_embeddings=16),
            **_TOKENS,
        ),
    ),
}
"""Name to class and arguments of a transformers config."""


def make(config_class: str, arguments: dict[str, Any], directory: Path) -> Any:
    """A torch model whose every parameter is away from its special value, saved to `directory`."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    config = getattr(transformers, config_class)(**arguments)
    auto = transformers.AutoModelForImageTextToText
    model = auto.from_config(config, attn_implementation="eager")
    # see `tiny.make`: what a state of few tokens gives is small
    noise = 0.1 if config_class.startswith(("Qwen3_5", "Gemma4")) else 0.2
    with torch.no_grad():
        for value in model.parameters():
            value.add_(noise * torch.randn_like(value))
    model.save_pretrained(directory)
    return model.eval()


def text_model(model: Any) -> Any:
    """What computes logits of a text: the whole model, but of Llama 4, whose own pass fails in
    transformers 5.24 where it has no picture."""
    return model.language_model if model.config.model_type == "llama4" else model
