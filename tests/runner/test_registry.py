"""A study asks one question, and what it is given is checked before anything is computed."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

import probe
from probe.errors import ProbeError, UnknownName
from probe.runner import registry
from probe.runner.registry import PROFILES, Study, all_studies, find_study


def sample(
    subject: object, *, data: Path | None = None, profile: str = "quick", seed: int = 0, scale: float = 1.0
) -> None:
    """Is it asked?"""


def sample_without_model(*, profile: str = "quick", seed: int = 0) -> None:
    """Is it asked of no model?"""


SAMPLE = Study("sample", "Is it asked?", sample, ("tiny",), needs_data=False)
READER = Study("reader", "Is it read?", sample, ("tiny",), needs_data=True)


@pytest.fixture
def empty(monkeypatch: pytest.MonkeyPatch) -> dict[str, Study]:
    studies: dict[str, Study] = {}
    monkeypatch.setattr(registry, "_studies", studies)
    return studies


def test_the_studies_that_ship_are_found_by_name() -> None:
    studies = all_studies()
    assert {"coreference", "coreference_gap"} <= set(studies)
    assert list(studies) == sorted(studies)
    assert all(name == study.name == study.function.__name__ for name, study in studies.items())


@pytest.mark.parametrize("name", ["coreference", "coreference_gap"])
def test_each_study_asks_one_question_and_lies_in_a_file_of_its_own(name: str) -> None:
    study = find_study(name)
    assert study.question.endswith("?")
    assert study.question == inspect.getdoc(study.function).splitlines()[0]
    assert study.source.name == f"{name}.py"
    assert study.source.is_file()


def test_each_study_runs_on_models_that_have_a_name() -> None:
    from probe.models.loading import NAMES

    assert all(set(study.models) <= set(NAMES) for study in all_studies().values())
    assert find_study("coreference").models == ("minilm", "smollm2", "tiny")


def test_only_the_study_of_public_text_needs_a_file() -> None:
    assert find_study("coreference_gap").needs_data
    assert not find_study("coreference").needs_data


@pytest.mark.parametrize("name", ["coreference", "coreference_gap"])
def test_each_study_takes_data_profile_and_seed_by_name(name: str) -> None:
    parameters = inspect.signature(find_study(name).function).parameters
    by_name = {n: p for n, p in parameters.items() if p.kind is p.KEYWORD_ONLY}
    assert {"profile", "seed"} <= set(by_name)
    assert ("data" in by_name) == find_study(name).needs_data
    assert (by_name["profile"].default, by_name["seed"].default) == ("quick", 0)
    assert all(p.annotation is not p.empty for p in parameters.values())


def test_an_unknown_study_names_the_nearest() -> None:
    with pytest.raises(UnknownName) as error:
        find_study("corefrence")
    known = ", ".join(all_studies())
    assert str(error.value) == f"no study named 'corefrence'. Did you mean 'coreference'? Known: {known}."
    assert "coreference, coreference_gap" in known


def test_a_name_like_nothing_gets_no_guess() -> None:
    with pytest.raises(UnknownName) as error:
        find_study("xyz")
    assert str(error.value) == f"no study named 'xyz'. Known: {', '.join(all_studies())}."


# registering


def test_a_decorated_function_stays_a_function_and_becomes_a_study(empty: dict[str, Study]) -> None:
    @probe.study(models=["tiny", "minilm"], needs_data=True)
    def mine(subject: object, *, data: Path, seed: int = 0) -> None:
        """Which heads do it?

        More is said here.
        """

    assert inspect.isfunction(mine)
    assert empty == {"mine": Study("mine", "Which heads do it?", mine, ("tiny", "minilm"), True)}
    assert empty["mine"].source == Path(__file__)


@pytest.mark.parametrize("text", [None, "", "Measures heads.", "Measures heads.\n\nDoes it?", "Which heads?\b."])
def test_a_study_whose_docstring_asks_no_question_is_refused(empty: dict[str, Study], text: str | None) -> None:
    def silent(subject: object) -> None: ...

    silent.__doc__ = text
    with pytest.raises(ProbeError) as error:
        probe.study(models=("tiny",))(silent)
    assert (
        str(error.value) == f"the docstring of study silent ({__file__}) must begin with its question, ending in '?'."
    )
    assert empty == {}


# what a study is given


def check(study: Study, **given: Any) -> None:
    study.check(**{"profile": "quick", "seed": 0, "data": None, "params": {}, **given})


def test_good_parameters_pass(tmp_path: Path) -> None:
    check(SAMPLE)
    check(SAMPLE, profile="full", seed=3, params={"scale": "2"})
    (tmp_path / "data.tsv").write_text("x")
    check(READER, data=tmp_path / "data.tsv")


def test_an_unknown_parameter_names_the_nearest() -> None:
    with pytest.raises(UnknownName) as error:
        check(SAMPLE, params={"scal": "2"})
    assert str(error.value) == ("no parameter of sample named 'scal'. Did you mean 'scale'? Known: scale.")


def test_the_subject_is_no_parameter() -> None:
    with pytest.raises(UnknownName, match="no parameter of sample named 'subject'"):
        check(SAMPLE, params={"subject": "x"})


def test_an_unknown_profile_names_the_nearest() -> None:
    with pytest.raises(UnknownName) as error:
        check(SAMPLE, profile="quik")
    assert str(error.value) == "no profile named 'quik'. Did you mean 'quick'? Known: full, quick."
    assert PROFILES == ("quick", "full")


def test_a_study_that_reads_a_file_says_how_to_give_it() -> None:
    with pytest.raises(ProbeError) as error:
        check(READER, data=None)
    assert str(error.value) == "reader reads a data file of yours: give it with --data PATH."
    with pytest.raises(ProbeError, match="give it with --data PATH"):
        check(READER)


def test_data_for_a_study_that_reads_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProbeError, match="sample reads no data file"):
        check(SAMPLE, data=tmp_path / "gap.tsv")


def test_a_data_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProbeError) as error:
        check(READER, data=tmp_path / "gap.tsv")
    assert str(error.value) == f"the data file {tmp_path / 'gap.tsv'} does not exist."


def test_a_folder_is_no_data_file(tmp_path: Path) -> None:
    with pytest.raises(ProbeError, match="the data file"):
        check(READER, data=tmp_path)
