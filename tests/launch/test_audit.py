"""`jaxrl audit`: rows as several tools write them, with one fault each, and without any."""

import json

import numpy as np
import pytest

from jaxrl.config import Config
from jaxrl.launch import cli
from jaxrl.launch.audit import command, likelihoods, traces
from jaxrl.mesh import mesh
from jaxrl.rollout import policy
from tests.models import byte_tokenizer


def written(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def flat(prompt=(5, 6), tokens=(7, 8, 9), **fields):
    return {
        "prompt_ids": [*prompt],
        "completion_ids": [*tokens],
        "logprobs": [-1.0] * len(tokens),
        **fields,
    }


def turn(prompt, tokens, /, **fields):
    token_fields = {
        "prompt_ids": prompt,
        "prompt_mask": [0] * len(prompt),
        "completion_ids": tokens,
        "completion_mask": [1] * len(tokens),
        "completion_logprobs": [-1.0] * len(tokens),
    }
    return {"prompt": None, "completion": [], "tokens": token_fields, **fields}


def verifiers(*turns, **fields):
    return {"example_id": 3, "reward": 1.0, "error": None, "trajectory": [*turns], **fields}


def atif(**metrics):
    steps = [
        {"step_id": 1, "source": "user", "message": "hello"},
        {"step_id": 2, "source": "agent", "message": "hi", "metrics": metrics},
    ]
    return {"schema_version": "ATIF-v1.6", "agent": {"name": "a"}, "steps": steps}


def node(parent, role, tokens, sampled=0, **fields):
    """A message of a graph of verifiers 0.4, whose last `sampled` tokens the model wrote."""
    mask = [False] * (len(tokens) - sampled) + [True] * sampled
    fields |= {"advantages": [0.5] * sampled} if sampled else {}
    return {
        "parent": parent, "message": {"role": role, "content": "x"}, "token_ids": tokens,
        "mask": mask, "logprobs": [-1.0] * sampled, **fields,
    }  # fmt: skip


def episode(*nodes, **fields):
    task = {"type": "T", "data": {"idx": 0}, "key": "k"}
    rewards = {"right": {"score": 2.0, "weight": 0.5}, "form": None}
    trace = {"task": task, "agent": {"name": "agent"}, "nodes": [*nodes], "rewards": rewards}
    policy = {"start": 3, "end": 4}
    return {
        "task": task, "run": {"work": {"type": "train", "step": 5, "policy": policy}},
        "traces": [{**trace, "ok": True, "errors": [], **fields}],
    }  # fmt: skip


def trial(**details):
    return {
        "task_name": "t", "verifier_result": {"rewards": {"reward": 1.0}}, "exception_info": None,
        "agent_result": {"rollout_details": [details] if details else None},
    }  # fmt: skip


def datum(tokens, start, advantage):
    count = len(tokens) - 1
    sampled = [0.0] * (start - 1) + [1.0] * (count - start + 1)
    tensors = {
        "target_tokens": tokens[1:],
        "logprobs": [-1.0 * mark for mark in sampled],
        "advantages": [advantage * mark for mark in sampled],
    }
    return {
        "model_input": {"chunks": [{"type": "encoded_text", "tokens": tokens[:-1]}]},
        "loss_fn_inputs": {name: {"data": data} for name, data in tensors.items()},
    }


def reply(*sequences):
    return {"prompt": {"chunks": [{"tokens": [5, 6]}]}, "sequences": [*sequences]}


LAYOUTS = {
    "flat": flat(reward=1.0, advantage=0.5),
    "verifiers": verifiers(turn([5, 6], [7, 8, 9]), advantage=0.5),
    "verifiers 0.4": episode(node(None, "user", [5]), node(0, "assistant", [6, 7, 8, 9], 3)),
    "harbor": {
        **trial(prompt_token_ids=[[5, 6]], completion_token_ids=[[7, 8, 9]], logprobs=[[-1.0] * 3]),
    },
    "atif": {
        **atif(prompt_token_ids=[5, 6], completion_token_ids=[7, 8, 9], logprobs=[-1.0] * 3),
        "reward": 1.0, "advantage": 0.5,
    },
    "tinker": {**datum([5, 6, 7, 8, 9], 2, 0.5), "reward": 1.0},
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_rollout_is_the_same_in_every_layout(layout, tmp_path):
    read_layout, (trace,), unreadable = traces.read(
        written(tmp_path / "rows.jsonl", [LAYOUTS[layout]])
    )
    (sampled,) = trace.turns
    assert (read_layout, unreadable) == (layout.split()[0], [])
    assert (sampled.prompt, sampled.tokens) == ((5, 6), (7, 8, 9))
    np.testing.assert_array_equal(sampled.logp, [-1.0] * 3)
    assert (trace.reward, trace.advantage) == (1.0, None if layout == "harbor" else 0.5)


def test_each_path_of_a_graph_of_messages_is_a_rollout_and_has_no_call_twice(tmp_path):
    """As verifiers 0.4 writes an episode whose history was written anew after the first turn."""
    tool = {"type": "function", "name": "f", "description": "", "parameters": {}}
    call = {"id": "1", "type": "function", "name": "f", "arguments": "{}"}
    nodes = [
        node(None, "user", [5]),
        node(0, "assistant", [6, 7], 1),
        node(1, "tool", [8]),
        node(2, "assistant", [9, 10], 2),
        node(1, "user", [11]),
        node(4, "assistant", [12], 1),
    ]
    nodes[1]["message"]["tool_calls"] = [call]
    row = episode(*nodes, tools=[tool])
    _, rollouts, unreadable = traces.read(written(tmp_path / "rows.jsonl", [row]))
    calls = [[(c.prompt, c.tokens) for c in rollout.turns] for rollout in rollouts]
    assert not unreadable and calls == [
        [((5, 6), (7,)), ((5, 6, 7, 8), (9, 10))],
        [((5, 6, 7, 11), (12,))],
    ]
    assert [rollout.reward for rollout in rollouts] == [1.0, None]  # one reward for both
    assert rollouts[0].versions == (3, 4) and rollouts[0].step == 5
    assert rollouts[0].turns[0].tools[0]["function"]["name"] == "f"


EMPTY = {
    "no token was recorded": episode(node(None, "user", []), node(0, "assistant", [])),
    "no rollout_details": trial(),
    "a mask of another length": episode({**node(None, "user", [5, 6], 1), "mask": [True]}),
    "a parent that is no node": episode(node(7, "assistant", [5], 1)),
    "all are empty": {"traces": []},
}


@pytest.mark.parametrize("why", EMPTY)
def test_a_file_without_tokens_is_refused_and_says_why(why, tmp_path, capsys):
    assert cli.main(["audit", written(tmp_path / "rows.jsonl", [EMPTY[why]])]) == 2
    said = {"no token was recorded": "sampled tokens", "a mask of another length": "mask has 1",
            "a parent that is no node": "parent 7"}  # fmt: skip
    assert said.get(why, why) in capsys.readouterr().err


def test_counts_of_tokens_and_lists_that_are_empty_are_none(tmp_path):
    """As in records of OpenAI's API, with its form of log-probabilities, or without any."""
    usage = {"prompt_tokens": 2, "completion_tokens": 3}
    content = [{"token": "a", "logprob": -1.0}] * 3
    row = {**usage, "prompt_token_ids": [5, 6], "token_ids": [7, 8, 9]}
    rows = [{**row, "logprobs": {"content": content}}, {**row, "logprobs": []}]
    _, (first, second), unreadable = traces.read(written(tmp_path / "rows.jsonl", rows))
    assert not unreadable and first.turns[0].tokens == second.turns[0].tokens == (7, 8, 9)
    np.testing.assert_array_equal(first.turns[0].logp, [-1.0] * 3)
    assert second.turns[0].logp is None


def test_the_log_of_completions_of_trl_has_groups_and_advantages(tmp_path):
    """A step of each prompt is a group, and 1e-4 beside the standard deviation is no other rule."""
    import pyarrow as pa
    import pyarrow.parquet

    rewards = {1: [0.0, 1.0], 2: [0.5, 0.51]}  # the same prompt in two steps
    rows = [
        {
            "step": step,
            "prompt": [{"role": "user", "content": "q"}],
            "completion": [{"role": "assistant", "content": "a"}],
            "score_of": reward,
            "advantage": (reward - np.mean(group)) / (np.std(group, ddof=1) + 1e-4),
        }
        for step, group in rewards.items()
        for reward in group
    ]
    table = pa.Table.from_pylist(rows)
    pyarrow.parquet.write_table(table, tmp_path / "completions_00001.parquet")
    path = str(tmp_path / "completions_00001.parquet")
    layout, rollouts, unreadable = traces.read(path)
    assert (layout, unreadable, len({r.group for r in rollouts})) == ("texts", [], 2)
    assert cli.main(["audit", path]) == 0
    rows[0]["advantage"] = 0.0
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), path)
    assert cli.main(["audit", path]) == 1


