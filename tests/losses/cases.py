"""Float64 NumPy oracles of the policy objectives, written from the papers' formulas.

An oracle takes two namespaces of the same arrays: `x` carries the gradient, `s` is frozen (what a
paper writes under stop-gradient). Finite differences in `x` alone are then the exact gradient.
"""

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace as Arrays

import jax
import numpy as np

from jaxrl.losses.imitation import experts, supervised
from jaxrl.losses.policy import (
    lagged,
    mirror,
    mixed,
    objectives,
    off_policy,
    sequence,
    surrogates,
    trust_region,
)
from jaxrl.losses.preference import direct, equivalence

GROUPS = np.array([0, 1, 0, 1, 2, 0])


@dataclasses.dataclass(frozen=True)
class Case:
    """A function, how it is called, its oracle, and how its on-policy gradient is REINFORCE's."""

    function: Callable
    oracle: Callable[[Arrays, Arrays], np.ndarray]
    kwargs: dict = dataclasses.field(default_factory=dict)
    rename: dict = dataclasses.field(default_factory=dict)
    on_policy: tuple[str, str] | None = None
    """Aggregation of this loss, and of the REINFORCE it then equals at `behavior_logp = logp`."""
    advantages: str = "advantages"
    """Which advantages that REINFORCE uses."""
    live: tuple[str, ...] = ()
    """Arrays beside `logp` that a gradient flows into, by a test of their own."""


def draw(seed: int, spread: float = 0.4, rows: int = 6, length: int = 5) -> Arrays:
    """Random inputs; every row but the last acts somewhere, the last is padding."""
    rng = np.random.default_rng(seed)
    logp = -rng.exponential(1.2, (rows, length)) - 0.02

    def near() -> np.ndarray:
        return np.minimum(logp + spread * rng.normal(size=logp.shape), -1e-3)

    mask = rng.random((rows, length)) < 0.7
    mask[:, 0], mask[-1] = True, False
    rewards = rng.normal(size=rows)
    groups = GROUPS[:rows]
    mean = np.array([rewards[(groups == g) & mask.any(1)].mean() if m.any() else 0.0
                     for g, m in zip(groups, mask, strict=True)])  # fmt: skip
    return Arrays(
        logp=logp,
        behavior_logp=near(),
        proximal_logp=near(),
        ref_logp=near(),
        advantages=rng.normal(size=(rows, length)),
        sequence_advantages=rng.normal(size=(rows, 1)),
        centred=(rewards - mean)[:, None],
        mask=mask,
        batch_mask=mask,
        lag=np.where(rng.random((rows, length)) < 0.5, 25, 1),
        rewards=rewards,
        labels=(rewards > 0).astype(float),
        group_ids=groups,
        expert=np.arange(rows) % 3 == 0,
        first=np.arange(rows) == 0,
        weights=rng.random((rows, length)),
        entropy=rng.random((rows, length)),
        turn=np.tile([1, 1, 2, 2, 5] + [6] * length, (rows, 1))[:, :length],
    )


def total(x: np.ndarray, mask: np.ndarray) -> np.ndarray:
    return np.where(mask, x, 0.0).sum(-1, keepdims=True)


def mean(x: np.ndarray, mask: np.ndarray) -> np.ndarray:
    return total(x, mask) / np.maximum(mask.sum(-1, keepdims=True), 1)


def spread_rows(x: np.ndarray, like: np.ndarray) -> np.ndarray:
    return np.broadcast_to(x, like.shape)


def clip_loss(r, a, low=0.2, high=0.2):
    return np.maximum(-r * a, -np.clip(r, 1 - low, 1 + high) * a)


def ratio(x, s):
    return np.exp(x.logp - s.behavior_logp)


def ppo(x, s, low=0.2, high=0.2):
    return clip_loss(ratio(x, s), s.advantages, low, high)


def dual(x, s):
    return np.where(s.advantages < 0, np.minimum(ppo(x, s), -1.5 * s.advantages), ppo(x, s))


