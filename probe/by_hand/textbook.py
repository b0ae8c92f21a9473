"""Figures that textbooks print, each beside what the arithmetic gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from probe.by_hand import examples, ledger
from probe.by_hand.in_python import Row, attention, softmax

EXACT = 1e-12  # what a float may be off


@dataclass(frozen=True)
class Check:
    """A printed figure or statement, and the computed one. right: whether they agree at the digits printed."""

    example: str
    printed: str
    computed: str
    right: bool


def of_numbers(example: str, printed: Sequence[float], computed: Sequence[float], digits: int, unit: str = "") -> Check:
    """A check of numbers printed with so many digits after the point: right if each computed one rounds to it."""
    near = all(abs(p - c) <= 0.5 * 10**-digits + EXACT for p, c in zip(printed, computed, strict=True))
    return Check(example, shown(printed, digits) + unit, shown(computed, max(digits, 3)) + unit, near)


def shown(numbers: Sequence[float], digits: int) -> str:
    """Numbers side by side with so many digits after the point."""
    return " ".join(f"{number:.{digits}f}" for number in numbers)


def softmaxed() -> Row:
    """The weights of "it" where its scores are given."""
    return softmax([score / examples.SCORES_ROOT for score in examples.SCORES])


def lora_percent() -> float:
    """Share of a 7B Llama's parameters in adapters of rank 8 on W_Q and W_V, per cent."""
    return 100 * ledger.lora(ledger.LLAMA_7B, 8) / ledger.total(ledger.LLAMA_7B)


def worked_examples() -> tuple[Check, ...]:
    """What is printed of attention on a handful of numbers."""
    edited = examples.weights_of(examples.edited())
    large = examples.weights_of(examples.times(10, examples.KEYS), scale=1)
    x = examples.THREE_TOKENS
    first, _, last = attention(x, x, x, mask="causal")[1]
    costs = {ledger.attention_work(tokens=100, d_model=64, n_heads=h).multiply_adds for h in (1, 2, 4, 8)}
    return (
        of_numbers("scores 8, 2, 3 of “it” for cat, tired, it; d = 64", (0.60, 0.16, 0.24), softmaxed(), 2),
        of_numbers(
            "weights of “it”, vectors of 4 numbers", (0.503, 0.237, 0.260), examples.weights_of(examples.KEYS), 3
        ),
        of_numbers("output of “it”", (5.03, 2.37, 2.60, 0), examples.output_of(examples.KEYS), 2),
        Check(
            "tired's key replaced by the query of “it”",
            "the weight flips to tired",
            shown(edited, 3),
            examples.flips(edited),
        ),
        Check("keys × 10, scores not divided by √d", "all-or-nothing", shown(large, 6), max(large) > 0.999),
        of_numbers("three tokens, causal: row 0", (1, 0, 0), first, 0),
        Check("three tokens, causal: row 2", "spreads over all three", shown(last, 3), min(last) > 0.1),
        Check(
            "h slices of the width, concatenated",
            "cost the same as one head of full width",
            "as many multiply-adds with 1, 2, 4 and 8 heads",
            len(costs) == 1,
        ),
    )


def sizes() -> tuple[Check, ...]:
    """What is printed of parameters, caches and comparisons."""
    llama, cache = ledger.LLAMA_7B, ledger.cache_bytes
    fed = ledger.tokens_fed(prompt=1000, generated=500)
    ratio = fed.without_cache / fed.with_cache
    compared = [ledger.comparisons(n) for n in (10**3, 10**4, 10**5)]
    return (
        of_numbers("GPT-3: 96 layers, 96 heads, 12288 wide", (175,), (ledger.total(ledger.GPT3) / 1e9,), 0, " B"),
        Check(
            "LoRA of rank 8 on W_Q and W_V of a 7B Llama",
            "about 1 % of the parameters",
            f"{lora_percent():.2f} %",
            0.5 <= lora_percent() < 1.5,
        ),
        of_numbers("KV cache of a 7B, 16-bit, a token", (0.5,), (cache(llama) / 2**20,), 1, " MiB"),
        of_numbers("the same at 4096 tokens", (2,), (cache(llama, 4096) / 2**30,), 0, " GiB"),
        Check(
            "keys and values computed anew without a cache: prompt of 1000, 500 generated",
            "hundreds of times as many",
            f"{fed.without_cache:,} / {fed.with_cache:,} = {ratio:.0f} times",
            100 <= ratio < 1000,
        ),
        Check(
            "comparisons of 10³, 10⁴, 10⁵ tokens",
            "10⁶, 10⁸, 10¹⁰",
            ", ".join(f"{n:,}" for n in compared),
            compared == [10**6, 10**8, 10**10],
        ),
    )
