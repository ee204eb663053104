"""nerveX's environment managers and learner."""

from guerdon.compat.nervex.worker.actor.env_manager import (
    BaseEnvManager,
    SubprocessEnvManager,
    SyncSubprocessEnvManager,
)
from guerdon.compat.nervex.worker.learner import BaseLearner, LearnerHook, register_learner_hook

__all__ = [
    "BaseEnvManager",
    "BaseLearner",
    "LearnerHook",
    "SubprocessEnvManager",
    "SyncSubprocessEnvManager",
    "register_learner_hook",
]