def two_sided(x, s):
    r, a = ratio(x, s), s.advantages
    return -np.minimum(np.minimum(r, 1.5) * a, np.clip(r, 0.8, 1.2) * a)


def k3(x, s):
    u = np.exp(s.ref_logp - x.logp)
    return u - np.log(u) - 1


def sequence_ratio(x, s, other="behavior_logp", normalise=False):
    d = x.logp - getattr(s, other)
    return np.exp((mean if normalise else total)(d, s.mask))


def turn_ratio(x, s):
    d = np.where(s.mask, x.logp - s.behavior_logp, 0.0)
    same = s.turn[:, :, None] == s.turn[:, None, :]
    return np.exp((same * d[:, None, :]).sum(-1))


def gspo_token(x, s):
    s_t = sequence_ratio(s, s, normalise=True) * np.exp(x.logp - s.logp)
    return clip_loss(s_t, s.advantages)


def gmpo(x, s):
    a, d = s.advantages, x.logp - s.behavior_logp
    clipped = np.where(a > 0, np.minimum(d, 0.3), np.maximum(d, -0.3))
    return spread_rows(-a * np.exp(mean(clipped, s.mask)), d)


def topr(x, s):
    w = np.where(s.advantages >= 0, 1.0, np.clip(sequence_ratio(s, s), 0.0, 1.0))
    return -w * s.advantages * x.logp


def a_lol(x, s, w):
    return -np.clip(w, 0.1, 1.9) * np.maximum(s.advantages, 0) * x.logp


def cispo(x, s):
    return -np.clip(ratio(s, s), 0.7, 1.3) * s.advantages * x.logp


def sapo(x, s):
    tau = np.where(s.advantages > 0, 1.0, 1.05)
    return -4 / tau / (1 + np.exp(-tau * (ratio(x, s) - 1))) * s.advantages


def rec(x, s, side, importance):
    r, a = ratio(s, s), s.advantages
    inside = (r >= 0.8) & (r <= 1.2)
    keep = {
        "one": ~((a > 0) & (r > 1.2)) & ~((a < 0) & (r < 0.8)),
        "two": inside,
        "ring": inside | ((a > 0) & (r <= 0.4)) | ((a < 0) & (r >= 3.0)),
        "none": np.ones_like(inside),
    }[side]
    return -np.where(keep, r if importance else 1.0, 0.0) * a * x.logp


def red_drop(x, s):
    score, kept = total(s.advantages, s.mask)[:, 0], np.ones(len(s.logp), bool)
    for g in set(s.group_ids):
        positives = sum(score[i] > 0 for i in np.flatnonzero(s.group_ids == g))
        negatives = [i for i in np.flatnonzero(s.group_ids == g) if score[i] < 0]
        kept[negatives[positives:]] = False
    return np.where(kept[:, None], -s.advantages * x.logp, 0.0)


def covariance(s):
    a, p = s.advantages[s.mask], s.logp[s.mask]
    cov = np.full(s.logp.shape, -np.inf)
    cov[s.mask] = (a - a.mean()) * (p - p.mean())
    return cov


def clip_cov(x, s):
    r, a, cov = ratio(s, s), s.advantages, covariance(s)
    clipped = ((r > 1.2) & (a > 0)) | ((r < 0.8) & (a < 0))
    eligible = s.mask & ~clipped & (cov > 0.1) & (cov < 2.0)
    count = max(1, int(0.3 * s.mask.sum()))
    chosen = sorted(zip(*np.nonzero(eligible), strict=True), key=lambda i: -cov[i])[:count]
    loss = ppo(x, s)
    for i in chosen:
        loss[i] = 0.0
    return loss


def kl_cov(x, s):
    cov, loss = covariance(s), -ratio(x, s) * s.advantages
    count = max(1, int(0.3 * s.mask.sum()))
    for i in sorted(zip(*np.nonzero(s.mask), strict=True), key=lambda i: -cov[i])[:count]:
        loss[i] += 0.7 * abs(x.logp[i] - s.behavior_logp[i])
    return loss


