"""Deep Q-learning: https://doi.org/10.1038/nature14236, and what has been added to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from gymnasium import spaces
from pydantic import BaseModel, ConfigDict, Field

from guerdon import ops
from guerdon.compat.nervex.armor import Armor
from guerdon.data import MixedReplay, PrioritizedReplayBuffer
from guerdon.data.batch import Batch, from_leaves
from guerdon.nn import ModelConfig, QNetwork
from guerdon.nn.optimizer import Optimizer
from guerdon.policy.base import Metrics, Policy, PolicyConfig, register_policy
from guerdon.policy.targets import with_returns

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from guerdon.data import ReplayBuffer, Rollout


class EpsilonConfig(BaseModel):
    """The chance of a random action while collecting."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    start: float = Field(default=1.0, ge=0, le=1)
    """At the first step."""
    end: float = Field(default=0.05, ge=0, le=1)
    """In the end; 0.01 to 0.1."""
    decay: int = Field(default=10_000, ge=1)
    """Steps of the environments until it is there; a tenth of the run is usual."""
    type: str = Field(default="linear", pattern="^(linear|exp)$")
    """``linear``, or ``exp`` with the decay as time constant."""


class DQNConfig(PolicyConfig):
    """Options of `dqn`."""

    learning_rate: float = Field(default=1e-3, gt=0)
    """Step size of Adam; 1e-4 for images, 1e-3 for small vectors."""
    max_grad_norm: float | None = Field(default=10.0, gt=0)
    """Larger gradients are scaled down to this norm."""
    model: ModelConfig = ModelConfig(activation="relu", orthogonal=False)
    """The network; ``model.dueling`` splits it into value and advantages
    (https://arxiv.org/abs/1511.06581)."""
    double: bool = True
    """Whether the network that learns chooses the next action, and the target only values it
    (https://arxiv.org/abs/1509.06461)."""
    n_step: int = Field(default=1, ge=1)
    """Rewards in a target before the next value; 1 to 5."""
    target_update_every: int = Field(default=250, ge=1)
    """Updates between copies to the target network; 10 for small problems, thousands for Atari."""
    tau: float | None = Field(default=None, gt=0, le=1)
    """Instead of such copies: how much of the way the target network goes at each update."""
    huber: bool = True
    """Whether errors above 1 count in proportion and not by their square. That tames outliers, but
    where values are large against 1, the few ends of episodes are outliers too: then scale the
    reward, or switch it off."""
    prioritized: bool = False
    """Whether surprising transitions are read more often (https://arxiv.org/abs/1511.05952)."""
    alpha: float = Field(default=0.6, ge=0, le=1)
    """How much more often, if prioritized: 0 is not at all."""
    beta: float = Field(default=0.4, ge=0, le=1)
    """How much of the bias weights undo at the start, if prioritized; 1 is reached at the end."""
    epsilon: EpsilonConfig = EpsilonConfig()
    """Exploration."""


