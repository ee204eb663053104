"""The keys of the three-stage reward workflow (RLinf's) in guerdon's words.

``reward.use_reward_model`` chooses the reward ``classifier``, and ``reward.reward_model`` holds its
options; where it is not used, they mean nothing.
"""

from collections.abc import Iterable
from typing import Any

from guerdon.config.errors import ConfigError

_USE = "reward.use_reward_model"
_OPTIONS = "reward.reward_model."
_CHOICES = (("reward", "classifier"), ("reward.type", "classifier"))
# Where workers are put, and how the fit began: its checkpoint holds all weights.
_IDLE = ("group_name", "pretrained_encoder_path", "use_pretrain", "freeze_encoder")

Pairs = list[tuple[str, str, str]]
"""Overrides: the text, its key and its value."""


def renamed(values: dict[str, Any], overrides: Iterable[str]) -> tuple[dict[str, Any], list[str]]:
    """Sections and overrides in guerdon's words.

    Args:
        values: Sections.
        overrides: ``key=value``.
    """
    pairs = [(text, *text.lstrip("+").partition("=")[::2]) for text in overrides]
    reward = values.get("reward")
    section = reward if isinstance(reward, dict) else {}
    use = _said(section, pairs)
    chosen = any(pair[1:] in _CHOICES for pair in pairs)
    chosen = chosen or "classifier" in (reward, section.get("type"))
    if any(key == _OPTIONS[:-1] for _, key, _ in pairs):
        raise ConfigError(
            f"'reward.reward_model' cannot be given as a whole: give its options one by one, as "
            f"'{_OPTIONS}checkpoint_path=FOLDER'"
        )
    named = "reward_model" in section or any(key.startswith(_OPTIONS) for _, key, _ in pairs)
    if named and use is None and not chosen:
        raise ConfigError(
            f"'reward.reward_model' has options, but nothing says that it is used: set {_USE!r} to "
            "true or false"
        )
    used = bool(use) or chosen
    if {"use_reward_model", "reward_model", "group_name"} & section.keys():
        values = {**values, "reward": _section(section, used)}
    return values, _overrides(pairs, used, bool(use))


def _said(section: dict[str, Any], pairs: Pairs) -> bool | None:
    """Whether the reward model is used, where anything says it; overrides are stronger."""
    said = [section["use_reward_model"]] if "use_reward_model" in section else []
    said += [value.strip() for _, key, value in pairs if key == _USE]
    if not said:
        return None
    word = str(said[-1]).lower()
    if word not in ("true", "false"):
        raise ConfigError(f"{_USE!r} is {said[-1]!r}: set it to true or false")
    return word == "true"


def _section(section: dict[str, Any], used: bool) -> dict[str, Any]:
    options = section.get("reward_model") or {}
    if not isinstance(options, dict):
        raise ConfigError(f"'reward.reward_model' is {options!r}: it should be a mapping")
    foreign = ("use_reward_model", "reward_model", *_IDLE)
    kept = {key: value for key, value in section.items() if key not in foreign}
    if not used:
        return kept
    taken = {key: value for key, value in options.items() if key not in _IDLE}
    return {"type": "classifier", **kept, **taken}


def _overrides(pairs: Pairs, used: bool, chooses: bool) -> list[str]:
    kept = ["reward=classifier"] if chooses else []
    for text, key, value in pairs:
        option = key.removeprefix(_OPTIONS)
        if key in (_USE, "reward.group_name"):
            continue
        if option == key:
            kept.append(text)
        elif used and option not in _IDLE:
            kept.append(f"reward.{option}={value}")
    return kept