def test_a_reply_of_tinker_is_a_rollout_for_each_sequence(tmp_path):
    sequences = [{"tokens": [7, n], "logprobs": [-1.0, -2.0]} for n in range(3)]
    _, rollouts, _ = traces.read(written(tmp_path / "rows.jsonl", [reply(*sequences)]))
    assert [trace.turns[0].tokens for trace in rollouts] == [(7, 0), (7, 1), (7, 2)]


def test_one_trajectory_in_a_file_of_its_own_is_read(tmp_path):
    path = tmp_path / "trajectory.json"
    path.write_text(json.dumps(LAYOUTS["atif"], indent=2))
    assert traces.read(str(path))[0] == "atif"


def test_copied_steps_of_a_trajectory_are_left_out_and_parts_are_a_text(tmp_path):
    """As ATIF 1.8 has a trajectory that continues another one."""
    metrics = {"prompt_token_ids": [5, 6], "completion_token_ids": [7], "logprobs": [-1.0]}
    row = atif(**metrics)
    row["steps"][1]["message"] = [{"type": "text", "text": "hi"}, {"type": "image", "source": {}}]
    row["steps"].insert(1, {**row["steps"][1], "is_copied_context": True})
    _, (trace,), _ = traces.read(written(tmp_path / "rows.jsonl", [row]))
    assert [turn.reply for turn in trace.turns] == ["hi"]


