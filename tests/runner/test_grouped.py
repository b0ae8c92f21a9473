"""Prompts by group: the model's own patterns, the first of each world, and nothing that was not asked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

import probe
from probe.data import language
from probe.errors import DataError
from probe.runner.findings import Part
from probe.runner.grouped import Group, answers, at_the_answer, grouped
from probe.scores.components import questions
from probe.subject import Subject
from probe.targets import Answer, Row, Unit

HEADS = [(2, 1), (3, 0), (2, 1)]


def groups(tiny: Subject) -> list[Group]:
    made = []
    for task in ("agreement", "facts"):
        dataset = language.dataset(task, 0, 4)
        units = tiny.bind(dataset).units
        correct = np.array([float("nan") if n % 3 == 0 else n % 2 for n in range(len(units))], dtype=np.float64)
        facts = {"number": list(range(len(units)))}
        made.append(Group(task, {i.item: i.text for i in dataset.items}, units, correct, facts))
    return made


def frames(parts: tuple[Part, ...]) -> tuple[pd.DataFrame, pd.DataFrame]:
    asked, tokens, shown = parts
    assert isinstance(asked, probe.Table)
    assert isinstance(tokens, probe.Table)
    assert isinstance(shown, probe.Asked)
    assert (shown.prompts.table, shown.prompts.tokens, shown.by) == (asked.name, tokens.name, "what")
    return asked.frame, tokens.frame


@pytest.fixture(scope="module")
def made(tiny: Subject) -> tuple[pd.DataFrame, pd.DataFrame]:
    return frames(grouped(tiny, "what", groups(tiny), HEADS, caption="c", most=2))


def test_every_prompt_that_was_asked_is_listed_once(tiny: Subject, made: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    asked, _ = made
    expected = [(g.name, f"{g.name}: {u.item}", n % 2, n) for g in groups(tiny) for n, u in enumerate(g.units) if n % 3]
    assert list(asked.itertuples(index=False, name=None)) == expected


def test_the_first_of_each_world_are_shown(tiny: Subject, made: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    _, tokens = made
    expected = []
    for group in groups(tiny):
        worlds: list[str] = []
        for n, unit in enumerate(group.units):
            if n % 3 and unit.cluster not in worlds and len(worlds) < 2:
                worlds.append(unit.cluster)
                expected.append(f"{group.name}: {unit.item}")
    assert list(dict.fromkeys(tokens["prompt"])) == expected
    assert list(tokens.columns) == ["prompt", "token", "role", "2.1", "3.0"], "a head that is named twice is shown once"


def test_attention_is_that_of_the_whole_pattern(tiny: Subject, made: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    _, tokens = made
    known = {f"{g.name}: {u.item}": (u, g.texts[u.item]) for g in groups(tiny) for u in g.units}
    for prompt, rows in tokens.groupby("prompt"):
        unit, text = known[str(prompt)]
        run = tiny.run(text, ["pattern"], layers=[2, 3])
        (at,) = unit.rows[0].query
        for layer, head in ((2, 1), (3, 0)):
            weights = run["pattern", layer][0, head, at, : len(rows)].numpy()
            assert weights.sum() == pytest.approx(1, abs=1e-5)
            assert rows[f"{layer}.{head}"].to_numpy() == pytest.approx(weights, abs=1e-5)
        assert [n for n, role in enumerate(rows["role"]) if role == "target"] == list(unit.rows[0].target)


def test_groups_of_which_nothing_was_asked_are_refused(tiny: Subject) -> None:
    nothing = [replace(group, correct=np.full(len(group.units), np.nan)) for group in groups(tiny)]
    with pytest.raises(DataError, match=r"no prompt to show of agreement, facts"):
        grouped(tiny, "what", nothing, HEADS, caption="c")
    some = [nothing[0], groups(tiny)[1]]
    asked, _ = frames(grouped(tiny, "what", some, HEADS, caption="c"))
    assert set(asked["what"]) == {"facts"}


def test_answers_are_seen_from_where_they_follow(tiny: Subject) -> None:
    tasks = {task: language.dataset(task, 0, 4) for task in ("agreement", "facts")}
    asked, tokens = frames(answers(tiny, "what", tasks, {"agreement": (2, 1), "facts": (3, 0)}, items=6))
    assert asked.groupby("what")["head"].unique().map(list).to_dict() == {"agreement": ["2.1"], "facts": ["3.0"]}
    assert asked.groupby("what").size().to_dict() == {"agreement": 6, "facts": 6}
    for task, dataset in tasks.items():
        texts = {i.item: i for i in dataset.items}
        for unit in questions(tiny, dataset, 6)[0]:
            row = asked[asked["prompt"] == f"{task}: {unit.item}"].iloc[0]
            question = texts[unit.item].question
            encoded = tiny.encode(texts[unit.item].text[: question.read_at].rstrip())
            with torch.no_grad():
                logits = tiny.model(torch.tensor([encoded.ids])).logits[0, -1]
            words = (question.right, *question.wrong)
            ids = [tiny.tokenizer(w, add_special_tokens=False).input_ids[0] for w in words]
            p = logits[ids].softmax(0)
            assert row["correct"] == float(p[0] == p.max())
            assert row["its probability"] == pytest.approx(float(p[0]), abs=1e-5)
            mine = tokens[tokens["prompt"] == row["prompt"]]
            if len(mine):
                assert list(mine["token"]) == list(encoded.shown)
                assert mine["role"].iloc[-1] == "query"
                assert mine["2.1"].sum() == pytest.approx(1, abs=1e-5)


def test_the_first_of_each_world_where_worlds_come_again(tiny: Subject) -> None:
    (group, _) = groups(tiny)
    worlds = ["A", "B", "B", "B", "C", "A"]
    units = [replace(unit, cluster=world) for unit, world in zip(group.units, worlds, strict=False)]
    some = replace(group, units=units, correct=np.ones(6), facts={})
    _, tokens = frames(grouped(tiny, "what", [some], HEADS, caption="c", most=2))
    assert list(dict.fromkeys(tokens["prompt"])) == [f"agreement: {units[n].item}" for n in (0, 1)]


def test_an_answer_is_seen_from_where_it_follows_whatever_was_measured() -> None:
    unit = Unit("x", "x", (5, 6, 7, 8, 9), (Row((1,), (0,), ((2,),)),), answer=Answer(3, (9,), ((8,),)))
    seen = at_the_answer(unit)
    assert (seen.ids, seen.rows) == ((5, 6, 7, 8), (Row((3,), (0,), ((2,),)),))


def test_a_unit_that_asks_nothing_has_no_place_of_an_answer() -> None:
    with pytest.raises(DataError, match=r"x asks nothing"):
        at_the_answer(Unit("x", "x", (1, 2), ()))


def test_two_prompts_of_one_name_are_named(tiny: Subject) -> None:
    (first, second) = groups(tiny)
    asked = second.units[1]
    same = replace(second, units=[second.units[0], asked, asked, *second.units[3:]])
    with pytest.raises(DataError, match=f"'{second.name}: {asked.item}' names more than one prompt"):
        grouped(tiny, "what", [first, same], HEADS, caption="c")
    with pytest.raises(DataError, match="names more than one prompt"):
        grouped(tiny, "what", [first, first], HEADS, caption="c")
    not_asked = replace(second, units=[second.units[1], *second.units[1:]])
    grouped(tiny, "what", [not_asked], HEADS, caption="c")
