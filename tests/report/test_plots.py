"""Figures of findings: what they draw is what the table says, and no word in them is cut off or covered."""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from probe.report.figures import styled
from probe.report.labels import beside, tick_texts, ticks, value_text, width, wrapped
from probe.report.panels import COLOURS, DASHES, MARKERS, columns_for, spread
from probe.report.plots import draw, figure
from probe.runner.findings import Findings, Plot, Table

STEPS = [0, 100, 200, 400, 800]
WORDS = ["agreement of subject and verb", "brackets", "coreference in long running text", "a", "previous_token_heads"]


def curves(names: list[object], **more: Any) -> pd.DataFrame:
    rows = [(name, x, (i + 1) * (1 + x), i) for i, name in enumerate(names) for x in STEPS]
    return pd.DataFrame(rows, columns=["name", "x", "y", "row"]).assign(**more)


def plot(kind: str = "lines", **more: Any) -> Plot:
    return Plot(**{"name": "p", "table": "t", "kind": kind, "x": "x", "y": "y", "caption": "", **more})


def made(frame: pd.DataFrame, asked: Plot, digits: int = 3) -> Figure:
    with styled():
        return figure(asked, Table("t", frame, "", digits))


def panels(figure: Figure) -> list[Axes]:
    """The axes that show data, without the colour bar."""
    return [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]


@dataclass(frozen=True)
class Box:
    text: str
    x0: float
    y0: float
    x1: float
    y1: float

    def meets(self, other: Box) -> bool:
        return self.x0 < other.x1 and other.x0 < self.x1 and self.y0 < other.y1 and other.y0 < self.y1


def boxes(figure: Figure) -> list[Box]:
    """Every visible text with its place in dots."""
    with styled():
        figure.draw_without_rendering()
        renderer = figure.canvas.get_renderer()
        shown = [t for t in figure.findobj(Text) if t.get_visible() and t.get_text().strip() and seen(t)]
        return [Box(t.get_text(), *t.get_window_extent(renderer).extents) for t in shown]


def seen(text: Text) -> bool:
    """Whether a tick label, if it is one, is shown: those of inner panels are not."""
    axes = text.axes
    if axes is None:
        return True
    for axis in (axes.xaxis, axes.yaxis):
        for tick in axis.get_major_ticks():
            if text in (tick.label1, tick.label2):
                low, high = sorted(axis.get_view_interval())
                here = low - 1e-9 <= tick.get_loc() <= high + 1e-9
                return here and (tick.label1.get_visible() if text is tick.label1 else tick.label2.get_visible())
    return True


# all kinds


HEAT = pd.DataFrame([(a, b, 0.5) for a in WORDS for b in WORDS], columns=["y", "x", "v"])
WIDE = pd.DataFrame({"x": [f"token {i}" for i in range(40)], "y": np.arange(40.0)})
CASES: dict[str, tuple[pd.DataFrame, Plot]] = {
    "lines": (curves(["a", "b"]), plot(by="name", marks={"chance (uniform over all keys)": 3.0, "best rival": 9.0})),
    "lines, eight of them": (curves([f"a model with a long name {i}" for i in range(8)]), plot(by="name", log="y")),
    "lines over words": (curves(WORDS).query("x == 100"), plot(x="name", log="y")),
    "points": (curves([1, 2]).assign(low=1.0, high=9e4), plot("points", by="name", low="low", high="high", log="xy")),
    "points over words": (curves(WORDS), plot("points", x="name", by="x")),
    "bars": (curves(WORDS), plot("bars", x="name", by="x", panel="row")),
    "bars over many words": (WIDE, plot("bars")),
    "bars over numbers": (curves(["a"]), plot("bars")),
    "panels": (curves([f"panel {i}, named at some length" for i in range(7)]), plot(panel="name", marks={"m": 50.0})),
    "long names of axes": (
        curves(["a"]),
        plot(x_label="training step, counted from zero " * 5, y_label="loss on held-out prompts, nats " * 3),
    ),
    "tiny numbers": (curves(["a"]).assign(y=[1e-9, 3e-8, 2e-7, 5e-7, 9e-7]), plot()),
    "huge numbers": (curves(["a"]).assign(y=[1e9, 3e9, 2e10, 5e10, 9e11]), plot()),
    "one point": (pd.DataFrame({"x": [3], "y": [0.25]}), plot()),
    "nothing": (pd.DataFrame({"x": [1.0], "y": [np.nan]}), plot(log="xy")),
    "no rows": (pd.DataFrame({"x": [], "y": []}, dtype=float), plot("bars", panel="x")),
    "heat": (HEAT, plot("heat", value="v")),
    "heat in panels": (
        pd.concat([HEAT.assign(p=i) for i in range(3)]),
        plot("heat", value="v", panel="p", x_label="key", y_label="query"),
    ),
    "large heat": (
        pd.DataFrame([(a, b, a * b) for a in range(50) for b in range(70)], columns=["y", "x", "v"]),
        plot("heat", value="v"),
    ),
    "heat of one cell": (HEAT.iloc[:1], plot("heat", value="v")),
}  # fmt: skip
each = pytest.mark.parametrize(("frame", "asked"), CASES.values(), ids=list(CASES))