def test_padding_and_tool_results_of_trl_are_told_apart(tmp_path):
    row = flat(
        prompt=(0, 0, 5, 6), tokens=(7, 8, 9, 0, 0), prompt_mask=[0, 0, 1, 1],
        completion_mask=[1, 1, 1, 0, 0], tool_mask=[1, 0, 1, 0, 0],
    )  # fmt: skip
    _, (trace,), _ = traces.read(written(tmp_path / "rows.jsonl", [row]))
    (sampled,) = trace.turns
    assert (sampled.prompt, sampled.tokens) == ((5, 6), (7, 8, 9))
    assert sampled.trained.tolist() == [True, False, True] and len(sampled.logp) == 3


def report(path, *flags, capsys):
    status = cli.main(["audit", path, "--json", *flags])
    return status, json.loads(capsys.readouterr().out)


def group(rewards, advantages, name="g", **fields):
    pairs = enumerate(zip(rewards, advantages, strict=True))
    return [
        flat(tokens=(7, 8, n), group=name, reward=r, advantage=a, **fields) for n, (r, a) in pairs
    ]


REWARDS = np.array([1.0, 0.0, 0.0, 0.5])
CENTRED = REWARDS - REWARDS.mean()
ESTIMATORS = {
    "mean": CENTRED,
    "mean and deviation": CENTRED / REWARDS.std(),
    "sample deviation": CENTRED / (REWARDS.std(ddof=1) + 1e-4),
    "leave one out": np.array([r - np.delete(REWARDS, i).mean() for i, r in enumerate(REWARDS)]),
    "batch deviation": CENTRED / 0.123,
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_estimators_of_the_literature_are_no_fault(name, tmp_path, capsys):
    rows = group(REWARDS, ESTIMATORS[name])
    assert report(written(tmp_path / "r.jsonl", rows), capsys=capsys)[0] == 0


WITH_FAILURE = np.array([1.0, 0.0, 0.5])
FAULTS = {
    "wrong_denominator": (
        group(REWARDS, REWARDS - REWARDS.sum() / 8), "their sum over 8, 4 more", 0.1875,
    ),
    "wrong_denominator: no line": (
        group(REWARDS, [*CENTRED[:3], 0.9]), "no linear function", None,
    ),
    "wrong_denominator: a minority": (
        [
            *group(REWARDS, CENTRED, "a"), *group(REWARDS * 2, CENTRED * 2, "b"),
            *group(REWARDS * 3, CENTRED * 3 / REWARDS.std(), "c"),
        ], "2 other groups by 1", None,
    ),
    "wrong_denominator: items": (
        [flat(tool_mask=[1, 0, 1], num_items_in_batch=6), flat((1, 2), num_items_in_batch=6)],
        "is over 5", 1.2,
    ),
    "failed_as_zero": (
        [
            *group(WITH_FAILURE, WITH_FAILURE - 0.5),
            flat(tokens=(1, 2), reward=0.0, error="TimeoutError", advantage=-0.4),
        ],
        "TimeoutError", 0.4,
    ),
    "stale_tokens": ([flat(version=[3, 7, 7], step=7)], "the oldest 4", 4),
    "stale_tokens: later": ([flat(version=9, step=7)], "is later than step 7", -2),
    "duplicated": ([flat(tokens=range(20)), flat(), flat(tokens=range(20))], "r.jsonl:1 again", 20),
    "duplicated: a turn": (
        [verifiers(turn([5], [7, 8]), turn([5], [7, 8]))], "turn 2 is turn 1 again", 2,
    ),
    "dropped_turn": (
        [
            verifiers(
                turn([5], [7, 8], completion=[{"role": "assistant", "content": "eight"}]),
                turn([5, 6, 3], [4], prompt=[{"role": "user", "content": "and then?"}]),
            )
        ], "lacks the reply of turn 1", 2,
    ),
    "template_drift": (
        [verifiers(turn([5, 6], [7, 8]), turn([5, 1, 7, 8, 3], [4]))], "at token 1 of 4", 3,
    ),
    "unreadable": ([flat(), {**flat(), "logprobs": [-1.0]}], "1 entries for 3 tokens", 1),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_with_its_row_and_size(name, tmp_path, capsys):
    rows, text, size = FAULTS[name]
    status, said = report(written(tmp_path / "r.jsonl", rows), capsys=capsys)
    assert status == 1
    (fault,) = [f for f in said["findings"] if f["kind"] == name.partition(":")[0]]
    assert text in fault["text"] and "r.jsonl:" in fault["where"]
    assert size is None or fault["size"] == pytest.approx(size)
    assert {f["kind"] for f in said["findings"]} == {name.partition(":")[0]}


def test_equal_samples_that_chance_explains_are_no_fault(tmp_path, capsys):
    rows = [flat(), flat()]  # e^-3
    assert report(written(tmp_path / "r.jsonl", rows), capsys=capsys)[0] == 0


def test_the_log_of_a_run_is_checked_without_tokens(tmp_path, capsys):
    row = {
        "step": 10, "group": 0, "problem": "p", "prompt": "1", "completion": "3", "reward": 1.0,
        "error": None, "tokens": ["3", ""], "logp": [-0.2, -0.1], "version": [9, 5],
        "source": ["policy", "policy"], "advantage": [0.5, 0.5], "log_ratio": [0.0, 0.0],
    }  # fmt: skip
    _, said = report(written(tmp_path / "r.jsonl", [row]), capsys=capsys)
    assert said["format"] == "jaxrl"
    assert [f["kind"] for f in said["findings"]] == ["stale_tokens"]


HOSTILE = {
    "no rows": ("", "has no record"),
    "no rollout": ('{"question": "x"}\n', "no rollout with token ids"),
    "not JSON": ("{", "r.jsonl"),
    "texts": ('{"completion_ids": "abc"}\n', "no row of"),
    "floats": ('{"completion_ids": [1.5]}\n', "is not a list of token ids"),
    "nested": ('{"completion_ids": ' + "[" * 3000 + "]" * 3000 + "}\n", "r.jsonl"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_no_file_of_rollouts_is_one_line(name, tmp_path, capsys):
    content, text = HOSTILE[name]
    (tmp_path / "r.jsonl").write_text(content)
    assert cli.main(["audit", str(tmp_path / "r.jsonl")]) == 2
    message = capsys.readouterr().err
    assert text in message and "Traceback" not in message and len(message) < 2000


@pytest.mark.parametrize(
    "flags", [("--temperature", "0"), ("--tolerance", "nan"), ("--rows", "-1")]
)
def test_settings_that_mean_nothing_are_refused(flags, tmp_path, capsys):
    path = written(tmp_path / "r.jsonl", [flat()])
    assert cli.main(["audit", path, *flags]) == 2
    assert flags[0].removeprefix("--") in capsys.readouterr().err


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A tiny Qwen3 of transformers, in a directory, with a tokenizer and a chat template."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    directory = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=byte_tokenizer.SIZE, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=512,
        initializer_range=0.3,
    )  # fmt: skip
    qwen = transformers.Qwen3ForCausalLM(config).eval()
    qwen.save_pretrained(directory)
    byte_tokenizer.write(directory)
    return str(directory), qwen


def sampled(qwen, prompt, count, seed, temperature=1.0, top_p=1.0):
    """Tokens, and the log-probabilities that transformers' own processors sample them with."""
    import torch
    from transformers import TopPLogitsWarper

    generator = torch.Generator().manual_seed(seed)
    ids, logp = [*prompt], []
    for _ in range(count):
        with torch.no_grad():
            scores = qwen(torch.tensor([ids])).logits[:, -1].double() / temperature
        scores = TopPLogitsWarper(top_p)(None, scores) if top_p < 1 else scores
        probabilities = scores.softmax(-1)
        token = int(torch.multinomial(probabilities, 1, generator=generator))
        ids.append(token)
        logp.append(float(probabilities[0, token].log()))
    return ids[len(prompt) :], logp


def rows_of(qwen, **options):
    prompt = [10, 11, 12, 13]
    pairs = (sampled(qwen, prompt, 40, seed, **options) for seed in range(3))
    return [flat(prompt, tokens) | {"logprobs": logp} for tokens, logp in pairs]


@pytest.mark.parity
def test_transformers_log_probabilities_are_the_models(model, tmp_path, capsys):
    path = written(tmp_path / "r.jsonl", rows_of(model[1]))
    status, said = report(path, "--model", model[0], "--tolerance", "1e-4", capsys=capsys)
    assert status == 0 and said["coverage"]["turns_scored"] == 3
    assert max(mean for _, _, mean in said["depth"]) < 1e-4


@pytest.mark.parity
@pytest.mark.parametrize(
    ("options", "text"),
    [({"temperature": 0.7}, "of temperature 0.7"), ({"top_p": 0.8}, "a part of the vocabulary")],
)
def test_the_support_that_samples_are_from_is_said(options, text, model, tmp_path, capsys):
    path = written(tmp_path / "r.jsonl", rows_of(model[1], **options))
    status, said = report(path, "--model", model[0], capsys=capsys)
    assert status == 1 and {f["kind"] for f in said["findings"]} == {"support_bias"}
    assert all(text in f["text"] for f in said["findings"])
    flags = ("--temperature", "0.7") if "temperature" in options else ()
    assert report(path, "--model", model[0], *flags, capsys=capsys)[0] == (not flags)


@pytest.mark.parity
@pytest.mark.parametrize("top_p", [1.0, 0.8])
def test_a_cut_that_log_probabilities_leave_out_is_told_from_none(top_p, model, tmp_path, capsys):
    """As TRL records them: sampled with a cut, and the whole softmax's log-probabilities."""
    import torch

    rows = rows_of(model[1], top_p=top_p)
    for row in rows:
        ids = torch.tensor([row["prompt_ids"] + row["completion_ids"]])
        with torch.no_grad():
            logp = model[1](ids).logits.log_softmax(-1)[0, :-1].gather(1, ids[0, 1:, None])
        row["logprobs"] = logp[len(row["prompt_ids"]) - 1 :, 0].tolist()
    path = written(tmp_path / "r.jsonl", rows)
    status, said = report(path, "--model", model[0], capsys=capsys)
    assert status == (top_p < 1)
    assert all("120 sampled tokens of 3 turns are within top-p 0.8" in f["text"]
               for f in said["findings"]) and len(said["findings"]) == status  # fmt: skip


@pytest.mark.parity
def test_a_mismatch_that_grows_is_shown_by_depth(model, tmp_path, capsys):
    rows = rows_of(model[1])
    for row in rows:
        row["logprobs"] = [x - 0.01 * (-1) ** n * n for n, x in enumerate(row["logprobs"])]
    path = written(tmp_path / "r.jsonl", rows)
    _, said = report(path, "--model", model[0], capsys=capsys)
    assert {f["kind"] for f in said["findings"]} == {"logp_mismatch"}
    means = [mean for _, _, mean in said["depth"]]
    assert means == sorted(means) and means[-1] > 0.3


@pytest.mark.parity
def test_prompts_of_another_template_are_found(model, tmp_path, capsys):
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(model[0])
    messages = [{"role": "user", "content": "What is 12+34?"}]
    right = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    wrong = tokenizer.apply_chat_template(messages, add_generation_prompt=False, return_dict=False)
    rows = [verifiers({**turn(p, [7]), "prompt": messages}) for p in (right, wrong)]
    path = written(tmp_path / "r.jsonl", rows)
    _, said = report(path, "--model", model[0], "--tolerance", "99", capsys=capsys)
    (fault,) = said["findings"]
    assert fault["kind"] == "template_drift" and fault["where"].endswith(":2")
    assert fault["size"] == len(right) - len(wrong)


@pytest.mark.parity
def test_a_reply_that_is_not_in_the_next_prompt_is_told_from_other_tokens(model, tmp_path, capsys):
    transformers = pytest.importorskip("transformers")
    encode = transformers.AutoTokenizer.from_pretrained(model[0]).encode
    prompt, reply = encode("What is 12+34?"), encode("it's done")
    letters = [token for letter in "it's done" for token in encode(letter)]
    rows = [
        verifiers(turn(prompt, reply), turn([*prompt, *next_tokens, *encode(" two")], [7]))
        for next_tokens in (letters, [], reply)
    ]
    path = written(tmp_path / "r.jsonl", rows)
    _, said = report(path, "--model", model[0], "--tolerance", "99", capsys=capsys)
    drift, lost = said["findings"]
    assert drift["kind"] == "template_drift" and "split into other tokens" in drift["text"]
    assert drift["where"].endswith(":1") and 0 < drift["size"] <= len(reply)
    assert lost["kind"] == "dropped_turn" and lost["where"].endswith(":2")


@pytest.mark.parity
def test_turns_that_go_on_are_scored_as_each_alone(model):
    opened = policy.config_of(model[0])
    decoder, _ = policy.describe(opened)
    params = policy.first_params(opened, decoder, mesh.make(Config().mesh))
    params = policy.sampling_params(params, "float32")
    logp = np.zeros(3)
    first, second = (
        traces.ModelCall((5, 6), (7, 8, 9), logp),
        traces.ModelCall((5, 6, 7, 8, 9, 1), (2,), logp[:1]),
    )
    together = command.score(
        decoder, params, [traces.Trace("", (first, second))], command.AuditConfig()
    )
    for j, alone in enumerate((first, second)):
        scores = command.score(decoder, params, [traces.Trace("", (alone,))], command.AuditConfig())
        np.testing.assert_allclose(together[0, j].logp, scores[0, 0].logp, atol=1e-5)


def test_depths_have_equally_many_tokens():
    rollout = traces.Trace("", (traces.ModelCall((1,) * 10, (2,) * 16, np.arange(16.0)),))
    scores = {(0, 0): likelihoods.Scores(np.zeros(16))}
    assert likelihoods.by_depth([rollout], scores, parts=4) == [
        (10, 13, 1.5), (14, 17, 5.5), (18, 21, 9.5), (22, 25, 13.5),
    ]  # fmt: skip
