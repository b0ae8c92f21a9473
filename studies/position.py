"""Heads that attend by place: previous, next and own token, fixed distances, and the sink, on three kinds of text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import probe
from probe.sites import head_names

if TYPE_CHECKING:
    import pandas as pd

    from probe.subject import Subject
    from probe.targets import Unit

PROMPTS = {"quick": 12, "full": 48}
LENGTHS = (16, 32, 64, 128, 256, 512)
MOSTLY = 0.5  # Clark et al. 2019
SHOWN = 2  # prompts of each text, token by token


@probe.study(models=("minilm", "smollm2", "tiny"))
def position(subject: Subject, *, profile: str = "quick", seed: int = 0) -> probe.Findings:
    """Which heads attend by place?

    On words in random order, on strings of words that come again, and on natural text, separately.
    """
    import pandas as pd

    from probe.scores import placement

    n = PROMPTS[profile]
    texts = {kind: placement.texts(subject, kind, n=n, seed=seed) for kind in placement.KINDS}
    tables = {kind: placement.placed(subject, prompts) for kind, prompts in texts.items()}
    every = pd.concat([t.assign(text=kind) for kind, t in tables.items()], ignore_index=True)
    sinks = by_length(subject, n, seed)
    counts = counted(tables)
    return probe.Findings(
        answer=answer(subject, counts, sinks),
        sections=(
            counts_section(counts, every, subject),
            heads_section(tables),
            prompts_section(subject, texts, tables),
            sink_section(sinks),
        ),
        method=(
            f"{n} prompts of each kind, at most {placement.TOKENS} tokens long: words that are one token each, in "
            "random order; a string of 16 such words again and again, with gaps of random length; natural text. "
            "Weights are averaged over rows, then over prompts.",
            f"A head is counted for the previous, next or own token from a mean weight of {MOSTLY} on (Clark et al. "
            f"2019), as positional where {placement.POSITIONAL:.0%} of its rows have their largest weight at one "
            f"offset (Voita et al. 2019), as a sink from {placement.SINK} on the first key on (Gu et al. 2024). "
            "Distance is the mean of how many tokens away the weight lies; entropy the share of the largest possible.",
        ),
        notes=(
            "Nothing here is an explanation or a verdict: these are descriptions of where weight goes.",
            "The sink share depends on the length and on which rows are averaged (here: all but the first).",
        ),
    )


def counted(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """How many heads each description fits, by kind of text."""
    import pandas as pd

    from probe.scores import placement

    rows = []
    for kind, table in tables.items():
        fits = {name: int((table[name] >= MOSTLY).sum()) for name in ("previous", "next", "self") if name in table}
        positional = table["share"] >= placement.POSITIONAL
        rows.append(
            {
                "text": kind,
                **fits,
                "positional": int(positional.sum()),
                "sink": int((table["first"] >= placement.SINK).sum()),
                "heads": len(table),
                "median distance": float(table["distance"].median()),
                "median entropy": float(table["entropy"].median()),
            }
        )
    return pd.DataFrame(rows)


def by_length(subject: Subject, n: int, seed: int) -> pd.DataFrame:
    """Share of heads that are sinks, on natural text of several lengths: tokens, share, median (of the mean weight)."""
    import pandas as pd

    from probe.scores import placement

    rows = []
    for tokens in LENGTHS:
        if subject.max_positions is not None and tokens > subject.max_positions:
            continue
        prompts = placement.texts(subject, "natural text", n=max(4, n * 32 // tokens), tokens=tokens, seed=seed)
        first = placement.placed(subject, prompts)["first"]
        rows.append((tokens, float((first >= placement.SINK).mean()), float(first.median()), len(prompts)))
    return pd.DataFrame(rows, columns=["tokens", "share of heads", "median weight", "prompts"])


def answer(subject: Subject, counts: pd.DataFrame, sinks: pd.DataFrame) -> str:
    """The question's answer in one sentence."""
    at = counts.set_index("text")
    each = ", ".join(f"{at.loc[k, 'previous']} on {k}" for k in at.index)
    length = sinks[sinks["tokens"] <= 64].iloc[-1]
    return (
        f"Of {at['heads'].iloc[0]} heads in {subject.name}, so many put at least half of their attention on the "
        f"previous token: {each}; {at.loc['natural text', 'positional']} look at one and the same offset in nearly all "
        f"rows of natural text, and at {length['tokens']:.0f} tokens {length['share of heads']:.0%} are sinks, with "
        "0.3 or more on the first token."
    )


