"""The sections of a configuration, with types and defaults."""

from collections.abc import Sequence
from os.path import normpath
from typing import Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PositiveInt,
    field_validator,
    model_validator,
)

from guerdon.config.errors import ConfigError, suggestion
from guerdon.config.reads import unread
from guerdon.config.registry import registry_of
from guerdon.config.validation import completed, unknown_key, validated

Backend = Literal["auto", "native", "base", "subprocess", "async_subprocess", "envpool"]


class Section(BaseModel):
    """What all sections have in common: no unknown keys, and no change after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class EnvConfig(Section):
    """Which environments, and how they are run."""

    id: str
    """Gymnasium id, for example ``CartPole-v1``."""
    n_envs: int = Field(default=8, ge=1)
    """Environments side by side; usually 1 to 64."""
    backend: Backend = "auto"
    """How they are run; ``auto`` takes a native vector environment where there is one."""
    kwargs: dict[str, Any] = {}
    """Passed to the environment when it is made."""
    settings: list[dict[str, Any]] = []
    """Changes of ``kwargs`` for each environment, where they shall differ."""
    imports: list[str] = []
    """Modules to import first, which register environments."""
    wrappers: list[str] = Field(default_factory=lambda said: _usual_wrappers(said.get("id", "")))
    """Gymnasium wrappers for every environment, the first innermost: ``package.module:Class``;
    where left out, ``guerdon.envs.minigrid:minigrid_view`` for the tasks of ``MiniGrid-``."""
    max_episode_steps: int | None = Field(default=None, ge=1)
    """Truncates episodes at this length, instead of the environment's own limit."""
    frame_stack: int = Field(default=1, ge=1)
    """Observations stacked into one; 4 for Atari."""
    atari: bool = Field(default_factory=lambda said: _shows_atari(**said))
    """Whether to apply the usual Atari frame skipping, resizing and grey scale; where left out, to
    the games of ``ALE/``."""
    timeout: float = Field(default=60.0, gt=0)
    """Seconds after which a subprocess environment counts as hung."""
    max_restarts: int = Field(default=10, ge=0)
    """Restarts of crashed environments after which the run ends."""
    wait_num: int = Field(default=1, ge=1)
    """Environments that a step of ``async_subprocess`` waits for; 1 to half of ``n_envs``."""
    eval: dict[str, Any] = {}
    """Changes of these keys for the environments of evaluation."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.settings) > self.n_envs:
            raise ConfigError(
                f"'env.settings' has {len(self.settings)} entries for {self.n_envs} environments: "
                f"give at most one for each ('env.n_envs')"
            )
        self.for_evaluation()
        return self

    def for_evaluation(self, n_envs: int | None = None) -> "EnvConfig":
        """The section with the changes of ``eval``.

        Args:
            n_envs: Number of evaluation environments, unless ``eval`` says it.
        """
        if not self.eval and n_envs is None:
            return self
        values = {**self.model_dump(exclude={"eval"})}
        if n_envs is not None:
            values |= {"n_envs": n_envs, "settings": self.settings[:n_envs]}
        known = values.keys()
        for key in self.eval:
            if key not in known:
                raise ConfigError(f"unknown key 'env.eval.{key}': {suggestion(key, known)}")
        return validated(EnvConfig, {**values, **self.eval}, "env.eval")


def _shows_atari(id: str = "", kwargs: dict[str, Any] | None = None, **_: Any) -> bool:  # noqa: A002
    return id.startswith("ALE/") and (kwargs or {}).get("obs_type") != "ram"


def _usual_wrappers(env_id: str) -> list[str]:
    return ["guerdon.envs.minigrid:minigrid_view"] if env_id.startswith("MiniGrid-") else []


def check_image_size(size: Sequence[int] | None, key: str) -> None:
    """Refuses height, width and channels in the order in which arrays of pictures have them.

    Args:
        size: Channels, height and width.
        key: What to call it in an error.
    """
    if size is not None and size[0] > 4 >= size[2]:
        raise ConfigError(
            f"'{key}' is {list(size)}: channels come first, so write {[size[2], *size[:2]]}"
        )


class DataCollectionConfig(Section):
    """Which camera frames are kept for a reward model, and where."""

    positive_dir: str = Field(default="./reward_data/positive", min_length=1)
    """Folder of trajectories that succeeded: at any time, or in a frame of label 0.5 or more."""
    negative_dir: str = Field(default="./reward_data/negative", min_length=1)
    """Folder of all others."""
    image_keys: list[str] = Field(default=["base_camera"], min_length=1)
    """The cameras, by their names in the observations."""
    image_size: tuple[PositiveInt, PositiveInt, PositiveInt] | None = None
    """Channels, height and width that frames are resized to, for example ``[3, 64, 64]``; null
    keeps them as they are."""
    max_positive_trajectories: int | None = Field(default=500, ge=0)
    """Positive trajectories in the folder, those of earlier runs among them, at which no more are
    written; null for no limit."""
    max_negative_trajectories: int | None = Field(default=500, ge=0)
    """The same of negative ones."""
    format: Literal["npz", "npy"] = "npz"
    """``npz``: compressed uint8; ``npy``: pickled dictionaries of float32, many times larger."""

    @field_validator("max_positive_trajectories", "max_negative_trajectories", mode="before")
    @classmethod
    def _no_limit(cls, value: Any) -> Any:
        return None if value == "None" else value  # as it is also written, for null

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
    """What the learner shall believe: a weighted sum of terms, then scaled and clipped.

    One term can be written flat, ``{type: gail, ...}``; it becomes ``terms: {gail: {...}}``.
    """

    terms: dict[str, dict[str, Any]]
    """Options of each term by name; ``type`` (the name, where left out) and ``weight`` (1)."""
    scale: float = 1.0
    """Factor of the sum; 0.1 or so where returns are in the thousands."""
    clip: tuple[float, float] | None = None
    """Lowest and highest reward, for example ``[-1, 1]``."""
    normalize: bool = False
    """Whether to divide by a running standard deviation of the return."""
    pretrain: bool = False
    """Whether reward models are trained before the policy acts, on the data they have by then."""
    checkpoint_path: str | None = None
    """A run, or the folder ``reward`` of one, whose reward models to begin with, or the folder of a
    fit (`guerdon reward fit`); they stay as they are unless ``cotrain`` is set, too."""
    cotrain: bool = Field(default_factory=lambda said: said.get("checkpoint_path") is None)
    """Whether reward models are trained beside the policy; if not, they stay as they are. Where
    left out, they are unless ``checkpoint_path`` is set."""
    collect_data: bool = False
    """Whether to keep what cameras see as trajectories for `guerdon reward fit`."""
    data_collection: DataCollectionConfig = DataCollectionConfig()
    """What is kept then, and where."""

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
        _check_flat(options)
        _term(options["type"], options, "reward")  # its errors name keys as they are written
        return as_terms(values)

    @field_validator("terms", mode="after")
    @classmethod
    def _check_terms(cls, terms: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        if not terms:
            raise ConfigError("'reward.terms' is empty: give at least one, for example {env: {}}")
        return {
            name: _term(name, options, f"reward.terms.{name}") for name, options in terms.items()
        }

    @field_validator("clip", mode="after")
    @classmethod
    def _check_clip(cls, clip: tuple[float, float] | None) -> tuple[float, float] | None:
        if clip is not None and clip[0] >= clip[1]:
            raise ConfigError(f"'reward.clip' is {list(clip)}: the lowest has to come first")
        return clip


_SHARED = tuple(name for name in RewardConfig.model_fields if name != "terms")
"""Keys of the section that are not options of its one term, where that is written flat."""


def _check_flat(options: dict[str, Any]) -> None:
    """Rejects unknown keys of a term that is written flat, among keys of the whole section."""
    if not isinstance(options["type"], str):
        return
    config = _registered("reward", options["type"], "reward").Config
    known = sorted({*config.model_fields, *_SHARED, "type", "weight"})
    for key in options:
        if key not in known and config.model_config.get("extra") == "forbid":
            raise ConfigError(unknown_key(f"reward.{key}", {"reward": known}))


def as_terms(reward: dict[str, Any]) -> dict[str, Any]:
    """The section ``reward`` with its one term under ``terms``, if it is written flat.

    Args:
        reward: The section, not validated.
    """
    if "type" not in reward or "terms" in reward:
        return {**reward}
    shared = {key: reward[key] for key in _SHARED if key in reward}
    options = {key: value for key, value in reward.items() if key not in shared}
    terms = {options["type"]: options}
    config = registry_of("reward").get(options["type"]).Config
    weight = config.env_weight(options) if hasattr(config, "env_weight") else 0.0
    if weight:
        terms["env"] = {"weight": weight}
    return {"terms": terms, **shared}


class CollectConfig(Section):
    """How much is collected in an iteration."""

    n_step: int | None = Field(default=None, ge=1)
    """Environment steps of an iteration, over all environments."""
    n_episode: int | None = Field(default=None, ge=1)
    """Whole episodes of an iteration, instead of ``n_step``."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps with random actions before learning starts; off-policy, usually 1,000 to 50,000."""
    buffer_size: int | None = Field(default=None, ge=1)
    """Transitions the replay buffer holds; off-policy, usually 50,000 to 1,000,000."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.n_step is None) == (self.n_episode is None):
            given = "neither" if self.n_step is None else "both"
            raise ConfigError(f"give 'collect.n_step' or 'collect.n_episode', not {given}")
        return self


class LearnConfig(Section):
    """How much is learned in an iteration."""

    batch_size: int = Field(default=64, ge=1)
    """Transitions of a gradient step; usually 32 to 4,096."""
    repeat: int = Field(default=1, ge=1)
    """Passes over an on-policy rollout; 1 for a2c, 4 to 20 for ppo."""
    updates_per_collect: int = Field(default=1, ge=1)
    """Gradient steps of an off-policy iteration."""


class EvalConfig(Section):
    """How often and how the policy is evaluated."""

    every: int = Field(default=10_000, ge=1)
    """Environment steps between evaluations."""
    episodes: int = Field(default=20, ge=1)
    """Episodes of an evaluation; 20 to 100."""
    n_envs: int = Field(default_factory=lambda said: min(said.get("episodes", 1), 10), ge=1)
    """Environments side by side; as many as episodes, but not over 10, where left out."""
    target_return: float | None = None
    """Mean return at which the run stops."""
    select_by: Literal["reward", "env"] = "reward"
    """Return that selects `best` and stops at `target_return`: the learned one (``reward``) or the
    environment's (``env``)."""
    deterministic: bool = True
    """Whether to act without exploration."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.n_envs > self.episodes:
            raise ConfigError(
                f"'eval.n_envs' is {self.n_envs}, more than 'eval.episodes' ({self.episodes}): "
                f"give at most as many environments as episodes"
            )
        return self


class RunConfig(Section):
    """The budget of a run, and what it writes."""

    model_config = ConfigDict(coerce_numbers_to_str=True)  # `run.dir=3` is a folder

    dir: str | None = None
    """The run's folder; ``runs/<name>/<time>-<seed>`` where left out."""
    name: str = Field(default="run", min_length=1)
    """Names the run's folder and its curve; the preset where there is one."""
    max_steps: int = Field(default=100_000, ge=1)
    """Environment steps at which the run stops."""
    max_updates: int | None = Field(default=None, ge=1)
    """Calls of `Policy.update` at which the run stops; on-policy, one is a whole iteration."""
    max_seconds: float | None = Field(default=None, gt=0)
    """Seconds after which the run stops."""
    log_every: int = Field(default=2_000, ge=1)
    """Environment steps between log lines."""
    checkpoint_every: int | None = Field(default=None, ge=1)
    """Environment steps between checkpoints, at each of which open episodes are truncated; by
    default a twentieth of the run, but at least three episodes of each environment."""
    keep: int = Field(default=3, ge=1)
    """Number of checkpoints to keep."""
    device: str = Field(default="cpu", pattern=r"^(cpu|auto|mps|cuda(:\d+)?)$")
    """Where learning happens: ``cpu``, ``cuda``, ``cuda:1``, ``mps`` or ``auto``."""
    threads: int | None = Field(default=1, ge=1)
    """Threads of torch, null for its own choice: one is fastest for small networks. A run repeats
    exactly only with the same number."""


