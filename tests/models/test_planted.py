"""The planted models: each written head does what it is named after and decides the answer; no other head does."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch

import probe
from probe import edits
from probe.data import language
from probe.errors import ProbeError, UnknownName
from probe.models import planted
from probe.models.gpt import GPT
from probe.models.loading import NAMES
from probe.models.planted.circuit import VOCABULARY
from probe.models.tokenizer import word_tokenizer
from probe.runner.cells import cell_name
from probe.scores import heads
from probe.scores.measure import measure
from probe.subject import Subject
from probe.targets import Answer, Row, Targets, Unit

TASKS = {"induction": "repeats", "coreference": "coreference", "agreement": "agreement", "retrieval": "facts"}
KINDS = list(planted.CIRCUITS)
every_kind = pytest.mark.parametrize("kind", KINDS)


@dataclass(frozen=True)
class Case:
    """A planted model, the targets of its phenomenon, the text of each unit, and what each unit asks of the model."""

    subject: Subject
    targets: Targets
    texts: list[str]
    questions: list[list[Answer]]

    def accuracy(self, *changes: edits.Edit) -> float:
        """Share of questions whose right answer has the highest logit of all candidates; a tie among n counts 1/n."""
        logits = self.subject.run(self.texts, "logits", edits=list(changes))["logits"]
        found = []
        for prompt, asked in zip(logits, self.questions, strict=True):
            for question in asked:
                right, *wrong = (prompt[question.read_at, i].item() for (i,) in (question.right, *question.wrong))
                found.append(0.0 if max(wrong) > right else 1 / (1 + wrong.count(right)))
        return sum(found) / len(found)

    def chance(self) -> float:
        """What guessing among the candidates would reach."""
        sizes = [1 + len(question.wrong) for asked in self.questions for question in asked]
        return sum(1 / n for n in sizes) / len(sizes)

    def mass(self, layer: int, head: int) -> float:
        """Attention on the target, of rows and then of units, added up in plain Python."""
        pattern = self.subject.run(self.texts, "pattern", layers=layer, heads=head)["pattern", layer][:, 0]
        units = [
            [sum(float(prompt[r.query[0], k]) for k in r.target) for r in unit.rows]
            for prompt, unit in zip(pattern, self.targets.units, strict=True)
        ]
        return sum(sum(rows) / len(rows) for rows in units) / len(units)


@cache
def case(kind: str) -> Case:
    subject = probe.load(f"planted:{kind}")
    if kind in TASKS:
        data = language.dataset(TASKS[kind], per_frame=4)
        pairs = tuple(item for n, item in enumerate(data.items) if n // 2 % 3 == 0)
        targets = subject.bind(replace(data, items=pairs))
        texts = {item.item: item.text for item in pairs}
        chosen = [texts[unit.item] for unit in targets.units]
        return Case(subject, targets, chosen, [[unit.answer] for unit in targets.units if unit.answer])
    items = [item for task in language.tasks() for item in language.dataset(task, per_frame=4).items[::20]]
    targets = subject.bind(probe.data.first_token(items) if kind == "first_token" else probe.data.previous_token(items))
    if kind == "duplicate_token":
        targets = replace(targets, phenomenon="duplicate token", units=tuple(map(duplicates, targets.units)))
    kept = [n for n, unit in enumerate(targets.units) if unit.rows]
    targets = replace(targets, units=tuple(targets.units[n] for n in kept))
    questions = [
        [
            Answer(row.query[0], (right,), tuple((i,) for i in sorted({*unit.ids} - {right})))
            for row in unit.rows
            for right in [unit.ids[row.target[0]]]
        ]
        for unit in targets.units
    ]
    return Case(subject, targets, [items[n].text for n in kept], questions)


def duplicates(unit: Unit) -> Unit:
    """Every token that was there before looks at its earlier copies."""
    copies = {q: tuple(k for k in range(q) if unit.ids[k] == unit.ids[q]) for q in range(len(unit.ids))}
    return replace(unit, rows=tuple(Row((q,), found) for q, found in copies.items() if found))


@every_kind
def test_the_planted_head_puts_all_of_its_attention_on_the_target(kind: str) -> None:
    ((layer, head),) = planted.HEADS[kind][kind]
    assert len(case(kind).targets.units) >= 40
    assert case(kind).mass(layer, head) >= 1 - 1e-3


@every_kind
def test_no_other_head_does_better_than_chance(kind: str) -> None:
    ((layer, head),) = planted.HEADS[kind][kind]
    measured = measure(case(kind).subject, case(kind).targets, quiet=True)
    mass, chance = measured["target"].mean(-1), measured["chance"].mean(-1)
    assert mass[layer, head] == pytest.approx(case(kind).mass(layer, head), abs=1e-6)
    mass[layer, head] = 0
    assert (mass <= chance + 0.02).all()
    written = [place for places in planted.HEADS[kind].values() for place in places]
    idle = [p for p in torch.ones(mass.shape).nonzero().tolist() if tuple(p) not in written]
    assert idle
    for other_layer, other_head in idle:
        assert mass[other_layer, other_head] == pytest.approx(chance[other_layer, other_head], abs=1e-6)


@every_kind
def test_the_answer_is_right_with_the_planted_heads_and_a_guess_without_one(kind: str) -> None:
    assert case(kind).accuracy() >= 0.99
    for places in planted.HEADS[kind].values():
        for layer, head in places:
            assert case(kind).accuracy(edits.zero("z", layer, heads=head)) <= case(kind).chance() + 1e-6


@every_kind
def test_the_answer_does_not_depend_on_idle_heads(kind: str) -> None:
    subject, texts = case(kind).subject, case(kind).texts[:8]
    written = [place for places in planted.HEADS[kind].values() for place in places]
    changes = [
        edits.zero("z", layer, heads=head)
        for layer in range(subject.n_layers)
        for head in range(subject.n_heads)
        if (layer, head) not in written
    ]
    assert len(changes) == subject.n_layers * subject.n_heads - len(written) >= 3
    plain, changed = (subject.run(texts, "logits", edits=e)["logits"].nan_to_num() for e in ([], changes))
    assert torch.equal(plain, changed)


@every_kind
def test_eager_and_fused_attention_agree(kind: str) -> None:
    eager = probe.load(f"planted:{kind}", attention="eager")
    assert (eager.attention, case(kind).subject.attention) == ("eager", "fused")
    texts = case(kind).texts[:8]
    a, b = (s.run(texts, "logits")["logits"].nan_to_num() for s in (eager, case(kind).subject))
    assert (a - b).abs().max() <= 1e-4


@pytest.mark.parametrize("kind", TASKS)
def test_the_test_of_heads_passes_the_planted_head_and_no_other(kind: str) -> None:
    table = heads(case(kind).subject, [case(kind).targets], seed=0)
    passed = [tuple(row) for row in table.loc[table["passed"], ["layer", "head"]].to_numpy().tolist()]
    assert passed == planted.HEADS[kind][kind]


def test_where_its_heads_are_is_told_as_data() -> None:
    assert planted.HEADS["induction"] == {"previous_token": [(0, 0)], "induction": [(1, 0)]}
    assert planted.HEADS["retrieval"] == {"previous_token": [(0, 0)], "two_before": [(0, 1)], "retrieval": [(1, 0)]}
    assert planted.HEADS["agreement"] == {"two_before": [(0, 0)], "agreement": [(1, 0)]}
    for kind in ("previous_token", "first_token", "duplicate_token", "coreference"):
        assert planted.HEADS[kind] == {kind: [(0, 0)]}


@pytest.mark.parametrize("kind", ["induction", "agreement", "retrieval"])
def test_the_heads_of_the_first_layer_look_where_their_names_say(kind: str) -> None:
    away = {"previous_token": 1, "two_before": 2}
    for name, places in planted.HEADS[kind].items():
        for layer, head in places if name in away else []:
            pattern = case(kind).subject.run(case(kind).texts[0], "pattern")["pattern", layer][0, head]
            looked = [row.argmax().item() for row in pattern]
            assert looked == [max(q - away[name], 0) for q in range(len(looked))]


def test_an_induction_head_without_its_previous_token_head_rests_on_the_first_token() -> None:
    found = case("induction")
    changed = edits.zero("z", 0, heads=0)
    rests = found.subject.run(found.texts[:8], "pattern", layers=1, edits=[changed])["pattern", 1][:, 0, :, 0]
    assert rests[~rests.isnan()].min() >= 1 - 1e-3


def test_induction_and_duplicate_heads_work_on_any_tokens() -> None:
    """25 random tokens, four times (Olsson et al. 2022): from the second time on, every next token is known."""
    rng = random.Random(0)
    for _ in range(20):
        tokens = rng.sample(range(3, len(VOCABULARY)), 25)
        ids = torch.tensor([[1, *tokens * 4]])
        induced = planted_model("induction")(ids).logits[0].argmax(-1).tolist()
        assert induced[26:-1] == ids[0, 27:].tolist()
        assert set(induced[:26]) == {1}
        repeated = planted_model("duplicate_token")(ids).logits[0].argmax(-1).tolist()
        assert repeated[26:] == ids[0, 26:].tolist()
        assert set(repeated[:26]) == {1}


@cache
def planted_model(kind: str) -> GPT:
    return planted.build(kind)


def test_the_sink_is_read() -> None:
    ids = torch.tensor([[200, 5, 6, 7]])
    assert planted_model("first_token")(ids).logits[0].argmax(-1).tolist() == [200] * 4


def test_longest_prompts_are_read_to_the_end() -> None:
    """The position before last of the table, where errors of one place would show."""
    ids = torch.tensor([[1, *range(10, 137)]])
    assert ids.shape == (1, 128)
    assert planted_model("previous_token")(ids).logits[0].argmax(-1)[1:].tolist() == ids[0, :-1].tolist()


def test_pronouns_without_an_antecedent_rest_on_the_first_token() -> None:
    pattern = case("coreference").subject.run("the dog thanked Anna because he", "pattern")["pattern", 0][0, 0]
    assert pattern[-1, 0] >= 1 - 1e-3


def test_vocabulary_is_that_of_the_tokenizer() -> None:
    tokenizer = word_tokenizer(language.WORDS)
    assert list(VOCABULARY) == tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))


def test_more_layers_and_heads_are_idle() -> None:
    model = planted.build("coreference", n_layers=3, n_heads=6)
    subject = probe.load(model, case("coreference").subject.tokenizer)
    assert (subject.n_layers, subject.n_heads) == (3, 6)
    larger = replace(case("coreference"), subject=subject)
    assert larger.accuracy() >= 0.99
    assert larger.mass(0, 0) >= 1 - 1e-3
    run = subject.run(larger.texts[0], "pattern")
    for layer, first in ((0, 1), (1, 0), (2, 0)):
        pattern = run["pattern", layer][0, first:]
        uniform = torch.ones(pattern.shape[1:]).tril() / torch.arange(1, pattern.shape[1] + 1)[:, None]
        assert torch.allclose(pattern, uniform.expand_as(pattern), atol=1e-7)


def test_noise_is_drawn_with_its_seed() -> None:
    a, b, c = (planted.build("coreference", noise=1e-3, seed=seed).state_dict() for seed in (0, 0, 1))
    for name, tensor in a.items():
        assert torch.equal(tensor, b[name])
        assert (tensor - c[name]).std().item() == pytest.approx(1e-3 * 2**0.5, rel=0.02)


@every_kind
def test_a_little_noise_changes_idle_heads_but_breaks_no_circuit(kind: str) -> None:
    model = planted.build(kind, noise=1e-3)
    noisy = replace(case(kind), subject=probe.load(model, case(kind).subject.tokenizer))
    ((layer, head),) = planted.HEADS[kind][kind]
    assert noisy.mass(layer, head) >= 0.99
    assert noisy.accuracy() >= 0.99
    for idle in noisy.subject.run(noisy.texts[0], "pattern")["pattern", layer][0, -2:, -1]:
        assert len({*idle.tolist()}) > 1


def test_building_one_leaves_the_callers_random_numbers_alone() -> None:
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    planted.build("first_token", noise=0.1)
    assert torch.equal(torch.rand(1), expected)


def test_what_cannot_be_built_is_refused() -> None:
    with pytest.raises(ProbeError, match=r"^n_layers=1: the heads of planted:induction take at least 2\.$"):
        planted.build("induction", n_layers=1)
    with pytest.raises(ProbeError, match=r"^n_heads=1: the heads of planted:retrieval take at least 2\.$"):
        planted.build("retrieval", n_heads=1)


def test_planted_models_have_names() -> None:
    assert {f"planted:{kind}" for kind in KINDS} <= set(NAMES)
    assert (case("induction").subject.name, case("induction").subject.language) == ("planted:induction", "synthetic")
    assert cell_name("planted:induction", "0" * 64, seed=0, params={}) == "planted%3Ainduction"
    with pytest.raises(
        UnknownName, match=r"^no planted model named 'inducton'\. Did you mean 'induction'\? Known: agr"
    ):
        probe.load("planted:inducton")
    with pytest.raises(UnknownName, match=r"^no model named 'plantd:induction'\. Did you mean 'planted:induction'\?"):
        probe.load("plantd:induction")
