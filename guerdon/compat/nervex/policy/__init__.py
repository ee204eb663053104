"""nerveX's policies."""

from guerdon.compat.nervex.policy.base_policy import Policy, create_policy, register_policy
from guerdon.compat.nervex.policy.common_policy import CommonConfig, CommonPolicy

__all__ = ["CommonConfig", "CommonPolicy", "Policy", "create_policy", "register_policy"]
