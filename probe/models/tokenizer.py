"""Word tokenizer of the synthetic language: one token a word or punctuation mark, nothing else to learn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

UNKNOWN, BEGIN, PAD = "<unk>", "<bos>", "<pad>"


def word_tokenizer(words: Sequence[str]) -> PreTrainedTokenizerFast:
    """A tokenizer that knows exactly `words`, begins each prompt with <bos>, and cuts at spaces and punctuation."""
    vocabulary = {w: i for i, w in enumerate((PAD, BEGIN, UNKNOWN, *words))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", special_tokens=[(BEGIN, vocabulary[BEGIN])]
    )
    return _dress(tokenizer)


def from_file(path: Path) -> PreTrainedTokenizerFast:
    """The tokenizer saved in a tokenizer.json."""
    return _dress(Tokenizer.from_file(str(path)))


def _dress(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token=UNKNOWN, bos_token=BEGIN, pad_token=PAD, padding_side="right"
    )
