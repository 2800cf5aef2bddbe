"""What a decoder is made of, as one frozen record."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
    """Shape and numerics of a decoder-only transformer."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_positions: int = 2048
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5
    tie_embeddings: bool = True
    dtype: str = "float32"
    """Compute dtype; parameters stay float32 unless the caller casts them."""

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads={self.num_heads} is not a multiple of "
                f"num_kv_heads={self.num_kv_heads}; choose num_kv_heads that divides it"
            )
