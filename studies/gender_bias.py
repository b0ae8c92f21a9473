"""Stereotypes in where heads look and in what the model expects, on WinoBias."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import probe
from probe.sites import head_names

if TYPE_CHECKING:
    import pandas as pd

    from probe.causal.mediation import Mediation
    from probe.causal.stereotype import Pronouns
    from probe.data.texts import Dataset
    from probe.runner.findings import Part
    from probe.scores.measure import Measured
    from probe.subject import Subject

MEDIATED = {"quick": 6, "full": 40}  # pairs that every head is measured on
SHOWN = 12
PROMPTS = 3  # sentences shown of each version
PRO = "pro_stereotyped_type1"


@probe.study(models=("minilm", "smollm2"), needs_data=True)
def gender_bias(
    subject: Subject, *, data: Path, reference: str = "", profile: str = "quick", seed: int = 0
) -> probe.Findings:
    """Do heads look at the right occupation less often when the pronoun is not the stereotype's?

    data: pro_stereotyped_type1.txt.dev (or .test) of WinoBias, with its three companions beside it. reference: a table
    of the indirect effects that Vig et al. (2020) released, to be set beside those of a model called gpt2.
    """
    files = companions(data)
    versions = [(files["pro", n], files["anti", n]) for n in (2, 1)]
    looked = [attention(subject, pro, anti, seed) for pro, anti in versions]
    asked = expected(subject, *versions[0], seed)
    sentence, mediators = mediated(subject, data, reference, profile, seed)
    tables = [table for _, table in looked if table is not None]
    return probe.Findings(
        answer=" ".join(filter(None, (looks_answer(subject, tables), asked_answer(subject, asked), sentence))),
        sections=(*(section for section, _ in looked), asked_section(asked), *mediators),
        method=(
            "Each sentence is read twice, with the pronoun of the stereotype and with the other; nothing else differs, "
            "and who is meant stays the same. Of a head: attention from the pronoun on the occupation that is meant, "
            "minus that on the other, and the difference between the two versions, sentence by sentence. p: t-test on "
            "clusters, both signs, Holm-corrected over all heads. Sentences share templates and occupations: they are "
            "clustered by the two of a pair, by the stereotypically female occupation and by the male one, and of the "
            "three the widest interval and the largest p are given.",
            "In type 2 syntax says who is meant, before the pronoun; in type 1 the words after it do, which a causal "
            "model has not read there.",
            "Indirect effect (Vig et al. 2020): y = p(the other continuation) / p(the stereotype's), each the "
            "geometric mean over its tokens, after `... because she`; y with one head's attention taken from the "
            "prompt with `he`, over y, minus 1. Pairs that the pronoun moves as expected are kept, without the least "
            "moved quarter.",
        ),
        notes=("English, two pronouns, 40 occupations: what is found here says nothing of other stereotypes.",),
        data=tuple(dataset for pair in versions for dataset in pair),
    )


def companions(data: Path) -> dict[tuple[str, int], Dataset]:
    """The four files, by version and type. Raises DataError where one is not there or `data` is named otherwise."""
    from probe.errors import DataError

    if PRO not in data.name:
        raise DataError(f"{data}: expected a file like {PRO}.txt.dev; the other three are found beside it.")
    names = {(v, n): data.name.replace(PRO, f"{v}_stereotyped_type{n}") for v in ("pro", "anti") for n in (1, 2)}
    return {key: probe.data.winobias(data.with_name(name)) for key, name in names.items()}


def attention(subject: Subject, pro: Dataset, anti: Dataset, seed: int) -> tuple[probe.Section, pd.DataFrame | None]:
    """Where heads look in the two versions."""
    from probe.causal.stereotype import attention_by_stereotype, both_versions, by_occupation
    from probe.errors import DataError

    kind = "type 2, where syntax decides" if "type2" in pro.name else "type 1, where later words decide"
    title = f"Where heads look: {kind}"
    try:
        both = both_versions(subject, pro, anti)
        table = attention_by_stereotype(*both, by_occupation(pro, both[0].targets.units), seed=seed)
    except DataError as error:
        return probe.Section(title, (f"Not measured: {error}",)), None
    name = "type2" if "type2" in pro.name else "type1"
    table.insert(0, "name", head_names(zip(table["layer"], table["head"], strict=True)))
    best = table.assign(accuracy=(table["accuracy_pro"] + table["accuracy_anti"]) / 2)
    best = best.sort_values("accuracy", ascending=False, kind="stable")[:SHOWN]
    moved = table[table["p_holm"] < 0.05]
    by_size = moved.reindex(moved["difference"].abs().sort_values(ascending=False).index)[:SHOWN]
    text = (
        f"{len(moved)} of {len(table)} heads look at the one who is meant by another amount when the pronoun is not "
        f"the stereotype's: {int((moved['difference'] > 0).sum())} of them less, "
        f"{int((moved['difference'] < 0).sum())} more. The head with the best accuracy ({best.iloc[0]['name']}) has "
        f"{best.iloc[0]['accuracy_pro']:.2f} with the stereotype and {best.iloc[0]['accuracy_anti']:.2f} against it."
    )
    n, least = (int(table[column].iloc[0]) for column in ("n_units", "n_clusters"))
    caption = f"n = {n} sentences, each twice; {least} clusters at least."
    parts: list[Part] = [
        probe.Table(f"heads_{name}", table, "Every head.", shown=False),
        probe.Plot(
            f"heads_{name}_figure",
            f"heads_{name}",
            "points",
            "mass_pro",
            "difference",
            f"Every head: attention on the one who is meant minus the other, with the stereotype's pronoun, and how "
            f"much more that is than with the other pronoun. {caption}",
            marks={"no difference": 0.0},
            x_label="lead of the one who is meant, pro-stereotyped",
            y_label="pro minus anti",
        ),
        probe.Table(f"best_{name}", shown_columns(best), f"The heads that are right most often. {caption}", digits=2),
    ]
    parts += prompts_part(subject, name, table, both, (pro, anti))
    if len(by_size):
        caption = "The heads that the stereotype moves most, of those with Holm p below 0.05."
        parts.append(probe.Table(f"moved_{name}", shown_columns(by_size), caption, digits=3))
    return probe.Section(title, (text,), tuple(parts)), table


def prompts_part(
    subject: Subject, name: str, table: pd.DataFrame, both: tuple[Measured, Measured], datasets: tuple[Dataset, Dataset]
) -> list[Part]:
    """The sentences behind the largest difference and the best accuracy, with the attention of both heads."""
    import pandas as pd

    from probe.causal.prompts import first_of, looks, words_of

    largest = table.loc[table["difference"].abs().idxmax()]
    best = table.loc[(table["accuracy_pro"] + table["accuracy_anti"]).idxmax()]
    heads = list(dict.fromkeys((int(row["layer"]), int(row["head"])) for row in (largest, best)))
    tables, tokens = [], []
    for version, measured, dataset in zip(("pro", "anti"), both, datasets, strict=True):
        tags = {item.item: item.tags for item in dataset.items}
        units = {unit.item: unit for unit in measured.targets.units}
        mine = pd.DataFrame(
            {
                "version": f"{version}-stereotyped",
                "prompt": list(units),
                "correct": measured["correct"][heads[0]],
                "who is meant": [tags[item]["occupation"] for item in units],
                "the other": [tags[item]["other"] for item in units],
            }
        )
        shown = [units[item] for item in first_of(mine, "version", PROMPTS)]
        tables.append(mine)
        tokens.append(looks(subject, shown, heads, words_of(subject, dataset.texts, shown)))
    caption = (
        f"The first sentences, in both versions. Right: {head_names(heads)[0]}, the head with the largest difference "
        "between them, gives more attention to the one who is meant than to the other."
    )
    return [
        probe.Table(f"prompts_{name}", pd.concat(tables, ignore_index=True), "Each sentence.", shown=False),
        probe.Table(f"tokens_{name}", pd.concat(tokens, ignore_index=True), "Tokens of some.", shown=False),
        probe.Asked(f"asked_{name}", probe.Prompts(f"prompts_{name}", f"tokens_{name}", caption), "version"),
    ]


def shown_columns(table: pd.DataFrame) -> pd.DataFrame:
    """What of the heads' table the page prints."""
    names = {
        "name": "head",
        "accuracy_pro": "accuracy, pro",
        "accuracy_anti": "accuracy, anti",
        "mass_pro": "lead, pro",
        "mass_anti": "lead, anti",
        "difference": "pro − anti",
        "low": "low",
        "high": "high",
        "p_holm": "Holm p",
    }
    return table[list(names)].rename(columns=names)


