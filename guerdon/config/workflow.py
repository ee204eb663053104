"""The keys of the three-stage reward workflow (RLinf's) in guerdon's words.

``reward.use_reward_model`` chooses the reward ``classifier``, and ``reward.reward_model`` holds its
options; where it is not used, they mean nothing.
"""

from collections.abc import Iterable
from typing import Any

_USE = "reward.use_reward_model"
_OPTIONS = "reward.reward_model."
# Where workers are put, and how the fit began: its checkpoint holds all weights.
_IDLE = ("group_name", "pretrained_encoder_path", "use_pretrain", "freeze_encoder")


def renamed_overrides(overrides: Iterable[str]) -> tuple[list[str], bool | None]:
    """Overrides in guerdon's words, and whether they say that the reward model is used.

    Args:
        overrides: ``key=value``.
    """
    pairs = [(text, *text.lstrip("+").partition("=")[::2]) for text in overrides]
    said = [value.strip().lower() == "true" for _, key, value in pairs if key == _USE]
    use = said[-1] if said else None
    chosen = use or any((key, value) == ("reward", "classifier") for _, key, value in pairs)
    kept = ["reward=classifier"] if use else []
    for text, key, value in pairs:
        option = key.removeprefix(_OPTIONS)
        if key == _USE or key == "reward.group_name":
            continue
        if option == key:
            kept.append(text)
        elif chosen and option not in _IDLE:
            kept.append(f"reward.{option}={value}")
    return kept, use


def renamed(values: dict[str, Any], use: bool | None) -> dict[str, Any]:
    """Sections in guerdon's words.

    Args:
        values: Sections.
        use: Whether the reward model is used, where overrides say so; else they do.
    """
    reward = values.get("reward")
    if not isinstance(reward, dict) or not {"use_reward_model", "reward_model"} & reward.keys():
        return values
    used = reward.get("use_reward_model", False) if use is None else use
    options = reward.get("reward_model") or {}
    foreign = ("use_reward_model", "reward_model", *_IDLE)
    section = {key: value for key, value in reward.items() if key not in foreign}
    if used:
        section = {"type": "classifier", **section}
        section |= {key: value for key, value in options.items() if key not in _IDLE}
    return {**values, "reward": section}
