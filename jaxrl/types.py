"""The data that flows through a run: requests and completions on the host, pytrees on the mesh.

Shapes: N sequences of T tokens; R packed rows of L tokens with A action tokens each.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from flax import struct

Params = dict[str, Any]
Array = jax.Array | np.ndarray
"""On the mesh, or on the host."""


class Source(enum.IntEnum):
    """Origin of a token of a response. The policy is trained on `POLICY` and `EXPERT`."""

    POLICY = 0
    FORCED = 1
    """Given to start from: a hint, an expert's prefix, an inpainted chunk."""
    OBSERVATION = 2
    """Came from the environment between two turns."""
    EXPERT = 3
    """Trained on, though the policy did not choose it under this prompt: a gold solution, or what
    the policy wrote when it was shown one."""


class Prefix(NamedTuple):
    """The beginning of a response. Arrays are [n], see `Completion`."""

    tokens: np.ndarray
    logp: np.ndarray
    entropy: np.ndarray
    version: np.ndarray
    source: np.ndarray
    support: np.ndarray | None = None


Kind = Literal["json_schema", "regex", "choice", "grammar", "tools"]
"""Of a constraint."""


class OutputConstraint(NamedTuple):
    """What a completion must match as a whole, see `jaxrl.sampling.constraints`."""

    kind: Kind
    text: str
    """The JSON schema, the regular expression, the choices as a JSON list, the Lark grammar, or the
    tools that may be called, as `constraints.tools` writes them."""


@dataclasses.dataclass(frozen=True)
class Request:
    """One sequence to sample."""

    id: int
    """Names the random stream: equal ids give equal draws whatever else is in the batch."""
    draw: int = dataclasses.field(default=0, kw_only=True)
    """Names another random stream of the same id, for another attempt or chunk."""
    prompt: tuple[int, ...]
    max_new_tokens: int
    """Budget of the response, its prefix and observations included."""
    turn_tokens: int = dataclasses.field(default=0, kw_only=True)
    """Budget of each turn of the policy in it; 0: what is left of `max_new_tokens`."""
    world: Any = dataclasses.field(default=None, kw_only=True)
    """State of an environment that is played within the decode loop, a pytree of NumPy arrays, see
    `jaxrl.sampling.worlds`. None: there is none."""
    temperature: float = 1.0
    """0 means greedy."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of most likely tokens whose mass reaches p."""
    min_p: float = 0.0
    """Drop tokens less likely than min_p times the most likely one."""
    repetition_penalty: float = 1.0
    """Above 1, tokens of the prompt and the response so far become less likely."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token, what is added to its logit); -inf forbids the token."""
    stop: tuple[str, ...] = ()
    """The response ends with the first token that completes one of these."""
    constraint: OutputConstraint | None = dataclasses.field(default=None, kw_only=True)
    """What each turn of the policy must match as a whole; it can end where it does. None: any text
    will do."""
    top_logprobs: int = 0
    """Record this many of the most likely tokens at each position."""
    prefix: Prefix | None = None
    """The response starts with this; see `requests.forced` and `requests.resume`."""
    scoring_prompt: tuple[int, ...] | None = None
    """The prompt to train under, where it differs from the one sampled under; see
    `requests.for_training`."""
    adapter: int = dataclasses.field(default=0, kw_only=True)
    """Which of the adapters of the parameters it is sampled with, by its place, see
    `jaxrl.models.lora_stack`; 0: none."""


@dataclasses.dataclass(frozen=True)
class Completion:
    """The result of a request. Arrays are [completion length]."""

    request: Request
    tokens: np.ndarray
    """int32; the stop token, if one was sampled, is the last."""
    logp: np.ndarray
    """float32, nats, under the distribution that was sampled from (greedy: under temperature 1);
    0 where the policy did not choose the token."""
    entropy: np.ndarray
    """float32, nats, of that distribution."""
    version: np.ndarray
    """int32, the policy version each token was sampled with."""
    stopped: bool
    """True if it ended by a stop token or string, False if it was cut off by its length limit."""
    source: np.ndarray | None = None
    """int8, the `Source` of each token; None: all are the policy's."""
    top_ids: np.ndarray | None = None
    """int32 [completion length, top_logprobs], best first; -1 where none were recorded."""
    top_logp: np.ndarray | None = None
    """float32, their log-probabilities."""
    finished: bool = True
    """False if it is still being sampled."""
    turn: np.ndarray | None = None
    """int16, the turn of the episode that each token belongs to, from 1; what is forced or observed
    belongs to the turn that it precedes. None: it is no episode."""
    turn_rewards: tuple[float, ...] = ()
    """Of an episode's turns in order; 0 where the environment gave none."""
    turn_agents: tuple[int, ...] = ()
    """Who took each turn of an episode; empty: agent 0 took all."""
    turn_reads: tuple[int, ...] = ()
    """A digest of the messages that were read just before each turn of an episode, or of all before
    it where there were none; empty: that of their tokens."""
    tool_calls: int = 0
    """Of an episode, malformed ones included."""
    parent: np.ndarray | None = None
    """int32: where in prompt and response the token stands that each token continues, -1 where it
    continues none. None: each continues the one before, so that all are one context."""
    world: Any = None
    """The last state of `Request.world`."""
    support: np.ndarray | None = None
    """uint32 [completion length, W]: the tokens that truncation and a constraint left each draw,
    see `jaxrl.sampling.support`; a row of zeros: all. None: no draw was restricted, or it is not
    recorded."""

    @property
    def actions(self) -> np.ndarray:
        """Bool: the tokens that are trained on."""
        if self.source is None:
            return np.ones(len(self.tokens), bool)
        return (self.source == Source.POLICY) | (self.source == Source.EXPERT)


