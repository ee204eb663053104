"""``guerdon list`` and ``guerdon explain``."""

import contextlib
import inspect
import json
import re
from pathlib import Path
from typing import Annotated, Literal

import typer
from typer import Argument, Option

from guerdon.cli.common import SOURCE, AsJson, Trust, complete, show_table, split

Row = dict[str, str]
Kind = Literal["policies", "rewards", "envs", "presets", "fits"]


def explain(
    arguments: Annotated[
        list[str],
        Argument(
            metavar=f"KEY|{SOURCE}",
            help="Option; or preset or file, and overrides.",
            autocompletion=complete,
        ),
    ],
    full: Annotated[bool, Option("--full", help="Show the whole configuration too.")] = False,
    trust: Trust = False,
) -> None:
    """Explain an option, or the reward of a configuration."""
    from guerdon import config
    from guerdon.compat.keys import Report
    from guerdon.config import sources
    from guerdon.entry import compose

    sections = config.GuerdonConfig.model_fields
    keys = [
        each
        for each in arguments
        if re.split("[.=]", each)[0] in sections and "=" not in each and not sources.is_file(each)
    ]
    if keys:
        _explain_key(keys[0], *split([each for each in arguments if each not in keys]), trust)
        return
    report = Report()
    resolved = compose(*split(arguments), trust=trust, report=report)
    typer.echo(config.explain(resolved))
    for old, new, value in report.taken:
        typer.echo(f"{old} → {new}={value}")
    if full:
        typer.echo(f"\n{config.to_yaml(resolved)}", nl=False)


def _explain_key(key: str, source: str | None, overrides: list[str], trust: bool) -> None:
    from guerdon.config import ConfigError, registry_of, sources
    from guerdon.config.compose import parse
    from guerdon.config.imports import import_all, resolved
    from guerdon.config.options import options
    from guerdon.config.validation import unknown_key
    from guerdon.entry import compose

    chosen: dict[str, str] = {}
    if source is not None and sources.is_file(source):
        chosen["policy"] = compose(source, overrides, trust=trust).policy["type"]
    elif source is not None:
        chosen = sources.split_preset(source, registry_of("policy").names())
    for text in overrides:
        if text.startswith("imports="):
            import_all(resolved(parse(text).value(), Path.cwd()))
    chosen |= {name: value for name, _, value in (each.partition("=") for each in overrides)}
    if match := re.fullmatch(r"reward\.terms\.(\w+)\.(.+)", key):
        chosen["reward"], key = match[1], f"reward.{match[2]}"
    known = options(*([chosen[kind]] if kind in chosen else None for kind in ("policy", "reward")))
    found = [each for each in known if f"{each.key}.".startswith(f"{key}.")]
    if not found:
        by_section: dict[str, list[str]] = {"": []}
        for each in known:
            section, _, name = each.key.rpartition(".")
            by_section.setdefault(section, []).append(name)
        raise ConfigError(unknown_key(key, by_section))
    of = {each: f" ({', '.join(each.owners)})" if each.owners else "" for each in found}
    if any(each.key != key for each in found):
        show_table(
            [[each.key + of[each], each.default, each.meaning] for each in found],
            ("option", "default", "meaning"),
            "left",
        )
        return
    for each in found:
        typer.echo(
            f"{key}{of[each]}: {each.meaning}\n  type: {each.type}\n  default: {each.default}"
        )


def list_options(
    kind: Annotated[Kind, Argument(help="What to list.")],
    as_json: AsJson = False,
    everything: Annotated[
        bool, Option("--all", help="envs: every registered Gymnasium id too.")
    ] = False,
) -> None:
    """List policies, rewards, environments or presets.

    fits are the presets of `guerdon reward fit`.
    """
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
            width, epochs = str(section.model.width), str(section.num_epochs or "auto")
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
