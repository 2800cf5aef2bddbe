"""The server by the clients that people use: `openai`, `lm-eval` (the `parity` extra), Inspect."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import subprocess
import textwrap
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.models import decoder
from tests.launch.test_serve import LETTERS, actor, engine_of, server

__all__ = ["server"]
pytestmark = pytest.mark.parity
NEVER_ENDS = {"0": -100}


def address(server):
    host, port = server.server_address[:2]
    return f"http://{host}:{port}/v1"


@pytest.fixture
def client(server):
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=address(server), api_key="none", max_retries=0) as made:
        yield made


def test_the_clients_calls(client):
    import openai

    assert client.models.retrieve("tiny").id == client.models.list().data[0].id == "tiny"
    read = client.completions.create(
        model="tiny", prompt="hello", max_tokens=0, echo=True, logprobs=2
    )
    assert read.choices[0].text == "hello" and len(read.choices[0].logprobs.token_logprobs) == 5
    asked = dict(
        model="tiny",
        messages=[{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        max_completion_tokens=8,
        seed=3,
        n=2,
        stop=["zz"],
        logprobs=True,
        top_logprobs=2,
        logit_bias=NEVER_ENDS,
    )
    whole = client.chat.completions.create(**asked)
    assert len(whole.choices) == 2 and whole.usage.completion_tokens == 16
    assert len(whole.choices[0].logprobs.content[0].top_logprobs) == 2
    chunks = list(
        client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    )
    assert chunks[-1].usage == whole.usage
    for choice in whole.choices:
        pieces = [c.choices[0] for c in chunks if c.choices and c.choices[0].index == choice.index]
        assert "".join(p.delta.content or "" for p in pieces) == choice.message.content
    for changes in ({"presence_penalty": 1.0}, {"response_format": {"type": "json_schema"}}):
        with pytest.raises(openai.BadRequestError, match=next(iter(changes))):
            client.chat.completions.create(**asked, **changes)


def test_two_hundred_at_once_some_of_whom_leave(server, client):
    """Every call that stays is answered as it is alone; those that are asked to wait come again."""
    import openai

    engine = engine_of(server)

    async def call(many, i):
        asked = dict(model="tiny", prompt="abc", max_tokens=6, seed=i, logit_bias=NEVER_ENDS)
        if i % 10 == 0:  # leaves in the middle of a stream that would be ten times as long
            async with await many.completions.create(
                **{**asked, "max_tokens": 60}, stream=True
            ) as stream:
                async for _ in stream:
                    return None
        return (await many.completions.create(**asked)).choices[0].text

    async def calls():
        async with openai.AsyncOpenAI(
            base_url=address(server), api_key="none", max_retries=50
        ) as many:
            return await asyncio.gather(*(call(many, i) for i in range(200)))

    texts = asyncio.run(calls())
    assert all(len(text) == 6 for i, text in enumerate(texts) if i % 10)
    for i in (1, 7, 199):
        alone = client.completions.create(
            model="tiny", prompt="abc", max_tokens=6, seed=i, logit_bias=NEVER_ENDS
        )
        assert alone.choices[0].text == texts[i]
    end = time.monotonic() + 60
    while engine.inbox and time.monotonic() < end:
        time.sleep(0.1)
    assert not engine.inbox


@functools.cache
def forward():
    """The tiny model's log-probabilities [64, V] of what follows each of 64 tokens."""
    policy = actor()
    params = decoder.unstack(policy.params)

    @jax.jit
    def logp(tokens):
        caches = decoder.empty_cache(policy.model, 1, 64)
        hidden, _ = decoder.extend(policy.model, params, tokens[None], jnp.arange(64)[None], caches)
        return jax.nn.log_softmax(hidden[0] @ decoder.unembedding(params).T)

    return lambda ids: np.asarray(logp(np.array([*ids, *[0] * (64 - len(ids))])))


def log_likelihood(context, continuation):
    """Of a continuation, and whether it is the greedy one, by the model itself."""
    before, after = map(actor().tokenizer.encode, (context, continuation))
    rows = forward()([*before, *after])[len(before) - 1 :]
    values = [row[token] for row, token in zip(rows, after, strict=False)]
    greedy = [row.argmax() == token for row, token in zip(rows, after, strict=False)]
    return float(sum(values)), all(greedy)


def greedy_text(prompt, count):
    """What the model says without sampling."""
    tokenizer = actor().tokenizer
    tokens = [*tokenizer.encode(prompt)]
    start = len(tokens)
    while len(tokens) < start + count and tokens[-1] != 0:
        tokens.append(int(forward()(tokens)[len(tokens) - 1].argmax()))
    return tokenizer.decode(tokens[start:])