class Trajectory(struct.PyTreeNode):
    """N scored sequences, prompt first, padded on the right: the one type that losses are fed."""

    tokens: Array
    """[N, T] int32."""
    action_mask: Array
    """[N, T] bool: tokens the policy chose, the EOS it emitted included."""
    behavior_logp: Array
    """[N, T] float32: log-probability under the sampling distribution, 0 where not an action."""
    policy_version: Array
    """[N, T] int32."""
    rewards: Array
    """[N] float32; 0 where not valid."""
    valid: Array
    """[N] bool: False where there is no reward, as where scoring failed, which keeps the sequence
    out of every statistic of rewards and, where `trained` is None, out of the update."""
    group_ids: Array
    """[N] int32 in [0, number of groups): sequences of one prompt share a group."""
    stopped: Array | None = None
    """[N] bool: False where the response was cut off by its budget and had not ended."""
    reward_parts: Array | None = None
    """[N, K] float32: the K named parts of each reward by name; None where there are none."""
    greedy_rewards: Array | None = None
    """[N] float32: the reward of the greedy answer to the same prompt."""
    expert: Array | None = None
    """[N] bool: sequences that the policy did not sample; their `behavior_logp` and version are
    those of the policy before the first update on the batch that they first were in. None: there
    are none."""
    trained: Array | None = None
    """[N] bool: sequences that the update learns from. Valid ones that are not trained on still
    count in the baselines of their groups. None: the same as `valid`."""
    proximal_logp: Array | None = None
    """[N, T] float32: under the policy before the first update on this batch."""
    advantages: Array | None = None
    """[N, T] float32: from a critic; None: computed from the rewards."""
    values: Array | None = None
    """[N, T] float32: V(s_t) of the critic, before its first update on this batch."""
    returns: Array | None = None
    """[N, T] float32: value targets of the critic, the lambda returns of GAE."""
    support: Array | None = None
    """[N, T, W] uint32: the tokens that each action was drawn among, see `Completion.support`. It
    is read when the batch is packed, and stays on the host. None: all tokens, everywhere."""
    extra: dict[str, Array] = struct.field(default_factory=dict)
    """Further arrays by name, [N] or [N, T]; a policy objective receives those that it names."""

    @property
    def learned(self) -> Array:
        """[N] bool: sequences that the update learns from."""
        return self.valid if self.trained is None else self.trained

    def named(self) -> dict[str, Array]:
        """The arrays that are there, those of `extra` included."""
        arrays = {k: v for k, v in vars(self).items() if k != "extra" and v is not None}
        return arrays | self.extra


class Packed(struct.PyTreeNode):
    """Trajectories as model input: rows of prompt trees, with logits at action tokens only."""

    tokens: Array
    """[K, R, L] int32: K micro-batches of R rows."""
    positions: Array
    """[K, R, L] int32, position in the token's own sequence."""
    visible_until: Array
    """[K, R, L] int32, see `jaxrl.models.attention.tree_mask`."""
    predictor: Array
    """[K, R, A] int32: index in the row of the token whose hidden state predicts the action."""
    target: Array
    """[K, R, A] int32: the action."""
    sequence: Array
    """[K, R, A] int32: n of the action at (n, t); -1 where there is none."""
    time: Array
    """[K, R, A] int32: its t."""
    leaf: Array
    """[K, R, A] bool: the last action of a context, or of a chunk."""
    computed: Array
    """[N] bool: the sequences whose actions are among them."""
    micro_batches: Array
    """scalar int32: how many of the K hold data."""
    support: Array | None = None
    """[K, R, A, W] uint32: the tokens that each action was drawn among, see
    `jaxrl.sampling.support`; None: all tokens, everywhere."""
    teacher: Any = None
    """What another model makes of the actions, see `jaxrl.extensions.teacher`; None: nothing."""
    length: int = struct.field(pytree_node=False, default=0)
    """T."""
    cut: bool = struct.field(pytree_node=False, default=False)
    """Whether the actions of one sequence may lie in several rows."""
    levels: int = struct.field(pytree_node=False, default=1)
    """At least those of the deepest tree, see `jaxrl.models.mixers.tree`: 1 where each token
    continues the one just before it or none, 2 where completions share a prompt."""


class TrainState(struct.PyTreeNode):
    """All that a run carries on the mesh from one step to the next."""

    params: Params
    opt_state: Any
    step: jax.Array
    """int32: optimizer updates done, and so the policy version."""
    extra: dict[str, Any] = struct.field(default_factory=dict)
    """State of extensions, by their names."""
    coefficients: dict[str, jax.Array] = struct.field(default_factory=dict)
    """Weights of terms that an extension moves, scalar float32 by name (`kl_coef`,
    `entropy_coef`), in place of the config's."""

    def with_extra(self, **entries: Any) -> TrainState:
        """The state with entries of `extra` set."""
        return self.replace(extra=self.extra | entries)

    def with_coefficients(self, **entries: jax.Array) -> TrainState:
        """The state with entries of `coefficients` set."""
        return self.replace(coefficients=self.coefficients | entries)