@each
def test_a_figure_is_a_png_of_the_house_width_and_the_same_every_time(frame: pd.DataFrame, asked: Plot) -> None:
    content = draw(asked, Table("t", frame, ""))
    with Image.open(io.BytesIO(content)) as image:
        assert (image.format, image.width) == ("PNG", 1200)
        assert "Software" not in image.info
        assert image.height < 1600
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "savefig.bbox": "tight"}):
        assert draw(asked, Table("t", frame, "")) == content


@each
def test_no_word_is_cut_off(frame: pd.DataFrame, asked: Plot) -> None:
    figure = made(frame, asked)
    right, top = figure.bbox.size
    for box in boxes(figure):
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= right and box.y1 <= top, box  # noqa: PT018


@each
def test_no_two_words_cover_each_other(frame: pd.DataFrame, asked: Plot) -> None:
    figure = made(frame, asked)
    with styled():
        figure.draw_without_rendering()
    slanted = {t.get_text() for t in figure.findobj(Text) if t.get_rotation() not in (0, 90)}
    level = [box for box in boxes(figure) if box.text not in slanted]  # a slanted word's box is not its place
    for one, two in itertools.combinations(level, 2):
        assert not one.meets(two), (one, two)


@each
def test_words_are_large_enough_to_read(frame: pd.DataFrame, asked: Plot) -> None:
    """At 150 dots an inch, 9 points shown 800 wide instead of 1200 are 12.5 pixels."""
    figure = made(frame, asked)
    assert min(t.get_fontsize() for t in figure.findobj(Text) if t.get_text()) >= 9


@each
def test_legends_and_names_of_marks_never_cover_data(frame: pd.DataFrame, asked: Plot) -> None:
    figure = made(frame, asked)
    inside = [axes.get_window_extent() for axes in panels(figure)]
    texts = [box for box in boxes(figure) if box.text not in ("no values", "0.500")]
    for box in texts:
        for area in inside:
            assert not box.meets(Box("", *area.padded(-1).extents)), box


# lines


def test_a_line_goes_through_its_rows_from_left_to_right() -> None:
    frame = curves(["a", "b"]).sample(frac=1, random_state=1)
    (axes,) = panels(made(frame, plot(by="name")))
    first = frame["name"].drop_duplicates().tolist()
    for line, name in zip(axes.lines, first, strict=True):
        mine = frame[frame["name"] == name].sort_values("x")
        np.testing.assert_array_equal(line.get_xydata(), mine[["x", "y"]].to_numpy(float))


def test_lines_differ_in_colour_dashes_and_marker() -> None:
    (axes,) = panels(made(curves(list("abcdefgh")), plot(by="name")))
    assert len({to_hex(line.get_color()) for line in axes.lines}) == 8
    assert len({line.get_marker() for line in axes.lines}) == 8
    assert len({str(line._unscaled_dash_pattern) for line in axes.lines}) == 8
    assert len(COLOURS) == len(DASHES) == len(MARKERS) == 8


