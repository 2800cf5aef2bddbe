"""The config of a run: frozen dataclasses, every field a flag, saved as JSON beside the run.

`schema` has the dataclasses, and `prompts` those that say what is trained on. `fields` sets fields
by name, and reads, writes and compares configs, and `validate` refuses a config that could only
fail later. `stages` says which config is in force when, and `conflicts` which settings exclude each
other. `jaxrl.config` gives the public names of the first four.
"""

from jaxrl.config.fields import (
    changed,
    check_name,
    extended,
    from_dict,
    load,
    merged,
    replaced,
    settings_of,
    to_dict,
)
from jaxrl.config.prompts import BanditConfig, CurriculumConfig, DataConfig, Domain
from jaxrl.config.schema import (
    Action,
    AsynchronousConfig,
    CheckpointConfig,
    Config,
    EvalConfig,
    FreshModel,
    GuardConfig,
    RolloutConfig,
    RolloutLogConfig,
    SamplingConfig,
    SandboxConfig,
    TrackConfig,
    WarmStartConfig,
)
from jaxrl.config.validate import check

__all__ = [
    "Action",
    "AsynchronousConfig",
    "BanditConfig",
    "CheckpointConfig",
    "Config",
    "CurriculumConfig",
    "DataConfig",
    "Domain",
    "EvalConfig",
    "FreshModel",
    "GuardConfig",
    "RolloutConfig",
    "RolloutLogConfig",
    "SamplingConfig",
    "SandboxConfig",
    "TrackConfig",
    "WarmStartConfig",
    "changed",
    "check",
    "check_name",
    "extended",
    "from_dict",
    "load",
    "merged",
    "replaced",
    "settings_of",
    "to_dict",
]
