"""Induction heads of a trained model, found by where they look and confirmed by what copying costs without them.

Random words of the model's own vocabulary, in strings that come again after gaps of random length: nothing but the
prompt itself tells how a later copy goes on (Olsson et al. 2022; gaps, so that no fixed offset does it).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from torch.nn import functional as F

from probe import stats
from probe.capture.batch import copies
from probe.capture.edit import Edit
from probe.causal.controls import mean_edits, random_groups
from probe.causal.sweep import Array, Head, Heads, highest, mean_z
from probe.errors import ProbeError
from probe.models.repeats import Repeated, Repeats
from probe.models.tokenizer import SPECIAL
from probe.scores.induction import induction_targets
from probe.scores.measure import measure
from probe.subject import Subject
from probe.tty import progress

SYMBOLS = 256  # different words in all strings
TOKENS, SIZES, GAPS = 48, (6, 10), (0, 6)
MARKERS = "Ġ▁"  # of a space before the word, in the names of byte-pair and unigram tokens
PERCENTILE = 95


@dataclass(frozen=True)
class Copying:
    """What a model's copying costs. strings: prompts. first, later: mean loss (nats) on a string's words after its
    first one, where it comes first and in its later copies. without: later for each group of heads, minus `later`, each
    string's mean: (group, string).
    """

    strings: tuple[Repeated, ...]
    first: float
    later: float
    without: Array


@dataclass(frozen=True)
class Confirmed:
    """heads: those with the highest scores on the strings that pick. scores: (layer, head) on the others. cost: one row
    for the best head, the best 2, 4, ... and all of them: heads (how many), lost (nats per word of a later copy without
    them, on the other strings), low, high (95 % interval over strings). random: lost for random groups of as many
    heads, matched on output norm; limit: their 95th percentile. first, later: losses with all heads.
    """

    heads: tuple[Head, ...]
    scores: Array
    chance: float
    cost: pd.DataFrame
    random: Array
    limit: float
    first: float
    later: float
    n_strings: int

    @property
    def lost(self) -> float:
        """Nats a word of a later copy costs more without all of the heads."""
        return float(self.cost["lost"].iloc[-1])

    @property
    def passed(self) -> bool:
        """Whether that is more than 95 % of the random groups cost."""
        return self.lost > self.limit


def own_strings(subject: Subject, n: int, *, seed: int = 0) -> list[Repeated]:
    """Prompts of the model's own words: lower-case ones that are one token, with a space before where tokens have one;
    the most and the least frequent quarter (by their place in the vocabulary) left out. What the tokenizer puts before
    a text stands before each.

    Raises ProbeError for a vocabulary with too few words.
    """
    words = _words(subject)
    if len(words) < SYMBOLS:
        raise ProbeError(f"{subject.name} knows {len(words)} whole words that are one token; {SYMBOLS} are needed.")
    rng = random.Random(seed)
    chosen = rng.sample(words, SYMBOLS)
    encoded = subject.encode(subject.tokenizer.decode([chosen[0]]).strip())
    before = encoded.ids[:1] if encoded.spans[0] is None else ()
    corpus = Repeats(symbols=SYMBOLS, longest=TOKENS + 1, sizes=SIZES, gaps=GAPS)
    found = []
    for _ in range(n):
        drawn = corpus.draw(rng)
        ids = tuple(chosen[i - len(SPECIAL)] for i in drawn.ids[1:])
        found.append(Repeated((*before, *ids), tuple(c - 1 + len(before) for c in drawn.copies), drawn.size))
    return found


def _words(subject: Subject) -> list[int]:
    """Ids of whole words, frequent ones first, without the first and the last quarter."""
    special = set(subject.tokenizer.all_special_ids)
    named = sorted((i, name) for name, i in subject.tokenizer.get_vocab().items() if i >= len(SPECIAL))
    bare = [(i, name, name.lstrip(MARKERS)) for i, name in named if i not in special]
    plain = [(i, name) for i, name, word in bare if word.isascii() and word.isalpha() and word.islower()]
    marked = [i for i, name in plain if name[0] in MARKERS and len(name) > 3]
    found = marked or [i for i, _ in plain]
    return found[len(found) // 4 : len(found) - len(found) // 4] if marked else found


def copying(subject: Subject, strings: Sequence[Repeated], groups: Sequence[Heads], *, quiet: bool = True) -> Copying:
    """Losses on the strings, with all heads and with each group's z replaced by its mean over all their positions.

    Raises ProbeError for a model that does not predict next tokens.
    """
    if not (subject.is_causal and subject.has_logits):
        raise ProbeError(f"{subject.name} does not predict next tokens.")
    mean = mean_z(subject, [s.ids for s in strings])
    sets: list[Heads] = [(), *groups]
    first, later = [], np.zeros((len(sets), len(strings)))
    for n, string in enumerate(progress(list(strings), f"copies in {subject.name}", quiet=quiet)):
        for numbers in copies(len(sets), len(string.ids)):
            some = [sets[i] for i in numbers]
            losses = _losses(subject, string, some, mean_edits(some, mean))
            later[numbers, n] = losses[:, _places(string, later=True)].mean(1)
            if numbers.start == 0:
                first.append(losses[0, _places(string, later=False)].mean())
    return Copying(tuple(strings), float(np.mean(first)), float(later[0].mean()), later[1:] - later[0])


def _losses(subject: Subject, string: Repeated, groups: Sequence[Heads], edits: Sequence[Edit]) -> Array:
    """(group, pos - 1) nats: place p is the loss on token p + 1."""
    ids = [string.ids] * len(groups)
    ((batch, seen),) = subject.captured(ids, ["logits"], edits=edits, batch_size=len(ids))
    target = batch.inputs["input_ids"][:, 1:]
    loss = F.cross_entropy(seen["logits"][:, :-1].float().transpose(1, 2), target, reduction="none")
    return np.asarray(loss.double().cpu().numpy())


def _places(string: Repeated, *, later: bool) -> list[int]:
    """Where the losses lie on a string's words after its first, in later copies or in the first one."""
    copies = string.copies[1:] if later else string.copies[:1]
    return [at - 1 for start in copies for at in range(start + 1, start + string.size)]


