"""Tiny GPTs on disk: a folder of config.json, model.safetensors and tokenizer.json, nothing pickled."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as to_bytes

from probe.errors import ResultsError, UnsupportedModel
from probe.models.gpt import GPT, Config

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

MODEL_TYPE = "probe-gpt"
TINY = Path(__file__).parent / "tiny"  # the trained weights that ship with the package


def save(folder: Path, model: GPT, tokenizer: PreTrainedTokenizerFast, recipe: dict[str, Any]) -> None:
    """Write weights, sizes, tokenizer and the recipe that made them into `folder`; each file whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "model.safetensors", to_bytes({k: v.contiguous() for k, v in model.state_dict().items()}))
    write(folder / "tokenizer.json", tokenizer.backend_tokenizer.to_str(pretty=True).encode())
    write_json(folder / "recipe.json", recipe)
    # Last, since it is what makes the folder a model.
    write_json(folder / "config.json", {"model_type": MODEL_TYPE, **asdict(model.config)})


def write(path: Path, content: bytes) -> None:
    """Replace a file's content whole or not at all: whatever ends this early leaves what was there before.

    Raises ResultsError where it cannot be written.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # the new content has to be on the disk before its name is
        partial.replace(path)
    except OSError as error:
        raise ResultsError(f"{path} cannot be written: {error.strerror}.") from error
    finally:
        partial.unlink(missing_ok=True)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """The same for a JSON file."""
    write(path, (json.dumps(content, indent=1) + "\n").encode())


def is_tiny(folder: Path) -> bool:
    """Whether `folder` holds a tiny GPT."""
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError):
        return False  # transformers says what is wrong with it
    return isinstance(config, dict) and config.get("model_type") == MODEL_TYPE


def language(folder: Path) -> str:
    """What a tiny GPT's texts should be in: "synthetic", or "english" if it was trained on a text file."""
    try:
        recipe = json.loads((folder / "recipe.json").read_text())
        return str(recipe["data"]["language"])
    except (OSError, ValueError, LookupError, TypeError):
        return "synthetic"


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
