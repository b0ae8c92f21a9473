"""Training: update and schedule by hand, resuming bit for bit, held-out data, and the shipped model's record."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import probe
from probe.data import language
from probe.errors import DataError, ProbeError, PromptError, ResultsError, UnknownName
from probe.models import store
from probe.models.accuracy import PER_FRAME, task_accuracy
from probe.models.checkpoints import CHECKPOINT
from probe.models.corpora import Stage, SyntheticLanguage, TextFile, held_out, read_text, split
from probe.models.gpt import GPT, Config
from probe.models.recipes import RECIPES, make
from probe.models.tokenizer import byte_pair_tokenizer, character_tokenizer, from_file, word_tokenizer
from probe.models.train import Recipe, Trained, evaluation_loss, learning_rate, summed_loss, train
from probe.subject import Subject

PROSE = (
    "The quick brown fox jumps over the lazy dog; it was, after all, a dog.\n\n  And “naïve” 🦊 foxes jump.\r\n" * 30
)
CYCLE = "abcdefgh" * 500
SMALL = Recipe(steps=12, batch_size=8, warmup=3, every=4, learning_rate=5e-3)
WORDS = word_tokenizer(language.WORDS)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Models this small are trained faster by one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def config(vocab_size: int, **given: object) -> Config:
    return Config(
        **{"vocab_size": vocab_size, "n_layers": 1, "n_heads": 2, "d_model": 32, "max_positions": 16, **given}
    )


def on_cycle(folder: Path | None = None, recipe: Recipe = SMALL, **given: object) -> Trained:
    """A small model of `CYCLE`."""
    tokenizer = character_tokenizer(CYCLE)
    corpus = TextFile(CYCLE, tokenizer, positions=16)
    return train(config(len(tokenizer)), recipe, corpus, tokenizer=tokenizer, folder=folder, quiet=True, **given)


def on_language(folder: Path | None = None, recipe: Recipe = SMALL, **given: object) -> Trained:
    """A small model of the synthetic language."""
    sizes = config(len(WORDS), max_positions=64)
    return train(sizes, recipe, SyntheticLanguage(WORDS), tokenizer=WORDS, folder=folder, quiet=True, **given)


def interrupted_at(step: int):
    """A hook that ends the training as Ctrl-C does, after `step` steps."""

    def hook(done: int, _: GPT) -> None:
        if done == step:
            raise KeyboardInterrupt

    return hook


# the arithmetic


def test_the_learning_rate_warms_up_in_a_line_and_falls_in_a_cosine_to_a_tenth() -> None:
    recipe = Recipe(steps=20, warmup=4, learning_rate=0.2)
    rates = [learning_rate(recipe, step) for step in range(20)]
    assert rates[:4] == pytest.approx([0.05, 0.1, 0.15, 0.2])
    assert rates[4:] == pytest.approx([0.02 + 0.18 * (1 + math.cos(math.pi * n / 16)) / 2 for n in range(16)])
    assert learning_rate(recipe, 20) == pytest.approx(0.02)


def test_the_loss_is_minus_the_log_of_each_next_tokens_probability_and_leaves_padding_out() -> None:
    torch.manual_seed(0)
    model = GPT(config(9)).eval()
    rows = [[1, 5, 3, 8, 4], [1, 7, 6]]
    by_hand = 0.0
    for row in rows:
        with torch.no_grad():
            logits = model(torch.tensor([row])).logits[0].double().numpy()
        for at, following in enumerate(row[1:]):
            by_hand -= logits[at, following] - np.log(np.exp(logits[at]).sum())
    padded = torch.tensor([rows[0], [*rows[1], 0, 0]])
    assert summed_loss(model, padded).item() == pytest.approx(by_hand, rel=1e-5)


def test_the_first_update_is_adamws_by_hand_on_the_whole_batch() -> None:
    """Gradient of the mean over all real tokens of the batch, as one padded tensor; clipped; then Loshchilov's step."""
    recipe = Recipe(steps=1, batch_size=6, warmup=0, learning_rate=0.01, weight_decay=0.1, clip=0.05, seed=3)
    weights: list[dict[str, torch.Tensor]] = []
    on_language(
        recipe=recipe, on_step=lambda _, m: weights.append({n: p.detach().clone() for n, p in m.named_parameters()})
    )
    before, after = weights
    halves = SyntheticLanguage(WORDS).batch(random.Random(3), 6)
    rows = [[i for i in row if i] for half in halves for row in half.tolist()]
    width = max(map(len, rows))
    whole = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    model = GPT(config(len(WORDS), max_positions=64))
    model.load_state_dict(before)
    (summed_loss(model, whole) / sum(len(row) - 1 for row in rows)).backward()
    gradients = {n: p.grad for n, p in model.named_parameters()}
    norm = math.sqrt(sum(float((g**2).sum()) for g in gradients.values()))
    assert norm > recipe.clip
    for name, gradient in gradients.items():
        clipped = gradient * recipe.clip / norm
        # In the first step both of Adam's means, once corrected, are the gradient and its square.
        expected = before[name] * (1 - 0.01 * 0.1) - 0.01 * clipped / (clipped.abs() + 1e-8)
        sure = clipped.abs() > 1e-6  # nearer to zero, rounding decides how far Adam goes
        assert sure.any()
        assert torch.allclose(after[name][sure], expected[sure], atol=2e-5), name


