"""What gets lost in a long prompt: keys in JSON, a needle in running text, and whether place or distance does it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import probe

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd

    from probe.causal.lookups import Lookup
    from probe.causal.retrieval import Retrieved
    from probe.data.texts import Dataset
    from probe.runner.findings import Part
    from probe.subject import Subject


class Size(NamedTuple):
    """How much is measured. words: pairs -> lists of JSON with words; uuids: pairs, lists. lengths, texts: of running
    text, in tokens, and how many of each. page: texts of 500 words. filler: lists with filler around them. long:
    lengths of single prompts, in tokens.
    """

    words: dict[int, int]
    uuids: tuple[int, int]
    lengths: tuple[int, ...]
    texts: int
    page: int
    filler: int
    long: tuple[int, ...]


SIZE = {
    "quick": Size({10: 8}, (10, 2), (256,), 4, 4, 6, (1000,)),
    "full": Size({10: 30, 40: 12}, (10, 8), (256, 512, 1024), 6, 10, 24, (1000, 2000, 4000, 8000)),
}
PLACES = {10: (0, 2, 5, 7, 9), 40: (0, 10, 20, 30, 39)}
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
RIVALS = 9
FACTS, FILLER = 10, 240  # of a list with filler around it, and tokens of that
SHOWN, PROMPTS = 4, 3  # heads whose attention is shown, and lists or texts whose prompts are
PLAIN, BEFORE, AFTER = "no filler", "filler before", "filler after"
ALONE, AMONG, PAGE = "alone", f"among {RIVALS} rivals", "500 words, alone"


@probe.study(models=("smollm2",))
def haystack(subject: Subject, *, profile: str = "quick", seed: int = 0) -> probe.Findings:
    """What makes a model lose something in its prompt: the place, the distance, or what else is there?

    Keys in a JSON object, one fact in running text with and without rivals, and lists with filler around them.
    """
    import pandas as pd

    from probe.causal import by_index

    size = SIZE[profile]
    in_json = json_sets(subject, size, seed)
    hidden, listed = needle_sets(subject, size, seed), lists(subject, size, seed)
    needles = pd.concat([by_index.answers(subject, d).assign(phrasing=k) for k, d in hidden.items()], ignore_index=True)
    filled = {kind: by_index.answers(subject, d).assign(phrasing=kind) for kind, d in listed.items()}
    changes = pd.concat(
        [by_index.moved(filled[PLAIN], filled[kind], seed=seed).assign(filler=kind) for kind in (BEFORE, AFTER)],
        ignore_index=True,
    )
    pairs, added = json_answers(subject, in_json)
    short, words = of_length(hidden[AMONG], size.lengths[0]), next(iter(in_json))
    views = [
        behind(subject, asked, answered, prefix, what, x_label, seed)
        for asked, answered, prefix, what, x_label in (
            (in_json[words], pairs[pairs["phrasing"] == words], "words_", f"lists of {words}", "index of the pair"),
            (short, by_index.answers(subject, short), "hidden_", f"texts, {AMONG}", "depth in the text, %"),
            (listed[BEFORE], filled[BEFORE], "before_", f"lists with {BEFORE}", "index of the fact"),
            (listed[AFTER], filled[AFTER], "after_", f"lists with {AFTER}", "index of the fact"),
        )
    ]
    return probe.Findings(
        answer=answer(subject, needles, pairs, changes),
        sections=(
            json_section(pairs, added, seed, views[0]),
            needle_section(needles, seed, views[1]),
            filler_section(pd.concat(filled.values(), ignore_index=True), changes, seed, (*views[2], *views[3])),
            long_section(*long_prompts(subject, size.long, seed)),
        ),
        method=(
            "Words, needles and lists are forced choices: an answer is right if the value asked for is the likeliest "
            "of the candidates (all values of a list; ten things for a needle, all of them in the text where it has "
            f"{RIVALS} rivals). UUIDs are right if the model would write the value, token by token, as in Liu et al. "
            "2023, whose JSON prompt this is; in the model's chat format where it has one.",
            "In JSON the pair asked for moves through its list while the others stay in order. A needle's text is the "
            f"same at every depth. Filler is {FILLER} tokens of plain sentences that have nothing to do with the list.",
            "Under the figures that have prompts: heads with most attention from where the answer follows to the value "
            "asked for, chosen on half of the lists or texts and shown on the other half.",
            "Intervals are 95 % bootstrap intervals over lists or texts; p-values are of sign-flip tests over them, "
            "Holm-corrected within a table. Quick profiles have few of either: their intervals are wide.",
        ),
        notes=(
            "The running text is drawn from twelve frames of plain sentences: real text is richer.",
            "Peak memory and times vary from run to run, so the table whose name begins with timing_ does.",
        ),
        data=(*in_json.values(), *hidden.values(), *listed.values()),
    )


def json_sets(subject: Subject, size: Size, seed: int) -> dict[str, Dataset]:
    """Pairs in JSON: words, the same under an absent key, and UUIDs."""
    from probe.causal.lookups import chat, one_token

    around, fits = chat(subject, answer="\n"), one_token(subject, '"')
    found = {
        f"{n} words{', absent' * absent}": probe.data.key_values(
            n, lists=lists, indices=PLACES[n], fits=fits, chat=around, absent=absent, seed=seed
        )
        for n, lists in size.words.items()
        for absent in (False, True)
    }
    n, lists = size.uuids
    uuids = probe.data.key_values(n, lists=lists, indices=PLACES[n], kind="uuids", chat=around, seed=seed)
    return {**found, f"{n} UUIDs": uuids}


def needle_sets(subject: Subject, size: Size, seed: int) -> dict[str, Dataset]:
    """One fact in running text by length and depth, alone and among rivals; and in a page of 500 words."""
    from probe.causal.lookups import chat, one_token

    fits, around, count = one_token(subject), chat(subject), tokens_of(subject)
    by_depth = {
        kind: probe.data.needle(
            size.lengths, DEPTHS, texts=size.texts, rivals=n, count=count, fits=fits, chat=around, seed=seed
        )
        for kind, n in ((ALONE, 0), (AMONG, RIVALS))
    }
    page = probe.data.needle((500,), (0.5, 1.0), texts=size.page, fits=fits, chat=around, seed=seed + 1)
    return {**by_depth, PAGE: page}


def lists(subject: Subject, size: Size, seed: int) -> dict[str, Dataset]:
    """Lists of facts without filler, and with some before or after them."""
    from probe.causal.lookups import facts
    from probe.data.running import passage

    text = passage(FILLER, count=tokens_of(subject), seed=seed)
    around = {PLAIN: ("", ""), BEFORE: (text, ""), AFTER: ("", text)}
    indices = (0, FACTS // 2, FACTS - 1)
    return {
        kind: facts(subject, FACTS, lists=size.filler, indices=indices, filler=filler, seed=seed)
        for kind, filler in around.items()
    }


def tokens_of(subject: Subject) -> Callable[[str], int]:
    """Counts a text's tokens."""
    return lambda text: len(subject.tokenizer(text, add_special_tokens=False).input_ids)


