"""From a config to the parts of a run."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from guerdon.collect import Collector
from guerdon.collect.cameras import check_cameras
from guerdon.collect.reward_data import RewardDataCollector
from guerdon.config import compose, sources
from guerdon.data.demonstrations import Demonstrations
from guerdon.envs import make_vec
from guerdon.envs.ids import registered_limit
from guerdon.policy import POLICIES, create_policy, register_policy
from guerdon.reward import REWARDS, RewardModel, Setting, make_reward
from guerdon.reward.drawing import Draws

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from guerdon.config import GuerdonConfig
    from guerdon.config.schema import DataCollectionConfig, EnvConfig
    from guerdon.data import ReplayBuffer
    from guerdon.envs import VectorEnv
    from guerdon.policy import Policy
    from guerdon.reward import Reward
    from guerdon.training.display import Mode

LIMIT = 30_000
"""Steps of an episode where nobody sets a limit: one that never ends would stop an evaluation."""
_NOT_OF_THE_MODEL = {"pretrain", "checkpoint_path", "terms", "collect_data", "data_collection"}
EnvSetting = tuple["Callable[..., Any]", "Sequence[Any]", "Sequence[Any]"]
"""What makes an environment, its settings for collecting, and those for evaluating."""


@dataclass
class Seeds:
    """One seed for each part, all from the seed of the run."""

    policy: int
    collect: int
    buffer: int
    evaluate: int
    reward: int

    @classmethod
    def of(cls, seed: int) -> Seeds:
        """Draws them."""
        return cls(*(int(x) for x in np.random.SeedSequence(seed).generate_state(5)))


@dataclass
class Parts:
    """What a run is made of."""

    env: VectorEnv
    eval_env: VectorEnv
    policy: Policy
    reward: Reward
    collector: Collector
    seeds: Seeds
    pictures: RewardDataCollector | None = None
    """Keeps what cameras see, where that is asked for."""

    @property
    def buffer(self) -> ReplayBuffer:
        """The collector's buffer."""
        assert self.collector.buffer is not None
        return self.collector.buffer

    def clean_point(self) -> None:
        """Breaks off all episodes, so that a run saved here goes on exactly like this one."""
        self.collector.break_off()
        self.reward.break_off()
        if self.pictures is not None:
            self.pictures.break_off()

    def keep_pictures(self, config: DataCollectionConfig) -> None:
        """Keeps from now on what cameras see, as trajectories."""
        self.pictures = RewardDataCollector(config, self.env.n_envs)
        self.collector.watch = self.pictures.watch

    def state_dict(self) -> dict[str, Any]:
        """Everything that is needed to go on from a clean point."""
        state = {
            "policy": self.policy.training_state(),
            "reward": self.reward.state_dict(),
            "collector": self.collector.state_dict(),
        }
        return state if self.policy.on_policy else state | {"buffer": self.buffer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where `state_dict` was taken."""
        self.policy.load_training_state(state["policy"])
        self.reward.load_state_dict(state["reward"])
        self.collector.load_state_dict(state["collector"])
        if "buffer" in state:
            self.buffer.load_state_dict(state["buffer"])

    def close(self) -> None:
        """Ends all environments, when all that is to be kept is on the disk."""
        with closing(self.env), closing(self.eval_env):
            if self.pictures is not None:
                self.pictures.close()


def make_env(
    config: EnvConfig, settings: tuple[Callable[..., Any], Sequence[Any]] | None = None, **more: Any
) -> VectorEnv:
    """The environments of a config's section.

    Args:
        config: The section.
        settings: A function that makes one environment, and what to call it with; instead of
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
    display: Mode = "auto",
) -> Parts:
    """Makes the parts of a run.

    Args:
        config: What was asked for.
        env_setting: Environments, instead of those that the config names.
        model: A network for the policy, instead of its own.
        policy_fn: A policy class, instead of the one that the config names.
        display: How the training of an expert is shown, where demonstrations are made by one.
    """
    seeds = Seeds.of(config.seed)
    collecting, testing = config.env, config.env.for_evaluation(config.eval.n_envs)
    makers: list[Any] = [None, None]
    if env_setting is not None:
        make, *settings = env_setting
        makers = [(make, each) for each in settings]
    with ExitStack() as opened:  # environments have processes: none stays if anything fails
        env, eval_env = (
            opened.enter_context(make_env(section, maker))
            for section, maker in zip((collecting, testing), makers, strict=True)
        )
        if config.reward.collect_data:
            check_cameras(env.observation_space, config.reward.data_collection, config.env.id)
        device = find_device(config.run.device)
        policy = make_policy(config, env, policy_fn, seed=seeds.policy, device=device, model=model)
        reward = prepare_reward(config, policy, env, seeds.reward, display)
        if policy.on_policy:
            size = rollout_slots(config, env) * env.n_envs
        else:
            size = config.collect.buffer_size or 0
        buffer = policy.make_buffer(size, env.n_envs, seeds.buffer)
        collector = Collector(
            policy,
            env,
            buffer,
            seed=seeds.collect,
            store_info="info" in reward.fields,
            verdicts=_verdicts(reward, env),
        )
        opened.pop_all()
    return Parts(env, eval_env, policy, reward, collector, seeds)


