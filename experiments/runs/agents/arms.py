"""The arms of methods for agents, see the PLAN.md of their folders."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import games

SIX = '{"task_args.turns": 6}'
TWELVE = '{"task_args.turns": 12}'
REAL = '{"task_args.experience": 0}'
DREAM = '{"task_args.experience": 1200}'
SEARCHED = {"task_args.engine": "tool", "task_args.single": 0.0, "task_args.unknown": True}
QUIET = ("--checkpoint.every", "100000", "--rollout-log.every", "0")
PLAY = ("--rollout.on-device", *QUIET)
STAR = ("--task-args.malformed", "-1.0", "--updates-per-batch", "1", "--objective.aggregation",
        "seq-mean-token-mean")  # fmt: skip

HARD = '{"task_args.difficulty": "hard"}'
SIMPLE = '{"task_args.difficulty": "simple"}'
CRITIC = ("--with", "critic", "--critic.mixing", "1", "--critic.optimizer.learning-rate", "2e-3")
PPO = ("--warm-start.steps", "0", "--rollout.prompts", "16", "--updates-per-batch", "4", *CRITIC)
WARM = ("--warm-start.steps", "40", "--warm-start.batch-size", "64", "--warm-start.learning-rate",
        "2e-3", "--objective.entropy-coef", "0", "--updates-per-batch", "4")  # fmt: skip
IMITATED = ("thor_tirgen_hierarchical_rl", "--steps", "1", "--optimizer.learning-rate", "1e-12",
            "--task-args.failed", "0", *QUIET)  # fmt: skip
SHORT = ("--steps", "16", *QUIET)
THREE = ("retrieval", "--task", "with_compression", "--task-args.name", "retrieval",
         "--task-args.args", '{"hops": 3, "credit": 0.5}', "--task-args.symbols", "--steps", "40",
         "--rollout.turn-tokens", "8", "--rollout.max-new-tokens", "64", "--packing.row-length",
         "96", "--warm-start.steps", "120", "--warm-start.batch-size", "64",
         "--warm-start.learning-rate", "2e-3", *QUIET)  # fmt: skip
SIXTY = ("--steps", "60", *QUIET)
NOTHING = ("--warm-start.steps", "0", "--objective.entropy-coef", "0.05",
           "--optimizer.learning-rate", "2e-3", "--task-args.think", "false",
           "--rollout.turn-tokens", "1")  # fmt: skip
MAZE = ("--task-args.size", "5", "--task-args.walls", "6", "--task-args.turns", "10",
        "--task-args.view", "near", "--task-args.cost", "0.1", "--task-args.think", "false",
        "--rollout.turn-tokens", "1", "--optimizer.learning-rate", "2e-3",
        "--objective.entropy-coef", "0.03")  # fmt: skip
LAGGED = ("--with", "sampler_refresh", "--sampler-refresh.every", "20")
GRADIENT = str(Path(__file__).with_name("karl_gradient.yaml"))
KEYDOOR = str(Path(__file__).with_name("keydoor_groups.yaml"))
RLOO = ("--objective.advantage", "rloo")
GROUPS = ("retrieval", *WARM, "--objective.advantage", "group_advantages",
          "--objective.policy-args.clip_high", "0.28")  # fmt: skip
BALANCED = ("retrieval", *WARM, "--objective.advantage", "group_advantages",
            "--objective.policy", "aepo")  # fmt: skip


def masks(*counts: int) -> tuple[str, ...]:
    """The masks of each stage of `masksearch`, as arguments."""
    stages = ((str(20 * i), json.dumps({"task_args.masks": n})) for i, n in enumerate(counts))
    return tuple(each for step, fields in stages for each in (f"--stages.{step}", fields))


@dataclasses.dataclass(frozen=True)
class Experiment:
    """Arms by name, each the arguments of `jaxrl train`; the first is the method."""

    claim: str
    arms: dict[str, tuple[str, ...]]
    figures: tuple[str, ...]
    """Of the evaluation after the last step, or parts of its episodes; the first decides."""
    folder: str = "agents"
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    also: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    """Further evaluations of the trained policy by name, the task's parameters that differ in each;
    NAME/FIGURE is then a figure."""
    samples: int = 1
    """Episodes of each problem in those; more than one are sampled, and one is greedy."""
    tuned: bool = False
    """Whether the learning rate of each arm's policy is the best of `RATES` on the seeds of
    `DEVELOPMENT`."""


RATES = (0.5, 1.0, 2.0)
"""Factors of an arm's learning rate."""
DEVELOPMENT = (100, 101)


