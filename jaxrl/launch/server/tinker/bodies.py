"""The JSON bodies of the Tinker API, checked field by field.

A field that is not declared is refused by its name, and so is a value that the server does not
support. Fields that say nothing about a result (`tags`, `user_metadata`, `display_name` and their
like) are accepted and kept in the journal.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from jaxrl.launch.server import openai

_Id = Annotated[str, Field(min_length=1, max_length=200)]
_Count = Annotated[int, Field(ge=0, lt=2**53)]
_WideCount = Annotated[int, Field(ge=0, lt=2**63)]
"""Clients that another process copied begin to count at a number up to 1e18."""
_Number = Annotated[int, Field(ge=1, lt=2**53)]
_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$")]
_Token = Annotated[int, Field(ge=0, lt=2**31)]
_Share = Annotated[float, Field(ge=0, lt=1)]
_Amount = Annotated[float, Field(ge=0)]
_Text = Annotated[str, Field(min_length=1, max_length=256)]
_Seconds = Annotated[int, Field(ge=1, le=10 * 366 * 86400)]


class Body(BaseModel):
    """What all bodies share: `type` repeats the name of the endpoint."""

    model_config = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False, frozen=True, protected_namespaces=()
    )
    type: str = ""


B = TypeVar("B", bound=Body)


def read(kind: type[B], raw: bytes) -> B:
    """Read a body.

    Raises:
      ValueError: names the field that is wrong, and why.
    """
    try:
        return kind.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])[:200]
        raise ValueError(f"body{'.' if where else ''}{where}: {first['msg'][:300]}") from None
    except RecursionError as error:
        raise ValueError("the body is nested too deeply; send a flatter one") from error


class CreateSession(Body):
    """POST create_session."""

    tags: list[str] = []
    user_metadata: dict[str, Any] | None = None
    sdk_version: str = ""
    project_id: str | None = None
    display_name: str | None = None


class Session(Body):
    """POST session_heartbeat."""

    session_id: _Id


class _Reason(BaseModel):
    model_config = Body.model_config
    type: Literal["success", "errored", "interrupted"]


class FinishSession(Body):
    """POST sessions/ID/finish."""

    session_id: _Id
    reason: _Reason
    detail: str | None = Field(None, max_length=10_000)


class Lora(BaseModel):
    """Adapters of a model; rank 0 is training of all weights, which has none."""

    model_config = Body.model_config
    rank: int = Field(ge=0, le=1024)
    seed: int | None = Field(None, ge=0, lt=2**63)
    train_unembed: bool = True
    train_mlp: bool = True
    train_attn: bool = True

    @model_validator(mode="after")
    def _trains_something(self) -> Lora:
        if not (self.train_unembed or self.train_mlp or self.train_attn):
            raise ValueError("train_unembed, train_mlp and train_attn are all false; set one")
        if not self.rank and not (self.train_unembed and self.train_mlp and self.train_attn):
            raise ValueError(
                "rank=0 trains all weights, but train_unembed, train_mlp or train_attn is false; "
                "leave these out, or send a rank of 1 or more"
            )
        return self


class _Optimizer(BaseModel):
    model_config = Body.model_config
    type: Literal["adamw"] = "adamw"


class CreateModel(Body):
    """POST create_model."""

    session_id: _Id
    model_seq_id: _Count
    base_model: str
    user_metadata: dict[str, Any] | None = None
    lora_config: Lora | None = None
    """None: all weights are trained."""
    optimizer_config: _Optimizer = _Optimizer()

    @property
    def adapters(self) -> Lora:
        """Rank 0 where all weights are trained."""
        return self.lora_config or Lora(rank=0)


class Model(Body):
    """POST get_info."""

    model_id: _Id


class Adam(BaseModel):
    """Settings of one step of AdamW."""

    model_config = Body.model_config
    learning_rate: _Amount = 1e-4
    beta1: _Share = 0.9
    beta2: _Share = 0.95
    eps: _Amount = 1e-12
    weight_decay: _Amount = 0.0
    grad_clip_norm: _Amount = 0.0


class OptimStep(Body):
    """POST optim_step."""

    model_id: _Id
    seq_id: _Number
    adam_params: Adam


class SaveWeights(Body):
    """POST save_weights."""

    model_id: _Id
    seq_id: _Number
    path: _Name | None = None
    ttl_seconds: _Seconds | None = None
    overwrite: bool = False
    user_metadata: dict[str, str] | None = None


class SaveForSampler(Body):
    """POST save_weights_for_sampler."""

    model_id: _Id
    seq_id: _Number
    path: _Name | None = None
    sampling_session_seq_id: _Count | None = None
    kind: Literal["snapshot"] = "snapshot"
    ttl_seconds: _Seconds | None = None
    user_metadata: dict[str, str] | None = None

    @model_validator(mode="after")
    def _names_one(self) -> SaveForSampler:
        if (self.path is None) == (self.sampling_session_seq_id is None):
            raise ValueError("send one of path and sampling_session_seq_id")
        return self


class LoadWeights(Body):
    """POST load_weights: into a model, or into a new one of a session."""

    path: str
    optimizer: bool
    model_id: _Id | None = None
    seq_id: _Number | None = None
    session_id: _Id | None = None
    model_seq_id: _Count | None = None
    base_model: str | None = None
    user_metadata: dict[str, Any] | None = None
    optimizer_config: _Optimizer | None = None

    @model_validator(mode="after")
    def _names_one(self) -> LoadWeights:
        old = self.model_id is not None and self.seq_id is not None
        new = self.session_id is not None and self.model_seq_id is not None
        if old == new:
            raise ValueError(
                "send model_id with seq_id for a model that is there, or session_id with "
                "model_seq_id for a new one"
            )
        return self


class CreateSampler(Body):
    """POST create_sampling_session."""

    session_id: _Id
    sampling_session_seq_id: _Count
    base_model: str | None = None
    model_path: str | None = None

    @model_validator(mode="after")
    def _names_one(self) -> CreateSampler:
        if self.base_model is None and self.model_path is None:
            raise ValueError("send base_model or model_path")
        return self


class _TextChunk(BaseModel):
    model_config = Body.model_config
    type: Literal["encoded_text"] = "encoded_text"
    tokens: list[_Token]


class ModelInput(BaseModel):
    """A prompt."""

    model_config = Body.model_config
    chunks: list[_TextChunk]

    @property
    def tokens(self) -> tuple[int, ...]:
        """Those of all chunks."""
        return tuple(token for chunk in self.chunks for token in chunk.tokens)


class Sampling(BaseModel):
    """How to sample."""

    model_config = Body.model_config
    max_tokens: int | None = Field(None, ge=1)
    seed: int | None = None
    stop: _Text | list[_Text] | list[_Token] | None = None
    temperature: float = Field(1.0, ge=0, le=10)
    top_k: int = Field(-1, ge=-1, lt=2**31)
    """-1 and 0 keep all tokens."""
    top_p: float = Field(1.0, gt=0, le=1)

    @property
    def truncates(self) -> bool:
        """Whether some tokens may be left out."""
        return self.top_k > 0 or self.top_p < 1


class Sample(Body):
    """POST asample."""

    sampling_session_id: _Id
    seq_id: _WideCount
    prompt: ModelInput
    sampling_params: Sampling
    num_samples: int = Field(1, ge=1, le=openai.CHOICES)
    prompt_logprobs: bool | None = None
    topk_prompt_logprobs: int = 0
    topk_sample_logprobs: int = 0
    target_prompt_logprobs: None = None
    prompt_alt_tokens_k: int = 0
    prompt_logprobs_last_n: None = None
    record_stability_info: bool | None = None

    @model_validator(mode="after")
    def _supported(self) -> Sample:
        names = (
            "topk_prompt_logprobs", "topk_sample_logprobs", "prompt_alt_tokens_k",
            "record_stability_info",
        )  # fmt: skip
        for name in names:
            if getattr(self, name):
                raise ValueError(f"{name}={getattr(self, name)} is not supported; leave it out")
        return self


class Future(Body):
    """POST retrieve_future. All answers are sent whole."""

    request_id: _Id
    allow_metadata_only: bool = False


def stops(stop: str | list[str] | list[int] | None) -> tuple[tuple[str, ...], list[int] | None]:
    """Texts that end a sample, and the tokens that do in place of the model's own; None: those.

    An empty list means that nothing ends it but its budget.
    """
    if stop is None:
        return (), None
    if isinstance(stop, str):
        return (stop,), None
    texts = tuple(entry for entry in stop if isinstance(entry, str))
    if texts:
        return texts, None
    return (), sorted({entry for entry in stop if isinstance(entry, int)})
