"""A training that was interrupted: everything it needs to go on as if it had not been, in one file.

`checkpoint.safetensors` holds the weights and the optimizer's moments as tensors, and in its header, as JSON, what the
training is made of (`inputs`), the losses so far, and the state of the random numbers that the data are drawn with.
One file, so that writing it whole or not at all keeps its parts together.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from probe.errors import ResultsError
from probe.models.gpt import GPT
from probe.models.store import write

CHECKPOINT = "checkpoint.safetensors"
LOSSES = "losses.csv"
FILES = {"config.json", "model.safetensors", "tokenizer.json", "recipe.json", LOSSES, "losses.png", CHECKPOINT}
"""What a folder of a training may hold."""
MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # AdamW's state of a parameter: updates, and the two running means


@dataclass
class Training:
    """A training under way. losses: of each step's batch, before its update; evaluations: (steps done, loss)."""

    model: GPT
    optimizer: torch.optim.AdamW
    rng: random.Random
    losses: list[float] = field(default_factory=list)
    evaluations: list[tuple[int, float]] = field(default_factory=list)


def claim(folder: Path, *, resume: bool) -> None:
    """Make the folder of a training. Raises ResultsError where it holds anything that must not be replaced, and, to
    resume, where it holds no checkpoint.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        found = {p.name for p in folder.iterdir() if not p.name.endswith(".partial")}
    except OSError as error:
        raise ResultsError(f"{folder} cannot be a training's folder: {error.strerror}.") from error
    if foreign := sorted(found - FILES):
        raise ResultsError(f"{folder} holds {foreign[0]!r}, which is not of a training. Choose another folder.")
    if resume and CHECKPOINT not in found:
        why = "its training is finished" if found else "nothing was kept there; begin without resuming"
        raise ResultsError(f"{folder} has no checkpoint to resume from: {why}.")
    if not resume and CHECKPOINT in found:
        raise ResultsError(
            f"{folder} holds the checkpoint of an unfinished training: resume it, or choose another folder."
        )
    if not resume and found:
        raise ResultsError(f"{folder} holds a trained model, which is not replaced. Choose another folder.")


def keep(folder: Path, training: Training, inputs: dict[str, Any]) -> None:
    """Write the checkpoint, whole or not at all. inputs: what the training is made of, in JSON's types."""
    optimizer = training.optimizer.state_dict()["state"]
    tensors = {f"model.{name}": value.contiguous() for name, value in training.model.state_dict().items()}
    tensors |= {f"optimizer.{i}.{name}": state[name] for i, state in optimizer.items() for name in MOMENTS}
    rest = {
        "inputs": inputs,
        "losses": training.losses,
        "evaluations": training.evaluations,
        "rng": training.rng.getstate(),
    }
    write(folder / CHECKPOINT, to_bytes(tensors, metadata={"training": json.dumps(rest)}))


def restore(folder: Path, training: Training, inputs: dict[str, Any]) -> None:
    """Put a new training into the checkpoint's state.

    Raises ResultsError where the checkpoint cannot be read, or is of a training made of other things.
    """
    tensors, rest = _read(folder / CHECKPOINT)
    _same(folder, rest["inputs"], json.loads(json.dumps(inputs)))
    training.model.load_state_dict({n.removeprefix("model."): t for n, t in tensors.items() if n.startswith("model.")})
    fresh = training.optimizer.state_dict()
    n_parameters = len(fresh["param_groups"][0]["params"])
    moments = {i: {name: tensors[f"optimizer.{i}.{name}"] for name in MOMENTS} for i in range(n_parameters)}
    training.optimizer.load_state_dict({"state": moments, "param_groups": fresh["param_groups"]})
    version, numbers, gauss = rest["rng"]
    training.rng.setstate((version, tuple(numbers), gauss))
    training.losses = rest["losses"]
    training.evaluations = [(step, loss) for step, loss in rest["evaluations"]]


def steps_kept(folder: Path) -> int:
    """How many steps the folder's checkpoint is after; 0 without one."""
    return len(_read(folder / CHECKPOINT)[1]["losses"]) if (folder / CHECKPOINT).is_file() else 0


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(path, framework="pt") as file:
            rest = json.loads(file.metadata()["training"])
            return {name: file.get_tensor(name) for name in file.keys()}, rest  # noqa: SIM118
    except (OSError, SafetensorError, ValueError, LookupError, TypeError) as error:
        raise ResultsError(f"{path} is not a checkpoint of a training: {error}") from error


def _same(folder: Path, kept: dict[str, Any], given: dict[str, Any]) -> None:
    """Raises ResultsError that names the first thing in which the training to resume differs from the kept one."""
    for part in given:
        if kept.get(part) == given[part]:
            continue
        before, now = (x if isinstance(x, dict) else {part: x} for x in (kept.get(part), given[part]))
        name = next(n for n in {**now, **before} if now.get(n) != before.get(n))
        raise ResultsError(
            f"the checkpoint in {folder} is of a training with another {part}: {name} was {before.get(name)!r} and is "
            f"now {now.get(name)!r}. Resume with what it was, or choose another folder."
        )
