"""CuES without its language model: tasks for RL from curious exploration of a world without any.

Paper: Mai et al. 2025, "CuES: A Curiosity-driven and Environment-grounded Synthesis Framework for
Agentic RL"
Idea: an environment comes without tasks. An explorer seeks what it has seen least; what it has
brought about becomes a goal, with the steps that lead there; the steps are played again, and a goal
whose steps fail or that is known already is dropped. Agents are trained on such goals.
Formula: explore by `argmin_a N(s, a)`; a goal is (start, thing made, the steps that it needed); a
goal is kept if its steps reach it from its start, once each
Claim: on AppWorld, BFCL and WebShop, as diverse and executable as tasks made by hand, or more so,
and policies trained on them improve substantially.
Reading: the code gives no formula either: it asks for untried actions, drops goals that share words
with others, and a model judges what was played again. Its explorer, its abstraction and its judge
are language models with a memory. Here the explorer counts, ties go to the tool that has worked
most often, abstraction leaves out the tools that were not needed, and playing again is exact. Not
here: the confirmation of requirements, which guides exploration by concepts, and the rewriting of
queries, which adds hints. The world is `workshop`: what tools need is not said anywhere. GRPO from
nothing; `--task-args.explorer random` explores at random, and `none` has every goal of the world.
Source: modelscope/AgentEvolver@a5a8db8689d6493b028107dcb4c27415441581dc
research/CuES/src/prompts/explorer_random.py:122;
modelscope/AgentEvolver@a5a8db8689d6493b028107dcb4c27415441581dc
research/CuES/src/stages/stage2_task_abstraction.py:192-222;
modelscope/AgentEvolver@a5a8db8689d6493b028107dcb4c27415441581dc
research/CuES/src/stages/stage3_trajectory_generation.py:283
Fidelity: own formula
"""

from jaxrl.launch.method import Example, Method
from jaxrl.training.objective import ObjectiveConfig

METHOD = Method(objective=ObjectiveConfig(entropy_coef=0.03), needs=("environment",))
EXAMPLE = Example(
    {
        "task": "workshop",
        "task_args": {"explorer": "curious", "steps": 400},
        "rollout": {"max_prompt_tokens": 16, "max_new_tokens": 40},
    },
    base="retrieval",
)
"""GRPO on the goals that 400 steps of exploration have found."""
