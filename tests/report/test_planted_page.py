"""From a model whose head is known to the page: it stands first, with both legs, and prompts say what they lose."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probe
from probe.data import language
from probe.models import planted
from probe.report import card, write_report
from probe.report.folder import read_results
from probe.runner.attention import attention_result
from tests.report.browsing import Visit, in_chromium
from tests.report.conftest import Shape, key_of_fields, manifest

HEAD = planted.HEADS["coreference"]["coreference"][0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    subject = probe.load("planted:coreference")
    made = tmp_path_factory.mktemp("planted") / "run"
    made.mkdir()
    data = language.dataset("coreference", per_frame=4)
    pairs = tuple(item for number, item in enumerate(data.items) if number % 4 < 2)  # one minimal pair a template
    files = attention_result(subject, replace(data, items=pairs), seed=0).write(made)
    record: dict[str, Any] = manifest(Shape(subject.n_layers, subject.n_heads, subject.n_kv_heads))
    record["outputs"] = {name: hashlib.sha256((made / name).read_bytes()).hexdigest() for name in files}
    record["key"] = key_of_fields(record)
    (made / "manifest.json").write_text(json.dumps(record), encoding="utf-8")
    write_report(made)
    return made


def test_every_prompt_says_what_its_answer_loses_without_the_head(folder: Path) -> None:
    results = read_results(folder)
    leg = results.legs[results.main.name]
    assert results.patch is not None
    index = HEAD[0] * results.n_heads + HEAD[1]
    assert results.main.best == index
    assert leg.verdicts[index] == "supported"
    (value,) = [line for line in card.attention(results.main, index) if line.field == "value"]
    assert "best under shuffled labels" in value.control
    mine = results.patch[:, HEAD[0], HEAD[1]]
    measured = np.isfinite(mine)
    assert measured.any(), "the examples are of the half that tests"
    assert (mine[measured] > 0).all(), "each answer hangs on the planted head"
    others = np.delete(results.patch[measured].reshape(measured.sum(), -1), index, axis=1)
    assert np.nanmax(np.abs(others)) < mine[measured].min()


class TestInABrowser:
    pytestmark = in_chromium

    def test_the_planted_head_is_first_and_supported(self, folder: Path, visit: Callable[..., Visit]) -> None:
        name = f"{HEAD[0]}.{HEAD[1]}"
        page = visit(folder / "report.html").page
        assert page.locator("#head-title").text_content() == f"Head {name}"
        for table in page.locator("table.sortable:visible").all():
            assert table.locator("tbody th").first.text_content() == name
        assert page.locator('[data-show="outcome"]').text_content().startswith("supported (")
        assert page.locator(".map button[aria-current]").get_attribute("class") == "passed"
