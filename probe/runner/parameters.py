"""A study's own parameters: what `--set name=value` may name, and the value as the type the study says it has."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from probe.errors import UnknownName, UsageError

RESERVED = ("profile", "seed", "data")  # every study takes these; they have options of their own


def own_parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """A study's parameters beside those that have an option of their own, by name."""
    found = inspect.signature(function).parameters.items()
    return {name: p for name, p in found if p.kind is p.KEYWORD_ONLY and name not in RESERVED}


def parse(function: Callable[..., Any], name: str, text: str) -> Any:
    """A parameter's value from text, by its annotation, else by its default's type; lists are written as JSON.

    Raises UnknownName for a parameter that is not there or a choice (Literal) that is not one of its own, UsageError
    for a value of another type.
    """
    own = own_parameters(function)
    if name not in own:
        raise UnknownName.of(f"parameter of {function.__name__}", name, own)
    hint = _hint(function, own[name])
    if choices := _choices(hint):
        by_text = {str(choice): choice for choice in choices}
        if text not in by_text:
            raise UnknownName.of(f"{name} of {function.__name__}", text, by_text)
        return by_text[text]
    from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError

    try:
        adapter = TypeAdapter(hint)
        if get_origin(hint) in (list, tuple, dict, set, frozenset):
            return adapter.validate_json(text)
        return adapter.validate_strings(text)
    except ValidationError as error:
        raise UsageError(f"--set {name}={text}: {error.errors()[0]['msg']}.") from error
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        raise UsageError(f"{name} of {function.__name__} has the type {hint}, which cannot be set by --set.") from error


def _hint(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """The parameter's type. Read by itself: others may name types that only a type checker imports."""
    if parameter.annotation is parameter.empty:
        known = parameter.default not in (parameter.empty, None)
        return type(parameter.default) if known else str
    holder = type("Holder", (), {"__annotations__": {"value": parameter.annotation}})
    try:
        return get_type_hints(holder, globalns=getattr(function, "__globals__", {}))["value"]
    except (NameError, TypeError, SyntaxError) as error:
        raise UsageError(f"{parameter.name} of {function.__name__} has a type that is not there: {error}.") from error


def _choices(hint: Any) -> tuple[Any, ...]:
    """What a Literal allows, also one that may be None; () for any other type."""
    if get_origin(hint) is Literal:
        return get_args(hint)
    within = [part for part in get_args(hint) if part is not NoneType]
    return _choices(within[0]) if len(within) == 1 and get_origin(hint) not in (list, tuple, set, frozenset) else ()
