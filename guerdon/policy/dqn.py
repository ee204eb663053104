"""Deep Q-learning (https://doi.org/10.1038/nature14236) with its usual extensions."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces
from pydantic import Field
from torch import Tensor

from guerdon import ops
from guerdon.config.schema import Section
from guerdon.config.validation import ReadIf
from guerdon.data.batch import Batch, from_leaves
from guerdon.nn import ModelConfig, QNetwork
from guerdon.nn.optimizer import Optimizer
from guerdon.nn.target import make_target, update_target
from guerdon.policy.advantages import with_returns
from guerdon.policy.base import Metrics, register_policy
from guerdon.policy.prioritized import PrioritizedConfig, PrioritizedPolicy


class EpsilonConfig(Section):
    """Probability of a random action while collecting."""

    start: float = Field(default=1.0, ge=0, le=1)
    """Initial value; usually 1."""
    end: float = Field(default=0.05, ge=0, le=1)
    """Final value; usually 0.01 to 0.1."""
    decay: int = Field(default=10_000, ge=1)
    """Environment steps until the final value; usually a tenth of the run."""
    type: str = Field(default="linear", pattern="^(linear|exp)$")
    """``linear``, or ``exp`` with the decay as time constant."""


class DQNConfig(PrioritizedConfig):
    """Options of `dqn`."""

    learning_rate: float = Field(default=5e-4, gt=0)
    """Learning rate of Adam; usually 1e-4 for images, up to 1e-3 for small vectors."""
    max_grad_norm: float | None = Field(default=10.0, gt=0)
    """Maximum norm for gradient clipping; usually 0.5 to 10."""
    model: ModelConfig = ModelConfig(activation="relu", orthogonal=False)
    """Network; ``model.dueling`` splits it into value and advantages
    (https://arxiv.org/abs/1511.06581)."""
    double: bool = True
    """Whether the online network selects the next action and the target network evaluates it
    (https://arxiv.org/abs/1509.06461)."""
    soft: bool = False
    """Soft Q-learning (https://arxiv.org/abs/1702.08165): the entropy of actions is rewarded, and
    they are sampled from softmax(Q / temperature) instead of epsilon-greedily; as sqil assumes."""
    temperature: float = Field(default=0.1, gt=0)
    """Entropy coefficient, if soft; usually 0.01 to 1, in proportion to the reward."""
    n_step: int = Field(default=1, ge=1)
    """Number of rewards in a target before bootstrapping; usually 1 to 5."""
    target_update_every: int = Field(default=250, ge=1)
    """Updates between copies to the target network; usually 10 for small problems, thousands for
    Atari."""
    tau: float | None = Field(default=None, gt=0, le=1)
    """Soft update coefficient of the target network, instead of periodic copies; usually 0.001 to
    0.05."""
    huber: bool = True
    """Whether to use the Huber loss instead of the squared error. It limits outliers, but if values
    are much larger than 1, rare terminal transitions are outliers, too: then scale the reward, or
    set this to false."""
    epsilon: EpsilonConfig = EpsilonConfig()
    """Epsilon-greedy exploration."""
    read_if: ClassVar[ReadIf] = (
        ("temperature", "soft", True),
        ("double", "soft", False),
        ("epsilon", "soft", False),
        ("alpha", "prioritized", True),
        ("beta", "prioritized", True),
        ("target_update_every", "tau", None),
        ("model.share_encoder", "model.type", True),  # a network of the user may read it
    )


@register_policy("dqn")
class DQN(PrioritizedPolicy):
    """Deep Q-learning: double, dueling, soft, n-step and prioritized as options."""

    Config = DQNConfig
    defaults: ClassVar[dict[str, dict[str, Any]]] = {
        "collect": {"n_step": 8, "warmup_steps": 1_000, "buffer_size": 100_000},
        "learn": {"batch_size": 64, "updates_per_collect": 8},
    }
    target_name = "{n_step}-step TD"
    splits = True

    def build(self) -> None:
        """Make the network, its target and the optimizer."""
        if not isinstance(self.action_space, spaces.Discrete):
            raise ValueError(f"dqn supports Discrete action spaces, not {self.action_space}")
        super().build()
        config = self.config
        self.start = int(self.action_space.start)
        self.segment_length = config.n_step
        self.model = self.create_model(QNetwork)
        self.target = make_target(self.model)
        self.optimizers["model"] = Optimizer(
            self.model.parameters(), config.learning_rate, max_grad_norm=config.max_grad_norm
        )
        schedule = config.epsilon
        self._schedule = ops.epsilon_greedy(
            schedule.start, schedule.end, schedule.decay, schedule.type
        )
        self.epsilon = schedule.start

    def forward(self, batch: Batch, state: Any = None) -> Batch:  # noqa: ARG002 - not recurrent
        """Choose the best actions, epsilon-greedily or softly while collecting."""
        soft = self.config.soft
        if not self.explores or (self.epsilon == 0 and not soft):
            return self.best_output(batch.obs)
        q_value = self.model(self.observation(batch.obs))["logit"]
        if soft:
            act = ops.categorical_sample(q_value / self.config.temperature, self.generator)
        else:
            act = ops.epsilon_greedy_sample(q_value, self.epsilon, self.generator)
        numbers = act.numpy(force=True)
        return from_leaves({"act": numbers + self.start if self.start else numbers})

    def best_action(self, obs: Any) -> Tensor:
        """See `Policy`."""
        return ops.categorical_mode(self.model(self.observation(obs))["logit"]) + self.start

    def advance(self, env_steps: int, progress: float) -> None:
        """Update epsilon and the exponent of importance weights."""
        super().advance(env_steps, progress)
        self.epsilon = self._schedule(env_steps)

    @torch.no_grad()
    def process_fn(self, batch: Batch, buffer: Any, indices: np.ndarray) -> Batch:  # noqa: ARG002
        """Add ``target``: the n-step return, bootstrapped with the target network."""
        rows = with_returns(self, batch)
        if self.start:
            rows.act = rows.act - self.start
        q_next = self.target(rows.obs_next)["logit"]
        if self.config.soft:
            value_next = ops.soft_value(q_next, self.config.temperature)
        elif self.config.double:
            value_next = ops.double_q_value(q_next, self.model(rows.obs_next)["logit"])
        else:
            value_next = q_next.amax(-1)
        rows.target = torch.addcmul(rows.returns, rows.discount, value_next)
        return rows

    def learn(self, batch: Batch, **_: Any) -> Metrics:
        """Take one optimizer step, and update the target network."""
        config, rows = self.config, self.ranks.mine(batch)
        value = ops.select_action(self.model(rows.obs)["logit"], rows.act)
        if config.huber:
            loss = ops.huber_loss(value, rows.target, weight=rows.get("weight"))
        else:
            loss = ops.squared_loss(value - rows.target, weight=rows.get("weight"))
        self.optimizers["model"].step(loss)
        self.update_normalizer(self.model, batch.obs)
        if config.tau is not None:
            update_target(self.target, self.model, config.tau)
        elif (self.updates + 1) % config.target_update_every == 0:
            update_target(self.target, self.model)
        if config.prioritized:
            error = value.detach() - rows.target
            batch.priority = self.ranks.gathered(error, len(batch.target)).abs()
        return {
            "train/loss": self.ranks.average(loss.detach()),
            **({} if config.soft else {"train/epsilon": self.epsilon}),
            "train/learning_rate": self.optimizers["model"].learning_rate,
        }

    def training_state(self) -> dict[str, Any]:
        """See `Policy`; with the values of the schedules."""
        return super().training_state() | {"epsilon": self.epsilon}

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        """Load the result of `training_state`."""
        super().load_training_state(state)
        self.epsilon = state["epsilon"]
