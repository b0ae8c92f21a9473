"""What a capture has kept: tensors by site, how much memory they hold, and the steps of a generation joined."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from probe.errors import CaptureError
from probe.sites import CROSS, ENCODER, KEY_SITES, SQUARE_SITES, Site


def amount(size: int) -> str:
    """Bytes in words: 2.31 GB, 45.0 MB, 812 bytes."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return f"{size / unit:.2f} {name}"
    return f"{size} bytes"


class Store:
    """Tensors by site. device: where to move them, None leaves them where they are. max_bytes: how much they may hold.

    steps: whether each site is seen once for each pass of a generation, and its positions are to be joined.
    """

    def __init__(self, *, device: torch.device | None, max_bytes: int, steps: bool) -> None:
        if max_bytes < 0:
            raise CaptureError(f"max_bytes={max_bytes}: a capture may hold 0 bytes or more.")
        self.device, self.max_bytes, self.steps = device, max_bytes, steps
        self.bytes = 0
        self._kept: dict[Site, list[tuple[Tensor, int]]] = {}

    def __contains__(self, site: object) -> bool:
        return site in self._kept

    def __iter__(self) -> object:
        return iter(self._kept)

    def clear(self) -> None:
        self._kept.clear()
        self.bytes = 0

    def keep(self, site: Site, tensor: Tensor, layers_left: int = 1) -> None:
        """Raises CaptureError where the site was seen before, or would not fit into memory."""
        if site in self._kept and not self.steps:
            raise CaptureError(f"{site} was seen twice: a capture reads one forward pass. Open one capture for each.")
        size = tensor.numel() * tensor.element_size()
        self.expect(site, size, layers_left)
        if self.device is not None:
            tensor = tensor.to(self.device)
        self.bytes += size
        self._kept.setdefault(site, []).append((tensor, _version(tensor)))

    def expect(self, site: Site, size: int, layers_left: int) -> None:
        """Raises CaptureError, before memory is taken, where `size` bytes a layer would be too many."""
        if self.bytes + size * layers_left <= self.max_bytes:
            return
        over = f" over {layers_left} layers" if layers_left > 1 else ""
        raise CaptureError(
            f"{site.name} would take {amount(size * layers_left)}{over}, beside {amount(self.bytes)} already "
            f"kept; max_bytes is {amount(self.max_bytes)}. Ask for fewer layers, prompts or rows (rows=), or "
            "stream statistics."
        )

    def get(self, site: Site) -> Tensor:
        """Raises CaptureError where the model wrote into the tensor after it was kept."""
        parts = self._kept[site]
        if any(_version(tensor) != version for tensor, version in parts):
            raise CaptureError(f"{site} was overwritten in place after it was captured.")
        tensors = [tensor for tensor, _ in parts]
        return tensors[0] if len(tensors) == 1 else join(site, tensors)


def join(site: Site, steps: Sequence[Tensor]) -> Tensor:
    """The tensors of successive passes as one full pass would have given them."""
    if site.prefix == ENCODER or (site.prefix == CROSS and site.base in KEY_SITES):
        return steps[0]  # the encoder runs once
    if site.base not in SQUARE_SITES:
        return torch.cat(list(steps), 1)
    if site.prefix == CROSS:
        return torch.cat(list(steps), 2)
    total = sum(step.shape[2] for step in steps)
    fill = 0.0 if site.base == "pattern" else torch.finfo(steps[0].dtype).min
    rows, past = [], 0
    for step in steps:
        # With a cache, a step's keys are those of all positions so far, or the last of them in a sliding window.
        now = past + step.shape[2]
        row = step.new_full((*step.shape[:3], total), fill)
        width = min(step.shape[3], now)
        row[..., now - width : now] = step[..., :width] if step.shape[3] > now else step
        rows.append(row)
        past = now
    return torch.cat(rows, 2)


def _version(tensor: Tensor) -> int:
    """Counts in-place writes; tensors made in inference mode do not count them."""
    return 0 if tensor.is_inference() else tensor._version