def test_a_value_keeps_its_colour_in_every_panel() -> None:
    frame = curves(["a", "b"]).assign(panel=lambda f: f["x"] // 300)
    frame = frame[(frame["panel"] == 0) | (frame["name"] == "b")]
    one, two, *_ = panels(made(frame, plot(by="name", panel="panel")))
    assert [to_hex(line.get_color()) for line in one.lines] == list(COLOURS[:2])
    assert [to_hex(line.get_color()) for line in two.lines] == [COLOURS[1]]


def test_an_interval_is_a_band_around_its_line() -> None:
    frame = curves(["a"]).assign(low=lambda f: f["y"] - 2, high=lambda f: f["y"] + 7)
    (axes,) = panels(made(frame, plot(low="low", high="high")))
    (band,) = axes.collections
    corners = {tuple(point) for point in band.get_paths()[0].vertices}
    for row in frame.itertuples():
        assert {(row.x, row.low), (row.x, row.high)} <= corners


def test_a_missing_value_leaves_a_gap() -> None:
    frame = curves(["a"])
    frame.loc[2, "y"] = np.nan
    (axes,) = panels(made(frame, plot()))
    assert np.isnan(axes.lines[0].get_ydata()[2])


# points and bars


def test_points_over_words_stand_in_the_order_of_first_appearance() -> None:
    frame = pd.DataFrame({"x": ["b", "c", "a", "b"], "y": [1.0, 2.0, 3.0, 4.0]})
    (axes,) = panels(made(frame, plot("points")))
    assert [label.get_text() for label in axes.get_xticklabels()] == ["b", "c", "a"]
    assert {tuple(p) for p in axes.lines[0].get_xydata()} == {(0, 1), (0, 4), (1, 2), (2, 3)}


def test_points_of_one_place_stand_beside_each_other_with_their_intervals() -> None:
    frame = pd.DataFrame({"x": ["a", "a"], "by": ["p", "q"], "y": [1.0, 2.0], "low": [0.5, 1.5], "high": [3.0, 4.0]})
    (axes,) = panels(made(frame, plot("points", by="by", low="low", high="high")))
    (p, q) = (line.get_xdata()[0] for line in axes.lines)
    assert -0.5 < p < 0 < q < 0.5
    spans = [collection.get_segments()[0] for collection in axes.collections]
    np.testing.assert_allclose(spans, [[[p, 0.5], [p, 3.0]], [[q, 1.5], [q, 4.0]]])


def test_bars_have_the_height_of_their_value_and_stand_on_zero() -> None:
    frame = pd.DataFrame({"x": ["a", "b", "a", "b"], "by": ["p", "p", "q", "q"], "y": [3.0, -1.0, 2.0, 0.5]})
    (axes,) = panels(made(frame, plot("bars", by="by")))
    bars = [(to_hex(bar.get_facecolor()), bar.get_y(), bar.get_height()) for bar in axes.patches]
    assert bars == [(COLOURS[0], 0, 3), (COLOURS[0], 0, -1), (COLOURS[1], 0, 2), (COLOURS[1], 0, 0.5)]
    places = sorted((bar.get_x(), bar.get_x() + bar.get_width()) for bar in axes.patches)
    assert all(one[1] <= two[0] for one, two in itertools.pairwise(places)), "no bar covers another"


def test_bars_without_negative_values_begin_at_the_axis() -> None:
    (axes,) = panels(made(pd.DataFrame({"x": ["a", "b"], "y": [0.7, 0.9]}), plot("bars")))
    assert axes.get_ylim()[0] == 0


# axes


def test_panels_share_the_upright_axis_and_name_it_once_a_row() -> None:
    figure = made(curves(list("abcd")), plot(panel="name", y_label="loss"))
    four = panels(figure)
    assert len({axes.get_ylim() for axes in four}) == 1
    assert len([box for box in boxes(figure) if box.text == "loss"]) == 2, "two rows of two"
    lefts = {round(axes.get_position().x0, 6) for axes in four}
    assert len(lefts) == 2


@pytest.mark.parametrize(("n", "columns"), [(1, 1), (2, 2), (3, 3), (4, 2), (5, 3), (7, 3)])
def test_rows_of_panels_are_filled_evenly(n: int, columns: int) -> None:
    assert columns_for(n, 7.0, 2.1, 0.3) == columns


def test_a_panel_of_a_number_is_named_with_its_column() -> None:
    figure = made(curves([3, 4]), plot(panel="name"))
    assert {"name 3", "name 4"} <= {box.text for box in boxes(figure)}


def test_a_legend_of_numbers_names_their_column_and_one_of_words_does_not() -> None:
    numbers = {box.text for box in boxes(made(curves([3, 4]), plot(by="name")))}
    words = {box.text for box in boxes(made(curves(["three", "four"]), plot(by="name")))}
    assert {"name", "3", "4"} <= numbers
    assert {"three", "four"} <= words
    assert "name" not in words


def test_a_logarithmic_axis_counts_what_it_cannot_show() -> None:
    frame = pd.DataFrame({"x": [0, 1, 10, 100, 1000], "y": [1.0, 0.0, 0.1, 0.01, -0.5]})
    figure = made(frame, plot(log="xy", marks={"zero": 0.0, "one": 1.0}))
    texts = {box.text for box in boxes(figure)}
    # the first row's x, the second's and the last's y, and a mark
    assert "Not shown: 4 values of 0 or less, which a logarithmic axis does not have." in texts
    assert "one" in texts
    assert "zero" not in texts
    assert panels(figure)[0].get_xscale() == panels(figure)[0].get_yscale() == "log"


def test_an_axis_that_shows_all_counts_nothing() -> None:
    figure = made(curves(["a"]).query("x > 0"), plot(log="xy"))
    assert not [box for box in boxes(figure) if box.text.startswith("Not shown")]


def test_marks_lie_at_their_height_in_every_panel_and_are_named_at_the_right() -> None:
    figure = made(curves(["a", "b"]), plot(panel="name", marks={"chance": 40.0, "nearly chance": 41.0}))
    for axes in panels(figure):
        heights = [line.get_ydata()[0] for line in axes.lines if to_hex(line.get_color()) == "#6b747e"]
        assert heights[:2] == [40, 41]
    named = [box for box in boxes(figure) if box.text in ("chance", "nearly chance")]
    assert len(named) == 2
    assert not named[0].meets(named[1])


def test_a_mark_beyond_the_data_is_still_on_the_axis() -> None:
    (axes,) = panels(made(curves(["a"]), plot(marks={"far": 9999.0})))
    assert axes.get_ylim()[0] < 9999 < axes.get_ylim()[1]


# heat


def test_a_heat_map_has_y_downward_in_the_order_of_first_appearance() -> None:
    frame = pd.DataFrame({"x": ["c", "a", "c"], "y": ["z", "z", "b"], "v": [1.0, 2.0, 3.0]})
    (axes,) = panels(made(frame, plot("heat", value="v")))
    (image,) = axes.images
    np.testing.assert_array_equal(image.get_array().filled(np.nan), [[1, 2], [3, np.nan]])
    assert [t.get_text() for t in axes.get_xticklabels()] == ["c", "a"]
    assert [t.get_text() for t in axes.get_yticklabels()] == ["z", "b"]
    assert axes.get_ylim() == (1.5, -0.5), "the first row is at the top"
    assert [t.get_text() for t in axes.texts if t.get_text()] == ["1.000", "2.000", "3.000"]


@pytest.mark.parametrize(("n", "printed"), [(12, 144), (13, 0)])
def test_values_are_printed_in_grids_up_to_twelve_by_twelve(n: int, printed: int) -> None:
    frame = pd.DataFrame([(a, b, a / 10 + b / 100) for a in range(n) for b in range(n)], columns=["y", "x", "v"])
    (axes,) = panels(made(frame, plot("heat", value="v"), digits=2))
    assert len([t for t in axes.texts if t.get_text()]) == printed


def test_printed_values_contrast_with_their_cells() -> None:
    frame = pd.DataFrame([(0, b, b / 11) for b in range(12)], columns=["y", "x", "v"])
    (axes,) = panels(made(frame, plot("heat", value="v")))
    colours = matplotlib.colormaps["viridis"]
    for text in (t for t in axes.texts if t.get_text()):
        ground = colours(text.get_position()[0] / 11)
        assert contrast(matplotlib.colors.to_rgb(text.get_color()), ground[:3]) > 3.5, text


def contrast(one: Any, two: Any) -> float:
    """Contrast of two colours (WCAG 2)."""
    bright, dark = sorted((luminance(one), luminance(two)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def luminance(colour: Any) -> float:
    channels = np.array(colour)
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def test_panels_of_a_heat_map_share_one_scale_of_colours() -> None:
    frame = pd.DataFrame({"x": [0, 0], "y": [0, 0], "p": ["a", "b"], "v": [1.0, 9.0]})
    figure = made(frame, plot("heat", value="v", panel="p"))
    assert {axes.images[0].get_clim() for axes in panels(figure)} == {(0.0, 9.0)}


# words and numbers along axes


@pytest.mark.parametrize(
    ("at", "log", "texts"),
    [
        ([0, 0.5, 1], False, ["0.0", "0.5", "1.0"]),
        ([0, 0.25, 0.5], False, ["0.00", "0.25", "0.50"]),
        ([-2, 0, 2], False, ["−2", "0", "2"]),
        ([0, 10_000, 20_000], False, ["0", "10,000", "20,000"]),
        ([0, 2e6, 4e6], False, ["0", "2 × 10⁶", "4 × 10⁶"]),
        ([0, 2.5e-7], False, ["0", "2.5 × 10⁻⁷"]),
        ([-1e-5, 1e-5], False, ["−10⁻⁵", "10⁻⁵"]),
        ([5e7, 1e8, 1.5e8], False, ["0.5 × 10⁸", "1.0 × 10⁸", "1.5 × 10⁸"]),
        ([1e6, 2e6, 1e7], True, ["10⁶", "2 × 10⁶", "10⁷"]),
        ([256, 1024, 8192], True, ["256", "1,024", "8,192"]),
        ([0.01, 0.1, 1, 10], True, ["0.01", "0.1", "1", "10"]),
        ([1e-7, 1e-4, 1e-1], True, ["10⁻⁷", "10⁻⁴", "10⁻¹"]),
    ],
)
def test_numbers_along_an_axis(at: list[float], log: bool, texts: list[str]) -> None:
    assert tick_texts(at, log=log) == texts


def test_a_logarithmic_axis_over_a_few_round_numbers_shows_them() -> None:
    with styled():
        found = ticks(200, 9000, 6.0, [256, 512, 1024, 2048, 4096, 8192], log=True, upright=False)
    assert found.texts == ("256", "512", "1,024", "2,048", "4,096", "8,192")


def cases() -> Iterator[tuple[float, float, bool]]:
    for low, high in ((0, 1), (-3, 4), (1e-9, 1e-3), (0.5, 2e7), (99.5, 100.5), (1e-300, 1e300), (3, 4), (0.0012, 1e7)):
        yield low, high, False
        if low > 0:
            yield low, high, True


@pytest.mark.parametrize(("low", "high", "log"), list(cases()))
@pytest.mark.parametrize("room", [0.6, 2.0, 7.0])
def test_ticks_lie_on_the_axis_and_their_texts_do_not_meet(low: float, high: float, log: bool, room: float) -> None:
    with styled():
        found = ticks(low, high, room, [], log=log, upright=False)
        widths = [width(text) for text in found.texts]
    assert found.at
    place = (lambda v: math.log10(v)) if log else float
    spots = [(place(v) - place(low)) / (place(high) - place(low)) * room for v in found.at]
    assert all(-1e-6 <= spot <= room + 1e-6 for spot in spots)
    edges = [(spot - w / 2, spot + w / 2) for spot, w in zip(spots, widths, strict=True)]
    assert all(one[1] < two[0] for one, two in itertools.pairwise(edges))


def test_names_stand_level_then_in_lines_then_slanted_then_upright() -> None:
    names = ["agreement of verbs", "bracket matching", "coreference of names"]
    with styled():
        assert [beside(names, slot).angle for slot in (2.0, 1.0, 0.4, 0.2)] == [0, 0, 40, 90]
        assert "\n" not in "".join(beside(names, 2.0).texts)
        assert "agreement\nof verbs" in beside(names, 1.0).texts


def test_of_many_numbers_some_are_shown() -> None:
    with styled():
        names = beside([str(i) for i in range(100)], 0.06)
    assert names.angle == 0
    assert names.step == 5


def test_no_word_is_left_out_though_all_begin_with_a_number() -> None:
    with styled():
        names = beside([f"{i} token" for i in range(15)], 0.4)
    assert (names.angle, names.step) == (40, 1)


def test_a_wrapped_text_is_the_same_text() -> None:
    text = "mass on the target/foil, previous_token-heads only"
    with styled():
        lines = wrapped(text, 0.9).split("\n")
        assert all(width(line) <= 0.9 for line in lines)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "3"),
        (4096, "4,096"),
        (0.5, "0.5"),
        (1 / 3, "0.3333"),
        (1e-5, "10⁻⁵"),
        (True, "yes"),
        ("a\nb", "a↵ b"),
        (" ", "␣"),
        ("", ""),
    ],
)
def test_a_value_as_a_name(value: object, text: str) -> None:
    with styled():
        assert value_text(value) == text