def _verdicts(reward: Reward, env: VectorEnv) -> Any:
    """What ends episodes beside the environments, if a model of success does so online."""
    decider = reward.decider
    if decider is None or not decider.ends_online:
        return None
    if not env.can_begin:
        raise ValueError(
            f"'reward.terminate' is online, but single environments of {env.spec_id!r} cannot be "
            "reset here: set it to read, or use env.backend=base"
        )
    return decider.verdicts


def prepare_reward(
    config: GuerdonConfig, policy: Policy, env: VectorEnv, seed: int, display: Mode = "auto"
) -> Reward:
    """The reward of a config, ready for a run: its models know the spaces and demonstrations.

    Args:
        config: What was asked for.
        policy: Who will learn from it.
        env: Where.
        seed: Of all that the models draw.
        display: How the training of an expert is shown, where demonstrations are made by one.
    """
    from guerdon.training.experts import with_experts  # who are made of parts, too

    gamma = config.policy.get("gamma", 0.99)
    section = config.reward.model_dump(exclude=_NOT_OF_THE_MODEL)
    shown = {name for name, options in config.reward.terms.items() if _is_shown(config, options)}
    section["terms"] = {
        name: with_experts(options, display) if name in shown else options
        for name, options in config.reward.terms.items()
    }
    with Draws(seed).own():  # models of the guide's style make their networks at once
        reward = make_reward(section, gamma=gamma, device=str(policy.device))
    reward.setup(
        Setting(
            env.observation_space,
            env.action_space,
            n_envs=env.n_envs,
            gamma=gamma,
            seed=seed,
            on_policy=policy.on_policy,
            horizon=config.env.max_episode_steps or registered_limit(config.env.id),
            log_prob=policy.log_prob if policy.has_density else None,
            example=env.example,
        )
    )
    for name, term in reward.terms.items():
        if term.model.imitates and name in shown:
            _load_experts(term.model, name, config.reward.terms[name].get("expert_data_path"))
    _check_fitted(config, reward)
    _check_trained(config, reward)
    _check_intrinsic(config)
    if config.policy.get("model", {}).get("normalize_obs") == "demonstrations":
        policy.normalize_by(_demonstrated(reward))
    return reward


def _is_frozen(config: GuerdonConfig) -> bool:
    """Whether the reward comes from a checkpoint, stays so, and nobody else asks for its data."""
    model = config.policy.get("model") or {}
    return (
        config.reward.checkpoint_path is not None
        and not config.reward.cotrain
        and model.get("normalize_obs") != "demonstrations"
    )


def _is_shown(config: GuerdonConfig, options: Mapping[str, Any]) -> bool:
    """Whether a term is shown its demonstrations; what they taught may all be in a checkpoint."""
    wraps = REWARDS.get(options["type"]).wrap_buffer is not RewardModel.wrap_buffer
    return wraps or not _is_frozen(config)  # who wraps the buffer reads them all the time


def _check_fitted(config: GuerdonConfig, reward: Reward) -> None:
    """Sees that models that are fitted beforehand have been."""
    for name, term in reward.terms.items():
        if term.model.needs_checkpoint and config.reward.checkpoint_path is None:
            raise ValueError(
                f"the reward {name!r} has to be fitted beforehand: do so with `guerdon reward "
                "fit`, and name its folder as 'reward.checkpoint_path'"
            )


def _check_trained(config: GuerdonConfig, reward: Reward) -> None:
    """Sees that models that have to learn do so at some time."""
    section = config.reward
    if section.cotrain or section.pretrain or section.checkpoint_path is not None:
        return
    for name, term in reward.terms.items():
        if term.model.learns:
            raise ValueError(
                f"the reward {name!r} would never be trained: 'reward.cotrain' is false, so set "
                "'reward.pretrain' or name a 'reward.checkpoint_path'"
            )


def _check_intrinsic(config: GuerdonConfig) -> None:
    """Sees that what a second value is for is there, and is not counted twice."""
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
    """The policy of a config.

    Args:
        config: What was asked for.
        env: Where it acts.
        policy_fn: A policy class, instead of the one that the config names.
        **options: ``seed``, ``device`` and ``model``.
    """
    make = create_policy if policy_fn is None else policy_fn
    return make(config.policy, env.observation_space, env.action_space, **options)


def known_name(policy: type[Policy]) -> str:
    """The name that a policy class is registered by; a class without one gets its own."""
    for name in POLICIES.names():
        if POLICIES.get(name) is policy:
            return name
    register_policy(policy.__name__, policy)
    return policy.__name__


def compose_run(
    path: Path, overrides: Sequence[str] = (), policy_fn: Callable[..., Policy] | None = None
) -> GuerdonConfig:
    """The config of a run.

    Args:
        path: Its ``config.yaml``.
        overrides: Changes to it.
        policy_fn: The policy class of the run, if it was given one. Becomes known by the name that
            the config has for it, if nothing is.
    """
    if isinstance(policy_fn, type):
        name = sources.read(path)["policy"]["type"]
        if name not in POLICIES.names():
            register_policy(name, policy_fn)
    return compose(path, overrides)


def rollout_slots(config: GuerdonConfig, env: VectorEnv) -> int:
    """Rows an environment that hold one on-policy iteration, whatever happens in it."""
    if config.collect.n_step is None:
        return 0
    if not env.synchronous:
        return config.collect.n_step  # one environment may be ready much more often than others
    # Every transition may be the last of its episode, and be followed by a row for the reset.
    return 2 * -(-config.collect.n_step // env.n_envs) + 1


def find_device(name: str) -> str:
    """The device that a name means, if it is there; ``auto`` is the best there is."""
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
