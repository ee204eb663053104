"""Make the parts of a run from its config."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from guerdon.collect import Collector, LocalShards, Shard, ShardedCollector, ShardedEnv, Shards
from guerdon.collect.reward_data import RewardDataCollector, add_labels, check_cameras
from guerdon.collect.shards import ShardInfo
from guerdon.config import GuerdonConfig, compose, sources
from guerdon.config.schema import DataCollectionConfig, EnvConfig
from guerdon.config.validation import validated
from guerdon.data import ReplayBuffer, Rollout
from guerdon.data.demonstrations import Demonstrations
from guerdon.data.journal import Journal
from guerdon.data.leaves import check_like
from guerdon.envs import VectorEnv, make_vec
from guerdon.envs.ids import registered_limit
from guerdon.nn import seeded
from guerdon.policy import POLICIES, Policy, create_policy, register_policy
from guerdon.reward import REWARDS, ReplaySource, Reward, Setting, make_reward
from guerdon.reward.composition import STAGES
from guerdon.training.run_folder import RunFolder

LIMIT = 30_000
"""Time limit of environments without one: an episode that never ends would block evaluation."""
EnvSetting = tuple[Callable[..., Any], Sequence[Any] | None, Sequence[Any] | None]
"""A function that makes an environment, its arguments for collecting, and for evaluating."""


class Seeds(NamedTuple):
    """Random seeds of the parts of a run."""

    policy: int
    collect: int
    buffer: int
    evaluate: int
    reward: int
    layers: int
    """Of PyTorch's global generators, which layers such as dropout draw from."""

    @classmethod
    def of(cls, seed: int) -> "Seeds":
        """Derive them from the seed of the run."""
        return cls(*np.random.SeedSequence(seed).generate_state(6).tolist())


@dataclass
class Parts:
    """Environments, policy, reward and collector of a run."""

    env: VectorEnv
    eval_env: VectorEnv
    policy: Policy
    reward: Reward
    collector: Collector
    seeds: Seeds
    journal: Journal
    """Lists what the run writes outside its folder."""
    images: RewardDataCollector | None = None
    """Saves camera images, with ``reward.collect_data``."""
    evaluate: Callable[..., Any] | None = None
    """Evaluates in other processes; see `guerdon.training.evaluation.evaluate`."""

    @property
    def buffer(self) -> ReplayBuffer | Rollout:
        """The collector's buffer or rollout."""
        assert self.collector.buffer is not None
        return self.collector.buffer

    @property
    def _states(self) -> dict[str, Any]:
        parts: dict[str, Any] = {
            "policy": self.policy,
            "reward": self.reward,
            "collector": self.collector,
        }
        if isinstance(self.buffer, ReplayBuffer):
            parts["buffer"] = self.buffer
        return parts

    def training_state(self) -> dict[str, Any]:
        """Return everything needed to resume from a clean point."""
        state = {name: part.training_state() for name, part in self._states.items()}
        # Layers such as dropout draw from PyTorch's global generators.
        return state | {
            "torch": [torch.get_rng_state(), *map(torch.cuda.get_rng_state, self._gpus)]
        }

    def load_training_state(self, state: dict[str, Any]) -> None:
        """Restore `training_state`."""
        for name, part in self._states.items():
            check_like(state[name], part.training_state(), name)
            part.load_training_state(state[name])
        cpu, *others = state["torch"]
        torch.set_rng_state(cpu)
        for gpu, generator in zip(self._gpus, others, strict=True):
            torch.cuda.set_rng_state(generator, gpu)

    @property
    def _gpus(self) -> list[torch.device]:
        return [self.policy.device] if self.policy.device.type == "cuda" else []

    def clean_point(self) -> None:
        """Truncate open episodes, so that a run that is resumed here continues like this one."""
        self.collector.break_off()
        if self.images is not None:
            self.images.break_off()
            self.images.flush()

    def keep_images(self, config: DataCollectionConfig) -> None:
        """Save camera images of all episodes from now on."""
        self.images = RewardDataCollector(config, self.env.n_envs, self.journal.note)
        self.collector.watch = self.images.watch

    def close(self) -> None:
        """Close the environments, after all images are written."""
        with closing(self.env), closing(self.eval_env), closing(self.journal):
            if self.images is not None:
                self.images.close()


