"""One sentence followed through a model: characters, tokens, ids, embeddings, blocks, logits, and the word drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import probe

if TYPE_CHECKING:
    import pandas as pd

    from probe.data.cloze import Cloze
    from probe.runner.findings import Findings, Section
    from probe.scores.continuations import Next
    from probe.subject import Subject

TEXTS = {
    "English": "The cat didn't jump onto the table because it was too tired.",
    "two words": "Artificial Intelligence",
    "the same in Chinese": "人工智能",
    "a new word": "ChatGPT",
    "Chinese": "那只猫没跳上桌子因为它太累了",
    "code": "for i in range(10):\n    total += x[i]",
    "emoji": "I 💛 🐈 👩‍💻!",
}
RUNS = {"quick": (8, 4), "full": (50, 10)}  # continuations, tokens of each


@probe.study(models=("smollm2", "tiny", "minilm"))
def pipeline(subject: Subject, *, profile: str = "quick", seed: int = 0) -> Findings:
    """What happens to a sentence between text and the next word?

    The sentence stops before the word that decides it. The tiny GPT gets one of its own language; an encoder without a
    language-model head is followed up to its hidden states.
    """
    from probe.data.cloze import ENGLISH, SYNTHETIC
    from probe.runner.findings import Findings
    from probe.scores.continuations import next_token
    from probe.scores.stream import stream

    cloze = SYNTHETIC if subject.language == "synthetic" else ENGLISH
    text = cloze.text
    moved = stream(subject, text)
    after = next_token(subject, text) if subject.has_logits and subject.is_causal else None
    return Findings(
        answer=_answer(subject, text, moved, after),
        sections=(
            _tokens(subject, text),
            _embeddings(subject, text),
            _blocks(subject, moved),
            _no_next_word(subject) if after is None else _next_word(subject, cloze, after),
            _characters(subject),
            _contexts(subject, seed),
            *([] if after is None else [_sampling(subject, text, after, profile, seed)]),
        ),
        method=(
            "Every number is read from passes of the unchanged model. Norms are Euclidean; probabilities are a softmax "
            "over the whole vocabulary, in double precision.",
            "Pieces are cut by the character offsets that the tokenizer reports, not by decoding ids one at a time, "
            "which would show a part of a character as a replacement sign.",
        ),
        notes=("One sentence shows what happens, not how often: only the cosines of words in contexts are means.",),
    )


def _answer(subject: Subject, text: str, moved: pd.DataFrame, after: Next | None) -> str:
    from probe.models.distribution import entropy

    n = len(subject.encode(text))
    start = (
        f"{len(text)} characters become {n} tokens, each a vector of {subject.d_model} numbers, which "
        f"{subject.n_layers} blocks change in turn"
    )
    if after is None:
        return (
            f"{start}, each leaving a mean cosine of {moved['cosine'].mean():.2f} with what was there; {subject.name} "
            "ends there, an encoder that has no next word to give."
        )
    return (
        f"{start}; the last vector gives each of {len(after.logits):,} tokens a probability, most to “{after.word}” "
        f"({after.top['probability'][0]:.3f}; entropy {float(entropy(after.logits.softmax(-1))):.2f} nats), which "
        f"leads from block {after.leads_from} of {subject.n_layers} on; chance then picks one."
    )


def _tokens(subject: Subject, text: str) -> Section:
    from probe.runner.findings import Section, Table
    from probe.tokens.counts import token_table

    table = token_table(subject.encode(text))
    added = int((table["characters"] == "added").sum())
    by = f", {added} of them added by the tokenizer" if added else ""
    return Section(
        "Text to tokens to ids",
        (
            f"“{text}” has {len(text)} characters and becomes {len(table)} tokens{by}, each an id below "
            f"{len(subject.tokenizer):,}. The model sees the ids alone.",
        ),
        (
            Table(
                "tokens",
                table.rename(columns={"name": "name in the vocabulary", "text": "stands for"}),
                "Each token of the sentence. Characters: the first, and the one after the last.",
            ),
        ),
    )


def _embeddings(subject: Subject, text: str) -> Section:
    from probe.runner.findings import Section, Table
    from probe.scores.stream import embeddings

    table = embeddings(subject, text)
    most = table["changed"].max()
    what = "Nothing else comes in before the first block: its position does so inside attention."
    if most > 0:
        what = (
            "Before the first block its position comes in (in BERT-type models also a segment, and a norm over the "
            f"sum), which changes it by a vector of norm {most:.2f} at most."
        )
    return Section(
        "Ids to vectors",
        (f"Each id picks a row of {subject.d_model} numbers, its embedding, the same wherever it stands. {what}",),
        (Table("embeddings", table, "Norms of the embedding, of what the first block gets, and of their difference."),),
    )


def _blocks(subject: Subject, moved: pd.DataFrame) -> Section:
    from probe.runner.findings import Plot, Section, Table
    from probe.scores.stream import norms

    moved = moved.assign(block=moved["layer"] + 1)
    last = moved[moved["position"] == moved["position"].max()].reset_index(drop=True)
    first = moved[moved["position"] == 0].reset_index(drop=True)
    table = last[["block", "before", "attention", "mlp", "after", "cosine"]].assign(first=first["after"])
    most = last.loc[last["cosine"].idxmin()]
    ratio = float((first["after"] / last["after"]).max())
    return Section(
        "Blocks",
        (
            "Each block reads the residual stream and writes to it twice: attention brings in other positions, the MLP "
            f"works on each alone. The last position's stream turns most in block {most['block']:.0f} (cosine "
            f"{most['cosine']:.3f} with what it was). The first position's is up to {ratio:.1f} times as long.",
        ),
        (
            Table(
                "stream",
                table.rename(columns={"first": "first position, after"}),
                "Norms at the last position: the stream before each block, what attention and the MLP changed (in "
                "post-norm models the norm's part included), the stream after; its cosine with the stream before.",
            ),
            Table("stream_lines", norms(moved), "As drawn.", shown=False),
            Plot(
                "stream_by_block",
                "stream_lines",
                "lines",
                "block",
                "norm",
                f"The residual stream of {subject.name} after each block, and what each half of a block changed.",
                by="what",
                log="y",
                y_label="Euclidean norm",
            ),
        ),
    )


def _no_next_word(subject: Subject) -> Section:
    from probe.runner.findings import Section

    why = "its tokens see those after them" if subject.has_logits else "it has no language-model head"
    text = (
        f"Untestable here: {subject.name} predicts no next word, because {why}. What leaves its last block is a vector "
        "for every token. The cloze and sampling are measured on the other models."
    )
    return Section("Logits and the next word", (text,))


def _next_word(subject: Subject, cloze: Cloze, after: Next) -> Section:
    from probe.runner.findings import Plot, Section, Table
    from probe.scores.continuations import token_text

    token, half = after.word, max(1, len(after.lens) // 2)
    names = [token_text(subject.tokenizer, i) for i in after.lens["likeliest"]]
    columns = ["block", "rank", "probability", "likeliest", "its probability", "entropy"]
    lens = after.lens.rename(columns={"likeliest_probability": "its probability"})
    lens = lens.assign(block=lens["layer"] + 1, likeliest=names)[columns]
    words, told = _fitting(subject, cloze)
    return Section(
        "Logits and the next word",
        (
            f"The last position's vector, normed and multiplied by the unembedding, gives “{token}” the highest of "
            f"{len(after.logits):,} logits. Read in the same way after earlier blocks (the logit lens), it has rank "
            f"{after.lens['rank'][half - 1]:,} after block {half}, and leads from block {after.leads_from} on.",
            told,
        ),
        (
            Table(
                "next_tokens",
                after.top,
                f"The ten likeliest tokens after “{cloze.text}”, together {after.top['probability'].sum():.3f}.",
            ),
            words,
            Table("lens", lens, f"The logit lens at the last position: rank and probability of “{token}”.", 4),
            Plot(
                "lens_by_block",
                "lens",
                "lines",
                "block",
                "probability",
                f"Probability of “{token}” if the stream went from a block straight to the final norm; one sentence.",
            ),
        ),
    )


def _fitting(subject: Subject, cloze: Cloze) -> tuple[probe.Table, str]:
    """The probability of words that fit one candidate or the other, and what there is to say about it."""
    from probe.runner.findings import Table
    from probe.scores.continuations import word_probabilities

    fits = {word: candidate for candidate, words in cloze.fits.items() for word in words}
    found = word_probabilities(subject, {"it": cloze.text, **cloze.nouns}, list(fits))
    found.insert(1, "fits", list(fits.values()))
    sums = found.groupby("fits", sort=False)[["it", *cloze.nouns]].sum()
    (one, first), (other, second) = ((candidate, len(words)) for candidate, words in cloze.fits.items())
    each = "; ".join(f"after “{noun} was too” {a:.3f} and {b:.3f}" for noun, (a, b) in sums.items())
    told = f"The {first} words that fit {one} and the {second} that fit {other} have, together: {each}."
    if cloze.nouns:
        told += " The nouns are the control: what the model expects of either without a pronoun."
    else:
        told += " In this language no other word can follow, and each of them does one time in ten."
    return Table("cloze", found, "Probability of whole words after the sentence; tokens: of a word.", 4), told


def _characters(subject: Subject) -> Section:
    from probe.runner.findings import Section, Table
    from probe.tokens.counts import token_counts

    synthetic = subject.language == "synthetic"
    own = {"its own language": "the cat did not reach the shelf because it was too tired : cat ."} if synthetic else {}
    counts = token_counts(subject.tokenizer, own | TEXTS)
    unknown, whole = int(counts["unknown"].sum()), int(counts["whole"].sum())
    told = f"Cut at the tokens, {whole} of {len(counts)} texts come together again character by character. "
    if synthetic:
        told += (
            f"This tokenizer knows {len(subject.tokenizer):,} tokens, whole words all of them: of the other texts "
            f"{unknown} words are <unk>, one token for anything, so their numbers say nothing about the texts."
        )
    elif unknown:
        told += f"{unknown} tokens are unknown to the vocabulary: the model sees that something was there, not what."
    else:
        told += "No token is unknown: what has none of its own is written in bytes, several to a character."
    return Section(
        "Tokens and characters",
        (told,),
        (
            Table(
                "counts",
                counts.drop(columns=["text", "whole"]).rename(columns={"per_character": "tokens per character"}),
                "Tokens (added ones left out), characters and UTF-8 bytes. ␣ is a space, ↵ a line end, ×n a character "
                "that takes n tokens.",
                2,
            ),
        ),
    )


def _contexts(subject: Subject, seed: int) -> Section:
    from probe.data import senses
    from probe.runner.findings import Plot, Section, Table
    from probe.scores.contexts import by_kind, similarity

    synthetic = subject.language == "synthetic"
    found = similarity(subject, senses.synthetic() if synthetic else senses.english())
    drawn = by_kind(found, seed=seed)
    wide = drawn.pivot(index="blocks", columns="kind", values="cosine")
    same, different, other = (wide[kind] for kind in (senses.SAME_SENSE, senses.OTHER_SENSE, senses.OTHER_WORD))
    at = int((same - different).idxmax())
    n = found["word"].nunique()
    what = "scenes, at the colon after which the antecedent is named" if synthetic else "words of two senses"
    told = [
        f"A word's embedding is the same everywhere; its context comes in block by block. For {n} {what}, uses in two "
        f"senses differ most from uses in one after {at} blocks: mean cosine {different[at]:.3f} and {same[at]:.3f}; "
        f"another word in the same context has {other[at]:.3f}."
    ]
    if other.iloc[-1] > same.iloc[-1]:
        told.append(
            f"After the last block another word in the same context is nearer ({other.iloc[-1]:.3f}) than the same "
            f"word in another ({same.iloc[-1]:.3f}): there is more of the context in it than of the word."
        )
    parts = []
    if not synthetic:
        text, *parts = _after_the_word(subject)
        told.append(text)
    return Section(
        "One word in two contexts",
        tuple(told),
        (
            Table("contexts", drawn, "As drawn.", shown=False),
            Plot(
                "cosine_by_block",
                "contexts",
                "lines",
                "blocks",
                "cosine",
                f"Cosine of the residual stream at one word in two texts: mean and 95 % interval (bootstrap) over {n} "
                f"{what}.",
                by="kind",
                low="low",
                high="high",
                x_label="blocks passed",
            ),
            *parts,
        ),
    )


def _after_the_word(subject: Subject) -> tuple[str, probe.Table]:
    """A word whose deciding neighbour comes after it, which a causal model cannot have read."""
    from probe.data import senses
    from probe.runner.findings import Table
    from probe.scores.contexts import similarity

    compared = senses.neighbours()
    wide = similarity(subject, compared).pivot(index="blocks", columns="kind", values="cosine")
    wide = wide[[c.kind for c in compared]].rename_axis(columns=None)
    why = (
        "a decoder has not read “keynote” or “pie” when it holds “apple”, so the two are the same"
        if subject.is_causal
        else "an encoder has read what comes after"
    )
    text = (
        f"In “apple keynote” and “apple pie” the deciding word comes after. The lowest cosine at “apple” is "
        f"{wide.iloc[:, 0].min():.3f}: {why}."
    )
    every = max(1, (len(wide) - 1) // 6)
    shown = wide.iloc[::every].reset_index(names="blocks passed")
    return text, Table("after_the_word", shown, "Cosine at the first word of each pair (“the” before it).")


def _sampling(subject: Subject, text: str, after: Next, profile: str, seed: int) -> Section:
    from probe.runner.findings import Plot, Section, Table
    from probe.scores.continuations import SETTINGS, TEMPERATURES, by_temperature, sampled

    runs, tokens = RUNS[profile]
    found = sampled(subject, text, SETTINGS, runs=runs, tokens=tokens, seed=seed)
    entropies = ", ".join(f"{e:.2f} at {t:g}" for t, e in zip(TEMPERATURES, found["entropy"], strict=False))
    by = found.set_index("setting")
    again = int(found["repeated"].sum())
    return Section(
        "Sampling",
        (
            "Temperature divides the logits before the softmax. The entropy of what the next token is drawn from, in "
            f"nats: {entropies}. Top-k keeps so many tokens, top-p as many as it takes to reach p: "
            f"{by['kept']['temperature 1, top-p 0.9']} for 0.9 here, of {len(after.logits):,}.",
            f"{runs} continuations of {tokens} tokens make {by['distinct']['temperature 0']} text at temperature 0 and "
            f"{by['distinct']['temperature 1.5']} different ones at 1.5. Chance comes from the seed alone: drawn again "
            f"with the same one, all {runs} came out the same in {again} of {len(found)} settings.",
        ),
        (
            Table(
                "sampling",
                found.drop(columns=["temperature", "top_k", "top_p"]),
                "Entropy (nats) and number of the tokens that the first is drawn from; different texts among "
                f"{runs}, of {tokens} tokens; whether all came out the same again; the first one.",
            ),
            Table("ranks", by_temperature(after.logits), "As drawn.", shown=False),
            Plot(
                "temperature",
                "ranks",
                "lines",
                "rank",
                "probability",
                "Probability of the likeliest next tokens at each temperature, without top-k or top-p.",
                by="temperature",
                log="y",
            ),
        ),
    )
