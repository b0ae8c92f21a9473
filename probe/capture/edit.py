"""What an edit is: a change of the chosen part of a site, and how it is made in a batch's tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from probe.errors import OutOfRange, ProbeError
from probe.sites import SQUARE_SITES, Site, check_indices, split

ENDLESS = 1 << 30  # the length of a prompt while text is written: it has no end yet
HEAD_SITES = ("q", "k", "v", "rot_q", "rot_k", "z", "result")

Indices = int | Sequence[int] | None


class Where(NamedTuple):
    """Which part of a site a change is given. prompts: (prompt,) their numbers; rows: (row,) their positions; heads:
    (head,), None where the site has none; keys: (key,) the columns' positions (negative: padding), for scores and
    pattern alone.
    """

    prompts: Tensor
    rows: Tensor
    heads: Tensor | None = None
    keys: Tensor | None = None


class Frame(NamedTuple):
    """How the tensors of a batch hold its prompts. indices: the number of each prompt; lengths: its real tokens;
    shift: the padding before them.
    """

    indices: tuple[int, ...]
    lengths: tuple[int, ...]
    shift: tuple[int, ...]

    def only(self, places: Sequence[int]) -> Frame:
        """The prompts at these places of the batch."""
        return Frame(*(tuple(part[b] for b in places) for part in self))

    @classmethod
    def plain(cls, batch: int, length: int) -> Frame:
        """Prompts without padding, numbered by their place in the batch."""
        return cls(tuple(range(batch)), (length,) * batch, (0,) * batch)


class Change(Protocol):
    """New values for the chosen part of a site: (prompt, row, d_model), (prompt, row, head, d_head), or for scores and
    pattern (prompt, head, row, key). May return anything that broadcasts to that shape; must not write into `part`.
    """

    def __call__(self, part: Tensor, where: Where) -> Tensor: ...


class Captured(Protocol):
    """What `Subject.run` returns: a site's tensor by name and layer, positions from 0, filled up with NaN."""

    def __getitem__(self, site: str | tuple[str, int]) -> Tensor: ...


Positions = tuple[int, ...] | tuple[tuple[int, ...], ...] | None


@dataclasses.dataclass(frozen=True, eq=False)
class Edit:
    """One change at one site. Made by the functions below.

    heads: query heads; at `k`, `rot_k`, `v` the key-value heads they read, hence whole groups. rows: positions (of
    keys at `k`, `rot_k`, `v`; of queries elsewhere), the same for every prompt, or a list for each. keys: columns of
    `scores` and `pattern`. prompts: numbers of prompts. None is always all. Positions count a prompt's real tokens in
    `Subject.run` and the tensors' positions in `Capture`; negative ones count from the end. Cells of `scores` and
    `pattern` that a mask hides, later positions and padding, stay hidden.
    """

    site: str
    layer: int | None
    change: Change
    heads: tuple[int, ...] | None = None
    rows: Positions = None
    keys: Positions = None
    prompts: tuple[int, ...] | None = None
    what: str = "change"

    def __str__(self) -> str:
        heads = "" if self.heads is None else f", heads {', '.join(map(str, self.heads))}"
        return f"{self.what} {Site(self.site, self.layer)}{heads}"

    def apply(
        self,
        tensor: Tensor,
        frame: Frame | None = None,
        key_frame: Frame | None = None,
        *,
        rows_at: Tensor | None = None,
        length: int | None = None,
        past: int = 0,
        keys_from: int = 0,
    ) -> Tensor:
        """The site's tensor with this edit made; the one given is left as it is.

        tensor: (batch, pos, d_model), (batch, pos, head, d_head) or (batch, head, query, key).
        rows_at: (batch, row), the position of each row, where the tensor holds only some of `length`. past: that of its
        first row, where a cache holds earlier ones. keys_from: the position of its first key. key_frame: how its
        columns hold prompts, where these are not those of its rows (cross-attention).
        """
        square = split(self.site)[1] in SQUARE_SITES
        batch, n_rows = tensor.shape[0], tensor.shape[2 if square else 1]
        mine = self.prompts
        if frame is None and mine is not None:
            mine = check_indices("prompt", mine, batch)
        frame = frame or Frame.plain(batch, past + (length or n_rows))
        key_frame = key_frame or frame
        groups: dict[tuple[Any, ...], list[int]] = {}
        for b, (number, real, shift) in enumerate(zip(*frame, strict=True)):
            if mine is not None and number not in mine:
                continue
            held = range(past, past + n_rows) if rows_at is None else rows_at[b].tolist()
            wanted = self._of("rows", number, real)
            here = {i: p - shift for i, p in enumerate(held) if 0 <= p - shift < real}
            rows = {i: p for i, p in here.items() if wanted is None or p in wanted}
            keys = None
            if square:
                start = keys_from - key_frame.shift[b]
                positions = range(start, start + tensor.shape[3])
                chosen = self._of("keys", number, key_frame.lengths[b])
                last = key_frame.lengths[b]
                keys = {i: k if k < last else -1 for i, k in enumerate(positions) if chosen is None or k in chosen}
            if rows and keys != {}:
                part = tuple(rows.items()), keys and tuple(keys.items())
                groups.setdefault(part, []).append(b)
        edited = tensor.clone() if groups else tensor
        for (rows_here, keys_here), members in groups.items():
            index, where = self._part(tensor, members, dict(rows_here), keys_here and dict(keys_here))
            numbers = _index([frame.indices[b] for b in members], tensor)
            edited[index] = self._changed(edited[index], where._replace(prompts=numbers)).to(edited.dtype)
        return edited

    def _changed(self, part: Tensor, where: Where) -> Tensor:
        """Raises ProbeError where the change, which may be a user's, makes something that does not fit."""
        new: Any = self.change(part, where)
        if isinstance(new, Tensor) and fits(new.shape, part.shape):
            return new
        what = f"a tensor of shape {tuple(new.shape)}" if isinstance(new, Tensor) else repr(new)
        raise ProbeError(f"an edit ({self}) made {what} of a part of shape {tuple(part.shape)}.")

    def marked(self, tensor: Tensor, *frames: Frame | None, **place: Any) -> Tensor:
        """Bool, of the tensor's shape: the cells that this edit is for. Arguments as for `apply`."""
        mark = dataclasses.replace(self, change=lambda part, _: torch.ones_like(part))
        return mark.apply(torch.zeros_like(tensor, dtype=torch.bool), *frames, **place)

    def _part(
        self, tensor: Tensor, prompts: list[int], rows: dict[int, int], keys: dict[int, int] | None
    ) -> tuple[tuple[Tensor, ...], Where]:
        """The index of the chosen part, and where that is. rows, keys: place in the tensor -> position."""
        axes: list[Any] = [prompts, list(rows)]
        heads = None
        if tensor.dim() == 4:
            n_heads = tensor.shape[2 if keys is None else 1]
            heads = _index(range(n_heads) if self.heads is None else self.heads, tensor)
            axes = [prompts, list(rows), heads] if keys is None else [prompts, heads, list(rows), list(keys)]
        grid = torch.meshgrid(*(a if isinstance(a, Tensor) else _index(a, tensor) for a in axes), indexing="ij")
        columns = None if keys is None else _index(list(keys.values()), tensor)
        return grid, Where(_index(prompts, tensor), _index(list(rows.values()), tensor), heads, columns)

    def touches(self, place: int, length: int, frame: Frame | None) -> set[int]:
        """The positions of a batch's tensors, `length` long, at which this edit changes the prompt at `place`."""
        number, real, shift = (place, length, 0) if frame is None else tuple(part[place] for part in frame)
        if self.prompts is not None and number not in self.prompts:
            return set()
        rows = self._of("rows", number, real)
        return set(range(shift, shift + real) if rows is None else (r + shift for r in rows))

    def _of(self, kind: str, number: int, length: int) -> set[int] | None:
        """`rows` or `keys` of one prompt as positions from 0."""
        chosen: Any = getattr(self, kind)
        if chosen is None:
            return None
        if chosen and not isinstance(chosen[0], int):
            if number >= len(chosen):
                raise OutOfRange(f"{kind} of an edit ({self}) are given for {len(chosen)} prompts; there are more.")
            chosen = chosen[number]
        for i in chosen:
            if i < 0 and length >= ENDLESS:
                raise OutOfRange(
                    f"{kind} of an edit ({self}) count from a prompt's start while text is written, not {i}."
                )
            if not -length <= i < length:
                raise OutOfRange.of(kind.removesuffix("s"), i, length)
        return {i % length for i in chosen}