@dataclass(frozen=True)
class ShardMaker:
    """Makes the shards of a run; see `guerdon.train` for the arguments."""

    config: GuerdonConfig
    env_setting: EnvSetting | None = None
    model: Any = None
    policy_fn: Callable[..., Policy] | None = None

    def __call__(self, number: int, start: int = 0) -> Shard:
        """Make the shard of a number.

        Args:
            number: Number of the shard.
            start: How often it was started before; each start has other random numbers.
        """
        config, total = self.config, self.config.n_shards
        assert total is not None
        make, given, _ = self.env_setting or (None, None, None)
        settings: Sequence[Any] = config.env.settings if given is None else given
        n_envs = config.env.n_envs if given is None else len(given)
        if n_envs % total:
            raise ValueError(f"{total} shards do not divide {n_envs} environments")
        size = n_envs // total
        mine = range(number * size, (number + 1) * size)
        own = [settings[i % len(settings)] for i in mine] if settings else None
        seeds = Seeds.of(config.seed)
        env = make_env(config.env, make, n_envs=size, settings=own)
        try:
            policy = self.policy(env)
            reward = build_reward(config, policy, env, seeds.reward)
            seed = np.random.SeedSequence(seeds.collect, spawn_key=(number, start))
            return Shard(
                policy, env, seed,
                reward=reward if reward.ends_online else None, store_info=_stores_info(reward),
                watch=add_labels if config.reward.collect_data else None,
            )  # fmt: skip
        except BaseException:
            env.close()
            raise

    def policy(self, env: VectorEnv | ShardInfo, device: str = "cpu") -> Policy:
        """Make a copy of the policy, for the spaces of environments."""
        policy: Policy = (self.policy_fn or create_policy)(
            self.config.policy, env.observation_space, env.action_space,
            seed=Seeds.of(self.config.seed).policy, device=device,
            model=copy.deepcopy(self.model),
        )  # fmt: skip
        _find_expert(policy, self.config)
        return policy

    def local(self) -> Shards:
        """Make all shards, in this process."""
        assert self.config.n_shards is not None
        with seeded(0):  # does not change the random numbers of layers
            return LocalShards(self, self.config.n_shards)


class Runtime(Protocol):
    """Other processes of a run."""

    def shards(self, make: ShardMaker) -> Shards:
        """Start the shards."""

    def reward(self, reward: Reward, env: VectorEnv) -> Reward:
        """Start the processes that score with the reward and train it, if there are some."""

    def evaluate(self) -> Callable[..., Any] | None:
        """Start the processes that evaluate, if there are some; see `Parts.evaluate`."""


