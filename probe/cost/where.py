"""Where the time of one pass goes, by kind of work, as torch's profiler sees it.

python -m probe.cost.where smollm2 1024 probe-streams

The last line on stdout is a JSON object: {"seconds": {kind: seconds}}. Times are those of the calling thread: what
other threads do meanwhile is in them once. The profiler adds a few microseconds to each of torch's functions.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence

import torch
from torch.profiler import ProfilerActivity, profile

from probe.cost.contenders import CONTENDERS, PLAIN, Contender
from probe.cost.pairs import timing_options
from probe.cost.worker import random_ids
from probe.models.loading import load_model

WATCHED = (PLAIN, "probe-sites", "probe-rows", "probe-streams")  # they share one implementation of attention
REST = "everything else"
KINDS = {
    "products with weights": ("mm", "addmm"),
    "products of queries, keys and values, apart": ("bmm", "baddbmm"),
    "the fused attention kernel": ("_scaled_dot_product_flash_attention_for_cpu",),
    "softmax": ("_softmax",),
    "sums, products and copies of tensors": ("add", "add_", "mul", "mul_", "copy_", "masked_fill_"),
    "reductions of rows": ("sum", "max", "argmax", "amax", "mean", "cumsum", "scatter_add_", "gather", "log", "log_"),
}
"""Kinds of work, and which of torch's functions they are."""
KIND_OF = {f"aten::{name}": kind for kind, names in KINDS.items() for name in names}


def seconds_by_kind(model: str, n_tokens: int, chosen: Contender, seed: int) -> dict[str, float]:
    """Seconds of each kind of work in one pass, after one that is not counted."""
    loaded = load_model(model)
    run, ids = chosen.prepare(loaded), random_ids(loaded, n_tokens, seed)
    with torch.no_grad():
        run(ids)
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            kept = run(ids)
    del kept
    found: Counter[str] = Counter(dict.fromkeys((*KINDS, REST), 0))
    for event in seen.key_averages():
        found[KIND_OF.get(event.key, REST)] += event.self_cpu_time_total / 1e6
    return dict(found)


def main(words: Sequence[str] | None = None) -> None:
    """Profile one pass as the command line says and print the JSON."""
    parser = argparse.ArgumentParser(prog="probe.cost.where")
    parser.add_argument("model")
    parser.add_argument("n_tokens", type=int)
    parser.add_argument("contender", choices=WATCHED)
    timing_options(parser)
    given = parser.parse_args(words)
    torch.set_num_threads(given.threads)
    found = seconds_by_kind(given.model, given.n_tokens, CONTENDERS[given.contender], given.seed)
    print(json.dumps({"seconds": found}))


if __name__ == "__main__":
    main()
