"""The GAP reader agrees with another reading of the real files, and says what is wrong in a bad one."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from probe.data.gap import gap
from probe.data.texts import Labelled, Span
from probe.errors import DataError

REAL = Path(__file__).parents[3] / "shared" / "data" / "gap"
HEADER = [
    *("ID", "Text", "Pronoun", "Pronoun-offset", "A", "A-offset", "A-coref"),
    *("B", "B-offset", "B-coref", "URL"),
]
TEXT = "Ada met Eve in Bath. Later she left."


def row(**changes: str) -> dict[str, str]:
    good = ["x-1", TEXT, "she", "27", "Ada", "0", "TRUE", "Eve", "8", "FALSE", "http://page/1"]
    return dict(zip(HEADER, good, strict=True)) | {k.replace("_", "-"): v for k, v in changes.items()}


def write(path: Path, *rows: dict[str, str], header: list[str] = HEADER, end: str = "\n") -> Path:
    lines = [header, *([r[column] for column in header] for r in rows)]
    path.write_bytes("".join("\t".join(line) + end for line in lines).encode())
    return path


def refusal(path: Path) -> str:
    with pytest.raises(DataError) as error:
        gap(path)
    return str(error.value)


def test_a_row_becomes_an_item(tmp_path: Path) -> None:
    dataset = gap(write(tmp_path / "gap-small.tsv", row(), row(ID="x-2", A_coref="FALSE", B_coref="TRUE")))
    assert dataset.name == "gap-small"
    assert (dataset.phenomenon, dataset.statistic, dataset.rule) == ("coreference", "accuracy", None)
    assert dataset.rivals == ("nearest", "first", "longer", "offset", "same word")
    assert dataset.items == (
        Labelled(
            item="x-1",
            cluster="http://page/1",
            text=TEXT,
            query=Span(27, 30),
            target=Span(0, 3),
            foils=(Span(8, 11),),
            tags={"gender": "feminine", "right": "first", "side": "before"},
        ),
        Labelled(
            item="x-2",
            cluster="http://page/1",
            text=TEXT,
            query=Span(27, 30),
            target=Span(8, 11),
            foils=(Span(0, 3),),
            tags={"gender": "feminine", "right": "second", "side": "before"},
        ),
    )


def test_rows_with_no_or_two_right_candidates_are_left_out_and_counted(tmp_path: Path) -> None:
    rows = [row(), row(ID="x-2", A_coref="FALSE"), row(ID="x-3", B_coref="TRUE")]
    dataset = gap(write(tmp_path / "gap-small.tsv", *rows))
    assert [item.item for item in dataset.items] == ["x-1"]
    assert dataset.source == "GAP (Webster et al. 2018): 3 rows, 1 with exactly one right candidate"


def test_an_antecedent_after_the_pronoun_is_tagged_so(tmp_path: Path) -> None:
    text = "His sister Eve knew that Tom and Bob sang."
    late = row(
        **{"Text": text, "Pronoun": "His", "Pronoun-offset": "0"},
        **{"A": "Tom", "A-offset": "25", "B": "Bob", "B-offset": "33"},
    )
    (item,) = gap(write(tmp_path / "gap.tsv", late)).items
    assert isinstance(item, Labelled)
    assert item.tags == {"gender": "masculine", "right": "first", "side": "after"}


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_quotes_line_separators_and_other_scripts_do_not_move_the_offsets(tmp_path: Path, end: str) -> None:
    text = '"Zoë" met\u2028Łucja 😀, and "she left.'
    odd = row(
        **{"Text": text, "Pronoun-offset": str(text.index("she"))},
        **{"A": "Zoë", "A-offset": "1", "B": "Łucja", "B-offset": "10"},
    )
    (item,) = gap(write(tmp_path / "gap.tsv", odd, end=end)).items
    assert isinstance(item, Labelled)
    assert [span.text(text) for span in (item.query, item.target, *item.foils)] == ["she", "Zoë", "Łucja"]
    assert item.cluster == "http://page/1"


def test_a_byte_order_mark_and_a_missing_last_line_end_are_fine(tmp_path: Path) -> None:
    path = write(tmp_path / "gap.tsv", row())
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().rstrip(b"\n"))
    assert len(gap(path).items) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"A_offset": "zero"}, "field 'A-offset': 'zero' is not a whole number of characters."),
        ({"B_offset": "-1"}, "field 'B-offset': '-1' is not a whole number of characters."),
        ({"Pronoun_offset": ""}, "field 'Pronoun-offset': '' is not a whole number of characters."),
        (
            {"B_offset": "7"},
            "field 'B-offset': at character 7 the text has ' Ev', not 'Eve'; the nearest one is at 8.",
        ),
        (
            {"A": "Tom"},
            "field 'A-offset': at character 0 the text has 'Ada', not 'Tom'; it is not in the text.",
        ),
        (
            {"Pronoun_offset": "900"},
            "field 'Pronoun-offset': at character 900 the text has '', not 'she'; the nearest one is at 27.",
        ),
        ({"A_coref": "yes"}, "field 'A-coref': 'yes' is neither TRUE nor FALSE."),
        ({"B_coref": "true"}, "field 'B-coref': 'true' is neither TRUE nor FALSE."),
        (
            {"Pronoun": "Bath"},
            "field 'Pronoun': 'Bath' is none of she, her, hers, herself, he, him, his, himself.",
        ),
        ({"ID": ""}, "field 'ID': it is empty."),
        ({"URL": ""}, "field 'URL': it is empty."),
        ({"B": ""}, "field 'B': it is empty."),
        ({"ID": "x-1"}, "field 'ID': 'x-1' is also the ID of line 2."),
    ],
)
def test_a_malformed_field_is_named_with_its_line(tmp_path: Path, changes: dict[str, str], message: str) -> None:
    path = write(tmp_path / "gap.tsv", row(), row(**{"ID": "x-2"} | changes), row(ID="x-3"))
    assert refusal(path) == f"{path}, line 3, {message}"


def test_a_row_left_out_is_checked_all_the_same(tmp_path: Path) -> None:
    path = write(tmp_path / "gap.tsv", row(A_coref="FALSE", B_offset="9"))
    assert refusal(path).startswith(f"{path}, line 2, field 'B-offset': at character 9 the text has 've ', not 'Eve'")


def test_a_row_with_too_few_or_too_many_fields_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "gap.tsv", row(), row(ID="x-2", URL="http://page\tmore"))
    assert refusal(path) == f"{path}, line 3: the row has 12 fields between tabs, the header has 11."
    path.write_text("\t".join(HEADER) + "\n\n")
    assert refusal(path) == f"{path}, line 2: the row has 1 field between tabs, the header has 11."


def test_a_missing_column_is_named_with_the_nearest(tmp_path: Path) -> None:
    header = ["B_coref" if column == "B-coref" else column for column in HEADER]
    path = write(tmp_path / "gap.tsv", row() | {"B_coref": "TRUE"}, header=header)
    path.write_text("\n".join(["\t".join(header), "\t".join(row().values())]))
    assert refusal(path) == f"{path}, line 1: there is no column 'B-coref'; the nearest is 'B_coref'."


@pytest.mark.parametrize("content", [b"", b"\n", b"\r\n"])
def test_an_empty_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "gap.tsv"
    path.write_bytes(content)
    assert refusal(path) == f"{path}: the file is empty; its first line should be: {', '.join(HEADER)}."


def test_a_header_without_rows_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "gap.tsv")
    assert refusal(path) == f"{path}, line 2: there are no rows after the header."


def test_a_file_that_is_not_utf8_is_refused_with_its_line(tmp_path: Path) -> None:
    path = write(tmp_path / "gap.tsv", row(), row(ID="x-2"))
    content = path.read_bytes().replace(b"x-2", b"x\xff2")
    path.write_bytes(content)
    byte = content.index(b"\xff")
    assert refusal(path) == f"{path}, line 3: it is not UTF-8 (invalid start byte at byte {byte})."


def test_a_missing_file_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    write(tmp_path / "gap-validation.tsv", row())
    write(tmp_path / "notes.txt", row())
    path = tmp_path / "gap-validaton.tsv"
    assert refusal(path) == f"{path}: there is no such file; the nearest is 'gap-validation.tsv'."
    path = tmp_path / "nowhere" / "gap.tsv"
    assert refusal(path) == f"{path}: there is no such file."


def test_a_folder_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path) == f"{tmp_path}: it cannot be read (Is a directory)."


@pytest.mark.parametrize(
    ("name", "rows", "answerable"), [("gap-validation", 454, 392), ("gap-development", 2000, 1799)]
)
def test_the_real_file_reads_as_an_independent_csv_loop_reads_it(name: str, rows: int, answerable: int) -> None:
    path = REAL / f"{name}.tsv"
    if not path.exists():
        pytest.skip("the GAP files are not here")
    with path.open(encoding="utf-8", newline="") as file:
        raw = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    kept = [r for r in raw if [r["A-coref"], r["B-coref"]].count("TRUE") == 1]
    dataset = gap(path)
    assert (len(raw), len(kept), len(dataset.items)) == (rows, answerable, answerable)
    assert dataset.name == name
    assert f"{rows} rows, {answerable} with exactly one right candidate" in dataset.source
    for item, r in zip(dataset.items, kept, strict=True):
        assert isinstance(item, Labelled)
        right, wrong = ("A", "B") if r["A-coref"] == "TRUE" else ("B", "A")
        assert (item.item, item.cluster, item.text) == (r["ID"], r["URL"], r["Text"])
        assert (item.query.start, item.query.text(item.text)) == (int(r["Pronoun-offset"]), r["Pronoun"])
        assert (item.target.start, item.target.text(item.text)) == (int(r[f"{right}-offset"]), r[right])
        assert [(f.start, f.text(item.text)) for f in item.foils] == [(int(r[f"{wrong}-offset"]), r[wrong])]
        assert item.tags["gender"] == (
            "feminine" if r["Pronoun"][0] in "sS" or r["Pronoun"] in ("her", "Her") else "masculine"
        )