def of_length(dataset: Dataset, n: int) -> Dataset:
    """The texts of n tokens."""
    import dataclasses

    return dataclasses.replace(dataset, items=tuple(item for item in dataset.items if item.tags["n"] == str(n)))


def behind(
    subject: Subject, dataset: Dataset, found: pd.DataFrame, prefix: str, what: str, x_label: str, seed: int
) -> tuple[Part, ...]:
    """Accuracy above attention, with the prompts behind both, on half of the lists or texts; the other half chooses
    the heads. found: `answers` to the questions of the data set. what: these in words.
    """
    from probe.causal.by_index import curve
    from probe.causal.halves import halves
    from probe.causal.prompts import asked_for, tokens
    from probe.runner.over_index import Panel, accuracy, over_index

    half = halves(subject, dataset, found, SHOWN)
    candidates = 1 + len(subject.bind(dataset).units[0].answer.wrong)
    about = f"Share of questions in which the value asked for is the likeliest of the {candidates} it could be."
    looks = Panel(
        "mass",
        half.curves(SHOWN, seed=seed),
        "Attention to the value asked for.",
        f"From the answering position to the value asked for: the {SHOWN} heads with most on the other half.",
        "attention",
    )
    return over_index(
        (accuracy(curve(half.shown, "correct", seed=seed), candidates, about), looks),
        asked_for(half.shown, dataset),
        tokens(subject, dataset, half.first(PROMPTS), half.chosen),
        caption=f"Accuracy and attention on the same {len(half.shown)} questions: {half.shown['list'].nunique()} of "
        f"{found['list'].nunique()} {what}, those that chose no head. Intervals are over these.",
        shown="Prompts of the first of these, right or wrong. Probabilities are among the values that could be meant.",
        x_label=x_label,
        prefix=prefix,
    )


