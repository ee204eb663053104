"""``guerdon list``: what there is to choose from."""

import inspect
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from guerdon.cli.common import AsJson, show_table

if TYPE_CHECKING:
    from collections.abc import Iterable

Row = dict[str, str]


class Kind(StrEnum):
    """What can be listed."""

    POLICIES = "policies"
    REWARDS = "rewards"
    ENVS = "envs"
    PRESETS = "presets"
    FITS = "fits"


def list_options(
    kind: Annotated[Kind, typer.Argument(help="What to list.", show_default=False)],
    as_json: AsJson = False,
    everything: Annotated[
        bool, typer.Option("--all", help="envs: every registered Gymnasium id too.")
    ] = False,
) -> None:
    """Lists policies, rewards, environments, presets, or presets of `guerdon reward fit`."""
    import json

    rows = {
        Kind.POLICIES: lambda: _registered("policy"),
        Kind.REWARDS: lambda: _registered("reward"),
        Kind.ENVS: lambda: _environments(everything),
        Kind.PRESETS: _presets,
        Kind.FITS: _fits,
    }[kind]()
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    else:
        columns = list(dict.fromkeys(key for row in rows for key in row))
        show_table([[row.get(name, "") for name in columns] for row in rows], columns, "left")


def _registered(kind: str) -> list[Row]:
    from guerdon.config import registry_of

    registry = registry_of(kind)
    return [
        {"name": name, "description": _description(registry.get(name))} for name in registry.names()
    ]


def _description(cls: Any) -> str:
    """The first paragraph of a docstring, in one line."""
    text = inspect.getdoc(cls) or ""
    return text.partition("\n\n")[0].replace("\n", " ").rstrip(".")


def _environments(everything: bool) -> list[Row]:
    from guerdon.config import sources

    rows = [
        {"name": name, "id": str(sources.read(sources.ZOO / "env" / f"{name}.yaml")["env"]["id"])}
        for name in sources.options("env")
    ]
    if everything:
        rows += [{"name": "", "id": env_id} for env_id in _gymnasium_ids()]
    return rows


def _gymnasium_ids() -> "Iterable[str]":
    import contextlib

    import gymnasium

    from guerdon.extras import MissingExtraError, require

    with contextlib.suppress(MissingExtraError):
        require("ale_py", "atari")  # registers the Atari games
    return sorted(gymnasium.registry)


def _presets() -> list[Row]:
    from guerdon.config import registry_of, sources

    policies = registry_of("policy").names()
    return [
        {"name": name, "reward": "env", **sources.split_preset(name, policies)}
        for name in sources.options("preset")
    ]


def _fits() -> list[Row]:
    from guerdon.config import sources
    from guerdon.training.fit_config import compose_fit

    found = {name: compose_fit(name).reward for name in sources.options("fit")}
    return [
        {
            "name": name,
            "cameras": ", ".join(section.model.image_keys),
            "width": str(section.model.width),
            "epochs": str(section.num_epochs),
        }
        for name, section in found.items()
    ]