def test_the_loss_falls_to_what_cannot_be_known() -> None:
    """In a cycle of eight letters only the first letter of a window is a surprise: ln 8 nats in 16 tokens."""
    trained = on_cycle(recipe=Recipe(steps=150, batch_size=16, warmup=10, learning_rate=5e-3, every=50))
    least = math.log(8) / 16
    assert [step for step, _ in trained.evaluations] == [0, 50, 100, 150]
    assert trained.evaluations[0][1] == pytest.approx(math.log(11), abs=0.1)
    assert least - 0.03 < trained.evaluations[-1][1] < least + 0.05
    assert trained.losses[-1] < least + 0.05


def test_the_language_is_learned() -> None:
    recipe = Recipe(steps=200, batch_size=16, warmup=10, learning_rate=5e-3, every=200)
    trained = on_language(recipe=recipe)
    first, last = (loss for _, loss in trained.evaluations)
    assert first == pytest.approx(math.log(len(WORDS)), abs=0.2)
    assert last < 3.3
    assert sum(trained.losses[-20:]) / 20 == pytest.approx(last, abs=0.3)


# the same again


def test_training_is_repeatable_and_its_seed_matters() -> None:
    one, same, other = on_language(), on_language(), on_language(recipe=Recipe(**{**vars(SMALL), "seed": 1}))
    assert len(one.losses) == 12
    assert one.losses == same.losses
    assert one.evaluations == same.evaluations
    assert one.losses[0] != other.losses[0]


