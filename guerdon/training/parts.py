"""Make the parts of a run from its config."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from guerdon.collect import Collector
from guerdon.collect.reward_data import RewardDataCollector, check_cameras
from guerdon.config import compose, sources
from guerdon.config.validation import validated
from guerdon.data import ReplayBuffer
from guerdon.data.demonstrations import Demonstrations
from guerdon.envs import make_vec
from guerdon.envs.ids import registered_limit
from guerdon.policy import POLICIES, create_policy, register_policy
from guerdon.reward import REWARDS, ReplaySource, RewardModel, Setting, make_reward
from guerdon.reward.composition import STAGES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from guerdon.config import GuerdonConfig
    from guerdon.config.schema import DataCollectionConfig, EnvConfig
    from guerdon.data import Rollout
    from guerdon.envs import VectorEnv
    from guerdon.policy import Policy
    from guerdon.reward import Reward

LIMIT = 30_000
"""Time limit of environments without one: an episode that never ends would block evaluation."""
EnvSetting = tuple["Callable[..., Any]", "Sequence[Any]", "Sequence[Any]"]
"""A function that makes an environment, its arguments for collecting, and for evaluating."""


@dataclass
class Seeds:
    """Random seeds of the parts of a run."""

    policy: int
    collect: int
    buffer: int
    evaluate: int
    reward: int

    @classmethod
    def of(cls, seed: int) -> Seeds:
        """Derive them from the seed of the run."""
        return cls(*(int(x) for x in np.random.SeedSequence(seed).generate_state(5)))


@dataclass
class Parts:
    """Environments, policy, reward and collector of a run."""

    env: VectorEnv
    eval_env: VectorEnv
    policy: Policy
    reward: Reward
    collector: Collector
    seeds: Seeds
    images: RewardDataCollector | None = None
    """Saves camera images, with ``reward.collect_data``."""

    @property
    def buffer(self) -> ReplayBuffer | Rollout:
        """The collector's buffer or rollout."""
        assert self.collector.buffer is not None
        return self.collector.buffer

    def clean_point(self) -> None:
        """Truncate open episodes, so that a run that is resumed here continues like this one."""
        self.collector.break_off()
        if self.images is not None:
            self.images.break_off()

    def keep_images(self, config: DataCollectionConfig) -> None:
        """Save camera images of all episodes from now on."""
        self.images = RewardDataCollector(config, self.env.n_envs)
        self.collector.watch = self.images.watch

    def training_state(self) -> dict[str, Any]:
        """Everything that is needed to resume from a clean point."""
        state = {
            "policy": self.policy.training_state(),
            "reward": self.reward.training_state(),
            "collector": self.collector.training_state(),
        }
        if isinstance(self.buffer, ReplayBuffer):
            state["buffer"] = self.buffer.training_state()
        return state

    def load_training_state(self, state: dict[str, Any]) -> None:
        """Restore `training_state`."""
        self.policy.load_training_state(state["policy"])
        self.reward.load_training_state(state["reward"])
        self.collector.load_training_state(state["collector"])
        if isinstance(self.buffer, ReplayBuffer):
            self.buffer.load_training_state(state["buffer"])

    def close(self) -> None:
        """Close the environments, after all images are written."""
        with closing(self.env), closing(self.eval_env):
            if self.images is not None:
                self.images.close()


def make_env(
    config: EnvConfig, settings: tuple[Callable[..., Any], Sequence[Any]] | None = None, **more: Any
) -> VectorEnv:
    """Make the environments of a config section.

    Args:
        config: The section.
        settings: A function that makes one environment, and its arguments for each, instead of
            the section's ``id`` and ``settings``.
        **more: Further arguments of `make_vec`.
    """
    options = {"default_limit": LIMIT, **config.model_dump(exclude={"id", "eval"})}
    if settings is None:
        return make_vec(config.id, **options, **more)
    options |= {"n_envs": len(settings[1]), "settings": list(settings[1])}
    return make_vec(settings[0], **options, **more)


def make_parts(
    config: GuerdonConfig,
    *,
    env_setting: EnvSetting | None = None,
    model: Any = None,
    policy_fn: Callable[..., Policy] | None = None,
) -> Parts:
    """Make the parts of a run; see `guerdon.train` for the arguments."""
    seeds = Seeds.of(config.seed)
    collecting, testing = config.env, config.env.for_evaluation(config.eval.n_envs)
    makers: list[Any] = [None, None]
    if env_setting is not None:
        make, *settings = env_setting
        makers = [(make, each) for each in settings]
    with ExitStack() as opened:  # closes the environments' processes if anything fails
        env, eval_env = (
            opened.enter_context(make_env(section, maker))
            for section, maker in zip((collecting, testing), makers, strict=True)
        )
        if config.reward.collect_data:
            check_cameras(env.observation_space, config.reward.data_collection, config.env.id)
        device = find_device(config.run.device)
        policy = make_policy(config, env, policy_fn, seed=seeds.policy, device=device, model=model)
        reward = prepare_reward(config, policy, env, seeds.reward)
        if policy.on_policy:
            size = rollout_steps(config, env) * env.n_envs
        else:
            size = config.collect.buffer_size or 0
        buffer = policy.make_buffer(size, env.n_envs, seeds.buffer, reward.history)
        if reward.ends_online and not env.can_begin:
            raise ValueError(
                f"'reward.terminate' is online, but single environments of {env.spec_id!r} cannot "
                "be reset here: set it to read, or use env.backend=base"
            )
        collector = Collector(
            policy,
            env,
            buffer,
            reward=reward,
            seed=seeds.collect,
            store_info="info" in (*reward.fields, *reward.collects),
        )
        opened.pop_all()
    return Parts(env, eval_env, policy, reward, collector, seeds)


