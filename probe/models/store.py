"""Tiny GPTs on disk: a folder of config.json, model.safetensors and tokenizer.json, nothing pickled."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from probe.errors import UnsupportedModel
from probe.models.gpt import GPT, Config

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

MODEL_TYPE = "probe-gpt"
TINY = Path(__file__).parent / "tiny"  # the trained weights that ship with the package


def save(folder: Path, model: GPT, tokenizer: PreTrainedTokenizerFast, recipe: dict[str, Any]) -> None:
    """Write weights, sizes, tokenizer and the recipe that made them into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({k: v.contiguous() for k, v in model.state_dict().items()}, folder / "model.safetensors")
    config = {"model_type": MODEL_TYPE, **asdict(model.config)}
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    (folder / "recipe.json").write_text(json.dumps(recipe, indent=1) + "\n")
    tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"))


def is_tiny(folder: Path) -> bool:
    """Whether `folder` holds a tiny GPT."""
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError):
        return False  # transformers says what is wrong with it
    return isinstance(config, dict) and config.get("model_type") == MODEL_TYPE


def load(folder: Path, *, attention: str = "fused") -> tuple[GPT, PreTrainedTokenizerFast]:
    """The model, in evaluation mode, and its tokenizer. attention: "fused" or "eager", see `Config`.

    Raises UnsupportedModel if a file is missing or foreign.
    """
    from probe.models.tokenizer import from_file

    for name in ("model.safetensors", "tokenizer.json"):
        if not (folder / name).is_file():
            raise UnsupportedModel(
                f"{folder} has no {name}; a tiny GPT needs config.json, model.safetensors, tokenizer.json."
            )
    fields = json.loads((folder / "config.json").read_text())
    fields.pop("model_type")
    fields["attention"] = attention
    try:
        model = GPT(Config(**fields))
        model.load_state_dict(load_file(folder / "model.safetensors"))
    except (TypeError, RuntimeError, SafetensorError) as error:
        raise UnsupportedModel(f"{folder}: config.json and model.safetensors do not fit: {error}") from error
    return model.eval(), from_file(folder / "tokenizer.json")
