"""Translates configs of nerveX, DI-engine and RLinf to guerdon's keys."""

import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from guerdon.compat.keys import Report, merged
from guerdon.compat.nervex.translate import translate
from guerdon.compat.rlinf import config as rlinf
from guerdon.compat.stand_ins import stand_ins
from guerdon.config import ConfigError, GuerdonConfig, imports, sources

Pair = tuple[Mapping[str, Any], Mapping[str, Any]]
"""``(main_config, create_config)`` of DI-engine; the second completes the first."""
Source = str | Path | Mapping[str, Any] | GuerdonConfig | Pair


def translated(
    source: Source | None, overrides: Iterable[str] = (), report: Report | None = None
) -> tuple[Any, list[str]]:
    """Translate a source and overrides to guerdon's keys, for `guerdon.config.compose`.

    Keys without a meaning in guerdon are dropped with a warning; what becomes of keys is added to
    the report. Keys of another layout set ``eval.select_by: env``, since their stop value is an
    environment return.
    """
    report, overrides, dropped = report or Report(), list(overrides), list[str]()
    named = source is None or sources.is_preset(source)
    values = {} if named else sections(source, report)  # type: ignore[arg-type]
    chosen = {text.partition("=")[0].removesuffix(".type") for text in overrides}
    foreign = translate(values, report, chosen)
    with_reward_model, changes = rlinf.translate(values, overrides, dropped)
    if foreign or with_reward_model:
        if named:
            changes = ["eval.select_by=env", *changes]
        elif isinstance(evaluation := values.setdefault("eval", {}), dict):
            evaluation.setdefault("select_by", "env")
    _warn(dropped, report)
    return source if named else values, changes


def translated_fit(
    source: str | Path | Mapping[str, Any] | None, overrides: Iterable[str] = ()
) -> tuple[Any, list[str]]:
    """Translate a source and overrides of a fit to guerdon's keys, for `compose_fit`."""
    if source is not None and not sources.is_preset(source):
        source = sources.sections(source)
    dropped: list[str] = []
    changes = rlinf.translate_fit(source, overrides, dropped)
    _warn(dropped)
    return source, changes


def _warn(dropped: list[str], report: Report | None = None) -> None:
    parts = [", ".join(dict.fromkeys(dropped))] if dropped else []
    for reason, keys in (report.reasons() if report is not None else {}).items():
        parts.append(f"{', '.join(keys)} ({reason})")
    if parts:
        warnings.warn(
            f"keys without a meaning in guerdon are ignored: {'; '.join(parts)}", stacklevel=3
        )


def sections(source: Source, report: Report | None = None) -> dict[str, Any]:
    """Return the sections of a source that is not a preset, with its own keys.

    Names that a Python file imports, and guerdon lacks, are added to the report.
    """
    if isinstance(source, GuerdonConfig):
        return source.model_dump()
    if isinstance(source, tuple):
        main, create = map(sources.plain, source)
        return merged(create, main)
    if not isinstance(source, str | Path | Mapping):
        raise ConfigError(
            f"training needs a config and got {source!r}: give a preset, the path of a file, or a "
            f"dictionary of sections"
        )
    with stand_ins(report or Report()):
        values = sources.sections(source)
    module = None if isinstance(source, Mapping) else imports.loaded(Path(source))
    return merged(sources.plain(getattr(module, "create_config", {})), values)
