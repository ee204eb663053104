"""Fitted classifiers on disk: their folder, and loading them back."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from guerdon.data.files import atomic_file
from guerdon.nn.classifier import BinaryRewardClassifier, ClassifierConfig
from guerdon.training.checkpoints import checkpoint_steps, load_checkpoint
from guerdon.training.run_folder import RunFolder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from guerdon.training.fit_config import FitConfig

CONFIG = "fit.yaml"
PART = "classifier"
COMPARED = ("image_keys", "image_size", "hidden_dim", "num_spatial_blocks", "width")


def is_fit(path: str | Path) -> bool:
    """Whether a path is the folder of a fit, or one of its checkpoints."""
    path = Path(path)
    return any((folder / CONFIG).is_file() for folder in (path, path.parent))


def load_classifier(path: str | Path) -> tuple[list[BinaryRewardClassifier], dict[str, Any]]:
    """The classifiers of a fit, ready to be asked, and what is known of them.

    The probability of success is the mean over members of sigmoid(logit / temperature); a frame
    passes if that is at least the threshold.

    Args:
        path: The ``save_dir`` of a fit, whose best is taken; or a folder ``step_N`` in it, or its
            file ``best`` or ``latest``.

    Returns:
        The members on the CPU, and the meta data: ``model``, ``threshold``, ``temperature``,
        ``target_fpr``, ``validation``, ``held_out`` (what members said of held-out frames),
        ``data``, ``seed``, ``split``; and ``path``.
    """
    path = Path(path)
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
        raise ValueError(f"{path} holds checkpoints, but not of a classifier")
    meta = {**state[PART]["meta"], "path": str(path)}
    config = ClassifierConfig.model_validate(meta["model"])
    members = []
    for weights in state[PART]["members"]:
        member = BinaryRewardClassifier(config, load_pretrained=False)
        member.load_state_dict(weights)
        members.append(member.eval())
    return members, meta


def check_fits(meta: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Sees that a classifier is what somebody asks for.

    Args:
        meta: As `load_classifier` gives it.
        wanted: Values of ``reward.model`` that are asked for; None asks for nothing. What only
            matters while fitting, such as ``freeze_encoder``, is not compared.
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
    """Makes the folder of a fit; one that is there already is not mixed with.

    Args:
        config: Of the fit.
        overwrite: Whether a fit that is there is removed.
    """
    root = Path(config.reward.save_dir)
    folder = RunFolder(root)
    is_fit = (root / CONFIG).is_file()
    if not is_fit and (checkpoint_steps(root) or folder.holds_run()):
        raise FileExistsError(f"{root} holds something else than a fit: name another save_dir")
    if is_fit and not overwrite and checkpoint_steps(root):  # else it was killed before the first
        raise FileExistsError(
            f"{root} already holds a fit: name another reward.save_dir, or add --overwrite"
        )
    root.mkdir(parents=True, exist_ok=True)
    if is_fit:
        _clear(folder)
    text = OmegaConf.to_yaml(OmegaConf.create(config.model_dump(mode="json")))
    with atomic_file(root / CONFIG) as file:
        file.write(text.encode())
    return folder


def _clear(folder: RunFolder) -> None:
    """Removes what a fit writes, and nothing else; its config last, which shows whose it is."""
    for pattern in ("step_*", ".step_*", folder.tensorboard.name):
        for path in folder.path.glob(pattern):
            shutil.rmtree(path)
    files = ("best", "latest", folder.metrics.name, folder.log.name, folder.summary.name, CONFIG)
    for name in files:
        (folder.path / name).unlink(missing_ok=True)
