"""Reads and writes RLinf's checkpoints of classifiers and encoders (``.pt``).

They are read as tensors and plain values alone, see `load_weights`.
"""

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from guerdon.config.validation import validated
from guerdon.data.unpickle import load_weights
from guerdon.limits import reading
from guerdon.training.checkpoints import checkpoint_steps, save_checkpoint
from guerdon.training.fit_files import PART, FitConfig, begin_folder, is_fit, read_classifier

_FILE, _META = "checkpoint.pt", "guerdon"
# Names of torchvision's ResNet, and of `guerdon.nn.convolution.resnet10`.
_BLOCK = {"conv1": "body.0", "bn1": "body.1", "conv2": "body.3", "bn2": "body.4",
          "downsample": "skip"}  # fmt: skip
_STEM = {"conv1": "0", "bn1": "1"}
_PARTS = {"pooling_layer": "", "mlp.0": "bottleneck.1.", "mlp.1": "bottleneck.2."}

Weights = dict[str, torch.Tensor]


def write_checkpoints(save_dir: str | Path) -> None:
    """Write ``step_N/checkpoint.pt`` beside the other files of every checkpoint of a fit."""
    for step in checkpoint_steps(save_dir):
        folder = Path(save_dir) / f"step_{step}"
        saved = read_classifier(folder)
        held_out = {key: torch.as_tensor(part) for key, part in saved["meta"]["held_out"].items()}
        first, *members = saved["members"]
        content = {"global_step": step, "model_state_dict": first, "members": members}
        torch.save({**content, _META: {**saved["meta"], "held_out": held_out}}, folder / _FILE)


def as_fit(path: str | Path, image_size: Any = None) -> Path:
    """Return the folder of a fit for a classifier: converted beside it from a ``.pt`` file.

    `image_size` is that of the images, which RLinf's files do not tell.
    """
    path = Path(path)
    if path.suffix != ".pt" or (path.name == _FILE and is_fit(path.parent)):
        return path.parent if path.name == _FILE else path
    with reading(path):
        return _converted(path, image_size)


def _converted(path: Path, image_size: Any) -> Path:
    saved = load_weights(path)
    if not isinstance(saved, dict):
        raise ValueError(f"{path} has no weights of a classifier: it holds {type(saved).__name__}")
    state = saved.get("model_state_dict") or saved.get("state_dict") or saved
    meta = saved.get(_META)
    if meta is None:
        state, model = _ours(state, path, list(image_size or (3, 64, 64)))
        meta = {
            "model": model,
            "threshold": 0.5,
            "temperature": 1.0,
            "held_out": {"logits": np.zeros((1, 0), np.float32), "labels": np.zeros(0, bool)},
            "validation": {},
        }
        warnings.warn(
            f"the precision and recall of the classifier in {path} are not known, so that nothing "
            "is checked before the policy learns from it",
            stacklevel=4,
        )
    else:
        meta["held_out"] = {key: part.numpy() for key, part in meta["held_out"].items()}
    folder = path.with_name(f"{path.stem}_guerdon")
    model = {key: value for key, value in meta["model"].items() if key != "freeze_encoder"}
    config = validated(FitConfig, {"reward": {"save_dir": str(folder), "model": model}})
    begin_folder(config, overwrite=True)
    members = [_floats(each) for each in (state, *saved.get("members", []))]
    part = {"members": members, "meta": {**meta, "model": {**meta["model"]}}}
    save_checkpoint(folder, saved.get("global_step", 0), {PART: part}, keep=1, mark="best")
    return folder


def _floats(weights: Weights) -> Weights:
    """Return weights of whatever precision as float32."""
    return {k: each.float() if each.is_floating_point() else each for k, each in weights.items()}


def is_measured(folder: str | Path) -> bool:
    """Whether the precision and recall of a classifier are known."""
    return bool(len(read_classifier(folder)["meta"]["held_out"]["labels"]))


def as_safetensors(path: str | Path) -> str:
    """Return the file of an encoder: converted beside it from a ``.pt`` file of torchvision."""
    path = Path(path)
    if path.suffix != ".pt":
        return str(path)
    target = path.with_suffix(".safetensors")
    with reading(path):
        save_file(_encoder(load_weights(path)), target)
    return str(target)


def _encoder(state: Any) -> Weights:
    """Return the weights of a ResNet-10 by guerdon's names; its last layer is left out."""
    found = {}
    for name, value in state.items():
        first, _, rest = name.partition(".")
        if block := re.fullmatch(r"layer([1-4])\.0\.(\w+)\.(.+)", name):
            found[f"{3 + int(block[1])}.{_BLOCK[block[2]]}.{block[3]}"] = value
        elif first in _STEM:
            found[f"{_STEM[first]}.{rest}"] = value
        elif first != "fc":
            raise ValueError(f"the encoder has the weight {name!r}, which a ResNet-10 has not")
    return found


def _ours(state: Any, path: Path, image_size: list[int]) -> tuple[Weights, dict[str, Any]]:
    """Return the weights of RLinf's classifier by guerdon's names, and the options of the model."""
    cameras = list(dict.fromkeys(name.split(".")[1] for name in state if "encoders." in name))
    if not cameras or "classifier.0.weight" not in state:
        raise ValueError(f"{path} has no weights of a BinaryRewardClassifier")
    found: Weights = {}
    for number, camera in enumerate(cameras):
        prefix = f"encoders.{camera}."
        own = {key.removeprefix(prefix): value for key, value in state.items() if prefix in key}
        backbone = "resnet_backbone."
        encoder = {key.removeprefix(backbone): own[key] for key in own if key.startswith(backbone)}
        found |= {f"encoders.{number}.{key}": value for key, value in _encoder(encoder).items()}
        for key in own.keys() - {f"{backbone}{each}" for each in encoder}:
            part, _, leaf = key.rpartition(".")
            found[f"poolings.{number}.{_PARTS[part]}{leaf}"] = own[key]
    for key, value in state.items():
        if key.startswith("classifier."):
            found[key.replace("classifier.", "head.", 1)] = value
    kernel = found["poolings.0.kernel"]
    options = {
        "image_keys": cameras,
        "image_size": image_size,
        "hidden_dim": len(found["head.0.bias"]),
        "num_spatial_blocks": kernel.shape[-1],
        "width": len(found["encoders.0.0.weight"]),
        "normalize": False,  # RLinf's classifier takes pixels in [0, 1]
    }
    return found, options
