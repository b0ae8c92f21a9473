"""The attention viewer: what its page holds is what was captured, within the step of a byte, and nothing else acts."""

from __future__ import annotations

import base64
import html
import io
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import probe
from probe.capture.run import Run
from probe.errors import CaptureError, OutOfRange, ResultsError
from probe.report.gather import SHARES, Gathered, Layer, Prompt, difference, gather
from probe.report.packing import DENSE, TOP, packed, sheet, thumbnail
from probe.report.viewer import About, choose, render
from probe.subject import Subject
from tests.report.conftest import HOSTILE
from tests.report.test_report_page import Text


def rows(n: int, keys: int | None = None, *, causal: bool = False, seed: int = 0) -> np.ndarray:
    """Attention that no transposition leaves as it is; every row sums to one."""
    made = np.random.default_rng(seed).dirichlet(np.full(keys or n, 0.2), size=n).astype(np.float32)
    if causal:
        made = np.tril(made + 1e-6)
        made /= made.sum(1, keepdims=True)
    return made


def island(page: bytes) -> dict[str, Any]:
    return json.loads(Text(page.decode()).data)


def unpacked(kind: str, data: str, n_rows: int, n_keys: int) -> np.ndarray:
    """Weights from a page, by the description of the format; NaN for what was not kept."""
    raw = zlib.decompress(base64.b64decode(data))
    found = np.full((n_rows, n_keys), np.nan)
    at = 0
    for q in range(n_rows):
        if kind == "top":
            for i in range(q * TOP, (q + 1) * TOP):
                key = raw[2 * i] + 256 * raw[2 * i + 1]
                found[q, key] = (raw[2 * n_rows * TOP + i] / 255) ** 2
            continue
        for k in range(q + 1 if kind == "half" else n_keys):
            found[q, k] = (raw[at] / 255) ** 2
            at += 1
    return found


def layers(n_layers: int = 3, n_heads: int = 4, n: int = 12, **more: Any) -> Iterator[Layer]:
    for number in range(n_layers):
        yield Layer(number, (np.stack([rows(n, seed=10 * number + h, **more) for h in range(n_heads)]),))


def prompt(n: int = 12) -> Prompt:
    return Prompt(tuple(f" t{i}" for i in range(n)), tuple(range(n)), (0,))


def page_of(seen: Gathered, *prompts: Prompt, about: About | None = None) -> bytes:
    return render(prompts, seen, about or About("planted"))


@pytest.mark.parametrize(("causal", "keys", "kind"), [(True, 40, "half"), (False, 40, "whole"), (False, 23, "whole")])
def test_a_pattern_is_read_back_within_its_step(causal: bool, keys: int, kind: str) -> None:
    pattern = rows(40, keys, causal=causal)
    made = packed(pattern)
    assert made.kind == kind
    found = unpacked(made.kind, made.data, 40, keys)
    np.testing.assert_allclose(np.nan_to_num(found), pattern, atol=0.004)
    for q in (0, 17, 39):
        np.testing.assert_array_equal((made.row(q) / 255.0) ** 2, np.nan_to_num(found[q]))


def test_of_a_long_row_the_largest_weights_are_kept_and_the_rest_is_summed() -> None:
    pattern = rows(5, DENSE + 300)
    made = packed(pattern)
    assert made.kind == "top"
    found = unpacked(made.kind, made.data, *pattern.shape)
    rest = np.frombuffer(zlib.decompress(base64.b64decode(made.data)), np.uint8)[-5:]
    for q, row in enumerate(pattern):
        kept = np.flatnonzero(~np.isnan(found[q]))
        assert sorted(kept) == sorted(np.argsort(-row)[:TOP])
        np.testing.assert_allclose(found[q, kept], row[kept], atol=0.004)
        assert (rest[q] / 255) ** 2 == pytest.approx(1 - row[kept].sum(), abs=0.004)
        np.testing.assert_array_equal((made.row(q) / 255.0) ** 2, np.nan_to_num(found[q]))


