"""Translates RLinf's keys of the three-stage reward workflow to guerdon's.

``reward.use_reward_model`` selects the reward ``classifier``, and ``reward.reward_model`` has its
options, which are ignored if it is not used.
"""

import re
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from guerdon.compat.keys import get, merged, put, take
from guerdon.config import ConfigError, as_overrides, override_values, sources

_USE = "reward.use_reward_model"
_OPTIONS = "reward.reward_model."
_KEYS = ("use_reward_model", "reward_model", "group_name")
# Placement of workers, and initial weights of the fit: its checkpoint has all weights.
_DROPPED = ("group_name", "pretrained_encoder_path", "use_pretrain", "freeze_encoder")
_TRAIN = ("defaults", "hydra")
"""Keys of a training without a meaning: Hydra's."""
_PLACED = {
    "actor": "num_learners",
    "env": "num_collectors",
    "rollout": "num_collectors",
    "reward": "num_reward_workers",
}
"""Options of the section ``runtime`` for RLinf's components."""
_FIT = ("defaults", "cluster", "reward.group_name", "reward.data.num_workers")
"""Keys of a fit without a meaning: Hydra's log, placement of workers, data loading."""
_FIXED = {
    "reward.optim.optimizer": ("adam", "adamw"),  # Adam without weight decay is AdamW
    "reward.training_backend": ("simple",),
    "runner.task_type": ("embodied",),
}
"""Keys of a fit, with the only values that guerdon supports."""
_GPU, _CAMERA = "reward.gpu_id", "reward.data.image_key"
_MODEL, _CAMERAS = "reward.model", "reward.model.image_keys"
_ENCODING = tuple(f"{_MODEL}.{key}" for key in _DROPPED[1:])
_ENCODER = "resnet10_pretrained.pt"  # read from the current folder, if there is one

Values = dict[str, Any]


def _taken(overrides: Iterable[str], theirs: Sequence[str]) -> tuple[Values, list[str]]:
    """Split overrides: values of RLinf's keys, as sections, and the other overrides."""
    values: Values = {}
    found: list[str] = []
    for text in overrides:
        key = text.lstrip("+").partition("=")[0]
        if any(key == each or key.startswith(f"{each}.") for each in theirs):
            for name, value in override_values([text]).items():
                take(values, name, [])
                put(values, name, value)
        else:
            found.append(text)
    return values, found


def translate(
    values: Values, overrides: Iterable[str], dropped: list[str]
) -> tuple[bool, list[str]]:
    """Rename the keys of a config, in place, and of overrides.

    Keys without a meaning in guerdon are appended to `dropped`. Returns whether there are keys of
    RLinf, and the overrides with guerdon's keys.
    """
    for key in _TRAIN:
        take(values, key, dropped)
    given, kept = _taken(overrides, ["cluster", *(f"reward.{key}" for key in _KEYS)])
    cluster = merged(take(values, "cluster", []), given.pop("cluster", {}))
    own = values.get("reward")
    section = own if isinstance(own, dict) else {}
    in_file = bool(section.keys() & set(_KEYS))
    if in_file or given:
        options = _classifier(merged(section if in_file else {}, given.get("reward", {})), dropped)
        if in_file:
            values["reward"] = section = options
        else:
            kind = [f"reward={options.pop('type')}"] if "type" in options else []
            kept = [*kind, *as_overrides({"reward": options} if options else {}), *kept]
    if isinstance(data := section.get("data_collection"), dict):
        section["data_collection"] = {
            **({"format": "npy"} if in_file else {}),
            **{key: None if value == "None" else value for key, value in data.items()},
        }
    if "runtime=ray" in kept or "ray" in (values.get("runtime"), get(values, "runtime.type")):
        workers = {
            option: number
            for option, number in _workers(cluster).items()
            if get(values, f"runtime.{option}") is None
        }
        if "type" not in section and not any(text.startswith("reward=") for text in kept):
            workers.pop("num_reward_workers", None)  # of the environment reward
        kept = [*as_overrides({"runtime": workers} if workers else {}), *kept]
    else:
        dropped += [f"cluster.{key}" for key in cluster]
    none = re.compile(r"^(\+*reward\.data_collection\.\w+)=None$")
    return in_file or bool(given), [none.sub(r"\1=null", text) for text in kept]


def _workers(cluster: Values) -> Values:
    """Return options of the section ``runtime`` for RLinf's placement on GPUs, or nodes of them."""
    placement, nodes = cluster.get("component_placement") or {}, str(cluster.get("num_nodes", 1))
    found: Values = {}
    if not nodes.isdecimal():
        raise ConfigError(f"'cluster.num_nodes' is {nodes!r}: give a number")
    if not isinstance(placement, dict):
        raise ConfigError(
            f"'cluster.component_placement' is {placement!r}: give ranks by component, as in "
            "{actor: 0-3, env: all}"
        )
    for components, given in placement.items():
        number = _ranks(str(given), components, int(nodes))
        for component in re.split(r"\s*,\s*", components.strip()):
            option = _PLACED.get(component)
            if option is None:
                raise ConfigError(
                    f"'cluster.component_placement' places {component!r}: use {', '.join(_PLACED)}"
                )
            found[option] = max(number, found.get(option, 0))
    return found