def decoupled(x, s, weight):
    return weight * clip_loss(np.exp(x.logp - s.proximal_logp), s.advantages)


def proximal_weight(s):
    return np.exp(s.proximal_logp - s.behavior_logp)


def a3po(x, s):
    proximal = s.behavior_logp + s.lag / (s.lag + 1) * (s.logp - s.behavior_logp)
    weight = np.minimum(np.exp(proximal - s.behavior_logp), 1.5)
    return weight * clip_loss(np.exp(x.logp - proximal), s.advantages)


def icepop(x, s):
    k = proximal_weight(s)
    return decoupled(x, s, np.where((k >= 0.7) & (k <= 1.4), k, 0.0))


def m2po(x, s):
    """Algorithm 1: only tokens on the side that PPO clips count, and only they are dropped."""
    # Not the logarithm of the ratio, whose rounding differs between processors and breaks ties.
    log_r, loss = s.logp - s.behavior_logp, -ratio(x, s) * s.advantages
    side = s.mask & (s.advantages * log_r > 0)
    trusted = sorted(zip(*np.nonzero(side), strict=True), key=lambda i: log_r[i] ** 2)
    while trusted and np.mean([log_r[i] ** 2 for i in trusted]) > 0.04:
        loss[trusted.pop()] = 0.0
    return loss


def opsm(x, s):
    kl = mean(s.behavior_logp - s.logp, s.mask)
    return np.where((s.advantages >= 0) | (kl <= 0.05), ppo(x, s), 0.0)


def dppo(x, s, divergence):
    p, b, a = np.exp(s.logp), np.exp(s.behavior_logp), s.advantages
    far = divergence(p, b)
    masked = ((a > 0) & (p > b) & (far > 0.08)) | ((a < 0) & (p < b) & (far > 0.03))
    return np.where(masked, 0.0, -np.minimum(p / b, 1.4) * a * x.logp)


def binary_kl(p, b):
    return b * np.log(b / p) + (1 - b) * np.log((1 - b) / (1 - p))


def log_ratio(x, s, other="behavior_logp"):
    return total(x.logp - getattr(s, other), s.mask)


def kimi(x, s):
    loss = (s.advantages - 0.3 * log_ratio(x, s)) ** 2 / 0.6
    return spread_rows(loss, x.logp)


def pairwise(x, s):
    a = s.rewards - 0.5 * log_ratio(x, s)[:, 0]
    acts, loss = s.mask.any(1), np.zeros(len(a))
    for i in np.flatnonzero(acts):
        mates = np.flatnonzero((s.group_ids == s.group_ids[i]) & acts)
        loss[i] = sum((a[i] - a[j]) ** 2 for j in mates) / (4 * 0.5 * len(mates))
    return spread_rows(loss[:, None], x.logp)


def pacs(x, s, balanced):
    score, loss = 0.8 * log_ratio(x, s)[:, 0], np.zeros(len(s.logp))
    for i in range(len(score)):
        mates = [j for j in np.flatnonzero(s.mask.any(1))
                 if j != i and s.group_ids[j] == s.group_ids[i]]  # fmt: skip
        psi = score[i] - (np.mean(score[mates]) if mates else 0.0)
        p = 1 / (1 + np.exp(-psi))
        labels = [s.rewards[j] for j in [i, *mates]]
        weight = len(labels) / (len(set(labels)) * labels.count(s.rewards[i])) if balanced else 1.0
        loss[i] = -s.rewards[i] * np.log(p) - (1 - s.rewards[i]) * np.log(1 - p)
        loss[i] *= weight
    return spread_rows(loss[:, None], x.logp)


def aepo(x, s):
    h = np.where(s.mask, s.entropy, 0.0)
    a = s.advantages * (1 + 0.4 * h / np.maximum(h.max(1, keepdims=True), 1e-9))
    beyond = (a > 0) & (ratio(s, s) > 1.28)
    return np.where(
        beyond, -1.28 / ratio(s, s) * ratio(x, s) * a, clip_loss(ratio(x, s), a, 0.2, 0.28)
    )


