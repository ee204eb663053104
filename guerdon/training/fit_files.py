"""Config and files of a fit: what `guerdon reward fit` reads and writes.

Keys are those of RLinf's reward workflow. `guerdon.compat.layouts.translated_fit` renames or drops
others of its files.
"""

import os
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ConfigDict, Field

from guerdon.config import sources
from guerdon.config.errors import ConfigError, line, suggestion
from guerdon.config.schema import Section
from guerdon.config.validation import ReadIf, validated
from guerdon.config.yaml_limits import check_interpolations, check_resolved
from guerdon.data.files import atomic_file, replace_folder, restore
from guerdon.data.leaves import check_like
from guerdon.limits import reading
from guerdon.nn.classifier import BinaryRewardClassifier, ClassifierConfig, build_members
from guerdon.training.checkpoints import checkpoint_steps, load_checkpoint
from guerdon.training.run_folder import RunFolder

CONFIG, PART = "fit.yaml", "classifier"
_META: dict[str, Any] = {"model": {}, "threshold": 0.5, "temperature": 1.0, "held_out": {}}
STATE = "state"
"""Folder of what is needed to resume a fit."""
_FOLDERS = ("positive_dir", "negative_dir")
# What a fit writes.
_WRITTEN = re.compile(
    r"\.?step_.*|best|latest|tb|metrics\.jsonl|log\.txt|summary\.json|fit\.yaml|state"
)
COMPARED = ("image_keys", "image_size", "hidden_dim", "num_spatial_blocks", "width")


# --- config


class OptimConfig(Section):
    """Optimizer of a fit: AdamW, which is Adam without weight decay."""

    lr: float = Field(default=1e-3, gt=0)
    """Learning rate; usually 1e-3 for narrow encoders, 1e-4 at full width."""
    clip_grad: float | None = Field(default=1.0, ge=0)
    """Maximum gradient norm; 0 or null for none."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Weight decay; usually 0 to 0.05."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay rates of Adam's moments."""
    eps: float = Field(default=1e-8, gt=0)
    """Epsilon of Adam."""


class ScheduleConfig(Section):
    """Learning-rate schedule of a fit."""

    type: Literal["constant", "linear", "cosine"] = "cosine"
    """Shape after the warmup; ``linear`` and ``cosine`` decay to ``min_lr``."""
    warmup_steps: int = Field(default=20, ge=0)
    """Steps of linear warmup from 0; 0 to a tenth of all steps."""
    min_lr: float = Field(default=0.0, ge=0)
    """Final learning rate of ``linear`` and ``cosine``."""
    read_if: ClassVar[ReadIf] = (("min_lr", "type", ("linear", "cosine")),)


class FitDataConfig(Section):
    """Frames to fit."""

    model_config = ConfigDict(coerce_numbers_to_str=True)

    positive_dir: str = "./reward_data/positive"
    """Folder of trajectories with a success; see `guerdon.data.frames`."""
    negative_dir: str = "./reward_data/negative"
    """Folder of trajectories without."""
    validation_share: float = Field(default=0.15, gt=0, lt=0.5)
    """Share of the trajectories by which temperature, threshold and the best checkpoint are chosen;
    usually 0.1 to 0.2."""
    test_share: float = Field(default=0.15, gt=0, lt=0.5)
    """Share of the trajectories on which the result is measured, and nothing is chosen."""
    augment: bool = True
    """Random shifts of up to 4 pixels, brightness and contrast; not with a frozen encoder."""
    synthetic_failures: bool = True
    """Whether to train with uniform, noisy, nearly white and nearly black images as failures, an
    eighth of a batch. Without them a classifier may take blank images for success."""
    check_labels: bool = True
    """Whether to look for wrong labels by cross-validation with small classifiers."""
    max_frames: int | None = Field(default=20_000, ge=2)
    """Maximum number of training frames, half of them with success if possible; null for all."""


class FitSection(Section):
    """A classifier and how it is fitted."""

    model_config = ConfigDict(coerce_numbers_to_str=True)

    model: ClassifierConfig = ClassifierConfig()
    """Network."""
    optim: OptimConfig = OptimConfig()
    """Optimizer."""
    lr_sched: ScheduleConfig = ScheduleConfig()
    """Learning-rate schedule."""
    data: FitDataConfig = FitDataConfig()
    """Frames."""
    global_batch_size: int = Field(default=64, ge=2)
    """Frames of a gradient step, half of them with success; usually 32 to 256."""
    num_epochs: int | None = Field(default=None, ge=1)
    """Passes over the frames of the rarer label, each with as many of the other label; null for
    about 750 steps, but 40 epochs at most."""
    patience: int | None = Field(default=3, ge=1)
    """Number of checkpoints in a row that are not better than the best one after which the fit
    stops; null for all epochs."""
    log_interval: int = Field(default=50, ge=1)
    """Steps between log lines."""
    save_interval: int | None = Field(default=None, ge=1)
    """Steps between checkpoints, each of which is validated; null for a sixth of all steps."""
    save_dir: str = Field(default="reward_models/classifier", min_length=1)
    """Folder of checkpoints and metrics."""
    keep: int = Field(default=3, ge=1)
    """Number of checkpoints to keep in addition to the best one."""
    members: int = Field(default=1, ge=1)
    """Number of classifiers in the ensemble, with different initial weights and batches; usually 1
    to 5."""
    target_fpr: float = Field(default=0.01, ge=0, lt=1)
    """Maximum false-positive rate on validation frames, which sets the threshold; usually 0 to
    0.05."""
    read_if: ClassVar[ReadIf] = (("data.augment", "model.freeze_encoder", False),)


