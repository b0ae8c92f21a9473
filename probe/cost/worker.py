"""One measurement in a process of its own: `python -m probe.cost.worker smollm2 256 probe-sites --measure time`.

The last line on stdout is a JSON object: {"plain": [...], "contender": [...]} in seconds, or {"peak_mb": ...}, or
{"skipped": reason}.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from probe.anatomy.stacks import Anatomy, dissect
from probe.cost.contenders import CONTENDERS, PLAIN, CannotRun, Contender
from probe.cost.memory import free, peak_mb
from probe.cost.pairs import paired, timing_options
from probe.models.loading import Loaded, load_model

SHARE = 0.75  # of the memory that is free: what a contender may need before it is skipped


def main(words: Sequence[str] | None = None) -> None:
    """Measure as the command line says and print the JSON."""
    parser = argparse.ArgumentParser(prog="probe.cost.worker")
    parser.add_argument("model")
    parser.add_argument("n_tokens", type=int)
    parser.add_argument("contender", choices=sorted(CONTENDERS))
    parser.add_argument("--measure", choices=("time", "memory"), required=True)
    timing_options(parser)
    given = parser.parse_args(words)
    torch.set_num_threads(given.threads)
    chosen = CONTENDERS[given.contender]
    try:
        with torch.no_grad():
            if given.measure == "time":
                answer = measure_time(given.model, given.n_tokens, chosen, given.repeats, given.seed)
            else:
                answer = measure_memory(given.model, given.n_tokens, chosen, given.seed)
    except CannotRun as reason:
        answer = {"skipped": str(reason)}
    print(json.dumps(answer))


def measure_time(model: str, n_tokens: int, chosen: Contender, repeats: int, seed: int) -> dict[str, Any]:
    """Paired seconds. The plain pass always has the model as it is loaded by default, untouched by the contender."""
    loaded = load_model(model)
    check_memory(chosen, dissect(loaded.model), n_tokens)
    own = load_model(model, attention=chosen.attention) if chosen.own_copy else loaded
    ids = random_ids(loaded, n_tokens, seed)
    plain, mine = CONTENDERS[PLAIN].prepare(loaded), chosen.prepare(own)
    return paired(lambda: plain(ids), lambda: mine(ids), repeats)._asdict()


def measure_memory(model: str, n_tokens: int, chosen: Contender, seed: int) -> dict[str, Any]:
    """The process's peak memory during the contender's first and only pass: weights, libraries and what it keeps."""
    loaded = load_model(model, attention=chosen.attention)
    check_memory(chosen, dissect(loaded.model), n_tokens)
    ids, mine = random_ids(loaded, n_tokens, seed), chosen.prepare(loaded)
    return {"peak_mb": peak_mb(lambda: mine(ids))}


def check_memory(chosen: Contender, anatomy: Anatomy, n_tokens: int) -> None:
    """Raises CannotRun where the contender would need too much of the memory that is free."""
    needed, had = chosen.needs(anatomy, n_tokens), free()
    if needed > SHARE * had:
        raise CannotRun(
            f"(head, query, key) tensors would need about {needed / 1e9:.0f} GB, and {had / 1e9:.0f} GB were free."
        )


def random_ids(loaded: Loaded, n_tokens: int, seed: int) -> Tensor:
    """(1, n_tokens) token ids, uniform over the vocabulary, the same for every contender."""
    config: Any = loaded.model.config
    return torch.randint(config.vocab_size, (1, n_tokens), generator=torch.Generator().manual_seed(seed))


if __name__ == "__main__":
    main()
