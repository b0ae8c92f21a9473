"""A model's forward functions without what `nn.Module` does around them, for small models that run a token at a time.

    step = lean(model, own=(GPT, Backbone, ...))
    step(ids)                                      # what model(ids) returns, from the same tensors

Calling a module looks for hooks, and each weight and part is found through dictionaries. At one token, that takes a
small model as long as its arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any

from torch import nn
from torch.nn.modules import module as hooks

LEAVES = (nn.Linear, nn.Embedding, nn.LayerNorm, nn.RMSNorm, nn.Identity)


def lean(model: nn.Module, own: tuple[type[nn.Module], ...] = ()) -> Callable[..., Any]:
    """The model as plain objects that call each other's forward functions; the model itself, where that would not be
    the same: if any part has hooks, a forward function of its own, or a class that is neither of torch's (`LEAVES`) nor
    named here.

    own: classes whose forward functions need nothing from `nn.Module`. What it returns holds the weights as they lie
    now: after one was put in another's place, it is out of date.
    """
    known = (*own, *LEAVES, nn.ModuleList)
    return model if _has_hooks(model) or any(type(m) not in known for m in model.modules()) else _made(model)


def _has_hooks(model: nn.Module) -> bool:
    parts = (part for m in model.modules() for part in (m._forward_hooks, m._forward_pre_hooks))
    everywhere = (hooks._global_forward_hooks, hooks._global_forward_pre_hooks)
    return any(parts) or any(everywhere) or any("forward" in vars(m) for m in model.modules())


def _made(part: nn.Module) -> Any:
    if isinstance(part, nn.ModuleList):
        return tuple(map(_made, part))
    kind: Any = type(part)
    made: Any = object.__new__(_plain(kind))
    settings = {name: value for name, value in vars(part).items() if not name.startswith("_")}
    children = {name: None if child is None else _made(child) for name, child in part._modules.items()}
    vars(made).update({**settings, **part._parameters, **part._buffers, **children})
    return made


@cache
def _plain(kind: Any) -> type:
    """A class with a module's own functions, of which `forward` is what a call runs."""
    above = reversed(kind.__mro__[: kind.__mro__.index(nn.Module)])
    functions = {name: f for c in above for name, f in vars(c).items() if isinstance(f, FunctionType)}
    kept = {name: f for name, f in functions.items() if not name.startswith("__")}
    return type(f"Lean{kind.__name__}", (), {**kept, "__call__": kind.forward})
