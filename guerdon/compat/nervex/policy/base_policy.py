"""nerveX's `Policy`, and its registry of policies."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from guerdon import policy as core
from guerdon.compat.layouts import translated
from guerdon.compat.nervex.model import Sizes, observations
from guerdon.compat.nervex.policy.common_policy import CommonPolicy

Policy = CommonPolicy
"""Base class of policies; all methods have the defaults of `CommonPolicy`."""
_CONTINUOUS = (core.DDPG, core.TD3, core.SAC)


def register_policy(name: str, policy: type[core.Policy]) -> None:
    """Register a policy under a name, in place of another of that name, such as guerdon's own."""
    core.POLICIES.register(name, policy, override=True)


def create_policy(cfg: Mapping[str, Any], model: Any = None) -> core.Policy:
    """Make a policy from the section ``policy`` of a nerveX config.

    ``model.obs_dim`` and ``model.action_dim`` give the spaces. `model` replaces the network.
    """
    sizes = {**cfg.get("model", {})}
    values = translated({"policy": cfg})[0]
    kind = core.POLICIES.get(values["policy"]["type"])
    missing = [name for name in ("obs_dim", "action_dim") if name not in sizes]
    if missing:
        raise ValueError(
            f"'policy.model.{missing[0]}' is missing: set it to that of the environment"
        )
    box = issubclass(kind, _CONTINUOUS) or sizes.get("continous") or sizes.get("continuous")
    return core.create_policy(
        values["policy"],
        observations(sizes["obs_dim"]),
        _box(sizes["action_dim"]) if box else spaces.Discrete(sizes["action_dim"]),
        device=values.get("run", {}).get("device", "cpu"),
        model=model,
    )


def _box(action_dim: Sizes) -> spaces.Box:
    shape = (action_dim,) if isinstance(action_dim, int) else tuple(action_dim)
    return spaces.Box(-1.0, 1.0, shape, np.float32)
