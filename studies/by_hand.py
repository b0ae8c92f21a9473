"""Attention worked out by hand: printed figures beside the right ones, and what each part is there for."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import probe

if TYPE_CHECKING:
    import numpy as np

    from probe.by_hand.textbook import Check
    from probe.runner.findings import Findings, Plot, Section, Table

QUICK, FULL = 40, 200  # draws of random vectors
REPEATS = 20  # of what holds or fails exactly
WIDTHS = tuple(2**i for i in range(10))
N_KEYS = 64
ALLOWED = {"float64": -12, "float32": -6}  # powers of ten


@probe.study(models=())
def by_hand(*, profile: str = "quick", seed: int = 0) -> Findings:
    """What does attention compute, and which textbook figures are right?

    Everything is arithmetic: small examples, random vectors, configurations. No model is loaded.
    """
    from probe.by_hand import examples, textbook
    from probe.runner.findings import Findings

    draws = FULL if profile == "full" else QUICK
    worked, sizes = textbook.worked_examples(), textbook.sizes()
    verdicts = [check.right for check in (*worked, *sizes)]
    edited = examples.weights_of(examples.edited())
    return Findings(
        answer=(
            "It mixes values in shares that are the softmax of q·k/√d. Of "
            f"{len(verdicts)} printed figures and statements checked, {sum(verdicts)} are right and "
            f"{verdicts.count(False)} wrong: “it” gives cat {textbook.softmaxed()[0]:.3f} of its attention, not 0.60; "
            f"with the query itself for its key, tired gets {edited[1]:.3f} and cat still more ({edited[0]:.3f}); "
            f"LoRA on a 7B Llama trains {textbook.lora_percent():.2f} % of the parameters, not about 1 %."
        ),
        sections=(
            _worked(worked),
            _scale(draws, seed),
            _pages(seed),
            _heads(seed),
            _order(seed),
            _ledger(sizes),
        ),
        method=(
            "A printed figure is right if the computed one rounds to it at the digits printed; a printed statement, if "
            "the computed numbers have the property it names.",
            f"Random vectors have independent standard normal numbers. {draws} draws of 200 pairs for variances, of 20 "
            f"queries over {N_KEYS} keys for entropies; intervals are 95 % BCa bootstrap intervals of the mean over "
            f"draws. What holds or fails exactly is tried on {REPEATS} draws.",
        ),
        notes=(
            "Vectors of a few numbers, made up for a book, show how attention is computed, not what a model attends "
            "to; that is for the other studies.",
        ),
    )


def _worked(checks: Sequence[Check]) -> Section:
    from probe.by_hand import examples as e
    from probe.runner.findings import Section

    length, found = e.flipping_length(), e.found_flipping_length()
    cases = {
        "none": e.weights_of(e.KEYS),
        "tired's is the query": e.weights_of(e.edited()),
        f"tired's is {length:.4f} times the query": e.weights_of(e.edited(length)),
        "tired's is 1.1 times the query": e.weights_of(e.edited(1.1)),
        "cat's and tired's exchanged": e.weights_of(e.exchanged()),
        "all × 10, scores undivided": e.weights_of(e.times(10, e.KEYS), scale=1),
        "tired's is the query, all × 10, scores undivided": e.weights_of(e.times(10, e.edited()), scale=1),
    }
    # At the exact length the two are equal up to rounding, which is no flip.
    rows = [(case, *w, _yes(w[e.TIRED] > w[e.CAT] + 1e-9)) for case, w in cases.items()]
    return Section(
        "The worked examples",
        (
            "“It”, in “The cat didn't jump onto the table because it was too tired”, compares its query with the keys "
            "of cat, tired and it. Weights are given in this order.",
            "Giving tired the query itself for a key does not make it win. A score grows with the key's length as well "
            f"as with its direction, and cat's key is longer. Tired's must be {length:.4f} times the query, "
            f"(q·cat)/(q·q), to be level with cat; halving an interval finds {found:.4f} as well. Above that the "
            "weight flips, and so it does when the two keys are exchanged.",
            "Ten times longer keys, with scores undivided, give cat everything. Once tired's key is the query they do "
            "not: the two scores are too near each other.",
        ),
        (
            _checked("worked_examples", checks, "Printed figures and statements on small examples."),
            _table("flipping", ["change of the keys", *e.WORDS, "flips?"], rows, "Weights of “it” as keys change."),
        ),
    )


def _scale(draws: int, seed: int) -> Section:
    from probe.by_hand import scaling
    from probe.runner.findings import Plot, Section

    return Section(
        "The scale, and why scores are divided by √d",
        (
            "Longer keys make larger scores, and larger scores a more decided softmax: from three keys alike (log 3 = "
            "1.099 nats) to one alone (0 nats). Two scores that are near each other take a larger factor.",
            "The dot product of two random vectors of d numbers has variance d. Undivided, a wide head's scores are "
            "large before anything is learned, and the softmax picks one key, whichever it is. Divided by √d they vary "
            "equally at every width.",
        ),
        (
            _table("entropy_over_factor", ["factor", "curve", "entropy"], scaling.factor_curves(), "", shown=False),
            Plot(
                "entropy_over_factor_figure",
                table="entropy_over_factor",
                kind="lines",
                x="factor",
                y="entropy",
                by="curve",
                log="x",
                marks={"log 3: all alike": math.log(3)},
                caption="Entropy of the weights of “it” over cat, tired and it as all keys are made longer.",
                x_label="what the keys are multiplied by",
                y_label="entropy, nats",
            ),
            *_widths(draws, seed),
        ),
    )


def _widths(draws: int, seed: int) -> tuple[Table | Plot, ...]:
    """Random vectors: variance of dot products and entropy of weights over the width, with intervals."""
    import numpy as np

    from probe.by_hand import scaling
    from probe.runner.findings import Plot
    from probe.stats import ByCluster, interval

    def summary(values: np.ndarray) -> list[tuple[int, float, float, float]]:
        low, high = interval(ByCluster(values, np.ones(draws)), seed=seed)
        return [(d, *map(float, row)) for d, *row in zip(WIDTHS, values.mean(-1), low, high, strict=True)]

    found = scaling.by_width(WIDTHS, draws=draws, seed=seed, keys=N_KEYS)
    variances = [(*row, row[1] / row[0]) for row in summary(found.variances)]
    entropies = [("divided by √d", *row) for row in summary(found.divided)]
    entropies += [("undivided", *row) for row in summary(found.undivided)]
    mean = f"mean of {draws} draws with its 95 % interval"
    entropy = f"Entropy of the weights of random queries over {N_KEYS} random keys, nats: {mean}."
    columns = ["d", "variance of q·k", "low", "high", "variance of q·k/√d"]
    return (
        _table("variances", columns, variances, f"Variance of q·k of random vectors: {mean}."),
        _table("entropy_over_width", ["scores", "d", "entropy", "low", "high"], entropies, entropy, shown=False),
        Plot(
            "entropy_over_width_figure",
            table="entropy_over_width",
            kind="lines",
            x="d",
            y="entropy",
            by="scores",
            low="low",
            high="high",
            log="x",
            marks={f"log {N_KEYS}: all alike": math.log(N_KEYS)},
            caption=entropy,
            x_label="width d of queries and keys",
            y_label="entropy, nats",
        ),
    )


def _pages(seed: int) -> Section:
    from probe.by_hand import in_python, layers
    from probe.by_hand.examples import THREE_TOKENS as x
    from probe.runner.findings import Listing, Plot, Section

    output, weights = in_python.attention(x, x, x, mask="causal")
    rows = [(q, str([int(n) for n in x[q]]), *weights[q], *output[q]) for q in range(3)]
    pages = [
        (page, numbers, _below(off), f"1e{ALLOWED[numbers]}", _yes(off <= 10.0 ** ALLOWED[numbers]))
        for page, numbers, off in layers.distances(draws=REPEATS, seed=seed)
    ]
    columns = ["query", "vector", "key 0", "key 1", "key 2", "output 0", "output 1"]
    checks = ["page", "numbers", "largest difference", "allowed", "within?"]
    source = (in_python.dot, in_python.matmul, in_python.softmax, in_python.attention)
    return Section(
        "All of it in plain Python",
        (
            "Three tokens, [1, 0], [0, 1] and [1, 1], are their own queries, keys and values. With a causal mask the "
            "first sees itself alone and the last sees all three.",
            "The same functions are written three times, one page each, in plain Python, NumPy and torch.",
        ),
        (
            Listing(
                "\n\n".join(inspect.getsource(function) for function in source),
                "From probe/by_hand/in_python.py, where “visible” turns a mask into booleans and “_check_sizes” "
                "refuses sizes that do not fit.",
            ),
            _table("causal_example", columns, rows, "Weights and outputs under a causal mask, scores divided by √2."),
            _table("causal_cells", ["query", "key", "weight"], _cells(weights), "", shown=False),
            Plot(
                "causal_figure",
                table="causal_cells",
                kind="heat",
                x="key",
                y="query",
                value="weight",
                caption="The same weights: above the diagonal they are exactly 0.",
            ),
            _table(
                "pages",
                checks,
                pages,
                f"Outputs and weights of four heads against plain Python, as a share of the largest number: {REPEATS} "
                "draws, half of them causal.",
            ),
        ),
    )


def _heads(seed: int) -> Section:
    from probe.by_hand import layers, ledger
    from probe.runner.findings import Plot, Section

    tokens, width = 6, 16
    rows = []
    for n in (1, 2, 4, 8):
        found = layers.counted(n, tokens=tokens, width=width, seed=seed)
        expected = ledger.attention_work(tokens, width, n).multiply_adds
        rows.append((n, width // n, found.multiply_adds, expected, found.scalings, found.apart))
    columns = ["heads", "width of one", "multiply-adds counted", "by formula", "exponentials", "heads' difference"]
    shared = layers.patterns(4, tokens=tokens, width=width, seed=seed)
    cells = [(f"head {h}", *cell) for h, pattern in enumerate(shared) for cell in _cells(pattern)]
    return Section(
        "Several heads at the price of one",
        (
            "Each of h heads takes a slice of width d/h of queries, keys and values; the outputs are laid end to end. "
            "The matrix products cost 4·n·d² + 2·n²·d multiply-adds whatever h is. What does grow is the softmax: "
            "there are h patterns of n² weights rather than one.",
            "That is what is bought: a token can look to different places at once, which one pattern can only average.",
        ),
        (
            _table(
                "heads",
                columns,
                rows,
                f"One layer of random numbers, {tokens} tokens of width {width}, computed in plain Python with numbers "
                "that count. Heads' difference: mean over pairs of heads and queries of half the summed difference of "
                "their weights, 0 alike to 1 disjoint.",
            ),
            _table("head_patterns", ["head", "query", "key", "weight"], cells, "", shown=False),
            Plot(
                "head_patterns_figure",
                table="head_patterns",
                kind="heat",
                x="key",
                y="query",
                value="weight",
                panel="head",
                caption="The four patterns of one and the same layer with four heads.",
            ),
        ),
    )


def _order(seed: int) -> Section:
    from probe.by_hand import layers
    from probe.runner.findings import Section

    columns = ["put in another order", "layers", "mask", "read at", "largest change", "smallest change"]
    return Section(
        "Attention sees a set",
        (
            "Without a mask the output of a query does not change when keys are put in another order with their "
            "values: it is a weighted mean, and a mean has no order. Word order must come from elsewhere.",
            "A causal mask is one such place. It changes what each query sees; the last one sees all, so one layer "
            "leaves it unchanged, but two do not, because the tokens it reads have seen different ones themselves.",
        ),
        (
            _table(
                "order",
                columns,
                layers.order_changes(draws=REPEATS, seed=seed),
                f"Change of outputs over {REPEATS} draws of 8 random tokens without positions, as a share of their "
                "root mean square; 0 where it is below 1e-12, the rounding of sums.",
            ),
        ),
    )


def _ledger(checks: Sequence[Check]) -> Section:
    from probe.by_hand import ledger
    from probe.runner.findings import Plot, Section

    models = {"GPT-3": ledger.GPT3, "Llama 7B": ledger.LLAMA_7B, "SmolLM2-135M": ledger.SMOLLM2_135M}
    columns = [{line.part: line.parameters / 1e6 for line in ledger.parameters(sizes)} for sizes in models.values()]
    parts = [(part, *(column[part] for column in columns)) for part in columns[0]]
    caches = [
        (name, s.n_heads, s.kv_heads, ledger.cache_bytes(s) / 2**10, ledger.cache_bytes(s, 4096) / 2**30)
        for name, s in models.items()
    ]
    fed = [
        (cache, generated, ledger.tokens_fed(1000, generated)._asdict()[field])
        for cache, field in (("without a cache", "without_cache"), ("with a cache", "with_cache"))
        for generated in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
    ]
    compared = [(n, ledger.comparisons(n), ledger.comparisons(n, causal=True)) for n in (10**3, 10**4, 10**5)]
    kept = ["model", "heads", "key-value heads", "KiB a token", "GiB at 4096 tokens"]
    blocks = 12 * ledger.GPT3.n_layers * ledger.GPT3.d_model**2 / 1e9
    return Section(
        "Sizes by arithmetic",
        (
            f"GPT-3's blocks hold 12·L·d² = {blocks:.1f} B parameters; with embeddings, biases and norms it has "
            f"{ledger.total(ledger.GPT3) / 1e9:.1f} B, which rounds to the 175 printed.",
            "Keys and values without a cache are counted over the passes that write a token each: the first sees the "
            "prompt of p tokens, the i-th p + i - 1, and each computes all it sees. With a cache the first computes "
            "the prompt and each other one token; the last token written is never fed.",
        ),
        (
            _checked("sizes", checks, "Printed figures and statements on sizes."),
            _table("parameters", ["part", *models], parts, "Parameters, millions."),
            _table("caches", kept, caches, "Keys and values kept for attention, 16-bit numbers."),
            _table("fed", ["cache", "tokens generated", "tokens computed"], fed, "", shown=False),
            Plot(
                "fed_figure",
                table="fed",
                kind="lines",
                x="tokens generated",
                y="tokens computed",
                by="cache",
                log="xy",
                caption="Tokens whose keys and values are computed to answer a prompt of 1000.",
            ),
            _table("comparisons", ["tokens", "all pairs", "causal"], compared, "Dot products of one head."),
        ),
    )


def _checked(name: str, checks: Iterable[Check], caption: str) -> Table:
    rows = [(c.example, c.printed, c.computed, _yes(c.right)) for c in checks]
    return _table(name, ["example", "printed", "computed", "right?"], rows, caption)


def _table(name: str, columns: list[str], rows: Iterable[Sequence[Any]], caption: str, **options: Any) -> Table:
    import pandas as pd

    from probe.runner.findings import Table

    return Table(name, pd.DataFrame(list(rows), columns=columns), caption, **options)


def _cells(weights: Sequence[Sequence[float]]) -> list[tuple[int, int, float]]:
    """(query, key, weight) of every cell."""
    return [(q, k, float(weight)) for q, row in enumerate(weights) for k, weight in enumerate(row)]


def _yes(holds: bool) -> str:
    return "yes" if holds else "no"


def _below(difference: float) -> str:
    """The next power of ten: the digits of rounding differ from one processor to another."""
    return "0" if difference == 0 else f"below 1e{math.floor(math.log10(difference)) + 1}"
