"""Fine-tuning against TRL: one model, one file, one batch; the loss and its gradient's norm."""

import dataclasses
import json

import jax
import numpy as np
import optax
import pytest

from jaxrl.launch import recipes
from jaxrl.mesh import mesh
from jaxrl.models import load
from jaxrl.rollout import experience, files, policy, written
from jaxrl.run import placement
from jaxrl.run.extension import context, open_extensions
from jaxrl.training import trainable
from jaxrl.training.train_step import init_state, make_update
from tests.data import words

pytestmark = pytest.mark.parity
torch = pytest.importorskip("torch")
trl = pytest.importorskip("trl")
transformers = pytest.importorskip("transformers")
datasets = pytest.importorskip("datasets")

PLAIN = words.WORDS[5:]
RNG = np.random.default_rng(0)


def text(lead=" "):
    return lead + " ".join(RNG.choice(PLAIN, RNG.integers(1, 6)))


PAIRS = [{"prompt": text(""), "chosen": text(), "rejected": text()} for _ in range(6)]
MARGINS = [row | {"margin": 0.1 * i} for i, row in enumerate(PAIRS)]
LABELS = [{"prompt": text(""), "completion": text(), "label": bool(i % 3 == 0)} for i in range(6)]
CONVERSATIONS = [
    {
        "messages": [
            {"role": role, "content": text("")}
            for role in ("user", "assistant") * int(RNG.integers(1, 3))
        ]
    }
    for _ in range(6)
]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A random policy and another as its reference, as directories."""
    made = []
    for seed in range(2):
        folder = words.tokenizer(tmp_path_factory.mktemp(f"model{seed}"), words.MARKED)
        torch.manual_seed(seed)
        shape = transformers.LlamaConfig(
            vocab_size=len(words.WORDS), hidden_size=32, intermediate_size=48,
            num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=128, initializer_range=0.2, bos_token_id=None, eos_token_id=1,
        )  # fmt: skip
        transformers.LlamaForCausalLM(shape).save_pretrained(folder)
        made.append(folder)
    return made


@pytest.fixture(scope="module")
def classifiers(models):
    """The same models with a score in place of their output head."""
    made = []
    for seed, folder in enumerate(models):
        path = folder / "classifier"
        path.mkdir()
        words.tokenizer(path, words.MARKED)
        torch.manual_seed(seed)
        shape = transformers.AutoConfig.from_pretrained(folder, num_labels=1, pad_token_id=0)
        transformers.LlamaForSequenceClassification(shape).save_pretrained(path)
        made.append(path)
    return made


def ours(name, records, models, tmp_path):
    """Loss and gradient norm of one update on all records."""
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    config = recipes.load(name)
    data = dataclasses.replace(config.data, path=str(path), max_tokens=64)
    packing = dataclasses.replace(config.packing, micro_batch_tokens=128, row_length=64)
    config = dataclasses.replace(config, model=str(models[0]), data=data, packing=packing)
    model, tokenizer = policy.describe(config)
    actor = policy.Policy(model, {}, tokenizer)
    extensions = open_extensions(config)
    with jax.set_mesh(mesh.make(config.mesh)):
        params, initial = (load.load(str(each), dtype="float32")[1] for each in models)
        ctx = context(
            config, actor, trainable.WHOLE, extensions, reference=lambda ctx, state: initial
        )
        found = files.read(config.data, str(path))
        groups = [g for i in range(len(found)) for g in written.groups(actor, config, found, i)]
        batch = experience.to_trajectory(config)(written.gathered(groups))
        optimize = optax.sgd(0.0)
        state = init_state(params, optimize)
        for extension in extensions.values():
            batch = extension.prepare(ctx, state, batch)
        packed, _ = placement.pack(batch, config)
        ref_logp = ctx.score(initial, packed)
        update = make_update(
            model, config.objective, optimize, temperature=1.0, max_new_tokens=64, remat="none"
        )
        metrics = jax.device_get(update(state, batch, packed, ref_logp)[1])
    return float(metrics["loss"]), float(metrics["grad_norm"])


def without_prompts(trainer):
    """ORPO's likelihood of the answers alone, as in the paper; TRL's counts the prompts' tokens."""
    whole = trainer.concatenated_forward

    def forward(model, batch):
        chosen, rejected, logits, rejected_logits, _ = whole(model, batch)
        labels = trainer.concatenated_inputs(batch)["concatenated_labels"][: len(logits), 1:]
        likelihood = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return chosen, rejected, logits, rejected_logits, likelihood

    trainer.concatenated_forward = forward


