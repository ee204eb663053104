"""Adversarial imitation: a discriminator tells demonstrations from the policy's own transitions.

https://arxiv.org/abs/1606.03476 (GAIL), https://arxiv.org/abs/1710.11248 (AIRL),
https://arxiv.org/abs/1911.02256 (FAIRL), https://arxiv.org/abs/1809.02925 (absorbing states).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm

from guerdon import ops
from guerdon.nn.encoders import MLP
from guerdon.nn.init import linear
from guerdon.nn.optimizer import Optimizer
from guerdon.reward.base import Metrics, Setting, register_reward_model
from guerdon.reward.inputs import TransitionInput
from guerdon.reward.trained import ImitationConfig, ImitationReward

if TYPE_CHECKING:
    from collections.abc import Callable

    from guerdon.data.batch import Batch


class AdversarialConfig(ImitationConfig):
    """Options of `gail`, `airl` and `fairl`."""

    inputs: list[Literal["obs", "act", "obs_next"]] = Field(default=["obs", "act"], min_length=1)
    """What the discriminator reads of a transition; without ``act`` it imitates states alone."""
    gradient_penalty: float = Field(default=1.0, ge=0)
    """Weight of a penalty for slopes other than 1 between demonstrations and the policy's
    transitions, which keeps what was learned from being lost again; 0 to 10.
    (https://arxiv.org/abs/1704.00028)"""
    spectral_norm: bool = False
    """Whether every layer is scaled to a slope of 1 at most."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled, as in AdamW; 0.01 to 10."""
    entropy_bonus: float = Field(default=0.0, ge=0)
    """Weight of the entropy of the discriminator's verdicts, which keeps it unsure; up to 0.01."""
    absorbing: bool = False
    """Whether what comes after the end of an episode is judged, too: for episodes whose length
    says how good they were, so that neither living nor ending is a reward by itself."""


class Discriminator(nn.Module):
    """How surely a transition is an expert's: a logit.

    Args:
        setting: Knows the spaces.
        config: Its options.
    """

    def __init__(self, setting: Setting, config: AdversarialConfig) -> None:
        super().__init__()
        self.input = TransitionInput(setting, config.inputs)
        size = self.input.size + config.absorbing  # whether the state is the absorbing one
        body = MLP(size, config.hidden)
        self.layers = nn.Sequential(body, linear(body.size, 1, 1.0))
        if config.spectral_norm:
            for layer in self.layers.modules():
                if isinstance(layer, nn.Linear):
                    spectral_norm(layer)
        self.absorbing = config.absorbing

    def forward(self, data: Any) -> Tensor:
        """Logits [...] of transitions."""
        return self.logit(self.features(data))

    def features(self, data: Any) -> Tensor:
        """What the layers read of transitions [..., size]."""
        features: Tensor = self.input(data)
        return functional.pad(features, (0, 1)) if self.absorbing else features

    def absorbed(self) -> Tensor:
        """What the layers read of the absorbing state [size]."""
        weight = next(self.layers.parameters())
        features = weight.new_zeros(self.input.size + 1)
        features[-1] = 1.0
        return features

    def logit(self, features: Tensor) -> Tensor:
        """Logits [...] of what `features` gave."""
        logit: Tensor = self.layers(features)
        return logit.squeeze(-1)

    def learn(
        self, expert: Tensor, policy: Tensor, weight: Tensor | None = None, offset: Any = 0.0
    ) -> tuple[Tensor, Tensor]:
        """The loss of telling apart features of both kinds, and the logits.

        Args:
            expert: Features of demonstrations [N, size].
            policy: Features of what the policy did [M, size].
            weight: How much each row of both counts [N + M]; equally by default.
            offset: Added to the logits.
        """
        logit = self.logit(torch.cat([expert, policy])) + offset
        label = torch.zeros_like(logit)
        label[: len(expert)] = 1.0
        return functional.binary_cross_entropy_with_logits(logit, label, weight), logit


class Adversarial(ImitationReward):
    """A discriminator whose logits become rewards, in one of several ways."""

    Config = AdversarialConfig
    network: Discriminator
    _after: float  # the steps after an end, discounted

    def __init__(self, config: Any, device: str = "cpu", tb_logger: Any = None) -> None:
        super().__init__(config, device, tb_logger)
        self.absorbing = self.config.absorbing

    def reward(self, logit: Tensor) -> Tensor:
        """What a logit is worth."""
        raise NotImplementedError

    def build(self, setting: Setting) -> None:
        """Makes the discriminator."""
        config = self.config
        self.fields = tuple(dict.fromkeys(("obs", "act", *config.inputs)))
        if config.absorbing:
            if setting.gamma == 1:
                raise ValueError(
                    "with 'absorbing' the time after an end is worth something, and without "
                    "discount that has no end: set 'policy.gamma' below 1"
                )
            self._after = setting.gamma / (1 - setting.gamma)
            self.fields = (*self.fields, "terminated")
        self.network = Discriminator(setting, config).to(self.device)
        self.optimizers["network"] = Optimizer(
            self.network.parameters(),
            config.learning_rate,
            weight_decay=config.weight_decay,
            alone=True,
        )

    def take_experts(self, rows: Batch) -> None:  # noqa: ARG002 - it has them as tensors
        """Normalises with the experts' statistics: they stay, whatever the policy does."""
        self.network.input.settle(self.expert)

    @torch.no_grad()
    def score(self, data: Batch) -> Tensor:
        """The reward of logits; at an end, with all that the absorbing state will bring."""
        self.prepare(data)
        rows = self.tensors(data)
        rew = self.reward(self.network(rows))
        if self.config.absorbing:
            forever = self.reward(self.network.logit(self.network.absorbed()))
            rew = rew + rows["terminated"] * forever * self._after
        return rew

    def step(self) -> Metrics:
        """One step of telling demonstrations from the policy's transitions."""
        config, network = self.config, self.network
        drawn = self.sample_expert(config.batch_size), self.sample(config.batch_size)
        expert, policy = (network.features(rows) for rows in drawn)
        weight = None
        if config.absorbing:
            absorbed = network.absorbed()[None]
            expert, policy = torch.cat([expert, absorbed]), torch.cat([policy, absorbed])
            weight = self._weights()
        loss, logit = network.learn(expert, policy, weight, self.offset(drawn))
        if config.entropy_bonus:
            loss = loss - config.entropy_bonus * ops.bernoulli_entropy(logit).mean()
        if config.gradient_penalty:
            loss = loss + config.gradient_penalty * self._penalty(expert, policy)
        self.optimizers["network"].step(loss)
        verdicts, number = logit.detach(), config.batch_size
        return {
            "loss": loss.detach(),
            "expert_accuracy": (verdicts[:number] > 0).float().mean(),
            "policy_accuracy": (verdicts[len(expert) :][:number] <= 0).float().mean(),
        }

    def offset(self, drawn: tuple[dict[str, Any], ...]) -> Any:  # noqa: ARG002 - for AIRL
        """What is added to the logits of the expert's and the policy's rows while learning."""
        return 0.0

    def _weights(self) -> Tensor:
        """How much rows count if the last of each kind is the absorbing state.

        That one stands for the time after all the ends there are, discounted as the policy does.
        """
        ends = (
            self.expert["terminated"].float().mean(),
            torch.as_tensor(self.memory.rows().terminated.mean(), dtype=torch.float32),
        )
        weights = []
        for share in ends:
            weight = torch.ones(self.config.batch_size + 1, device=self.device)
            weight[-1] = share.to(self.device) * self.config.batch_size * self._after
            weights.append(weight / weight.mean())
        return torch.cat(weights)

    def _penalty(self, expert: Tensor, policy: Tensor) -> Tensor:
        number = min(len(expert), len(policy))
        share = torch.from_numpy(self.generator.random((number, 1), "float32")).to(expert.device)
        between = torch.lerp(policy[:number], expert[:number], share).detach().requires_grad_()
        (slope,) = torch.autograd.grad(
            self.network.logit(between).sum(), between, create_graph=True
        )
        penalty: Tensor = (slope.norm(dim=-1) - 1).square().mean()
        return penalty


_FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "softplus": ops.gail_reward,
    "log_d": ops.log_d_reward,
    "balanced": ops.balanced_reward,
}


