"""``guerdon list`` and ``guerdon explain``."""

import contextlib
import inspect
import json
from typing import Annotated, Literal

import typer
from typer import Argument, Option

from guerdon.cli.common import Arguments, AsJson, show_table, split

Row = dict[str, str]
Kind = Literal["policies", "rewards", "envs", "presets", "fits"]


def explain(
    arguments: Arguments,
    full: Annotated[bool, Option("--full", help="Show the whole configuration too.")] = False,
) -> None:
    """Shows the resolved reward pipeline in one line."""
    from guerdon import config
    from guerdon.entry import compose

    resolved = compose(*split(arguments))
    typer.echo(config.explain(resolved))
    if full:
        typer.echo(f"\n{config.to_yaml(resolved)}", nl=False)


def list_options(
    kind: Annotated[Kind, Argument(help="What to list.")],
    as_json: AsJson = False,
    everything: Annotated[
        bool, Option("--all", help="envs: every registered Gymnasium id too.")
    ] = False,
) -> None:
    """Lists policies, rewards, environments, presets, or presets of `guerdon reward fit`."""
    rows = _environments(everything) if kind == "envs" else _rows(kind)
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    else:
        columns = list(dict.fromkeys(key for row in rows for key in row))
        show_table([[row.get(name, "") for name in columns] for row in rows], columns, "left")


def _rows(kind: Kind) -> list[Row]:
    from guerdon.config import registry_of, sources
    from guerdon.training.fit_files import compose_fit

    rows: list[Row] = []
    if kind == "presets":
        policies = registry_of("policy").names()
        rows = [
            {"name": name, "reward": "env", **sources.split_preset(name, policies)}
            for name in sources.options("preset")
        ]
    elif kind == "fits":
        for name in sources.options("fit"):
            section = compose_fit(name).reward
            cameras = ", ".join(section.model.image_keys)
            width, epochs = str(section.model.width), str(section.num_epochs)
            rows.append({"name": name, "cameras": cameras, "width": width, "epochs": epochs})
    else:
        registry = registry_of("policy" if kind == "policies" else "reward")
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
