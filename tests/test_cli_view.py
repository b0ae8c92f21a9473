"""The command `probe view`."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from probe import cli_view
from probe.errors import UnsupportedModel
from probe.subject import Subject
from tests.report.test_report_page import Text
from tests.report.test_viewer import island, unpacked
from tests.test_cli import command, one_error

TEXT = "Helen has paper . Oscar has wine . what has Helen :"
PAIR = "Helen has paper . Oscar has wine . what has Oscar :"


def test_a_page_is_written_and_made_again_by_its_own_command(
    tiny: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = command("view", "tiny", TEXT)
    assert ended.code == 0, ended.err
    (page,) = tmp_path.iterdir()
    assert ended.out == f"{page.name} (open this in a browser)\n"
    content = page.read_bytes()
    text = Text(content.decode()).text
    assert f"probe view tiny '{TEXT}'" in text
    assert tiny.weights_hash in text
    (shown,) = island(content)["prompts"]
    n, run = len(shown["tokens"]), tiny.run(TEXT, ["pattern"])
    for number in ("0", "7", "15"):
        kind, packed = shown["patterns"][number]
        exact = run["pattern", int(number) // 4][0, int(number) % 4].numpy()
        np.testing.assert_allclose(np.nan_to_num(unpacked(kind, packed, n, n)), exact, atol=0.004)
    assert command("view", "tiny", TEXT, "--out", tmp_path / "again.html").code == 0
    assert (tmp_path / "again.html").read_bytes() == content


def test_a_pair_is_compared_and_exact_weights_are_kept(tiny: Subject, tmp_path: Path) -> None:
    page = tmp_path / "pair.html"
    ended = command("view", "tiny", TEXT, "--pair", PAIR, "--head", "3.1", "--out", page, "--exact")
    assert ended.code == 0, ended.err
    text = Text(page.read_bytes().decode()).text
    assert "Where the two texts differ most" in text
    assert f"pair.npz, sha256 {hashlib.sha256((tmp_path / 'pair.npz').read_bytes()).hexdigest()}" in " ".join(
        text.split()
    )
    assert island(page.read_bytes())["best"] == 13
    run = tiny.run([TEXT, PAIR], ["pattern"])
    with np.load(tmp_path / "pair.npz") as kept:
        for number in (0, 1):
            n = len(run.prompts[number])
            exact = run["pattern", 3][number, :, :n, :n].numpy()
            np.testing.assert_allclose(kept[f"text_{number}_layer_3"], exact, atol=1e-6)


def test_several_passes_read_the_same_as_one(minilm: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [minilm.encode("The nurse met the pilot because she was late."), minilm.encode("It rained.")]
    whole = list(cli_view.patterns(minilm, prompts))
    monkeypatch.setattr(cli_view, "HELD", 1)
    parts = list(cli_view.patterns(minilm, prompts))
    assert [layer.index for layer in parts] == [layer.index for layer in whole] == list(range(6))
    for one, other in zip(whole, parts, strict=True):
        for name in ("patterns", "q", "k", "v"):
            for a, b in zip(getattr(one, name), getattr(other, name), strict=True):
                np.testing.assert_allclose(a, b, atol=1e-6)
        assert [p.shape[1:] for p in one.patterns] == [(len(p), len(p)) for p in prompts]
        np.testing.assert_allclose(one.patterns[1].sum(-1), 1, atol=1e-5)


def test_a_model_that_shows_no_q_and_k_still_shows_its_patterns(tiny: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    captured = Subject.captured

    def without(self: Subject, ids: object, sites: tuple[str, ...], **more: object) -> object:
        if "rot_q" in sites:
            raise UnsupportedModel("no rot_q")
        return captured(self, ids, sites, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Subject, "captured", without)
    layers = list(cli_view.patterns(tiny, [tiny.encode(TEXT)]))
    assert [layer.index for layer in layers] == [0, 1, 2, 3]
    assert all(layer.q == () for layer in layers)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("tiny", TEXT, "--head", "9"), "--head '9' is not of the form layer.head"),
        (("tiny", TEXT, "--head", "7.0"), "layer 7 does not exist: allowed are 0 to 3"),
        (("tiny", TEXT, "--head", "1.4"), "head 4 does not exist: allowed are 0 to 3"),
        (("tiny", " "), "the prompt is empty"),
        (("tinny", TEXT), "Did you mean 'tiny'?"),
        (("tiny", TEXT, "--out", "/nowhere/at/all.html"), "the page cannot be written to"),
    ],
)
def test_mistakes_are_told_in_one_line(words: tuple[str, ...], says: str) -> None:
    ended = command("view", *words)
    assert says in one_error(ended)
    assert ended.code != 0
