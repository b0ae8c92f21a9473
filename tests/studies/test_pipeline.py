"""The study that follows a sentence: its tables against the models' own numbers, computed here."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from probe.data import senses
from probe.data.cloze import ENGLISH, SYNTHETIC
from probe.runner.findings import Findings
from probe.scores import continuations
from probe.studies import pipeline as module
from probe.subject import Subject

pipeline = module.pipeline


def logits(subject: Subject, text: str) -> np.ndarray:
    """The model's own, at the last position."""
    with torch.no_grad():
        return subject.model(torch.tensor([subject.encode(text).ids])).logits[0, -1].double().numpy()


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max())
    return e / e.sum()


def text_of(found: Findings, title: str) -> str:
    return " ".join(next(s.text for s in found.sections if s.title == title))


@pytest.fixture(scope="module")
def of_smollm2(smollm2: Subject) -> Findings:
    with pytest.MonkeyPatch.context() as patch:  # less of what takes long
        patch.setitem(module.RUNS, "quick", (3, 2))
        patch.setattr(continuations, "SETTINGS", (*continuations.SETTINGS[:5], continuations.Setting(top_p=0.9)))
        patch.setattr(senses, "ENGLISH", senses.ENGLISH[:3])
        return pipeline(smollm2)


@pytest.fixture(scope="module")
def of_tiny(tiny: Subject) -> Findings:
    return pipeline(tiny)


@pytest.fixture(scope="module")
def of_minilm(minilm: Subject) -> Findings:
    return pipeline(minilm)


def test_the_next_word_is_the_models_own(of_smollm2: Findings, smollm2: Subject) -> None:
    p = softmax(logits(smollm2, ENGLISH.text))
    table = of_smollm2.tables["next_tokens"].frame
    order = np.argsort(-p)[:10]
    assert table["id"].tolist() == order.tolist()
    assert table["probability"].tolist() == pytest.approx(p[order].tolist(), rel=1e-4)
    word = smollm2.tokenizer.decode([order[0]]).strip()
    entropy = float(-(p * np.log(p)).sum())
    assert f"most to “{word}” ({p.max():.3f}; entropy {entropy:.2f} nats)" in of_smollm2.answer


def test_the_cloze_gives_tired_and_high_their_probabilities(of_smollm2: Findings, smollm2: Subject) -> None:
    table = of_smollm2.tables["cloze"].frame.set_index("word")
    for column, text in {"it": ENGLISH.text, **ENGLISH.nouns}.items():
        p = softmax(logits(smollm2, text))
        for word in ("tired", "high"):
            (token,) = smollm2.tokenizer(f" {word}").input_ids
            assert table.loc[word, column] == pytest.approx(float(p[token]), rel=1e-3)
    sums = table.groupby("fits")["it"].sum()
    said = text_of(of_smollm2, "Logits and the next word")
    assert f"after “it was too” {sums['the cat']:.3f} and {sums['the table']:.3f}" in said


def test_sampling_has_the_entropies_of_the_tempered_softmax(of_smollm2: Findings, smollm2: Subject) -> None:
    x = logits(smollm2, ENGLISH.text)
    table = of_smollm2.tables["sampling"].frame.set_index("setting")
    for temperature in (0.3, 0.7, 1.0, 1.5):
        p = softmax(x / temperature)
        assert table.loc[f"temperature {temperature:g}", "entropy"] == pytest.approx(
            float(-(p * np.log(p)).sum()), rel=1e-3
        )
    assert table["repeated"].all()
    assert table.loc["temperature 0", ["kept", "distinct"]].tolist() == [1, 1]
    drawn = of_smollm2.tables["ranks"].frame
    top = drawn[(drawn["temperature"] == "temperature 0.7") & (drawn["rank"] == 1)]["probability"].item()
    assert top == pytest.approx(float(softmax(x / 0.7).max()), rel=1e-4)


def test_a_decoder_cannot_tell_apple_keynote_from_apple_pie(of_smollm2: Findings, of_minilm: Findings) -> None:
    column = "apple keynote, apple pie"
    decoder, encoder = (f.tables["after_the_word"].frame[column] for f in (of_smollm2, of_minilm))
    assert decoder.tolist() == pytest.approx([1] * len(decoder), abs=1e-9)
    assert encoder[0] == pytest.approx(1)
    assert encoder.iloc[-1] < 0.9
    assert "has not read" in text_of(of_smollm2, "One word in two contexts")
    assert "an encoder has read what comes after" in text_of(of_minilm, "One word in two contexts")


def test_counts_of_tokens_are_the_tokenizers(of_smollm2: Findings, smollm2: Subject) -> None:
    table = of_smollm2.tables["counts"].frame.set_index("kind")
    for kind, text in module.TEXTS.items():
        row = table.loc[kind]
        assert row["tokens"] == len(smollm2.tokenizer(text).input_ids)
        assert (row["characters"], row["bytes"]) == (len(text), len(text.encode()))
        assert "\ufffd" not in row["pieces"]
    assert table.loc["the same in Chinese", "pieces"].startswith("人")


def test_an_encoder_ends_in_hidden_states(of_minilm: Findings) -> None:
    assert [s.title for s in of_minilm.sections] == [
        "Text to tokens to ids",
        "Ids to vectors",
        "Blocks",
        "Logits and the next word",
        "Tokens and characters",
        "One word in two contexts",
    ]
    said = text_of(of_minilm, "Logits and the next word")
    assert said.startswith("Untestable here: minilm predicts no next word, because it has no language-model head.")
    assert not {"next_tokens", "cloze", "lens", "sampling"} & set(of_minilm.tables)
    assert "an encoder that has no next word to give" in of_minilm.answer


def test_the_tiny_gpt_knows_the_words_of_its_language_alone(of_tiny: Findings, tiny: Subject) -> None:
    counts = of_tiny.tables["counts"].frame.set_index("kind")
    assert counts.loc["its own language", "unknown"] == 0
    assert counts.loc["the same in Chinese", ["tokens", "unknown"]].tolist() == [1, 1]
    assert f"{int(counts['unknown'].sum())} words are <unk>" in text_of(of_tiny, "Tokens and characters")
    cloze = of_tiny.tables["cloze"].frame
    p = softmax(logits(tiny, SYNTHETIC.text))
    wanted = [p[i] for i in tiny.tokenizer.convert_tokens_to_ids(cloze["word"].tolist())]
    assert cloze["it"].tolist() == pytest.approx(wanted, rel=1e-4)
    assert sum(wanted) > 0.95, "the ten words that its language allows"


def test_every_figure_has_what_it_draws(of_tiny: Findings, of_smollm2: Findings) -> None:
    for found in (of_tiny, of_smollm2):
        names = [plot.name for plot in found.plots]
        assert names == ["stream_by_block", "lens_by_block", "cosine_by_block", "temperature"]
        for plot in found.plots:
            frame = found.tables[plot.table].frame
            assert len(frame)
            assert not frame[[plot.x, plot.y]].isna().any(axis=None)
