"""Validation with one-sentence errors that have the dotted path of the key."""

import re
from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from guerdon.config.errors import ConfigError, either, suggestion

M = TypeVar("M", bound=BaseModel)
ReadIf = tuple[tuple[str, str, Any], ...]
"""Type of the class variable ``read_if`` of a model: options that have an effect only if another
option has a value, as triples (option, other, value); True is any value other than None, False and
0, and a tuple is any of its values."""


def validated(model: type[M], values: Any, path: str = "") -> M:
    """Validate values as a model; raise a :class:`ConfigError` of one sentence.

    An option without effect (see `ReadIf`) is an error unless it has its default value.

    Args:
        model: Pydantic model.
        values: Values of its fields.
        path: Dotted path of the values in the whole configuration.
    """
    try:
        found = model.model_validate(values)
    except ValidationError as error:
        # Unknown keys first: the key that was meant is then missing, too.
        details = sorted(error.errors(), key=lambda detail: detail["type"] != "extra_forbidden")
        sentence = _sentence(model, values, details[0], path)
    else:
        _check_read(found, path)
        return found
    # Outside the handler, so that a traceback shows only this error.
    raise ConfigError(sentence)


def _check_read(model: BaseModel, path: str) -> None:
    for option, other, needed in getattr(model, "read_if", ()):
        value = attrgetter(other)(model)
        if not is_read(value, needed):
            refuse(model, [option], f"{_joined(path, other)!r} is {value}", path)
    for name, inner in model:
        if isinstance(inner, BaseModel):
            _check_read(inner, _joined(path, name))


def is_read(value: Any, needed: Any) -> bool:
    """Return whether an option has an effect, given the value of the other one; see `ReadIf`."""
    if isinstance(needed, tuple):
        return value in needed
    return bool(value) if needed is True else bool(value == needed)


def refuse(model: BaseModel, options: Iterable[str], reason: str, path: str) -> None:
    """Raise an error if options without effect differ from their defaults.

    Args:
        model: Model with these options.
        options: Dotted names.
        reason: Why they have no effect.
        path: Dotted path of the model in the whole configuration.
    """
    for option in options:
        first, _, rest = option.partition(".")
        field, value = type(model).model_fields[first], getattr(model, first)
        default = field.get_default(call_default_factory=True, validated_data=vars(model))
        if rest:
            value, default = attrgetter(rest)(value), attrgetter(rest)(default)
        if value != default:
            where = _joined(path, option)
            raise ConfigError(f"{where!r} has no effect, since {reason}: leave it out")


def unknown_key(path: str, known: Mapping[str, list[str]]) -> str:
    """Return the error message of an unknown key.

    Args:
        path: Dotted path as written.
        known: Keys of each section by its dotted path (the root is ``""``).
    """
    section, _, key = path.rpartition(".")
    siblings = known.get(section, [])
    elsewhere = [f"{other}.{key}" for other, keys in known.items() if other and key in keys]
    if elsewhere:
        return f"unknown key {path!r}: did you mean {either(elsewhere)}?"
    return f"unknown key {path!r}: {suggestion(key, siblings)}"


def keys_of(model: type[BaseModel], path: str = "") -> dict[str, list[str]]:
    """Return the keys of a model and its nested models, by dotted path."""
    found = {path: sorted(model.model_fields)}
    for name, field in model.model_fields.items():
        for inner in _models_in(field.annotation):
            found |= keys_of(inner, _joined(path, name))
    return found


def completed(model: type[BaseModel], values: Mapping[str, Any]) -> dict[str, Any]:
    """Complete partial values of nested models by the defaults of their fields.

    ``{model: {hidden: [256]}}`` changes one key of that policy's default model; pydantic alone
    would take the other keys from the nested class.
    """
    found = dict(values)
    for name, field in model.model_fields.items():
        default, value = field.default, values.get(name)
        if isinstance(default, BaseModel) and isinstance(value, Mapping):
            found[name] = {**default.model_dump(), **completed(type(default), value)}
    return found


def _sentence(model: type[BaseModel], values: Any, detail: ErrorDetails, path: str) -> str:
    context = detail.get("ctx", {})
    if isinstance(context.get("error"), ConfigError):
        return str(context["error"])
    where = _joined(path, *_location(detail, values))
    if detail["type"] == "extra_forbidden":
        return unknown_key(where, keys_of(model, path))
    if detail["type"] == "missing":
        return f"{where!r} is missing"
    message = detail["msg"].removeprefix("Value error, ")
    message = re.sub(r"^(Input|String|Value) should", "it should", message)
    if detail["type"] in ("model_type", "dict_type"):
        message = "it should be a mapping"
    return f"{where!r} is {detail['input']!r}: {message}" if where else message


def _location(detail: ErrorDetails, values: Any) -> Iterator[str]:
    """Return the keys in an error's location, without pydantic's names of union types."""
    *inner, last = detail["loc"] or ("",)
    for part in inner:
        index = isinstance(values, list | tuple) and isinstance(part, int)
        if index or (isinstance(values, Mapping) and part in values):
            values = values[part]
            yield str(part)
    inside = isinstance(values, Mapping) and (last in values or detail["type"] == "missing")
    if inside or isinstance(last, int):
        yield str(last)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)


def _joined(*parts: str) -> str:
    return ".".join(part for part in parts if part)
