"""A model's forward functions without what `nn.Module` does around them, for small models that run a token at a time.

    step = lean(model, own=(GPT, Backbone, ...))
    step(ids)                                      # what model(ids) returns, from the same tensors

Calling a module looks for hooks, and each weight and part is found through dictionaries. At one token, that takes a
small model as long as its arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn
from torch.nn.modules import module as torch_module

KNOWN = (nn.Linear, nn.Embedding, nn.LayerNorm, nn.RMSNorm, nn.Identity, nn.ModuleList)
CALL = nn.Module.__call__  # who traces models puts another in its place
BOOKKEEPING = frozenset(vars(nn.Module())) - {"training"}
HOOKS = ("forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks")
REPLACED = ("forward", "_call_impl", "_compiled_call_impl")  # what a module may have of its own in a call's stead


def lean(model: nn.Module, own: tuple[type[nn.Module], ...] = ()) -> Callable[..., Any]:
    """The model as plain objects that call each other's forward functions; the model itself, where that would not be
    the same: if any part has hooks, something in its call's stead, or a class that is neither of torch's (`KNOWN`) nor
    named here.

    own: classes whose forward functions use nothing of `nn.Module`. What it returns is the model as it is now: hooks
    and weights that are put in later are not in it. Attention functions get a plain object for their module.
    """
    return _plain(model, {}, {}) if unheard(model.modules(), own) else model


def unheard(parts: Iterable[nn.Module], own: tuple[type[nn.Module], ...] = ()) -> bool:
    """Whether calling the parts does no more than their forward functions: nobody listens, nothing stands in their
    stead, and each is of a class of torch's (`KNOWN`) or of `own`.
    """
    if nn.Module.__call__ is not CALL or _heard_everywhere():
        return False
    known = (*own, *KNOWN)
    return all(type(part) in known and not _heard(part) for part in parts)


def _heard(part: nn.Module) -> bool:
    """Whether somebody listens to a module, or has put something in its call's stead."""
    mine = vars(part)
    return any(mine.get(f"_{hooks}") for hooks in HOOKS) or any(mine.get(name) is not None for name in REPLACED)


def _heard_everywhere() -> bool:
    """Whether somebody listens to every module there is."""
    return any(getattr(torch_module, f"_global_{hooks}") for hooks in HOOKS)


def _plain(part: nn.Module, made: dict[nn.Module, Any], classes: dict[type[nn.Module], type]) -> Any:
    """A part and all below it. made: those that are done; one that stands in two places is one here, too. classes: one
    for all parts of a kind, so that Python's caches of look-ups, which are a class's, hold for all of them.
    """
    if part not in made:
        if isinstance(part, nn.ModuleList):
            made[part] = tuple(_plain(child, made, classes) for child in part)
        else:
            kind = type(part)
            if kind not in classes:
                classes[kind] = _plain_class(kind)
            twin: Any = object.__new__(classes[kind])
            made[part] = twin
            settings = {name: value for name, value in vars(part).items() if name not in BOOKKEEPING}
            below = part._modules.items()
            children = {name: None if child is None else _plain(child, made, classes) for name, child in below}
            vars(twin).update({**settings, **part._parameters, **part._buffers, **children})
    return made[part]


def _plain_class(kind: type[nn.Module]) -> type:
    """A class with what a module's class has of its own, and with `forward` for a call."""
    above = reversed(kind.__mro__[: kind.__mro__.index(nn.Module)])
    own = {name: value for c in above for name, value in vars(c).items() if not name.startswith("__")}
    return type(f"Plain{kind.__name__}", (), {**own, "__call__": kind.forward})
