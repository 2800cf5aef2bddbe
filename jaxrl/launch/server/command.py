"""`jaxrl serve MODEL_OR_RUN [flags]`: an OpenAI-compatible endpoint on the sampler.

For looking at a policy and for environments in other processes. Plain HTTP: it listens on loopback
alone by default, asks for a key where one is set, and takes requests of bounded size.

With `--tinker` it speaks the Tinker API instead, see `jaxrl.launch.server.tinker`.

With `--train` it is `jaxrl train` on the task `agent_program`: each episode is a program that finds
the policy at an address of its own, and what it asks is trained on.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import threading
from collections import Counter

import jax

from jaxrl.config import Config, validate
from jaxrl.launch import train
from jaxrl.launch.cli import REFUSALS, refused
from jaxrl.launch.server import engine as engines
from jaxrl.launch.server import named_adapters, openai
from jaxrl.launch.server.http import Handler, ServeConfig, Server, Service
from jaxrl.launch.settings import flags
from jaxrl.mesh import mesh
from jaxrl.rollout import policy, reshard
from jaxrl.rollout.policy import Policy
from jaxrl.sampling import constraints, prefixes, sampler
from jaxrl.sampling.slots import Features


def main(argv: list[str]) -> int:
    """Serve a packaged model, a model directory or a run until interrupted.

    `jaxrl serve --train ALGORITHM --task-args.command "python agent.py" [flags of jaxrl train]`
    trains the policy behind a program instead.
    """
    if "--tinker" in argv:
        from jaxrl.launch.server import tinker  # its imports, only when asked for

        return tinker.main([argument for argument in argv if argument != "--tinker"])
    if "--train" in argv:
        arguments = [argument for argument in argv if argument != "--train"]
        task = flags.value_of("--task", arguments)
        if task not in (None, "agent_program"):
            return refused(
                ValueError(
                    f"--task {task}: serve --train has the task agent_program; name the task "
                    f"that the program is to solve by --task-args.name {task or 'NAME'}"
                )
            )
        return train.main([*arguments, "--task", "agent_program"])
    usage, what = "jaxrl serve MODEL_OR_RUN", "a model, its directory or a run"
    if argv[:1] in (["--help"], ["-h"]):
        print(
            'jaxrl serve --train ALGORITHM --task-args.command "python agent.py" [flags of jaxrl '
            "train]\ntrains the policy behind a program;\n"
            "jaxrl serve --tinker MODEL --run-dir DIRECTORY [flags]\n"
            "trains and samples for clients of the Tinker API; else a model or run is served:\n"
        )
    try:
        name, config = flags.name_and_settings(ServeConfig(), argv, usage=usage, what=what)
        actor = policy.create(policy.config_of(name), mesh.make(Config().mesh), trust=config.trust)
        server = make_server(actor, config, name)
    except (*REFUSALS, OSError) as error:
        return refused(error)
    host, port = server.server_address[:2]
    return server.serve(f"serving {name} at http://{host}:{port}/v1; Ctrl-C ends it")


def make_server(actor: Policy, config: ServeConfig, name: str) -> Server:
    """A server that listens, its engine running; `serve_forever` answers.

    Raises:
      ValueError: limits that the model cannot serve, or adapters that do not fit it.
      OSError: the address is taken or not ours.
    """
    model = dataclasses.replace(actor.model, dtype=config.dtype)
    total = config.max_prompt_tokens + config.max_new_tokens
    if total > model.max_positions:
        raise ValueError(
            f"max_prompt_tokens={config.max_prompt_tokens} + max_new_tokens="
            f"{config.max_new_tokens} exceed the model's {model.max_positions} positions; lower one"
        )
    layout = sampler.SamplerConfig(
        slots=config.slots,
        chunk=config.chunk,
        drafts=config.drafts,
        draft_tokens=config.draft_tokens,
        draft_model=config.draft_model,
        draft_layers=config.draft_layers,
        prefix_cache=config.prefix_cache,
        prefix_block=config.prefix_block,
    )
    validate.check_drafts(layout)
    validate.check_prefixes(layout)
    if mib := layout.prefix_cache:
        prefixes.check(mib, layout.prefix_block, (model,))
    setup = sampler.Setup(
        model,
        jax.random.key(config.seed),
        tuple(actor.tokenizer.eos_ids),
        config.max_prompt_tokens,
        total,
        layout,
        Features(
            truncate=True,
            penalize=True,
            biases=openai.BIASES,
            top=min(openai.TOP_LOGPROBS, model.vocab_size),
            support=config.sampling_masks,
        ),
        text=actor.tokenizer.decode,
        matchers=constraints.matchers(actor.tokenizer),
        lean=True,
        draft=reshard.open_draft(layout, model, actor.tokenizer, mesh.make(Config().mesh)),
    )
    params, book = policy.sampling_params(actor.params, config.dtype), None
    if config.adapters or config.adapter_directory:
        book, params = named_adapters.begin(
            model,
            params,
            name,
            config.adapters,
            config.adapter_directory,
            count=config.max_adapters,
            rank=config.max_adapter_rank,
            trust=config.trust,
        )
    service = Service(
        engines.start(setup, params, waiting=config.waiting),
        actor.tokenizer,
        config,
        name,
        os.environ.get(config.key_variable, ""),
        Counter(),
        threading.Lock(),
        book,
    )
    return Server((config.host, config.port), functools.partial(Handler, service))
