"""Tokens, characters and words must agree, on real tokenizers and on text that is not plain English."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
from tokenizers import Tokenizer

import probe
from probe.data.texts import Span
from probe.errors import PromptError, SpanError, UnsupportedModel
from probe.tokens.encoding import Encoded, encode, unknown_words

CAT = "The cat didn't jump onto the table because it was too tired."
CHINESE = "那只猫没跳上桌子因为它太累了"
TEXTS = (
    CAT,
    "The dog’s bone — it wasn’t the cats' — was gone.",
    CHINESE,
    "那只猫 was tired，它睡了。",
    "She is a 👩‍💻 and he is a 👨‍👩‍👧.",
    "مرحبا بالعالم",
    "two  spaces   here",
    "line\nbreak\r\nand a\ttab\n",
    "  lead and trail  ",
    "\u00a0no\u00a0break\u00a0",
    "the [MASK] and a <|im_start|> and [SEP]",
    "the dog\x00s slept",
    "ﬁne ½ İstanbul ẞ Straße",
    "de\u0301compose\u0301",
    "\ufeffmark",
    "internationalization of electroencephalography",
    "snake_case and __dunder__",
)
SYNTHETIC = (
    "the cat did not reach the shelf because it was too high : shelf .",
    "Anna thanked Ben after the long walk home because she Anna was late .",
    "the  cat\nslept .",
)


@pytest.fixture(params=("minilm", "smollm2"))
def pretrained(request: pytest.FixtureRequest) -> probe.Subject:
    return request.getfixturevalue(request.param)


@pytest.fixture(params=("tiny", "minilm", "smollm2"))
def anyone(request: pytest.FixtureRequest) -> probe.Subject:
    return request.getfixturevalue(request.param)


def own(encoded: Encoded) -> Iterator[int]:
    return (p for p, span in enumerate(encoded.spans) if span is not None)


def check_pieces(encoded: Encoded, text: str) -> None:
    assert "".join(encoded.pieces[p] for p in own(encoded)) == text
    assert [encoded.pieces[p] for p, s in enumerate(encoded.spans) if s is None] == [
        encoded.names[p] for p, s in enumerate(encoded.spans) if s is None
    ]
    assert len(encoded.pieces) == len(encoded.spans) == len(encoded.names) == len(encoded.ids) == len(encoded)


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_joined_are_the_text_again(pretrained: probe.Subject, text: str) -> None:
    encoded = pretrained.encode(text)
    assert encoded.text == text
    check_pieces(encoded, text)


@pytest.mark.parametrize("text", SYNTHETIC)
def test_pieces_of_the_synthetic_language_joined_are_the_text_again(tiny: probe.Subject, text: str) -> None:
    check_pieces(tiny.encode(text), text)


@pytest.mark.parametrize("text", TEXTS)
def test_no_piece_is_mojibake(smollm2: probe.Subject, text: str) -> None:
    """Byte-level names such as `ĠéĤ£` never reach the page, and a piece never holds half a character."""
    pieces = smollm2.encode(text).pieces
    assert "\ufffd" not in "".join(pieces)
    assert not {"Ġ", "Ċ"} & set("".join(pieces))


@pytest.mark.parametrize("text", TEXTS)
def test_spans_hold_no_surrounding_space_and_never_run_backwards(pretrained: probe.Subject, text: str) -> None:
    encoded = pretrained.encode(text)
    spans = [encoded.spans[p] for p in own(encoded)]
    assert all(s.text(text).strip() in (s.text(text), "") for s in spans)
    assert all(a.start <= b.start and a.end <= b.end for a, b in pairwise(spans))


@pytest.mark.parametrize("text", TEXTS)
def test_ids_are_the_ones_the_tokenizer_gives(pretrained: probe.Subject, text: str) -> None:
    assert list(pretrained.encode(text).ids) == pretrained.tokenizer(text)["input_ids"]


def test_an_encoder_puts_its_special_tokens_around(minilm: probe.Subject) -> None:
    encoded = minilm.encode(CAT)
    assert [p for p, s in enumerate(encoded.spans) if s is None] == [0, len(encoded) - 1]
    assert (encoded.pieces[0], encoded.pieces[-1]) == ("[CLS]", "[SEP]")


def test_the_tiny_model_begins_with_its_special_token(tiny: probe.Subject) -> None:
    encoded = tiny.encode("the cat slept .")
    assert encoded.pieces == ("<bos>", "the", " cat", " slept", " .")
    assert encoded.spans[0] is None


def test_a_tokenizer_without_special_tokens_loses_no_token(smollm2: probe.Subject) -> None:
    encoded = smollm2.encode(CAT)
    assert None not in encoded.spans
    assert encoded.pieces[0] == "The"
    assert smollm2.tokenizer.decode(encoded.ids) == CAT
    assert encoded.positions(Span.of(CAT, "The")) == (0,)


def test_special_tokens_typed_by_the_user_are_the_users_text(minilm: probe.Subject) -> None:
    encoded = minilm.encode("the [MASK] sat")
    assert encoded.pieces == ("[CLS]", "the", " [MASK]", " sat", "[SEP]")
    assert encoded.spans[2] == Span(4, 10)


# positions


@pytest.mark.parametrize("word", ["cat", "it", "tired", "the table", "."])
def test_positions_are_the_tokens_of_the_words(pretrained: probe.Subject, word: str) -> None:
    encoded = pretrained.encode(CAT)
    found = encoded.positions(Span.of(CAT, word))
    assert "".join(encoded.pieces[p] for p in found).strip() == word
    assert pretrained.tokenizer.decode([encoded.ids[p] for p in found]).strip() == word


def test_positions_take_every_piece_of_a_long_word(minilm: probe.Subject) -> None:
    text = "the electroencephalography failed"
    encoded = minilm.encode(text)
    found = encoded.positions(Span.of(text, "electroencephalography"))
    assert len(found) > 1
    assert found == tuple(range(2, 2 + len(found)))
    assert "".join(encoded.names[p].removeprefix("##") for p in found) == "electroencephalography"


def test_positions_of_one_character_written_in_several_tokens_are_all_of_them(smollm2: probe.Subject) -> None:
    encoded = smollm2.encode(CHINESE)
    found = encoded.positions(Span.of(CHINESE, "猫"))
    assert len(found) > 1
    assert bytes_of(smollm2, encoded, found) == "猫".encode()


def bytes_of(subject: probe.Subject, encoded: Encoded, positions: tuple[int, ...]) -> bytes:
    """The bytes behind byte-level tokens, by GPT-2's table of printable stand-ins."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in printable]
    table = {chr(b): b for b in printable} | {chr(256 + n): b for n, b in enumerate(rest)}
    return bytes(table[c] for p in positions for c in subject.tokenizer.convert_ids_to_tokens(encoded.ids[p]))