def looks_answer(subject: Subject, tables: list[pd.DataFrame]) -> str:
    """The first sentence of the answer."""
    if not tables:
        return f"Where {subject.name} looks could not be measured."
    table = tables[0]
    moved = table[table["p_holm"] < 0.05]
    largest = table.loc[table["difference"].abs().idxmax()]
    return (
        f"Of {len(table)} heads of {subject.name}, {int((moved['difference'] > 0).sum())} look at the one who is meant "
        f"less when the pronoun goes against the stereotype and {int((moved['difference'] < 0).sum())} more; the "
        f"largest difference is {largest['difference']:+.3f} of a head's attention [95% interval {largest['low']:+.3f} "
        f"to {largest['high']:+.3f}] ({largest['name']}, {int(table['n_units'].iloc[0])} sentences)."
    )


def expected(subject: Subject, pro: Dataset, anti: Dataset, seed: int) -> Pronouns:
    """Which pronoun the model expects."""
    from probe.causal.stereotype import expected_pronoun

    return expected_pronoun(subject, pro, anti, seed=seed)


def asked_answer(subject: Subject, asked: Pronouns) -> str:
    """The second sentence."""
    if asked.reason is not None:
        return f"Which pronoun it expects is untestable here: {asked.reason}."
    return (
        f"Asked for the pronoun, it prefers the stereotype's in {asked.favours:.2f} [{asked.favours_interval[0]:.2f} "
        f"to {asked.favours_interval[1]:.2f}] of {asked.n_units} sentences, by {asked.nats:+.2f} nats "
        f"[{asked.nats_interval[0]:+.2f} to {asked.nats_interval[1]:+.2f}]."
    )


