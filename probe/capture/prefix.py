"""Running only the upper layers: what an edit leaves as it was need not be computed again.

prefix = Prefix(anatomy)
with prefix.recorded(2):
    model(**inputs)                                    # a plain pass over two prompts
prefix.check(inputs)
with prefix.resumed(layer, [0, 0, 1, 1]):              # prompts 0, 0, 1, 1 of that pass, from this layer on
    model(**inputs)                                    # inputs: those same prompts
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from probe.anatomy.stacks import Anatomy


class Prefix:
    """What every block returned in a plain pass, to be returned again instead of being computed.

    works: whether passes may be resumed, as `check` found; without it, nothing is skipped.
    """

    def __init__(self, anatomy: Anatomy, *, works: bool = False) -> None:
        places = [layer.block for layer in anatomy.stack.layers.values()]
        self.anatomy, self.works, self.size = anatomy, works, 0
        self.blocks = [place.module for place in places if place is not None and place.number == 0]
        self.outputs: dict[nn.Module, Any] = {}

    @contextmanager
    def recorded(self, size: int) -> Iterator[None]:
        """Within it, a plain pass over `size` prompts is to be run, without gradients."""

        def keep(module: nn.Module, _: Any, output: Any) -> None:
            self.outputs[module] = output

        self.size = size
        with ExitStack() as hooks:
            for block in self.blocks:
                hooks.callback(block.register_forward_hook(keep).remove)
            yield

    def check(self, inputs: dict[str, Any]) -> bool:
        """Whether a pass over the recorded prompts, resumed at any layer, ends in the same hidden states as a plain
        one; sets `works`. It does not where layers hand more to each other than the stream, or where blocks were not
        found.
        """
        self.works = not self.anatomy.is_encoder_decoder and len(self.outputs) == self.anatomy.n_layers
        with torch.no_grad():
            plain = self.anatomy.backbone(**inputs).last_hidden_state
            for layer in range(1, self.anatomy.n_layers):
                self.works = self.works and self._ends_alike(layer, inputs, plain)
        return self.works

    def _ends_alike(self, layer: int, inputs: dict[str, Any], plain: Tensor) -> bool:
        try:
            with self.resumed(layer, range(self.size)):
                return torch.equal(self.anatomy.backbone(**inputs).last_hidden_state, plain)
        except (AttributeError, LookupError, RuntimeError, TypeError, ValueError):  # it missed what was not computed
            return False

    @contextmanager
    def resumed(self, layer: int, prompts: Sequence[int]) -> Iterator[None]:
        """Within it, the blocks below `layer` compute nothing, and return what they did for these prompts."""
        if not self.works or layer == 0:
            yield
            return
        rows = torch.tensor(list(prompts))
        with ExitStack() as stack:
            for block in self.blocks[: layer - 1]:
                stack.enter_context(_returning(block, self.outputs[block]))  # read by none but the next of these
            last = self.blocks[layer - 1]
            stack.enter_context(_returning(last, _chosen(self.outputs[last], rows, self.size)))
            yield


@contextmanager
def _returning(module: nn.Module, output: Any) -> Iterator[None]:
    """Within it, calling the module runs its hooks but not its forward pass."""
    own = module.__dict__.get("forward")
    module.forward = lambda *_, **__: output
    try:
        yield
    finally:
        del module.forward
        if own is not None:
            module.forward = own


def _chosen(output: Any, rows: Tensor, size: int) -> Any:
    """The rows of every tensor that has one for each prompt."""
    if isinstance(output, Tensor):
        return output[rows.to(output.device)] if output.shape[:1] == (size,) else output
    if isinstance(output, tuple | list):
        return type(output)(_chosen(part, rows, size) for part in output)
    return output
