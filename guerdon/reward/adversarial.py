"""Adversarial imitation: a discriminator of demonstrations and the policy's transitions.

https://arxiv.org/abs/1606.03476 (GAIL), https://arxiv.org/abs/1710.11248 (AIRL),
https://arxiv.org/abs/1911.02256 (FAIRL), https://arxiv.org/abs/1809.02925 (absorbing states).
"""

from collections.abc import Callable
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm

from guerdon import ops
from guerdon.data.batch import Batch
from guerdon.reward.base import Metrics, Setting, register_reward_model
from guerdon.reward.inputs import TransitionNetwork
from guerdon.reward.trained import (
    ImitationConfig,
    ImitationReward,
    Inputs,
    TrainedConfig,
    TrainedReward,
)


class AdversarialConfig(ImitationConfig, TrainedConfig):
    """Options of `gail`, `airl` and `fairl`."""

    inputs: Inputs = Field(default=["obs", "act"])
    """Inputs of the discriminator; without ``act`` it imitates states only."""
    gradient_penalty: float = Field(default=1.0, ge=0)
    """Weight of the gradient penalty (https://arxiv.org/abs/1704.00028); usually 0 to 10."""
    spectral_norm: bool = False
    """Whether to apply spectral normalisation to every layer."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled weight decay, as in AdamW; 0 for none, else usually 0.01 to 10."""
    entropy_bonus: float = Field(default=0.0, ge=0)
    """Weight of the entropy of the discriminator's output; usually 0 to 0.01."""
    absorbing: bool = False
    """Whether to score absorbing states after the end of an episode, so that neither survival nor
    termination is rewarded by itself."""


class Discriminator(TransitionNetwork):
    """Logit that a transition is demonstrated."""

    def __init__(self, setting: Setting, config: AdversarialConfig) -> None:
        # The extra feature marks the absorbing state.
        super().__init__(setting, config.inputs, config.hidden, extra=int(config.absorbing))
        if config.spectral_norm:
            for layer in self.layers.modules():
                if isinstance(layer, nn.Linear):
                    spectral_norm(layer)
        self.absorbing = config.absorbing

    def features(self, rows: Any) -> Tensor:
        """See `TransitionNetwork`."""
        features = self.input(rows)
        return functional.pad(features, (0, 1)) if self.absorbing else features

    def absorbed(self) -> Tensor:
        """Input of the layers [size] for the absorbing state."""
        features = next(self.layers.parameters()).new_zeros(self.input.size + 1)
        features[-1] = 1.0
        return features


