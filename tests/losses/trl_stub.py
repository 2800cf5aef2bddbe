"""Runs TRL's own loss code on given log-probabilities: trainers without model or data."""

import ast
import contextlib
import inspect
import textwrap
from collections import defaultdict
from types import SimpleNamespace as Arrays
from unittest import mock

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")


def tensor(x, grad=False):
    return torch.tensor(x, dtype=torch.float64 if x.dtype.kind == "f" else None, requires_grad=grad)


def bare(trainer_class, **attributes):
    """An instance that never ran `__init__`, with only what its loss reads."""
    trainer = trainer_class.__new__(trainer_class)
    accelerator = Arrays(
        gather=lambda x: x, gather_for_metrics=lambda x: x, reduce=lambda x, **_: x,
        num_processes=1, device=torch.device("cpu"),
    )  # fmt: skip
    defaults = {
        "accelerator": accelerator,
        "model": Arrays(training=True),
        "aux_loss_enabled": False,
        "_metrics": defaultdict(lambda: defaultdict(list)),
        "_total_train_tokens": 0,
        "_tp_size": 1,
    }
    vars(trainer).update(defaults | attributes)
    return trainer


def grpo_loss(trainer_class, d: Arrays, *, loss_type="grpo", args=None, **attributes):
    """Loss and gradient in logp of a GRPO-like trainer's `_compute_loss`."""
    logp = tensor(d.logp, grad=True)
    args = dict(delta=None, use_bias_correction_kl=False, steps_per_generation=1,
                sapo_temperature_pos=1.0, sapo_temperature_neg=1.05) | (args or {})  # fmt: skip
    settings = {
        "loss_type": loss_type, "args": Arrays(**args), "beta": 0.0,
        "epsilon_low": 0.2, "epsilon_high": 0.2, "importance_sampling_level": "token",
        "top_entropy_quantile": 1.0, "off_policy_mask_threshold": None, "use_vllm": False,
        "vllm_importance_sampling_correction": True, "_entropy_bonus_enabled": False,
        "current_gradient_accumulation_steps": 1, "max_completion_length": 9,
    } | attributes  # fmt: skip
    trainer = bare(trainer_class, **settings)
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: (
        logp, torch.zeros_like(logp), None,
    )  # fmt: skip
    mask = tensor(d.mask).long()
    inputs = {
        "prompt_ids": mask[:, :1], "prompt_mask": mask[:, :1],
        "completion_ids": mask, "completion_mask": mask,
        "advantages": tensor(d.sequence_advantages[:, 0]),
        "old_per_token_logps": tensor(d.behavior_logp),
        "ref_per_token_logps": tensor(d.ref_logp),
        "num_items_in_batch": mask.sum(),
    }  # fmt: skip
    if hasattr(d, "importance_ratio"):
        inputs["importance_sampling_ratio"] = d.importance_ratio
    loss = trainer._compute_loss(trainer.model, inputs)
    loss.backward()
    return loss.item(), logp.grad.numpy()


def block(method, starts_with: str, contains: str = ""):
    """Compiles one `if` statement of a TRL method, to run it on local variables of our choice."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(method)))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == starts_with:
            source = ast.unparse(node)
            if contains in source:
                return compile(source, "<trl>", "exec")
    pytest.skip(f"this TRL has no block `if {starts_with}`")


def importance_ratio(d: Arrays, mode: str, low, high):
    """TRL's vLLM correction: old log-probs against those the sampler recorded."""
    from trl.trainer import grpo_trainer

    method = grpo_trainer.GRPOTrainer._generate_and_score_completions
    code = block(
        method, "self.use_vllm and self.vllm_importance_sampling_correction", "sampling_mode in"
    )
    scope = {
        "self": Arrays(use_vllm=True, vllm_importance_sampling_correction=True,
                       vllm_importance_sampling_mode=mode, vllm_importance_sampling_clip_min=low,
                       vllm_importance_sampling_clip_max=high),
        "completion_mask": tensor(d.mask).long(), "tool_mask": None,
        "old_per_token_logps": tensor(d.proximal_logp),
        "sampling_per_token_logps": tensor(d.behavior_logp),
    }  # fmt: skip
    exec(code, vars(grpo_trainer) | scope, result := {})
    return result["vllm_importance_sampling_ratio"]


def preference_loss(trainer_class, d: Arrays, inputs: dict | None = None, **attributes):
    """Loss and gradient in logp of `DPOTrainer` or `KTOTrainer._compute_loss`.

    A DPO batch holds the chosen rows first, then the rejected ones.
    """
    logp, mask = tensor(d.logp, grad=True), tensor(d.mask)

    def answer(x):
        zeros = torch.zeros_like(x)
        return Arrays(log_probs=torch.where(mask, x, 0), entropy=zeros, mean_logits=zeros,
                      is_top1=mask)  # fmt: skip

    settings = {
        "beta": 0.3, "label_smoothing": 0.0, "loss_weights": [1.0], "ld_alpha": None,
        "precompute_ref_logps": False, "f_divergence_type": "reverse_kl", "use_weighting": False,
        "args": Arrays(gradient_checkpointing_kwargs=None), "ref_model": None,
    } | attributes  # fmt: skip
    trainer = bare(trainer_class, **settings)
    ids = torch.zeros(len(logp), logp.shape[1] + 1, dtype=torch.long)
    completion = torch.cat([ids[:, :1], mask.long()], 1)
    batch = {"input_ids": ids, "attention_mask": ids + 1, "completion_mask": completion}

    class Policy:
        training = True

        def __call__(self, **_):
            return answer(logp)

    trainer.model = Policy()
    trainer.ref_model = lambda **_: answer(tensor(d.ref_logp))
    undisturbed = {"disable_gradient_checkpointing": lambda *_: contextlib.nullcontext(),
                   "is_peft_model": lambda _: False}  # fmt: skip
    with mock.patch.dict(trainer_class._compute_loss.__globals__, undisturbed):
        loss = trainer._compute_loss(trainer.model, batch | (inputs or {}), False)
    loss.backward()
    return loss.item(), logp.grad.numpy()


def reference_free_loss(trainer_class, chosen, rejected, nll: bool, **attributes):
    """Loss and gradients of `CPOTrainer` or `ORPOTrainer`, from responses' log-probabilities.

    `nll` says whether their likelihood term is the mean over the chosen responses.
    """
    chosen, rejected = tensor(chosen, grad=True), tensor(rejected, grad=True)
    zeros = torch.zeros(1)
    trainer = bare(trainer_class, **{"alpha": 0.0, "label_smoothing": 0.0} | attributes)
    likelihood = -chosen.mean() if nll else zeros.sum()
    trainer.concatenated_forward = lambda *_: (chosen, rejected, zeros, zeros, likelihood)
    loss, _ = trainer.get_batch_loss_metrics(trainer.model, {})
    loss.backward()
    return loss.item(), chosen.grad.numpy(), rejected.grad.numpy()