def counts_section(counts: pd.DataFrame, every: pd.DataFrame, subject: Subject) -> probe.Section:
    """Counts by kind of text, and where in the model such heads are."""
    table = every.assign(layer=every["layer"].astype(int))
    layers = table.groupby(["text", "layer"], as_index=False, sort=False)[["previous", "first", "distance"]].mean()
    return probe.Section(
        "How many",
        (),
        (
            probe.Table("counts", counts, "Heads that a description fits.", digits=2),
            probe.Table("heads", every, "Every head.", shown=False),
            probe.Table("layers", layers, "Means over the heads of a layer.", shown=False),
            probe.Plot(
                "previous_by_layer",
                "layers",
                "lines",
                "layer",
                "previous",
                f"Weight on the previous token, mean over the heads of each layer of {subject.name}.",
                by="text",
                y_label="mean weight on the previous token",
            ),
        ),
    )


def heads_section(tables: dict[str, pd.DataFrame]) -> probe.Section:
    """The heads that are most of each."""
    import pandas as pd

    rows = []
    names = [n for n in ("previous", "next", "self", "-2", "-3") if n in next(iter(tables.values()))]
    for name in names:
        for kind, table in tables.items():
            for _, row in table.sort_values(name, ascending=False, kind="stable").head(2).iterrows():
                head = f"{row['layer']:.0f}.{row['head']:.0f}"
                rows.append((name, kind, head, row[name], int(row["offset"]), row["share"], row["distance"]))
    columns = ["looks at", "text", "head", "mean weight", "usual offset", "share of rows", "distance"]
    return probe.Section(
        "Which",
        ("The two heads with most weight there. The usual offset is where most rows have their largest weight.",),
        (probe.Table("best", pd.DataFrame(rows, columns=columns), "Heads by place.", digits=2),),
    )


def prompts_section(subject: Subject, texts: dict[str, list[str]], tables: dict[str, pd.DataFrame]) -> probe.Section:
    """Where the best heads look from the middle of each prompt."""
    import numpy as np

    from probe.runner.grouped import Group, grouped

    heads = {kind: highest(table, "previous") for kind, table in tables.items()}
    groups = []
    for kind, prompts in texts.items():
        names = [f"prompt {number:02}" for number in range(1, len(prompts) + 1)]
        units = [in_the_middle(name, subject.encode(text).ids) for name, text in zip(names, prompts, strict=True)]
        on, right = [], []
        layer, head = heads[kind]
        for unit in units:
            (row,) = unit.rows
            ((_, seen),) = subject.captured([unit.ids], ["pattern"], layers=[layer], rows=[row.query], batch_size=1)
            weights = seen["pattern", layer][0, head, 0].float().cpu().numpy()
            on.append(float(weights[row.target[0]]))
            right.append(float(weights.argmax() == row.target[0]))
        facts = {"head": head_names([heads[kind]] * len(units)), "on the previous token": on}
        groups.append(Group(kind, dict(zip(names, prompts, strict=True)), units, np.array(right), facts))
    sinks = [highest(table, "first") for table in tables.values()]
    return probe.Section(
        "Where they look",
        (),
        grouped(
            subject,
            "text",
            groups,
            [*heads.values(), *sinks],
            caption="The first ones, seen from the token in the middle (query); target: the one before it; foil: the "
            "first token. Right: the head that is best at previous tokens in texts of this kind has its largest weight "
            "on the target. The other heads to choose are the strongest sinks.",
            most=SHOWN,
        ),
    )


def in_the_middle(name: str, ids: tuple[int, ...]) -> Unit:
    """A prompt read from its middle token: target the one before it, foil the first."""
    from probe.targets import Row, Unit

    at = len(ids) // 2
    return Unit(name, name, ids, (Row((at,), (at - 1,), ((0,),)),))


def highest(table: pd.DataFrame, column: str) -> tuple[int, int]:
    """The head with the largest number."""
    best = table.loc[table[column].idxmax()]
    return int(best["layer"]), int(best["head"])


def sink_section(sinks: pd.DataFrame) -> probe.Section:
    """The sink share by length."""
    return probe.Section(
        "The sink by length",
        ("A sink's weight on the first token holds on as prompts grow, while a uniform head's falls as 1 / n.",),
        (
            probe.Table("sinks", sinks, "Natural text.", digits=2),
            probe.Plot(
                "sinks_by_length",
                "sinks",
                "lines",
                "tokens",
                "share of heads",
                "Share of heads with a mean weight of 0.3 or more on the first token.",
                log="x",
                x_label="tokens of the prompt",
                y_label="share of heads",
            ),
        ),
    )