def asked_section(asked: Pronouns) -> probe.Section:
    """The numbers behind it."""
    import pandas as pd

    title = "Which pronoun the model expects"
    if asked.reason is not None:
        return probe.Section(title, (f"Untestable here: {asked.reason}.",))
    rows = [
        ("share that prefers the stereotype's", asked.favours, *asked.favours_interval),
        ("log p(stereotype's) − log p(other), nats", asked.nats, *asked.nats_interval),
    ]
    table = pd.DataFrame(rows, columns=["what", "value", "low", "high"])
    return probe.Section(
        title,
        ("In the words before it, so who is meant is known (type 2). No stereotype at all would give 0.5 and 0.",),
        (probe.Table("asked", table, f"n = {asked.n_units} sentences; intervals over clusters.", digits=2),),
    )


def mediated(subject: Subject, data: Path, reference: str, profile: str, seed: int) -> tuple[str, list[probe.Section]]:
    """Indirect effects, of a causal model: a sentence, and a section."""
    from probe.causal.mediation import mediation
    from probe.causal.readout import unreadable
    from probe.errors import ProbeError

    title = "Which heads mediate"
    if (reason := unreadable(subject)) is not None or not subject.is_causal:
        reason = reason or "the model sees later tokens"
        return "", [probe.Section(title, (f"Untestable here: {reason}.",))]
    dataset = probe.data.winobias_continuations(data)
    feminine = {i.item for i in dataset.items if i.item.endswith("feminine")}
    try:
        units = [u for u in subject.bind(dataset).units if u.item in feminine]
        found = mediation(subject, units, most=MEDIATED[profile])
    except ProbeError as error:
        return "", [probe.Section(title, (f"Untestable here: {error}",))]
    table = found.table(seed=seed)
    best = table.loc[table["effect"].idxmax()]
    sentence = (
        f"The strongest mediator of the pronoun's effect on how a sentence goes on is {best['layer']:.0f}."
        f"{best['head']:.0f} (indirect effect {best['effect']:.3f} [{best['low']:.3f} to {best['high']:.3f}], total "
        f"effect {found.total.mean():.2f}, {len(found.units)} pairs)."
    )
    return sentence, [mediated_section(subject, found, table), *beside_sections(subject, table, data, reference)]


def mediated_section(subject: Subject, found: Mediation, table: pd.DataFrame) -> probe.Section:
    """The heads with the largest indirect effects."""
    best = table.sort_values("effect", ascending=False, kind="stable")[:SHOWN]
    shown = best.assign(head=head_names(zip(best["layer"], best["head"], strict=True)))
    return probe.Section(
        "Which heads mediate",
        (
            f"Of {found.of} pairs of continuations, the pronoun moves {found.expected} as the stereotype has it; heads "
            f"are measured on {len(found.units)}. Swapping the pronoun multiplies y by {1 + found.total.mean():.2f} "
            "in the mean.",
        ),
        (
            probe.Table("mediators", table, "Every head.", shown=False),
            probe.Plot(
                "mediators_map",
                "mediators",
                "heat",
                "head",
                "layer",
                f"Indirect effect of every head of {subject.name}.",
                value="effect",
            ),
            probe.Table(
                "mediators_best",
                shown[["head", "effect", "low", "high"]],
                "The largest indirect effects; intervals over pairs.",
                digits=3,
            ),
        ),
    )


def beside_sections(subject: Subject, table: pd.DataFrame, data: Path, reference: str) -> list[probe.Section]:
    """Beside what was published of this model, if anything was."""
    import pandas as pd

    from probe.causal.mediation import beside
    from probe.causal.mediation import reference as released
    from probe.scores.published import MEDIATORS

    parts, text = [], []
    part = data.name.rpartition(".")[2]
    if known := MEDIATORS.get(subject.name, {}).get(part):
        published = pd.DataFrame([(*h, v) for h, v in known.items()], columns=["layer", "head", "published"])
        joined, _ = beside(table, published)
        parts.append(probe.Table("published_mediators", joined, f"The paper's heads ({part}).", digits=3))
    if reference:
        joined, r = beside(table, released(reference))
        text.append(f"Over the {len(joined)} heads of the authors' release, Pearson's r of the two columns is {r:.2f}.")
        parts.append(probe.Table("released_mediators", joined, "The strongest heads of the release.", digits=3))
    return [probe.Section("Published beside measured", tuple(text), tuple(parts))] if parts else []
