"""Base class of policies."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from gymnasium import spaces
from pydantic import Field, model_validator
from torch import Tensor, nn

from guerdon.config.registry import Registry
from guerdon.config.schema import Section
from guerdon.config.validation import completed, validated
from guerdon.data import Batch, ReplayBuffer, Rollout
from guerdon.data.batch import from_leaves
from guerdon.data.leaves import to_device
from guerdon.data.spaces import as_rows_of
from guerdon.nn import create_model, seeded
from guerdon.nn.adapter import evaluating
from guerdon.nn.config import ModelConfig
from guerdon.nn.optimizer import Optimizer
from guerdon.nn.spaces import used_parts, used_space
from guerdon.nn.target import update_target
from guerdon.policy.ranks import ALONE, Ranks

_NODES, _NUMBERS = (Batch, dict), (int, float)
Metrics = dict[str, Any]
"""Numbers or scalar tensors; these are copied from the device only when logged."""


class Resolver(Protocol):
    """Interface of a reward for policies; see `guerdon.reward.Reward`."""

    @property
    def fields(self) -> Sequence[str]:
        """Fields that `resolve` needs."""

    def transform(self, batch: Batch, indices: np.ndarray, source: Any) -> Batch:
        """Prepare transitions that were read."""

    def resolve(self, batch: Batch) -> Batch:
        """Return transitions on the learner's device with the learner's reward."""

    def view(self, source: Any, device: torch.device) -> Any:
        """Return a view of a buffer with resolved rewards."""


class PolicyConfig(Section):
    """Options of every policy."""

    type: str = ""
    """Registered name of the policy."""
    gamma: float = Field(default=0.99, ge=0, le=1)
    """Discount factor; usually 0.9 to 0.999."""
    learning_rate: float = Field(default=3e-4, gt=0)
    """Learning rate of Adam; usually 1e-4 to 3e-3."""
    anneal: bool = False
    """Whether to anneal the learning rate linearly to zero over the run."""
    max_grad_norm: float | None = Field(default=None, gt=0)
    """Maximum norm for gradient clipping; usually 0.5 to 10."""
    model: ModelConfig = ModelConfig()
    """Networks."""
    init_from: str | None = None
    """Run whose policy a new run starts with: its networks alone, best or else latest."""

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, values: Any) -> Any:
        return completed(cls, values) if isinstance(values, dict) else values


class Policy(nn.Module):
    """Acts on observations and learns from transitions.

    A policy is in one of three states: *collecting* (``training``, not ``updating``), *updating*
    (both) and *testing* (neither). It explores while collecting, and in `testing` on request.

    Args:
        config: An instance of `Config`, or a dictionary of its fields.
        observation_space: Observation space of one environment.
        action_space: Action space of one environment.
        seed: Random seed for weights and sampling.
        device: Device of the networks.
        model: Network to use instead of the default one: a class or an instance.
    """

    Config: ClassVar[type[PolicyConfig]] = PolicyConfig
    on_policy: ClassVar[bool] = False
    """Whether it learns from rollouts of the current policy only."""
    offline: ClassVar[bool] = False
    """Whether it learns from `load_expert_data` alone, without environment steps."""
    uses_reward: ClassVar[bool] = True
    """Whether it learns from rewards; if not, a run may not have any but the environment's, which
    only evaluations read."""
    defaults: ClassVar[dict[str, dict[str, Any]]] = {}
    """Default values for other sections of the config (``collect``, ``learn``, ``env``)."""
    ignores: ClassVar[tuple[str, ...]] = ()
    """On-policy: options among ``learn.batch_size`` and ``learn.repeat`` that are not used; setting
    one is an error."""
    splits: ClassVar[bool] = False
    """Whether several processes can divide the rows of its batches; see `ranks`."""
    has_density: ClassVar[bool] = False
    """Whether it implements `log_prob`."""
    target_name: ClassVar[str] = "return"
    """Target computed from rewards, for `guerdon explain`; may contain options in braces."""
    fields: tuple[str, ...] = ("obs", "act", "rew", "terminated", "obs_next")
    """Fields of a transition that are used for learning."""
    optimizers: dict[str, Optimizer]
    """Optimizers by name, saved with the policy."""
    segment_length: int = 1
    """Number of consecutive transitions per sample; above 1 for n-step targets."""

    def __init__(
        self,
        config: PolicyConfig | Mapping[str, Any],
        observation_space: Any,
        action_space: Any,
        *,
        seed: int = 0,
        device: str | torch.device = "cpu",
        model: Any = None,
    ) -> None:
        super().__init__()
        if not isinstance(config, PolicyConfig):
            config = validated(self.Config, config, "policy")
        self.config: Any = config
        model_config = self.config.model
        self.obs_keys = model_config.keys if isinstance(model_config, ModelConfig) else None
        """Parts of a Dict observation to use; None for all."""
        self.env_observation_space = observation_space
        self.observation_space = used_space(observation_space, self.obs_keys)
        self.action_space = action_space
        self.device = torch.device(device)
        self.seed = seed
        self.custom_model = model
        self.updating = False
        self._sampling = False
        self.updates = 0
        """Number of calls of `update`."""
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self.optimizers = {}
        self.ranks = ALONE
        self.build()

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, _NUMBERS) and name in self.__dict__:  # nn.Module's lookup is slow
            self.__dict__[name] = value
        else:
            super().__setattr__(name, value)

    def build(self) -> None:
        """Make the networks and optimizers; called at the end of `__init__`."""

    # --- acting

    def forward(self, batch: Batch, state: Any = None) -> Batch:
        """Choose actions.

        Args:
            batch: ``obs``, one row per environment; and ``env_ids`` if these are not all
                environments.
            state: ``state`` of the previous call, for recurrent policies.

        Returns:
            ``act``, a NumPy array of environment actions; ``state`` of recurrent policies; and
            ``policy``, data to store with the transitions.
        """
        raise NotImplementedError

    @torch.no_grad()
    def predict(self, obs: Any, deterministic: bool = True) -> np.ndarray:
        """Choose actions for one observation or a batch of them.

        Args:
            obs: One observation, or several along a new first axis; a dictionary for a Dict space.
            deterministic: Whether to disable exploration.

        Returns:
            The action, or the actions along the first axis.
        """
        space = self.env_observation_space
        if self.obs_keys is not None:
            space = spaces.Dict({key: space[key] for key in self.obs_keys})
        rows, single = as_rows_of(space, obs, "the observation")
        with self.testing(deterministic):
            act: np.ndarray = self(Batch(obs=rows)).act
        return act[0] if single else act

    def best_action(self, obs: Any) -> Tensor:
        """Choose actions [B, ...] without exploration, in torch alone.

        `forward` calls it while testing, and `guerdon.export` traces it.

        Args:
            obs: Observations [B, ...]: a tensor, or a dictionary of tensors.
        """
        raise NotImplementedError

    def best_output(self, obs: Any) -> Batch:
        """Return the output of `forward` with `best_action`."""
        return from_leaves({"act": self.best_action(obs).numpy(force=True)})

    @contextmanager
    def testing(self, deterministic: bool = True) -> Iterator[None]:
        """Enter the testing state, and restore the mode of every module afterwards.

        Args:
            deterministic: Whether to disable exploration.
        """
        before, self._sampling = self._sampling, not deterministic
        try:
            with evaluating(self):
                yield
        finally:
            self._sampling = before

    def random_output(self, batch: Batch, act: np.ndarray, state: Any = None) -> Batch:  # noqa: ARG002
        """Return the output of `forward` for actions that were sampled from the action space."""
        return Batch(act=act)

    @property
    def explores(self) -> bool:
        """Whether to act with exploration."""
        return (self.training or self._sampling) and not self.updating

    def tensor(self, value: Any) -> Tensor:
        """Convert an array to a tensor on this policy's device, in single precision."""
        tensor: Tensor = to_device(value, self.device)
        return tensor

    def observation(self, obs: Any) -> Any:
        """Convert observations to inputs of the networks: a tensor, or a dictionary of tensors."""
        return self._tensors(obs if self.obs_keys is None else used_parts(obs, self.obs_keys))

    def _tensors(self, obs: Any) -> Any:
        if isinstance(obs, _NODES):
            return {key: self._tensors(value) for key, value in obs.items()}
        return to_device(obs, self.device)

    def create_model(self, default: Any) -> Any:
        """Make the network chosen by the user, or the default; seeded."""
        if self.config.model.lstm is not None:
            raise ValueError(
                f"'policy.model.lstm' is set, but {type(self).__name__.lower()} learns from single "
                "transitions: leave it out, or stack frames with 'env.frame_stack'"
            )
        with seeded(self.seed):
            return create_model(
                default, self.observation_space, self.action_space, self.config.model,
                custom=self.custom_model,
            ).to(self.device)  # fmt: skip

    def create_part(self, kind: Any, **options: Any) -> Any:
        """Make another network, such as a critic, which users cannot replace."""
        with seeded(self.seed + 1):  # weights differ from the first network's
            return kind(self.observation_space, self.action_space, self.config.model, **options).to(
                self.device
            )

    def log_prob(self, obs: Any, act: Tensor) -> Tensor:
        """Log-probabilities [B] of actions at observations [B, ...] under the current policy.

        A class that implements this sets `has_density`.
        """
        raise NotImplementedError

    # --- learning

    def learn_with(self, ranks: Ranks) -> None:
        """Learn together with other processes."""
        self.ranks = ranks
        for optimizer in self.optimizers.values():
            optimizer.average = ranks.average

    @classmethod
    def learns_on_policy(cls, options: Mapping[str, Any]) -> bool:  # noqa: ARG003
        """Return whether it is on-policy with some options, for classes that read it from them."""
        return cls.on_policy

    def load_expert_data(self) -> None:
        """Read the demonstrations that it learns from, if any; called before training."""

    def validate(self) -> Metrics:
        """Return metrics on held-out demonstrations, for an offline policy."""
        return {}

    def make_buffer(
        self, size: int, n_envs: int, seed: int, history: int = 0
    ) -> ReplayBuffer | Rollout:
        """Make the storage for learning: a rollout on-policy, a replay buffer off-policy.

        Args:
            size: Number of transitions.
            n_envs: Number of environments.
            seed: Random seed for sampling.
            history: Number of previous rows that rewards read, across rollouts.
        """
        if self.offline:
            return Rollout(1, n_envs)  # stays empty
        if self.on_policy:
            return Rollout(max(-(-size // n_envs), 1), n_envs, history)
        return ReplayBuffer(size, n_envs=n_envs, seed=seed)

    def update(
        self,
        batch_size: int,
        source: ReplayBuffer | Rollout,
        reward: Resolver | None = None,
        /,
        **options: Any,
    ) -> Metrics:
        """Read a batch, resolve its reward, and learn from it.

        Args:
            batch_size: Transitions to sample; on-policy, the size of minibatches.
            source: Buffer or rollout.
            reward: Reward; the environment reward by default.
            **options: Options of `learn`.
        """
        reward = reward if self.uses_reward else None
        if reward is not None and not hasattr(reward, "resolve"):
            raise TypeError(
                f"reward has to be a Reward, not a {type(reward).__name__}: make it with "
                "guerdon.reward.make_reward(model)"
            )
        fields = self.fields
        if reward is not None:
            fields = tuple(dict.fromkeys((*fields, *reward.fields)))
        self.updating = True
        try:
            batch, indices = self.read(batch_size, source, fields)
            batch, view = self.resolved(batch, indices, source, reward)
            batch = self.process_fn(batch, view, indices)
            metrics = self.ranks.learn(self, batch, {"batch_size": batch_size, **options})
            self.post_process_fn(batch, source, indices)
        finally:
            self.updating = False
        self.updates += 1
        return metrics

    def read(
        self, batch_size: int, source: Any, fields: tuple[str, ...]
    ) -> tuple[Batch, np.ndarray]:
        """Read the data of an update: the batch and its indices."""
        found: tuple[Batch, np.ndarray]
        if self.on_policy:
            found = source.rollout(fields)
        else:
            found = source.sample(batch_size, length=self.segment_length, fields=fields)
        return found

    def resolved(
        self, batch: Batch, indices: np.ndarray, source: Any, reward: Resolver | None
    ) -> tuple[Batch, Any]:
        """Return a batch on the policy's device and a view of its source; rewards are resolved."""
        if reward is None:
            batch = batch.to_device(self.device)
            if self.uses_reward:
                batch.rew_env = batch.rew
            return batch, source
        batch = reward.transform(batch, indices, source).to_device(self.device)
        return reward.resolve(batch), reward.view(source, self.device)

    def process_fn(self, batch: Batch, buffer: Any, indices: np.ndarray) -> Batch:  # noqa: ARG002
        """Compute values that depend on time, such as returns and advantages.

        Args:
            batch: Data as tensors with resolved rewards.
            buffer: View of the buffer or rollout with resolved rewards.
            indices: Indices of the batch.
        """
        return batch

    def learn(self, batch: Batch, **options: Any) -> Metrics:
        """Take one or more optimizer steps with a batch."""
        raise NotImplementedError

    def post_process_fn(self, batch: Batch, buffer: Any, indices: np.ndarray) -> None:
        """Update the buffer after learning, for example its priorities."""

    def update_normalizer(self, model: Any, obs: Any) -> None:
        """Update the running statistics of a model's observation normalizer, if it has any."""
        normalizer = getattr(model, "normalizer", None)
        if normalizer is not None and self.config.model.normalize_obs is True:
            normalizer.update(obs)

    def normalize_by(self, obs: Any) -> None:
        """Update all observation normalizers with the statistics of observations."""
        for module in self.modules():
            if isinstance(normalizer := getattr(module, "normalizer", None), nn.Module):
                normalizer.update(self.observation(obs))  # type: ignore[operator]

    def advance(self, env_steps: int, progress: float) -> None:  # noqa: ARG002 - for subclasses
        """Update schedules; called before each round of collecting.

        Args:
            env_steps: Transitions collected so far.
            progress: Completed fraction of the run, 0 to 1.
        """
        if self.config.anneal:
            for optimizer in self.optimizers.values():
                optimizer.learning_rate = self.config.learning_rate * max(1.0 - progress, 0.0)

    # --- files

    def load_actor(self, weights: Mapping[str, Tensor]) -> None:
        """Load the weights of the network of a cloned policy into the network that acts.

        Value functions and critics keep theirs.
        """
        name = next((name for name in ("actor", "model") if hasattr(self, name)), None)
        if name is None:
            raise ValueError("it acts by its critics, which a clone does not have")
        loaded = {f"{name}.{key.partition('.')[2]}": value for key, value in weights.items()}
        own = self.state_dict()
        for key, value in loaded.items():
            here = tuple(own[key].shape) if key in own else "not"
            if here != tuple(value.shape):
                raise ValueError(f"{key} is {tuple(value.shape)} there and {here} here")
        self.load_state_dict({**own, **loaded})
        for target in (f"{name}_target", "target"):  # of ddpg and td3, and of dqn
            if isinstance(network := getattr(self, target, None), nn.Module):
                update_target(network, getattr(self, name))

    def training_state(self) -> dict[str, Any]:
        """Return copies of everything needed for an exact resume."""
        return {
            "module": {name: value.clone() for name, value in self.state_dict().items()},
            "optimizers": {name: o.state_dict() for name, o in self.optimizers.items()},
            "generator": self.generator.get_state(),
            "updates": self.updates,
        }

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        """Load the result of `training_state`."""
        self.load_state_dict(state["module"])
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
        self.generator.set_state(state["generator"])
        self.updates = state["updates"]


POLICIES: Registry[type[Policy]] = Registry("policy", "guerdon.policy")
register_policy = POLICIES.register
"""Register a policy under a name: as a decorator, or as a call with the class."""


def create_policy(
    cfg: Mapping[str, Any],
    observation_space: Any = None,
    action_space: Any = None,
    *,
    seed: int = 0,
    device: str | torch.device = "cpu",
    model: Any = None,
) -> Policy:
    """Make the policy of ``cfg["type"]``.

    Args:
        cfg: Config section ``policy``.
        observation_space: Observation space of one environment.
        action_space: Action space of one environment.
        seed: See `Policy`.
        device: See `Policy`.
        model: See `Policy`.
    """
    if "type" not in cfg:
        raise ValueError(f"a policy's config needs 'type': one of {', '.join(POLICIES.names())}")
    policy = POLICIES.get(cfg["type"])
    return policy(dict(cfg), observation_space, action_space, seed=seed, device=device, model=model)