def vcpo(x, s, baseline, scale):
    acts, length = np.flatnonzero(s.mask.any(1)), s.mask.sum(1)
    w = np.exp(total(s.logp - s.behavior_logp, s.mask))[:, 0]
    loss = np.zeros(x.logp.shape)
    for i in acts:
        mates = [j for j in acts if s.group_ids[j] == s.group_ids[i]]
        share = np.array([w[j] ** 2 * length[j] if baseline == "variance" else 1 for j in mates])
        b = (share * s.rewards[mates]).sum() / share.sum()
        spread = s.rewards[mates].std() if scale == "group" else 0.0
        advantage = (s.rewards[i] - b) / (spread or 1.0)
        loss[i] = -min(w[i], 1.5) * advantage * x.logp[i]
    return loss


def distributional(x, s):
    target = total(s.ref_logp - s.behavior_logp, s.mask)[:, 0] + s.rewards / 0.7 - 0.2
    return -np.exp(target)[:, None] * x.logp


def raft(x, s):
    loss = np.zeros(x.logp.shape)
    for g in set(s.group_ids):
        rows = [i for i in np.flatnonzero(s.group_ids == g) if s.mask[i].any()]
        if rows:
            best = max(rows, key=lambda i: s.rewards[i])
            loss[best] = -x.logp[best]
    return loss


def chord(x, s, phi):
    p = np.exp(s.logp)
    imitation = -(p * (1 - p) if phi else 1.0) * x.logp
    return np.where(s.expert[:, None], 0.3 * imitation, 0.7 * ppo(x, s))


def rl_plus(x, s, uniform, gamma):
    old, p = np.exp(s.behavior_logp), np.exp(x.logp)
    r = 2 * p / (0.5 * (old + uniform) + old)
    external = -r * s.advantages * (1 - np.exp(s.logp)) ** gamma
    return np.where(s.expert[:, None], external, ppo(x, s))


def sasr(x, s, key, warming):
    """The draw of the key is no part of the method; what is done with it is."""
    taught = s.mask & s.expert[:, None]
    g = (1 - np.exp(s.logp))[taught].mean()
    p = 1.0 if warming else g / (g + 0.7 * 0.4)
    if float(jax.random.uniform(key, dtype="float32")) < p:
        return np.where(s.expert[:, None], -x.logp, 0.0)
    return np.where(s.expert[:, None], 0.0, ppo(x, s))


def dph(x, s):
    u = np.exp(x.logp - s.behavior_logp)
    stored = 30 - s.lag < 10
    return np.where(stored, 0.3 * (u - 1 - np.log(u)), ppo(x, s))


def grao(x, s):
    """The terms as the paper writes them, each on the row whose log-probability it has."""
    loss, acts, a = np.zeros(x.logp.shape), s.mask.any(1), s.advantages[:, 0]
    for g in set(s.group_ids):
        mine = (s.group_ids == g) & acts
        own, references = np.flatnonzero(mine & ~s.expert), np.flatnonzero(mine & s.expert)
        for i in own:
            loss[i] -= a[i] * x.logp[i] + 0.3 * a[i] * x.logp[i]
        for y in references:
            loss[y] -= len(own) * 0.6 * a[y] * x.logp[y]
            for i in own:
                loss[y] += 0.3 * a[i] * x.logp[y]
    return loss


def remix(x, s):
    u = np.exp(s.proximal_logp - x.logp)
    return ppo(x, s) + 0.3 * (0.25 * k3(x, s) + 0.75 * (u - np.log(u) - 1))


def shaped(x, s, beta):
    return -((1 - np.exp(s.logp)) ** beta) * x.logp