@dataclasses.dataclass(frozen=True, eq=False)
class Path:
    """Made by `probe.edits.path`. writer, reader: (layer, head). into: what of the reader sees the change, of "q", "k",
    "v". run: where the writer's `result` is taken from, None for nothing in its place. prompts: numbers of prompts.
    """

    writer: tuple[int, int]
    reader: tuple[int, int]
    into: tuple[str, ...]
    run: Captured | None
    prompts: tuple[int, ...] | None = None

    def __str__(self) -> str:
        return f"path from head {self.writer[0]}.{self.writer[1]} to {self.reader[0]}.{self.reader[1]}"


Edits = Sequence[Edit | Path] | Sequence[Sequence[Edit | Path]]


def fits(shape: Sequence[int], whole: Sequence[int]) -> bool:
    """Whether a tensor of `shape` can be put into one of shape `whole`."""
    ends = zip(reversed(shape), reversed(whole), strict=False)
    return len(shape) <= len(whole) and all(size in (1, there) for size, there in ends)


def _index(values: Sequence[int], like: Tensor) -> Tensor:
    return torch.tensor(list(values), dtype=torch.long, device=like.device)


def flattened(edits: Edits, n_prompts: int) -> list[Edit | Path]:
    """One list of edits, those given for one prompt bound to it. Raises OutOfRange."""
    each: list[Any] = [edits] if isinstance(edits, Edit | Path) else list(edits)
    mixed = {isinstance(e, list | tuple) for e in each}
    if len(mixed) > 1:
        raise ProbeError("edits are one list for all prompts, or a list for each; these are both.")
    if not any(mixed):
        chosen = [getattr(e, "prompts", None) for e in each]
        return [
            e if p is None else dataclasses.replace(e, prompts=check_indices("prompt", p, n_prompts))
            for e, p in zip(each, chosen, strict=True)
        ]
    if len(each) != n_prompts:
        raise OutOfRange(f"lists of edits were given for {len(each)} prompts, but there are {n_prompts}.")
    return [dataclasses.replace(e, prompts=(i,)) for i, mine in enumerate(each) for e in mine]


def of_batch(edits: Sequence[Edit | Path], indices: range) -> list[Edit | Path]:
    """The edits that touch a prompt of the batch."""
    return [
        e for e in edits if (prompts := getattr(e, "prompts", None)) is None or not set(prompts).isdisjoint(indices)
    ]
