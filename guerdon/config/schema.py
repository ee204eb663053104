"""Sections of a configuration, with types, defaults and checks; the only definition of its keys.

Options of policies and reward models are defined by the ``Config`` of their classes.
"""

import importlib
from collections.abc import Mapping, Sequence
from os.path import normpath
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, field_validator, model_validator

from guerdon.config.errors import ConfigError, suggestion
from guerdon.config.imports import PROGRAMS, announce, find_object, import_all, leaves
from guerdon.config.registry import registry_of
from guerdon.config.validation import ReadIf, completed, refuse, unknown_key, validated

MOST_ENVS = 1 << 16
"""Maximum number of environments: a config of a stranger may name any."""
Backend = Literal["auto", "native", "base", "subprocess", "async_subprocess", "envpool"]
SUPERSEDES = (
    ("collect.n_step", "collect.n_episode"),
    ("collect.n_episode", "collect.n_step"),
    ("eval.episodes", "eval.n_envs"),
    ("reward.checkpoint_path", "reward.cotrain"),
)
"""Pairs of keys: setting the first in a file or override resets the second to its default, unless
the same file or override sets it, too."""


class Section(BaseModel):
    """Base class of all sections: frozen, rejects unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class EnvConfig(Section):
    """Training and evaluation environments."""

    id: str
    """Gymnasium id (``CartPole-v1``), ``package.module:Name`` or ``path/to/file.py:Name``."""
    n_envs: int = Field(default=8, ge=1, le=MOST_ENVS)
    """Number of parallel environments; usually 1 to 64."""
    backend: Backend = "auto"
    """Vectorisation backend; ``auto`` uses a native vector environment if available."""
    kwargs: dict[str, Any] = {}
    """Arguments of the environment."""
    settings: list[dict[str, Any]] = []
    """Changes of ``kwargs``, one entry per environment."""
    imports: list[str] = []
    """Modules to import first, which register environments."""
    wrappers: list[str] = Field(default_factory=lambda given: _usual_wrappers(given.get("id", "")))
    """Gymnasium wrappers (``package.module:Class``), innermost first. Default: none;
    ``guerdon.envs.minigrid:minigrid_view`` for ``MiniGrid-`` tasks."""
    max_episode_steps: int | None = Field(default=None, ge=1)
    """Episode length at which to truncate; defaults to the environment's limit."""
    frame_stack: int = Field(default=1, ge=1)
    """Number of stacked observations; 4 for Atari."""
    atari: bool = Field(default_factory=lambda given: _shows_atari(**given))
    """Atari preprocessing (frame skip, resize, grayscale). Default: true for ``ALE/`` games."""
    timeout: float = Field(default=60.0, gt=0)
    """Seconds after which an unresponsive subprocess environment is restarted; usually 10 to
    600."""
    max_restarts: int = Field(default=10, ge=0)
    """Number of restarts of crashed environments after which the run stops."""
    wait_num: int = Field(default=1, ge=1)
    """Number of environments that a step of ``async_subprocess`` waits for; usually 1 to
    ``n_envs`` / 2."""
    eval: dict[str, Any] = {}
    """Options of this section that differ in evaluation."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        import_all(self.imports, "env.imports")
        if ":" in self.id:  # a class, or a module that registers an id
            find_object(self.id, "env.id", importlib.import_module("gymnasium").registry)
        for wrapper in self.wrappers:
            find_object(wrapper, "env.wrappers")
        # What an environment makes of these is its own, possibly in another process.
        for key, value in leaves([self.kwargs, self.settings]):
            if isinstance(value, str) and (key in PROGRAMS or ":" in value):
                announce(value)
        if len(self.settings) > self.n_envs:
            raise ConfigError(
                f"'env.settings' has {len(self.settings)} entries for {self.n_envs} environments: "
                f"give at most one for each ('env.n_envs')"
            )
        if self.eval:
            self.for_evaluation(self.n_envs)
        return self

    def for_evaluation(self, n_envs: int) -> "EnvConfig":
        """Return the section with the changes of ``eval``.

        Args:
            n_envs: Number of evaluation environments; extra entries of ``settings`` are dropped.
        """
        if "n_envs" in self.eval:
            raise ConfigError("'env.eval' has 'n_envs': set 'eval.n_envs' instead")
        values = self.model_dump(exclude={"eval", "n_envs"})
        for key in self.eval.keys() - values.keys():
            raise ConfigError(f"unknown key 'env.eval.{key}': {suggestion(key, values)}")
        values |= self.eval
        if isinstance(values["settings"], list):
            values["settings"] = values["settings"][:n_envs]
        return validated(EnvConfig, {**values, "n_envs": n_envs}, "env.eval")


def _shows_atari(id: str = "", kwargs: dict[str, Any] | None = None, **_: Any) -> bool:  # noqa: A002
    return id.startswith("ALE/") and (kwargs or {}).get("obs_type") != "ram"


def _usual_wrappers(env_id: str) -> list[str]:
    return ["guerdon.envs.minigrid:minigrid_view"] if env_id.startswith("MiniGrid-") else []


def check_image_size(size: Sequence[int] | None, key: str) -> None:
    """Raise an error for sizes given as (height, width, channels)."""
    if size is not None and size[0] > 4 >= size[2]:
        raise ConfigError(
            f"'{key}' is {list(size)}: channels come first, so write {[size[2], *size[:2]]}"
        )


class DataCollectionConfig(Section):
    """Camera frames to save for fitting a reward model."""

    positive_dir: str = Field(default="./reward_data/positive", min_length=1)
    """Folder of trajectories that succeeded at any time, or have a label of 0.5 or more."""
    negative_dir: str = Field(default="./reward_data/negative", min_length=1)
    """Folder of all other trajectories."""
    image_keys: list[str] = Field(default=["base_camera"], min_length=1)
    """Names of cameras in the observations."""
    image_size: tuple[PositiveInt, PositiveInt, PositiveInt] | None = None
    """Channels, height and width to resize frames to, for example ``[3, 64, 64]``."""
    max_positive_trajectories: int | None = Field(default=500, ge=0)
    """Number of positive trajectories in the folder, including earlier runs, at which to stop
    saving; null for no limit."""
    max_negative_trajectories: int | None = Field(default=500, ge=0)
    """Number of negative trajectories at which to stop saving; null for no limit."""
    format: Literal["npz", "npy"] = "npz"
    """``npz``: compressed uint8; ``npy``: pickled dictionaries of float32, many times larger."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if normpath(self.positive_dir) == normpath(self.negative_dir):
            raise ConfigError(
                f"'positive_dir' and 'negative_dir' are both {self.positive_dir!r}: "
                f"give two folders"
            )
        if len(set(self.image_keys)) < len(self.image_keys):
            raise ConfigError(f"'image_keys' is {self.image_keys}: name each camera once")
        check_image_size(self.image_size, "image_size")
        return self