def json_answers(subject: Subject, sets: dict[str, Dataset]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Whether each value is answered (column `phrasing`: which list), and what its key adds to words."""
    import pandas as pd

    from probe.causal import by_index
    from probe.causal.lookups import lookups
    from probe.causal.retrieval import forced

    found, added = [], []
    for kind, dataset in sets.items():
        if "UUIDs" in kind:
            table = forced(subject, lookups(subject, dataset)).table
            found.append(table.assign(phrasing=kind, correct=table["found"].astype(float)))
        elif "absent" not in kind:
            answers = by_index.answers(subject, dataset)
            found.append(answers.assign(phrasing=kind))
            effect = by_index.question_effect(subject, answers, sets[f"{kind}, absent"])
            added.append(effect.assign(phrasing=kind))
    columns = ["item", "list", "n", "phrasing", "index", "correct", "log_p", "likeliest"]
    return pd.concat([part.reindex(columns=columns) for part in found], ignore_index=True), pd.concat(
        added, ignore_index=True
    )


def long_prompts(subject: Subject, lengths: tuple[int, ...], seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """One needle half-way through a single prompt of each length: whether it is found and which head looks hardest at
    it; and what that took.
    """
    import time

    import pandas as pd

    from probe.causal.lookups import chat, lookups, one_token
    from probe.causal.retrieval import forced
    from probe.causal.sweep import highest
    from probe.cost.memory import peak_mb

    rows, timing = [], []
    around, fits, count = chat(subject), one_token(subject), tokens_of(subject)
    for length in lengths:
        hidden = probe.data.needle((length,), (0.5,), texts=1, count=count, fits=fits, chat=around, seed=seed)
        asked = lookups(subject, hidden)
        kept: list[Retrieved] = []

        def read(asked: list[Lookup] = asked, kept: list[Retrieved] = kept) -> None:
            kept.append(forced(subject, asked))

        start = time.perf_counter()
        peak = peak_mb(read)
        timing.append((len(asked[0].ids), peak, time.perf_counter() - start))
        (best,) = highest(kept[0].first[..., 0], 1)
        weight, hits = float(kept[0].first[(*best, 0)]), int((kept[0].value[..., 0] == 1).sum())
        rows.append((len(asked[0].ids), "yes" if kept[0].found[0] else "no", f"{best[0]}.{best[1]}", weight, hits))
    columns = ["tokens", "found", "head", "its weight on the value", "heads that look at it most"]
    return (
        pd.DataFrame(rows, columns=columns),
        pd.DataFrame(timing, columns=["tokens", "peak memory, MB", "seconds"]),
    )


def answer(subject: Subject, needles: pd.DataFrame, pairs: pd.DataFrame, changes: pd.DataFrame) -> str:
    """The question's answer in one sentence, with its numbers."""
    mean = needles.groupby("phrasing")["correct"].mean()
    words = pairs[pairs["phrasing"] == pairs["phrasing"].iloc[0]].groupby("index")["correct"].mean()
    at = changes.set_index(["filler", "index"])["change"]
    return (
        f"In {subject.name}, one fact in running text is answered rightly in {mean[ALONE]:.2f} of cases alone and in "
        f"{mean[AMONG]:.2f} among {RIVALS} of its kind; of ten words in JSON the first in {words.iloc[0]:.2f}, the "
        f"inner ones in {words.iloc[1:-1].mean():.2f} and the last in {words.iloc[-1]:.2f}; {FILLER} tokens of filler "
        f"after a list of {FACTS} facts change the last one's accuracy by {at[AFTER, FACTS - 1]:+.2f}, and before it "
        f"the first one's by {at[BEFORE, 0]:+.2f}."
    )


def json_section(pairs: pd.DataFrame, added: pd.DataFrame, seed: int, view: tuple[Part, ...]) -> probe.Section:
    """Key-value retrieval."""
    from probe.causal.by_index import curve, ends

    table, effect = curve(pairs, "correct", seed=seed), curve(added, "effect", shares=False, seed=seed)
    return probe.Section(
        "Keys in JSON",
        ("What the key adds is the log-probability of the value asked for, minus that under a key that is not there.",),
        (
            probe.Table("json", table, "Accuracy by index.", shown=False),
            probe.Plot(
                "json_by_index",
                "json",
                "lines",
                "index",
                "value",
                "Share of lists in which the value asked for is answered, by the index of its pair.",
                panel="phrasing",
                low="low",
                high="high",
                x_label="index of the pair asked for",
                y_label="accuracy",
            ),
            probe.Table(
                "json_ends", ends(pairs, seed=seed), "Primacy, recency and the U-index, in accuracy.", digits=2
            ),
            probe.Table("json_added", effect, "What the key adds, nats.", digits=2),
            *view,
        ),
    )


def needle_section(needles: pd.DataFrame, seed: int, view: tuple[Part, ...]) -> probe.Section:
    """A needle in running text."""
    from probe.causal.by_index import curve

    table = curve(needles, "correct", seed=seed)
    table["text"] = [f"{n} tokens" for n in table["n"]]
    drawn, page = table[table["phrasing"] != PAGE], table[table["phrasing"] == PAGE]
    page = page.rename(columns={"index": "depth, %", "value": "accuracy", "lists": "texts"})
    return probe.Section(
        "One fact in running text",
        ("Without rivals there is nothing to mix it up with: a needle test alone says little about lists.",),
        (
            probe.Table("needle", drawn, "Accuracy by depth.", shown=False),
            probe.Plot(
                "needle_by_depth",
                "needle",
                "lines",
                "index",
                "value",
                "Share of texts in which the fact asked for is answered, by its depth; chance is .1.",
                by="phrasing",
                panel="text",
                low="low",
                high="high",
                x_label="depth in the text, %",
                y_label="accuracy",
            ),
            probe.Table(
                "page",
                page[["depth, %", "accuracy", "low", "high", "texts"]],
                "One key sentence in the dead centre and at the end of a text of 500 words.",
                digits=2,
            ),
            *view,
        ),
    )


def filler_section(filled: pd.DataFrame, changes: pd.DataFrame, seed: int, view: tuple[Part, ...]) -> probe.Section:
    """Order or distance."""
    from probe.causal.by_index import curve, ends

    table = curve(filled, "correct", seed=seed).sort_values(
        "phrasing", key=lambda names: names.map([PLAIN, BEFORE, AFTER].index), kind="stable"
    )
    shown = changes[["filler", *(c for c in changes.columns if c != "filler")]]
    return probe.Section(
        "Order or distance?",
        (
            f"If the first fact is favoured for being first in the list, {FILLER} tokens before it change nothing; if "
            "it is favoured for being at the start of the prompt, they do. So with the last and filler after the list.",
        ),
        (
            probe.Table("filler", table, "Accuracy by index.", shown=False),
            probe.Plot(
                "filler_by_index",
                "filler",
                "bars",
                "index",
                "value",
                f"Share of lists in which the fact asked for is answered, among {FACTS}.",
                by="phrasing",
                low="low",
                high="high",
                x_label="index of the fact asked for",
                y_label="accuracy",
            ),
            probe.Table("filler_changes", shown, "Accuracy without filler (before) and with it (after).", digits=2),
            probe.Table(
                "filler_ends", ends(filled, seed=seed), "Primacy, recency and the U-index, in accuracy.", digits=2
            ),
            *view,
        ),
    )


def long_section(found: pd.DataFrame, timing: pd.DataFrame) -> probe.Section:
    """One prompt of each length."""
    return probe.Section(
        "Long prompts",
        (
            "One fact half-way through a single prompt, read in one pass: the attention of every head is kept at the "
            "rows that answer alone, so memory does not grow with the square of the length.",
        ),
        (
            probe.Table("long", found, "One prompt of each length.", digits=2),
            probe.Table("timing_long", timing, "What reading it took, the model's weights included.", digits=1),
        ),
    )
