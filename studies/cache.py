"""The KV cache, measured: the same words, how much less is computed, how much memory it takes, and what stays n²."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import probe

if TYPE_CHECKING:
    from probe.by_hand.ledger import Sizes
    from probe.cost.decoding import Decoder
    from probe.subject import Subject

ENGLISH = (
    "The cat didn't jump onto the table because it was too",
    "The capital of France is",
    "Once upon a time there was a king who had three daughters, and the youngest of them",
    "1, 2, 3, 4, 5, 6,",
)
AT = 4096  # tokens, where the size of a cache is stated
PRINTED = (1000, 500)  # prompt and new tokens of the worked example


@dataclass(frozen=True)
class Plan:
    """What a profile measures. compared: new tokens of each prompt. written: prompt and new tokens of the counted run.
    contexts: where decoding is timed, as shares of the longest. attention: lengths of the attention function alone.
    """

    compared: int
    written: tuple[int, int]
    longest: int
    contexts: tuple[int, ...]
    repeats: int
    attention: tuple[int, ...]


PLANS = {
    "quick": Plan(10, (48, 16), 256, (16, 8, 4, 2, 1), 3, (256, 384, 512, 768, 1024, 1536)),
    "full": Plan(40, (256, 64), 2048, (32, 16, 8, 4, 2, 1), 5, (256, 384, 512, 768, 1024, 1536, 2048, 3072)),
}


@probe.study(models=("smollm2", "tiny"))
def cache(subject: Subject, *, profile: str = "quick", seed: int = 0) -> probe.Findings:
    """What does the KV cache save, and what does it cost?

    Counts, bytes and choices are the same in every run; the tables that begin with timing_ are not.
    """
    from probe.by_hand.ledger import tokens_fed
    from probe.capture.batch import input_device
    from probe.cost.decoding import Decoder, check_decodes
    from probe.cost.sections import decoding_section, growth_section

    check_decodes(subject.anatomy)
    plan, decoder = PLANS[profile], Decoder(subject.model, input_device(subject.anatomy))
    same, n_compared, n_prompts, identical = _identical(subject, decoder, plan, seed)
    written, counts = _counts(subject, decoder, plan, seed)
    a_token, bytes_kept = _bytes(subject, decoder)
    longest = _room(subject, 2 + plan.repeats, plan.longest)
    contexts = sorted({max(2, longest // share) for share in plan.contexts})
    faster, whole = decoding_section(decoder, contexts, plan.repeats, seed)
    squared = growth_section(plan.attention, plan.repeats, seed, (contexts, whole))
    p, g = PRINTED
    fed = tokens_fed(p, g)
    without, cached, prompt, new = written
    at = subject.max_positions or AT
    return probe.Findings(
        answer=(
            f"With the cache {subject.name} makes the same choice at {same} of {n_compared} steps ({n_prompts} "
            f"prompts) and computes the keys and values of {cached:,} tokens instead of {without:,} to write {new} "
            f"tokens after {prompt}, {without / cached:.1f} times fewer (counted); for {g} after {p:,} it is "
            f"{fed.without_cache / fed.with_cache:.0f} times. It costs {a_token:,} bytes a token, "
            f"{a_token * at / 2**20:,.4g} MiB for the {at:,} tokens it can read."
        ),
        sections=(identical, counts, bytes_kept, faster, squared, _ledger(subject)),
        method=(
            "Decoding is greedy. Without a cache each new token is a pass over all tokens so far; with one, the first "
            "pass reads the prompt (prefill) and every later one the newest token alone. In both, logits are computed "
            "for the last token only where the model can be asked for that. One prompt at a time.",
            f"Times are the median of {plan.repeats} runs after one that is not counted, with their range, in "
            f"{subject.dtype}. Token ids of what is timed or counted are random, seed {seed}.",
        ),
        notes=(
            "Times are never the same twice: the tables whose names begin with timing_ vary from run to run and from "
            "machine to machine. All other tables are exact, but for the size of logit differences, which depends on "
            "the machine's arithmetic.",
            "A cache saves computation, not attention: each new query still meets every key, so that a step with a "
            "cache grows with n, and a whole text with n².",
        ),
    )


def _identical(subject: Subject, decoder: Decoder, plan: Plan, seed: int) -> tuple[int, int, int, probe.Section]:
    """Steps with the same choice, all steps, prompts, and the section."""
    import pandas as pd

    from probe.cost.decoding import compare

    rows, same, steps = [], 0, 0
    for text in _prompts(subject, seed):
        prompt = subject.encode(text).ids
        new = _room(subject, len(prompt), plan.compared)
        found = compare(decoder, prompt, new)
        same, steps = same + found.same, steps + new
        shown = subject.tokenizer.decode(list(found.new_ids), skip_special_tokens=True)
        rows.append((text, shown, len(prompt), new, found.same, found.difference, found.margin))
    header = [
        "prompt", "written", "tokens", "new tokens", "same choice", "largest logit difference", "smallest margin",
    ]  # fmt: skip
    table = probe.Table(
        "identical",
        pd.DataFrame(rows, columns=header),
        "Greedy decoding with the cache, and at each step the same text without it. Same choice: steps at which both "
        "take the same token. Smallest margin: between the likeliest token's logit and the next one's.",
        digits=6,
    )
    text = (
        "A causal model's keys and values of a token depend on that token and those before it, never on later ones. "
        "They can be kept, and the answer is the same; what differs is the order of additions, hence the last digits.",
        "Where the margin is more than twice the largest difference, the same choice is certain and no accident.",
    )
    return same, steps, len(rows), probe.Section("The same words", text, (table,))


def _counts(
    subject: Subject, decoder: Decoder, plan: Plan, seed: int
) -> tuple[tuple[int, int, int, int], probe.Section]:
    """The counted run without and with a cache, its prompt and new tokens; and the section."""
    import pandas as pd

    from probe.anatomy.stacks import dissect
    from probe.by_hand.ledger import tokens_fed
    from probe.cost.decoding import Decoder, write
    from probe.models.gpt import GPT, Config

    sizes = {"vocab_size": 16, "n_layers": 1, "n_heads": 1, "d_model": 8, "max_positions": sum(PRINTED)}
    small = GPT(Config(**sizes, norm="none", ffn="none")).eval()
    length = min(plan.written[0], (subject.max_positions or plan.written[0]) * 3 // 4)
    mine = (length, _room(subject, length, plan.written[1]))
    rows, times = [], []
    for name, using, anatomy, (prompt, new) in (
        ("one layer of attention, 8 wide", Decoder(small), dissect(small), PRINTED),
        (subject.name, decoder, subject.anatomy, mine),
    ):
        ids = using.random_ids(prompt, seed)
        plain, cached = (write(using, anatomy, ids, new, cached=kept) for kept in (False, True))
        fed = tokens_fed(prompt, new)
        factor = plain.projected / cached.projected
        rows.append((name, prompt, new, plain.projected, fed.without_cache, cached.projected, fed.with_cache, factor))
        times.append((name, prompt, new, plain.seconds, cached.seconds, plain.seconds / cached.seconds))
    header = [
        "model", "prompt", "new tokens", "counted, no cache", "g·p + g·(g−1)/2", "counted, cache", "p + g − 1",
        "factor",
    ]  # fmt: skip
    counted = probe.Table(
        "counts",
        pd.DataFrame(rows[::-1], columns=header),
        "Tokens whose keys and values were computed in each layer, counted during the run at the matrices of attention "
        f"({subject.name}: {', '.join(plain.projections)}; the same in every layer), beside the formula for a prompt "
        "of p tokens and g new ones.",
        digits=1,
    )
    timed = probe.Table(
        "timing_run",
        pd.DataFrame(times[::-1], columns=["model", "prompt", "new tokens", "no cache, s", "cache, s", "times faster"]),
        "Seconds of the same runs, once each.",
        digits=2,
    )
    p, g = PRINTED
    fed = tokens_fed(p, g)
    text = (
        f"To write g tokens after a prompt of p takes g passes. Without a cache, pass i computes the keys and values "
        f"of all p + i − 1 tokens it sees; with one, each token's are computed once. For {p:,} and {g} these are "
        f"{fed.without_cache:,} and {fed.with_cache:,}: counted on a model small enough to write them both ways.",
    )
    return (plain.projected, cached.projected, *mine), probe.Section(
        "How much less is computed", text, (counted, timed)
    )


def _bytes(subject: Subject, decoder: Decoder) -> tuple[int, probe.Section]:
    """Bytes a token of the subject's cache, as measured, and the section."""
    import copy
    from dataclasses import replace

    import pandas as pd
    import torch

    from probe.by_hand.ledger import LLAMA_7B, SMOLLM2_135M, cache_bytes, sizes_of
    from probe.cost.decoding import Decoder, bytes_per_token
    from probe.models.gpt import Config

    own = next(subject.model.parameters()).element_size()
    mine = _sizes(subject)
    measured = bytes_per_token(decoder)
    cases: list[tuple[str, str, Sizes, int, int | None]] = [(subject.name, subject.dtype, mine, own, measured)]
    if own != 2:
        half = Decoder(copy.deepcopy(subject.model).to(torch.float16), decoder.device)
        cases.append((subject.name, "float16", mine, 2, bytes_per_token(half)))
    if mine.kv_heads < mine.n_heads:
        unshared = replace(mine, n_kv_heads=None)
        cases.append((f"{subject.name}, keys and values not shared", subject.dtype, unshared, own, None))
    others = {"smollm2": SMOLLM2_135M, "tiny": sizes_of(Config(vocab_size=1)), "Llama 7B": LLAMA_7B}
    cases += [(name, "float16", sizes, 2, None) for name, sizes in others.items() if name != subject.name]
    rows = []
    for name, dtype, sizes, width, seen in cases:
        by_hand = cache_bytes(sizes, bytes_per_number=width)
        shape = (sizes.n_layers, sizes.n_heads, sizes.kv_heads, sizes.head_width)
        rows.append((name, dtype, *shape, by_hand, seen, by_hand / 2**10, by_hand * AT / 2**20))
    header = [
        "model", "numbers", "layers", "heads", "key-value heads", "width of a head", "bytes a token", "measured",
        "KiB a token", f"MiB at {AT:,} tokens",
    ]  # fmt: skip
    frame = pd.DataFrame(rows, columns=header).astype({"measured": "Int64"})
    table = probe.Table(
        "bytes",
        frame,
        "Bytes a token: 2 · layers · key-value heads · width of a head · bytes of a number, from the configuration. "
        "Measured: what the tensors in the cache hold, a token. 1 KiB is 1,024 bytes, 1 MiB 1,024 KiB.",
        digits=3,
    )
    shared = mine.n_heads // mine.kv_heads
    sharing = (
        f"{subject.name} has {mine.n_heads} query heads but {mine.kv_heads} key-value heads (grouped-query attention): "
        f"its cache is {shared} times smaller than without sharing."
        if shared > 1
        else f"In {subject.name} every query head has keys and values of its own."
    )
    text = (
        "What is saved in computation is paid for in memory: two vectors for each token, layer and key-value head. "
        + sharing,
    )
    return measured, probe.Section("What it costs in memory", text, (table,))