def make_parts(
    config: GuerdonConfig,
    *,
    env_setting: EnvSetting | None = None,
    model: Any = None,
    policy_fn: Callable[..., Policy] | None = None,
    runtime: Runtime | None = None,
) -> Parts:
    """Make the parts of a run; see `guerdon.train` for the arguments.

    Args:
        config: Config of the run.
        env_setting: See `guerdon.train`.
        model: See `guerdon.train`.
        policy_fn: See `guerdon.train`.
        runtime: Other processes of the run.
    """
    check_config(config)
    seeds = Seeds.of(config.seed)
    make, *settings = env_setting or (None, None, None)
    with ExitStack() as opened:  # closes the environments' processes if anything fails
        evaluated = config.env.for_evaluation(config.eval.n_envs)
        if config.n_shards is None:
            env = opened.enter_context(make_env(config.env, make, settings[0]))
            eval_env = opened.enter_context(make_env(evaluated, make, settings[1]))
        else:
            eval_env = opened.enter_context(make_env(evaluated, make, settings[1]))
            maker = ShardMaker(config, env_setting, model, policy_fn)
            shards = maker.local() if runtime is None else runtime.shards(maker)
            env = opened.enter_context(ShardedEnv(shards, eval_env.example))
        if config.reward.collect_data:
            check_cameras(env.observation_space, config.reward.data_collection, config.env.id)
        policy: Policy = (policy_fn or create_policy)(
            config.policy,
            env.observation_space,
            env.action_space,
            seed=seeds.policy,
            device=find_device(config.run.device),
            model=model,
        )
        _find_expert(policy, config)
        with _explained(
            "policy.expert_data_path", config.policy, f"policy {config.policy['type']!r}"
        ):
            policy.load_expert_data()
        journal = Journal()
        reward = prepare_reward(config, policy, env, seeds.reward, journal.note)
        if runtime is not None:
            reward = runtime.reward(reward, env)
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
        if isinstance(env, ShardedEnv):
            collector: Collector = ShardedCollector(
                policy, env, buffer, reward=reward, store_info=_stores_info(reward)
            )
        else:
            collector = Collector(
                policy, env, buffer,
                reward=reward, seed=seeds.collect, store_info=_stores_info(reward),
            )  # fmt: skip
        evaluate = None if runtime is None else runtime.evaluate()
        opened.pop_all()
    return Parts(env, eval_env, policy, reward, collector, seeds, journal, evaluate=evaluate)


def _find_expert(policy: Any, config: GuerdonConfig) -> None:
    if (expert := config.policy.get("expert")) is not None:
        from guerdon.training.experts import find_expert  # circular import

        policy.expert = find_expert(expert)


def _stores_info(reward: Reward) -> bool:
    return "info" in (*reward.fields, *reward.collects)


def check_config(config: GuerdonConfig) -> None:
    """Check options that need no environment, before anything is built."""
    find_device(config.run.device)
    # Terms with a value function of their own have to exist, and must not be counted twice.
    for name in (config.policy.get("intrinsic") or {}).get("terms", ()):
        if name not in config.reward.terms:
            raise ValueError(f"'policy.intrinsic.terms' names {name!r}, which the reward has not")
        if config.reward.terms[name]["weight"]:
            raise ValueError(
                f"{name!r} has a value of its own (policy.intrinsic) and would count twice: set "
                f"'reward.terms.{name}.weight' to 0"
            )


def make_env(
    config: EnvConfig,
    make: Callable[..., Any] | None = None,
    settings: Sequence[Any] | None = None,
    **changes: Any,
) -> VectorEnv:
    """Make the environments of a config section.

    Args:
        config: The section.
        make: A function that makes one environment, instead of the section's ``id``.
        settings: Arguments of `make` for each environment, instead of the section's.
        **changes: Arguments of `make_vec` instead of the section's, or beside them.
    """
    options = {"default_limit": LIMIT, **config.model_dump(exclude={"id", "eval"}), **changes}
    if settings is not None:
        options |= {"n_envs": len(settings), "settings": list(settings)}
    return make_vec(make or config.id, **options)