class Adversarial(ImitationReward, TrainedReward):
    """Rewards from the logits of a discriminator."""

    Config = AdversarialConfig
    Network: ClassVar[Callable[..., nn.Module]] = Discriminator
    network: Discriminator

    def __init__(self, config: Any, setting: Setting | None = None) -> None:
        super().__init__(config, setting)
        ends = ["terminated"] if self.config.absorbing else []
        read = dict.fromkeys(("obs", "act", *ends, *self.config.inputs))
        self.fields = self.collects = tuple(read)
        gamma = self.setting.gamma
        if self.config.absorbing and gamma == 1:
            raise ValueError(
                "'absorbing' scores the time after an end, whose return is infinite without "
                "discounting: set 'policy.gamma' below 1"
            )
        self._after = gamma / (1 - gamma) if gamma < 1 else 0.0  # discounted steps after an end

    def logit(self, rows: Batch) -> Tensor:
        """Return the logits [...] that transitions are rewarded by."""
        return self.network(rows)

    def reward(self, logit: Tensor) -> Tensor:
        """Return the reward of a logit."""
        raise NotImplementedError

    @torch.no_grad()
    def score(self, batch: Batch) -> Tensor:
        """Return rewards; at an end, with the value of the absorbing state added."""
        rows = self.tensors(batch)
        rew = self.reward(self.logit(rows))
        if self.config.absorbing:
            forever = self.reward(self.network.output(self.network.absorbed()))
            rew = rew + rows["terminated"] * forever * self._after
        return rew

    def loss(self) -> tuple[Tensor, Metrics]:
        """Return the loss of the discriminator."""
        config, network = self.config, self.network
        drawn = self.sample_expert(config.batch_size), self.sample(config.batch_size)
        expert, policy = (network.features(rows) for rows in drawn)
        weight = None
        if config.absorbing:
            absorbed = network.absorbed()[None]
            expert, policy = torch.cat([expert, absorbed]), torch.cat([policy, absorbed])
            weight = self._weights()
        logit = network.output(torch.cat([expert, policy])) + self.offset(drawn)
        label = torch.zeros_like(logit)
        label[: len(expert)] = 1.0
        loss = functional.binary_cross_entropy_with_logits(logit, label, weight)
        if config.entropy_bonus:
            loss = loss - config.entropy_bonus * ops.bernoulli_entropy(logit).mean()
        if config.gradient_penalty:
            loss = loss + config.gradient_penalty * self._penalty(expert, policy)
        expert_logit, policy_logit = logit.detach().chunk(2)
        number = config.batch_size  # without the absorbing state
        return loss, {
            "expert_accuracy": (expert_logit[:number] > 0).float().mean(),
            "policy_accuracy": (policy_logit[:number] <= 0).float().mean(),
        }

    def offset(self, drawn: tuple[Batch, ...]) -> Any:  # noqa: ARG002 - for AIRL
        """Return what is added to the logits of expert and policy rows while training."""
        return 0.0

    def _weights(self) -> Tensor:
        """Return weights of rows; the last row of each kind is the absorbing state.

        That row represents the discounted time after all ends.
        """
        assert self.demonstrations is not None
        weights = []
        for rate in (self.demonstrations.termination_rate, self.memory.rows().terminated.mean()):
            weight = torch.ones(self.config.batch_size + 1, device=self.device)
            weight[-1] = float(rate) * self.config.batch_size * self._after
            weights.append(weight / weight.mean())
        return torch.cat(weights)

    def _penalty(self, expert: Tensor, policy: Tensor) -> Tensor:
        share = torch.from_numpy(self.generator.random((len(expert), 1), "float32"))
        between = torch.lerp(policy, expert, share.to(self.device)).detach().requires_grad_()
        logit = self.network.output(between)
        (slope,) = torch.autograd.grad(logit.sum(), between, create_graph=True)
        return self.slope_penalty(slope).mean()

    def slope_penalty(self, slope: Tensor) -> Tensor:
        """Return the gradient penalty [N] of gradients [N, n_features]."""
        penalty: Tensor = (slope.norm(dim=-1) - 1).square()
        return penalty


_FORMS = {"softplus": ops.gail_reward, "log_d": ops.log_d_reward, "balanced": ops.balanced_reward}


class GAILConfig(AdversarialConfig):
    """Options of `gail`."""

    form: Literal["softplus", "log_d", "balanced"] = "softplus"
    """Reward of a logit: ``softplus``, -log(1 - D), is never negative and rewards survival;
    ``log_d`` is never positive and rewards termination; ``balanced`` is their mean."""


@register_reward_model("gail")
class GAIL(Adversarial):
    """Generative adversarial imitation learning."""

    Config = GAILConfig

    def reward(self, logit: Tensor) -> Tensor:
        """Return the reward in the form of the config."""
        return _FORMS[self.config.form](logit)