@pytest.fixture
def tokenizer_directory(tmp_path):
    """The tiny model's characters, as `transformers` reads them."""
    import tokenizers

    transformers = pytest.importorskip("transformers")
    ids = {"</s>": 0} | {letter: i for i, letter in enumerate(LETTERS, 1)}
    assert actor().tokenizer.encode(LETTERS) == list(ids.values())[1:]
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, unk_token="</s>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex("."), "isolated")
    made.decoder = tokenizers.decoders.Fuse()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="</s>")
    fast.save_pretrained(tmp_path / "tokenizer")
    return tmp_path / "tokenizer"


def test_lm_eval_reads_log_likelihoods_and_texts(server, tokenizer_directory, tmp_path):
    """A task of each kind; log-likelihoods are the model's own."""
    lm_eval = pytest.importorskip("lm_eval")
    pytest.importorskip("transformers")
    from lm_eval.tasks import TaskManager

    records = [
        {"question": q, "choices": ["ab", "a b.", "zz,y"], "gold": i % 3}
        for i, q in enumerate(["one", "two and", "three, four", "five"])
    ]
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(r) + "\n" for r in records))
    shared = {
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
        "doc_to_text": "{{question}}",
    }
    choice = {
        **shared, "task": "tiny_choice", "output_type": "multiple_choice",
        "doc_to_choice": "{{choices}}", "doc_to_target": "gold",
        "metric_list": [{"metric": "acc"}],
    }  # fmt: skip
    text = {
        **shared, "task": "tiny_text", "output_type": "generate_until",
        "doc_to_target": "{{choices[0]}}", "metric_list": [{"metric": "exact_match"}],
        "generation_kwargs": {"until": list("?!;&$#"), "max_gen_toks": 5},
    }  # fmt: skip
    found = lm_eval.simple_evaluate(
        model="local-completions",
        model_args={
            "model": "tiny",
            "base_url": f"{address(server)}/completions",
            "tokenizer": str(tokenizer_directory),
            "tokenizer_backend": "huggingface",
            "max_length": 64,
            "num_concurrent": 3,
        },
        tasks=[choice, text],
        task_manager=TaskManager(include_defaults=False),
        bootstrap_iters=0,
        batch_size=2,
    )
    samples = found["samples"]["tiny_choice"]
    right = 0
    for sample in samples:
        record = records[sample["doc_id"]]
        expected = [log_likelihood(record["question"], f" {c}") for c in record["choices"]]
        got = [response for (response,) in sample["resps"]]
        np.testing.assert_allclose([g[0] for g in got], [e[0] for e in expected], atol=2e-5)
        assert [bool(g[1]) for g in got] == [e[1] for e in expected]
        right += np.argmax([e[0] for e in expected]) == record["gold"]
    assert len(samples) == 4
    assert found["results"]["tiny_choice"]["acc,none"] == pytest.approx(right / 4)
    texts = found["samples"]["tiny_text"]
    assert len(texts) == 4
    for sample in texts:
        assert sample["resps"][0][0] == greedy_text(records[sample["doc_id"]]["question"], 5)


INSPECTED = """
    import sys
    from inspect_ai import Task, eval
    from inspect_ai.dataset import Sample
    from inspect_ai.model import GenerateConfig
    from inspect_ai.scorer import includes

    answer, logs = sys.argv[1:]
    task = Task(
        dataset=[Sample("hi", target=answer), Sample("hi", target="none")], scorer=includes(),
        config=GenerateConfig(temperature=0.0, max_tokens=8),
    )
    (log,) = eval(task, model="openai-api/jaxrl/tiny", log_dir=logs, display="none")
    assert log.status == "success", log.error
    assert [sample.scores["includes"].value for sample in log.samples] == ["C", "I"]
"""


@pytest.mark.extra
def test_inspect_evaluates(server, client, tmp_path):
    python = os.environ.get("INSPECT_PYTHON") or pytest.skip("needs inspect-ai, as in .ci/run")
    messages = [{"role": "user", "content": "hi"}]
    reply = client.chat.completions.create(
        model="tiny", messages=messages, temperature=0, max_tokens=8
    )
    answer = reply.choices[0].message.content
    code = textwrap.dedent(INSPECTED)
    done = subprocess.run(
        [python, "-c", code, answer, str(tmp_path)], cwd=tmp_path, capture_output=True, text=True,
        env=os.environ | {"JAXRL_BASE_URL": address(server), "JAXRL_API_KEY": "none"}, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
