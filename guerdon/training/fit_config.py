"""The configuration of a fit: what `guerdon reward fit` is told.

Keys are those of RLinf's reward workflow, whose files are read as they are; what does not apply to
one process with all frames in memory is accepted, and said to be.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Self

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ConfigDict, Field, model_validator

from guerdon.config import sources
from guerdon.config.errors import ConfigError, line, suggestion
from guerdon.config.schema import Section
from guerdon.config.validation import validated
from guerdon.nn.classifier import ClassifierConfig

GROUP = "fit"
_OVERRIDE = re.compile(r"[+]{0,2}([\w.]+)=(.*)", re.DOTALL)


class OptimConfig(Section):
    """How gradients are followed."""

    optimizer: Literal["adam", "adamw"] = "adam"
    """Both are AdamW, which without weight decay is Adam."""
    lr: float = Field(default=1e-4, gt=0)
    """Step size; 1e-4 at full width, up to 1e-3 for narrow encoders."""
    clip_grad: float | None = Field(default=1.0, ge=0)
    """Gradients with a larger norm are scaled down to it; 0 or null for none."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Pull of weights towards 0; 0 to 0.05."""
    betas: tuple[float, float] = (0.9, 0.999)
    """How long Adam remembers gradients and their squares."""
    eps: float = Field(default=1e-8, gt=0)
    """Keeps Adam's steps finite."""


class ScheduleConfig(Section):
    """How the step size changes over a fit."""

    type: Literal["constant", "linear", "cosine"] = "constant"
    """After the warmup: stays, or goes down to ``min_lr`` in a line or along a cosine."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps over which it grows from 0; 0 to a tenth of all."""
    min_lr: float = Field(default=0.0, ge=0)
    """Where ``linear`` and ``cosine`` end."""


class FitDataConfig(Section):
    """Which frames a classifier learns from."""

    model_config = ConfigDict(coerce_numbers_to_str=True)

    positive_dir: str = "./reward_data/positive"
    """Trajectories with a success; see `guerdon.data.frames`."""
    negative_dir: str = "./reward_data/negative"
    """Trajectories without."""
    image_key: str | None = None
    """The one camera, if it is one; another way to say ``reward.model.image_keys``."""
    image_keys: list[str] | None = None
    """The cameras; another way to say ``reward.model.image_keys``."""
    num_workers: int = Field(default=0, ge=0)
    """Not read: all frames are in memory."""
    validation_share: float = Field(default=0.2, gt=0, lt=1)
    """Share of the trajectories that the classifier does not learn from; 0.1 to 0.3."""
    augment: bool = True
    """Whether frames are shifted by up to 4 pixels and their brightness and contrast changed a
    little, another way each time; not with a frozen encoder."""
    max_frames: int | None = Field(default=None, ge=2)
    """Frames to learn from at most, half of them with success if there are enough; null for all.
    Validation has all of its frames."""

    @property
    def cameras(self) -> list[str] | None:
        """The cameras, if they are said here."""
        return [self.image_key] if self.image_key is not None else self.image_keys


class FitSection(Section):
    """A classifier, and how it is fitted."""

    model_config = ConfigDict(coerce_numbers_to_str=True)

    model: ClassifierConfig = ClassifierConfig()
    """What the classifier is built from."""
    optim: OptimConfig = OptimConfig()
    """How gradients are followed."""
    lr_sched: ScheduleConfig = ScheduleConfig()
    """How the step size changes."""
    data: FitDataConfig = FitDataConfig()
    """Which frames."""
    global_batch_size: int = Field(default=32, ge=2)
    """Frames of a gradient step, half of them with success; 32 to 256."""
    num_epochs: int = Field(default=100, ge=1)
    """Passes over the frames of the rarer label; each comes with as many of the other label."""
    log_interval: int = Field(default=100, ge=1)
    """Steps between log lines."""
    save_interval: int = Field(default=1000, ge=1)
    """Steps between checkpoints; each is validated first."""
    save_dir: str = Field(default="reward_models/classifier", min_length=1)
    """Where checkpoints and metrics go."""
    keep: int = Field(default=3, ge=1)
    """Checkpoints kept beside the best one."""
    members: int = Field(default=1, ge=1)
    """Classifiers of an ensemble, each with its own beginning and order of frames; 1 to 5."""
    target_fpr: float = Field(default=0.01, ge=0, lt=1)
    """The share of validation frames without success that may pass the threshold; 0 to 0.05."""
    gpu_id: int | None = Field(default=None, ge=0)
    """The GPU to fit on, if there is one; ``device`` says it, too."""
    group_name: str | None = None
    """Not read: there is one process."""
    training_backend: Literal["simple"] = "simple"
    """One process."""

    @model_validator(mode="before")
    @classmethod
    def _name_cameras(cls, values: Any) -> Any:
        """Lets the model see the cameras that only the data section names."""
        if not isinstance(values, dict):
            return values
        model, data = values.get("model") or {}, values.get("data") or {}
        if not isinstance(model, dict) or not isinstance(data, dict) or "image_keys" in model:
            return values
        cameras = [data["image_key"]] if data.get("image_key") else data.get("image_keys")
        return {**values, "model": {**model, "image_keys": cameras}} if cameras else values

    @model_validator(mode="after")
    def _check(self) -> Self:
        said = self.data.cameras
        if self.data.image_key is not None and self.data.image_keys not in (None, said):
            raise ConfigError(
                "give 'reward.data.image_key' or 'reward.data.image_keys', not both: they differ"
            )
        if said is not None and said != self.model.image_keys:
            key = "image_key" if self.data.image_key is not None else "image_keys"
            raise ConfigError(
                f"'reward.data.{key}' names {', '.join(said)}, but 'reward.model.image_keys' "
                f"{', '.join(self.model.image_keys)}: leave out one of them"
            )
        return self


