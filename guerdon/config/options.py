"""What every option means: keys, types, defaults and docstrings of the schema."""

import ast
import inspect
import json
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from guerdon.config.registry import registry_of
from guerdon.config.schema import GuerdonConfig, TermConfig

_LIMITS = {Ge: "≥", Gt: ">", Le: "≤", Lt: "<"}


class Option(NamedTuple):
    """An option, or a section of options."""

    key: str
    type: str
    default: str
    meaning: str
    owners: tuple[str, ...] = ()
    """Policies or reward models that have it; none for options of every run."""


def options(
    policies: Iterable[str] | None = None, rewards: Iterable[str] | None = None
) -> list[Option]:
    """Return all options of runs, and of the given policies and reward models (default: all)."""
    names = {
        "policy": registry_of("policy").names() if policies is None else [*policies],
        "reward": registry_of("reward").names() if rewards is None else [*rewards],
    }
    by_policy = {name: registry_of("policy").get(name).defaults for name in names["policy"]}
    found = [
        option._replace(default=_with_defaults(option, by_policy))
        for option in _of_model(GuerdonConfig)
    ]
    found += _of_model(TermConfig, "reward.")
    merged: dict[Option, tuple[str, ...]] = dict.fromkeys(found, ())
    for kind in ("policy", "reward"):
        for name in names[kind]:
            for option in _of_model(registry_of(kind).get(name).Config, f"{kind}."):
                if option.key != f"{kind}.type":
                    merged[option] = (*merged.get(option, ()), name)
    return [option._replace(owners=owners) for option, owners in merged.items()]


def _of_model(model: type[BaseModel], path: str = "", default: Any = None) -> Iterator[Option]:
    """Yield the options of a model, with the defaults of an instance if there is one."""
    meanings = meanings_of(model)
    for name, field in model.model_fields.items():
        value = field.default if default is None else getattr(default, name)
        inner = [each for each in _parts(field.annotation) if _is_model(each)]
        shown = "" if inner else _written(field, value)
        yield Option(f"{path}{name}", _type(field), shown, meanings.get(name, ""))
        for each in inner:
            instance = value if isinstance(value, each) else None
            yield from _of_model(each, f"{path}{name}.", instance)


def meanings_of(model: type[BaseModel]) -> dict[str, str]:
    """Return the docstrings below the fields of a model.

    Read from the source when asked for: for pydantic to do so takes a tenth of a second of every
    start.
    """
    found: dict[str, str] = {}
    for cls in reversed(model.__mro__):
        if issubclass(cls, BaseModel) and cls is not BaseModel:
            (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
            for field, text in pairwise(getattr(tree, "body", ())):
                match field, text:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(
                        value=ast.Constant(value=str(said))
                    ):
                        found[name] = " ".join(said.replace("``", "`").split())
    return found


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _parts(annotation: Any) -> tuple[Any, ...]:
    """Return the alternatives of a type."""
    union = get_origin(annotation) in (Union, UnionType)
    return get_args(annotation) if union else (annotation,)


def _type(field: FieldInfo) -> str:
    limits = [
        f"{_LIMITS[type(limit)]} {getattr(limit, type(limit).__name__.lower()):,}"
        for limit in field.metadata
        if type(limit) in _LIMITS
    ]
    return ", ".join([_name(field.annotation), *limits])


def _name(annotation: Any) -> str:
    """Describe a type: ``int or null``, ``list of str``."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if _is_model(annotation):
        return "section"
    if origin in (list, tuple):
        return f"list of {_name(arguments[0])}"
    if origin is Annotated:
        return _name(arguments[0])
    if origin is Callable:
        return "function"
    if origin is Literal or len(_parts(annotation)) > 1:
        return " or ".join(each if isinstance(each, str) else _name(each) for each in arguments)
    return "null" if annotation is NoneType else getattr(annotation, "__name__", str(annotation))


def _written(field: FieldInfo, value: Any) -> str:
    if field.is_required():
        return "required"
    if field.default_factory is not None and value is field.default:
        return "see the meaning"
    return value if isinstance(value, str) and value else json.dumps(value, default=str)


def _with_defaults(option: Option, defaults: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the default of an option, with those that policies set."""
    section, _, name = option.key.partition(".")
    by_value: dict[str, list[str]] = {}
    for policy, sections in defaults.items():
        if name in sections.get(section, {}):
            by_value.setdefault(json.dumps(sections[section][name]), []).append(policy)
    said = [f"{value} for {', '.join(names)}" for value, names in by_value.items()]
    return "; ".join([option.default, *said])