def test_a_span_that_splits_a_token_names_it_and_the_nearest_whole_span(pretrained: probe.Subject) -> None:
    encoded = pretrained.encode(CAT)
    start = CAT.index("table")
    with pytest.raises(SpanError) as error:
        encoded.positions(Span(start, start + 3))
    assert str(error.value) == (
        f"'tab' (characters {start} to {start + 3}) splits inside the token 'table'; "
        f"the nearest whole span is characters {start} to {start + 5}."
    )
    assert encoded.positions(Span(start, start + 5)) != ()


def test_a_span_that_begins_inside_a_token_is_told_the_span_around_it(pretrained: probe.Subject) -> None:
    start = CAT.index("table")
    with pytest.raises(SpanError, match=rf"characters {start} to {start + 5}\.$"):
        pretrained.encode(CAT).positions(Span(start + 2, start + 5))


def test_the_nearest_whole_span_is_whole(pretrained: probe.Subject) -> None:
    """Following the message's advice works, for every way to cut two words in a row."""
    text = "The table was red."
    encoded = pretrained.encode(text)
    for start in range(4, 12):
        for end in range(start + 1, 14):
            if not text[start:end].strip():
                continue
            span = Span(start, end)
            for _ in range(3):  # either end may split a token; each message repairs one
                try:
                    encoded.positions(span)
                    break
                except SpanError as error:
                    at = str(error).rpartition("characters ")[2].rstrip(".").split(" to ")
                    span = Span(*map(int, at))
            else:
                pytest.fail(f"{text[start:end]!r} cannot be repaired: {span}")
            assert span.start <= start
            assert span.end >= end


