"""`Subject`: a model and its tokenizer, ready to be measured.

subject = probe.load("smollm2")
run = subject.run(["The cat sat."], sites=["pattern", "resid_post"])
run["pattern", 11]                          # (batch, head, query, key)
targets = subject.bind(probe.data.coreference())
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from probe.capture.anatomy import Anatomy, dissect
from probe.capture.capture import Capture
from probe.errors import CaptureError, OutOfRange, ProbeError, PromptError, UnsupportedModel
from probe.models.gpt import GPT
from probe.models.loading import load_model
from probe.sites import KEY_SITES, SQUARE_SITES, check_indices, check_sites
from probe.targets import Targets
from probe.tokens.binding import bind
from probe.tokens.encoding import Encoded, encode, require_offsets, unknown_words

if TYPE_CHECKING:
    from torch import nn

    from probe.data.texts import Dataset

Rows = Sequence[int] | Sequence[Sequence[int]] | None


def load(
    source: str | Path | nn.Module,
    tokenizer: Any = None,
    *,
    name: str | None = None,
    attention: str | None = None,
    dtype: str = "float32",
) -> Subject:
    """A subject by name ("tiny", "smollm2", "minilm"), local folder, hub id, or a model already in memory.

    tokenizer: needed with a model object, whose in-memory weights are the ones measured. name: shown in reports.
    attention: "eager", "sdpa" or None for the model's default. dtype: of loaded weights.
    Raises UnknownName, UnsupportedModel, FetchError.
    """
    if isinstance(source, str | Path):
        loaded = load_model(source, attention=attention, dtype=dtype)
        return Subject(loaded.model, tokenizer or loaded.tokenizer, name or loaded.name, loaded.language)
    if not isinstance(source, torch.nn.Module):
        raise ProbeError(f"a model is a name, a folder, a hub id or a torch module, not {type(source).__name__}.")
    if tokenizer is None:
        raise ProbeError(f"a model object ({type(source).__name__}) needs its tokenizer: probe.load(model, tokenizer)")
    return Subject(source, tokenizer, name or type(source).__name__)


@dataclass(frozen=True, repr=False)
class Run:
    """What `Subject.run` captured. Positions count each prompt's real tokens from 0.

    `run[site, layer]`, `run["embed"]` and `run["logits"]` are tensors with the shapes of `probe.sites`; shorter
    prompts are filled up with NaN, as are missing rows. prompts: the encoded texts, in order. rows: the query
    positions kept, or None.
    """

    prompts: tuple[Encoded, ...]
    rows: tuple[tuple[int, ...], ...] | None
    values: dict[tuple[str, int | None], Tensor]

    def __repr__(self) -> str:
        """What is there, not its thousands of numbers."""
        layers: dict[str, list[int]] = {}
        for name, layer in self.values:
            layers.setdefault(name, []).extend([] if layer is None else [layer])
        sites = ", ".join(f"{n} (layers {min(ls)} to {max(ls)})" if ls else n for n, ls in layers.items())
        return f"Run({len(self.prompts)} prompts, {sites})"

    def __getitem__(self, site: str | tuple[str, int]) -> Tensor:
        key = (site, None) if isinstance(site, str) else site
        if key not in self.values:
            layers = sorted({n for s, n in self.values if s == key[0] and n is not None})
            names = sorted({s for s, _ in self.values})
            raise OutOfRange(f"{site!r} was not captured: sites {', '.join(names)}; layers of {key[0]}: {layers}.")
        return self.values[key]


@dataclass(frozen=True)
class Batch:
    """One padded batch. indices: which prompts. lengths: real tokens of each. shift: padding before each prompt."""

    indices: tuple[int, ...]
    lengths: tuple[int, ...]
    shift: tuple[int, ...]
    inputs: dict[str, Any]


class Subject:
    """A model in evaluation mode with its tokenizer. Sizes are attributes: n_layers, n_heads, d_model, ..."""

    def __init__(self, model: nn.Module, tokenizer: Any, name: str, language: str = "english") -> None:
        self.anatomy: Anatomy = dissect(model)
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.name = name
        self.language = language
        self.n_layers, self.n_heads = self.anatomy.n_layers, self.anatomy.n_heads
        self.n_kv_heads, self.d_model = self.anatomy.n_kv_heads, self.anatomy.d_model
        self.has_logits, self.max_positions = self.anatomy.has_logits, self.anatomy.max_positions
        require_offsets(tokenizer)
        self.is_causal, self.d_head = self._look()

    def _look(self) -> tuple[bool, int]:
        """One short pass: whether a token sees only what precedes it, and the width of a head.

        Raises UnsupportedModel if a layer's attention cannot be read, so that it fails here and not in mid-study.
        """
        try:
            ((_, seen),) = self.captured([[0, 1, 2]], ["pattern", "z"])
        except CaptureError as error:
            raise UnsupportedModel(f"the attention of {type(self.model).__name__} cannot be read: {error}") from error
        ahead = torch.ones(3, 3, dtype=torch.bool, device=seen.visible[0].device).triu(1)
        return not bool((seen.visible[0] & ahead).any()), seen["z", 0].shape[-1]

    def __repr__(self) -> str:
        return f"Subject({self.name}: {type(self.model).__name__}, {self.n_layers} layers x {self.n_heads} heads)"

    @property
    def attention(self) -> str:
        """The attention implementation the model was loaded with."""
        if isinstance(self.model, GPT):
            return self.model.config.attention
        return str(self.model.config._attn_implementation)  # type: ignore[union-attr]

    @property
    def dtype(self) -> str:
        return str(next(self.model.parameters()).dtype).removeprefix("torch.")

    @property
    def n_parameters(self) -> int:
        return sum(p.numel() for p in self.model.parameters())

    @property
    def config_hash(self) -> str:
        """SHA-256 of the configuration: what the weights do not say, such as rotary bases, windows and softcaps."""
        config: Any = self.model.config
        fields = dict(vars(config)) if isinstance(self.model, GPT) else config.to_dict()
        for name in ("_name_or_path", "transformers_version"):
            fields.pop(name, None)
        return hashlib.sha256(json.dumps(fields, sort_keys=True, default=str).encode()).hexdigest()

    @property
    def weights_hash(self) -> str:
        """SHA-256 over every parameter and buffer: name, dtype, shape, bytes. The identity of what is measured.

        Computed afresh each time, since a model in memory may be trained on.
        """
        digest = hashlib.sha256()
        for name, tensor in sorted(self.model.state_dict().items()):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
        return digest.hexdigest()

    @cached_property
    def tokenizer_hash(self) -> str:
        """SHA-256 of the fast tokenizer's own serialisation."""
        return hashlib.sha256(self.tokenizer.backend_tokenizer.to_str().encode()).hexdigest()

    def encode(self, text: str) -> Encoded:
        """Tokenize one prompt. Raises PromptError if it is empty, too long, or in words the model does not know."""
        encoded = encode(self.tokenizer, text, self.max_positions)
        if self.language != "english" and (unknown := unknown_words(self.tokenizer, [text])):
            words = ", ".join(repr(w) for w in sorted(unknown))
            raise PromptError(
                f"{self.name} reads its own {self.language} language and does not know {words}. "
                "Its words: probe.data.language.WORDS; or take a pretrained model, such as smollm2."
            )
        return encoded

    def bind(self, dataset: Dataset) -> Targets:
        """Place a dataset's spans on this subject's tokens; items that cannot be measured are counted in `excluded`."""
        return bind(dataset, self.encode, is_causal=self.is_causal)

    def run(
        self,
        texts: str | Sequence[str],
        sites: str | Sequence[str] = ("pattern",),
        *,
        layers: int | Sequence[int] | None = None,
        heads: int | Sequence[int] | None = None,
        rows: Rows = None,
        batch_size: int = 8,
        padding: Literal["left", "right"] = "right",
    ) -> Run:
        """Run prompts through the model and keep the chosen sites.

        rows: query positions to keep, the same for every prompt or a list for each; negative from a prompt's end.
        Every site but k, rot_k and v keeps these positions only; default all.
        Raises PromptError, UnknownName, OutOfRange, UnsupportedModel; CaptureError if a captured value is NaN or inf.
        """
        prompts = tuple(self.encode(t) for t in ([texts] if isinstance(texts, str) else texts))
        if not prompts:
            raise PromptError("no prompts were given; give at least one text.")
        chosen = _rows_per_prompt(rows, prompts)
        names = check_sites(sites)
        parts: dict[tuple[str, int | None], list[Tensor]] = {}
        longest = max(map(len, prompts))
        for batch, seen in self.captured(
            [p.ids for p in prompts],
            names,
            layers=layers,
            heads=heads,
            rows=chosen,
            batch_size=batch_size,
            padding=padding,
        ):
            for site in seen.expected():
                tensor = seen[site.name if site.layer is None else (site.name, site.layer)]
                aligned = _align(tensor, site.name, batch, longest, chosen)
                # Masked scores may be minus infinity by right.
                wrong = torch.isnan if site.name == "scores" else lambda t: ~torch.isfinite(t)
                if any(wrong(t).any() for t in _real(aligned, site.name, batch, chosen)):
                    raise CaptureError(f"{site} of {self.name} holds NaN or infinite values.")
                parts.setdefault((site.name, site.layer), []).append(aligned)
        return Run(prompts, chosen, {key: torch.cat(tensors) for key, tensors in parts.items()})

    def captured(
        self,
        prompts: Sequence[Sequence[int]],
        sites: Sequence[str],
        *,
        layers: int | Sequence[int] | None = None,
        heads: int | Sequence[int] | None = None,
        rows: Sequence[Sequence[int]] | None = None,
        batch_size: int = 8,
        padding: Literal["left", "right"] = "right",
    ) -> Iterator[tuple[Batch, Capture]]:
        """Run prompts of token ids batch by batch, in order, without gradients; yields each batch with its capture.

        rows: query positions of each prompt; a shorter list is filled up by repeating its last row. Tensors are as the
        model made them, padding included (`Batch.shift` says where a prompt starts).
        """
        model = self.model if "logits" in sites else self.anatomy.backbone
        for start in range(0, len(prompts), batch_size):
            batch = self._batch(prompts, range(start, min(start + batch_size, len(prompts))), padding)
            at = None if rows is None else _row_tensor(rows, batch)
            with torch.no_grad(), Capture(self.anatomy, sites, layers=layers, heads=heads, rows=at) as seen:
                model(**batch.inputs)
            yield batch, seen

    def random_copy(self, seed: int) -> Subject:
        """The same architecture with freshly initialised weights, as its authors initialise it."""
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            config = copy.deepcopy(self.model.config)
            like = next(self.model.parameters())
            model = type(self.model)(config).to(like.device, like.dtype)
        return Subject(model, self.tokenizer, f"{self.name}, random weights {seed}", self.language)

    def _batch(self, prompts: Sequence[Sequence[int]], indices: range, padding: str) -> Batch:
        lengths = tuple(len(prompts[i]) for i in indices)
        longest = max(lengths)
        shift = tuple(longest - n if padding == "left" else 0 for n in lengths)
        device = next(self.model.parameters()).device
        pad = getattr(self.tokenizer, "pad_token_id", None) or 0  # masked, so any id will do
        ids = torch.full((len(lengths), longest), pad, dtype=torch.long, device=device)
        mask = torch.zeros_like(ids)
        for row, (i, n, s) in enumerate(zip(indices, lengths, shift, strict=True)):
            ids[row, s : s + n] = torch.tensor(prompts[i], device=device)
            mask[row, s : s + n] = 1
        inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": mask}
        accepted = inspect.signature(self.model.forward).parameters
        if any(shift) and "position_ids" in accepted:
            inputs["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0) + self.anatomy.first_position
        if "use_cache" in accepted:
            inputs["use_cache"] = False
        return Batch(tuple(indices), lengths, shift, inputs)


def _rows_per_prompt(rows: Rows, prompts: Sequence[Encoded]) -> tuple[tuple[int, ...], ...] | None:
    if rows is None:
        return None
    each: list[Any] = list(rows)
    if not each or isinstance(each[0], int):
        each = [each] * len(prompts)
    if len(each) != len(prompts):
        raise OutOfRange(f"rows were given for {len(each)} prompts, but there are {len(prompts)}.")
    chosen = tuple(check_indices("row", r, len(p)) for r, p in zip(each, prompts, strict=True))
    if not all(chosen):
        raise OutOfRange("each prompt needs at least one row; leave rows out to keep all.")
    return chosen


def _row_tensor(rows: Sequence[Sequence[int]], batch: Batch) -> Tensor:
    most = max(len(rows[i]) for i in batch.indices)
    filled = [
        [r + s for r in rows[i]] + [rows[i][-1] + s] * (most - len(rows[i]))
        for i, s in zip(batch.indices, batch.shift, strict=True)
    ]
    return torch.tensor(filled, dtype=torch.long)


def _align(tensor: Tensor, site: str, batch: Batch, longest: int, rows: Sequence[Sequence[int]] | None) -> Tensor:
    """Shift each prompt to position 0 and fill what is not real with NaN, up to `longest` tokens or rows."""
    most = longest if rows is None else max(map(len, rows))
    shape = list(tensor.shape)
    if site in SQUARE_SITES:
        shape[2], shape[3] = most, longest
    else:
        shape[1] = longest if site in KEY_SITES else most
    full = tensor.new_full(shape, float("nan"))
    for b, (i, n, s) in enumerate(zip(batch.indices, batch.lengths, batch.shift, strict=True)):
        queries = slice(s, s + n) if rows is None else slice(0, len(rows[i]))
        size = n if rows is None else len(rows[i])
        if site in SQUARE_SITES:
            full[b, :, :size, :n] = tensor[b, :, queries, s : s + n]
        elif site in KEY_SITES:
            full[b, :n] = tensor[b, s : s + n]
        else:
            full[b, :size] = tensor[b, queries]
    return full


def _real(aligned: Tensor, site: str, batch: Batch, rows: Sequence[Sequence[int]] | None) -> Iterator[Tensor]:
    for b, (i, n) in enumerate(zip(batch.indices, batch.lengths, strict=True)):
        size = n if rows is None else len(rows[i])
        if site in SQUARE_SITES:
            yield aligned[b, :, :size, :n]
        else:
            yield aligned[b, : n if site in KEY_SITES else size]
