"""The report is a pure function of a verified folder, and whatever the folder holds is shown as text."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from probe.errors import ResultsError
from probe.report import island, strips, tables
from probe.report.folder import read_results
from probe.report.page import check_budget, render, write_report
from probe.runner.results import Example

Make = Callable[..., Path]


class Text(HTMLParser):
    """Text of a page outside style and script, its tags, and the text of each token."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text, self.tags, self.tokens, self.data = "", [], [], ""
        self._inside: list[str] = []
        self._token: list[bool] = []
        self._island = False
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._inside.append(tag)
        self._island = ("type", "application/json") in attrs
        if tag in ("span", "bdi"):
            self._token.append(("class", "tok") in attrs)
        if ("class", "tok") in attrs:
            self.tokens.append("")

    def handle_endtag(self, tag):
        while self._inside and self._inside.pop() != tag:
            pass
        if tag in ("span", "bdi"):
            self._token.pop()

    def handle_data(self, data):
        last = self._inside[-1] if self._inside else ""
        if last in ("style", "script"):
            self.data += data * self._island
            return
        self.text += data
        if self._token and self._token[-1]:
            self.tokens[-1] += data


def rendered(folder: Path) -> str:
    """The page without its figures."""
    return render(read_results(folder), {"score_map.png": b"", "best_heads.png": b""}).decode("utf-8")


def page(folder: Path) -> str:
    return (folder / "report.html").read_text(encoding="utf-8")


def test_two_builds_are_byte_identical(big: Path, make_folder: Make, tmp_path: Path) -> None:
    before = {p.name: p.read_bytes() for p in [big / "report.html", *(big / "figures").iterdir()]}
    write_report(big)
    other = make_folder(tmp_path / "elsewhere" / "run")
    write_report(other)
    for folder in (big, other):
        for name, content in before.items():
            path = folder / name if name == "report.html" else folder / "figures" / name
            assert path.read_bytes() == content, name


def test_answer_question_and_numbers_are_in_the_page(big: Path) -> None:
    text = " ".join(Text(page(big)).text.split())
    heads = pd.read_parquet(big / "heads.parquet")
    best = heads[(heads.phenomenon == "coreference") & (heads.layer == 2) & (heads["head"] == 1)].iloc[0]
    assert "Which heads look from a pronoun to its antecedent?" in text
    assert "picks the antecedent in 91.3 % of prompts" in text
    assert f"{best.value:.3f} [{best.low:.3f}, {best.high:.3f}]" in text
    assert "✓ pass" in text
    assert "3 of 5 tested (270 in all)" in text
    assert "nearest 0.572" in text
    assert "412 prompts, 20 clusters" in text
    assert "pronoun before its antecedent" in text
    assert "probe run coreference --model smollm2" in text
    assert json.loads((big / "manifest.json").read_bytes())["outputs"]["examples.npz"] in text


def test_verdicts_never_claim_more_than_the_attention_leg(big: Path) -> None:
    text = Text(page(big)).text
    assert "supported" not in text.lower()
    assert "Causal leg: not measured in this report." in text


def test_every_headline_number_links_to_its_head(big: Path) -> None:
    hrefs = [a["href"] for tag, a in Text(page(big)).tags if tag == "a" and "href" in a]
    assert hrefs.count("#head=2.1&phenomenon=coreference") >= 2
    assert any(h.endswith("&phenomenon=previous%20token") for h in hrefs)


def test_page_allows_nothing_from_outside(big: Path) -> None:
    tags = Text(page(big)).tags
    policy = next(a["content"] for tag, a in tags if a.get("http-equiv") == "Content-Security-Policy")
    script = re.search(r"<script>(.*?)</script>", page(big), re.DOTALL)
    assert script is not None
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'; img-src data: blob:;")
    for _, attributes in tags:
        for name in ("src", "href"):
            assert (attributes.get(name) or "#").startswith(("#", "data:image/png"))


@pytest.mark.parametrize(("layers", "heads", "kv"), [(6, 12, 12), (4, 4, 1), (48, 25, 5)])
def test_other_shapes_build_under_four_megabytes(
    make_folder: Make, tmp_path: Path, layers: int, heads: int, kv: int
) -> None:
    report = write_report(make_folder(tmp_path / "run", layers, heads, kv))
    assert report.stat().st_size < 4_000_000
    assert f"{layers} layers × {heads} heads" in report.read_text(encoding="utf-8")