def entropy_sft(x, s, tokens, coefficient=0.7, share=0.4):
    """The tokens one by one, as the authors sort them."""
    excess = -s.logp - coefficient * s.entropy
    order = sorted(zip(*np.nonzero(tokens), strict=True), key=lambda i: -excess[i])
    keep = max(int(share * len(order)), 1)
    loss = np.zeros(x.logp.shape)
    for i in order[:keep]:
        loss[i] = -x.logp[i] * len(order) / keep
    return loss


def tea(x, s, tokens, alpha=2.0, bound=0.9):
    a, logp = (np.broadcast_to(v, s.logp.shape) for v in (s.advantages, s.logp))
    loss = ppo(x, s)
    for n in range(len(loss)):
        own = np.flatnonzero(tokens[n])
        cov = (a[n] - a[tokens].mean()) * (logp[n] - logp[tokens].mean())
        share = np.exp(cov[own]) / np.exp(cov[own]).sum()
        loss[n, own] -= np.minimum(alpha * share, bound) * s.entropy[n, own]
    return loss


def of_experts(s, loss):
    return np.where(s.expert[:, None], loss, 0.0)


def implicit(x, s):
    return total(x.logp - s.ref_logp, s.mask)[:, 0]


def verified(x, s, beta=0.6):
    """Pair by pair: the longest that passed, the shortest that failed, of equals the first."""
    loss, d, lengths = np.zeros(x.logp.shape), implicit(x, s), s.mask.sum(1)
    for g in set(s.group_ids):
        mine = [n for n in np.flatnonzero(s.group_ids == g) if lengths[n]]
        right = [n for n in mine if s.rewards[n] >= 0.2]
        wrong = [n for n in mine if s.rewards[n] < 0.2]
        if right and wrong:
            best, worst = max(right, key=lengths.item), min(wrong, key=lengths.item)
            loss[[best, worst]] = 0.5 * np.log1p(np.exp(-beta * (d[best] - d[worst])))
    return loss


def best_and_worst(x, s, beta=0.6):
    """Pair by pair: the highest reward and the lowest of a group, of equals the first."""
    loss, d = np.zeros(x.logp.shape), implicit(x, s)
    for g in set(s.group_ids):
        mine = [n for n in np.flatnonzero(s.group_ids == g) if s.mask[n].any()]
        best, worst = max(mine, key=s.rewards.item), min(mine, key=s.rewards.item)
        if s.rewards[best] > s.rewards[worst]:
            loss[[best, worst]] = 0.5 * np.log1p(np.exp(-beta * (d[best] - d[worst])))
    return loss


def gepo(x, s, beta=0.6, equality=0.8):
    """Section 3.2: the average of the winners against the average of the losers."""
    loss, scores = np.zeros(x.logp.shape), beta * implicit(x, s)
    for g in set(s.group_ids):
        mine = (s.group_ids == g) & s.mask.any(1)
        good, bad = (np.flatnonzero(mine & side) for side in (s.rewards >= 0.2, s.rewards < 0.2))
        for i in good:
            margin = scores[good].mean() - scores[bad].mean() if len(bad) else np.inf
            own = np.log1p(np.exp(-margin))
            own += equality * (scores[i] - scores[good].mean()) ** 2
            loss[i] = mine.sum() / len(good) * own
    return loss


SEQUENCE = {"advantages": "sequence_advantages"}
TOKEN = ("token-sum", "token-sum")
ROW = ("seq-mean-token-mean", "seq-mean-token-sum")
REGION = {"threshold_low": 0.03, "threshold_high": 0.08, "weight_high": 1.4}
LOW, HIGH = jax.random.key(3), jax.random.key(0)
"""Keys whose uniform draws are 0.07 and 0.95."""
NARROW = {"clip_low": 0.2, "clip_high": 0.2}