class RunnerConfig(Section):
    """Names for interpolation: ``reward.save_dir=${runner.output_dir}/mine``."""

    model_config = ConfigDict(coerce_numbers_to_str=True)

    output_dir: str = "reward_models"
    """Folder of results."""
    experiment_name: str = "classifier"
    """Folder in it."""


class FitConfig(Section):
    """The whole config of a fit."""

    reward: FitSection = FitSection()
    """Classifier and how it is fitted."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Random seed."""
    device: str | None = Field(default=None, pattern=r"^(cpu|auto|mps|cuda(:\d+)?)$")
    """Device: ``cpu`` (default), ``cuda``, ``cuda:1``, ``mps`` or ``auto``."""
    threads: int | None = Field(default=None, ge=1)
    """Number of torch threads, on which exact results depend; null for torch's default."""
    train: str | None = None
    """Arguments of `guerdon train` for the environment that the frames come from, which the fit
    names at its end; `guerdon train` and `guerdon reward collect` fill them in."""
    runner: RunnerConfig = RunnerConfig()
    """Names for interpolation."""


def compose_fit(
    source: str | Path | Mapping[str, Any] | None = None, overrides: Iterable[str] = ()
) -> FitConfig:
    """Compose and check the config of a fit.

    Args:
        source: A preset (``"reach_classifier"``), the path of a YAML file, a mapping, or None.
        overrides: Dotted keys with values: ``"reward.optim.lr=3e-4"``.
    """
    if sources.is_preset(source):
        known = sources.options("fit")
        if source not in known:
            hint = suggestion(source, known)
            raise ConfigError(f"unknown preset of a fit {source!r}: {hint} (a file ends in .yaml)")
        source = sources.ZOO / "fit" / f"{source}.yaml"
    config: Any = OmegaConf.create(sources.sections(source))
    try:
        config = OmegaConf.merge(config, *map(_change, overrides))
        check_interpolations(config)
        resolved = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except (OmegaConfBaseException, RecursionError) as error:
        raise ConfigError(f"the configuration cannot be composed: {line(error)}") from error
    check_resolved(resolved, "the composed configuration")
    return validated(FitConfig, resolved)


def _change(override: str) -> Any:
    """Return the nested config that an override stands for."""
    if not re.match(r"[+]{0,2}[\w.]+=", override):
        raise ConfigError(f"the override {override!r} is not of the form key=value")
    try:
        return OmegaConf.from_dotlist([override.lstrip("+")])
    except Exception:  # of YAML or OmegaConf: such as a path with brackets, which is text
        key, _, text = override.lstrip("+").partition("=")
        change = OmegaConf.create({})
        OmegaConf.update(change, key, text, force_add=True)
        return change


# --- files


def is_fit(path: str | Path) -> bool:
    """Whether a path is the folder of a fit, or one of its checkpoints."""
    return any((folder / CONFIG).is_file() for folder in (Path(path), Path(path).parent))


def load_classifier(path: str | Path) -> tuple[list[BinaryRewardClassifier], dict[str, Any]]:
    """Load the classifiers of a fit, in evaluation mode.

    The probability of success is the mean over members of sigmoid(logit / temperature); a frame
    passes if that is at least the threshold.

    Args:
        path: The ``save_dir`` of a fit, for its best checkpoint; or a folder ``step_N`` in it, or
            its file ``best`` or ``latest``.

    Returns:
        The members on the CPU, and the metadata: ``model``, ``threshold``, ``temperature``,
        ``target_fpr``, metrics of the ``validation`` and the ``test``, ``held_out`` (logits and
        labels of the test), ``data``, ``seed``, ``split``; and ``path``.
    """
    saved = read_classifier(path)
    with reading(path):
        return build_members(saved), saved["meta"]


def read_classifier(path: str | Path) -> dict[str, Any]:
    """Return ``members``, the weights of the classifiers of a fit, and ``meta``, its metadata."""
    path = Path(path)
    if not path.exists():
        restore(path.resolve())  # a fit that replaces it was killed at its end
    if not path.exists():
        raise FileNotFoundError(
            f"there is no classifier {path}: fit one with `guerdon reward fit`, or name its "
            "'reward.save_dir'"
        )
    if path.is_file() and path.name not in ("best", "latest"):
        raise ValueError(
            f"{path} is no classifier of guerdon: name the 'reward.save_dir' of a fit, which is a "
            "folder"
        )
    state, _ = load_checkpoint(path, "best" if (path / "best").exists() else "latest", [PART])
    if PART not in state:
        raise ValueError(f"{path} has checkpoints, but not of a classifier")
    with reading(path):
        meta = {**state[PART]["meta"], "path": str(path)}
        check_like({key: meta[key] for key in _META}, _META, "its metadata")
        check_like([meta["held_out"][key] for key in ("logits", "labels")], [np.zeros(0)] * 2)
        return {**state[PART], "meta": meta}


