"""`Subject`: a model and its tokenizer, ready to be measured.

subject = probe.load("smollm2")
run = subject.run(["The cat sat."], sites=["pattern", "resid_post"])
run["pattern", 11]                          # (batch, head, query, key)
targets = subject.bind(probe.data.coreference())
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from probe.anatomy.stacks import Anatomy, dissect, unwrapped
from probe.capture import guards, parity, passed
from probe.capture.batch import Batch, Padding, batches, decoder_prompts, make_batch, row_tensor
from probe.capture.capture import Capture
from probe.capture.edit import Edits, flattened, of_batch
from probe.capture.generate import Generation, Sampling, collected, write
from probe.capture.naming import naming
from probe.capture.run import Collector, Rows, Run, rows_per_prompt
from probe.capture.streams import Streamed, asked, stacked
from probe.errors import ProbeError, PromptError, UnknownName
from probe.models.gpt import GPT
from probe.models.hashes import config_hash, weights_hash
from probe.models.loading import load_model
from probe.sites import ENCODER, STREAMED, check_indices, check_sites, split
from probe.targets import Targets
from probe.tokens.binding import bind
from probe.tokens.encoding import Encoded, encode, listed, require_offsets, unknown_words

if TYPE_CHECKING:
    from torch import nn

    from probe.data.texts import Dataset


def load(
    source: str | Path | nn.Module,
    tokenizer: Any = None,
    *,
    name: str | None = None,
    attention: str | None = None,
    dtype: str = "float32",
    check: bool = True,
) -> Subject:
    """A subject by name ("tiny", "smollm2", "minilm"), local folder, hub id, or a model already in memory.

    tokenizer: needed with a model object, whose in-memory weights are the ones measured. name: shown in reports.
    attention: "eager", "sdpa" or None for the model's default. dtype: of loaded weights. check: whether three short
    passes make sure that what is read is what the model computes; files that passed are left alone until they change.
    Raises UnknownName, UnsupportedModel, FetchError.
    """
    if isinstance(source, str | Path):
        loaded = load_model(source, attention=attention, dtype=dtype)
        mark = passed.mark(loaded.folder if check else None, attention=str(attention), dtype=dtype)
        again, own = check and not mark.is_here, tokenizer or loaded.tokenizer
        subject = Subject(loaded.model, own, name or loaded.name, loaded.language, check=again)
        mark.leave()
        return subject
    if not isinstance(source, torch.nn.Module):
        raise ProbeError(f"a model is a name, a folder, a hub id or a torch module, not {type(source).__name__}.")
    if tokenizer is None:
        raise ProbeError(f"a model object ({type(source).__name__}) needs its tokenizer: probe.load(model, tokenizer)")
    return Subject(source, tokenizer, name or type(source).__name__, check=check)


class Subject:
    """A model in evaluation mode with its tokenizer. Sizes are attributes: n_layers, n_heads, d_model, ..."""

    def __init__(
        self, model: nn.Module, tokenizer: Any, name: str, language: str = "english", *, check: bool = True
    ) -> None:
        self.model = unwrapped(model).eval()
        self.anatomy: Anatomy = dissect(self.model)
        self.tokenizer, self.name, self.language = tokenizer, name, language
        parts = self.anatomy
        self.n_layers, self.n_heads, self.n_kv_heads = parts.n_layers, parts.n_heads, parts.n_kv_heads
        self.d_model, self.d_head = parts.d_model, next(iter(parts.stack.layers.values())).attention.d_head
        self.has_logits, self.max_positions, self.is_causal = parts.has_logits, parts.max_positions, parts.is_causal
        require_offsets(tokenizer)
        if check:
            parity.check(self.anatomy)

    def __repr__(self) -> str:
        return f"Subject({self.name}: {type(self.model).__name__}, {self.n_layers} layers x {self.n_heads} heads)"

    @property
    def attention(self) -> str:
        """The attention implementation the model was loaded with."""
        if isinstance(self.model, GPT):
            return self.model.config.attention
        return str(self.model.config._attn_implementation)  # type: ignore[union-attr]

    @property
    def family(self) -> str:
        """The model type, as transformers names it."""
        return "tiny" if isinstance(self.model, GPT) else str(self.model.config.model_type)  # type: ignore[union-attr]

    @property
    def dtype(self) -> str:
        return str(next(self.model.parameters()).dtype).removeprefix("torch.")

    @property
    def n_parameters(self) -> int:
        return sum(p.numel() for p in self.model.parameters())

    @property
    def config_hash(self) -> str:
        """SHA-256 of the configuration: what the weights do not say, such as rotary bases, windows and softcaps."""
        return config_hash(self.model)

    @property
    def weights_hash(self) -> str:
        """SHA-256 over every parameter and buffer: name, dtype, shape, bytes. The identity of what is measured.

        Computed afresh each time, since a model in memory may be trained on.
        """
        return weights_hash(self.model)

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
        edits: Edits = (),
        decoder: Sequence[Sequence[int]] | None = None,
        batch_size: int = 8,
        padding: Padding = "right",
        max_bytes: int | None = None,
    ) -> Run:
        """Run prompts through the model and keep the chosen sites.

        rows: query positions to keep, the same for every prompt or a list for each; negative from a prompt's end.
        Every site but k, rot_k, v and those of an encoder keeps these positions only; default all.
        edits: changes to make (`probe.edits`), the same for every prompt, or a list of edits for each.
        decoder: what an encoder-decoder's decoder reads, token ids for each prompt; default its start token.
        max_bytes: how much each batch's capture may take; default what memory is free.
        Raises PromptError, UnknownName, OutOfRange, UnsupportedModel; CaptureError if a captured value is NaN or inf.
        """
        prompts = self._prompts(texts)
        names, ids = check_sites(sites), [p.ids for p in prompts]
        read = decoder_prompts(self.anatomy, ids, decoder)
        chosen = rows_per_prompt(rows, [len(r) for r in read])
        collector = Collector({ENCODER: max(map(len, ids)), "": max(map(len, read))}, chosen, self.name)
        for batch, seen in self.captured(
            ids,
            names,
            layers=layers,
            heads=heads,
            rows=chosen,
            edits=edits,
            decoder=read if self.anatomy.is_encoder_decoder else None,
            batch_size=batch_size,
            padding=padding,
            max_bytes=max_bytes,
        ):
            for site in seen.expected():
                with naming([read[i] for i in batch.indices], self.tokenizer):
                    collector.add(site, seen[site.name if site.layer is None else (site.name, site.layer)], batch)
        kept = None if heads is None else check_indices("head", heads, self.n_heads)
        return Run(prompts, chosen, collector.values(), tuple(tuple(r) for r in read), kept)

    def captured(
        self,
        prompts: Sequence[Sequence[int]],
        sites: Sequence[str],
        *,
        layers: int | Sequence[int] | None = None,
        heads: int | Sequence[int] | None = None,
        rows: Sequence[Sequence[int]] | None = None,
        edits: Edits = (),
        decoder: Sequence[Sequence[int]] | None = None,
        batch_size: int = 8,
        padding: Padding = "right",
        max_bytes: int | None = None,
    ) -> Iterator[tuple[Batch, Capture]]:
        """Run prompts of token ids batch by batch, in order, without gradients; yields each batch with its capture.

        rows: query positions of each prompt; a shorter list is filled up by repeating its last row. Tensors are as the
        model made them, padding included (`Batch.shift` says where a prompt starts). Raises OutOfRange, UnknownName,
        UnsupportedModel.
        """
        whole = "logits" in sites or self.anatomy.is_encoder_decoder
        model = self.model if whole else self.anatomy.backbone
        flat = flattened(edits, len(prompts))
        for indices in batches(len(prompts), batch_size):
            batch = self._batch(prompts, indices, padding, decoder)
            seen = Capture(
                self.anatomy,
                sites,
                layers=layers,
                heads=heads,
                rows=None if rows is None else row_tensor(rows, batch),
                edits=of_batch(flat, indices),
                frames=batch.frames,
                max_bytes=max_bytes,
            )
            with torch.no_grad(), naming([prompts[i] for i in indices], self.tokenizer), seen:
                model(**batch.inputs)
            yield batch, seen

    def stream(
        self,
        texts: str | Sequence[str],
        *,
        site: str = "pattern",
        groups: Sequence[Sequence[Sequence[int]]] | None = None,
        offsets: Sequence[int] | None = None,
        layers: int | Sequence[int] | None = None,
        edits: Edits = (),
        decoder: Sequence[Sequence[int]] | None = None,
        batch_size: int = 1,
    ) -> Streamed:
        """Statistics of every row of every pattern, in memory of O(rows x keys): entropy, weight on the first key, the
        key looked at most, mean weight by offset, and the mass on groups of keys.

        site: "pattern", or an encoder-decoder's "encoder.pattern" or "cross.pattern". groups: for each prompt, lists of
        key positions (targets, then each of the foils ...), as many for every prompt. offsets: distances from the
        query, -1 is the previous token; default -8 to 8, and none for cross-attention, whose queries and keys are two
        texts. decoder: as for `run`. Raises UnknownName, OutOfRange, UnsupportedModel, PromptError.
        """
        if site not in STREAMED:
            raise UnknownName.of("pattern to stream", site, STREAMED)
        prefix, two = split(site)[0], self.anatomy.is_encoder_decoder
        ids: Sequence[Sequence[int]] = [p.ids for p in self._prompts(texts)]
        read = decoder_prompts(self.anatomy, ids, decoder)
        queries, keys = ids if prefix == ENCODER else read, ids if prefix else read
        wanted = asked(prefix, queries, keys, groups, offsets)
        made = []
        for indices in batches(len(ids), batch_size):
            start, stop = indices.start, indices.stop
            batch = self._batch(ids, indices, "right", read if two else None)
            mine = of_batch(flattened(edits, len(ids)), indices)
            some = wanted.only(start, stop, max(map(len, keys[start:stop])))
            seen = Capture(self.anatomy, layers=layers, edits=mine, frames=batch.frames, statistics=some)
            with torch.no_grad(), naming(queries[start:stop], self.tokenizer), seen:
                (self.model if two else self.anatomy.backbone)(**batch.inputs)
            made.append(dict(seen.statistics))
        return stacked(made, max(map(len, queries)))

    def gradients(
        self,
        texts: str | Sequence[str],
        metric: Callable[[Tensor], Tensor],
        sites: str | Sequence[str] = ("z",),
        *,
        layers: int | Sequence[int] | None = None,
        edits: Edits = (),
        decoder: Sequence[Sequence[int]] | None = None,
        batch_size: int = 8,
    ) -> Run:
        """∂metric/∂site of each prompt, in one backward pass a batch: what attribution patching multiplies by a
        difference of activations (Nanda 2023; Syed et al. 2023).

        metric: of one prompt's logits, (pos, vocab) of its real tokens, a number; for a model without a language-model
        head, of its last hidden states, (pos, d_model); of an encoder-decoder, those of its decoder, which reads
        `decoder`, as for `run`.
        Scores and patterns run through the model's eager attention meanwhile, equal to 1e-6.
        """
        prompts = self._prompts(texts)
        ids = [p.ids for p in prompts]
        names = check_sites(sites)
        read = decoder_prompts(self.anatomy, ids, decoder)
        collector = Collector({ENCODER: max(map(len, ids)), "": max(map(len, read))}, None, self.name)
        flat = flattened(edits, len(ids))
        for indices in batches(len(ids), batch_size):
            batch = self._batch(ids, indices, "right", read if self.anatomy.is_encoder_decoder else None)
            seen = Capture(
                self.anatomy,
                names,
                layers=layers,
                edits=of_batch(flat, indices),
                frames=batch.frames,
                gradients=True,
            )
            with torch.enable_grad(), naming([ids[i] for i in indices], self.tokenizer), seen:
                output = self.model(**batch.inputs)
                answer = output.logits if self.has_logits else output.last_hidden_state
                total = torch.stack(
                    [guards.checked_metric(metric(answer[b, :n])) for b, n in enumerate(batch.lengths)]
                ).sum()
            found = seen.gradients(total)
            for site in seen.expected():
                collector.add(site, found[site.name if site.layer is None else (site.name, site.layer)], batch)
        return Run(prompts, None, collector.values(), tuple(tuple(r) for r in read))

    def generate(
        self,
        texts: str | Sequence[str],
        *,
        max_new_tokens: int,
        sites: str | Sequence[str] = (),
        layers: int | Sequence[int] | None = None,
        heads: int | Sequence[int] | None = None,
        edits: Edits = (),
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
        batch_size: int = 8,
        max_bytes: int | None = None,
    ) -> Generation:
        """Continue prompts with a KV cache, capturing and editing every step; see `Generation` for what is kept.

        temperature: 0 takes the likeliest token (greedy); above, tokens are drawn, among the `top_k` likeliest or the
        nucleus of `top_p`. edits: as for `run`; rows count from a prompt's start, negative ones are refused, for while
        text is written there is no end to count from.
        Raises PromptError where the text would outgrow the context, UnsupportedModel for a model that writes none.
        """
        prompts = self._prompts(texts)
        ids = [p.ids for p in prompts]
        flat = flattened(edits, len(ids))
        config: Any = self.model.config
        sampling = Sampling(max_new_tokens, temperature, top_k, top_p, seed)
        parts = [
            write(
                self.anatomy,
                ids,
                indices,
                check_sites(sites),
                sampling,
                layers=layers,
                heads=heads,
                edits=of_batch(flat, indices),
                pad_id=getattr(self.tokenizer, "pad_token_id", None) or 0,
                stop=getattr(self.tokenizer, "eos_token_id", None),
                decoder_start=getattr(config, "decoder_start_token_id", None) or 0,
                max_bytes=max_bytes,
            )
            for indices in batches(len(ids), batch_size)
        ]
        return collected(prompts, parts, self.name, self.tokenizer, self.anatomy.is_encoder_decoder)

    def random_copy(self, seed: int) -> Subject:
        """The same architecture with freshly initialised weights, as its authors initialise it."""
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            config = copy.deepcopy(self.model.config)
            like = next(self.model.parameters())
            model = type(self.model)(config).to(like.device, like.dtype)
        return Subject(model, self.tokenizer, f"{self.name}, random weights {seed}", self.language, check=False)

    def _prompts(self, texts: str | Sequence[str]) -> tuple[Encoded, ...]:
        """The encoded texts, at least one."""
        guards.check_evaluating(self.model)
        return tuple(self.encode(t) for t in listed(texts))

    def _batch(
        self,
        prompts: Sequence[Sequence[int]],
        indices: range,
        padding: Padding,
        decoder: Sequence[Sequence[int]] | None,
    ) -> Batch:
        pad = getattr(self.tokenizer, "pad_token_id", None) or 0  # masked, so any id will do
        return make_batch(self.anatomy, prompts, indices, padding=padding, pad_id=pad, decoder=decoder)
