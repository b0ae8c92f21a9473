"""The section on heads, from masses and answers that are known: the view shows them, and nothing else."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from probe.causal.controls import Groups
from probe.runner.findings import Findings, Linked
from probe.studies import lost_in_the_middle as study
from probe.subject import Subject

LISTS, INDICES = 8, 5
CHOSEN = [(3, 1), (0, 2), (2, 0)]
FOLLOWS = pd.DataFrame(  # of four layers of three heads; that of 0.2 follows accuracy, that of 3.1 runs against it
    {
        "layer": np.repeat(range(4), 3),
        "head": [0, 1, 2] * 4,
        "auc": [0.5, 0.5, 0.8, *[0.5] * 7, 0.1, 0.5],
        "low": 0.0,
        "high": 1.0,
        "p": [1.0, 1.0, 0.001, *[1.0] * 7, 0.002, 1.0],
        "p_holm": [1.0, 1.0, 0.012, *[1.0] * 7, 0.022, 1.0],
        "lists": 4,
    }
)


@pytest.fixture(scope="module")
def seen() -> study.Watched:
    rng = np.random.default_rng(5)
    rows = [
        (f"list-{k}-{i}", f"list-{k}", 5, "market", i, float((k + i) % 4 > 0), -0.1 * (i + 1), f"thing {k}")
        for k in range(LISTS)
        for i in range(INDICES)
    ]
    answers = pd.DataFrame(rows, columns=["item", "list", "n", "phrasing", "index", "correct", "log_p", "likeliest"])
    held = answers["list"].isin([f"list-{k}" for k in range(1, LISTS, 2)]).to_numpy()
    first = answers["item"][held].iloc[:INDICES]
    words = pd.DataFrame(
        {"prompt": np.repeat(first, 2), "token": ["a", " b"] * INDICES, "role": ["target", "query"] * INDICES}
    )
    prompts = answers[held][["index", "item", "correct"]].rename(columns={"item": "prompt"})
    return study.Watched(
        mass=rng.random((4, 3, len(answers))),
        answers=answers,
        follows=FOLLOWS,
        held=held,
        chosen=CHOSEN,
        groups=Groups(tuple(CHOSEN), 1.0, np.array([0.1, 0.2]), 0.9),
        prompts=prompts,
        tokens=words.assign(**{f"{layer}.{head}": 0.5 for layer, head in CHOSEN}),
        questions=7,
    )


@pytest.fixture(scope="module")
def found(seen: study.Watched) -> Findings:
    return Findings("So.", (study.head_section(seen, 0),))


def test_accuracy_stands_above_attention_of_the_same_questions(found: Findings, seen: study.Watched) -> None:
    (view,) = found.views
    right, looks = (found.tables[plot.table].frame for plot in view.panels)
    held = seen.answers[seen.held]
    assert right["value"].tolist() == pytest.approx(held.groupby("index")["correct"].mean().tolist())
    assert right["lists"].tolist() == [LISTS // 2] * INDICES
    assert list(dict.fromkeys(looks["head"])) == ["3.1", "0.2", "2.0"]
    for layer, head in CHOSEN:
        mine = looks[looks["head"] == f"{layer}.{head}"]["value"]
        mass = seen.mass[layer, head, seen.held]
        assert mine.tolist() == pytest.approx([mass[held["index"] == i].mean() for i in range(INDICES)])
    assert view.panels[0].marks == {"chance": 0.2}


def test_the_view_replaces_the_figure_and_has_every_prompt_behind_it(found: Findings) -> None:
    parts = found.sections[0].parts
    assert [plot.name for plot in found.plots] == ["watched_by_index", "mass_by_index"]
    assert isinstance(parts[-1], Linked)
    assert len(found.tables["prompts"].frame) == LISTS // 2 * INDICES
    assert f"{LISTS // 2} lists of 5 facts" in parts[-1].caption


def test_how_many_questions_heads_were_knocked_out_on_is_said(found: Findings) -> None:
    assert "Knocked out together, on 7 of these questions, the 3 heads cost" in found.sections[0].text[2]


def test_every_head_has_its_attention_at_every_index(found: Findings, seen: study.Watched) -> None:
    table = found.tables["every_head"].frame.set_index(["layer", "head", "index"])
    assert len(table) == 4 * 3 * INDICES
    held = seen.answers[seen.held]
    for layer, head, index in ((0, 0, 0), (2, 1, 3), (3, 2, 4)):
        expected = [m for m, i in zip(seen.mass[layer, head, seen.held], held["index"], strict=True) if i == index]
        assert table.loc[(layer, head, index), "mass"] == pytest.approx(sum(expected) / len(expected))


def test_heads_that_follow_accuracy_are_named(found: Findings) -> None:
    """0.2 does; 3.1 runs against it and 2.0 says nothing."""
    text = found.sections[0].text
    assert "at the same index: 1 of 12; with wrong answers: 1 (" in text[0]
    assert text[1] == "Of the 3 chosen (Holm-corrected over these): 0.2 does; 3.1, 2.0 were not shown to."
    table = found.tables["heads"].frame.set_index("head")
    assert table["Holm p"].to_dict() == pytest.approx({"3.1": 0.004, "0.2": 0.003, "2.0": 1.0})


def test_conditions_are_phrasings_and_formats_of_the_same_lists(smollm2: Subject) -> None:
    """In plain text and with a system prompt stand the same facts; a model without a chat format has neither."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(study.SIZES, "quick", {5: (0, 4)})
        patch.setitem(study.LISTS, "quick", 2)
        ways = {label: (asked, absent) for asked, absent, label in study.conditions(smollm2, "quick", 0)}
        (alone,) = [{label for _, _, label in study.conditions(without_chat(smollm2), "quick", 0)}]
    assert set(ways) == {"market", "box", "bus", "market, no chat format", "market, system prompt"}
    assert alone == {"market", "box", "bus"}
    chat, plain, system = (ways[label][0].items[0].text for label in ("market", *study.FORMS.values()))
    facts = plain[: plain.index(" What did")]
    assert facts in chat
    assert facts in system
    assert chat.startswith("<|im_start|>user\n")
    assert system.startswith("<|im_start|>system\n")
    assert "<|" not in plain
    assert len({asked.name for asked, _ in ways.values()}) == 5
    assert all(len(asked.items) == 4 and len(absent.items) == 2 for asked, absent in ways.values())


def without_chat(subject: Subject) -> Subject:
    """The same, with a tokenizer that knows no marks of turns."""
    import copy

    other = copy.copy(subject)
    other.tokenizer = copy.deepcopy(subject.tokenizer)
    vocab = {word: n for word, n in subject.tokenizer.get_vocab().items() if word != "<|im_start|>"}
    other.tokenizer.get_vocab = lambda: vocab
    return other