class GuerdonConfig(Section):
    """A whole configuration."""

    env: EnvConfig
    """Which environments, and how they are run."""
    policy: dict[str, Any]
    """``type`` names a registered policy; the other keys are those of its ``Config``."""
    reward: RewardConfig = Field(default_factory=lambda: RewardConfig(terms={"env": {}}))
    """What the learner shall believe."""
    collect: CollectConfig
    """How much is collected in an iteration."""
    learn: LearnConfig = LearnConfig()
    """How much is learned in an iteration."""
    eval: EvalConfig = EvalConfig()
    """How often and how the policy is evaluated."""
    run: RunConfig = RunConfig()
    """The budget of a run, and what it writes."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Of everything random."""
    imports: list[str] = []
    """Modules and paths of Python files to import first, which register policies, rewards, models
    or environments; a config file in Python that does so is among them by itself."""

    @field_validator("policy", mode="after")
    @classmethod
    def _check_policy(cls, policy: dict[str, Any]) -> dict[str, Any]:
        options = {key: value for key, value in policy.items() if key != "type"}
        return _options("policy", policy.get("type"), options, "policy")

    @model_validator(mode="after")
    def _check(self) -> Self:
        collect, learn = self.collect, self.learn
        policy = registry_of("policy").get(self.policy["type"])
        if policy.on_policy:
            read = "learn.batch_size" not in unread(policy)
            if read and collect.n_step is not None and learn.batch_size > collect.n_step:
                raise ConfigError(
                    f"'learn.batch_size' is {learn.batch_size}, more than 'collect.n_step' "
                    f"({collect.n_step}): an on-policy batch cannot be larger than the rollout"
                )
        elif collect.buffer_size is None:
            raise ConfigError(
                f"'collect.buffer_size' is missing: {self.policy['type']} learns from a buffer"
            )
        elif max(collect.warmup_steps, learn.batch_size) > collect.buffer_size:
            raise ConfigError(
                f"'collect.buffer_size' is {collect.buffer_size}: it has to hold a batch "
                f"({learn.batch_size}) and the warmup ({collect.warmup_steps} steps)"
            )
        return self

    @property
    def policy_options(self) -> dict[str, Any]:
        """The policy section without ``type``: the arguments of the policy's ``Config``."""
        return {key: value for key, value in self.policy.items() if key != "type"}


def _term(name: Any, options: dict[str, Any], path: str) -> dict[str, Any]:
    rest = {key: value for key, value in options.items() if key not in ("type", "weight")}
    weight = validated(_Weight, {"weight": options.get("weight", 1.0)}, path).weight
    checked = _options("reward", options.get("type", name), rest, path)
    return {"type": checked.pop("type"), "weight": weight, **checked}


class _Weight(Section):
    weight: float


def _options(kind: str, name: Any, options: dict[str, Any], path: str) -> dict[str, Any]:
    """The options of a registered class, checked and completed by its ``Config``."""
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