class AIRLConfig(AdversarialConfig):
    """Options of `airl`."""

    inputs: Inputs = Field(default=["obs"])
    """Inputs of the reward g: without ``act``, as in the paper, for transfer to other dynamics;
    with it where next observations do not depend on actions."""
    shaping: bool = True
    """Whether the discriminator has a second network, of a potential that shapes the reward but is
    no part of it: f = g(s) + gamma h(s') - h(s)."""
    log_prob: bool = True
    """Whether to subtract the policy's log-probability from f, in the discriminator and in the
    policy's reward, as in the paper; this requires new data for every update. If false, any policy
    can be used, and its reward is f."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.shaping and self.absorbing:
            raise ValueError(
                "the potential of an absorbing state is unknown: set 'shaping' or 'absorbing' to "
                "false"
            )
        return self


class ShapedDiscriminator(Discriminator):
    """The discriminator f(s, a, s') = g + gamma h(s') - h(s), with a potential h of observations.

    After an end, h is 0. `features` are the inputs of all three terms, since the gradient penalty
    includes h: else h separates demonstrations and the policy's transitions without limit.
    """

    def __init__(self, setting: Setting, config: AIRLConfig) -> None:
        super().__init__(setting, config)
        self.gamma = setting.gamma
        self.potential = (
            TransitionNetwork(setting, ["obs"], config.hidden) if config.shaping else None
        )

    def features(self, rows: Any) -> Tensor:
        """Return inputs of g, of h(s) and of h(s'), and whether the episode continues."""
        features = super().features(rows)
        if self.potential is None:
            return features
        obs, obs_next = (
            self.potential.features({"obs": rows[name]}) for name in ("obs", "obs_next")
        )
        continues = ~rows["terminated"].bool()
        return torch.cat([features, obs, obs_next, continues[..., None]], -1)

    def output(self, features: Tensor) -> Tensor:
        """Return f."""
        if self.potential is None:
            return super().output(features)
        size = self.potential.input.size
        sizes = [self.input.size, size, size, 1]
        features, obs, obs_next, continues = torch.split(features, sizes, -1)
        # Detached: the penalty is of slopes in (s, a, s'), not of the change of f at an end.
        discount: Tensor = self.gamma * continues.detach().squeeze(-1)
        shaping = discount * self.potential.output(obs_next) - self.potential.output(obs)
        return super().output(features) + shaping

    def reward(self, rows: Any) -> Tensor:
        """Return g [...] of transitions."""
        return super().output(super().features(rows))


@register_reward_model("airl")
class AIRL(Adversarial):
    """Adversarial inverse reinforcement learning: rewards of either sign.

    The logit is f - log(pi), where f is the shaped reward, and so is the policy's reward while the
    model is trained. The reward of a trained model, for other runs, is g alone.
    """

    Config = AIRLConfig
    Network = ShapedDiscriminator
    network: ShapedDiscriminator

    def __init__(self, config: Any, setting: Setting | None = None) -> None:
        super().__init__(config, setting)
        if self.config.shaping and not self.setting.frozen:
            read = dict.fromkeys((*self.fields, "obs_next", "terminated"))
            self.fields = self.collects = tuple(read)

    @classmethod
    def requirements(cls, config: Any) -> frozenset[str]:
        """See `RewardModel`."""
        return cls.requires | ({"density"} if config.log_prob else set())

    @property
    def forgets(self) -> bool:
        """Whether to train on new data only: log-probabilities are of the current policy."""
        return self.config.log_prob or super().forgets

    def reward(self, logit: Tensor) -> Tensor:
        """Return the logit."""
        return ops.airl_reward(logit)

    def logit(self, rows: Batch) -> Tensor:
        """Return f - log(pi); or g, if the model is frozen or the policy unknown."""
        setting, subtracts = self.setting, self.config.log_prob
        if setting.frozen or (subtracts and setting.log_prob is None):
            return self.network.reward(rows)
        logit: Tensor = self.network(rows)
        if subtracts:
            flat = rows.apply(lambda leaf: leaf.flatten(0, logit.ndim - 1))
            logit = logit - self.log_prob(flat).reshape(logit.shape)
        return logit

    def slope_penalty(self, slope: Tensor) -> Tensor:
        """See `Adversarial`; a potential is penalised only above a slope of 1, and may be flat.

        The gradient of gamma h(s') - h(s) in (s, s') is (-h'(s), gamma h'(s')).
        """
        if self.network.potential is None:
            return super().slope_penalty(slope)
        size = self.network.input.size
        excess = functional.relu(slope[:, size:].norm(dim=-1) - 1)
        return super().slope_penalty(slope[:, :size]) + excess.square()

    def offset(self, drawn: tuple[Batch, ...]) -> Any:
        """Return the negative log-probability of the actions."""
        if not self.config.log_prob:
            return 0.0
        extra = int(self.config.absorbing)  # the absorbing state, which has no action
        return torch.cat([functional.pad(-self.log_prob(rows), (0, extra)) for rows in drawn])


class FAIRLConfig(AdversarialConfig):
    """Options of `fairl`."""

    limit: float = Field(default=10.0, gt=0)
    """Largest absolute reward."""


@register_reward_model("fairl")
class FAIRL(Adversarial):
    """Adversarial imitation by the forward KL divergence."""

    Config = FAIRLConfig

    def reward(self, logit: Tensor) -> Tensor:
        """See `ops.fairl_reward`."""
        return ops.fairl_reward(logit, self.config.limit)