def test_a_span_of_nothing_but_space_has_no_token(minilm: probe.Subject) -> None:
    with pytest.raises(SpanError, match="no token lies in characters 3 to 4 of 'The cat'"):
        minilm.encode("The cat").positions(Span(3, 4))


def test_a_span_past_the_end_has_no_token(pretrained: probe.Subject) -> None:
    with pytest.raises(SpanError, match="no token lies in characters 90 to 95"):
        pretrained.encode("The cat").positions(Span(90, 95))


# prompts that cannot be read


@pytest.mark.parametrize("text", ["", " ", " \n\t ", "\u00a0", "\u3000"])
def test_an_empty_prompt_is_refused(anyone: probe.Subject, text: str) -> None:
    with pytest.raises(PromptError) as error:
        anyone.encode(text)
    assert str(error.value) == f"the prompt is empty: {text!r}. Give at least one word."


@pytest.mark.parametrize("text", ["\u200d", "\x00", "\u200b\u200b", "\ufeff"])
def test_a_prompt_that_is_read_as_no_token_at_all_is_refused(minilm: probe.Subject, text: str) -> None:
    """BERT's tokenizer drops control and format characters: nothing but special tokens is left."""
    assert len(minilm.tokenizer(text)["input_ids"]) == 2
    with pytest.raises(PromptError, match="the tokenizer leaves nothing of the prompt"):
        minilm.encode(text)


@pytest.mark.parametrize(("given", "kind"), [(None, "NoneType"), (7, "int"), (b"cat", "bytes"), (["cat"], "list")])
def test_a_prompt_that_is_no_text_is_refused_by_its_type(anyone: probe.Subject, given: object, kind: str) -> None:
    with pytest.raises(PromptError) as error:
        anyone.encode(given)
    assert str(error.value) == f"a prompt is a text (str), not {kind}: {given!r}"


def test_half_a_character_is_refused_as_a_prompt(anyone: probe.Subject) -> None:
    """A lone surrogate, as Python makes of bytes on the command line that are not UTF-8."""
    with pytest.raises(PromptError):
        anyone.encode("the cat \udce9 slept")


@pytest.mark.parametrize(("name", "limit"), [("tiny", 64), ("minilm", 512)])
def test_a_prompt_of_exactly_the_context_is_read_whole(name: str, limit: int, request: pytest.FixtureRequest) -> None:
    subject = request.getfixturevalue(name)
    special = len(subject.encode("cat")) - 1
    encoded = subject.encode("cat " * (limit - special))
    assert len(encoded) == limit == subject.max_positions


@pytest.mark.parametrize(("name", "limit"), [("tiny", 64), ("minilm", 512), ("smollm2", 8192)])
def test_a_prompt_too_long_by_one_token_is_never_cut(name: str, limit: int, request: pytest.FixtureRequest) -> None:
    subject = request.getfixturevalue(name)
    special = len(subject.encode("cat")) - 1
    with pytest.raises(PromptError) as error:
        subject.encode(" ".join(["cat"] * (limit - special + 1)))
    assert str(error.value) == (
        f"the prompt has {limit + 1} tokens; this model reads at most {limit}. It is not cut silently: shorten it."
    )


def test_running_a_prompt_too_long_is_refused_before_the_model_runs(tiny: probe.Subject) -> None:
    with pytest.raises(PromptError, match="has 101 tokens; this model reads at most 64"):
        tiny.run(["the cat slept .", "cat " * 100])


def test_without_a_limit_any_length_is_read(tiny: probe.Subject) -> None:
    assert len(encode(tiny.tokenizer, "cat " * 1000)) == 1001


def test_a_slow_tokenizer_is_refused() -> None:
    class SlowTokenizer:
        is_fast = False

        def __call__(self, *_: object, **__: object) -> None:
            raise AssertionError("it must not be asked")

    with pytest.raises(UnsupportedModel) as error:
        encode(SlowTokenizer(), "the cat")
    assert str(error.value) == (
        "SlowTokenizer gives no character offsets, so words cannot be placed on tokens; "
        "load a fast tokenizer (one with a tokenizer.json)."
    )


