"""Figures: PNG of the house width, the same bytes whatever the text and the reader's settings."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from PIL import Image

from probe.report import figures, metrics, sentence
from probe.report.folder import read_results
from probe.report.page import DRAWN_BY
from probe.runner.results import Example

Make = Callable[..., Path]


@pytest.mark.parametrize(("layers", "heads"), [(30, 9), (6, 12), (4, 4)])
def test_every_figure_is_a_png_of_the_house_width(make_folder: Make, tmp_path: Path, layers: int, heads: int) -> None:
    results = read_results(make_folder(tmp_path / "run", layers, heads, heads))
    for name, draw in DRAWN_BY.items():
        content = draw(results)
        assert content is not None, name
        with Image.open(io.BytesIO(content)) as image:
            assert image.format == "PNG"
            assert image.width == 1200
            assert "Software" not in image.info


def test_the_readers_settings_change_nothing_and_are_kept(make_folder: Make, tmp_path: Path) -> None:
    results = read_results(make_folder(tmp_path / "run", 4, 4, 1))
    first = figures.best_heads(results)
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "savefig.bbox": "tight"}):
        assert figures.best_heads(results) == first
        assert matplotlib.rcParams["font.size"] == 30


def test_the_best_head_is_the_brightest_cell_of_its_layer_and_head(make_folder: Make, tmp_path: Path) -> None:
    results = read_results(make_folder(tmp_path / "run"))
    values = results.main.numbers["value"].reshape(30, 9)
    assert np.unravel_index(values.argmax(), values.shape) == (2, 1)
    assert results.main.label(results.main.best) == "2.1"
    scale = metrics.scale(results.main, "value")
    assert (scale.low, scale.high) == (0, 1)
    assert dict(scale.marks) == {"chance": 0.5, "best rival: nearest": 0.572}


def test_without_a_pass_the_selection_half_names_the_best_head(make_folder: Make, tmp_path: Path) -> None:
    main = read_results(make_folder(tmp_path / "run", 4, 4, 1)).main
    none = replace(
        main,
        passed=np.zeros(16, dtype=bool),
        picked=np.isin(np.arange(16), (3, 5)),
        numbers={**main.numbers, "selection_value": np.arange(16.0)},
    )
    assert none.ranked()[:3] == [5, 3, 15]


def test_hostile_tokens_can_be_drawn(make_folder: Make, hostile_example: Example, tmp_path: Path) -> None:
    results = read_results(make_folder(tmp_path / "run", 4, 4, 1, examples=[hostile_example]))
    assert sentence.example(results)
    with figures.styled():
        assert sentence.drawable("a\U0001f469b\u200dc") == "a▯bc"


def test_rivals_of_the_same_value_share_a_line(make_folder: Make, tmp_path: Path) -> None:
    main = read_results(make_folder(tmp_path / "run", 4, 4, 1)).main
    names = [name for name, *_ in figures._reference_lines(main)]
    assert names == ["nearest", "first", "longer", "chance", "best random head"]
    same = replace(main, rivals=tuple(replace(r, value=0.5) for r in main.rivals))
    assert next(name for name, *_ in figures._reference_lines(same)) == "nearest, first, longer, chance"


def test_labels_that_would_meet_go_on_different_levels() -> None:
    assert figures._levels([1.0, 1.1, 4.0], [1.0, 1.0, 1.0]) == [0, 1, 0]
