"""Learning from a teacher's distribution: on its text, on the student's own, or in between.

The vocabulary forms take logits `[..., V]` and return `[...]` nats; the teacher is constant.
"""

import jax
import jax.numpy as jnp

from jaxrl.losses.divergence import kl
from jaxrl.losses.reduce.masking import as_float, constant, expectation
from jaxrl.losses.reduce.masking import ratio as importance_ratio
from jaxrl.losses.reduce.shapes import checked

KIND = "distillation"


@checked
def forward(
    student_logits: jax.Array, teacher_logits: jax.Array, *, temperature: float = 1.0
) -> jax.Array:
    """Forward KL: the student covers everything the teacher might say.

    Formula: `KL(softmax(teacher / T), softmax(student / T))`
    Paper: Hinton et al. 2015, "Distilling the Knowledge in a Neural Network"

    Args:
      student_logits, teacher_logits: `[..., V]`.
      temperature: divides both; multiply the loss by its square for Hinton's gradient scale.

    Returns:
      `[...]` nats.
    """
    return kl.forward_kl(
        as_float(student_logits) / temperature, as_float(teacher_logits) / temperature
    )


@checked
def reverse(
    student_logits: jax.Array, teacher_logits: jax.Array, *, temperature: float = 1.0
) -> jax.Array:
    """Reverse KL: the student commits to what the teacher finds likely.

    Formula: `KL(softmax(student / T), softmax(teacher / T))`
    Paper: Gu et al. 2023, "MiniLLM: Knowledge Distillation of Large Language Models"

    Args:
      student_logits, teacher_logits: `[..., V]`.
      temperature: divides both.

    Returns:
      `[...]` nats.
    """
    return kl.reverse_kl(
        as_float(student_logits) / temperature, as_float(teacher_logits) / temperature
    )


@checked
def generalized_js(
    student_logits: jax.Array,
    teacher_logits: jax.Array,
    *,
    beta: float = 0.5,
    temperature: float = 1.0,
) -> jax.Array:
    """Generalised Jensen-Shannon: between forward (beta 0) and reverse (beta 1), and bounded.

    At the ends the expression itself vanishes; there, as in GKD's practice, the two KLs are used.

    Formula: `beta KL(q, m) + (1 - beta) KL(p, m)`, `m = beta q + (1 - beta) p`, `q` the teacher
    Paper: Agarwal et al. 2023, "On-Policy Distillation of Language Models" (GKD)

    Args:
      student_logits, teacher_logits: `[..., V]`; the student is `p`.
      beta: in `[0, 1]`, static.
      temperature: divides both.

    Returns:
      `[...]` nats.
    """
    if not 0.0 <= beta <= 1.0:
        raise ValueError(f"beta={beta} must lie in [0, 1]: 0 is the forward KL, 1 the reverse")
    if beta == 0.0:
        return forward(student_logits, teacher_logits, temperature=temperature)
    if beta == 1.0:
        return reverse(student_logits, teacher_logits, temperature=temperature)
    p = jax.nn.log_softmax(as_float(student_logits) / temperature, axis=-1)
    q = jax.nn.log_softmax(constant(teacher_logits) / temperature, axis=-1)
    mixture = jnp.logaddexp(q + jnp.log(beta), p + jnp.log1p(-beta))
    return beta * expectation(q, q - mixture) + (1.0 - beta) * expectation(p, p - mixture)


@checked
def on_policy(
    logp: jax.Array, behavior_logp: jax.Array, ref_logp: jax.Array
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """On-policy distillation: the teacher grades each token the student wrote.

    Callable as a policy objective with the teacher as the reference. On-policy its expected
    gradient is that of the per-token reverse KL, states held fixed (a discount of 0).

    Formula: `-r_t (log pi_teacher,t - log pi_b,t)`
    Paper: Lu & Thinking Machines Lab 2025, "On-Policy Distillation"; Agarwal et al. 2023 (GKD)

    Args:
      logp, behavior_logp: `[B, T]` of the student, now and as it sampled.
      ref_logp: `[B, T]` of the teacher on the student's tokens.

    Returns:
      Loss `[B, T]`; metric `reverse_kl` `[B, T]`, the student's log-ratio to the teacher.
    """
    gap = constant(behavior_logp) - constant(ref_logp)
    return importance_ratio(logp, behavior_logp) * gap, {"reverse_kl": gap}
