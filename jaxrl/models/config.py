"""What a decoder is made of, as frozen records."""

from __future__ import annotations

import dataclasses
from typing import Literal

from jaxrl.models.mixers.records import ChunkedLayers as ChunkedLayers
from jaxrl.models.mixers.records import DeltaRule as DeltaRule
from jaxrl.models.mixers.records import Mamba2 as Mamba2
from jaxrl.models.mixers.records import SideBySide as SideBySide

Kernel = Literal["auto", "xla", "cudnn", "splash"]
"""What computes attention; see `jaxrl.models.attention`."""

CYCLE = "layers_"
"""How the stacks of a decoder are called whose layers are of several kinds: the layers that stand
first in each period are stacked in `layers_0`, the second ones in `layers_1`, ..."""

SHARING = "sharing_layers_"
"""The same, of the top layers that keep no keys and values of their own; see `LayerKinds`."""

Part = Literal["mixer", "attention", "mlp", "experts"]
"""What a layer of one part alone is: recurrent, attention, a dense MLP or a routed one."""


@dataclasses.dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the trained context; see `jaxrl.models.rope`."""

    kind: Literal["linear", "llama3", "yarn", "longrope", "proportional"]
    factor: float = 1.0
    original_max_positions: int = 0
    """Context length before stretching."""
    low_freq_factor: float = 1.0
    """llama3: wavelengths longer than `original_max_positions / low_freq_factor` are stretched."""
    high_freq_factor: float = 4.0
    """llama3: wavelengths shorter than `original_max_positions / high_freq_factor` are kept."""
    beta_fast: float = 32.0
    """yarn: dimensions that turn more often than this within the context are kept."""
    beta_slow: float = 1.0
    """yarn: dimensions that turn less often than this are stretched."""
    truncate: bool = True
    """yarn: round the bounds of the ramp to whole dimensions."""
    attention_factor: float | None = None
    """yarn, longrope: factor on queries and keys; None takes the paper's."""
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    """yarn as in DeepSeek: temperature of the rotary part, and of all dimensions."""
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()
    """longrope: a divisor for each frequency, below and above `original_max_positions`."""
    query_beta: float = 0.0
    """Queries are multiplied by 1 + this times ln(1 + floor(position / `original_max_positions`)),
    as in Ministral 3."""


@dataclasses.dataclass(frozen=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2, 2024)."""

    kv_rank: int
    q_rank: int | None
    """None projects queries directly."""
    nope_dim: int
    """Query and key features of a head without position."""
    rope_dim: int
    """Query and key features of a head with position; the key's are shared by all heads."""
    v_dim: int


@dataclasses.dataclass(frozen=True)
class Experts:
    """A routed mixture of gated MLPs."""

    num_experts: int
    per_token: int
    size: int
    """Intermediate size of one expert."""
    shared_size: int = 0
    """Intermediate size of the expert that every token passes; 0 for none."""
    shared_gate: bool = False
    """A gate scales what that expert adds."""
    dense_layers: int = 0
    """How many layers at the bottom keep a dense MLP."""
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    correction_bias: bool = False
    """A bias that steers the choice of experts but not their weights (DeepSeek-V3)."""
    normalize: bool = True
    """Weights of the chosen experts sum to 1."""
    floor: float = 1e-20
    """Added to the sum that they are divided by for that."""
    scale: float = 1.0
    """Factor on the weights."""
    groups: int = 1
    """Experts lie in this many groups, of which a token may use `groups_per_token`."""
    groups_per_token: int = 1
    group_top: int = 1
    """A group's score is the sum of its best `group_top` experts."""

    biases: bool = False
    """Routers and experts have biases (gpt-oss)."""
    clamp: float | None = None
    """An expert computes (up + 1) gate sigmoid(`sharpness` gate), where the gate is at most this
    and up within plus and minus this (gpt-oss); None: the activation of the gate, times up."""
    sharpness: float = 1.702

    def __post_init__(self) -> None:
        if self.num_experts % self.groups:
            raise ValueError(
                f"num_experts={self.num_experts} is not a multiple of groups={self.groups}; choose "
                "groups of equal size"
            )
        allowed = self.num_experts // self.groups * min(self.groups, self.groups_per_token)
        if not 0 < self.per_token <= allowed:
            raise ValueError(
                f"per_token={self.per_token}: a token may use {allowed} experts, those of "
                f"{self.groups_per_token} of {self.groups} groups of {self.num_experts} in all; "
                "lower per_token, or raise groups_per_token"
            )
        if self.group_top > self.num_experts // self.groups:
            raise ValueError(
                f"group_top={self.group_top} exceeds the {self.num_experts // self.groups} experts "
                "of a group; lower it, or make fewer groups"
            )