@pytest.mark.parametrize("training", [on_cycle, on_language])
def test_resuming_gives_the_losses_and_weights_of_an_uninterrupted_run_bit_for_bit(training, tmp_path: Path) -> None:
    whole = training(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        training(tmp_path / "cut", on_step=interrupted_at(7))
    assert [p.name for p in (tmp_path / "cut").iterdir()] == [CHECKPOINT]
    seen: list[int] = []
    resumed = training(tmp_path / "cut", resume=True, on_step=lambda done, _: seen.append(done))
    assert seen == list(range(5, 13))  # the last checkpoint is after step 4
    assert resumed.losses == whole.losses
    assert resumed.evaluations == whole.evaluations
    for name in ("model.safetensors", "tokenizer.json", "recipe.json", "config.json", "losses.csv"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    assert not (tmp_path / "cut" / CHECKPOINT).exists()


def test_a_checkpoint_holds_no_pickle_and_its_state_is_json(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        on_cycle(tmp_path, on_step=interrupted_at(5))
    raw = (tmp_path / CHECKPOINT).read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    kept = json.loads(header.pop("__metadata__")["training"])
    assert len(kept["losses"]) == 4
    assert kept["inputs"]["recipe"] == vars(SMALL)
    assert len(kept["rng"][1]) == 625
    parameters = {n.removeprefix("model.") for n in header if n.startswith("model.")}
    assert len([n for n in header if n.startswith("optimizer.")]) == 3 * len(parameters)


KILLED = """
import os, signal, sys
from pathlib import Path
from probe.models import store
path = Path(sys.argv[1])
store.write(path, b"old")
os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)
store.write(path, b"new and longer")
"""


def test_a_write_that_is_killed_leaves_the_old_file(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path / CHECKPOINT], timeout=120)
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / CHECKPOINT).read_bytes() == b"old"
    assert sorted(p.name for p in tmp_path.iterdir()) == [f".{CHECKPOINT}.partial", CHECKPOINT]


def test_a_checkpoint_whose_write_fails_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = on_cycle(tmp_path / "whole")

    def full(done: int, _: GPT) -> None:
        if done == 6:  # the checkpoint after step 4 is there; the one after step 8 cannot be written
            monkeypatch.setattr(os, "fsync", no_space)

    def no_space(_: int) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(ResultsError, match=r"checkpoint\.safetensors cannot be written: No space left on device"):
        on_cycle(tmp_path / "cut", on_step=full)
    monkeypatch.undo()
    assert [p.name for p in (tmp_path / "cut").iterdir()] == [CHECKPOINT]
    assert on_cycle(tmp_path / "cut", resume=True).losses == whole.losses


def test_the_hook_sees_the_model_in_evaluation_mode_before_and_after_every_step() -> None:
    seen = []
    trained = on_cycle(
        on_step=lambda done, model: seen.append((done, model.training, model.base_model.embed.weight[1, 0].item()))
    )
    assert [done for done, _, _ in seen] == list(range(13))
    assert not any(training for _, training, _ in seen)
    assert len({weight for _, _, weight in seen}) == 13
    assert seen[-1][2] == trained.model.base_model.embed.weight[1, 0].item()
    assert not trained.model.training


def test_training_leaves_the_callers_random_numbers_alone() -> None:
    torch.manual_seed(5)
    random.seed(5)
    expected = torch.rand(3).tolist(), random.random()
    torch.manual_seed(5)
    random.seed(5)
    on_cycle()
    assert (torch.rand(3).tolist(), random.random()) == expected


# data


def test_a_text_is_cut_at_nine_tenths_and_windows_never_cross() -> None:
    text = "".join(chr(0x4E00 + n) for n in range(2000))  # no character twice: each one's place can be told
    tokenizer = character_tokenizer(text)
    corpus = TextFile(text, tokenizer, positions=32)
    rng = random.Random(0)
    place = {i: text.index(c) for c, i in tokenizer.get_vocab().items() if len(c) == 1}
    starts = set()
    for _ in range(40):
        for row in corpus.batch(rng, 50)[0].tolist():
            assert row[0] == tokenizer.bos_token_id
            places = [place[i] for i in row[1:]]
            assert places == list(range(places[0], places[0] + 32))
            starts.add(places[0])
    assert min(starts) < 20
    assert 1748 < max(starts) <= 1800 - 32
    evaluated = [place[i] for ids in corpus.evaluation for row in ids.tolist() for i in row[1:]]
    assert evaluated == list(range(1800, 1800 + 6 * 32))
    assert split(text) == (text[:1800], text[1800:])


def test_texts_held_out_for_evaluation_are_never_trained_on() -> None:
    corpus = SyntheticLanguage(WORDS)
    rng = random.Random(0)

    def texts(rows: list[torch.Tensor]) -> list[str]:
        return [WORDS.decode([i for i in row if i > 1]) for ids in rows for row in ids.tolist()]

    trained_on = [text for _ in range(50) for text in texts(corpus.batch(rng, 64))]
    evaluated = texts(corpus.evaluation)
    assert len(trained_on) == 3200
    assert len(evaluated) == 512
    assert not any(map(held_out, trained_on))
    assert all(map(held_out, evaluated))
    drawn = [held_out(language.draw(rng)) for _ in range(4000)]
    assert 0.07 < sum(drawn) / len(drawn) < 0.13


def test_no_training_text_begins_like_a_question_that_accuracy_asks() -> None:
    corpus, rng = SyntheticLanguage(WORDS, {"coreference": 1}), random.Random(0)
    asked = {
        " ".join(item.text[: item.question.read_at].split())
        for item in language.dataset("coreference", 7, PER_FRAME).items
        if held_out(item.text)
    }
    assert len(asked) > 150
    for _ in range(50):
        for ids in corpus.batch(rng, 64):
            for row in ids.tolist():
                words = WORDS.decode([i for i in row if i > 1]).split()
                assert not asked & {" ".join(words[:n]) for n in range(len(words))}


def test_rows_of_the_language_are_what_the_tokenizer_makes_of_its_texts() -> None:
    rng = random.Random(1)
    rows = [i for ids in SyntheticLanguage(WORDS).batch(rng, 200) for i in ids.tolist()]
    for row in rows:
        real = [i for i in row if i]
        assert real == WORDS(WORDS.decode(real[1:]))["input_ids"]
        assert row == real + [0] * (len(row) - len(real))


def test_stages_come_one_after_the_other() -> None:
    first = (Stage(3, {"repeats": 1.0}), Stage(2, {"facts": 1.0}))
    corpus = SyntheticLanguage(WORDS, {"agreement": 1.0}, first=first)
    drawn = [next(iter(corpus.tasks_at(step))) for step in range(7)]
    assert drawn == ["repeats"] * 3 + ["facts"] * 2 + ["agreement"] * 2
    colon = WORDS.get_vocab()[":"]
    for step in range(7):
        asks = all(bool((ids == colon).any(1).all()) for ids in corpus.batch(random.Random(0), 8, step))
        assert asks is (step in (3, 4)), "facts alone end in questions"
    with pytest.raises(UnknownName, match="no task of the synthetic language named 'repeat'"):
        SyntheticLanguage(WORDS, first=(Stage(1, {"repeat": 1.0}),))


def test_tasks_are_drawn_as_often_as_their_weights_say() -> None:
    rows = SyntheticLanguage(WORDS, {"agreement": 3, "facts": 1}).batch(random.Random(0), 2000)
    asks = WORDS.get_vocab()["what"]
    share = sum(asks in row for ids in rows for row in ids.tolist()) / 2000
    assert share == pytest.approx(0.25, abs=0.04)
    with pytest.raises(UnknownName, match=r"no task of the synthetic language named 'fact'[.] Did you mean 'facts'[?]"):
        SyntheticLanguage(WORDS, {"fact": 1})


# tokenizers


@pytest.mark.parametrize("make_tokenizer", [character_tokenizer, byte_pair_tokenizer])
def test_a_text_comes_back_from_its_tokens_and_their_offsets(make_tokenizer, tmp_path: Path) -> None:
    tokenizer = make_tokenizer(PROSE)
    tokenizer.backend_tokenizer.save(str(tmp_path / "tokenizer.json"))
    for text in (PROSE[:220], "dog", " a  dog\n"):
        for one in (tokenizer, from_file(tmp_path / "tokenizer.json")):
            made = one(text, return_offsets_mapping=True)
            assert made["input_ids"][0] == one.bos_token_id == 1
            assert (one.pad_token_id, one.unk_token_id) == (0, 2)
            assert one.decode(made["input_ids"][1:]) == text
            covered = {i for start, end in made["offset_mapping"][1:] for i in range(start, end)}
            assert covered == set(range(len(text)))


def test_characters_are_one_token_each_and_new_ones_are_unknown() -> None:
    tokenizer = character_tokenizer("ab\nc")
    made = tokenizer("cab\nzé", return_offsets_mapping=True)
    assert tokenizer.convert_ids_to_tokens(made["input_ids"]) == ["<bos>", "c", "a", "b", "\n", "<unk>", "<unk>"]
    assert made["offset_mapping"][1:] == [(i, i + 1) for i in range(6)]
    assert len(tokenizer) == 3 + 4


def test_byte_pairs_read_any_text_in_the_vocabulary_they_were_given() -> None:
    tokenizer = byte_pair_tokenizer(PROSE, 300)
    assert len(tokenizer) == 300
    assert byte_pair_tokenizer(PROSE, 300).get_vocab() == tokenizer.get_vocab()
    ids = tokenizer("шалаш 東京")["input_ids"]
    assert tokenizer.unk_token_id not in ids
    assert tokenizer.decode(ids[1:]) == "шалаш 東京"
    assert len(tokenizer("The quick brown fox")["input_ids"]) < 12
    with pytest.raises(ProbeError, match=r"vocabulary of 100 is too small for byte pairs: .* need 259 at least"):
        byte_pair_tokenizer(PROSE, 100)


@pytest.mark.parametrize("make_tokenizer", [character_tokenizer, byte_pair_tokenizer])
def test_a_corpus_read_in_pieces_has_the_tokens_of_the_whole_text(make_tokenizer) -> None:
    text = f"{PROSE}dog  \n\n\n  fox \n\tdog\n \nfox\n\n" * 3
    tokenizer = make_tokenizer(text)
    corpus = TextFile(text, tokenizer, positions=16)
    assert corpus.training.tolist() == tokenizer(split(text)[0], add_special_tokens=False)["input_ids"]


# the folder


def test_the_folder_is_a_model_that_reads_its_text(tmp_path: Path) -> None:
    tokenizer = byte_pair_tokenizer(PROSE, 300)
    corpus = TextFile(PROSE, tokenizer, positions=64, name="prose.txt")
    trained = train(
        config(300, max_positions=64), SMALL, corpus, tokenizer=tokenizer, folder=tmp_path / "prose", quiet=True
    )
    subject = probe.load(tmp_path / "prose")
    assert (subject.name, subject.n_layers, subject.n_heads) == ("prose", 1, 2)
    encoded = subject.encode("The lazy “naïve” dog jumps.")
    assert "".join(p for p, s in zip(encoded.pieces, encoded.spans, strict=True) if s) == encoded.text
    assert subject.run("The dog jumps.", sites=["pattern"])["pattern", 0].shape[1] == 2
    assert evaluation_loss(subject.model, corpus) == trained.evaluations[-1][1]
    record = json.loads((tmp_path / "prose" / "recipe.json").read_text())
    assert {k: record[k] for k in vars(SMALL)} == vars(SMALL)
    assert record["data"]["name"] == "prose.txt"
    assert record["data"]["tokens_held_out"] == len(tokenizer(split(PROSE)[1], add_special_tokens=False)["input_ids"])
    assert store.language(tmp_path / "prose") == "english"
    lines = (tmp_path / "prose" / "losses.csv").read_text().splitlines()
    assert lines[0] == "step,training,held_out"
    assert lines[1] == f"0,,{trained.evaluations[0][1]}"
    assert lines[2] == f"1,{trained.losses[0]},"
    assert lines[5] == f"4,{trained.losses[3]},{trained.evaluations[1][1]}"
    assert len(lines) == 2 + 12


def test_a_config_without_the_newer_choices_loads(tmp_path: Path) -> None:
    on_cycle(tmp_path / "cycle")
    path = tmp_path / "cycle" / "config.json"
    fields = json.loads(path.read_text())
    old = ("model_type", "vocab_size", "n_layers", "n_heads", "d_model", "max_positions", "init_scale", "attention")
    path.write_text(json.dumps({name: fields[name] for name in old}))
    model, _ = store.load(tmp_path / "cycle")
    assert model.config == config(11)


def test_a_folder_that_holds_something_else_is_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ResultsError, match=r"holds 'notes.txt', which is not of a training. Choose another folder"):
        on_cycle(tmp_path)
    with pytest.raises(ResultsError, match=r"notes\.txt cannot be a training's folder: File exists"):
        on_cycle(tmp_path / "notes.txt")
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_trained_model_and_a_checkpoint_are_not_replaced(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        on_cycle(tmp_path, on_step=interrupted_at(5))
    with pytest.raises(ResultsError, match="holds the checkpoint of an unfinished training: resume it"):
        on_cycle(tmp_path)
    on_cycle(tmp_path, resume=True)
    with pytest.raises(ResultsError, match="holds a trained model, which is not replaced"):
        on_cycle(tmp_path)
    with pytest.raises(ResultsError, match="no checkpoint to resume from: its training is finished"):
        on_cycle(tmp_path, resume=True)
    with pytest.raises(ResultsError, match="no checkpoint to resume from: nothing was kept there"):
        on_cycle(tmp_path / "new", resume=True)
    with pytest.raises(ProbeError, match="nothing to resume without a folder"):
        on_cycle(resume=True)


def test_a_checkpoint_of_another_training_or_of_none_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        on_cycle(tmp_path, on_step=interrupted_at(5))
    other = Recipe(**{**vars(SMALL), "learning_rate": 1e-3})
    with pytest.raises(ResultsError, match=r"another recipe: learning_rate was 0\.005 and is now 0\.001"):
        on_cycle(tmp_path, recipe=other, resume=True)
    with pytest.raises(ResultsError, match="another config: vocab_size was 11 and is now"):
        on_language(tmp_path, resume=True)
    (tmp_path / CHECKPOINT).write_bytes(b"no tensors")
    with pytest.raises(ResultsError, match=r"checkpoint\.safetensors is not a checkpoint of a training"):
        on_cycle(tmp_path, resume=True)


# what cannot be trained


def test_trainings_that_make_no_sense_are_refused() -> None:
    tokenizer = character_tokenizer(CYCLE)
    corpus = TextFile(CYCLE, tokenizer, positions=16)
    with pytest.raises(ProbeError, match="a bidirectional model sees the token it is to predict"):
        train(config(11, visible="bidirectional"), SMALL, corpus, tokenizer=tokenizer)
    with pytest.raises(PromptError, match="the prompt has 16 tokens; this model reads at most 8"):
        train(config(11, max_positions=8), SMALL, corpus, tokenizer=tokenizer)
    with pytest.raises(ProbeError, match=r"the training has diverged. Its learning rate, 1e\+30, is too high"):
        on_cycle(recipe=Recipe(steps=30, batch_size=4, warmup=0, learning_rate=1e30))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("steps", 0, "steps=0 must be at least 1"),
        ("every", 0, "every=0 must be at least 1"),
        ("batch_size", -3, "batch_size=-3 must be at least 1"),
        ("learning_rate", 0.0, "learning_rate=0.0 must be above 0"),
        ("learning_rate", math.nan, "learning_rate=nan must be above 0"),
        ("warmup", -1, "warmup=-1 must be at least 0"),
    ],
)
def test_a_recipe_that_cannot_be_is_refused(field: str, value: float, message: str) -> None:
    with pytest.raises(ProbeError, match=message):
        Recipe(**{field: value})