def test_a_tokenizer_without_the_fast_interface_is_refused(tiny: probe.Subject) -> None:
    bare = Tokenizer.from_str(tiny.tokenizer.backend_tokenizer.to_str())
    with pytest.raises(UnsupportedModel, match="Tokenizer gives no character offsets"):
        encode(bare, "the cat")


# words


def words(encoded: Encoded) -> list[str]:
    return ["".join(encoded.pieces[p] for p in word).strip() for word in encoded.words]


def test_words_group_the_pieces_of_a_long_word(minilm: probe.Subject) -> None:
    text = "The electroencephalography of unbelievableness"
    encoded = minilm.encode(text)
    assert words(encoded) == text.split()
    assert [len(w) > 1 for w in encoded.words] == [False, True, False, True]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (CAT, "The cat didn't jump onto the table because it was too tired ."),
        ("The dog’s bone — it wasn’t.", "The dog’s bone — it wasn’t ."),
        (CHINESE, " ".join(CHINESE)),
        ("مرحبا بالعالم", "مرحبا بالعالم"),
        ("two  spaces   here", "two spaces here"),
        ("line\nbreak\n", "line break"),
        ("Wait... 'no', 3.5 (or 20%)!", "Wait . . . ' no ' , 3 . 5 ( or 20 % ) !"),
    ],
)
def test_words_are_the_words_a_reader_sees(pretrained: probe.Subject, text: str, expected: str) -> None:
    found = words(pretrained.encode(text))
    if pretrained.name == "smollm2" and "..." in text:
        # byte-level tokens hold several marks: each belongs to the first it holds
        assert "".join(found) == expected.replace(" ", "")
        assert [w for w in found if w.isalnum()] == [w for w in expected.split() if w.isalnum()]
    else:
        assert found == expected.split()


@pytest.mark.parametrize("text", ["हिन्दी में", "cafe\u0301 cre\u0300me", "مُحَمَّدٌ"])
def test_combining_marks_do_not_cut_a_word(smollm2: probe.Subject, text: str) -> None:
    assert words(smollm2.encode(text)) == text.split()


@pytest.mark.parametrize("text", TEXTS)
def test_each_token_belongs_to_at_most_one_word_and_special_tokens_to_none(
    pretrained: probe.Subject, text: str
) -> None:
    encoded = pretrained.encode(text)
    belongs = [p for word in encoded.words for p in word]
    assert belongs == sorted(set(belongs))
    assert set(belongs) <= set(own(encoded))
    without = [p for p in own(encoded) if p not in belongs]
    assert all(not any(c.isalnum() for c in encoded.pieces[p]) for p in without)


def test_a_token_that_holds_two_words_belongs_to_the_first(smollm2: probe.Subject) -> None:
    text = 'he said "no".'
    encoded = smollm2.encode(text)
    holds_two = [p for p in own(encoded) if encoded.pieces[p] == '".']
    assert holds_two, "the tokenizer has this token"
    assert words(encoded) == ["he", "said", '"', "no", '".']


# words the tiny model does not know


def test_the_tiny_model_names_the_words_it_does_not_know(tiny: probe.Subject) -> None:
    with pytest.raises(PromptError) as error:
        tiny.encode("the robot chased the zebra .")
    assert str(error.value).startswith(
        "tiny reads its own synthetic language and does not know 'robot', 'zebra'. "
        "Its words: probe.data.language.WORDS; or take a pretrained model"
    )


def test_the_tiny_model_knows_all_words_of_its_language(tiny: probe.Subject) -> None:
    assert unknown_words(tiny.tokenizer, list(probe.data.language.WORDS)) == set()


def test_a_pretrained_model_may_read_words_it_has_no_token_for(minilm: probe.Subject) -> None:
    assert unknown_words(minilm.tokenizer, ["猫 and dog"]) == {"猫"}
    assert minilm.encode("猫 and dog").pieces == ("[CLS]", "猫", " and", " dog", "[SEP]")


def test_a_tokenizer_that_knows_every_byte_has_no_ununknown_words(smollm2: probe.Subject) -> None:
    assert unknown_words(smollm2.tokenizer, [CHINESE, "👩‍💻"]) == set()
