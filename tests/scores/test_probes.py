"""Linear probes find what was put in, at the depth where it was put in, and nothing in shuffled labels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression, Ridge, RidgeClassifier
from sklearn.metrics import accuracy_score, mean_absolute_error, r2_score
from sklearn.model_selection import GroupKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import probe
from probe.data import language
from probe.errors import DataError, OutOfRange, UnknownName
from probe.scores import properties as properties_of
from probe.scores.probes import ALPHA, C, activations, baselines, read_features, read_off
from probe.scores.properties import Property, placed, properties
from probe.scores.readable import RANDOM, TRAINED, probed, spread, summary
from probe.sites import Site
from probe.subject import Subject


@pytest.fixture(scope="module")
def planted() -> Subject:
    return probe.load("planted:previous_token")


@pytest.fixture(scope="module")
def words(planted: Subject) -> list[str]:
    return properties_of.random_words(planted, n=12, words=30, seed=1)


def previous(subject: Subject, texts: list[str]) -> Property:
    return placed(subject, "previous word", properties_of.previous_words(texts), at_most=1000)


# what is labelled -----------------------------------------------------------------------------------------------------


def test_labels_are_what_plain_counting_says(tiny: Subject) -> None:
    made = {p.name: p for p in properties(tiny, items=4, places=300, seed=0)}
    words = tiny.tokenizer.convert_ids_to_tokens
    for name in ("position", "previous word", "depth"):
        prop = made[name]
        assert len(prop.places) <= 300
        for (prompt, position), label, word in zip(prop.places, prop.labels, prop.words, strict=True):
            text = words(list(prop.prompts[prompt]))[1:]  # <bos> first
            assert text[position - 1] == word
            before = text[: position - 1]
            if name == "position":
                assert label == len(before)
            elif name == "previous word":
                assert label == before[-1]
            else:
                opened = sum(w in "([{<" or w == "begin" for w in before)
                assert label == str(opened - sum(w in ")]}>" or w == "end" for w in before))
    eighths = made["position, eighths"]
    assert {label: eighths.labels.count(label) for label in set(eighths.labels)}.keys() == {
        f"eighth {n}" for n in range(1, 9)
    }


def test_antecedent_and_number_are_the_datasets_own_tags(tiny: Subject) -> None:
    made = {p.name: p for p in properties(tiny, items=4, places=1000, seed=0)}
    number = made["number"]
    tags = {i.text: i.tags["number"] for i in language.agreement(0, 4).items}
    for (prompt, position), label in zip(number.places, number.labels, strict=True):
        start = " ".join(tiny.tokenizer.convert_ids_to_tokens(list(number.prompts[prompt]))[1:])
        assert len(number.prompts[prompt]) == position + 1, "what comes later is cut off"
        assert {t for text, t in tags.items() if text.startswith(f"{start} ")} == {label}
    antecedent = made["antecedent"]
    assert set(antecedent.words) == {"he", "she", "it", "they"}
    assert antecedent.labels.count("first") == antecedent.labels.count("second")


def test_an_encoder_keeps_what_follows_but_no_answer(minilm: Subject) -> None:
    made = {p.name: p for p in properties(minilm, items=4, places=200)}
    antecedent, number = made["antecedent"], made["number"]
    follows = [len(antecedent.prompts[prompt]) - position for prompt, position in antecedent.places]
    assert min(follows) > 2, "the rest of the sentence, and [SEP]"
    assert {len(number.prompts[prompt]) - position for prompt, position in number.places} == {2}, "[SEP] alone"
    assert len(number.places) == 32 * 4


# what is found --------------------------------------------------------------------------------------------------------


def test_a_planted_previous_token_head_makes_the_previous_word_readable(planted: Subject, words: list[str]) -> None:
    found = read_off(planted, previous(planted, words), seed=0).set_index(["site", "layer"])
    assert found.loc[("resid_post", 0), "score"] == 1
    chance = 1 / properties_of.WORDS
    for place in (("embed", -1), ("resid_pre", 0)):
        assert found.loc[place, "score"] <= 3 * chance, "the word itself does not tell"
    assert found["shuffled"].max() <= 2 * chance
    assert found.loc[("embed", -1), "control"] >= 0.95, "which word it is, the embedding tells"
    assert found.loc[("resid_post", 0), "types"] == properties_of.WORDS
    row = found.loc[("resid_post", 0)]
    assert row["selectivity"] == pytest.approx(row["score"] - row["control"])


def test_learned_positions_are_readable_as_a_number_and_not_in_the_embedding(
    planted: Subject, words: list[str]
) -> None:
    prop = placed(planted, "position", properties_of.positions_of(words), at_most=1000)
    found = read_off(planted, prop, ("embed", "resid_pre"), seed=0).set_index("site")
    assert found.loc["resid_pre", "score"] > 0.5
    assert found.loc["embed", "score"] < 0.1
    assert found.loc["resid_pre", "error"] < found.loc["embed", "error"]
    assert abs(found["shuffled"]).max() < 0.2
    base = baselines(prop).set_index("baseline")
    assert base.loc["majority", "score"] == pytest.approx(0, abs=0.01)
    assert base.loc["place", "score"] > 0.5


def test_accuracy_is_that_of_scikit_learns_own_pipeline(tiny: Subject) -> None:
    prop = next(p for p in properties(tiny, items=4, places=150) if p.name == "depth")
    site = Site("resid_post", 2)
    features = activations(tiny, prop, "resid_post", layers=2)[site]
    for kind, model in (
        ("ridge", RidgeClassifier(alpha=ALPHA)),
        ("logistic", LogisticRegression(C=C, max_iter=200)),
    ):
        pipeline = make_pipeline(StandardScaler(), model)
        said = cross_val_predict(pipeline, features, prop.labels, groups=prop.groups, cv=GroupKFold(5))
        found = read_off(tiny, prop, "resid_post", layers=2, kind=kind)  # type: ignore[arg-type]
        assert found["score"].tolist() == [accuracy_score(prop.labels, said)]
        assert found["low"].iloc[0] < found["score"].iloc[0] < found["high"].iloc[0]


def test_regression_is_that_of_scikit_learns_own_pipeline(tiny: Subject) -> None:
    prop = next(p for p in properties(tiny, items=4, places=200) if p.name == "position")
    features = activations(tiny, prop, "resid_post", layers=1)[Site("resid_post", 1)]
    pipeline = make_pipeline(StandardScaler(), Ridge(alpha=ALPHA))
    said = cross_val_predict(pipeline, features, prop.labels, groups=prop.groups, cv=GroupKFold(5))
    (found,) = read_off(tiny, prop, "resid_post", layers=1).to_dict("records")
    assert found["score"] == pytest.approx(r2_score(prop.labels, said))
    assert found["error"] == pytest.approx(mean_absolute_error(prop.labels, said))
    assert found["low"] < found["score"] < found["high"]
    assert found["error_low"] < found["error"] < found["error_high"]


def test_features_are_the_stream_at_the_places(tiny: Subject) -> None:
    prop = next(p for p in properties(tiny, items=4, places=60) if p.name == "depth")
    features = activations(tiny, prop, ("embed", "z"), layers=[1, 3], batch_size=3)
    assert set(features) == {Site("embed"), Site("z", 1), Site("z", 3)}
    for number in (0, 30, len(prop.places) - 1):
        prompt, position = prop.places[number]
        ((_, seen),) = tiny.captured([prop.prompts[prompt]], ["z", "embed"])
        own = seen["z", 3][0, position].flatten().numpy()
        assert features[Site("z", 3)][number] == pytest.approx(own, abs=1e-5)
        assert features[Site("embed")][number] == pytest.approx(seen["embed"][0, position].numpy(), abs=1e-6)


def test_the_majority_is_that_of_the_groups_trained_on() -> None:
    labels = ["a", "a", "a", "b", "b", "b", "b", "b"]
    prop = Property(
        "p", ((1, 2),), tuple((0, n % 2) for n in range(8)), tuple(labels), tuple("xxxyyyyy"), tuple("uvuvuvuv")
    )
    base = baselines(prop).set_index("baseline")["score"]
    assert base["majority"] == 0, "each group's majority is the other's minority"


def test_control_labels_are_drawn_for_each_word_type_as_often_as_the_labels_come() -> None:
    n, types = 600, 300
    labels = tuple("b" if number % 10 == 0 else "a" for number in range(n))
    words = tuple(f"word {number % types}" for number in range(n))
    prop = Property("p", ((1,) * n,), tuple((0, at) for at in range(n)), labels, words, words)
    nothing, itself = np.zeros((n, 1)), np.eye(types)[np.arange(n) % types]
    found = read_features({Site("embed"): nothing}, prop).iloc[0]
    assert found["control"] == pytest.approx(0.9, abs=0.04), "the commoner label, of nine words in ten and not of all"
    assert found["control"] < 0.99
    spread_out = replace(prop, groups=tuple("first" if number < types else "second" for number in range(n)))
    assert read_features({Site("embed"): itself}, spread_out).iloc[0]["control"] == 1, "a word has one label wherever"


# groups and positions of a made-up property: ten of each
GRID = [(group, place) for group in range(10) for place in range(10)]


def told(name: str, kind: str) -> Property:
    """A property that no baseline tells, or 6 in 10 of it the most frequent label, or the place."""
    labels = []
    for group, place in GRID:
        turned = (3 * place + group) % 10  # each once in every group, and at every place
        if kind == "majority":
            labels.append("0" if turned < 6 else str(turned))
        elif kind == "place":
            labels.append(str(place) if place < 6 else str(6 + (place + group) % 4))
        else:
            labels.append(str(turned))
    groups = tuple(str(group) for group, _ in GRID)
    return Property(name, ((1,) * 10,), tuple((0, place) for _, place in GRID), tuple(labels), groups, groups)


def read(name: str, embedding: float, random: float) -> pd.DataFrame:
    """Probes whose intervals end at 0.1 before the first block, and 0.2 higher after each."""
    rest = dict.fromkeys(("high", "control", "selectivity", "shuffled", "error"), 0.5)
    rest |= dict.fromkeys(("groups", "places", "types"), 10)
    rows = [(TRAINED, "embed", -1, embedding), (RANDOM, "embed", -1, 0.99), (RANDOM, "resid_post", 3, 0.15)]
    rows += [(RANDOM, "resid_post", 1, random), *((TRAINED, "resid_post", n, 0.15 + 0.2 * n) for n in range(5))]
    return pd.DataFrame(
        [
            {"property": name, "weights": weights, "site": site, "layer": blocks - 1, "blocks": blocks, **rest}
            | {"score": score, "low": score - 0.05}
            for weights, site, blocks, score in rows
        ]
    )


@pytest.mark.parametrize(
    ("name", "kind", "embedding", "random", "start"),
    [
        ("depth", "nothing", 0.15, 0.15, 1.0),
        ("depth", "nothing", 0.53, 0.15, 3.0),  # 0.55 with an interval from 0.5
        ("depth", "nothing", 0.15, 0.6, 3.0),
        ("depth", "place", 0.15, 0.15, 3.0),
        ("position, eighths", "place", 0.15, 0.15, 1.0),
        ("position, eighths", "majority", 0.15, 0.15, 3.0),
        ("depth", "nothing", 0.95, 0.15, float("nan")),
    ],
    ids=["none", "embedding", "random weights", "place", "its own place is none", "majority", "never"],
)
def test_a_property_is_readable_from_where_it_is_above_every_rival(
    name: str, kind: str, embedding: float, random: float, start: float
) -> None:
    prop = told(name, kind)
    (row,) = summary(read(name, embedding, random), [prop]).to_dict("records")
    assert row["from"] == pytest.approx(start, nan_ok=True)
    assert (row["best"], row["at"]) == (pytest.approx(0.95), 4)
    assert (row["embedding"], row["random"]) == (embedding, random), "embeddings of random weights are no rival"


def test_the_summary_says_from_where_on(planted: Subject, words: list[str]) -> None:
    prop = previous(planted, words)
    found = probed(planted, [prop], seed=0)
    assert set(found["weights"]) == {TRAINED, RANDOM}
    (row,) = summary(found, [prop]).to_dict("records")
    assert (row["best"], row["at"], row["from"], row["most_from"]) == (1.0, 1, 1.0, 1.0)
    assert row["random"] == found[(found["weights"] == RANDOM) & (found["blocks"] >= 0)]["score"].max()
    mixed = np.random.default_rng(0).permutation(prop.labels)
    nothing = replace(prop, labels=tuple(str(label) for label in mixed))
    (row,) = summary(probed(planted, [nothing], seed=0), [nothing]).to_dict("records")
    assert np.isnan(row["from"])


def test_layers_are_spread_over_the_model(smollm2: Subject, tiny: Subject) -> None:
    assert spread(smollm2, 4) == [0, 10, 19, 29]
    assert spread(tiny, 9) == [0, 1, 2, 3]
    with pytest.raises(OutOfRange, match="at_most=-1 was given"):
        spread(tiny, -1)
    with pytest.raises(OutOfRange, match="names none: give at least one property"):
        probed(tiny, [])


def test_what_cannot_be_probed_is_refused(tiny: Subject) -> None:
    prop = next(p for p in properties(tiny, items=4, places=60) if p.name == "number")
    with pytest.raises(OutOfRange, match="pattern has as many keys as a prompt has tokens"):
        read_off(tiny, prop, "pattern")
    with pytest.raises(UnknownName, match=r"no kind of probe named 'logit'\. Did you mean 'logistic'"):
        read_off(tiny, prop, kind="logit")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="number has 1 group"):
        read_off(tiny, replace(prop, groups=("one",) * len(prop.places)), "resid_post", layers=0)
    with pytest.raises(OutOfRange, match=r"layers=\[\] names none: allowed are 0 to 3"):
        read_off(tiny, prop, layers=[])
    with pytest.raises(OutOfRange, match="at most 0 places of position were asked for: allowed are 1 or more"):
        properties(tiny, items=4, places=0)


def test_a_property_that_does_not_fit_its_prompts_is_refused() -> None:
    prop = told("depth", "nothing")
    with pytest.raises(DataError, match="depth has 0 places"):
        replace(prop, places=(), labels=(), groups=(), words=())
    for what in ("labels", "groups", "words"):
        with pytest.raises(DataError, match=f"depth has 5 {what} for 100 places: give one for each"):
            replace(prop, **{what: ("a",) * 5})
    for place, message in (
        ((0, 10), "position of depth in prompt 0: 10 does not exist: allowed are 0 to 9"),
        ((0, -1), "position of depth in prompt 0: -1 does not exist: .* nearest is 0"),
        ((1, 0), "prompt of depth 1 does not exist: allowed are 0 to 0"),
    ):
        with pytest.raises(OutOfRange, match=message):
            replace(prop, places=(place, *prop.places[1:]))