def test_files_that_cannot_be_trained_on_are_named(tmp_path: Path) -> None:
    tokenizer = character_tokenizer(CYCLE)
    with pytest.raises(
        DataError,
        match=r"cycle is too short: it has 1,000 tokens, .* \(100\) .* of 128 positions. That needs about 1,280 tokens",
    ):
        TextFile(CYCLE[:1000], tokenizer, positions=128, name="cycle")
    assert len(TextFile(CYCLE[:1280], tokenizer, positions=128).evaluation[0]) == 1
    with pytest.raises(DataError, match=r"the text file .*none\.txt does not exist"):
        read_text(tmp_path / "none.txt")
    (tmp_path / "blank.txt").write_text(" \n")
    with pytest.raises(DataError, match=r"blank\.txt is empty"):
        read_text(tmp_path / "blank.txt")
    (tmp_path / "image.txt").write_bytes(b"abc\xff\xfe")
    with pytest.raises(DataError, match=r"image\.txt is not UTF-8 text: byte 3 cannot be read"):
        read_text(tmp_path / "image.txt")
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        read_text(tmp_path)


def test_a_recipe_without_that_name_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match=r"no recipe named 'tinny'[.] Did you mean 'tiny'[?]"):
        make("tinny", tmp_path)


# the shipped model