def test_labels_keep_their_order_and_do_not_overlap() -> None:
    places = spread([1.0, 1.0, 0.1, 2.95], [0.2, 0.2, 0.3, 0.2], 3.0)
    assert places[2] < places[0] < places[1] < places[3]
    edges = sorted((p - n / 2, p + n / 2) for p, n in zip(places, [0.2, 0.2, 0.3, 0.2], strict=True))
    assert all(one[1] <= two[0] + 1e-9 for one, two in itertools.pairwise(edges))
    assert edges[0][0] >= -1e-9
    assert edges[-1][1] <= 3.0 + 1e-9


def test_text_that_no_font_has_is_drawn_without_a_warning(findings: Findings) -> None:
    frame = pd.DataFrame({"x": ["猫\x00\u202e", "$a_1$", "\U0001f469\u200d", "W" * 300], "y": [1.0, 2.0, 3.0, 4.0]})
    texts = {box.text.replace("\n", "") for box in boxes(made(frame, plot("bars", y_label="猫 $x$")))}
    assert {"▯▯⟨U+202E⟩", "$a_1$", "▯", "W" * 59 + "…", "▯ $x$"} <= texts
    assert draw(replace(findings.plots[0], x_label="\n"), findings.tables["curves"])[:4] == b"\x89PNG"