def _ledger(subject: Subject) -> probe.Section:
    """Where the parameters are, in the subject and in GPT-3, and how few an adapter trains."""
    import pandas as pd

    from probe.by_hand.ledger import GPT3, LLAMA_7B, lora, parameters, total

    large = {line.part: line.parameters for line in parameters(GPT3)}
    mine = _known_sizes(subject)
    rows = [
        (part, formula, own, own / total(mine), large.get(part), large.get(part, 0) / total(GPT3))
        for part, formula, own in (parameters(mine) if mine else ())
        if own or large.get(part)
    ]
    header = ["part", "formula", subject.name, f"share, {subject.name}", "GPT-3", "share, GPT-3"]
    frame = pd.DataFrame(
        [*rows, ("counted in the model's tensors", "", subject.n_parameters, None, None, None)], columns=header
    )
    adapted = [(subject.name, mine, 8), ("Llama 7B", LLAMA_7B, 8), ("Llama 7B", LLAMA_7B, 128), ("GPT-3", GPT3, 8)]
    trained = [
        (name, r, lora(sizes, r), total(sizes), 100 * lora(sizes, r) / total(sizes))
        for name, sizes, r in adapted
        if sizes is not None
    ]
    parts = (
        probe.Table(
            "parameters",
            frame.astype({subject.name: "Int64", "GPT-3": "Int64"}),
            "Parameters by part, from the configuration; the last line is counted in the model. L layers, d width of "
            "the residual stream, H heads, G key-value heads, D width of a head, m width of the MLP, V vocabulary, P "
            "learned positions.",
        ),
        probe.Table(
            "lora",
            pd.DataFrame(trained, columns=["model", "rank", "trained", "of", "%"]),
            "Parameters of low-rank adapters (LoRA) on W_Q and W_V: rank · (width in + width out) for each matrix.",
        ),
    )
    text = (
        "The cache grows with tokens, parameters do not. GPT-3's matrices in blocks are 12·L·d² = "
        f"{12 * GPT3.n_layers * GPT3.d_model**2 / 1e9:.1f} billion, with all else {total(GPT3) / 1e9:.1f} (printed: "
        f"175). Adapters of rank 8 on Llama 7B are {100 * lora(LLAMA_7B, 8) / total(LLAMA_7B):.2f} % (often printed: "
        "about 1 %, which is rank 128).",
    )
    return probe.Section("Where the parameters are", text, parts)