def record() -> dict:
    return json.loads((store.TINY / "recipe.json").read_text())


def test_the_shipped_weights_do_on_a_fresh_seed_what_their_record_says(tiny: Subject) -> None:
    reached = task_accuracy(tiny.model, tiny.tokenizer, seed=11).set_index("task")
    assert tuple(reached.index) == language.tasks() == tuple(record()["accuracy"])
    assert (reached["n"] >= 150).all()
    for task, row in record()["accuracy"].items():
        assert row["accuracy"] >= 0.95
        assert reached.loc[task, "accuracy"] >= 0.93
        assert reached.loc[task, "accuracy"] == pytest.approx(row["accuracy"], abs=0.04)


def test_accuracy_counts_right_answers_over_all_wrong_ones() -> None:
    """A model that always prefers one word is right where that word is the answer, and nowhere else."""
    model = GPT(config(len(WORDS), max_positions=64, n_layers=1)).eval()
    favourite = WORDS.get_vocab()["see"]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.base_model.norm.bias.fill_(1.0)
        model.base_model.embed.weight[favourite] = 1.0
    reached = task_accuracy(model, WORDS, seed=2).set_index("task")
    items = [i for i in language.dataset("agreement", 2, PER_FRAME).items if held_out(i.text)]
    right = sum(i.question.right == "see" for i in items)
    assert reached.loc["agreement", ["n", "right"]].tolist() == [len(items), right]
    assert 0 < right < len(items)
    p, n, z = right / len(items), len(items), 1.959964
    middle, half = (p + z * z / 2 / n), z * math.sqrt(p * (1 - p) / n + z * z / 4 / n**2)
    interval = [(middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)]
    assert reached.loc["agreement", ["low", "high"]].tolist() == pytest.approx(interval, rel=1e-6)
    assert reached.loc["coreference", "right"] == 0


