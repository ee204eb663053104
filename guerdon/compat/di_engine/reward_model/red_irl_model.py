"""RED with the names and default values of DI-engine's reference."""

from typing import Any

from guerdon.compat.di_engine import items
from guerdon.compat.di_engine.reward_model.models import REWARD_MODEL_REGISTRY, CoreRewardModel
from guerdon.reward.inputs import TransitionNetwork

SENet = TransitionNetwork
"""Support estimation network."""


@REWARD_MODEL_REGISTRY.register("red")
class RedRewardModel(CoreRewardModel):
    """Random expert distillation: reward ``exp(-sigma * L(s, a))``; fitted by the first `train`."""

    config: Any = {  # noqa: RUF012 - the documented form
        "type": "red",
        "expert_data_path": "expert_data.pkl",
        "sample_size": 1000,
        "sigma": 5,
        "batch_size": 64,
        "hidden_size": 128,
        "update_per_collect": 100,
        "clear_buffer_per_iters": 1,
    }

    @property
    def online_net(self) -> Any:
        """Network that is fitted to the demonstrations."""
        return self.model.network.predictor

    @property
    def target_net(self) -> Any:
        """Frozen, randomly initialised network that it predicts."""
        return self.model.network.target

    @property
    def expert_data(self) -> list[dict[str, Any]]:
        """Demonstrated transitions of the fit."""
        return items.from_batch(self.model.expert)