@register_policy("dqn")
class DQN(Policy):
    """Deep Q-learning: double, dueling, n-step and prioritized as options."""

    Config = DQNConfig
    defaults: ClassVar[dict[str, dict[str, Any]]] = {
        "collect": {"n_step": 8, "warmup_steps": 1_000, "buffer_size": 100_000},
        "learn": {"batch_size": 64, "updates_per_collect": 2},
    }
    target_name = "{n_step}-step TD"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not isinstance(self.action_space, spaces.Discrete):
            raise ValueError(f"dqn acts in Discrete spaces, not in {self.action_space}")
        config = self.config
        self._first = int(self.action_space.start)
        self.segment_length = config.n_step
        self.model = self.create_model(QNetwork)
        self.learner = Armor(self.model)
        if config.tau is None:
            self.learner.add_model("target", "assign", {"freq": config.target_update_every})
        else:
            self.learner.add_model("target", "momentum", {"theta": config.tau})
        self.learner.add_plugin("target", "grad", enable_grad=False)
        self.explorer = Armor(self.model)
        self.explorer.add_plugin("main", "eps_greedy_sample", generator=self.generator)
        self.tester = Armor(self.model)
        self.tester.add_plugin("main", "argmax_sample")
        self.optimizers["model"] = Optimizer(
            self.model.parameters(),
            config.learning_rate,
            max_grad_norm=config.max_grad_norm,
            alone=True,
        )
        schedule = config.epsilon
        self._schedule = ops.epsilon_greedy(
            schedule.start, schedule.end, schedule.decay, schedule.type
        )
        self.epsilon = schedule.start
        self._beta = config.beta

    def make_buffer(
        self, size: int, n_envs: int, seed: int, history: int = 0
    ) -> ReplayBuffer | Rollout:
        """See `Policy`; a prioritized one, if that is wanted."""
        if not self.config.prioritized:
            return super().make_buffer(size, n_envs, seed, history)
        config = self.config
        return PrioritizedReplayBuffer(size, config.alpha, config.beta, n_envs=n_envs, seed=seed)

    def forward(self, batch: Batch, state: Any = None) -> Batch:  # noqa: ARG002 - no memory
        """Takes the best actions; while collecting, now and then random ones."""
        obs = self.observation(batch.obs)
        if self.explores:
            output = self.explorer.forward(obs, eps=self.epsilon)
        else:
            output = self.tester.forward(obs)
        act = output["action"].numpy(force=True)
        return from_leaves({"act": act + self._first if self._first else act})

    def advance(self, env_steps: int, progress: float) -> None:
        """Explores less as time goes by, and undoes more of the bias of priorities."""
        super().advance(env_steps, progress)
        self.epsilon = self._schedule(env_steps)
        self._beta = self.config.beta + (1 - self.config.beta) * min(progress, 1.0)

    def read(
        self, batch_size: int, source: Any, fields: tuple[str, ...]
    ) -> tuple[Batch, np.ndarray]:
        """See `Policy`; with the current exponent of importance weights."""
        if isinstance(source, PrioritizedReplayBuffer | MixedReplay):
            source.set_beta(self._beta)
        return super().read(batch_size, source, fields)

    @torch.no_grad()
    def process_fn(self, batch: Batch, buffer: Any, indices: np.ndarray) -> Batch:  # noqa: ARG002
        """Adds ``target``, what the value of the action should have been."""
        rows = with_returns(self, batch)
        if self._first:
            rows.act = rows.act - self._first
        value = self.learner.target_forward(rows.obs_next)["logit"]
        if self.config.double:
            chosen = self.learner.forward(rows.obs_next)["logit"]
            best = ops.double_q_value(value, chosen)
        else:
            best = value.amax(-1)
        rows.target = torch.addcmul(rows.returns, rows.discount, best)
        return rows

    def learn(self, batch: Batch, **_: Any) -> Metrics:
        """One step towards the targets."""
        value = ops.select_action(self.learner.forward(batch.obs)["logit"], batch.act)
        if self.config.huber:
            loss = ops.huber_loss(value, batch.target, weight=batch.get("weight"))
        else:
            loss = ops.squared_loss(value - batch.target, weight=batch.get("weight"))
        self.optimizers["model"].step(loss)
        self.update_normalizer(self.model, batch.obs)
        self.learner.target_update()
        if self.config.prioritized:
            batch.error = value.detach() - batch.target
        return {
            "train/loss": loss.detach(),
            "train/epsilon": self.epsilon,
            "train/learning_rate": self.optimizers["model"].learning_rate,
        }

    def post_process_fn(self, batch: Batch, buffer: Any, indices: np.ndarray) -> None:
        """New priorities."""
        if "error" in batch and isinstance(buffer, PrioritizedReplayBuffer | MixedReplay):
            buffer.update_weight(indices, batch.error.abs())

    def training_state(self) -> dict[str, Any]:
        """See `Policy`; and how far its schedules have come."""
        return super().training_state() | {"epsilon": self.epsilon, "beta": self._beta}

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        """Goes on where `training_state` was taken."""
        super().load_training_state(state)
        self.epsilon, self._beta = state["epsilon"], state["beta"]