class GAILConfig(AdversarialConfig):
    """Options of `gail`."""

    form: Literal["softplus", "log_d", "balanced"] = "softplus"
    """What a verdict is worth: ``softplus`` (-log(1 - D)) is never negative and rewards living as
    such, ``log_d`` is never positive and rewards ending as such, ``balanced`` is their mean."""


@register_reward_model("gail")
class GAIL(Adversarial):
    """Generative adversarial imitation: the surer it looks like an expert, the better."""

    Config = GAILConfig

    def reward(self, logit: Tensor) -> Tensor:
        """By the form that the config names."""
        return _FORMS[self.config.form](logit)


class AIRLConfig(AdversarialConfig):
    """Options of `airl`."""

    log_prob: bool = True
    """Whether the discriminator is told how likely the policy was to act so, as in the paper (of
    whose two networks this has the one without shaping); the network then is the reward alone.
    It learns from what is new alone then, off-policy too. Switched off, any policy will do."""


@register_reward_model("airl")
class AIRL(Adversarial):
    """Adversarial inverse reinforcement learning: rewards of either sign.

    The discriminator's logit is f - log(pi), and the reward is f alone. The paper pays all of the
    logit, which is the same and a bonus for entropy: the policy's own options can give that.
    """

    Config = AIRLConfig

    def __init__(self, config: Any, device: str = "cpu", tb_logger: Any = None) -> None:
        super().__init__(config, device, tb_logger)
        self.needs_log_prob = self.config.log_prob

    @property
    def forgets(self) -> bool:
        """Of a policy as it was, nobody knows any longer how likely its actions were."""
        return self.config.log_prob or super().forgets

    def reward(self, logit: Tensor) -> Tensor:
        """The logit itself."""
        return ops.airl_reward(logit)

    def offset(self, drawn: tuple[dict[str, Any], ...]) -> Any:
        """Minus the log-probability of the actions."""
        if not self.config.log_prob:
            return 0.0
        assert self.setting is not None
        if self.setting.log_prob is None:
            raise ValueError(
                "airl needs to know how likely the policy's actions are: call setup() with a "
                "Setting that has 'log_prob', or switch the option 'log_prob' off"
            )
        offsets = []
        for rows in drawn:
            with torch.no_grad():
                offsets.append(-self.setting.log_prob(rows["obs"], rows["act"]))
            if self.config.absorbing:  # where there is nothing to be done
                offsets.append(offsets[-1].new_zeros(1))
        return torch.cat(offsets)


class FAIRLConfig(AdversarialConfig):
    """Options of `fairl`."""

    limit: float = Field(default=10.0, gt=0)
    """The largest absolute value of a reward."""


@register_reward_model("fairl")
class FAIRL(Adversarial):
    """Adversarial imitation by the forward divergence: being just like an expert is worth 0."""

    Config = FAIRLConfig

    def reward(self, logit: Tensor) -> Tensor:
        """See `ops.fairl_reward`."""
        return ops.fairl_reward(logit, self.config.limit)