def prepare_reward(config: GuerdonConfig, policy: Policy, env: VectorEnv, seed: int) -> Reward:
    """Make the reward of a run, with its demonstrations."""
    gamma = config.policy.get("gamma", 0.99)
    section = {name: getattr(config.reward, name) for name in (*STAGES, "terms")}
    setting = Setting(
        env.observation_space,
        env.action_space,
        n_envs=env.n_envs,
        gamma=gamma,
        seed=seed,
        device=str(policy.device),
        on_policy=policy.on_policy,
        horizon=config.env.max_episode_steps or registered_limit(config.env.id),
        log_prob=policy.log_prob if policy.has_density else None,
        example=env.example,
        checkpoint_path=config.reward.checkpoint_path,
    )
    reward = make_reward(section, setting)
    for name, term in reward.terms.items():
        if uses_demonstrations(config, name):
            _load_experts(term.model, name, config.reward.terms[name].get("expert_data_path"))
    _check_trained(config, reward)
    _check_intrinsic(config)
    if config.policy.get("model", {}).get("normalize_obs") == "demonstrations":
        policy.normalize_by(_demonstrated(reward))
    return reward


def uses_demonstrations(config: GuerdonConfig, name: str) -> bool:
    """Whether a term of the reward reads demonstrations: not if it is frozen from a checkpoint."""
    options = config.reward.terms[name]
    kind = REWARDS.get(options["type"])
    own = {key: value for key, value in options.items() if key != "weight"}
    if "demonstrations" not in kind.requirements(validated(kind.Config, own, "reward")):
        return False
    model = config.policy.get("model") or {}
    frozen = (
        config.reward.checkpoint_path is not None
        and not config.reward.cotrain
        and model.get("normalize_obs") != "demonstrations"
    )
    return issubclass(kind, ReplaySource) or not frozen


def _check_trained(config: GuerdonConfig, reward: Reward) -> None:
    """Check that models that have to be trained will be."""
    section = config.reward
    if section.pretrain or section.checkpoint_path is not None:
        return
    for name, (model, _) in reward.terms.items():
        if model.fitted:
            continue
        if section.cotrain and not (model.collects or model.can_pretrain):
            raise ValueError(
                f"the reward {name!r} would never be trained: name the fields of fresh transitions "
                f"that it learns from in {type(model).__name__}.collects"
            )
        if not section.cotrain:
            raise ValueError(
                f"the reward {name!r} would never be trained: 'reward.cotrain' is false, so set "
                "'reward.pretrain' or name a 'reward.checkpoint_path'"
            )


def _check_intrinsic(config: GuerdonConfig) -> None:
    """Check that terms with a value function of their own exist, and are not counted twice."""
    for name in (config.policy.get("intrinsic") or {}).get("terms", ()):
        if name not in config.reward.terms:
            raise ValueError(f"'policy.intrinsic.terms' names {name!r}, which the reward has not")
        if config.reward.terms[name]["weight"]:
            raise ValueError(
                f"{name!r} has a value of its own (policy.intrinsic) and would count twice: set "
                f"'reward.terms.{name}.weight' to 0"
            )


def _demonstrated(reward: Reward) -> Any:
    """All observations of the reward's demonstrations."""
    for model in reward.models:
        if isinstance(found := getattr(model, "demonstrations", None), Demonstrations):
            return found.transitions().obs
    raise ValueError(
        "'policy.model.normalize_obs' is 'demonstrations', but the reward has none: set it to true "
        "or false"
    )


def _load_experts(model: RewardModel, name: str, path: Any) -> None:
    try:
        model.load_expert_data()
    except ValueError as error:
        if path is None:
            raise
        raise ValueError(f"the reward {name!r} cannot learn from {path}: {error}") from error


def make_policy(
    config: GuerdonConfig,
    env: VectorEnv,
    policy_fn: Callable[..., Policy] | None = None,
    **options: Any,
) -> Policy:
    """Make the policy of a config; options are ``seed``, ``device`` and ``model``."""
    make = create_policy if policy_fn is None else policy_fn
    return make(config.policy, env.observation_space, env.action_space, **options)


def known_name(policy: type[Policy]) -> str:
    """The name that a policy class is registered by; it is registered if it was not."""
    for name in POLICIES.names():
        if POLICIES.get(name) is policy:
            return name
    register_policy(policy.__name__, policy)
    return policy.__name__


def compose_run(
    path: Path, overrides: Sequence[str] = (), policy_fn: Callable[..., Policy] | None = None
) -> GuerdonConfig:
    """Read the config of a run.

    Args:
        path: Its ``config.yaml``.
        overrides: Changes to it.
        policy_fn: The `policy_fn` of the run, if it had one.
    """
    if isinstance(policy_fn, type):
        name = sources.read(path)["policy"]["type"]
        if name not in POLICIES.names():
            register_policy(name, policy_fn)
    return compose(path, overrides)


def rollout_steps(config: GuerdonConfig, env: VectorEnv) -> int:
    """Rows of each environment that a rollout allocates at first."""
    steps = config.collect.n_step or env.n_envs
    return -(-steps // env.n_envs) + 1  # and one for resets


def find_device(name: str) -> str:
    """The device of a name; ``auto`` is CUDA or MPS if available, else the CPU."""
    there = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if name == "auto":
        return next(kind for kind, found in there.items() if found)
    if not there[name.partition(":")[0]]:
        raise ValueError(f"run.device is {name!r}, but torch finds no such device: use 'cpu'")
    return name