EXPERIMENTS = {
    "retrieval": Experiment(
        folder="retrieval",
        claim="GRPO with search answers more questions than GRPO without",
        arms={
            "search": ("retrieval",),
            "no search": ("retrieval", "--task-args.searches", "0", "--task-args.credit", "0"),
        },
        figures=("correct", "pass@1"),
    ),
    "agentgym_rl_scalinginter_rl": Experiment(
        claim="horizons that grow beat a long one from the start",
        arms={
            "6, 9, 12 turns": ("agentgym_rl_scalinginter_rl", *PLAY),
            "12 turns": ("agentgym_rl_scalinginter_rl", "--stages.0", TWELVE, "--stages.24", TWELVE,
                         "--stages.48", TWELVE, *PLAY),
            "6 turns": ("agentgym_rl_scalinginter_rl", "--stages.24", SIX, "--stages.48", SIX,
                        *PLAY),
        },
        figures=("reward", "door", "unchanged"),
    ),
    "zerosearch": Experiment(
        claim="noise that grows beats noise from the start, at searches without noise",
        arms={
            "growing noise": ("zerosearch",),
            "constant noise": ("retrieval", "--stages.0", '{"task_args.noise": 0.5}'),
            "no noise": ("retrieval",),
        },
        figures=("correct", "pass@1"),
    ),
    "zerosearch_bm25": Experiment(
        claim="noise that grows beats noise from the start and none, when BM25 searches",
        arms={
            "growing noise": ("zerosearch", *QUIET),
            "constant noise": ("retrieval", "--stages.0", '{"task_args.noise": 0.5}', *QUIET),
            "no noise": ("retrieval", *QUIET),
        },
        figures=("BM25/reward", "BM25/pass@1", "pass@1"),
        also={"BM25": {"search": "bm25"}},
    ),
    "deepresearcher": Experiment(
        claim="training with an engine that fails beats training with one that does not",
        arms={
            "failing": ("deepresearcher",),
            "clean": ("deepresearcher", "--stages.0",
                      '{"task_args.failures": 0.0, "task_args.noise": 0.0}'),
            "failing, nothing masked": ("deepresearcher", "--with", "unmasked", *QUIET),
        },
        figures=("correct", "pass@1"),
    ),
    "meow_tea_taro": Experiment(
        claim="PPO with rewards of turns beats PPO with a reward of the episode",
        arms={
            "turns": ("meow_tea_taro", "--warm-start.steps", "0", *PLAY),
            "episode": ("meow_tea_taro", "--warm-start.steps", "0", "--task-args.credit", "0",
                        *PLAY),
            "turns, warm start": ("meow_tea_taro", *PLAY),
        },
        figures=("door", "key"),
    ),
    "meow_tea_taro_share": Experiment(
        claim="of one budget, a quarter for demonstrations beats none, half and all of it",
        arms={
            "a quarter": ("meow_tea_taro", "--warm-start.steps", "16", "--steps", "60", *PLAY),
            "none": ("meow_tea_taro", "--warm-start.steps", "0", "--steps", "80", *PLAY),
            "half": ("meow_tea_taro", "--warm-start.steps", "32", "--steps", "40", *PLAY),
            "all": ("meow_tea_taro", "--warm-start.steps", "64", "--steps", "1",
                    "--optimizer.learning-rate", "1e-12", *PLAY),
        },
        figures=("door", "key"),
    ),
    "meow_tea_taro_estimators": Experiment(
        claim="rewards of turns beat a reward of the episode, with GRPO and with RLOO",
        arms={
            "GRPO, turns": (KEYDOOR, *PLAY),
            "GRPO, episode": (KEYDOOR, "--task-args.credit", "0", *PLAY),
            "RLOO, turns": (KEYDOOR, *RLOO, *PLAY),
            "RLOO, episode": (KEYDOOR, *RLOO, "--task-args.credit", "0", *PLAY),
        },
        figures=("door", "key"),
    ),
    "router_r1": Experiment(
        claim="a price makes the router spend less",
        arms={
            "price": ("router_r1",),
            "no price": ("router_r1", "--task-args.price", "0"),
            "price 0.9": ("router_r1", "--task-args.price", "0.9"),
        },
        figures=("spent", "correct"),
    ),
    "router_r1_unseen": Experiment(
        claim="an expert that training never offered is used as well as one that it did",
        arms={
            "never offered": ("router_r1", "--task-args.unseen", "a3", *QUIET),
            "offered": ("router_r1", *QUIET),
        },
        figures=("unseen/reward", "reward"),
        also={"unseen": {"unseen": "a3"}},
    ),
    "verltool": Experiment(
        claim="tools raise success on sums that are too long for the policy",
        arms={
            "both tools": ("verltool",),
            "lookup alone": ("verltool", "--task-args.tools", "lookup"),
            "no tools": ("verltool", "--task-args.tools", ""),
        },
        figures=("correct", "calls"),
    ),
    "tool_star": Experiment(
        claim="a bonus for several tools, and pairs, raise success over the flat reward",
        arms={
            "bonus and pairs": ("tool_star",),
            "bonus": ("verltool", *STAR, "--task-args.bonus", "0.1"),
            "flat reward": ("verltool", *STAR),
        },
        figures=("correct", "multi_tool", "calls"),
    ),
    "thor_tirgen_hierarchical_rl": Experiment(
        claim="credit for calls that run beats credit for the episode alone; taking back helps",
        arms={
            "episode and calls": ("thor_tirgen_hierarchical_rl",),
            "episode alone": ("thor_tirgen_hierarchical_rl", "--objective.advantage-args.weight",
                              "0.0"),
            "nothing taken back": ("thor_tirgen_hierarchical_rl", "--task-args.again", "0"),
        },
        figures=("correct", "failed"),
    ),
    "thor_rollback": Experiment(
        claim="taking back calls that fail, at the test alone, raises the share of right answers",
        arms={
            "taken back": (*IMITATED, "--task-args.again", "2"),
            "not taken back": (*IMITATED, "--task-args.again", "0"),
        },
        figures=("sampled/pass@1", "sampled/completion_length", "pass@1"),
        also={"sampled": {}},
        samples=4,
    ),
    "ai_searchplanner": Experiment(
        claim="a planner for a frozen model needs fewer searches than a policy that answers itself",
        arms={
            "alpha 0.1": ("ai_searchplanner",),
            "alpha 0": ("ai_searchplanner", "--task-args.cost", "0.0"),
            "alpha 0.5": ("ai_searchplanner", "--task-args.cost", "0.5"),
            "end to end": ("ai_searchplanner", "--task-args.frozen", "false",
                           "--rollout.turn-tokens", "2"),
        },
        figures=("correct", "searches"),
    ),
    "masksearch": Experiment(
        claim="masked facts first, with more and more masks, beat questions alone",
        arms={
            "1, 2, 3 masks": ("masksearch",),
            "3, 1, 2 masks": ("masksearch", *masks(3, 1, 2)),
            "questions alone": ("masksearch", *masks(0, 0, 0)),
        },
        figures=("correct", "pass@1"),
    ),
    "reflexicoder": Experiment(
        claim="a reward of the path puts more right and breaks less than a reward of the end",
        arms={"path": ("reflexicoder",), "end": ("reflexicoder", "--task-args.shaped", "false")},
        figures=("fixed", "broken", "correct", "first", "judged", "reflections"),
    ),
    "rlver": Experiment(
        claim="training with users of normal difficulty beats training with hard ones",
        arms={
            "GRPO": ("rlver", *QUIET),
            "PPO": ("rlver", *CRITIC, *QUIET),
            "GRPO, hard": ("rlver", "--stages.0", HARD, *QUIET),
            "GRPO, simple": ("rlver", "--stages.0", SIMPLE, *QUIET),
            "PPO, hard": ("rlver", "--stages.0", HARD, *CRITIC, *QUIET),
            "PPO, simple": ("rlver", "--stages.0", SIMPLE, *CRITIC, *QUIET),
        },
        figures=("emotion", "content"),
    ),
    "promed": Experiment(
        claim="Shapley-weighted questions beat a reward for the answer, and for any new fact",
        arms={
            "Shapley": ("promed", *QUIET),
            "answer alone": ("promed", "--objective.advantage-args.process", "0",
                             "--objective.advantage-args.outcome", "0", *QUIET),
            "uniform": ("promed", "--task-args.importance", "uniform", *QUIET),
        },
        figures=("correct", "asked"),
    ),
    "cues": Experiment(
        claim="goals from curious exploration beat goals from a random walk",
        arms={
            "curious": ("cues", *QUIET),
            "random": ("cues", "--task-args.explorer", "random", *QUIET),
            "every goal": ("cues", "--task-args.explorer", "none", *QUIET),
        },
        figures=("made", "used"),
    ),
    "ssrl": Experiment(
        claim="self-search carries over to a real tool; a mask on what was found helps",
        arms={
            "masked": ("ssrl", *QUIET),
            "not masked": ("ssrl", "--objective.advantage-args.information", "0", *QUIET),
            "tool in training": ("ssrl", "--stages.0", json.dumps(SEARCHED),
                                 "--objective.advantage-args.information", "0", *QUIET),
        },
        figures=("tool/pass@1", "pass@1", "correct", "true"),
        also={"tool": {"engine": "tool"}},
    ),
    "ur2": Experiment(
        claim="search for hard questions alone is as good as for all, with half of the calls",
        arms={
            "hard alone": ("ur2", *QUIET),
            "always": ("ur2", "--task-args.engine", "tool", *QUIET),
            "never": ("ur2", "--task-args.engine", "self", *QUIET),
        },
        figures=("correct", "calls"),
    ),
    "pangu_agent": Experiment(
        claim="a thought before each action beats acting at once; cloning, then PPO, beats either",
        arms={
            "think, then act": ("pangu_agent", *PLAY),
            "act": ("pangu_agent", "--task-args.think", "false", "--rollout.turn-tokens", "1",
                    *PLAY),
            "PPO alone": ("pangu_agent", "--objective.policy-args.cloning-steps", "0", *PLAY),
            "cloning alone": ("pangu_agent", "--objective.policy-args.cloning-steps", "600", *PLAY),
        },
        figures=("door", "reward"),
    ),
    "webagent_r1": Experiment(
        claim="after cloning RL fills in more forms than without; the newest page alone is enough",
        arms={
            "newest page": ("webagent_r1", *QUIET),
            "all pages": ("webagent_r1", "--task-args.compress", "false", *QUIET),
            "no cloning": ("webagent_r1", "--warm-start.steps", "0", *QUIET),
        },
        figures=("reward", "context", "3 turns/reward", "12 turns/reward"),
        also={"3 turns": {"turns": 3}, "12 turns": {"turns": 12}},
    ),
    "gtr": Experiment(
        claim="imitation of corrected thoughts raises success, more so from all steps",
        arms={
            "all steps": ("gtr", *SIXTY),
            "this step": ("gtr", "--corrector.no-aggregate", *SIXTY),
            "RL alone": ("gtr", "--corrector.reinforce", "--objective.policy-args.mu", "0.0",
                         *SIXTY),
        },
        figures=("solved", "thoughts"),
    ),
    "dreamgym": Experiment(
        claim="RL in a model of the world and a tenth of the steps in it match RL in the world",
        arms={
            "model, then world": ("dreamgym", *QUIET),
            "world": ("dreamgym", "--stages.0", REAL, *QUIET),
            "world, a tenth": ("cues", "--task-args.explorer", "none", "--curriculum.choose",
                               "difficulty_targeted", "--curriculum.prompts", "512",
                               "--steps", "10", *QUIET),
            "model alone": ("dreamgym", "--stages.90", DREAM, *QUIET),
        },
        figures=("made", "used"),
    ),
    "dreamgym_parts": Experiment(
        claim="the most similar logged steps help, and so does a choice of uncertain goals",
        arms={
            "DreamGym": ("dreamgym", *QUIET),
            "all logged steps": ("dreamgym", "--task-args.neighbours", "1200", *QUIET),
            "any goals": ("dreamgym", "--curriculum.choose",
                          "jaxrl.data.selection.curriculum:uniform",
                          *QUIET),
        },
        figures=("made", "used"),
    ),
    "gtr_thoughts": Experiment(
        claim="thoughts stay different from each other where corrected ones are imitated",
        arms={
            "all steps": ("gtr", *SIXTY),
            "RL alone": ("gtr", "--corrector.reinforce", "--objective.policy-args.mu", "0.0",
                         *SIXTY),
        },
        figures=("distinct", "solved", "thoughts"),
    ),
    "codev_r1": Experiment(
        claim="adaptive rounds spend fewer tokens for a group that teaches than fixed ones",
        arms={
            "adaptive": ("codev_r1", *QUIET),
            "fixed": ("codev_r1", "--rollout.rounds", "fixed", *QUIET),
        },
        figures=("generated", "correct", "rounds", "groups"),
    ),
    "agnostics": Experiment(
        claim="GRPO lifts a language that is known badly, whichever it is, by the same verifier",
        arms={
            "postfix": ("agnostics", *QUIET),
            "AWK": ("agnostics", "--task-args.languages", "python,bash,awk", *QUIET),
        },
        figures=("pass@1/new", "pass@1/known"),
    ),
    "multi_swe_bench_multi_swe_rl": Experiment(
        claim="with pass-to-pass tests a policy resolves more, and without them it breaks more",
        arms={
            "all tests": ("multi_swe_bench_multi_swe_rl", *QUIET),
            "fail-to-pass alone": ("multi_swe_bench_multi_swe_rl", "--task-args.tests",
                                   "fail_to_pass", *QUIET),
            "all tests, Bash": ("multi_swe_bench_multi_swe_rl", "--task-args.language", "bash",
                                *QUIET),
        },
        figures=("resolved", "breaking", "fixed"),
    ),
    "sandmle": Experiment(
        claim="milestones on micro tasks earn more medals on larger ones than gold alone",
        arms={
            "milestones": ("sandmle", *QUIET),
            "gold alone": ("sandmle", "--task-args.reward", "sparse", *QUIET),
        },
        figures=("medal", "gold"),
    ),
    "lmrl_gym": Experiment(
        claim="values learned from logged games beat imitation, also of successful games alone",
        arms={
            "ILQL": ("lmrl_gym", *QUIET),
            "MC returns": ("lmrl_gym", "--ilql.targets", "returns", *QUIET),
            "filtered BC": ("lmrl_gym", "--ilql.beta", "0", "--objective.policy",
                            "expert_iteration", "--objective.policy-args.threshold", "1", *QUIET),
            "BC": ("lmrl_gym", "--ilql.beta", "0", *QUIET),
            "PPO, own games": ("promed", "--task-args.importance", "uniform", *PPO, *QUIET),
        },
        figures=("correct", "reward", "score"),
    ),
    "karl": Experiment(
        claim="with a sampler renewed every 20 steps, regression beats the policy gradient",
        arms={
            "regression": ("karl", *LAGGED, *QUIET),
            "policy gradient": (GRADIENT, *LAGGED, *QUIET),
            "regression, int8": ("karl", "--sampling.weights", "int8", *LAGGED, *QUIET),
            "policy gradient, int8": (GRADIENT, "--sampling.weights", "int8", *LAGGED, *QUIET),
            "policy gradient, every step": (GRADIENT, *QUIET),
        },
        figures=("pass@1", "pass@1/hops", "pass@1/count", "pass@1/compare"),
    ),
    "aepo": Experiment(
        claim="rows divided by entropies, and gradients past the clip, beat branching and GRPO",
        arms={
            "AEPO": (*BALANCED, "--with", "branching", *SHORT),
            "ARPO": (*GROUPS, "--with", "branching", "--branching.fresh", "0.5",
                     "--branching.penalty", "0", *SHORT),
            "GRPO": (*GROUPS, *SHORT),
            "AEPO, no branches": (*BALANCED, *SHORT),
        },
        figures=("correct", "pass@1"),
    ),
    "karl_compression": Experiment(
        claim="notes in place of its history answer as many questions, in a shorter context",
        arms={
            "notes": (*THREE, "--task-args.characters", "3"),
            "whole history": (*THREE, "--task-args.characters", "100000"),
        },
        figures=("correct", "pass@1", "context", "compressions"),
    ),
    "loop": Experiment(
        claim="ratios by token beat ratios by turn and by trajectory, and one update a batch",
        arms={
            "token": ("loop", *QUIET),
            "turn": ("loop", "--objective.policy", "ppo_turn", *QUIET),
            "trajectory": ("loop", "--objective.policy", "ppo_trajectory", *QUIET),
            "one update": ("loop", "--updates-per-batch", "1", *QUIET),
        },
        figures=("area", "correct", "docs", "failed"),
    ),
    "tig": Experiment(
        claim="GRPO on text is as good as DQN on features after as many moves",
        arms={
            "GRPO, text": ("tig", *NOTHING, *QUIET),
            "GRPO, thoughts and demonstrations": ("tig", *QUIET),
            "DQN, features": games.ARM,
        },
        figures=("reward",),
    ),
    "tig_grid": Experiment(
        claim="GRPO on text, after demonstrations, is as good as DQN after as many moves",
        arms={"GRPO, text": ("tig_grid", *QUIET), "DQN, features": games.ARM},
        figures=("reward",),
    ),
    "lmrl_gym_maze": Experiment(
        claim="values learned from logged walks beat imitation, also of successful walks alone",
        arms={
            "ILQL": ("lmrl_gym_maze", *QUIET),
            "MC returns": ("lmrl_gym_maze", "--ilql.targets", "returns", *QUIET),
            "filtered BC": ("lmrl_gym_maze", "--ilql.beta", "0", "--objective.policy",
                            "expert_iteration", "--objective.policy-args.threshold", "0.5", *QUIET),
            "BC": ("lmrl_gym_maze", "--ilql.beta", "0", *QUIET),
            "PPO, own walks": ("tig_grid", *MAZE, *PPO, *QUIET),
        },
        figures=("score", "reward", "reached"),
    ),
}  # fmt: skip


def again(name: str, *others: str) -> Experiment:
    """The method and other arms of an experiment, all tuned, on seeds that it has not had."""
    first = EXPERIMENTS[name]
    arms = {arm: first.arms[arm] for arm in (next(iter(first.arms)), *others)}
    return dataclasses.replace(first, arms=arms, seeds=tuple(range(5, 17)), tuned=True)


EXPERIMENTS |= {
    f"{name}_again": again(name, *others)
    for name, others in {
        "karl": ("policy gradient",),
        "lmrl_gym": ("filtered BC", "BC"),
        "loop": ("one update",),
        "promed": ("answer alone", "uniform"),
        "sandmle": ("gold alone",),
        "verltool": ("lookup alone", "no tools"),
    }.items()
}