def test_hostile_tokens_are_text(make_folder: Make, hostile_example: Example, tmp_path: Path) -> None:
    def change(manifest: dict) -> None:
        manifest["question"] = "<script>alert(1)</script> {{ 7 * 7 }}?"
        manifest["model"]["name"] = '"><img src=x onerror=alert(1)>'

    folder = make_folder(tmp_path / "run", 4, 4, 1, examples=[hostile_example], change=change)
    html = rendered(folder)
    parsed = Text(html)
    for tag, attributes in parsed.tags:
        assert not any(name.startswith("on") for name in attributes), (tag, attributes)
    assert [tag for tag, _ in parsed.tags].count("script") == 2
    assert "<script>alert(1)</script> {{ 7 * 7 }}?" in parsed.text
    shown = parsed.tokens[-len(hostile_example.tokens) :]
    expected = [t if t == " " else t.lstrip(" ") for t in hostile_example.tokens]
    changed = {"nul\x00l": "nul␀l", "\u202eevil": "⟨U+202E⟩evil", "\n": "↵\n", "\tx": "␉x"}
    changed |= {"\u2028": "⟨U+2028⟩", "\ud800": "⟨U+D800⟩"}
    assert shown == [changed.get(t, t) for t in expected]
    assert "</script><b>item" in parsed.text
    assert "\x00" not in html


def test_data_island_cannot_end_its_element() -> None:
    text = island.island({"a": "</script><!--\u2028&", "b": None})
    assert not set(text) & set("<>&\u2028")
    assert json.loads(text)["a"] == "</script><!--\u2028&"


def test_attention_in_the_page_is_within_its_quantisation_step(big: Path) -> None:
    results = read_results(big)
    for number, example in enumerate(results.examples):
        strip = strips.pieces(example)
        exact = results.rows[number, :, :, : len(example.tokens)]
        decoded = strips.decoded(strips.codes(strip, exact))
        np.testing.assert_array_less(np.abs(decoded - exact), 0.004)


def test_long_prompts_keep_marked_words_and_the_sum_of_what_is_left_out() -> None:
    n = 3000
    example = Example("i", "c", ("x",) * n, (2900,), (40,), ((1500, 1501),))
    strip = strips.pieces(example)
    assert len(strip) < 300
    assert [p.start for p in strip] == [0, *(p.stop for p in strip[:-1])]
    assert strip[-1].stop == n
    row = np.random.default_rng(0).dirichlet(np.ones(n)).astype(np.float32)
    gap = next(p for p in strip if p.left_out)
    code = strips.codes(strip, row)[strip.index(gap)]
    assert strips.decoded(code) == pytest.approx(row[gap.start : gap.stop].sum(), abs=0.004)
    assert strips.indices(strip, (1500,)) == [i for i, p in enumerate(strip) if p.start == 1500]


def test_grouped_query_attention_names_the_key_value_head(make_folder: Make, tmp_path: Path) -> None:
    results = read_results(make_folder(tmp_path / "run", 4, 9, 3))
    assert [results.kv_head(h) for h in range(9)] == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_described_phenomena_get_no_verdict(big: Path) -> None:
    lines = {line.name: line for line in tables.headlines(read_results(big))}
    assert not lines["previous token"].tested
    assert lines["previous token"].rival == "–"
    assert {r.verdict for r in tables.all_rows(read_results(big).phenomena[1])} == {"described"}


def test_a_manifest_that_lacks_a_field_is_refused_by_its_name(make_folder: Make, tmp_path: Path) -> None:
    def change(manifest: dict) -> None:
        del manifest["model"]["weights_sha256"]

    with pytest.raises(ResultsError, match=r"is not a manifest of probe: model\.weights_sha256: Field required"):
        write_report(make_folder(tmp_path / "run", 4, 4, 1, change=change))


