"""Path patching: what one head writes, changed only for what another head reads of it (Wang et al. 2022; Goldowsky-Dill
et al. 2023).

The reader's block is run once on the side, on a stream in which the writer's part is replaced, up to its attention
call; its attention then runs once more with those queries, keys or values, and the reader's z alone is taken from it.
Every other head, and everything between the two, sees the stream as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from probe.anatomy.interface import Call, would_attend
from probe.anatomy.stacks import Anatomy, Place
from probe.capture.edit import Captured, Path
from probe.capture.residual import head_writes, stream_of, turn, with_stream
from probe.errors import OutOfRange, ProbeError, UnknownName, UnsupportedModel
from probe.sites import SQUARE_SITES, Site, check_indices

if TYPE_CHECKING:
    from probe.capture.capture import Capture

INTO = ("q", "k", "v")
Head = tuple[int, int]  # layer, head


def path(
    writer: Head, reader: Head, *, run: Captured | None = None, into: str | Sequence[str] = INTO, prompts: Any = None
) -> Path:
    """Let one head read another's write as it was in `run` (which captured `result` whole; None: as if it wrote
    nothing), while everything else reads it as it is.

    writer, reader: (layer, head), the reader in a later layer. into: through which of its "q", "k", "v".
    Raises UnknownName, ProbeError.
    """
    chosen = tuple(into) if not isinstance(into, str) else (into,)
    if not chosen:
        raise ProbeError("into=[] of a path: nothing of the reader would see it; name one of q, k and v.")
    for name in chosen:
        if name not in INTO:
            raise UnknownName.of("input of a head", name, INTO)
    if writer[0] >= reader[0] >= 0:
        raise ProbeError(f"layer {reader[0]} reads before layer {writer[0]} writes: the reader is in a later layer.")
    return Path(writer, reader, chosen, run, (prompts,) if isinstance(prompts, int) else prompts)


def checked(paths: Iterable[Path], anatomy: Anatomy) -> list[Path]:
    """The same with indices from 0. Raises OutOfRange; UnsupportedModel where a write does not stay in the stream."""
    found = []
    name = type(anatomy.model).__name__
    for given in paths:
        ends = []
        for layer, head in (given.writer, given.reader):
            (layer,) = check_indices("layer", layer, anatomy.n_layers)
            attention = anatomy.attention("", layer)
            if attention is None:
                raise UnsupportedModel(f"layer {layer} of {name} has no attention heads.")
            ends.append((layer, check_indices("head", head, attention.n_heads)[0]))
        (first, _), (last, _) = ends
        if first >= last:
            raise ProbeError(f"layer {last} reads before layer {first} writes: the reader is in a later layer.")
        attention = anatomy.stack.layers[first].attention
        between = [anatomy.stack.layers.get(layer) for layer in range(first, last + 1)]
        carried = all(layer is not None and layer.block and layer.carries for layer in between)
        if not carried or attention.added is None or attention.project is None or not anatomy.asks:
            raise UnsupportedModel(
                f"{name} has no {given} that probe can cut: what a head writes is normed before later layers read it, "
                "or its parts were not found. Edit z or result instead."
            )
        found.append(Path(ends[0], ends[1], given.into, given.run, given.prompts))
    return found


def check_readers(paths: Iterable[Path], edits: Mapping[Site, Any], read: Iterable[Site]) -> None:
    """Raises ProbeError for an edit that a reader would have to see on the side as well, and for reading a pattern that
    would not be the reader's: its attention runs on the side.
    """
    read = list(read)
    for each in paths:
        for site in read:
            if site.layer == each.reader[0] and site.base in SQUARE_SITES and not site.prefix:
                raise ProbeError(
                    f"{site} cannot be read beside a {each}: what that head looks at by way of the path is computed "
                    "on the side, and the pass itself holds what it looks at without. Read its z, or another layer."
                )
        for site in edits:
            if site.layer == each.writer[0] and site.base in ("result", "attn_out") and not site.prefix:
                raise ProbeError(
                    f"{site} is edited and read by a {each}, which takes what the head wrote without the edit. Edit z, "
                    "or run them apart."
                )
            if site.layer == each.reader[0] and site.base in ("resid_pre", *INTO, "rot_q", "rot_k", *SQUARE_SITES):
                raise ProbeError(f"{site} is edited and read by a {each}: one capture cannot do both. Run them apart.")


class PathSites:
    """Stands at the writers, and at the readers' blocks, of a capture's paths."""

    def __init__(self, capture: Capture, paths: Sequence[Path]) -> None:
        self.capture, self.paths = capture, paths
        self._writes: dict[Head, Tensor] = {}
        self._sides: dict[Head, dict[str, Tensor]] = {}
        layers = capture.anatomy.stack.layers
        self._handles = []
        for writer in dict.fromkeys(p.writer for p in paths):
            project = layers[writer[0]].attention.project
            assert project is not None
            self._handles.append(self._at_writer(project, writer))
        for reader in dict.fromkeys(p.reader[0] for p in paths):
            block = layers[reader].block
            assert block is not None
            self._handles.append(self._at_block(block, reader))

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _at_writer(self, place: Place, writer: Head) -> torch.utils.hooks.RemovableHandle:
        attention = self.capture.anatomy.stack.layers[writer[0]].attention
        mine = turn(self.capture, place)

        def hook(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            if mine():
                z = args[0].reshape(*output.shape[:-1], attention.n_heads, -1)
                with self.capture.aside():
                    self._writes[writer] = head_writes(module, z, [writer[1]]).squeeze(2)

        return place.module.register_forward_hook(hook)

    def _at_block(self, place: Place, layer: int) -> torch.utils.hooks.RemovableHandle:
        mine = turn(self.capture, place)

        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if not mine():
                return
            stream = stream_of(args, kwargs)
            sides: dict[tuple[Path, ...], tuple[Tensor, Tensor, Tensor]] = {}
            for reader in dict.fromkeys(p.reader for p in self.paths if p.reader[0] == layer):
                self._sides[reader] = {}
                for place_of, letter in enumerate(INTO):
                    mine_of = tuple(p for p in self.paths if p.reader == reader and letter in p.into)
                    if mine_of and mine_of not in sides:
                        moved = stream + torch.stack([self._change(p, stream) for p in mine_of]).sum(0)
                        with self.capture.aside():
                            sides[mine_of] = would_attend(module, *with_stream(args, kwargs, moved))
                    if mine_of:
                        self._sides[reader][letter] = sides[mine_of][place_of]

        return place.module.register_forward_pre_hook(hook, with_kwargs=True)

    def _change(self, each: Path, stream: Tensor) -> Tensor:
        """What replacing the writer's part changes in the stream: nothing in other prompts and in padding."""
        layer, head = each.writer
        added = self.capture.anatomy.stack.layers[layer].attention.added
        assert added is not None
        write, change = self._writes[each.writer], torch.zeros_like(stream)
        frame, _ = self.capture.frames_of(Site("result", layer))
        for b in range(len(stream)):
            number, n, shift = (b, stream.shape[1], 0) if frame is None else tuple(part[b] for part in frame)
            if each.prompts is not None and number not in each.prompts:
                continue
            rows = slice(shift, shift + n)
            new = torch.zeros_like(write[b, rows])
            if each.run is not None:
                if getattr(each.run, "heads", None) is not None or getattr(each.run, "rows", None) is not None:
                    raise ProbeError(f"the run of a {each} kept only some heads or rows: run it again with all.")
                source = each.run["result", layer]
                if number >= len(source) or source.shape[1] < n or bool(source[number, :n, head].isnan().any()):
                    raise OutOfRange(f"the run of a {each} has no prompt {number} of {n} tokens.")
                new = source[number, :n, head].to(write)
            change[b, rows] = added * (new - write[b, rows])
        return change

    def attended(self, call: Call, layer: int) -> None:
        """Put into z what the readers of this layer find."""
        for reader in [r for r in self._sides if r[0] == layer]:
            sides = self._sides.pop(reader)
            own = dict(zip(INTO, (call.query, call.key, call.value), strict=True))
            z = call.function(call.module, *({**own, **sides}[name] for name in INTO), call.mask, **call.kwargs)[0]
            mine = torch.arange(z.shape[2], device=z.device) == reader[1]
            call.output = torch.where(mine[None, None, :, None], z, call.output)
            call.output_edited = True
