"""What a planted model is written from: what its residual stream holds, and what each of its heads matches and moves.

The stream is cut into named parts that do not overlap. Four are always there: `token` and `position`, one place for
each, where the embeddings write a 1; `constant`, a single place where every token has a 1; and `answer`, one place for
each token, which only heads write and the unembedding reads. A circuit may add parts of its own: features of words,
written by the embedding, and parts that a head writes for another to read.

A head is two lists. Its matches say where it looks: the score of a query and a key is the sum of the strengths of all
matches that find one of their pairs in the two. Its moves say what it copies from there: one part of the key's stream
into another part of the query's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from probe.data.language import WORDS

POSITIONS = 128  # the longest prompt
BEGIN = "<bos>"
VOCABULARY = ("<pad>", BEGIN, "<unk>", *WORDS)  # as in `word_tokenizer(WORDS)`
TOKENS = len(VOCABULARY)

Pairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Match:
    """One term of a score: `strength` where the query's stream has place i of `query`, and the key's place j of `key`.

    pairs: the (i, j) that match; None: equal places. strength: each 1 is enough to outweigh all keys without it
    (`weights.SHARPNESS`); a negative one keeps the head from looking there.
    """

    query: str
    key: str
    strength: float
    pairs: Pairs | None = None


@dataclass(frozen=True)
class Move:
    """What a head copies: place i of the key's `source` to place j of the query's `into`. pairs: as in `Match`."""

    source: str
    into: str
    pairs: Pairs | None = None


@dataclass(frozen=True)
class Head:
    """One written head. does: its name in `planted.HEADS`."""

    does: str
    layer: int
    head: int
    matches: tuple[Match, ...]
    moves: tuple[Move, ...]


@dataclass(frozen=True)
class Circuit:
    """A planted model. what: one line for `probe models`. features: part -> the words that have each of its places.
    parts: those that heads write, with their widths.
    """

    what: str
    heads: tuple[Head, ...]
    features: Mapping[str, Sequence[Sequence[str]]] = field(default_factory=dict)
    parts: Mapping[str, int] = field(default_factory=dict)

    @property
    def widths(self) -> dict[str, int]:
        """Part -> width, in the order in which they lie in the stream."""
        own = {name: len(places) for name, places in self.features.items()}
        return {"token": TOKENS, "position": POSITIONS, "constant": 1, **own, **self.parts, "answer": TOKENS}

    @property
    def n_layers(self) -> int:
        """Layers that hold its heads."""
        return 1 + max(head.layer for head in self.heads)


def place(word: str) -> int:
    """The place of a word in `token` and `answer`: its id."""
    return VOCABULARY.index(word)


# what several heads share ---------------------------------------------------------------------------------------------

# All tokens look for position 0, where a head rests when it finds nothing ...
REST = Match("constant", "position", 1.0, ((0, 0),))
# ... and for what it is there to find, which counts twice.
PREVIOUS = Match("position", "position", 2.0, tuple((query, query - 1) for query in range(1, POSITIONS)))
TWO_BEFORE = Match("position", "position", 2.0, tuple((query, query - 2) for query in range(2, POSITIONS)))
SAME_TOKEN = Match("token", "token", 2.0)
# A token is always the same as itself; a head that is to find another must not look there.
NOT_ITSELF = Match("position", "position", -4.0)

COPY = Move("token", "answer")  # of a resting head, <bos> then
SAY_NOTHING = Move("position", "answer", ((0, place(BEGIN)),))  # the same for a head that copies something else


def copy_of(words: Iterable[str]) -> Move:
    """`COPY` of some words alone, which takes less of a head's width."""
    return Move("token", "answer", tuple((place(word), place(word)) for word in words))