CASES = {
    "reinforce": Case(objectives.reinforce, lambda x, s: -s.advantages * x.logp, on_policy=TOKEN),
    "gpg": Case(objectives.gpg, lambda x, s: -s.advantages * x.logp, on_policy=TOKEN),
    "ppo_clip": Case(objectives.ppo_clip, lambda x, s: ppo(x, s, 0.1, 0.3),
                     {"clip_low": 0.1, "clip_high": 0.3}, on_policy=TOKEN),
    "ppo_clip, one advantage a row": Case(
        objectives.ppo_clip, ppo, rename=SEQUENCE, on_policy=TOKEN,
                                          advantages="sequence_advantages"),
    "ppo_dual_clip": Case(objectives.ppo_dual_clip, dual, {"dual_clip": 1.5}, on_policy=TOKEN),
    "ppo_two_sided": Case(objectives.ppo_two_sided, two_sided, {"delta": 1.5}, on_policy=TOKEN),
    "ppo_kl": Case(objectives.ppo_kl, lambda x, s: -ratio(x, s) * s.advantages
                   + 0.5 * (ratio(x, s) - 1 - (x.logp - s.behavior_logp)),
                   {"beta": 0.5}, on_policy=TOKEN),
    "grpo": Case(objectives.grpo, lambda x, s: ppo(x, s) + 0.04 * k3(x, s), {"beta": 0.04},
                 on_policy=TOKEN),
    "dr_grpo": Case(objectives.dr_grpo, ppo, on_policy=TOKEN),
    "dapo": Case(objectives.dapo, lambda x, s: ppo(x, s, 0.2, 0.28), on_policy=TOKEN),
    "cispo": Case(surrogates.cispo, cispo, {"clip_low": 0.3, "clip_high": 0.3}, on_policy=TOKEN),
    "sapo": Case(surrogates.sapo, sapo, on_policy=TOKEN),
    "asymre": Case(surrogates.asymre, lambda x, s: -(s.advantages + 0.2) * x.logp,
                   {"delta_v": -0.2}),
    **{f"rec, {side}, importance={w}": Case(
        surrogates.rec, lambda x, s, side=side, w=w: rec(x, s, side, w),
        {"side": side, "importance": w}, on_policy=TOKEN)
       for side in ("one", "two", "ring", "none") for w in (False, True)},
    "red_weight": Case(surrogates.red_weight, lambda x, s: -np.exp(s.advantages / 2)
                       * s.advantages * x.logp, {"temperature": 2.0}),
    "red_drop": Case(surrogates.red_drop, red_drop),
    "clip_cov": Case(surrogates.clip_cov, clip_cov,
                     {"fraction": 0.3, "cov_low": 0.1, "cov_high": 2.0}),
    "kl_cov": Case(surrogates.kl_cov, kl_cov, {"fraction": 0.3, "beta": 0.7}),
    "ppo_trajectory": Case(sequence.ppo_trajectory, lambda x, s: spread_rows(
        clip_loss(sequence_ratio(x, s), s.advantages), x.logp), rename=SEQUENCE,
        on_policy=("seq-mean-token-mean", "seq-mean-token-sum"),
        advantages="sequence_advantages"),
    "ppo_turn": Case(sequence.ppo_turn, lambda x, s: clip_loss(turn_ratio(x, s), s.advantages)),
    "gspo": Case(sequence.gspo, lambda x, s: spread_rows(
        clip_loss(sequence_ratio(x, s, normalise=True), s.advantages), x.logp),
        NARROW, SEQUENCE, on_policy=("seq-mean-token-mean",) * 2,
        advantages="sequence_advantages"),
    "gspo_token": Case(sequence.gspo_token, gspo_token, NARROW, on_policy=TOKEN),
    "gmpo": Case(sequence.gmpo, gmpo, {"clip_low": 0.3, "clip_high": 0.3}, SEQUENCE,
                 on_policy=("seq-mean-token-mean",) * 2, advantages="sequence_advantages"),
    "topr": Case(sequence.topr, topr, rename=SEQUENCE, on_policy=TOKEN,
                 advantages="sequence_advantages"),
    "a_lol": Case(sequence.a_lol, lambda x, s: a_lol(x, s, sequence_ratio(s, s, "ref_logp")),
                  rename=SEQUENCE),
    "a_lol, token": Case(sequence.a_lol, lambda x, s: a_lol(x, s, np.exp(s.logp - s.ref_logp)),
                         {"level": "token"}, SEQUENCE),
    "a_lol, none": Case(sequence.a_lol, lambda x, s: a_lol(x, s, 1.0), {"level": "none"},
                        SEQUENCE),
    "aepo": Case(surrogates.aepo, aepo),
    "vcpo": Case(off_policy.vcpo, lambda x, s: vcpo(x, s, "variance", "group"),
                 {"weight_high": 1.5}),
    "vcpo, off": Case(off_policy.vcpo, lambda x, s: vcpo(x, s, "mean", "none"), {
        "weight_high": 1.5, "power": 0.0, "baseline": "mean", "scale": "none"}),
    "aipo": Case(off_policy.aipo, lambda x, s: -np.minimum(ratio(s, s), 1.2) * s.advantages
                 * x.logp, {"clip_high": 1.2}, on_policy=TOKEN),
    "decoupled_ppo": Case(off_policy.decoupled_ppo, lambda x, s: decoupled(
        x, s, np.minimum(proximal_weight(s), 1.5)), {"weight_high": 1.5}, on_policy=TOKEN),
    "a3po": Case(lagged.a3po, a3po, {"weight_high": 1.5}),
    "lag_weighted_ppo": Case(lagged.lag_weighted_ppo, lambda x, s: np.exp(-s.lag / 4.0)
                             * ppo(x, s), {"tau": 4.0}),
    "icepop": Case(off_policy.icepop, icepop, {"low": 0.7, "high": 1.4}, on_policy=TOKEN),
    "m2po": Case(off_policy.m2po, m2po, on_policy=TOKEN),
    "opsm": Case(off_policy.opsm, opsm, on_policy=TOKEN),
    "dppo_tv": Case(trust_region.dppo_tv, lambda x, s: dppo(x, s, lambda p, b: abs(p - b)),
                    REGION, on_policy=TOKEN),
    "dppo_kl": Case(trust_region.dppo_kl, lambda x, s: dppo(x, s, binary_kl), REGION,
                    on_policy=TOKEN),
    "kimi_opmd": Case(mirror.kimi_opmd, kimi, {"tau": 0.3}, SEQUENCE, on_policy=ROW,
                      advantages="sequence_advantages"),
    "opmd": Case(mirror.opmd, lambda x, s: -s.advantages * x.logp / 1.5, {"tau": 0.5}),
    "opmd_pairwise": Case(mirror.opmd_pairwise, pairwise, {"tau": 0.5}, on_policy=ROW,
                          advantages="centred"),
    "oapl": Case(mirror.oapl, lambda x, s: spread_rows(
        (0.5 * log_ratio(x, s) - s.advantages) ** 2, x.logp), {"beta": 0.5}, SEQUENCE),
    "pacs": Case(mirror.pacs, lambda x, s: pacs(x, s, True), {"beta": 0.8}, {"rewards": "labels"}),
    "pacs, unweighted": Case(mirror.pacs, lambda x, s: pacs(x, s, False),
                             {"beta": 0.8, "balanced": False}, {"rewards": "labels"}),
    "distributional_pg": Case(mirror.distributional_pg, distributional,
                              {"beta": 0.7, "log_z": 0.2}),
    "generalised_ntp": Case(supervised.generalised_ntp, lambda x, s: shaped(x, s, -0.4),
                            {"beta": -0.4}),
    "entropy_sft": Case(supervised.entropy_sft, lambda x, s: entropy_sft(x, s, s.mask),
                        {"entropy_coef": 0.7, "token_share": 0.4}),
    "tea": Case(surrogates.tea, lambda x, s: tea(x, s, s.mask & ~s.expert[:, None]),
                {"alpha": 2.0, "bound": 0.9}, live=("entropy",)),
    "expert_sft": Case(experts.expert_sft, lambda x, s: of_experts(s, -x.logp)),
    "expert_sft, precise": Case(experts.expert_sft, lambda x, s: of_experts(s, shaped(x, s, -0.4)),
                                {"beta": -0.4}),
    "annealed_expert_sft": Case(experts.annealed_expert_sft, lambda x, s: of_experts(s, -x.logp),
                                {"step": 25}),
    "expert_entropy_sft": Case(
        experts.expert_entropy_sft, lambda x, s: of_experts(
            s, entropy_sft(x, s, s.mask & s.expert[:, None])),
        {"entropy_coef": 0.7, "token_share": 0.4}),
    "verified_dpo": Case(direct.verified_dpo, verified, {"threshold": 0.2, "beta": 0.6}),
    "online_dpo": Case(direct.online_dpo, lambda x, s: best_and_worst(x, Arrays(**(
        vars(s) | {"mask": s.mask & ~s.first.astype(bool)[:, None]}))),
        {"beta": 0.6}, {"expert": "first"}),
    **{f"pangu_agent, step {step}": Case(
        supervised.pangu_agent, lambda x, s, step=step: np.where(
            s.rewards[:, None] >= 0.2, -x.logp, 0.0) if step == 29 else ppo(x, s),
        {"step": step, "cloning_steps": 30, "threshold": 0.2})
       for step in (29, 30)},
    "gepo": Case(equivalence.gepo, gepo, {"beta": 0.6, "equality": 0.8, "threshold": 0.2}),
    "oorl": Case(equivalence.oorl, lambda x, s: ppo(x, s) + 0.5 * gepo(x, s), {
        "beta": 0.6, "equality": 0.8, "threshold": 0.2, "weight": 0.5}),
    "sft": Case(supervised.sft, lambda x, s: -s.weights * x.logp),
    "raft": Case(supervised.raft, raft),
    "expert_iteration": Case(supervised.expert_iteration, lambda x, s: np.where(
        s.rewards[:, None] >= 0.5, -x.logp, 0.0)),
    "chord": Case(mixed.chord, lambda x, s: chord(x, s, False), {"mu": 0.3}),
    "chord, phi": Case(mixed.chord, lambda x, s: chord(x, s, True), {"mu": 0.3, "phi": True}),
    "chord_phi": Case(mixed.chord_phi, lambda x, s: -np.exp(s.logp) * (1 - np.exp(s.logp))
                      * x.logp),
    "chord_annealed": Case(mixed.chord_annealed, lambda x, s: chord(x, s, False), {
        "step": 40, "peak": 0.5, "valley": 0.1, "warmup_steps": 10, "decay_steps": 60}),
    **{f"sasr, {name}": Case(mixed.sasr, lambda x, s, key=key: sasr(x, s, key, False), {
        "step": 20, "warm_gradient": 0.4, "gamma": 0.7, "key": key})
       for name, key in (("imitating", LOW), ("exploring", HIGH))},
    "sasr, imitating": Case(mixed.sasr, lambda x, s: sasr(x, s, HIGH, True),
                                  {"step": 99, "key": HIGH, "imitate": np.ones(6, bool)}),
    "sasr, warming up": Case(mixed.sasr, lambda x, s: sasr(x, s, HIGH, True),
                             {"step": 19, "key": HIGH}),
    "dph": Case(mixed.dph, dph, {"step": 30, "presample_steps": 10, "coefficient": 0.3}),
    "grao": Case(mixed.grao, grao, {"imitation": 0.6, "alignment": 0.3}, SEQUENCE),
    "remix": Case(off_policy.remix, remix, {"kl_coef": 0.3, "convex": 0.25}),
    "rl_plus": Case(mixed.rl_plus, lambda x, s: rl_plus(x, s, 0.02, 2.0),
                    {"uniform": 0.02, "gamma": 2.0}),
    "rl_plus, as released": Case(mixed.rl_plus, lambda x, s: rl_plus(x, s, 1.0, 0.5)),
}  # fmt: skip
