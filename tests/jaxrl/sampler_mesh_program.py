"""What the sampler's programs exchange and hold on eight virtual devices; prints a JSON object.

    python -m tests.jaxrl.sampler_mesh_program '{"data": 8}'

Run in a process of its own: XLA_FLAGS fix the number of devices when JAX starts.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import monitoring

from jaxrl.mesh import mesh
from jaxrl.mesh.mesh import MeshConfig
from jaxrl.models import decoder, lora, lora_stack
from jaxrl.models.lora import LoraConfig
from jaxrl.rollout import policy
from jaxrl.sampling import admission, decode, logits, prefixes, sampler, slots
from jaxrl.sampling.drafts import Drafter, DraftModel
from jaxrl.sampling.requests import settings_of
from jaxrl.types import Completion, Params, Request
from tests.jaxrl.batches import MODEL
from tests.jaxrl.mesh_program import collectives

FEATURES = slots.Features(truncate=True, penalize=True, biases=4, top=2)
LAYOUT = sampler.SamplerConfig(slots=12, prefill_rows=3, prefill_piece=16, chunk=8, bucket=16)


DRAFTS = dataclasses.replace(LAYOUT, drafts="group", draft_tokens=2, prefix_cache=1, prefix_block=4)


def made(
    hold: bool = False, layout: sampler.SamplerConfig = LAYOUT, features: slots.Features = FEATURES
) -> sampler.Setup:
    """Room for prompts of 40 tokens, and 50 in all."""
    return sampler.Setup(MODEL, jax.random.key(1), (0,), 40, 50, layout, features, hold=hold)


def programs(setup: sampler.Setup, params: Params) -> dict[str, Any]:
    """What each program of the sampler exchanges, and what a device holds of the greatest array."""
    size, rows, models = setup.sizes[-1], setup.rows, setup.models
    state = slots.empty_slots(models, size, setup.capacity, 16, FEATURES)
    whole = slots.empty_slots(models, size, setup.capacity, setup.capacity, FEATURES)
    prefix = admission.empty_caches(models, rows, setup.prompt_width)
    pool = admission.empty_caches(models, 3 * setup.shards, 4)
    ids, none = np.zeros((rows, 16), np.int32), np.zeros(size, np.int32)
    new = {
        "tokens": np.zeros((size, setup.prompt_width), np.int32),
        "length": none,
        "limit": none,
        "request": none.astype(np.uint32),
        "draw": none.astype(np.uint32),
        "adapter": none,
        "settings": settings_of([], MODEL.vocab_size, size, FEATURES.biases),
    }
    chosen = np.arange(setup.sizes[0], dtype=np.int32)
    everything = (params,)
    loop = functools.partial(
        decode.decode.lower, models, everything, state, key=setup.key, version=jnp.int32(0),
        stop_ids=jnp.zeros(1, jnp.int32), steps=jnp.int32(1), min_live=jnp.int32(1), args=(),
        process=logits.keep, features=FEATURES,
    )  # fmt: skip
    lowered = {
        "decode": loop(),
        "decode with drafts": loop(
            draft_tokens=2, draft_cost=jnp.float32(1),
            texts=np.zeros((size, setup.capacity), np.int32),
        ),
        "decode with a drafter": loop(
            draft_tokens=2, draft_cost=jnp.float32(1), drafter=Drafter(0, 1)
        ),
        "read": admission.read.lower(
            models, everything, prefix, ids, ids, ids[:, 0], window=32, from_start=False
        ),
        "insert": slots.insert.lower(models, state, prefix, none, none.astype(bool), new),
        "read_block": prefixes.read_block.lower(
            models, everything, pool, ids[:, :4], ids[:, :3], np.int32(2), ids[:, 0], ids[:, 0],
            window=4,
        ),
        "put_blocks": slots.put_blocks.lower(
            models, prefix, pool, ids[:, :12], ids[:, 0], ids[:, 0]
        ),
        "append": decode.append.lower(
            models, everything, whole, ids[:, 0], ids, ids[:, 0], ids[:, 0]
        ),
        "narrow": slots._fit.lower(models, 0, state.caches[0][0], chosen, width=16),
        "choose": slots._choose.lower(models, state.replace(caches=()), chosen),
    }  # fmt: skip
    return {name: collectives(one.compile().as_text()) for name, one in lowered.items()}


def shards(setup: sampler.Setup, params: Params) -> dict[str, list[int]]:
    """What a device holds of a layer's keys: of empty caches, of one prompt read, of a tail."""

    def shard(caches: slots.Caches) -> list[int]:
        keys = caches[0][0].k
        return list(keys.sharding.shard_shape(keys.shape))

    models = setup.models
    tokens = np.ones((setup.rows, setup.prompt_width), np.int32)
    length = np.where(np.arange(setup.rows) == 0, 20, 0).astype(np.int32)
    prefix = admission.prefill(models, (params,), tokens, length, piece=16)
    work = sampler.Work()
    sampler.submit(setup, work, [Request(0, (1, 2, 3), 8)])
    sampler.advance(setup, params, work, budget=2)
    return {
        "empty": shard(admission.empty_caches(models, setup.rows, 16)),
        "prefix": shard(prefix),
        "tail": shard(work.slots.caches),
    }