class RunnerConfig(Section):
    """Names for ``reward.save_dir`` to be made of: ``${runner.output_dir}``."""

    model_config = ConfigDict(coerce_numbers_to_str=True)

    task_type: Literal["embodied"] = "embodied"
    """The only one there is."""
    output_dir: str = "reward_models"
    """A folder of results."""
    experiment_name: str = "classifier"
    """A folder in it."""


class FitConfig(Section):
    """A whole configuration of a fit."""

    reward: FitSection = FitSection()
    """A classifier, and how it is fitted."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Of everything random."""
    device: str | None = Field(default=None, pattern=r"^(cpu|auto|mps|cuda(:\d+)?)$")
    """Where to fit: ``cpu`` (where left out), ``cuda``, ``cuda:1``, ``mps`` or ``auto``."""
    threads: int | None = Field(default=None, ge=1)
    """Threads of torch, null for its own choice. A fit repeats exactly only with the same number
    of them."""
    runner: RunnerConfig = RunnerConfig()
    """Names to make ``reward.save_dir`` of."""
    cluster: dict[str, Any] | None = None
    """Not read: there is one process."""


def compose_fit(
    source: str | Path | Mapping[str, Any] | None = None, overrides: Iterable[str] = ()
) -> FitConfig:
    """Composes and checks the configuration of a fit.

    Args:
        source: A preset (``"reach_classifier"``), the path of a YAML file, a mapping, or None.
        overrides: Dotted keys with values: ``"reward.optim.lr=3e-4"``.
    """
    values = _read(source)
    values.pop("defaults", None)  # Hydra's: of a file of RLinf, about its log
    config = OmegaConf.create(values)
    for override in overrides:
        key, value = _parsed(override)
        try:
            OmegaConf.update(config, key, value, merge=isinstance(value, dict), force_add=True)
        except OmegaConfBaseException as error:
            raise ConfigError(f"the override {override!r} cannot be used: {line(error)}") from error
    try:
        resolved = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise ConfigError(f"the configuration cannot be composed: {line(error)}") from error
    return validated(FitConfig, resolved)


def _read(source: str | Path | Mapping[str, Any] | None) -> dict[str, Any]:
    if source is None:
        return {}
    if isinstance(source, Mapping):
        return dict(sources.plain(source))
    if sources.is_file(source):
        return sources.read(Path(source))
    known = sources.options(GROUP)
    if source not in known:
        hint = suggestion(str(source), known)
        raise ConfigError(f"unknown preset of a fit {str(source)!r}: {hint} (a file ends in .yaml)")
    return sources.read(sources.ZOO / GROUP / f"{source}.yaml")


def _parsed(override: str) -> tuple[str, Any]:
    match = _OVERRIDE.fullmatch(override)
    if match is None:
        raise ConfigError(f"the override {override!r} is not of the form key=value")
    key, text = match.groups()
    try:  # OmegaConf's own YAML, which reads 1e-4 as a number
        value = OmegaConf.to_container(OmegaConf.from_dotlist([f"value={text}"]), resolve=False)
    except Exception:  # of PyYAML or of OmegaConf: such as a path with brackets, which is text
        return key, text
    assert isinstance(value, dict)
    return key, value["value"]
