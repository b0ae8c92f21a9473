"""Random strings that come again after gaps of random length: what induction heads are trained and measured on.

    corpus = Repeats()                        # 64 symbols; prompts of 64 tokens, each about a string of 8 to 18
    corpus.batch(random.Random(0), 32)        # [ids (32, 64)]
    corpus.draw(random.Random(1)).copies      # where the copies of one prompt's string begin

Nothing of a string can be told when it comes first; of a later copy, all but its first symbol. And no fixed distance
leads from a token to what followed it before: strings and gaps vary in length.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle, islice
from typing import Any

import torch
from torch import Tensor

from probe.errors import ProbeError
from probe.models.tokenizer import BEGIN_ID, SPECIAL, word_tokenizer

EVALUATION_PROMPTS = 64


@dataclass(frozen=True)
class Repeated:
    """One prompt. ids: <bos>, then gaps and copies of one string in turn. copies: where each whole copy begins.
    size: how many symbols the string has.
    """

    ids: tuple[int, ...]
    copies: tuple[int, ...]
    size: int


class Repeats:
    """A corpus (`probe.models.corpora.Corpus`) of such prompts; a string's symbols are all different, and none of them
    is in its prompt's gaps.

    symbols: how many there are. longest: tokens of each prompt, <bos> included. sizes, gaps: the shortest and longest
    string, and gap, in tokens. Raises ProbeError where a prompt would not hold two copies.
    """

    def __init__(
        self,
        *,
        symbols: int = 64,
        longest: int = 64,
        sizes: tuple[int, int] = (8, 18),
        gaps: tuple[int, int] = (0, 12),
    ) -> None:
        needed = 1 + 2 * (gaps[1] + sizes[1])
        if longest < needed:
            raise ProbeError(
                f"longest={longest} tokens do not hold two copies of a string of {sizes[1]} with gaps of {gaps[1]}; "
                f"they need {needed}."
            )
        if symbols <= sizes[1]:
            raise ProbeError(f"symbols={symbols} leave none for the gaps beside a string of {sizes[1]}.")
        self.symbols, self.longest, self.sizes, self.gaps = symbols, longest, sizes, gaps

    @property
    def tokenizer(self) -> Any:
        """One that knows the symbols, as s00, s01, ..."""
        return word_tokenizer([f"s{n:02d}" for n in range(self.symbols)])

    def draw(self, rng: random.Random) -> Repeated:
        """One prompt."""
        drawn = rng.sample(range(len(SPECIAL), len(SPECIAL) + self.symbols), self.symbols)
        size = rng.randint(*self.sizes)
        string, filler = drawn[:size], cycle(drawn[size:])
        ids, copies = [BEGIN_ID], []
        while len(ids) < self.longest:
            ids += islice(filler, rng.randint(*self.gaps))
            copies.append(len(ids))
            ids += string
        whole = tuple(at for at in copies if at + size <= self.longest)
        return Repeated(tuple(ids[: self.longest]), whole, size)

    def batch(self, rng: random.Random, size: int, step: int = 0) -> list[Tensor]:
        """`size` prompts, as one tensor of ids (size, longest)."""
        return [torch.tensor([self.draw(rng).ids for _ in range(size)])]

    def held_out(self, n: int) -> list[Repeated]:
        """The first `n` prompts of a stream of random numbers that training never draws from; always the same."""
        rng = random.Random("evaluation")
        return [self.draw(rng) for _ in range(n)]

    @cached_property
    def evaluation(self) -> list[Tensor]:
        """Held-out prompts as one tensor."""
        return [torch.tensor([prompt.ids for prompt in self.held_out(EVALUATION_PROMPTS)])]

    @property
    def identity(self) -> dict[str, Any]:
        """The sizes; a sample's hash stands for the generator itself."""
        sample = hashlib.sha256(repr([t.tolist() for t in self.evaluation]).encode()).hexdigest()
        sizes = {"symbols": self.symbols, "longest": self.longest, "sizes": [*self.sizes], "gaps": [*self.gaps]}
        return {"name": "random strings, repeated", "language": "synthetic", **sizes, "evaluation_sha256": sample}
