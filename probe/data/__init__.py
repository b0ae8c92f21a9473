"""Texts with labels, before any tokenizer: our own sentences, the synthetic language, public files.

probe.data.coreference()                    our own balanced sentences
probe.data.asked_names()                    sentences that end so that a causal model names one of two people
probe.data.ioi(), syntax("nsubj")           sentences with roles: indirect objects, grammatical relations
probe.data.buried(5)                        a list of facts and a question about one, wherever it lies
probe.data.key_values(10)                   the same as JSON; key_values_file(path) reads Liu et al.'s files
probe.data.needle()                         one fact in running text, at lengths and depths
probe.data.gap("gap-validation.tsv")        GAP, from the user's file; so with winobias("pro_stereotyped_type1.txt.dev")
probe.data.blimp("principle_A_c_command.jsonl")   BLiMP's agreement of reflexives and verbs
probe.data.language.dataset("facts")        the synthetic language of the tiny GPT: five tasks, each with its data set
probe.data.PLAIN                            sentences that ask nothing
probe.data.previous_token(texts)            every token looks at the one before
probe.data.first_token(texts)               every token looks at position 0; so with next_token, own_token, delimiters,
                                            duplicate_token, after_duplicate and fixed_offset(texts, -3)
probe.data.Dataset, Labelled, Span          to bring one's own
"""

from probe.data import language
from probe.data.asked_names import asked_names
from probe.data.attractors import attractors
from probe.data.blimp import blimp
from probe.data.buried import buried
from probe.data.coreference import coreference
from probe.data.gap import gap
from probe.data.ioi import ioi
from probe.data.key_values import key_values, key_values_file
from probe.data.needle import needle
from probe.data.plain import PLAIN
from probe.data.position import (
    after_duplicate,
    delimiters,
    duplicate_token,
    first_token,
    fixed_offset,
    next_token,
    own_token,
    previous_token,
)
from probe.data.syntax import syntax
from probe.data.texts import Dataset, Labelled, Question, Span, Text
from probe.data.winobias import winobias, winobias_continuations

__all__ = [
    "PLAIN",
    "Dataset",
    "Labelled",
    "Question",
    "Span",
    "Text",
    "after_duplicate",
    "asked_names",
    "attractors",
    "blimp",
    "buried",
    "coreference",
    "delimiters",
    "duplicate_token",
    "first_token",
    "fixed_offset",
    "gap",
    "ioi",
    "key_values",
    "key_values_file",
    "language",
    "needle",
    "next_token",
    "own_token",
    "previous_token",
    "syntax",
    "winobias",
    "winobias_continuations",
]
