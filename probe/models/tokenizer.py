"""Tokenizers of the tiny GPT: words of the synthetic language; for any other text characters, or byte pairs.

All of them put <bos> before a prompt, have the same three special tokens, say which characters each token stands for,
and are saved as a tokenizer.json.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from probe.errors import ProbeError

PAD, BEGIN, UNKNOWN = SPECIAL = "<pad>", "<bos>", "<unk>"
PAD_ID, BEGIN_ID, UNKNOWN_ID = 0, 1, 2
SMALLEST_BYTE_PAIRS = len(SPECIAL) + 256


def word_tokenizer(words: Sequence[str]) -> PreTrainedTokenizerFast:
    """A tokenizer that knows exactly `words`, and cuts at spaces and punctuation."""
    tokenizer = _closed(words)
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return _dress(tokenizer)


def character_tokenizer(text: str) -> PreTrainedTokenizerFast:
    """One token for each character (code point) that is in `text`, spaces and line ends included."""
    tokenizer = _closed(sorted(set(text)))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return _dress(tokenizer)


def byte_pair_tokenizer(text: str, vocab_size: int = 1024) -> PreTrainedTokenizerFast:
    """Byte-level byte-pair encoding (Sennrich et al. 2016; GPT-2's cut into words) learned from `text`.

    vocab_size: at most so many tokens, of which 256 are the bytes: every text can be read, no token is unknown.
    Raises ProbeError where that leaves no room for them.
    """
    if vocab_size < SMALLEST_BYTE_PAIRS:
        raise ProbeError(
            f"a vocabulary of {vocab_size} is too small for byte pairs: 256 bytes and {len(SPECIAL)} special tokens "
            f"need {SMALLEST_BYTE_PAIRS} at least."
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(pieces(text), trainer)
    return _dress(_begun(tokenizer))


def pieces(text: str) -> list[str]:
    """The text cut before line ends, where no token of these tokenizers crosses: its tokens are those of the pieces.

    Byte pairs may join several spaces and line ends, so the cuts are at the first of them only.
    """
    return re.split(r"(?<=\S)(?=\n)", text)


def from_file(path: Path) -> PreTrainedTokenizerFast:
    """The tokenizer saved in a tokenizer.json."""
    return _dress(Tokenizer.from_file(str(path)))


def _closed(vocabulary: Sequence[str]) -> Tokenizer:
    """A closed vocabulary after the special tokens: each piece is a token of its own, or unknown."""
    ids = {piece: i for i, piece in enumerate((*SPECIAL, *vocabulary))}
    return _begun(Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN)))


def _begun(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer, with <bos> before each prompt."""
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BEGIN} $A", special_tokens=[(BEGIN, BEGIN_ID)])
    return tokenizer


def _dress(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token=UNKNOWN, bos_token=BEGIN, pad_token=PAD, padding_side="right"
    )
