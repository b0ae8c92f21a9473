"""Tokens, characters and bytes of a text, and where it is cut."""

from __future__ import annotations

import pytest

from probe.models.tokenizer import byte_pair_tokenizer
from probe.subject import Subject
from probe.tokens.counts import cut, token_counts, token_table, visible
from probe.tokens.encoding import encode

BYTES = byte_pair_tokenizer("a cat", 259)  # no merges: a token is a byte


def test_a_token_for_each_byte_counts_bytes() -> None:
    row = token_counts(BYTES, {"mixed": "a 人💛"}).iloc[0]
    assert (row["characters"], row["bytes"], row["tokens"], row["unknown"]) == (4, 9, 9, 0)
    assert row["per_character"] == 9 / 4
    assert row["pieces"] == "a|␣|人×3|💛×4"
    assert row["whole"]


@pytest.mark.parametrize("text", ["人工智能", "ChatGPT", "for i in x:\n\tprint(i)", "👩‍💻 naïve"])
def test_pieces_are_the_text_again(smollm2: Subject, minilm: Subject, text: str) -> None:
    for subject in (smollm2, minilm):
        row = token_counts(subject.tokenizer, {"": text}).iloc[0]
        ids = subject.tokenizer(text, add_special_tokens=False).input_ids
        assert row["tokens"] == len(ids)
        assert row["bytes"] == len(text.encode())
        assert row["whole"]
        assert "\ufffd" not in row["pieces"]


def test_decoding_one_id_at_a_time_would_show_parts_of_characters(smollm2: Subject) -> None:
    text = "💛"
    ids = smollm2.tokenizer(text).input_ids
    assert any("\ufffd" in smollm2.tokenizer.decode([i]) for i in ids)
    assert cut(smollm2.encode(text)) == f"💛×{len(ids)}"


def test_words_the_tiny_gpt_does_not_know_are_counted(tiny: Subject) -> None:
    row = token_counts(tiny.tokenizer, {"": "the ChatGPT cat 人工智能"}).iloc[0]
    assert (row["tokens"], row["unknown"]) == (4, 2)
    assert row["pieces"] == "the|␣ChatGPT|␣cat|␣人工智能"


def test_what_leaves_no_ink_is_shown() -> None:
    assert visible("a b\n\tc\u200d\u00a0") == "a␣b↵⇥cU+200DU+00A0"


def test_a_token_table_places_each_token(minilm: Subject) -> None:
    table = token_table(encode(minilm.tokenizer, "The cat's"))
    assert table["name"].tolist() == ["[CLS]", "the", "cat", "'", "s", "[SEP]"]
    assert table["text"].tolist() == ["", "The", "cat", "'", "s", ""]
    assert table["characters"].tolist() == ["added", "0 to 3", "4 to 7", "7 to 8", "8 to 9", "added"]
    assert table["id"].tolist() == minilm.tokenizer("The cat's").input_ids
