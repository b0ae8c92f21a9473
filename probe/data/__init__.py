"""Texts with labels, before any tokenizer: our own sentences, the synthetic language, public files.

probe.data.coreference()                    our own balanced sentences
probe.data.gap("gap-validation.tsv")        GAP, from the user's file
probe.data.language.dataset("facts")        the synthetic language of the tiny GPT: five tasks, each with its data set
probe.data.previous_token(texts)            every token looks at the one before
probe.data.first_token(texts)               every token looks at position 0
probe.data.Dataset, Labelled, Span          to bring one's own
"""

from probe.data import language
from probe.data.coreference import coreference
from probe.data.gap import gap
from probe.data.position import first_token, previous_token
from probe.data.texts import Dataset, Labelled, Question, Span, Text

__all__ = [
    "Dataset",
    "Labelled",
    "Question",
    "Span",
    "Text",
    "coreference",
    "first_token",
    "gap",
    "language",
    "previous_token",
]
