"""A user's own study file is run by its path, and what is wrong with it is said in a line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from probe.errors import UnknownName, UsageError
from probe.runner.manifest import inputs_of
from probe.runner.own_files import find, load_file
from probe.runner.registry import all_studies

STUDY = '''
import probe

@probe.study(models=())
def mine(*, profile: str = "quick", seed: int = 0, size: int = 3) -> probe.Findings:
    """Is it mine?"""
    from helper import number
    return probe.Findings(f"{number}.", ())
'''


@pytest.fixture(autouse=True)
def _own_path() -> Iterator[None]:
    before = list(sys.path)
    yield
    sys.path[:] = before
    sys.modules.pop("helper", None)


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_file_gives_its_studies_and_leaves_the_others_as_they_were(tmp_path: Path) -> None:
    before = all_studies()
    more = STUDY + STUDY.replace("mine", "second").partition("import probe")[2]
    found = find(str(written(tmp_path / "my_study.py", more)))
    assert [study.name for study in found] == ["mine", "second"]
    assert {study.file for study in found} == {tmp_path / "my_study.py"}
    assert all_studies() == before


def test_a_name_is_still_a_name() -> None:
    assert [s.name for s in find("coreference")] == ["coreference"]
    with pytest.raises(UnknownName, match="Did you mean 'coreference'"):
        find("corefrence")


def test_what_the_file_imports_from_its_folder_is_part_of_the_key(tmp_path: Path) -> None:
    path = written(tmp_path / "my_study.py", STUDY)
    helper = written(tmp_path / "helper.py", "import deeper\nnumber = 3\n")
    deeper = written(tmp_path / "deeper.py", "")
    written(tmp_path / "unrelated.py", "")

    def code() -> tuple[str, str]:
        (study,) = load_file(path)
        assert set(study.helpers) == {helper, deeper}
        inputs = inputs_of(study, None, profile="quick", seed=0, data=None, params={})
        return inputs.code, study.function().answer

    first, answer = code()
    assert answer == "3."
    assert code()[0] == first
    for changed in (helper, deeper, path):
        with changed.open("a") as file:
            file.write("# changed\n")
        second, _ = code()
        assert second != first, changed.name
        first = second


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no study: decorate a function with @probe.study(models=...)."),
        ("def f(:", "is not Python: line 1: "),
        ("x = 1\n\n1 / 0\n", "failed at line 3: ZeroDivisionError: division by zero"),
        ("import nothing_like_it\n", "failed at line 1: ModuleNotFoundError: No module named 'nothing_like_it'"),
        (STUDY.replace("?", "."), "must begin with its question, ending in '?'."),
        (STUDY.replace("def mine", "def coreference"), "names a study 'coreference', as one that ships with probe is"),
        ("raise SystemExit(3)\n", "failed at line 1: SystemExit: 3"),
        ("x = '\\0'\nexit()\n", "failed at line 2: SystemExit"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_in_a_line(tmp_path: Path, text: str, said: str) -> None:
    before = all_studies()
    with pytest.raises(UsageError) as error:
        find(str(written(tmp_path / "my_study.py", text)))
    assert str(tmp_path / "my_study.py") in str(error.value)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    assert all_studies() == before


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        find(str(tmp_path / "none.py"))
    assert str(error.value) == f"the study file {tmp_path / 'none.py'} does not exist."


def test_a_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "my_study.py").write_bytes(b"\x00\xff\xfe")
    with pytest.raises(UsageError, match=r"my_study\.py"):
        find(str(tmp_path / "my_study.py"))
