"""Behaviour cloning: supervised learning of demonstrated actions."""

from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from guerdon import ops
from guerdon.config.validation import ReadIf, refuse
from guerdon.data.batch import Batch
from guerdon.data.demonstrations import Demonstrations, split_rows
from guerdon.data.loading import TO_GET_SOME, DemonstrationsConfig
from guerdon.data.spaces import in_spaces
from guerdon.nn import Actor, GaussianActor
from guerdon.nn.adapter import evaluating
from guerdon.nn.optimizer import Optimizer
from guerdon.policy.actions import make_actions
from guerdon.policy.advantages import CHUNK
from guerdon.policy.base import Metrics, Policy, PolicyConfig, register_policy
from guerdon.policy.bounds import Bounds


class CloningConfig(PolicyConfig):
    """Options of `bc` and `dagger`."""

    learning_rate: float = Field(default=1e-3, gt=0)
    """Learning rate of Adam; usually 1e-4 to 3e-3."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled weight decay, as in AdamW, against overfitting to few demonstrations; usually 0 to
    0.1."""
    squash: bool = False
    """Box actions: whether the network is that of sac, td3, ddpg and iqlearn, whose actions are
    squashed into the bounds, instead of that of ppo, a2c and impala; these can start with the
    result (`init_from`)."""
    read_if: ClassVar[ReadIf] = (
        ("model.share_encoder", "model.type", True),  # a network of the user may read it
        ("model.dueling", "model.type", True),
    )


class Cloning(Policy):
    """Learns to act like an expert; a subclass provides the expert's actions."""

    uses_reward = False
    target_name = "expert actions"

    def build(self) -> None:
        """Make the network and the optimizer."""
        config, name = self.config, type(self).__name__.lower()
        if self.discrete:
            refuse(config, ["squash"], "actions are in a Discrete space", "policy")
        self.bounds = Bounds(self.action_space, name, self.device) if config.squash else None
        self.actions = make_actions(self.action_space, name)
        self.model = self.create_model(GaussianActor if config.squash else Actor)
        self.optimizers["model"] = Optimizer(
            self.model.parameters(),
            config.learning_rate,
            max_grad_norm=config.max_grad_norm,
            weight_decay=config.weight_decay,
        )

    @property
    def discrete(self) -> bool:
        """Whether actions are categories."""
        return isinstance(self.action_space, spaces.Discrete)

    def forward(self, batch: Batch, state: Any = None) -> Batch:  # noqa: ARG002 - not recurrent
        """Choose the most likely actions; sample Discrete ones on request."""
        if self.discrete and self._sampling and not self.updating:
            return self.actions.sample(self.model(self.observation(batch.obs)), self.generator)
        return self.best_output(batch.obs)

    def best_action(self, obs: Any) -> Tensor:
        """See `Policy`."""
        output = self.model(self.observation(obs))
        if self.bounds is None:
            return self.actions.mode(output)
        return self.bounds.scaled(torch.tanh(output["mu"]))

    def learn(self, batch: Batch, **_: Any) -> Metrics:
        """Take one gradient step towards the expert's actions ``batch.act``."""
        metrics = self.errors(batch)
        self.optimizers["model"].step(metrics["loss"])
        self.update_normalizer(self.model, self.observation(batch.obs))
        return {f"train/{name}": value.detach() for name, value in metrics.items()}

    def errors(self, batch: Batch) -> dict[str, Tensor]:
        """Return the mean loss of transitions, and the accuracy of Discrete actions.

        It is the cross-entropy of Discrete actions, and the squared error of others: of those that
        the network outputs before they are clipped, or of actions in [-1, 1] if they are squashed.
        """
        output, act = self.model(self.observation(batch.obs)), batch.act
        if self.discrete:
            act, logit = act - int(self.action_space.start), output["logit"]
            right = (ops.categorical_mode(logit) == act).float().mean()
            return {"loss": functional.cross_entropy(logit, act), "accuracy": right}
        if self.bounds is None:
            return {"loss": functional.mse_loss(output["mu"], act.float())}
        return {"loss": functional.mse_loss(torch.tanh(output["mu"]), self.bounds.to_unit(act))}


class BCConfig(DemonstrationsConfig, CloningConfig):
    """Options of `bc`."""

    holdout: float = Field(default=0.1, ge=0, lt=1)
    """Fraction of the demonstrations to hold out for metrics, the same in every run: whole
    episodes, or of a single one transitions; 0 for none."""


@register_policy("bc")
class BC(Cloning):
    """Behaviour cloning: learns from demonstrations alone, without environment steps.

    Attributes:
        fitted: Demonstrated transitions that it learns from.
        held_out: Those for metrics.
    """

    Config = BCConfig
    offline = True
    defaults: ClassVar[dict[str, dict[str, Any]]] = {
        "env": {"n_envs": 1},
        "learn": {"batch_size": 64, "updates_per_collect": 100},
        "eval": {"every": 1_000},
        "run": {"max_steps": 5_000, "log_every": 500},
    }
    fields = ("obs", "act")
    fitted: Batch
    held_out: Batch

    def load_expert_data(self, demonstrations: Demonstrations | None = None) -> None:
        """Read demonstrations, by default those of ``expert_data_path``, and hold out a part."""
        config = self.config
        if demonstrations is None and config.expert_data_path is None:
            raise ValueError(
                "bc learns from demonstrations: set 'policy.expert_data_path'; " + TO_GET_SOME
            )
        found = config.load(demonstrations)
        spaces_of_run = self.env_observation_space, self.action_space
        rows = in_spaces(found.transitions(), *spaces_of_run, "the demonstrations")
        rows = Batch({name: rows[name] for name in self.fields})
        if config.model.normalize_obs == "demonstrations":
            self.normalize_by(rows.obs)
        everything = np.arange(len(rows)), np.zeros(0, np.int64)
        generator = np.random.default_rng(0)
        share = config.holdout
        fit, out = split_rows(found.lengths, share, generator) if share else everything
        self.fitted, self.held_out = rows[fit], rows[out]

    def read(
        self,
        batch_size: int,
        source: Any,  # noqa: ARG002 - it has its demonstrations
        fields: tuple[str, ...],  # noqa: ARG002
    ) -> tuple[Batch, np.ndarray]:
        """Draw demonstrated transitions."""
        drawn = torch.randint(
            len(self.fitted), (batch_size,), generator=self.generator, device=self.device
        ).numpy(force=True)
        return self.fitted[drawn], drawn

    @torch.no_grad()
    def validate(self) -> Metrics:
        """Return the loss, and the accuracy of Discrete actions, on held-out demonstrations."""
        number = len(self.held_out)
        total: dict[str, Any] = {}
        with evaluating(self):
            for start in range(0, number, CHUNK):
                part = self.held_out[start : start + CHUNK].to_device(self.device)
                for name, value in self.errors(part).items():
                    total[name] = total.get(name, 0.0) + value * len(part.act) / number
        return {f"holdout/{name}": value for name, value in total.items()}
