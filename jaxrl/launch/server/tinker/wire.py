"""The protobuf messages of the Tinker API, as its client 0.38 sends and reads them.

The messages are declared here, in a pool of their own: the server needs no package of the client,
and both can be in one process. What the client may send and the server does not support is declared
too, so that it is refused by its name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, unknown_fields
from google.protobuf.message import DecodeError, Message

from jaxrl.launch.server.tinker import losses
from jaxrl.models.config import DecoderConfig

_PACKAGE = "jaxrl_tinker"
_TYPES = {
    "double": 1, "int64": 3, "int32": 5, "bool": 8, "string": 9, "bytes": 12, "uint32": 13
}  # fmt: skip
_MESSAGES: dict[str, str] = {
    "SampleResponse": "1 sequences *SampledSequence, 2 prompt_logprobs bytes",
    "SampledSequence": "1 stop_reason int32, 2 tokens bytes, 3 logprobs bytes",
    "SparseCsr": "1 values bytes, 2 crow_indices bytes, 3 col_indices bytes",
    "Tensor": "1 dense bytes, 2 sparse_csr SparseCsr, 3 dtype int32, 4 shape *int64",
    "BatchedTensor": "1 data bytes, 2 offsets bytes, 3 dtype int32, 4 trailing_shape *int64",
    "NamedBatchedTensor": "1 key string, 2 value BatchedTensor",
    "ArrayRecord": "1 type_tag string, 2 fields *NamedBatchedTensor, 3 num_datums int64",
    "NamedNumber": "1 key string, 2 value double",
    "ForwardBackwardOutput": (
        "1 loss_fn_output_type string, 2 loss_fn_outputs *ArrayRecord, 3 metrics *NamedNumber"
    ),
    "LossConfigValue": "1 number double, 2 text string",
    "NamedConfigValue": "1 key string, 2 value LossConfigValue",
    "NamedTensor": "1 key string, 2 value Tensor",
    "EncodedTextChunk": "1 tokens bytes",
    "Chunk": "1 encoded_text EncodedTextChunk, 2 image bytes, 3 dmel bytes",
    "Datum": (
        "1 model_input *Chunk, 2 loss_fn_inputs *NamedTensor, 3 model_input_spans *bytes, "
        "4 loss_fn_input_spans *bytes"
    ),
    "ForwardBackwardRequest": (
        "1 model_id string, 2 seq_id int32, 3 data *Datum, 4 loss_fn string, "
        "5 loss_fn_config *NamedNumber, 6 forward_only bool, 7 loss_fn_config_v2 *NamedConfigValue"
    ),
}
"""Fields by message: number, name and type; `*` is a repeated one. A map is a repeated message of
`key` and `value`, and an enumeration an int32, which is the same on the wire."""
_PRESENT = {"Tensor", "LossConfigValue", "Chunk", "SampledSequence", "SampleResponse"}
"""Messages whose single fields tell whether they were sent."""
_FLOAT32, _INT64, _INT32 = 1, 2, 3
_DTYPES = {_FLOAT32: np.dtype("<f4"), _INT64: np.dtype("<i8"), _INT32: np.dtype("<i4")}
STOP, LENGTH = 0, 1
"""Why a sampled sequence ended."""


def _declare() -> dict[str, type[Message]]:
    file = descriptor_pb2.FileDescriptorProto(
        name="jaxrl_tinker.proto", package=_PACKAGE, syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, field_name, kind in map(str.split, fields.split(", ")):
            repeated, kind = kind.startswith("*"), kind.removeprefix("*")
            field = message.field.add(name=field_name, number=int(number), label=1 + 2 * repeated)
            if kind in _TYPES:
                field.type = _TYPES[kind]
            else:
                field.type, field.type_name = 11, f".{_PACKAGE}.{kind}"
            if name in _PRESENT and kind in _TYPES and not repeated:
                field.proto3_optional, field.oneof_index = True, len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{field_name}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    find = pool.FindMessageTypeByName
    return {n: message_factory.GetMessageClass(find(f"{_PACKAGE}.{n}")) for n in _MESSAGES}


_CLASSES = _declare()


class Datum(NamedTuple):
    """One sequence to learn from."""

    tokens: np.ndarray
    """[T] int32, the model's input."""
    targets: np.ndarray
    """[T] int32: what is to be predicted after each of them."""
    inputs: dict[str, np.ndarray]
    """[T] float32 each, by the name that the loss function has for it."""