class RewardConfig(Section):
    """Weighted sum of reward terms, then scaled and clipped.

    One term can be written flat, ``{type: gail, ...}``; it becomes ``terms: {gail: {...}}``.
    """

    terms: dict[str, dict[str, Any]]
    """Options of each term by name, including ``type`` (default: the name) and ``weight`` (1)."""
    scale: float = 1.0
    """Factor of the sum; usually 1, and about 0.1 if returns are in the thousands."""
    clip: tuple[float, float] | None = None
    """Minimum and maximum reward, for example ``[-1, 1]``; null for no clipping."""
    normalize: bool = False
    """Divide by a running standard deviation of the return."""
    pretrain: bool = False
    """Train reward models before the policy, on the data available by then."""
    checkpoint_path: str | None = None
    """Run, its folder ``reward``, or a fit (`guerdon reward fit`) to load reward models from."""
    cotrain: bool = Field(default_factory=lambda given: given.get("checkpoint_path") is None)
    """Train reward models with the policy. Default: true unless ``checkpoint_path`` is set."""
    ood: Literal["warn", "floor", "off"] = "warn"
    """Transitions unlike the data that a reward was fitted to: measure them in evaluations and
    ``warn``, give them the lowest reward of that data (``floor``; a reward that is trained with the
    policy only warns), or ``off``."""
    collect_data: bool = False
    """Save camera frames as trajectories for `guerdon reward fit`."""
    data_collection: DataCollectionConfig = DataCollectionConfig()
    """Frames to save, and their folders."""
    read_if: ClassVar[ReadIf] = (("data_collection", "collect_data", True),)

    @model_validator(mode="before")
    @classmethod
    def _name_the_term(cls, values: Any) -> Any:
        if not isinstance(values, dict) or "type" not in values:
            return values
        if "terms" in values:
            raise ConfigError(
                "'reward' has 'type' and 'terms': write one term flat, or several under 'terms'"
            )
        options = {key: value for key, value in values.items() if key not in _SHARED}
        if isinstance(options["type"], str):
            config = _registered("reward", options["type"], "reward").Config
            known = {"reward": sorted({*config.model_fields, *_SHARED, "type", "weight"})}
            closed = config.model_config.get("extra") == "forbid"
            for key in [key for key in options if closed and key not in known["reward"]]:
                raise ConfigError(unknown_key(f"reward.{key}", known))
        _term(options["type"], options, "reward")  # so that errors have the keys as written
        return as_terms(values)

    @field_validator("terms", mode="after")
    @classmethod
    def _check_terms(cls, terms: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        if not terms:
            raise ConfigError("'reward.terms' is empty: give at least one, for example {env: {}}")
        return {
            name: _term(name, options, f"reward.terms.{name}") for name, options in terms.items()
        }

    @model_validator(mode="after")
    def _check_read(self) -> Self:
        for name, options in () if self.cotrain else self.terms.items():
            config = registry_of("reward").get(options["type"]).Config
            unread = getattr(config, "read_if_cotrained", ())
            reason = "'reward.cotrain' is False"
            path = "reward" if [*self.terms] == [options["type"]] else f"reward.terms.{name}"
            refuse(config.model_construct(**options), unread, reason, path)
        return self

    @field_validator("clip", mode="after")
    @classmethod
    def _check_clip(cls, clip: tuple[float, float] | None) -> tuple[float, float] | None:
        if clip is not None and clip[0] >= clip[1]:
            raise ConfigError(f"'reward.clip' is {list(clip)}: the lowest has to come first")
        return clip


_SHARED = tuple(name for name in RewardConfig.model_fields if name != "terms")
"""Keys of the section that are not options of a flat term."""


def as_terms(reward: dict[str, Any]) -> dict[str, Any]:
    """Return the section ``reward`` with a flat term moved to ``terms``."""
    if "type" not in reward or "terms" in reward:
        return {**reward}
    shared = {key: reward[key] for key in _SHARED if key in reward}
    options = {key: value for key, value in reward.items() if key not in shared}
    terms = {options["type"].rpartition(":")[2]: options}
    config = registry_of("reward").get(options["type"]).Config
    weight = config.env_weight(options) if hasattr(config, "env_weight") else 0.0
    if weight:
        terms["env"] = {"weight": weight}
    return {"terms": terms, **shared}


class CollectConfig(Section):
    """Data collected per iteration."""

    n_step: int | None = Field(default=None, ge=1)
    """Environment steps per iteration, over all environments; usually 1 to 64, on-policy 32 to
    8,192."""
    n_episode: int | None = Field(default=None, ge=1)
    """Episodes per iteration, instead of ``n_step``."""
    warmup_steps: int = Field(default=0, ge=0)
    """Off-policy: random steps before learning starts; usually 1,000 to 100,000."""
    buffer_size: int | None = Field(default=None, ge=1)
    """Off-policy: capacity of the replay buffer; usually 10,000 to 1,000,000."""
    shards: int | None = Field(default=None, ge=1, le=1_024)
    """Number of equal groups of environments, each with random generators of its own. A serial run
    with k shards learns the same, bit for bit, as one with ``runtime=ray`` and k collectors, which
    sets it; null for a single collector."""


class LearnConfig(Section):
    """Updates per iteration."""

    batch_size: int = Field(default=64, ge=1)
    """Minibatch size; usually 32 to 4,096."""
    repeat: int = Field(default=1, ge=1)
    """On-policy: epochs per rollout; 1 for a2c, usually 3 to 20 for ppo."""
    updates_per_collect: int = Field(default=1, ge=1)
    """Off-policy and offline: gradient steps per iteration; usually 1 to ``collect.n_step``."""


class EvalConfig(Section):
    """Evaluation."""

    every: int = Field(default=10_000, ge=1)
    """Environment steps (offline: updates) between evaluations; usually a tenth to a hundredth of
    the run."""
    episodes: int = Field(default=20, ge=1)
    """Episodes per evaluation; usually 5 to 100."""
    n_envs: int = Field(
        default_factory=lambda given: min(given.get("episodes", 1), 10), ge=1, le=MOST_ENVS
    )
    """Number of parallel environments. Default: ``episodes``, at most 10."""
    target_return: float | None = None
    """Mean evaluation return at which the run stops; null for none."""
    select_by: Literal["reward", "env"] = "reward"
    """Return for selecting `best` and for `target_return`: the learned one (``reward``) or the
    environment's (``env``)."""
    deterministic: bool = True
    """Evaluate without exploration."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.n_envs > self.episodes:
            raise ConfigError(
                f"'eval.n_envs' is {self.n_envs}, more than 'eval.episodes' ({self.episodes}): "
                f"give at most as many environments as episodes"
            )
        return self


class RunConfig(Section):
    """Limits, logging and checkpoints of a run."""

    model_config = ConfigDict(coerce_numbers_to_str=True)  # `run.dir=3` is a folder

    dir: str | None = None
    """Run directory; defaults to ``runs/<name>/<time>-<seed>``."""
    name: str = Field(default="run", min_length=1)
    """Name of the run; defaults to the preset's."""
    max_steps: int = Field(default=100_000, ge=1)
    """Number of environment steps at which the run stops. An offline policy (bc) takes none: for it
    this and all other intervals are numbers of updates."""
    max_updates: int | None = Field(default=None, ge=1)
    """Number of calls of `Policy.update` at which the run stops; on-policy, one per iteration."""
    max_seconds: float | None = Field(default=None, gt=0)
    """Seconds after which the run stops."""
    log_every: int = Field(default=2_000, ge=1)
    """Environment steps between log lines."""
    wandb: bool = False
    """Send metrics to Weights & Biases, too (extra ``wandb``); its variables apply, such as
    ``WANDB_PROJECT`` and ``WANDB_MODE=offline``."""
    checkpoint_every: int | None = Field(default=None, ge=1)
    """Environment steps between checkpoints, which truncate open episodes; by default a twentieth
    of the run, but at least three episodes of each environment."""
    keep: int = Field(default=3, ge=1)
    """Number of checkpoints to keep."""
    callback: str | None = None
    """Subclass of `guerdon.Callback` (``package.module:Name`` or ``path/to/file.py:Name``); or a
    function to call with the step, the metrics and the policy whenever metrics are logged, and the
    run stops if it returns False."""
    device: str = Field(default="cpu", pattern=r"^(cpu|auto|mps|cuda(:\d+)?)$")
    """Device of the learner: ``cpu``, ``cuda``, ``cuda:1``, ``mps`` or ``auto``."""
    threads: int | None = Field(default=1, ge=1)
    """Number of torch threads; null for torch's default. Runs are reproducible bit for bit only
    with the same number."""

    @field_validator("callback")
    @classmethod
    def _check_callback(cls, name: str | None) -> str | None:
        if name is not None and not callable(find_object(name, "run.callback")):
            raise ConfigError(f"'run.callback' is {name!r}, which is no class or function")
        return name


class RuntimeConfig(Section):
    """Where a run is executed."""

    type: Literal["serial", "ray"] = "serial"
    """``serial``: in one process. ``ray``: in many processes, on one machine or many (extra
    ``ray``)."""
    num_collectors: int = Field(default=1, ge=1)
    """Number of collectors, among which the environments are divided."""
    num_evaluators: int = Field(default=0, ge=0)
    """Number of workers that evaluate, among which the episodes are divided; 0 evaluates in the
    process of the learner. With one, evaluations are those of a serial run."""
    num_learners: int = Field(default=0, ge=0)
    """Number of workers that learn; 0 learns in the process that you start. 1 has the whole loop in
    a worker, which is restarted from its last checkpoint if it is killed; of several, each computes
    the gradients of its rows of every batch (`a2c`, `dqn`, `impala`, `ppo`)."""
    num_reward_workers: int = Field(default=0, ge=0)
    """Number of workers that annotate, score and train a learned reward; 0 does it in the process
    of the learner. Of several, the first one only trains."""
    mode: Literal["sync", "async"] = "sync"
    """``sync``: collectors and the learner take turns, and the run is reproducible. ``async``:
    collectors go on while the learner learns, with weights that are a few updates old."""
    max_staleness: int = Field(default=4, ge=1)
    """On-policy, with ``mode=async``: iterations after which a rollout is too old to learn from;
    usually 1 to 8, for `impala` up to 32."""
    cpus_per_collector: float = Field(default=1.0, gt=0)
    """CPUs that each collector reserves."""
    address: str | None = None
    """Address of a Ray cluster; ``auto`` finds the one of this machine. Null starts Ray on this
    machine, and stops it at the end."""
    wait_seconds: float = Field(default=300.0, gt=0)
    """Seconds to wait for the CPUs and GPUs of a cluster, also after a node of it was lost."""
    timeout: float = Field(default=300.0, gt=0)
    """Seconds after which a worker that does not answer is restarted."""
    max_restarts: int = Field(default=10, ge=0)
    """Number of restarts of workers after which the run stops."""
    read_if: ClassVar[ReadIf] = (
        ("max_staleness", "mode", "async"),
        ("num_collectors", "type", "ray"),
        ("num_evaluators", "type", "ray"),
        ("num_learners", "type", "ray"),
        ("num_reward_workers", "type", "ray"),
        ("mode", "type", "ray"),
        ("cpus_per_collector", "type", "ray"),
        ("address", "type", "ray"),
        ("wait_seconds", "type", "ray"),
        ("timeout", "type", "ray"),
        ("max_restarts", "type", "ray"),
    )


class GuerdonConfig(Section):
    """Complete configuration."""

    env: EnvConfig
    """Environments."""
    policy: dict[str, Any]
    """Policy to train: ``type``, and the options of its ``Config``."""
    reward: RewardConfig = Field(default_factory=lambda: RewardConfig(terms={"env": {}}))
    """Reward; defaults to the environment reward."""
    collect: CollectConfig = CollectConfig()
    """Data collected per iteration."""
    learn: LearnConfig = LearnConfig()
    """Updates per iteration."""
    eval: EvalConfig = EvalConfig()
    """Evaluation."""
    run: RunConfig = RunConfig()
    """Limits, logging and checkpoints."""
    runtime: RuntimeConfig = RuntimeConfig()
    """Where the run is executed."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Random seed."""
    imports: list[str] = []
    """Modules and Python files to import first, which register policies, rewards, models or
    environments; includes a Python config file that does so."""

    @field_validator("policy", mode="after")
    @classmethod
    def _check_policy(cls, policy: dict[str, Any]) -> dict[str, Any]:
        options = {key: value for key, value in policy.items() if key != "type"}
        return _options("policy", policy.get("type"), options, "policy")

    @model_validator(mode="after")
    def _check(self) -> Self:
        name = self.policy["type"]
        policy = registry_of("policy").get(name)
        idle = dict.fromkeys(unread(policy, self.policy), name)
        backends = {self.env.backend, self.env.eval.get("backend")}
        for option, readers in _READ_BY.items():
            if not backends & readers:
                idle[f"env.{option}"] = f"env.backend={self.env.backend}"
        for key, reader in idle.items():
            section, _, option = key.partition(".")
            values = getattr(self, section)
            value, default = getattr(values, option), type(values).model_fields[option].default
            if value != default:
                instead = _INSTEAD.get(key, key)
                fix = "leave it out" if instead in idle else f"use {instead!r}"
                raise ConfigError(f"{key!r} is {value}, but {reader} does not read it: {fix}")
        self._check_shards()
        if self.runtime.num_learners > 1 and not getattr(policy, "splits", False):
            raise ConfigError(
                f"'runtime.num_learners' is {self.runtime.num_learners}, but the loss of {name} "
                "cannot be divided among learners: set it to 1"
            )
        no_reward = type(self).model_fields["reward"].get_default(call_default_factory=True)
        if not policy.uses_reward and self.reward != validated(RewardConfig, no_reward):
            raise ConfigError(f"'reward' is set, but {name} learns from no reward: leave it out")
        kinds = {term["type"] for term in self.reward.terms.values()}
        if self.runtime.num_reward_workers and kinds == {"env"}:
            raise ConfigError(
                "'runtime.num_reward_workers' has no effect on the environment reward: leave it out"
            )
        weights = [term["weight"] for term in self.reward.terms.values()]
        if not any(weights) and not self.policy.get("intrinsic"):
            raise ConfigError(
                "all terms of 'reward' have weight 0, so there is nothing to learn: set another "
                "weight, or list terms in 'policy.intrinsic.terms' of ppo"
            )
        if not policy.offline:
            on_policy = policy.learns_on_policy(self.policy)
            self._check_sizes(on_policy, name, "learn.batch_size" not in idle)
        return self

    def _check_sizes(self, on_policy: bool, name: str, reads_batch_size: bool) -> None:
        """Check how much is collected, stored and learned from at once."""
        collect, learn = self.collect, self.learn
        if (collect.n_step is None) == (collect.n_episode is None):
            given = "neither" if collect.n_step is None else "both"
            raise ConfigError(f"give 'collect.n_step' or 'collect.n_episode', not {given}")
        if on_policy:
            if (
                reads_batch_size
                and collect.n_step is not None
                and learn.batch_size > collect.n_step
            ):
                raise ConfigError(
                    f"'learn.batch_size' is {learn.batch_size}, more than 'collect.n_step' "
                    f"({collect.n_step}): an on-policy batch cannot be larger than the rollout"
                )
        elif collect.buffer_size is None:
            raise ConfigError(f"'collect.buffer_size' is missing: {name} learns from a buffer")
        elif max(collect.warmup_steps, learn.batch_size) > collect.buffer_size:
            raise ConfigError(
                f"'collect.buffer_size' is {collect.buffer_size}: it has to hold a batch "
                f"({learn.batch_size}) and the warmup ({collect.warmup_steps} steps)"
            )
        elif collect.warmup_steps >= self.run.max_steps:
            raise ConfigError(
                f"'collect.warmup_steps' is {collect.warmup_steps} and 'run.max_steps' "
                f"{self.run.max_steps}: {name} learns after the warmup, so make it shorter"
            )

    def _check_shards(self) -> None:
        ray, shards = self.runtime.type == "ray", self.n_shards
        if shards is None:
            return
        name = "runtime.num_collectors" if ray else "collect.shards"
        if ray and self.collect.shards not in (None, shards):
            raise ConfigError(
                f"'collect.shards' is {self.collect.shards} and 'runtime.num_collectors' {shards}: "
                "leave 'collect.shards' out"
            )
        if self.env.n_envs % shards:
            raise ConfigError(
                f"'env.n_envs' is {self.env.n_envs}, which {name!r} ({shards}) does not divide"
            )
        episodes = self.collect.n_episode
        if episodes is not None and episodes < shards:
            raise ConfigError(
                f"'collect.n_episode' is {episodes}, less than {name!r} ({shards}): each collects "
                "at least one"
            )
        if self.runtime.num_evaluators > self.eval.n_envs:
            raise ConfigError(
                f"'runtime.num_evaluators' is {self.runtime.num_evaluators}, more than "
                f"'eval.n_envs' ({self.eval.n_envs}): each needs an environment"
            )

    @property
    def n_shards(self) -> int | None:
        """Number of shards of the environments; None for a single collector."""
        return self.runtime.num_collectors if self.runtime.type == "ray" else self.collect.shards


_PROCESSES = {"subprocess", "async_subprocess"}
_READ_BY = {"timeout": _PROCESSES, "max_restarts": _PROCESSES, "wait_num": {"async_subprocess"}}
"""Options of ``env`` that are used only by some backends."""
_INSTEAD = {
    "learn.repeat": "learn.updates_per_collect",
    "learn.updates_per_collect": "learn.repeat",
}


def unread(policy: Any, options: Mapping[str, Any]) -> list[str]:
    """Return the dotted keys of ``collect`` and ``learn`` that have no effect with a policy.

    Args:
        policy: Its class.
        options: Its section of the config.
    """
    if policy.offline:
        return [*(f"collect.{name}" for name in CollectConfig.model_fields), "learn.repeat"]
    if not policy.learns_on_policy(options):
        return ["learn.repeat"]
    keys = ["collect.buffer_size", "collect.warmup_steps", "learn.updates_per_collect"]
    return [*keys, *getattr(policy, "ignores", ())]


def _term(name: Any, options: dict[str, Any], path: str) -> dict[str, Any]:
    rest = {key: value for key, value in options.items() if key not in ("type", "weight")}
    weight = validated(TermConfig, {"weight": options.get("weight", 1.0)}, path).weight
    checked = _options("reward", options.get("type", name), rest, path)
    return {"type": checked.pop("type"), "weight": weight, **checked}


class TermConfig(Section):
    """Options of every reward term, in addition to its ``Config``."""

    weight: float = 1.0
    """Weight of the term in the sum; 0 logs the term without learning from it."""


def _options(kind: str, name: Any, options: dict[str, Any], path: str) -> dict[str, Any]:
    """Return the options of a registered class, checked and completed by its ``Config``."""
    if not isinstance(name, str):
        known = ", ".join(registry_of(kind).names())
        raise ConfigError(f"'{path}.type' is missing: choose from {known}")
    config = _registered(kind, name, path).Config
    named = {"type": name} if "type" in config.model_fields else {}
    values = completed(config, {**named, **options})
    return {"type": name, **validated(config, values, path).model_dump()}


def _registered(kind: str, name: str, path: str) -> Any:
    try:
        return registry_of(kind).get(name)
    except ConfigError as error:
        raise ConfigError(f"'{path}.type': {error}") from None