@dataclasses.dataclass(frozen=True)
class LayerKinds:
    """What sets layers that see everything apart from local ones, and top layers from others
    (Gemma 4)."""

    global_head_dim: int
    """Features of a head in layers that see everything."""
    global_kv_heads: int
    keys_are_values: bool = False
    """Layers that see everything have one projection for keys and values."""
    sharing: int = 0
    """How many top layers keep no keys and values, but read those of the last layer of their kind,
    local or not, below all of them."""
    sharing_mlp_size: int = 0
    """Intermediate size of the MLP in these layers."""
    input_size: int = 0
    """Features of the embedding of a token that enters each layer apart; 0: there is none."""
    input_vocab: int = 0
    """Tokens that have such an embedding."""


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
    family: str = "llama"
    """Key of `families.FAMILIES`: the names of tensors and fields in files."""
    max_positions: int = 2048
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    rope_fraction: float = 1.0
    """Part of each head that is rotated."""
    rope_interleaved: bool = False
    """Rotate neighbouring features, not halves."""
    local_rope_theta: float | None = None
    """RoPE base of local layers, unscaled; None: as in the others."""
    rope_layers: tuple[bool, ...] = ()
    """Which layers know positions; empty: all."""
    sliding_window: int | None = None
    """How many tokens, itself included, a query of a local layer sees."""
    local_layers: tuple[bool, ...] = ()
    """Which layers are local; empty: none."""
    norm_eps: float = 1e-5
    norm_offset: float = 0.0
    """Added to norm weights (Gemma: 1)."""
    pre_norm: bool = True
    """Normalise what enters attention and MLP."""
    post_norm: bool = False
    """Normalise what attention and MLP add to the residual stream."""
    qk_norm: Literal["none", "head", "flat"] = "none"
    """Normalise queries and keys over each head, or over all heads at once."""
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    activation: Literal["silu", "gelu_tanh", "relu"] = "silu"
    self_gated: bool = False
    """MLPs and experts have no gate but what they project up: activation(up) * up, which for relu
    is the squared ReLU (Nemotron-H)."""
    embed_scale: float = 1.0
    residual_scale: float = 1.0
    """Factor on what attention and MLP add to the residual stream (Granite)."""
    attention_scale: float | None = None
    """Factor on attention scores; None: the inverse square root of the query's size."""
    attention_softcap: float | None = None
    sinks: bool = False
    """Every head has a learned score that takes a share of the attention and gives nothing
    (gpt-oss)."""
    logit_softcap: float | None = None
    logit_divisor: float = 1.0
    """Logits are divided by it (Granite). Final hidden states are, so that the head need not."""
    tie_embeddings: bool = True
    spelled: int = 0
    """Tokens that the tokenizer can spell, where the embedding has more rows; the others are never
    sampled and have no probability. 0: all."""
    labels: int = 0
    """Scores of a state, of a linear head in place of the output head: 1 for a reward model; 0: a
    language model."""
    attention_gate: bool = False
    """A gate, projected beside each query, scales what its head takes from memory."""
    latent: Latent | None = None
    experts: Experts | None = None
    delta: DeltaRule | None = None
    """What mixes tokens in recurrent layers."""
    convolution: int = 0
    """Tokens that the gated short convolution sees, the newest included, which mixes tokens in
    recurrent layers instead (LFM2)."""
    mamba: Mamba2 | None = None
    """What mixes tokens in recurrent layers instead."""
    beside: SideBySide | None = None
    """Recurrent layers have attention too, beside `mamba`; None: instead of it."""
    kinds: LayerKinds | None = None
    """What differs between local layers and others; None: their window and RoPE alone."""
    chunks: ChunkedLayers | None = None
    """What sets layers that know positions apart from others; None: their RoPE alone."""
    recurrent_layers: tuple[bool, ...] = ()
    """Which layers have `delta`, `convolution` or `mamba` in place of attention; empty: none."""
    parts: tuple[Part, ...] = ()
    """Which one part each layer has (Nemotron-H); empty: attention or what stands in its place,
    and an MLP."""
    dtype: str = "float32"
    """Compute dtype; parameters stay float32 unless the caller casts them."""
    attention: Kernel = "auto"
    rules: tuple[tuple[str, str], ...] = ()
    """Where arrays lie on a mesh, other than by default: `jaxrl.mesh.mesh.MeshConfig.rules`."""

    def __post_init__(self) -> None:
        heads = {"num_kv_heads": self.num_kv_heads}
        heads |= {"global_kv_heads": self.kinds.global_kv_heads} if self.kinds else {}
        for name, count in heads.items():
            if self.num_heads % count:
                raise ValueError(
                    f"num_heads={self.num_heads} is not a multiple of {name}={count}; choose {name}"
                    " that divides it"
                )
        e = self.experts
        if self.self_gated and (self.mlp_bias or (e and (e.biases or e.clamp is not None))):
            raise ValueError(
                "self_gated=True has no mlp_bias, biases or clamp of experts; leave them out"
            )
        for field in ("rope_layers", "local_layers", "recurrent_layers", "parts"):
            flags = getattr(self, field)
            if flags and len(flags) != self.num_layers:
                raise ValueError(
                    f"{field} has {len(flags)} entries for num_layers={self.num_layers}; "
                    "give one for each layer, or none"
                )
        if any(self.local_layers) and not self.sliding_window:
            raise ValueError(
                f"local_layers needs a sliding_window, got {self.sliding_window}; "
                "set it to the number of tokens a local layer sees"
            )
        if any(self.recurrent_layers) or self.parts or self.beside:
            self._check_recurrent()
        if self.kinds:
            self._check_kinds(self.kinds)
        if self.chunks:
            self._check_chunks(self.chunks)
        if self.rope_dim % 2:
            raise ValueError(
                f"the rotated part of a head has {self.rope_dim} features (head_dim="
                f"{self.head_dim}, rope_fraction={self.rope_fraction}); make it even"
            )

    @property
    def rope_dim(self) -> int:
        """Features of each head that are rotated; under `kinds`, of those of local layers."""
        if self.kinds:
            return self.head_dim
        return self.latent.rope_dim if self.latent else int(self.head_dim * self.rope_fraction)

    @property
    def dense_layers(self) -> int:
        """Layers at the bottom that are stacked apart, because their MLP is dense."""
        return self.experts.dense_layers if self.experts else 0

    @property
    def recurrent(self) -> bool:
        """Whether some layer keeps a state that cannot be cut back to fewer tokens."""
        return any(self.recurrent_layers)

    @property
    def cycled(self) -> bool:
        """Whether layers are of several kinds, stacked by their place in a period."""
        return self.recurrent or bool(self.kinds or self.chunks)

    @property
    def period(self) -> int:
        """After how many layers their kinds repeat, below `sharing` layers; all of them where they
        do not."""
        return self._period(0, self.num_layers - self.sharing) if self.cycled else 1

    @property
    def sharing(self) -> int:
        """Top layers that keep no keys and values of their own."""
        return self.kinds.sharing if self.kinds else 0

    def is_local(self, layer: int) -> bool:
        """Whether a layer sees a part of its sequence alone, by a window or within chunks."""
        if self.chunks:
            return not self.rope_layers or self.rope_layers[layer]
        return bool(self.local_layers) and self.local_layers[layer]

    def source(self, layer: int) -> int:
        """The layer whose keys and values a layer reads: itself, but for `sharing` layers."""
        below = range(self.num_layers - self.sharing)
        if layer in below:
            return layer
        return max(i for i in below if self.is_local(i) == self.is_local(layer))

    def routes(self, layer: int) -> bool:
        """Whether a layer has routed experts."""
        if self.parts:
            return self.parts[layer] == "experts"
        if self.chunks:
            return self.chunks.routed[layer]
        return self.experts is not None and layer >= self.dense_layers

    def place(self, layer: int) -> tuple[str, int]:
        """The stack of parameters that has a layer, and its row there."""
        if self.cycled:
            first = self.num_layers - self.sharing
            if layer >= first:
                row, step = divmod(layer - first, self._period(first, self.num_layers))
                return f"{SHARING}{step}", row
            row, step = divmod(layer, self.period)
            return f"{CYCLE}{step}", row
        upper = layer >= self.dense_layers
        return ("layers", layer - self.dense_layers) if upper else ("dense_layers", layer)

    def _period(self, first: int, last: int) -> int:
        """After how many layers the kinds of those from `first` to `last` repeat."""
        flags = self.recurrent_layers or [*map(self.is_local, range(self.num_layers))]
        parts = self.parts or (None,) * self.num_layers
        kinds = [(flags[i], self.routes(i), parts[i]) for i in range(first, last)]
        sizes = range(1, len(kinds) // 2 + 1)
        return next((n for n in sizes if kinds[n:] == kinds[:-n]), len(kinds))

    def _check_kinds(self, kinds: LayerKinds) -> None:
        below, size = self.num_layers - kinds.sharing, kinds.sharing_mlp_size
        flags = [self.is_local(i) for i in range(self.num_layers)]
        served = 0 <= kinds.sharing < self.num_layers and {*flags[below:]} <= {*flags[:below]}
        problems = {
            f"sharing={kinds.sharing}: layers that keep no keys and values need one of their kind "
            f"below, and of num_layers={self.num_layers} those below are local as in "
            f"{flags[:below]}; lower it": not served,
            f"sharing_mlp_size={size}: {kinds.sharing} layers of sharing need an MLP; set it, to "
            "intermediate_size for one as below": kinds.sharing and size < 1 and not self.experts,
            f"global_head_dim={kinds.global_head_dim} is odd, and pairs of features are rotated; "
            "make it even": kinds.global_head_dim % 2,
            f"input_vocab={kinds.input_vocab} is less than vocab_size={self.vocab_size}; raise "
            "it to that": kinds.input_size and kinds.input_vocab < self.vocab_size,
        }
        for message, is_problem in problems.items():
            if is_problem:
                raise ValueError(message)

    def _check_chunks(self, chunks: ChunkedLayers) -> None:
        lacking = {
            f"{self.num_layers} entries of routed, one for each layer": len(chunks.routed)
            != self.num_layers,
            "experts where routed says so, and no dense_layers": bool(self.experts)
            != any(chunks.routed)
            or self.dense_layers > 0,
            "no other kinds of layers, windows or latents": bool(self.kinds or self.latent)
            or any(self.recurrent_layers)
            or any(self.local_layers),
        }
        if needs := [name for name, lacks in lacking.items() if lacks]:
            raise ValueError(f"chunks={chunks} needs {needs[0]}")

    def _check_recurrent(self) -> None:
        mixers = sum(map(bool, (self.delta, self.convolution, self.mamba)))
        lacking = {
            "one of delta, convolution and mamba": mixers != 1,
            "a convolution of 2 tokens or more": self.convolution < 0 or self.convolution == 1,
            "attention in some layer": "attention" not in self.parts
            if self.parts
            else all(self.recurrent_layers) and not self.beside,
            "mamba in all layers, and no experts, where attention is beside it": self.beside
            is not None
            and (
                self.mamba is None
                or self.recurrent_layers != (True,) * self.num_layers
                or bool(self.experts or self.parts)
            ),
            "parts that are mixers in recurrent layers alone": bool(self.parts)
            and self.recurrent_layers != tuple(part == "mixer" for part in self.parts),
            "experts where parts are": bool(self.parts)
            and bool(self.experts) != ("experts" in self.parts),
            "by_channel in delta where attention is latent": self.latent is not None
            and not (self.delta and self.delta.by_channel),
        }
        if needs := [name for name, lacks in lacking.items() if lacks]:
            raise ValueError(f"recurrent_layers={self.recurrent_layers} needs {needs[0]}; add it")