def test_the_shipped_weights_fit_their_recipe_and_the_language(tiny: Subject) -> None:
    named = RECIPES["tiny"]
    assert {k: record()[k] for k in vars(named.recipe)} == vars(named.recipe)
    assert record()["data"] == json.loads(json.dumps(SyntheticLanguage(WORDS, named.tasks, first=named.first).identity))
    assert tiny.model.config == Config(vocab_size=len(WORDS), **named.config)
    assert WORDS.get_vocab() == tiny.tokenizer.get_vocab()
    assert (store.TINY / "model.safetensors").stat().st_size < 6_000_000
    assert {p.name for p in store.TINY.iterdir()} == {
        "config.json",
        "model.safetensors",
        "recipe.json",
        "tokenizer.json",
    }


def test_the_recipe_gives_the_first_losses_on_record() -> None:
    """During the warm-up the learning rate does not depend on how many steps follow."""
    named = RECIPES["tiny"]
    assert named.recipe.warmup > 3
    shorter = Recipe(**{**vars(named.recipe), "steps": 3})
    corpus = SyntheticLanguage(WORDS, named.tasks, first=named.first)
    again = train(Config(len(WORDS), **named.config), shorter, corpus, tokenizer=WORDS, quiet=True)
    assert again.losses == pytest.approx(record()["first_losses"][:3], rel=1e-4)
    assert again.evaluations[0][1] == pytest.approx(record()["evaluations"][0][1], rel=1e-4)