def _ranks(text: str, components: str, nodes: int) -> int:
    """Return the number of processes of a placement: ``all``, ``0-3,5``, or ``0-3:0-7``."""
    import torch

    if text == "all":
        return max(torch.cuda.device_count(), 1) * nodes
    number = 0
    for part in text.replace(" ", "").split(","):
        ranks = re.fullmatch(r"(\d+)(?:-(\d+))?", part.rpartition(":")[2])
        if not ranks or int(ranks[2] or ranks[1]) < int(ranks[1]):
            raise ConfigError(
                f"'cluster.component_placement.{components}' is {text!r}: give ranks as in 0-3, "
                "or all"
            )
        number += int(ranks[2] or ranks[1]) - int(ranks[1]) + 1
    return number


def _classifier(section: Values, dropped: list[str]) -> Values:
    """Return guerdon's options for RLinf's section ``reward``."""
    options = section.get("reward_model") or {}
    if not isinstance(options, dict):
        raise ConfigError(f"'reward.reward_model' is {options!r}: it should be a mapping")
    if "reward_model" in section and "use_reward_model" not in section:
        raise ConfigError(
            f"'reward.reward_model' has options, but it is not clear whether it is used: set "
            f"{_USE!r} to true or false"
        )
    flag = str(section.get("use_reward_model", False))
    used = {"true": True, "false": False}.get(flag.lower())
    if used is None:
        raise ConfigError(f"{_USE!r} is {flag!r}: set it to true or false")
    kept: Values = {"type": "classifier"} if used else {}
    for prefix, part in (("reward.", section), (_OPTIONS, options if used else {})):
        dropped += [f"{prefix}{key}" for key in part if key in _DROPPED]
        kept |= {key: value for key, value in part.items() if key not in (*_DROPPED, *_KEYS)}
    return kept


def model_options(given: Values) -> Values:
    """Return the options of a classifier for RLinf's; an encoder without weights is not frozen."""
    from guerdon.compat.rlinf.checkpoint import as_safetensors

    options = dict(given)
    path = options.get("pretrained_encoder_path")
    if path is None and options.get("use_pretrain") and Path(_ENCODER).is_file():
        path = _ENCODER
    if path is not None and options.get("use_pretrain") is not False:
        return {"width": 64} | options | {"pretrained_encoder_path": as_safetensors(path)}
    if options.get("use_pretrain") and options.pop("freeze_encoder", False):
        warnings.warn(
            "the encoder of the classifier has no pretrained weights, so that it is trained, too: "
            "set 'reward.model.pretrained_encoder_path' to freeze it",
            stacklevel=3,
        )
    return options


def with_folders(values: Any, overrides: Iterable[str]) -> tuple[Any, list[str]]:
    """Replace a ``reward.checkpoint_path`` that is a ``.pt`` file by its folder, see `as_fit`."""
    changes, key = list(overrides), "reward.checkpoint_path"
    section = values.get("reward") if isinstance(values, dict) else {}
    pairs = dict(text.partition("=")[::2] for text in changes)
    path = str(pairs.get(key, (section or {}).get("checkpoint_path"))).strip("'\"")
    if not path.endswith(".pt"):
        return values, changes
    from guerdon.compat.rlinf.checkpoint import as_fit, is_measured

    folder = as_fit(path, (section or {}).get("image_size"))
    limits = [] if is_measured(folder) else ["reward.min_precision", "reward.min_recall"]
    changes += [f"{limit}=0" for limit in limits if limit not in pairs]
    return values, [*changes, f"{key}={folder}"]


def translate_fit(source: Any, overrides: Iterable[str], dropped: list[str]) -> list[str]:
    """Rename and drop keys of the config of a fit, in place, and of overrides.

    Sources other than sections have no keys. Keys without a meaning are appended to `dropped`.
    """
    unused, kept = _taken(overrides, _FIT)
    theirs, kept = _taken(kept, (*_FIXED, _GPU, _CAMERA, *_ENCODING))
    values = source if isinstance(source, dict) else {}
    if take(theirs, _CAMERA, [], keep=True) is not None:
        take(values, _CAMERAS, [])
    changed = merged(values, theirs)
    for key in _FIT:
        take(changed, key, dropped)
    dropped += [key for key, _ in sources.leaves(unused)]
    for key in (*_FIXED, _GPU, _CAMERA):
        for new, value in _renamed(key, take(changed, key, []), dropped):
            put(changed, new, value)
            if new == _CAMERAS and take(changed, new, [], keep=True) != value:
                raise ConfigError(f"{key!r} and {new!r} have different cameras: leave out one")
    model = take(changed, _MODEL, [])
    if isinstance(model, dict):
        put(changed, _MODEL, model_options(model))
    if values is not source:
        found = {key: value for key, value in sources.leaves(changed) if value != {}}
        return [*as_overrides(found), *kept]
    values.clear()
    values.update(changed)
    return kept


def _renamed(key: str, value: Any, dropped: list[str]) -> list[tuple[str, Any]]:
    """Return guerdon's key and value of a key of a fit, if it has one."""
    if value is None:
        return []
    if key == _CAMERA:
        return [(_CAMERAS, [value])]
    if key in _FIXED:
        if value not in _FIXED[key]:
            raise ConfigError(f"{key!r} is {value!r}: use {' or '.join(_FIXED[key])}")
        return []
    import torch

    if not str(value).isdecimal():
        raise ConfigError(f"{key!r} is {value!r}: give the number of a GPU")
    if int(value) < torch.cuda.device_count():
        return [("device", f"cuda:{value}")]
    dropped.append(f"{key} (torch finds no such GPU: fitting on the CPU)")
    return []