def turns(setup: sampler.Setup, params: Params) -> dict[int, Completion]:
    """Fourteen requests over twelve slots, some of which take further turns; of two adapters, and
    every third of none."""
    requests = [
        Request(
            i, tuple(range(1, 3 + 5 * (i // 3))), 24, top_logprobs=2, logit_bias=((0, 1.5),),
            adapter=i % 3,
        )
        for i in range(14)
    ]  # fmt: skip
    work, done = sampler.Work(), {}
    sampler.submit(setup, work, requests)
    while work:
        ended = {c.request.id: c for c in sampler.advance(setup, params, work)}
        more = {
            i: [5, 6, 7] for i, c in ended.items() if c.stopped and i % 2 and len(c.tokens) < 15
        }
        done |= ended
        sampler.release(work, [i for i in ended if i not in more])
        sampler.extend(setup, params, work, more)
    return done


def drafted(
    params: Params,
    layout: sampler.SamplerConfig,
    known: prefixes.Prefixes | None = None,
    draft: DraftModel | None = None,
    adapters: int = 0,
) -> tuple[list[Completion], sampler.Work]:
    """What 24 requests give, greedy or nearly so, whose prompts begin alike; of some adapters."""
    plain = slots.Features(biases=4)
    setup, done = made(layout=layout, features=plain)._replace(draft=draft), {}
    work = sampler.Work(prefixes=known or prefixes.Prefixes())
    requests = [
        Request(
            i, (*range(10, 20), *(3, 5, 8 + i // 3) * 4), 24, temperature=0.3 * (i % 2),
            logit_bias=((0, -99.0),), adapter=i % (adapters + 1),
        )
        for i in range(24)
    ]  # fmt: skip
    sampler.submit(setup, work, requests)
    while work:
        done |= {c.request.id: c for c in sampler.advance(setup, params, work)}
    return [done[i] for i in range(24)], work


def adapted() -> Params:
    """The sampler's parameters, with two adapters beside them."""
    base = decoder.init(MODEL, jax.random.key(0))
    params = policy.sampling_params(base, "float32")
    paths = list(lora_stack.matrices(MODEL))
    params = lora_stack.attach(MODEL, params, paths, count=2, rank=3)
    for place in (1, 2):
        config = LoraConfig(rank=place + 1)
        key = jax.random.key(place)
        small = lora.init(key, MODEL, base, config)
        small = jax.tree.map(lambda x: x + 0.1 * jax.random.normal(key, x.shape), small)  # noqa: B023
        params = lora_stack.put(MODEL, params, place, small, config)
    return params


def main(sizes: dict[str, int]) -> None:
    """Compare the mesh with one device."""
    params = adapted()
    alone = turns(made(hold=True), params)
    without, _ = drafted(params, LAYOUT)
    plain, _ = drafted(params, LAYOUT, adapters=2)
    small = dataclasses.replace(MODEL, num_layers=1)
    draft = DraftModel(small, decoder.unstack(decoder.init(small, jax.random.key(3))))
    with jax.set_mesh(mesh.make(MeshConfig(**sizes))):
        where = mesh.replicated(jax.sharding.get_mesh())
        params = jax.device_put(params, where)
        setup = made(hold=True)
        together = turns(setup, params)
        compiled: list[str] = []
        monitoring.register_event_duration_secs_listener(
            lambda event, _, **__: compiled.append(event) if "backend_compile" in event else None
        )
        again = turns(setup, params)
        report = {
            "programs compiled again": len(compiled),
            "collectives": programs(setup, params),
            "shards": shards(setup, params),
            "sizes": setup.sizes,
            "rows": setup.rows,
        }
        cold, work = drafted(params, DRAFTS)
        accepted, cached, blocks = work.accepted, work.cached, work.blocks
        beside = work.accepted_beside
        warm, work = drafted(params, DRAFTS, work.prefixes)
        draft = draft._replace(params=jax.device_put(draft.params, where))
        by_drafter = {
            name: drafted(params, dataclasses.replace(DRAFTS, **fields), None, other, adapters=2)
            for name, fields, other in (
                ("layers", {"drafts": "layers", "draft_layers": 1}, None),
                ("model", {"drafts": "model"}, draft),
            )
        }
    expected = [c.tokens.tolist() for c in without]
    report |= {
        "same with a drafter": {
            name: all(np.array_equal(a.tokens, b.tokens) for a, b in zip(done, plain, strict=True))
            and drafting.verified > 0
            for name, (done, drafting) in by_drafter.items()
        },
        "same with drafts": [c.tokens.tolist() for c in cold] == expected,
        "accepted": accepted, "beside": beside,
        "cached": cached, "blocks": blocks, "found": work.blocks == 0,
        "same where found": all(
            np.array_equal(a.tokens, b.tokens) and np.array_equal(a.logp, b.logp)
            for a, b in zip(cold, warm, strict=True)
        ),
    }  # fmt: skip
    report["turns"] = sum(int((c.source == 2).sum()) for c in alone.values())
    for name, other in (("same", together), ("same again", again)):
        report[name] = all(
            np.array_equal(alone[i].tokens, c.tokens)
            and np.allclose(alone[i].logp, c.logp, 0, 1e-5)
            for i, c in other.items()
        ) and len(other) == len(alone)
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