def test_a_run_that_only_describes_has_a_report_without_verdicts(make_folder: Make, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "run", 4, 4, 1, examples=[Example("i", "c", ("a", " b"), (1,), (0,), ())])
    heads, rivals = pd.read_parquet(folder / "heads.parquet"), pd.read_parquet(folder / "rivals.parquet")
    rewrite(folder, "heads.parquet", heads[heads.phenomenon != "coreference"].to_parquet())
    rewrite(folder, "rivals.parquet", rivals.iloc[:0].to_parquet())
    text = Text(write_report(folder).read_text(encoding="utf-8")).text
    assert "✓ pass" not in text
    assert "✕ fail" not in text
    assert "above every foil" not in text


def test_a_run_without_examples_still_has_a_report(make_folder: Make, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "run", 4, 4, 1, n_examples=0)
    assert "kept no example prompts" in write_report(folder).read_text(encoding="utf-8")
    assert not (folder / "figures" / "example.png").exists()


def test_missing_empty_and_foreign_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match=r"no results folder at .*nowhere"):
        write_report(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ResultsError, match=r"empty is not a results folder.*it is empty"):
        write_report(tmp_path / "empty")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "photo.jpg").write_bytes(b"x")
    with pytest.raises(ResultsError, match=r"no manifest\.json \(found photo\.jpg\)"):
        write_report(tmp_path / "foreign")
    (tmp_path / "foreign" / "manifest.json").write_text('{"name": "something else"}')
    with pytest.raises(ResultsError, match="is not a manifest of probe: study: Field required"):
        write_report(tmp_path / "foreign")
    (tmp_path / "foreign" / "manifest.json").write_text("{")
    with pytest.raises(ResultsError, match="is not a manifest of probe: the file: Invalid JSON"):
        write_report(tmp_path / "foreign")


def test_a_changed_or_missing_file_is_named(make_folder: Make, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "run", 4, 4, 1)
    text = (folder / "result.json").read_text(encoding="utf-8")
    (folder / "result.json").write_text(text.replace("91.3", "99.9"), encoding="utf-8")
    with pytest.raises(ResultsError, match=r"result\.json is not the file the run wrote: its SHA-256"):
        write_report(folder)
    (folder / "result.json").unlink()
    with pytest.raises(ResultsError, match=r"result\.json is missing"):
        write_report(folder)
    assert not (folder / "report.html").exists()


def rewrite(folder: Path, name: str, content: bytes) -> None:
    """Replace a file and its hash: malformed, but not tampered with."""
    (folder / name).write_bytes(content)
    record = json.loads((folder / "manifest.json").read_bytes())
    record["outputs"][name] = hashlib.sha256(content).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(record))


def test_malformed_files_are_named_with_their_field(make_folder: Make, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "run", 4, 4, 1)
    heads = pd.read_parquet(folder / "heads.parquet")
    rewrite(folder, "heads.parquet", heads.drop(columns="p_holm").to_parquet())
    with pytest.raises(ResultsError, match=r"heads\.parquet lacks the columns p_holm"):
        write_report(folder)
    rewrite(folder, "heads.parquet", heads.iloc[1:].to_parquet())
    with pytest.raises(ResultsError, match="'coreference' must have each of the 4 x 4 heads once"):
        write_report(folder)
    rewrite(folder, "heads.parquet", heads.to_parquet())
    examples = json.loads((folder / "examples.json").read_bytes())
    examples[3]["target"] = [99]
    rewrite(folder, "examples.json", json.dumps(examples).encode())
    with pytest.raises(ResultsError, match=r"example 3 .* marks position 99"):
        write_report(folder)
    del examples[3]["target"]
    rewrite(folder, "examples.json", json.dumps(examples).encode())
    with pytest.raises(ResultsError, match="example 3 is malformed: KeyError"):
        write_report(folder)
    rewrite(folder, "examples.json", b"[]")
    rewrite(folder, "examples.npz", b"not a zip")
    with pytest.raises(ResultsError, match=r"examples\.npz does not hold the array 'rows'"):
        write_report(folder)


def test_the_budget_names_the_largest_part() -> None:
    with pytest.raises(ResultsError, match=r"would be 5\.00 MB.* largest part is the attention of the"):
        check_budget(5_000_000, {"figures": 400_000, "attention of the example prompts": 3_000_000})
    check_budget(4_000_000, {"figures": 1})


def test_the_report_never_loads_a_model() -> None:
    code = "import sys, probe.report; print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
