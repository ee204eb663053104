"""What `a2c`, `impala` and `ppo` share: acting with the distributions of an actor-critic."""

from typing import Any, ClassVar

from torch import Tensor

from guerdon.data.batch import Batch, from_leaves
from guerdon.data.leaves import to_numpy
from guerdon.policy.actions import Actions, Output
from guerdon.policy.advantages import branch
from guerdon.policy.base import Policy


class ActorCriticPolicy(Policy):
    """Samples from ``actions``, with the outputs of the actor of ``model``."""

    on_policy = True
    has_density = True
    target_name = "GAE"
    stores_output: ClassVar[bool] = False
    """Whether the outputs of the actor are stored with the actions."""
    actions: Actions
    model: Any

    def actor_output(self, obs: Any) -> Output:
        """Return the parameters of the action distributions at observations."""
        output: Output = branch(self.model, "actor")(self.observation(obs))
        return output

    def forward(self, batch: Batch, state: Any = None) -> Batch:  # noqa: ARG002 - not recurrent
        """Sample actions while collecting; choose the most likely ones while testing."""
        if not self.explores:
            return self.best_output(batch.obs)
        return self.sample(self.actor_output(batch.obs))

    def sample(self, output: Output) -> Batch:
        """Sample actions, and return them with the data to store."""
        sampled = self.actions.sample(output, self.generator)
        if not self.stores_output:
            return sampled
        stored = {name: to_numpy(output[name]) for name in self.actions.outputs}
        if "policy" in sampled:
            stored |= sampled.policy.to_dict()
        return from_leaves({"act": sampled.act, "policy": from_leaves(stored)})

    def stored_output(self, batch: Batch) -> Output:
        """Return the stored outputs of the actor; none for random actions, or without a policy."""
        names = self.actions.outputs
        stored = "policy" in batch and all(name in batch.policy for name in names)
        return {name: batch.policy[name] for name in names} if stored else {}

    def best_action(self, obs: Any) -> Tensor:
        """See `Policy`."""
        return self.actions.mode(self.actor_output(obs))

    def log_prob(self, obs: Any, act: Tensor) -> Tensor:
        """See `Policy`."""
        return self.actions.log_prob(self.actor_output(obs), act)
