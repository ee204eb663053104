"""RED with the names and default values of DI-engine's reference."""

from typing import Any

from guerdon.compat.di_engine import items
from guerdon.compat.di_engine.reward_model.core_reward_model import CoreRewardModel
from guerdon.compat.nervex.tables import REWARD_DEFAULTS
from guerdon.reward.inputs import TransitionNetwork

SENet = TransitionNetwork
"""Support estimation network."""


class RedRewardModel(CoreRewardModel):
    """Random expert distillation: reward ``exp(-sigma * L(s, a))``; fitted by the first `train`."""

    config: Any = {"type": "red", **REWARD_DEFAULTS["red"]}  # noqa: RUF012 - the documented form

    @property
    def online_net(self) -> Any:
        """Network that is fitted to the demonstrations."""
        return self.model.network.predictor

    @property
    def expert_data(self) -> list[dict[str, Any]]:
        """Demonstrated transitions of the fit."""
        return items.from_batch(self.model.expert)