def rollout_steps(config: GuerdonConfig, env: VectorEnv) -> int:
    """Return the rows of each environment that a rollout allocates at first."""
    steps = config.collect.n_step or env.n_envs
    return -(-steps // env.n_envs) + 1  # and one for resets


def find_device(name: str, key: str = "run.device") -> str:
    """Return the device of a name; ``auto`` is CUDA or MPS if available, else the CPU."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    best = "cpu" if accelerator is None else accelerator.type
    if name == "auto":
        return best
    kind, _, index = name.partition(":")
    number = 1 if kind == "cpu" else torch.accelerator.device_count()
    if kind not in ("cpu", best) or int(index or 0) >= number:
        raise ValueError(f"{key} is {name!r}, but torch finds no such device: use 'cpu'")
    return name


def compose_run(
    run_dir: str | Path,
    overrides: Sequence[str] = (),
    policy_fn: Callable[..., Policy] | None = None,
) -> GuerdonConfig:
    """Read the config of a run, which needs the `policy_fn` that the run was given."""
    folder = RunFolder(run_dir)
    folder.existing_config()
    if isinstance(policy_fn, type):
        name = sources.read(folder.path)["policy"]["type"]
        if name not in POLICIES.names():
            register_policy(name, policy_fn)
    return compose(folder.path, overrides)


# --- reward


def build_reward(
    config: GuerdonConfig,
    policy: Policy,
    env: VectorEnv,
    seed: int,
    note: Callable[..., object] = lambda *_: None,
) -> Reward:
    """Make the reward of a run, without its demonstrations and as it is before training."""
    setting = Setting(
        env.observation_space,
        env.action_space,
        n_envs=env.n_envs,
        gamma=config.policy.get("gamma", 0.99),
        seed=seed,
        device=str(policy.device),
        on_policy=policy.on_policy,
        horizon=config.env.max_episode_steps or registered_limit(config.env.id),
        log_prob=policy.log_prob if policy.has_density else None,
        example=env.example,
        frozen=not config.reward.cotrain,
        checkpoint_path=config.reward.checkpoint_path,
        note=note,
    )
    section = {name: getattr(config.reward, name) for name in (*STAGES, "terms")}
    for name, options in config.reward.terms.items():
        path = options.get("preferences_path")
        if path is not None and not Path(path).exists():
            raise FileNotFoundError(
                f"'reward.terms.{name}.preferences_path' names {path}, which is not there: put it "
                "back, or write where it is now (of a run, in its config.yaml)"
            )
    return make_reward(section, setting)


def prepare_reward(
    config: GuerdonConfig,
    policy: Policy,
    env: VectorEnv,
    seed: int,
    note: Callable[..., object] = lambda *_: None,
) -> Reward:
    """Make the reward of a run, with its demonstrations."""
    reward = build_reward(config, policy, env, seed, note)
    for name, (model, _) in reward.terms.items():
        if not uses_demonstrations(config, name):
            continue
        options, key = config.reward.terms[name], f"reward.terms.{name}"
        if "of" in options:  # an ensemble
            options, key = options["of"], f"{key}.of"
        with _explained(f"{key}.expert_data_path", options, f"reward {name!r}"):
            model.load_expert_data()
    _check_trained(config, reward)
    if _normalizes_by_demonstrations(config) and policy.uses_reward:
        held = [getattr(model, "demonstrations", None) for model in reward.models]
        found = [each for each in held if isinstance(each, Demonstrations)]
        if not found:
            raise ValueError(
                "'policy.model.normalize_obs' is 'demonstrations', but the reward has none: set it "
                "to true or false"
            )
        policy.normalize_by(found[0].transitions().obs)
    return reward


@contextmanager
def _explained(key: str, options: Mapping[str, Any], reader: str) -> Iterator[None]:
    """Let errors of reading data say whose data it is, or by which key it is found."""
    path = options.get(key.rpartition(".")[2])
    try:
        yield
    except FileNotFoundError as error:
        if path is None or str(path).startswith("zoo:"):
            raise
        raise FileNotFoundError(
            f"{error}; of a run, put them back, or write where they are now as {key!r} in its "
            "config.yaml"
        ) from error
    except ValueError as error:
        if path is None:
            raise
        raise ValueError(f"the {reader} cannot learn from {path}: {error}") from error


def uses_demonstrations(config: GuerdonConfig, name: str) -> bool:
    """Whether a term of the reward reads demonstrations: not if it is frozen from a checkpoint."""
    section, options = config.reward, dict(config.reward.terms[name])
    options.pop("weight", None)
    kind = REWARDS.get(options["type"])
    if "demonstrations" not in kind.requirements(validated(kind.Config, options, "reward")):
        return False
    frozen = section.checkpoint_path is not None and not section.cotrain
    return issubclass(kind, ReplaySource) or not frozen or _normalizes_by_demonstrations(config)


def _normalizes_by_demonstrations(config: GuerdonConfig) -> bool:
    return (config.policy.get("model") or {}).get("normalize_obs") == "demonstrations"


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