def check_fits(meta: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Check that a classifier has the requested values of ``reward.model``; None matches any.

    Options that only matter while fitting, such as ``freeze_encoder``, are not compared.
    """
    for key, value in wanted.items():
        asked = list(value) if isinstance(value, tuple) else value
        if key in COMPARED and value is not None and asked != meta["model"][key]:
            raise ValueError(
                f"the classifier in {meta.get('path', 'the checkpoint')} has reward.model.{key} "
                f"{meta['model'][key]}, but {asked} was asked for: leave it out, or fit another "
                f"classifier with reward.model.{key}={asked}"
            )


def begin_folder(config: FitConfig, overwrite: bool) -> RunFolder:
    """Make the folder of a new fit, and write its config.

    A fit that replaces another is written beside it, see `finish_folder`.
    """
    final = Path(config.reward.save_dir)
    restore(final.resolve())
    root, refit = final, (final / CONFIG).is_file()
    if not refit and (checkpoint_steps(final) or RunFolder(final).holds_run()):
        raise FileExistsError(f"{final} has other files than those of a fit: name another save_dir")
    # Without these, it was killed before the first ones.
    if refit and (checkpoint_steps(final) or (final / STATE).exists()):
        if not overwrite:
            raise FileExistsError(
                f"{final} already holds a fit: name another reward.save_dir, add --overwrite, or "
                "finish it with --resume if it was stopped"
            )
        root = _beside(final)
    # Where it is not written, an abandoned fit would be resumed instead.
    shutil.rmtree(_beside(final), ignore_errors=not _beside(final).exists())
    folder = RunFolder(root)
    root.mkdir(parents=True, exist_ok=True)
    for path in (folder.metrics, folder.log, folder.summary, root / CONFIG):
        path.unlink(missing_ok=True)
    shutil.rmtree(folder.tensorboard, ignore_errors=True)
    text = OmegaConf.to_yaml(OmegaConf.create(config.model_dump(mode="json")))
    with atomic_file(root / CONFIG) as file:
        file.write(text.encode())
    return folder


def unfinished_folder(save_dir: str | Path) -> RunFolder:
    """Return the folder of a fit that can be resumed."""
    final = Path(save_dir)
    restore(final.resolve())
    root = _beside(final) if (_beside(final) / CONFIG).is_file() else final
    if not (root / CONFIG).is_file():
        raise FileNotFoundError(f"{final} is not the folder of a fit: it has no {CONFIG}")
    if checkpoint_steps(root) and not (root / STATE).exists():
        raise ValueError(
            f"the fit in {final} is finished, so there is nothing to resume: fit another one, or "
            "replace it with --overwrite"
        )
    return RunFolder(root)


def with_absolute_paths(config: FitConfig) -> FitConfig:
    """Return a config whose data is found from every working directory."""
    data, model = config.reward.data, config.reward.model
    folders = {name: os.path.abspath(getattr(data, name)) for name in _FOLDERS}  # noqa: PTH100
    update: dict[str, Any] = {"data": data.model_copy(update=folders)}
    if (path := model.pretrained_encoder_path) is not None:
        path = os.path.abspath(path)  # noqa: PTH100 - keeps links
        update["model"] = model.model_copy(update={"pretrained_encoder_path": path})
    return config.model_copy(update={"reward": config.reward.model_copy(update=update)})


def resumed_config(save_dir: str | Path) -> FitConfig:
    """Return the config of a fit that was stopped, to resume it."""
    values = sources.read_stored(unfinished_folder(save_dir).path / CONFIG)
    config = validated(FitConfig, values)
    reward = config.reward.model_copy(update={"save_dir": str(save_dir)})
    return config.model_copy(update={"reward": reward})


def finish_folder(folder: RunFolder, save_dir: str | Path) -> None:
    """Put a finished fit in the place of the one that it replaces; other files there stay."""
    final = Path(save_dir)
    if folder.path != final:
        for path in final.iterdir():
            new = folder.path / path.name
            if path.is_dir() and not _WRITTEN.fullmatch(path.name):
                shutil.copytree(path, new, symlinks=True, dirs_exist_ok=True)
            elif not _WRITTEN.fullmatch(path.name):
                shutil.copy2(path, new, follow_symlinks=False)
        replace_folder(folder.path, final.resolve())
    shutil.rmtree(final / STATE, ignore_errors=True)


def _beside(save_dir: Path) -> Path:
    path = save_dir.resolve()
    return path.with_name(f".{path.name}.new")