def theirs(
    trainer_class,
    settings_class,
    records,
    models,
    tmp_path,
    *,
    reference,
    prepare=lambda trainer: None,
    **settings,
):
    """The same of a TRL trainer's own data pipeline and loss."""
    args = settings_class(
        output_dir=str(tmp_path / "trl"), per_device_train_batch_size=len(records),
        report_to="none", use_cpu=True, bf16=False, gradient_checkpointing=False, max_length=64,
        remove_unused_columns=settings.pop("remove_unused_columns", False), **settings,
    )  # fmt: skip

    def loaded(folder):
        scores = trainer_class is trl.RewardTrainer
        kind = getattr(
            transformers, f"AutoModelFor{'SequenceClassification' if scores else 'CausalLM'}"
        )
        return kind.from_pretrained(folder, dtype=torch.float32)

    more = {"ref_model": loaded(models[1])} if reference else {}
    trainer = trainer_class(
        model=loaded(models[0]), args=args, train_dataset=datasets.Dataset.from_list(records),
        processing_class=transformers.AutoTokenizer.from_pretrained(models[0]), **more,
    )  # fmt: skip
    prepare(trainer)
    inputs = next(iter(trainer.get_train_dataloader()))
    loss = trainer.compute_loss(trainer.model, inputs)
    loss.backward()
    squares = [p.grad.square().sum() for p in trainer.model.parameters() if p.grad is not None]
    return loss.item(), float(torch.stack(squares).sum().sqrt())


def trainer_of(name):
    from trl.experimental.cpo import CPOConfig, CPOTrainer
    from trl.experimental.orpo import ORPOConfig, ORPOTrainer

    return {
        "sft": (trl.SFTTrainer, trl.SFTConfig, {"assistant_only_loss": True}),
        "dpo": (trl.DPOTrainer, trl.DPOConfig, {"beta": 0.1}),
        "ipo": (trl.DPOTrainer, trl.DPOConfig, {"beta": 0.1, "loss_type": ["ipo"]}),
        "kto": (trl.KTOTrainer, trl.KTOConfig, {"beta": 0.1}),
        "orpo": (ORPOTrainer, ORPOConfig, {"beta": 0.1, "prepare": without_prompts}),
        "simpo": (
            CPOTrainer,
            CPOConfig,
            {"loss_type": "simpo", "beta": 2.0, "simpo_gamma": 0.5, "cpo_alpha": 0.0},
        ),
        "cpo": (CPOTrainer, CPOConfig, {"beta": 0.1, "cpo_alpha": 1.0}),
        "reward": (trl.RewardTrainer, trl.RewardConfig, {"disable_dropout": True}),
    }[name]


@pytest.mark.sample(3)
@pytest.mark.exact("loss and gradient norm of fine-tuning equal TRL's to 1e-4 on one batch")
@pytest.mark.parametrize("name", ["sft", "dpo", "ipo", "kto", "orpo", "simpo", "cpo", "reward"])
def test_a_batch_has_the_loss_and_the_gradient_norm_of_trl(name, models, classifiers, tmp_path):
    records = {"sft": CONVERSATIONS, "kto": LABELS, "reward": MARGINS}.get(name, PAIRS)
    models = classifiers if name == "reward" else models
    trainer, settings, args = trainer_of(name)
    want = theirs(
        trainer, settings, records, models, tmp_path, reference=name in ("dpo", "ipo", "kto"),
        **args,
    )  # fmt: skip
    np.testing.assert_allclose(ours(name, records, models, tmp_path), want, rtol=1e-4, atol=1e-4)
