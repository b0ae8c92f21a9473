"""What identifies a model: its weights and its configuration, as SHA-256."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch
from torch import nn

from probe.models.gpt import GPT


def config_hash(model: nn.Module) -> str:
    """SHA-256 of the configuration: what the weights do not say, such as rotary bases, windows and softcaps."""
    config: Any = model.config
    fields = dict(vars(config)) if isinstance(model, GPT) else config.to_dict()
    for name in ("_name_or_path", "transformers_version"):
        fields.pop(name, None)
    return hashlib.sha256(json.dumps(fields, sort_keys=True, default=str).encode()).hexdigest()


def weights_hash(model: nn.Module) -> str:
    """SHA-256 over every parameter and buffer: name, dtype, shape, bytes."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()
