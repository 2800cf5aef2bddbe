"""Contexts for extensions without a run."""

from jaxrl.config import Config
from jaxrl.rollout.policy import Policy
from jaxrl.run import extension
from jaxrl.training.trainable import WHOLE
from tests.jaxrl.batches import MODEL


def context(config=Config(), *, part=WHOLE, model=MODEL):
    """The context of a config whose extensions are none."""
    return extension.context(config, Policy(model, {}, None), part, {})