def test_a_thumbnail_shows_a_diagonal_that_a_mean_would_hide() -> None:
    diagonal = np.eye(1000, k=-1, dtype=np.float32)
    small = thumbnail(diagonal)
    assert small.shape == (32, 32)
    assert (np.diag(small) == 255).all()
    assert np.triu(small, 1).sum() == 0
    exact = rows(9)
    np.testing.assert_allclose((thumbnail(exact) / 255.0) ** 2, exact, atol=0.004)


def test_the_sheet_holds_each_thumbnail_in_its_place() -> None:
    tiles = [np.full((3, 5), 10 * i, dtype=np.uint8) for i in range(6)]
    with Image.open(io.BytesIO(sheet(tiles, columns=2))) as image:
        alpha = np.asarray(image.convert("RGBA"))[..., 3]
    assert alpha.shape == (9, 10)
    assert [[int(alpha[3 * r, 5 * c]) for c in range(2)] for r in range(3)] == [[0, 10], [20, 30], [40, 50]]


def test_shares_add_up_in_plain_python() -> None:
    pattern = rows(12, causal=True)
    seen = gather([Layer(0, (pattern[None],))], [replace(prompt(), special=(0, 11))], range(1))
    shares = dict(zip(SHARES, seen.shares[0][0], strict=True))
    usual = {q: {0, 11, q, q - 1} for q in range(12)}
    assert shares["first token"] == pytest.approx(sum(pattern[q, 0] for q in range(12)) / 12)
    assert shares["itself"] == pytest.approx(sum(pattern[q, q] for q in range(12)) / 12)
    assert shares["previous"] == pytest.approx(sum(pattern[q, q - 1] for q in range(1, 12)) / 12)
    assert shares["special"] == pytest.approx(sum(pattern[q, 0] + pattern[q, 11] for q in range(12)) / 12)
    left = sum(pattern[q, k] for q in range(12) for k in range(12) if k not in usual[q]) / 12
    assert shares["elsewhere"] == pytest.approx(left, abs=1e-6)