def _known_sizes(subject: Subject) -> Sizes | None:
    """What the ledger can read of the subject's configuration."""
    from probe.by_hand.ledger import sizes_of
    from probe.errors import UnsupportedModel

    try:
        return sizes_of(subject.model.config)
    except UnsupportedModel:
        return None


def _sizes(subject: Subject) -> Sizes:
    """Enough for the size of the cache, of any decoder."""
    from probe.by_hand.ledger import Sizes

    return _known_sizes(subject) or Sizes(
        n_layers=subject.n_layers,
        n_heads=subject.n_heads,
        d_model=subject.d_model,
        d_mlp=0,
        vocab_size=0,
        n_kv_heads=subject.n_kv_heads,
        d_head=subject.d_head,
    )


def _prompts(subject: Subject, seed: int) -> list[str]:
    """Beginnings of texts, to be gone on with."""
    if subject.language != "synthetic":
        return list(ENGLISH)
    items = probe.data.language.coreference(seed, per_frame=4).items
    texts = [item.text.split() for item in items[:: len(items) // len(ENGLISH)]][: len(ENGLISH)]
    return [" ".join(words[: -(-len(words) // 2)]) for words in texts]


def _room(subject: Subject, used: int, wanted: int) -> int:
    """How many of the wanted tokens fit into what the subject reads, beside those used."""
    return wanted if subject.max_positions is None else max(1, min(wanted, subject.max_positions - used))
