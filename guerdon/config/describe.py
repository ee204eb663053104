"""Descriptions of a configuration: the reward pipeline in one line, and YAML."""

from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from guerdon.config.imports import name_of
from guerdon.config.registry import registry_of
from guerdon.config.schema import GuerdonConfig
from guerdon.config.sources import portable

_TIMES = "\N{MULTIPLICATION SIGN}"


def explain(config: GuerdonConfig) -> str:
    """Describe the resolved reward pipeline: terms with weights, later stages, the target.

    Args:
        config: A checked configuration.
    """
    reward, policy = config.reward, registry_of("policy").get(config.policy["type"])
    if not policy.uses_reward:
        return f"no reward is used → {policy.target_name}"
    stages = [" + ".join(_term(name, options) for name, options in reward.terms.items())]
    stages += ["norm"] * reward.normalize
    stages += [f"{_TIMES}{reward.scale:g}"] * (reward.scale != 1)
    stages += ["clip"] * (reward.clip is not None)
    return " → ".join([*stages, policy.target_name.format(**config.policy)])


def to_yaml(config: GuerdonConfig, folder: Path | None = None) -> str:
    """Return the configuration as YAML that composes to the same configuration.

    Args:
        config: A checked configuration.
        folder: See `plain_values`.
    """
    return OmegaConf.to_yaml(OmegaConf.create(plain_values(config, folder)))


def plain_values(config: GuerdonConfig, folder: Path | None = None) -> dict[str, Any]:
    """Return the configuration as plain values; classes and functions by name.

    Args:
        config: A checked configuration.
        folder: Folder of a run, which may be moved: data inside is named relative to it.
    """
    values = _written(config.model_dump(exclude=set() if config.imports else {"imports"}))
    return dict(values if folder is None else portable(values, folder))


def _term(name: str, options: dict[str, Any]) -> str:
    shown = f"norm({name})" if options.get("normalize") else name
    return f"{shown}{_TIMES}{options['weight']:g}"


def _written(value: Any) -> Any:
    """Return plain values unchanged; a class or function by name."""
    if isinstance(value, dict):
        return {key: _written(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_written(inner) for inner in value]
    if not hasattr(value, "__qualname__"):
        return value
    return name_of(value) or f"<{value.__qualname__}>"  # has to be passed again