def output_norms(subject: Subject, strings: Sequence[Repeated]) -> Array:
    """(layer, head): the mean length of what each head writes at words of later copies."""
    rows = [_places(s, later=True)[:8] for s in strings]
    total = np.zeros((subject.n_layers, subject.n_heads))
    for _, seen in subject.captured([s.ids for s in strings], ["result"], rows=rows, batch_size=8):
        for layer in range(subject.n_layers):
            total[layer] += seen["result", layer].float().norm(dim=-1).mean(1).sum(0).cpu().numpy()
    return np.asarray(total / len(strings))


def confirm(
    subject: Subject, *, heads: int = 8, strings: int = 8, groups: int = 100, seed: int = 0, quiet: bool = True
) -> Confirmed:
    """Find the heads with the highest prefix-matching scores on half of the strings; on the other half, what the
    copies cost without them, beside random groups of heads that write as much.

    heads: how many. strings: in each half. groups: random ones, at least one. seed: draws strings and groups.
    """
    drawn = own_strings(subject, 2 * strings, seed=seed)
    pick, test = (induction_targets([s.ids for s in half]) for half in (drawn[:strings], drawn[strings:]))
    by_score = measure(subject, pick, quiet=quiet)["target"].mean(-1)
    picked = tuple(highest(by_score, heads))
    measured = measure(subject, test, quiet=quiet)
    compared = random_groups(subject, picked, output_norms(subject, drawn[:strings]), groups, seed)
    sizes = [*(2**n for n in range(heads.bit_length()) if 2**n < heads), heads]
    nested = [picked[:k] for k in sizes]
    cost = copying(subject, drawn[strings:], [*nested, *compared], quiet=quiet)
    names = [str(n) for n in range(strings)]
    low, high = stats.interval(stats.by_cluster(cost.without[: len(sizes)], names), seed=seed, shares=False)
    lost = cost.without.mean(-1)
    table = pd.DataFrame({"heads": sizes, "lost": lost[: len(sizes)], "low": low, "high": high})
    return Confirmed(
        picked,
        np.asarray(measured["target"].mean(-1)),
        float(measured["chance"].mean()),
        table,
        lost[len(sizes) :],
        float(np.percentile(lost[len(sizes) :], PERCENTILE)),
        cost.first,
        cost.later,
        strings,
    )
