"""``guerdon list``: what there is to choose from."""

import contextlib
import inspect
import json
from typing import Annotated, Literal

import typer

from guerdon.cli.common import AsJson, show_table

Row = dict[str, str]


def list_options(
    kind: Annotated[
        Literal["policies", "rewards", "envs", "presets", "fits"],
        typer.Argument(help="What to list."),
    ],
    as_json: AsJson = False,
    everything: Annotated[
        bool, typer.Option("--all", help="envs: every registered Gymnasium id too.")
    ] = False,
) -> None:
    """Lists policies, rewards, environments, presets, or presets of `guerdon reward fit`."""
    if kind == "envs":
        rows = _environments(everything)
    elif kind == "presets":
        rows = _presets()
    elif kind == "fits":
        rows = _fits()
    else:
        rows = _registered("policy" if kind == "policies" else "reward")
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    else:
        columns = list(dict.fromkeys(key for row in rows for key in row))
        show_table([[row.get(name, "") for name in columns] for row in rows], columns, "left")


def _registered(kind: str) -> list[Row]:
    from guerdon.config import registry_of

    registry, rows = registry_of(kind), []
    for name in registry.names():
        first, _, _ = (inspect.getdoc(registry.get(name)) or "").partition("\n\n")
        rows.append({"name": name, "description": first.replace("\n", " ").rstrip(".")})
    return rows


def _environments(everything: bool) -> list[Row]:
    from guerdon.config import sources

    rows = [
        {"name": name, "id": str(sources.read(sources.ZOO / "env" / f"{name}.yaml")["env"]["id"])}
        for name in sources.options("env")
    ]
    if everything:
        import gymnasium

        from guerdon.extras import MissingExtraError, require

        with contextlib.suppress(MissingExtraError):
            require("ale_py", "atari")  # registers the Atari games
        rows += [{"name": "", "id": env_id} for env_id in sorted(gymnasium.registry)]
    return rows


def _presets() -> list[Row]:
    from guerdon.config import registry_of, sources

    policies = registry_of("policy").names()
    return [
        {"name": name, "reward": "env", **sources.split_preset(name, policies)}
        for name in sources.options("preset")
    ]


def _fits() -> list[Row]:
    from guerdon.config import sources
    from guerdon.training.fit_files import compose_fit

    rows = []
    for name in sources.options("fit"):
        section = compose_fit(name).reward
        cameras = ", ".join(section.model.image_keys)
        width, epochs = str(section.model.width), str(section.num_epochs)
        rows.append({"name": name, "cameras": cameras, "width": width, "epochs": epochs})
    return rows
