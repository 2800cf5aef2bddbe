"""A model with its tokenizer, from a name, a file or a run directory."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxrl import config as configs
from jaxrl import untrusted
from jaxrl.config import Config, RolloutConfig
from jaxrl.data.text import marking, messages, tokenizers
from jaxrl.data.types import Problem, Task
from jaxrl.mesh.mesh import check as check_rules
from jaxrl.mesh.mesh import param_shardings
from jaxrl.models import attention, catalog, decoder, linear, lora, quantize
from jaxrl.models import load as weights
from jaxrl.models.config import DecoderConfig
from jaxrl.models.lora import LoraConfig
from jaxrl.models.mixers import pattern
from jaxrl.random_streams import RunStream
from jaxrl.record import account, storage
from jaxrl.rollout import files, tasks
from jaxrl.sampling.drafts import DraftModel
from jaxrl.sampling.logits import Guide, keep
from jaxrl.training import trainable
from jaxrl.types import Params


class Policy(NamedTuple):
    """What is needed to sample text."""

    model: DecoderConfig
    params: Params
    tokenizer: tokenizers.Tokenizer
    guide: Guide = Guide(keep)
    """Steers what it samples in training."""
    draft: DraftModel | None = None
    """Drafts what it samples, where `SamplerConfig.drafts` is `model`."""


def describe(config: Config, *, trust: bool = False) -> tuple[DecoderConfig, tokenizers.Tokenizer]:
    """The decoder of a config, without its weights, and the model's tokenizer.

    Args:
      config: its own functions may be any.
      trust: where `config.model` is a run, the functions that the run's config names may be any
        too, not only those that `config` itself names.

    Raises:
      ValueError: a fresh model for a task that has no alphabet, a tokenizer with more ids than the
        model has embeddings, rules of the mesh or a kernel of attention that do not fit the model,
        or a run whose config names functions of others.
    """
    model, tokenizer = _describe(config, None if trust else named_functions(config))
    count = labels(config.model)
    if count not in (0, config.labels):
        raise ValueError(
            f"model={config.model!r} is a classifier with {count} labels, and no language model; "
            "`jaxrl train reward` trains one with 1 label further, and --reward makes it a reward"
        )
    model = dataclasses.replace(model, labels=config.labels)
    check_rules(config.mesh.rules, model)
    rules = tuple(config.mesh.rules.items())
    tokenizer = tokenizers.with_variables(tokenizer, config.rollout.template_args)
    computed = dataclasses.replace(model, dtype=config.compute_dtype, attention=config.attention)
    attention.check(computed)
    return dataclasses.replace(computed, rules=rules), tokenizer


def named_functions(config: Any) -> set[str]:
    """The functions of others that a config names."""
    return untrusted.foreign(configs.to_dict(config))


def _describe(
    config: Config, trusted: Collection[str] | None
) -> tuple[DecoderConfig, tokenizers.Tokenizer]:
    config = origin(config, trusted)
    if config.model == "fresh":
        tokenizer = tokenizers.characters(alphabet(config))
        shape = dataclasses.asdict(config.fresh)
        return DecoderConfig(vocab_size=tokenizer.vocab_size, **shape), tokenizer
    model = weights.read_config(config.model)
    tokenizer = tokenizers.load(catalog.locate(config.model))
    if tokenizer.vocab_size > model.vocab_size:
        raise ValueError(
            f"the tokenizer of model {config.model!r} has {tokenizer.vocab_size} ids, its "
            f"embedding only {model.vocab_size}; use the tokenizer that belongs to the model"
        )
    if tokenizer.vocab_size < model.vocab_size:  # rows beyond only round the embedding up
        model = dataclasses.replace(model, spelled=tokenizer.vocab_size)
    return model, tokenizer


def alphabet(config: Config) -> str:
    """Every character that a fresh model can be asked to read or write.

    Raises:
      ValueError: the task has no alphabet.
    """
    if config.data.kinds:
        return files.alphabet(config.data)
    task = tasks.of_config(config)
    if task.alphabet is None:
        raise ValueError(
            f"task {task.name!r} has no alphabet of its own, so a fresh model has no "
            "tokenizer for it; name a pretrained model, e.g. --model smollm2-135m"
        )
    return task.alphabet


def origin(config: Config, trusted: Collection[str] | None) -> Config:
    """The config at the start of a chain of runs, each of which starts from the one before.

    Args:
      config: at the end of the chain.
      trusted: functions of others that the configs may name; None: any.

    Raises:
      ValueError: the chain has no start, or a run in it names functions of others.
    """
    chain = list[str]()
    while is_run(config.model):
        if config.model in chain:
            raise ValueError(
                f"model={config.model!r}: this run starts from itself "
                f"({' -> '.join([*chain, config.model])}); set `model` in its config.json to a "
                "model, or to another run"
            )
        chain.append(config.model)
        config = account.config(config.model, trusted)
    return config


def labels(model: str) -> int:
    """`DecoderConfig.labels` of a model or a run: 1 for a reward model, 0 for a language model."""
    if is_run(model):
        return configs.load(storage.locate(model) / "config.json").labels
    return 0 if model == "fresh" else weights.read_config(model).labels


def require_text(model: DecoderConfig, name: str) -> None:
    """Refuse a reward model where text is to be written.

    Raises:
      ValueError: it is one.
    """
    if model.labels:
        raise ValueError(
            f"model={name!r} is a reward model, which writes no text; name a language model"
        )


def describe_writer(
    config: Config, *, trust: bool = False
) -> tuple[DecoderConfig, tokenizers.Tokenizer]:
    """As `describe`, of a model that is to write text on the devices of this process.

    Raises:
      ValueError: as `describe`, or a reward model.
    """
    model, tokenizer = describe(config, trust=trust)
    require_text(model, config.model)
    return model, tokenizer


def create(config: Config, mesh: Mesh, *, trust: bool = False) -> Policy:
    """A policy to sample from, parameters laid out on the mesh; see `describe_writer`."""
    model, tokenizer = describe_writer(config, trust=trust)
    return Policy(model, first_params(config, model, mesh), tokenizer)


def first_params(config: Config, model: DecoderConfig, mesh: Mesh) -> Params:
    """The parameters that a run starts from, laid out on the mesh; `model` is from `describe`.

    A reward model that starts from a language model has a fresh score in place of its output head.
    """
    if model.labels and config.model != "fresh" and not labels(config.model):
        params = first_params(config, dataclasses.replace(model, labels=0), mesh)
        key = RunStream.SCORE.key(config.seed)
        where = param_shardings(model, mesh)["score"]
        score = jax.jit(functools.partial(decoder.fresh_score, model), out_shardings=where)(key)
        return {name: leaf for name, leaf in params.items() if name != "head"} | {"score": score}
    if is_run(config.model):
        params, adapters, _ = restored(config.model, model, mesh)
        if not adapters.rank:
            return params
        small, plain = lora.detach(params)
        return lora.merge(model, plain, small, adapters)
    if config.model == "fresh":
        make = jax.jit(
            functools.partial(decoder.init, model), out_shardings=param_shardings(model, mesh)
        )
        return make(RunStream.PARAMS.key(config.seed))
    base, shapes = _base(config, model, mesh)
    where = jax.tree.map(lambda s: s.sharding, shapes)
    # what adapters are trained on stays frozen, see `trainable.in_compute_dtype`
    whole_dtype = "float32" if config.train else config.param_dtype
    dtype = model.dtype if base.rank else whole_dtype
    return weights.load(config.model, shardings=lambda _: where, dtype=dtype, quantized=base.kind)[
        1
    ]


def _base(config: Config, model: DecoderConfig, mesh: Mesh) -> tuple[LoraConfig, Params]:
    """How the parameters of a model that is read are held, and their shapes with shardings."""
    # a warm start trains the parameters whole, before they are quantised
    base = LoraConfig(rank=0) if config.warm_start.steps else config.lora
    with jax.set_mesh(mesh):
        return base, trainable.abstract(model, base, on=False)


def blank_params(config: Config, model: DecoderConfig, mesh: Mesh, dtype: str) -> Params | None:
    """Zeros in place of what `sampling_params` makes of `first_params`, to compile with.

    All layers are the same arrays, so they take the memory of one.

    Returns:
      None where the weights come from a run, whose layout is that of its checkpoint, where layers
      differ in their shapes, or on several devices.
    """
    alike = not model.dense_layers and not model.cycled
    if is_run(config.model) or config.model == "fresh" or not alike or mesh.size > 1:
        return None
    where = NamedSharding(mesh, PartitionSpec())
    shapes = jax.eval_shape(lambda p: sampling_params(p, dtype), _base(config, model, mesh)[1])
    zeros = jax.tree.map(
        lambda leaf: jax.device_put(np.zeros(leaf.shape, leaf.dtype), where),
        {**shapes, "layers": shapes["layers"][:1]},
    )
    return {**zeros, "layers": zeros["layers"] * model.num_layers}


def restored(
    run: str, model: DecoderConfig, mesh: Mesh, step: int | None = None
) -> tuple[Params, LoraConfig, int]:
    """What a run has saved: its parameters, adapters on, how they are adapted, and the step.

    Args:
      run: the directory.
      model: from `describe`.
      mesh: on which they are laid out.
      step: of the checkpoint; None: the newest sound one.

    Raises:
      FileNotFoundError: there is no checkpoint.
      ValueError: there is none of that step, or it is damaged.
    """
    from jaxrl.record import checkpoint  # half a second, which a model that is no run need not take

    directory = storage.locate(run)
    adapters = configs.load(directory / "config.json").lora
    with jax.set_mesh(mesh):
        shapes = trainable.abstract(model, adapters)
    params, saved_step = checkpoint.restore_params(directory, shapes, step=step)
    return params, adapters, saved_step


def config_of(model: str) -> Config:
    """The config that opens a packaged model, a model directory or a run.

    Raises:
      ValueError: `fresh`, which is no model until a run has made it.
    """
    if model == "fresh":
        raise ValueError("model='fresh' is made by a training run; name its run directory")
    return Config(model=model, labels=labels(model))


def is_run(path: str) -> bool:
    """Whether `path` is a run directory."""
    run = storage.locate(path)
    return (run / "config.json").exists() and (run / "checkpoints").exists()


def sampling_params(params: Params, dtype: str, rounded: DecoderConfig | None = None) -> Params:
    """Parameters as the sampler wants them: adapters added in, unstacked, in the compute dtype.

    One small program makes a layer, whatever their number: it compiles in a fraction of a second.

    Args:
      params: of the train state.
      dtype: of what is not quantised.
      rounded: of which decoder the matrices of the layers are rounded to int8; None: they are not.
    """
    leaves = jax.tree.leaves(params, is_leaf=_adapted)
    if rounded is not None or any(map(_adapted, leaves)):
        params = _whole(params, rounded)
    stacks = {
        name: [
            _one_layer(params[name], row, dtype)
            for row in range(len(jax.tree.leaves(params[name])[0]))
        ]
        for name in filter(pattern.is_stack, params)
    }
    rest = {name: value for name, value in params.items() if name not in stacks}
    return {**_cast(rest, dtype), "layers": tuple(pattern.in_order(stacks))}


def _adapted(part: Any) -> bool:
    return isinstance(part, lora.Adapted)


_cast = functools.partial(jax.jit, static_argnums=1)(decoder.cast)


@functools.partial(jax.jit, static_argnums=1)
def _whole(params: Params, rounded: DecoderConfig | None) -> Params:
    """Parameters with their adapters added in and, for a decoder that is given, as int8."""
    params = lora.fold(params)
    return params if rounded is None else quantize.quantize(rounded, params, "int8")


@functools.partial(jax.jit, static_argnums=2)
def _one_layer(stack: Params, row: int, dtype: str) -> Params:
    """One layer of stacked parameters, cast and, on a CPU, with outputs first."""
    layer = decoder.cast(jax.tree.map(lambda leaf: leaf[row], stack), dtype)
    if jax.default_backend() != "cpu":
        return layer
    return linear.outputs_first({"layers": (layer,)})["layers"][0]


def encode_prompt(
    policy_tokenizer: tokenizers.Tokenizer, rollout: RolloutConfig, problem: Problem
) -> tuple[int, ...]:
    """Token ids of a problem's prompt, by `rollout.long_prompts` no more than are allowed.

    Raises:
      ValueError: the prompt exceeds `rollout.max_prompt_tokens`, or there is no chat template.
    """
    ids = _prompt(policy_tokenizer, rollout, problem)
    if len(ids) > rollout.max_prompt_tokens and rollout.long_prompts != "truncate":
        raise ValueError(
            f"{_place(problem)}: its prompt has {len(ids)} tokens, more than "
            f"rollout.max_prompt_tokens={rollout.max_prompt_tokens}; raise the budget, or set "
            "rollout.long_prompts to drop or truncate"
        )
    return tuple(ids[-rollout.max_prompt_tokens :])


def _place(problem: Problem) -> str:
    """Where a problem comes from, for a message."""
    return str(problem.metadata.get("place", f"problem {problem.id}"))


def check_prompt(
    policy_tokenizer: tokenizers.Tokenizer, rollout: RolloutConfig, task: Task, problem: Problem
) -> None:
    """Refuse a prompt that cannot be answered.

    An episode reads its opening instead, which is known only when its environment has begun.

    Raises:
      ValueError: as `encode_prompt`.
    """
    if task.of(problem).turns is None:
        encode_prompt(policy_tokenizer, rollout, problem)


def keeps(
    policy_tokenizer: tokenizers.Tokenizer, rollout: RolloutConfig, task: Task
) -> Callable[[Problem], bool] | None:
    """Which problems are kept where `rollout.long_prompts` drops some, or the task's data those
    that the tokenizer or the chat template refuses; None: all.

    Those of episodes are, see `check_prompt`.
    """
    drops, skips = rollout.long_prompts == "drop", task.params.get("bad_rows") == "skip"
    if not drops and not skips:
        return None

    def fits(problem: Problem) -> bool:
        if task.of(problem).turns is not None:
            return True
        try:
            size = len(_prompt(policy_tokenizer, rollout, problem))
        except ValueError:
            if skips:
                return False
            raise
        return not drops or size <= rollout.max_prompt_tokens

    return fits


def _prompt(
    policy_tokenizer: tokenizers.Tokenizer, rollout: RolloutConfig, problem: Problem
) -> Sequence[int]:
    turns = problem.messages or ({"role": "user", "content": problem.prompt},)
    try:
        if rollout.chat:
            return chat(policy_tokenizer, rollout.system, turns)
        if any(turn.get("tools") or turn.get("tool_calls") for turn in turns):
            raise ValueError("it has tools, which only a chat template writes; add --chat")
        return policy_tokenizer.prompt(problem.prompt)
    except ValueError as error:
        raise ValueError(f"{_place(problem)}: {error}") from error


def chat(
    tokenizer: tokenizers.Tokenizer, system: str, turns: Sequence[Mapping[str, Any]]
) -> Sequence[int]:
    """Token ids of a conversation, up to where the assistant speaks next.

    Raises:
      ValueError: the model has no chat template, or it refuses the conversation.
    """
    import jinja2  # which takes a while to import, and models without templates do without

    if tokenizer.chat is None:
        raise ValueError("chat is asked for, but this model has no chat template; turn it off")
    led = bool(turns) and turns[0].get("role") == "system"
    lead = [{"role": "system", "content": system}] if system and not led else []
    tools = [schema for turn in turns for schema in turn.get("tools") or ()]
    try:
        if tools or any(turn.get("tool_calls") for turn in turns):
            if tokenizer.render is None:
                raise ValueError("tools need `Tokenizer.render`; leave them out")
            text = tokenizer.render([*lead, *turns], add_generation_prompt=True).text
            normal = [messages.normal(turn, strict=False) for turn in turns]
            marking.check_complete(text, normal, (), tools)
        return tokenizer.chat([*lead, *turns])
    except jinja2.TemplateError as error:
        remedy = "; leave rollout.system empty if it has no system role" if system else ""
        raise ValueError(f"the chat template refuses a conversation: {error}{remedy}") from error
