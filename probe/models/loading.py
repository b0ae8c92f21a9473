"""From a name to a model and its tokenizer: `tiny`, a planted model, fetched weights, a local folder or a hub id."""

from __future__ import annotations

import os
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probe.errors import ProbeError, UnknownName, UnsupportedModel
from probe.models import planted
from probe.models.fetch import WEIGHTS, fetch

if TYPE_CHECKING:
    from torch import nn

PLANTED = "planted:"

NAMES = {
    "tiny": "the in-repo GPT: 4 layers, 4 heads, reads its own synthetic language",
    "smollm2": "SmolLM2-135M-Instruct, a Llama-type decoder: 30 layers, 9 heads in 3 key-value groups",
    "minilm": "all-MiniLM-L6-v2, a BERT-type encoder without a language-model head: 6 layers, 12 heads",
    **{f"{PLANTED}{kind}": f"heads written by hand: {circuit.what}" for kind, circuit in planted.CIRCUITS.items()},
}


@dataclass(frozen=True)
class Loaded:
    """name: short, for file names. language: what its texts should be in ("english" or "synthetic"). folder: where its
    files lie, None if it was built or came from a hub.
    """

    name: str
    model: nn.Module
    tokenizer: Any
    language: str = "english"
    folder: Path | None = None


def load_model(source: str | Path, *, attention: str | None = None, dtype: str = "float32") -> Loaded:
    """Load by name. Remote code and pickled weights are never run.

    source: a name of `NAMES`, a local folder, or a hub id. attention: "eager", "sdpa" or None for the model's own
    default. dtype: of the weights.
    Raises UnknownName (nothing by that name) and UnsupportedModel (files that cannot be loaded safely).
    """
    import torch

    from probe.models import store

    if attention not in (None, "eager", "sdpa"):
        raise UnknownName.of("attention implementation", attention, ("eager", "sdpa"))
    if not (isinstance(kind := getattr(torch, dtype, None), torch.dtype) and kind.is_floating_point):
        raise UnknownName.of("dtype", dtype, ("float32", "bfloat16", "float16", "float64"))
    if not str(source).strip():
        raise UnknownName.of("model", source, NAMES)
    implementation = "eager" if attention == "eager" else "fused"  # of models that are not transformers'
    if str(source).startswith(PLANTED):
        return _planted(str(source).removeprefix(PLANTED), implementation, kind)
    folder = Path(source)
    if str(source) == "tiny":
        folder = store.TINY
    elif str(source) in WEIGHTS:
        folder = fetch(str(source))
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise UnsupportedModel(f"the folder {folder} has no config.json: it does not hold a model.")
        if store.is_tiny(folder):
            model, tokenizer = store.load(folder, attention=implementation)
            name = str(source) if str(source) in NAMES else folder.name
            return Loaded(name, model.to(kind), tokenizer, store.language(folder), folder)
    elif isinstance(source, str) and get_close_matches(source, NAMES, n=1, cutoff=0.8):
        raise UnknownName.of("model", source, NAMES)  # a slip of the keyboard, which the hub need not be asked about
    model, tokenizer = _from_transformers(folder if folder.is_dir() else str(source), attention, kind)
    name = str(source) if str(source) in NAMES else str(source).rstrip("/").rsplit("/", 1)[-1]
    return Loaded(name, model, tokenizer, folder=folder if folder.is_dir() else None)


def check_name(source: str) -> None:
    """Raise what `load_model` would for a name that nothing goes by, without loading anything.

    A folder is not looked into. A hub id is looked for in the hub's cache or on the hub.
    """
    if not source.strip():
        raise UnknownName.of("model", source, NAMES)
    if source in NAMES or Path(source).is_dir():
        return
    if source.startswith(PLANTED) or get_close_matches(source, NAMES, n=1, cutoff=0.8):
        raise UnknownName.of("model", source, NAMES)
    import transformers

    try:
        transformers.AutoConfig.from_pretrained(source)
    except (OSError, ValueError, KeyError) as error:
        raise _explain(source, error) from error


def _planted(kind: str, attention: str, dtype: Any) -> Loaded:
    from probe.data.language import WORDS
    from probe.models.tokenizer import word_tokenizer

    model = planted.build(kind, attention=attention).to(dtype)
    return Loaded(PLANTED + kind, model, word_tokenizer(WORDS), "synthetic")


def _from_transformers(source: Path | str, attention: str | None, dtype: Any) -> tuple[Any, Any]:
    import transformers
    from safetensors import SafetensorError
    from transformers.utils import logging

    logging.disable_progress_bar()  # loading takes a second; the bar only clutters what a user pipes or reads
    options: dict[str, Any] = {"attn_implementation": attention} if attention else {}
    try:
        config = transformers.AutoConfig.from_pretrained(source)
        auto = getattr(transformers, _auto_class(config))
        model = auto.from_pretrained(source, dtype=dtype, use_safetensors=True, **options)
        tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise _explain(source, error) from error
    return model.eval(), tokenizer


def _auto_class(config: Any) -> str:
    """The class that keeps the head the weights were saved with; none where they were saved without."""
    built = (getattr(config, "architectures", None) or [""])[0]
    if built.endswith(("ForCausalLM", "LMHeadModel")):
        return "AutoModelForCausalLM"
    return "AutoModelForMaskedLM" if built.endswith(("ForMaskedLM", "ForPreTraining")) else "AutoModel"


def _explain(source: Path | str, error: Exception) -> ProbeError:
    if isinstance(source, Path):
        return UnsupportedModel(
            f"the folder {source} could not be loaded: {error}. Weights must be safetensors; "
            "pickled weights and remote code are not run."
        )
    if "safetensors" in str(error):
        return UnsupportedModel(f"{source!r} could not be loaded: {error}")
    hint = "A model may also be a local folder or a hub id"
    if os.environ.get("HF_HUB_OFFLINE"):
        hint += ", but the hub was not asked: HF_HUB_OFFLINE is set."
    elif "connect" in str(error).lower():
        hint += ", but the hub could not be reached."
    else:
        hint += "; neither was found."
    return UnknownName.of("model", source, NAMES, hint)