class Batch(NamedTuple):
    """A request of `forward_backward`."""

    model_id: str
    seq_id: int
    loss: str
    settings: dict[str, float]
    """Of the loss."""
    forward_only: bool
    data: list[Datum]


def read_batch(raw: bytes) -> Batch:
    """Read the body of a `forward_backward`.

    Raises:
      ValueError: it is no such message, or has what is not supported; names the field.
    """
    message = _CLASSES["ForwardBackwardRequest"]()
    try:
        message.ParseFromString(raw)
    except (DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError(f"the body is no ForwardBackwardRequest: {str(error)[:200]}") from error
    _refuse_unknown(message, "")
    settings = {entry.key: entry.value for entry in message.loss_fn_config}
    for entry in message.loss_fn_config_v2:
        if entry.value.HasField("text"):
            raise ValueError(f"loss_fn_config[{entry.key[:60]!r}]: send a number, not a text")
        settings[entry.key] = entry.value.number
    if not message.data:
        raise ValueError("data: it is empty; send at least one Datum")
    data = [_datum(entry, f"data[{i}]") for i, entry in enumerate(message.data)]
    return Batch(
        message.model_id, message.seq_id, message.loss_fn, settings, message.forward_only, data
    )


def _refuse_unknown(message: Message, where: str) -> None:
    """Refuse fields that no version of the client known here sends."""
    for field in unknown_fields.UnknownFieldSet(message):
        raise ValueError(f"{where or 'body'}: field {field.field_number} is not supported")
    for field, value in message.ListFields():
        if field.message_type is not None:
            parts = value if hasattr(value, "add") else [value]
            for i, part in enumerate(parts):
                _refuse_unknown(part, f"{where}.{field.name}[{i}]".lstrip("."))


def _datum(message: Any, where: str) -> Datum:
    chunks = [
        _chunk(chunk, f"{where}.model_input[{i}]") for i, chunk in enumerate(message.model_input)
    ]
    tokens = np.concatenate(chunks) if chunks else np.zeros(0, np.int32)
    if not len(tokens):
        raise ValueError(f"{where}.model_input: it is empty; send at least one token")
    inputs = dict[str, np.ndarray]()
    for entry in message.loss_fn_inputs:
        field = f"{where}.loss_fn_inputs[{entry.key[:60]!r}]"
        if entry.key in inputs:
            raise ValueError(f"{field} is there twice; send it once")
        inputs[entry.key] = _tensor(entry.value, field)
    if "target_tokens" not in inputs:
        raise ValueError(f"{where}.loss_fn_inputs lacks target_tokens; send one for each token")
    for name, array in inputs.items():
        field = f"{where}.loss_fn_inputs[{name[:60]!r}]"
        if len(array) != len(tokens):
            raise ValueError(
                f"{field} has {len(array)} entries, model_input {len(tokens)} tokens; send one each"
            )
        if not np.isfinite(array).all():
            raise ValueError(f"{field} has entries that are nan or infinite; send finite ones")
    targets = inputs.pop("target_tokens")
    if targets.dtype.kind != "i":
        raise ValueError(f"{where}.loss_fn_inputs['target_tokens'] is {targets.dtype}; send int64")
    # Out of the range of int32 they would wrap around to other tokens.
    if targets.min() < 0 or targets.max() >= 2**31:
        raise ValueError(f"{where}.loss_fn_inputs['target_tokens'] has entries that are no tokens")
    floats = {name: array.astype(np.float32) for name, array in inputs.items()}
    return Datum(tokens, targets.astype(np.int32), floats)


def _chunk(message: Any, where: str) -> np.ndarray:
    for name in ("image", "dmel"):
        if message.HasField(name):
            raise ValueError(f"{where}.{name} is not supported; send encoded_text")
    raw = message.encoded_text.tokens
    if len(raw) % 4:
        raise ValueError(f"{where}.encoded_text.tokens: {len(raw)} bytes are no int32 values")
    return np.frombuffer(raw, "<i4").astype(np.int32)


def _tensor(message: Any, where: str) -> np.ndarray:
    """[T] values."""
    if message.HasField("sparse_csr") or len(message.shape) > 1:
        raise ValueError(f"{where}: only dense tensors of one axis are supported")
    if message.dtype not in _DTYPES:
        raise ValueError(f"{where}: dtype={message.dtype} is not supported; send float32 or int64")
    dtype = _DTYPES[message.dtype]
    if len(message.dense) % dtype.itemsize:
        raise ValueError(f"{where}: {len(message.dense)} bytes are no {dtype} values")
    array = np.frombuffer(message.dense, dtype)
    if len(message.shape) and message.shape[0] != len(array):
        raise ValueError(f"{where}: shape={list(message.shape)}, but {len(array)} values")
    return array


def write_output(logprobs: Sequence[np.ndarray], metrics: Mapping[str, float]) -> bytes:
    """The answer to a `forward_backward`.

    Args:
      logprobs: float32 [T] of each datum's targets.
      metrics: by names that end with how the client is to reduce them, such as `loss:sum`.
    """
    message = _CLASSES["ForwardBackwardOutput"](loss_fn_output_type="ArrayRecord")
    record = message.loss_fn_outputs.add(num_datums=len(logprobs))
    offsets = np.cumsum([0, *(array.nbytes for array in logprobs)]).astype("<i8")
    tensor = record.fields.add(key="logprobs").value
    tensor.data = b"".join(array.astype("<f4").tobytes() for array in logprobs)
    tensor.offsets, tensor.dtype = offsets.tobytes(), _FLOAT32
    for name, value in metrics.items():
        message.metrics.add(key=name, value=value)
    return message.SerializeToString(deterministic=True)


def write_samples(
    samples: Sequence[tuple[np.ndarray, np.ndarray, bool]], prompt_logprobs: np.ndarray | None
) -> bytes:
    """The answer to an `asample`.

    Args:
      samples: tokens, their log-probabilities, and whether the sequence was stopped.
      prompt_logprobs: [T] float32, nan for the first token; None: they were not asked for.
    """
    message = _CLASSES["SampleResponse"]()
    for tokens, logp, stopped in samples:
        message.sequences.add(
            stop_reason=STOP if stopped else LENGTH,
            tokens=tokens.astype("<i4").tobytes(),
            logprobs=logp.astype("<f4").tobytes(),
        )
    if prompt_logprobs is not None:
        message.prompt_logprobs = prompt_logprobs.astype("<f4").tobytes()
    return message.SerializeToString(deterministic=True)


def check(model: DecoderConfig, batch: Batch, context: int) -> None:
    """Refuse a batch that no update can be made of.

    Args:
      model: the decoder's shape.
      batch: of a request.
      context: most tokens of a datum.

    Raises:
      ValueError: names the field, its value and the remedy.
    """
    loss = losses.find(batch.loss)
    for name, value in batch.settings.items():
        if name not in loss.settings:
            raise ValueError(
                f"loss_fn_config[{name[:60]!r}] is no setting of {batch.loss}; it has "
                f"{', '.join(loss.settings) or 'none'}"
            )
        if not 0 <= value < float("inf"):
            raise ValueError(f"loss_fn_config[{name!r}]={value}: must be at least 0 and finite")
    for i, datum in enumerate(batch.data):
        if not {*loss.inputs} <= {*datum.inputs} <= {*loss.inputs, *loss.optional}:
            optional = "".join(f", and may have {name}" for name in loss.optional)
            raise ValueError(
                f"data[{i}].loss_fn_inputs has {_names(datum.inputs)}; {batch.loss} takes "
                f"target_tokens, {', '.join(loss.inputs)}{optional}"
            )
        if set(datum.inputs) != set(batch.data[0].inputs):
            raise ValueError(
                f"data[{i}].loss_fn_inputs has {_names(datum.inputs)}, and data[0] has "
                f"{_names(batch.data[0].inputs)}; send the same for all"
            )
        if len(datum.tokens) > context:
            raise ValueError(
                f"data[{i}].model_input has {len(datum.tokens)} tokens, more than {context}; "
                "shorten it, or start the server with a greater --max-context-tokens"
            )
        for name, array in (("model_input", datum.tokens), ("target_tokens", datum.targets)):
            check_tokens(model, array, f"data[{i}].{name}")


def check_tokens(model: DecoderConfig, tokens: np.ndarray, where: str) -> None:
    """Raise a ValueError for what is no token of the model."""
    wrong = tokens[(tokens < 0) | (tokens >= model.vocab_size)]
    if len(wrong):
        raise ValueError(
            f"{where} has {wrong[0]}; the model's tokens are 0 to {model.vocab_size - 1}"
        )


def _names(inputs: Mapping[str, np.ndarray]) -> str:
    return ", ".join(["target_tokens", *(name[:60] for name in inputs)][:9])
