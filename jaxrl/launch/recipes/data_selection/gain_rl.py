"""GAIN-RL, with angles over one segment: data in an order by the policy's hidden states.

Paper: Wang et al. 2025, "Angles Don't Lie: Unlocking Training-Efficient RL Through the Model's Own
Signals"
Idea: where the hidden states of a prompt's tokens point the same way, gradients are large and the
prompt is learned soon. Rank prompts by that before training, and draw from a Gaussian over ranks
that moves on as the batch is solved.
Formula: signal = mean cosine of hidden states of different tokens;
`centre += clip(speed (tanh(2 (accuracy - 1/2)) + tanh(2 signal of the batch)) / 2, 0, speed)`
Claim: training 2.5 times faster; better with half of the data than GRPO with all.
Reading: the update of the centre is that of the released code, where the speed and the width are
1000 ranks, drawn anew every 256 samples; here they are 40 and 160 of 1024 prompts, every batch. The
batch's signal is of its prompts, after the update.
Source: wangqinsi1/GAINRL@20279caf241990c09d24b30dc2f8f2a0d707ca64 trl_gainrl/gainrl_trainer.py:288
Fidelity: partial: angles over one segment, of prompts alone, the centre moves a batch earlier
"""

from jaxrl.config import CurriculumConfig
from jaxrl.launch.method import Example, Method

METHOD = Method(curriculum=CurriculumConfig("gain", {"width": 160.0, "speed": 40.0}))
EXAMPLE = Example()
"""The quickstart in the order of its angles."""
