"""The tiny GPT: its two attentions agree, it looks back only; the labels of its language follow from its words."""

from __future__ import annotations

import random

import pytest
import torch

import probe
from probe.data import language
from probe.data.texts import Labelled
from probe.errors import ProbeError, PromptError, UnknownName
from probe.models.gpt import GPT, Config

SMALL = Config(vocab_size=20, n_layers=2, n_heads=2, d_model=16, max_positions=12)


def pair() -> tuple[GPT, GPT]:
    torch.manual_seed(0)
    fused = GPT(SMALL).eval()
    eager = GPT(Config(**{**vars(SMALL), "attention": "eager"})).eval()
    eager.load_state_dict(fused.state_dict())
    return fused, eager


def test_fused_and_explicit_attention_give_the_same_logits() -> None:
    fused, eager = pair()
    ids = torch.randint(0, 20, (3, 12))
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    real = mask.bool()
    for given in (None, mask):
        a, b = (m(ids, attention_mask=given).logits for m in (fused, eager))
        assert a is not None
        assert b is not None
        assert (a - b)[real].abs().max() <= 1e-5


def test_a_token_sees_only_what_precedes_it() -> None:
    for model in pair():
        ids = torch.randint(0, 20, (1, 10))
        changed = ids.clone()
        changed[0, 6] = (ids[0, 6] + 1) % 20
        a, b = model(ids).logits, model(changed).logits
        assert torch.equal(a[:, :6], b[:, :6])
        assert not torch.allclose(a[:, 6], b[:, 6])


def test_sizes_that_contradict_each_other_are_errors() -> None:
    with pytest.raises(ProbeError, match=r"d_model=130 cannot be cut into n_heads=4 .* nearest d_model below is 128"):
        Config(vocab_size=5, d_model=130)
    with pytest.raises(UnknownName, match="Did you mean 'eager'"):
        Config(vocab_size=5, attention="eagre")
    with pytest.raises(PromptError, match="13 tokens; this model reads at most 12"):
        GPT(SMALL)(torch.zeros(1, 13, dtype=torch.long))


def test_the_languages_gold_labels_follow_from_its_rules() -> None:
    """Recomputed from the words alone: gender and number lists, and what a cue can be said of."""
    items = [i for i in language.coreference(per_frame=4).items if isinstance(i, Labelled)]
    assert len(items) == 4 * len(language.frames()) >= 4 * 40
    fits = {"he": language.HE, "she": language.SHE, "it": language.BEASTS, "they": language.HERDS}
    for item in items:
        pronoun, target, foil = (s.text(item.text) for s in (item.query, item.target, item.foils[0]))
        if item.cue is None:
            assert target in fits[pronoun]
            assert foil not in fits[pronoun]
        else:
            tired = f"too {item.cue.text(item.text)}" in language.TIRED
            assert target in (language.BEASTS if tired else language.THINGS)
        assert item.question is not None
        assert item.text[item.question.read_at :].split()[0] == item.question.right == target
        assert item.question.wrong == (foil,)


def test_the_language_is_balanced_in_every_frame() -> None:
    items = [i for i in language.coreference(per_frame=8).items if isinstance(i, Labelled)]
    by_name = {i.item: i for i in items}
    for frame in language.frames():
        own = [i for i in items if i.cluster == frame]
        for tag, value in (("right", "first"), ("distance", "far")):
            assert sum(i.tags[tag] == value for i in own) == len(own) // 2 == 4
        for item in own:
            assert item.pair is not None
            other = by_name[item.pair]
            assert other.pair == item.item
            assert (other.target, other.foils[0]) == (item.foils[0], item.target)
            read = item.question.read_at if item.question else 0
            differing = [a != b for a, b in zip(item.text[:read].split(), other.text.split(), strict=False)]
            assert sum(differing) == 1


def test_training_sentences_are_in_the_language() -> None:
    rng = random.Random(3)
    words = {w for _ in range(500) for w in language.draw(rng).split()}
    assert words <= set(language.WORDS)


def test_items_that_cannot_be_balanced_are_refused() -> None:
    with pytest.raises(probe.ProbeError, match=r"per_frame=6 .* nearest is 8"):
        language.coreference(per_frame=6)
