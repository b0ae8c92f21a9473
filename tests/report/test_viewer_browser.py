"""The attention viewer in a real browser: what it draws and names is what was captured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probe
from probe.data import language
from probe.models import planted
from probe.report.gather import Gathered, Layer, Prompt, gather
from probe.report.viewer import About, render
from probe.subject import Subject
from tests.report.browsing import Visit, in_chromium, until
from tests.report.conftest import HOSTILE
from tests.report.test_viewer import prompt, rows

pytestmark = in_chromium
Open = Callable[..., Visit]
N = 12


def layers() -> Iterator[Layer]:
    """Three layers of four heads over `N` tokens; one key-value head for two query heads."""
    rng = np.random.default_rng(3)
    for number in range(3):
        patterns = np.stack([rows(N, seed=10 * number + head) for head in range(4)])
        q, k, v = (rng.normal(size=(N, heads, 8)).astype(np.float32) for heads in (4, 2, 2))
        yield Layer(number, (patterns,), (q,), (k,), (v,))


def exact(layer: int, head: int) -> np.ndarray:
    return rows(N, seed=10 * layer + head)


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("viewer") / "page.html"
    path.write_bytes(render([prompt(N)], gather(layers(), [prompt(N)], range(4)), About("planted")))
    return path


def shown(page: Any, fragment: str = "") -> None:
    """Wait until what the fragment asks for is drawn."""
    until(page, "part => (document.documentElement.dataset.shown || '').includes(part)", arg=fragment)


def titles(page: Any, text: int = 0) -> np.ndarray:
    found = (
        page.locator(".strips").nth(text).locator(".tok").evaluate_all("all => all.map(t => t.title.split('≈ ')[1])")
    )
    return np.array(found, float)


def point(page: Any, q: int, k: int, n: int = N, text: int = 0) -> tuple[float, float]:
    page.locator("canvas").nth(text).scroll_into_view_if_needed()
    box = page.locator(".plane canvas").nth(text).bounding_box()
    return box["x"] + (k + 0.5) * box["width"] / n, box["y"] + (q + 0.5) * box["height"] / n


def test_hovering_names_the_query_and_the_key(page_file: Path, visit: Open) -> None:
    page = visit(page_file, "#head=1.2").page
    shown(page, "head=1.2")
    for q, k in ((7, 2), (2, 7), (0, 11)):
        page.mouse.move(*point(page, q, k))
        words = page.locator(".cell").text_content()
        assert words.startswith(f"“t{q}” ({q}) → “t{k}” ({k}): ≈ ")
        assert float(words.rsplit("≈ ", 1)[1]) == pytest.approx(exact(1, 2)[q, k], abs=0.0045)


def test_the_picture_has_the_weights_as_opacity(page_file: Path, visit: Open) -> None:
    page = visit(page_file, "#head=2.3").page
    shown(page, "head=2.3")
    code = "c => [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data].filter((_, i) => i % 4 === 3)"
    alpha = np.array(page.locator(".plane canvas").evaluate(code)).reshape(N, N)
    np.testing.assert_allclose((alpha / 255) ** 2, exact(2, 3), atol=0.004)


def test_choosing_heads_and_tokens_shows_their_rows_and_columns(page_file: Path, visit: Open) -> None:
    page = visit(page_file).page
    shown(page)
    for layer, head in ((0, 3), (2, 1)):
        page.locator(".thumb").nth(4 * layer + head).click()
        shown(page, f"head={layer}.{head}")
        assert page.locator("#head-title").text_content() == f"Head {layer}.{head}"
        assert f"query head {head} → key-value head {head // 2}" in page.locator('[data-show="where"]').text_content()
        page.locator(".strips .tok").nth(5).click()
        shown(page, f"head={layer}.{head}&query=5")
        np.testing.assert_allclose(titles(page), exact(layer, head)[5], atol=0.0045)
        strongest = page.locator(".most tbody th").first.text_content()
        assert strongest == f"“t{exact(layer, head)[5].argmax()}” ({exact(layer, head)[5].argmax()})"
    page.locator('#mode input[value="to"]').check()
    page.locator(".strips .tok").nth(4).click()
    shown(page, "key=4&mode=to")
    np.testing.assert_allclose(titles(page), exact(2, 1)[:, 4], atol=0.0045)
    page.go_back()
    shown(page, "head=0.3")
    assert page.locator("#head-title").text_content() == "Head 0.3"


def test_a_link_restores_what_was_seen_and_a_wrong_one_harms_nothing(page_file: Path, visit: Open) -> None:
    page = visit(page_file, "#head=2.1&query=3&key=8").page
    shown(page, "head=2.1&query=3&key=8")
    assert page.locator(".cell").text_content().startswith("“t3” (3) → “t8” (8)")
    page = visit(page_file, "#head=99.9&query=700&text=5").page
    shown(page, "head=")


def test_everything_works_by_keyboard(page_file: Path, visit: Open) -> None:
    page = visit(page_file, "#head=0.0&query=4&key=4").page
    shown(page, "head=0.0")
    page.locator(".thumb").first.focus()
    for key in ("ArrowRight", "ArrowDown", "ArrowDown"):
        page.keyboard.press(key)
    assert "layer 1, query head 2" in page.locator("#readout").text_content()
    page.keyboard.press("Enter")
    shown(page, "head=1.2")
    page.locator(".plane").focus()
    for key in ("ArrowDown", "ArrowLeft"):
        page.keyboard.press(key)
    shown(page, "query=5&key=3")
    page.locator(".strips").focus()
    page.keyboard.press("End")
    shown(page, f"query={N - 1}")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineWidth") == "3px"


def test_q_k_and_v_are_those_of_the_head(page_file: Path, visit: Open) -> None:
    page = visit(page_file, "#head=1.3&query=6").page
    shown(page, "head=1.3&query=6")
    page.locator("#vectors summary").click()
    page.wait_for_selector(".qkv canvas")
    made = list(layers())[1]
    products = made.q[0][6, 3] @ made.k[0][:, 1].T
    found = page.locator(".qkv tbody tr").evaluate_all(
        "rows => rows.slice(1).map(r => [r.cells[0].textContent, r.cells[2].textContent.replace('−', '-')])"
    )
    assert len(found) == N
    for name, score in found:
        key = int(name.split("(")[1].rstrip(")"))
        assert float(score.removeprefix("≈ ")) == pytest.approx(products[key], abs=0.15)


def test_without_script_texts_thumbnails_and_tables_remain(page_file: Path, visit: Open) -> None:
    page = visit(page_file, java_script_enabled=False).page
    assert page.locator(".thumb").count() == 12
    assert page.locator(".thumb").first.bounding_box()["width"] > 20
    assert page.locator(".strips .tok").nth(5).is_visible()
    assert not page.locator(".plane").is_visible()
    page.locator("summary", has_text="spread their attention").click()
    assert page.locator("table:has(caption) tbody tr").count() == 12


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_narrow_pages_do_not_scroll_sideways(page_file: Path, visit: Open, scheme: str) -> None:
    page = visit(page_file, viewport={"width": 400, "height": 800}, color_scheme=scheme).page
    shown(page)
    page.locator("#vectors summary").click()
    page.wait_for_selector(".qkv canvas")
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    box = [page.locator(".thumb").nth(i).bounding_box() for i in (0, 1, 4)]
    assert box[0]["y"] == box[1]["y"] < box[2]["y"], "layers run downward, heads across"


def test_hostile_tokens_do_nothing(tmp_path: Path, visit: Open) -> None:
    n = len(HOSTILE)
    hostile = Prompt(HOSTILE, tuple(range(n)))
    seen = gather([Layer(0, (np.stack([rows(n, seed=1), rows(n, seed=2)]),))], [hostile], range(2))
    (tmp_path / "page.html").write_bytes(render([hostile], seen, About("<b>x</b>")))
    page = visit(tmp_path / "page.html", "#head=0.0&query=2", viewport={"width": 400, "height": 800}).page
    shown(page, "query=2")
    words = page.locator(".strips .tok").all_text_contents()
    assert words[1:6] == ["</script>", '"><img src=x onerror=alert(1)>', "{{x}}", "&lt;", "nul␀l"]
    assert page.locator("img").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


@pytest.mark.parametrize("n", [1000, 2000, 8192])
def test_long_texts_load_quickly_and_with_few_nodes(n: int, tmp_path: Path, visit: Open) -> None:
    """30 x 9 heads, all with the same pattern, which is built once: each token looks at the one three before it."""
    pattern = np.eye(n, k=-3, dtype=np.float32)
    pattern[:3, 0] = 1
    one = gather([Layer(0, (pattern[None],))], [prompt(n)], range(1))
    seen = Gathered(tuple(range(9)), list(range(30)), 9, one.thumbnails * 270, one.patterns * 270, one.shares * 270)
    path = tmp_path / "page.html"
    path.write_bytes(render([prompt(n)], seen, About("long")))
    assert path.stat().st_size < 4_000_000
    page = visit(path, f"#head=0.0&query={n - 1}").page
    shown(page, "head=0.0")
    assert page.evaluate("performance.now()") < 4000
    assert page.evaluate("document.getElementsByTagName('*').length") < 6000
    assert page.locator(".most tbody th").first.text_content() == f"“t{n - 4}” ({n - 4})"
    chosen = page.locator(".strips .tok.chosen")
    chosen.wait_for()
    assert chosen.text_content() == f"t{n - 1}", "the text is scrolled to it"
    page.evaluate("document.querySelector('.strips').scrollTop = 0")
    page.locator('.strips .tok[data-i="3"]').wait_for()
    page.evaluate("document.querySelector('.strips').scrollTop = 1e9")
    last = page.locator(f'.strips .tok[data-i="{n - 4}"]')
    last.wait_for()
    assert last.get_attribute("title") == f"{n - 4}: ≈ 1.000"
    assert page.evaluate("document.getElementsByTagName('*').length") < 6000


def test_two_texts_are_seen_at_once(tmp_path: Path, visit: Open) -> None:
    pair = [Layer(0, (rows(N, seed=1)[None], rows(N, seed=2)[None]))]
    texts = [prompt(N), prompt(N)]
    seen = gather(pair, texts, range(1))
    (tmp_path / "page.html").write_bytes(render(texts, seen, About("pair")))
    page = visit(tmp_path / "page.html").page
    shown(page)
    page.locator(".strips").nth(1).locator(".tok").nth(6).click()
    shown(page, "query=6&text=1")
    np.testing.assert_allclose(titles(page, 1), rows(N, seed=2)[6], atol=0.0045)
    np.testing.assert_allclose(titles(page, 0), rows(N, seed=1)[seen.differences[0].query], atol=0.0045)
    page.mouse.move(*point(page, 3, 9, text=1))
    assert page.locator(".cell").nth(1).text_content().startswith("“t3” (3) → “t9” (9)")
    before = page.locator(".thumb").first.evaluate("t => getComputedStyle(t).backgroundImage")
    page.locator("#sheet").select_option("1")
    assert page.locator(".thumb").first.evaluate("t => getComputedStyle(t).backgroundImage") != before


def test_two_views_in_one_notebook_both_draw(tmp_path: Path, visit: Open, tiny: Subject) -> None:
    texts = ("it was late .", "the miner that the hunters sometimes see is brave .")
    frames = [probe.view(tiny.run(text, ["pattern", "q", "k", "v"]))._repr_html_() for text in texts]
    (tmp_path / "notebook.html").write_text(
        f"<!DOCTYPE html><meta charset=utf-8><title>n</title>{''.join(frames)}", encoding="utf-8"
    )
    page = visit(tmp_path / "notebook.html").page
    for number, text in enumerate(texts):
        frame = page.frames[1 + number]
        until(frame, "document.documentElement.dataset.shown")
        assert frame.locator(".strips").text_content().split() == ["<bos>", *text.split()]
        assert frame.locator(".plane canvas").evaluate("c => c.width") == 1 + len(text.split())
        frame.locator(".thumb").nth(5).click()
        until(frame, "document.getElementById('head-title').textContent === 'Head 1.1'")
        frame.locator("summary", has_text="spread their attention").click()
        frame.locator("table a", has_text="3.0").click()
        until(frame, "document.getElementById('head-title').textContent === 'Head 3.0'")


def test_the_planted_head_is_the_first_that_looks_from_pronoun_to_antecedent(tmp_path: Path, visit: Open) -> None:
    subject = probe.load("planted:coreference")
    ((layer, head),) = planted.HEADS["coreference"]["coreference"]
    data = language.dataset("coreference", per_frame=4)
    (unit, *_) = subject.bind(data).units
    text = next(item.text for item in data.items if item.item == unit.item)
    path = probe.view(subject.run(text, ["pattern"])).write(tmp_path / "page.html")
    (row,) = unit.rows
    page = visit(path, f"#query={row.query[0]}&key={row.target[0]}").page
    shown(page, f"query={row.query[0]}&key={row.target[0]}")
    page.locator(".lookers summary").click()
    page.wait_for_selector(".lookers a")
    assert page.locator(".lookers a").first.text_content() == f"{layer}.{head}"
    assert f"{layer}.{head} ≈ 1.000" in page.locator(".lookers p").text_content()
