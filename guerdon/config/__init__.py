"""Configuration: registries, the schema, and composition of presets, files and overrides."""

from guerdon.config.compose import as_overrides, compose, override_values
from guerdon.config.describe import explain, plain_values, to_yaml
from guerdon.config.errors import ConfigError
from guerdon.config.registry import Registry, registry_of
from guerdon.config.schema import GuerdonConfig

__all__ = [
    "ConfigError",
    "GuerdonConfig",
    "Registry",
    "as_overrides",
    "compose",
    "explain",
    "override_values",
    "plain_values",
    "registry_of",
    "to_yaml",
]