def test_the_page_holds_every_heads_pattern_where_there_is_room() -> None:
    data = island(page_of(gather(layers(), [prompt()], range(4)), prompt()))
    assert data["layers"] == [0, 1, 2]
    assert data["heads"] == [0, 1, 2, 3]
    assert len(data["prompts"][0]["patterns"]) == 12
    for number, (kind, packed_) in data["prompts"][0]["patterns"].items():
        exact = rows(12, seed=10 * (int(number) // 4) + int(number) % 4)
        np.testing.assert_allclose(unpacked(kind, packed_, 12, 12), exact, atol=0.004)


def test_two_builds_are_byte_identical() -> None:
    first, second = (page_of(gather(layers(), [prompt()], range(4)), prompt()) for _ in range(2))
    assert first == second


def test_heads_asked_for_come_first_and_what_is_left_out_is_said() -> None:
    seen = gather(layers(n=300), [prompt(300)], range(4))
    one = len(seen.patterns[0][0].data)
    asked = choose(seen, [(2, 3), (0, 1)], int(3.5 * one))
    assert asked.patterns[:2] == (11, 1)
    assert len(asked.patterns) == 3
    assert asked.patterns[2] == max(set(range(12)) - {11, 1}, key=lambda h: seen.shares[h][0, -1])
    assert choose(seen, [], 10).patterns, "one is always kept"
    text = Text(page_of(gather(layers(1, 2, 1100), [prompt(1100)], range(2)), prompt(1100)).decode()).text
    assert "16 largest weights and the sum of the rest" in text


def test_long_texts_stay_in_the_budget() -> None:
    """30 x 9 heads, all with the same pattern, which is built once."""
    n = 2000
    pattern = np.tril(np.random.default_rng(0).random((n, n), dtype=np.float32) ** 32)
    pattern /= np.maximum(pattern.sum(1, keepdims=True), 1e-9)
    one = gather([Layer(0, (pattern[None],))], [prompt(n)], range(1))
    many = 270
    seen = Gathered(tuple(range(9)), list(range(30)), 9, one.thumbnails * many, one.patterns * many, one.shares * many)
    page = page_of(seen, prompt(n))
    assert 200_000 < len(page) < 4_000_000
    assert f"Patterns of {many - len(island(page)['prompts'][0]['patterns'])} heads" in Text(page.decode()).text


def test_hostile_tokens_are_text() -> None:
    n = len(HOSTILE)
    seen = gather(layers(1, 2, n), [Prompt(HOSTILE, tuple(range(n)))], range(2))
    name = '"><img src=x onerror=alert(1)>'
    page = render([Prompt(HOSTILE, tuple(range(n)))], seen, About(name, command="probe view '</script>'"))
    parsed = Text(page.decode())
    assert [tag for tag, _ in parsed.tags].count("script") == 2
    assert "img" not in [tag for tag, _ in parsed.tags]
    for tag, attributes in parsed.tags:
        assert not any(word.startswith("on") for word in attributes), (tag, attributes)
    assert parsed.tokens[1] == "</script>"
    assert "probe view '</script>'" in parsed.text
    assert b"\x00" not in page


def test_the_page_allows_nothing_from_outside() -> None:
    page = page_of(gather(layers(), [prompt()], range(4)), prompt()).decode()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'; img-src data: blob:;")
    assert "unsafe-eval" not in page
    assert re.findall(r"https?://", page) == []


def test_differences_are_total_variation() -> None:
    one, other = rows(6, seed=1), rows(6, seed=2)
    found = difference(one, other)
    by_hand = [
        sum(abs(float(a) - float(b)) for a, b in zip(x, y, strict=True)) / 2 for x, y in zip(one, other, strict=True)
    ]
    assert found.mean == pytest.approx(sum(by_hand) / 6, abs=1e-6)
    assert found.most == pytest.approx(max(by_hand), abs=1e-6)
    assert found.query == by_hand.index(max(by_hand))
    assert difference(one, one).most == 0


def test_two_texts_are_set_side_by_side_and_unequal_ones_say_why_not() -> None:
    pair = [Layer(0, (rows(5, seed=1)[None], rows(5, seed=2)[None]))]
    text = Text(page_of(gather(pair, [prompt(5)] * 2, range(1)), prompt(5), prompt(5)).decode()).text
    assert "Where the two texts differ most" in text
    uneven = [Layer(0, (rows(5)[None], rows(6)[None]))]
    text = Text(page_of(gather(uneven, [prompt(5), prompt(6)], range(1)), prompt(5), prompt(6)).decode()).text
    assert "The texts have 5 and 6 tokens" in text


# runs


def test_a_run_is_shown_with_its_words_and_its_numbers(tiny: Subject) -> None:
    text = "Helen has paper . Oscar has wine . what has Helen :"
    run = tiny.run(text, ["pattern", "rot_q", "rot_k", "v", "scores"])
    data = island(probe.view(run).page)
    (shown,) = data["prompts"]
    assert "".join(lead + word for lead, word, _ in shown["tokens"]).strip().endswith(text)
    n = len(shown["tokens"])
    for number, (kind, packed_) in shown["patterns"].items():
        layer, head = divmod(int(number), tiny.n_heads)
        exact = run["pattern", layer][0, head].numpy()
        np.testing.assert_allclose(np.nan_to_num(unpacked(kind, packed_, n, n)), exact, atol=0.004)
    for number in ("0", "6"):
        layer, head = divmod(int(number), tiny.n_heads)
        q, k = (vectors(shown[part][number], n) for part in ("q", "k"))
        scores = run["scores", layer][0, head].numpy()
        seen = np.tril_indices(n)
        scaled = (q @ k.T)[seen] / np.sqrt(tiny.d_head)
        assert np.corrcoef(scaled, scores[seen])[0, 1] > 0.999


def vectors(packed_: dict[str, Any], n: int) -> np.ndarray:
    raw = zlib.decompress(base64.b64decode(packed_["data"]))
    signed = np.array([byte - 256 * (byte > 127) for byte in raw], dtype=float)
    return signed.reshape(n, -1) * packed_["step"]


def test_chosen_rows_and_heads_keep_their_numbers(tiny: Subject) -> None:
    text = "Helen has paper . Oscar has wine . what has Helen :"
    run = tiny.run(text, ["pattern"], rows=[2, 5], heads=[1, 3], layers=[1, 2])
    data = island(probe.view(run).page)
    assert (data["layers"], data["heads"]) == ([1, 2], [1, 3])
    (shown,) = data["prompts"]
    assert shown["at"] == [2, 5]
    kind, packed_ = shown["patterns"]["3"]
    found = unpacked(kind, packed_, 2, len(shown["tokens"]))
    np.testing.assert_allclose(found, run["pattern", 2][0, 1].numpy(), atol=0.004)


def test_prompts_of_one_run_are_cut_to_their_own_length(tiny: Subject) -> None:
    run = tiny.run(["it was late .", "the miner that the hunters sometimes see is brave ."], ["pattern"])
    data = island(probe.view(run).page)
    lengths = [len(shown["tokens"]) for shown in data["prompts"]]
    assert lengths == [len(p) for p in run.prompts]
    only = island(probe.view(run, prompts=[1]).page)
    assert [shown["tokens"] for shown in only["prompts"]] == [data["prompts"][1]["tokens"]]


def test_what_a_generation_wrote_is_shown_by_its_ids(tiny: Subject) -> None:
    written = tiny.generate("it was", max_new_tokens=4, sites=["pattern"])
    (shown,) = island(probe.view(written).page)["prompts"]
    assert shown["at"] == "all"
    assert [word for _, word, _ in shown["tokens"]][-1] == f"⟨{written.ids[0][-2]}⟩"


def test_cross_attention_has_queries_that_are_no_keys() -> None:
    encoded = SimpleNamespace(shown=("the", " cat", " sat"), special=(), ids=(5, 6, 7))
    pattern = torch.tensor(rows(2, 3))[None, None]
    run = Run((encoded,), None, {("cross.pattern", 0): pattern}, ((8, 9),))
    (shown,) = island(probe.view(run, site="cross.pattern").page)["prompts"]
    assert shown["rows"] == ["⟨8⟩", "⟨9⟩"]
    assert shown["at"] is None
    kind, packed_ = shown["patterns"]["0"]
    np.testing.assert_allclose(unpacked(kind, packed_, 2, 3), pattern[0, 0].numpy(), atol=0.004)


def test_what_is_not_there_is_named(tiny: Subject, tmp_path: Path) -> None:
    run = tiny.run("it was late .", ["q"])
    with pytest.raises(OutOfRange, match=r"'pattern' was not captured, but q: subject\.run"):
        probe.view(run)
    run = tiny.run("it was late .", ["pattern"])
    with pytest.raises(OutOfRange, match="prompt 3 does not exist"):
        probe.view(run, prompts=[3])
    with pytest.raises(OutOfRange, match="0 prompts were asked for"):
        probe.view(run, prompts=[])
    with pytest.raises(ResultsError, match="cannot be written"):
        probe.view(run).write(tmp_path / "no" / "folder.html")
    with pytest.raises(CaptureError, match="nothing to look at"):
        gather([], [prompt()], range(4))


def test_a_notebook_gets_a_frame_that_reaches_nothing(tiny: Subject) -> None:
    view = probe.view(tiny.run("it was late .", ["pattern"]))
    shown = view._repr_html_()
    assert shown.startswith('<iframe sandbox="allow-scripts" ')
    assert "allow-same-origin" not in shown
    source = re.search(r'srcdoc="([^"]*)"', shown)
    assert source is not None
    assert html.unescape(source[1]).encode() == view.page
    assert "makes a page" in repr(view)


def test_heads_that_share_keys_are_told_even_where_keys_were_not_read() -> None:
    data = island(page_of(gather(layers(), [prompt()], range(4), 2), prompt()))
    assert data["kv"] == [0, 0, 1, 1]
    assert island(page_of(gather(layers(), [prompt()], range(4)), prompt()))["kv"] is None
