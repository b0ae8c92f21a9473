"""`--set name=value` becomes the type that the study says, or an error that says what is allowed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from probe.errors import UnknownName, UsageError
from probe.runner.parameters import own_parameters, parse

if TYPE_CHECKING:
    from decimal import Decimal


def sample(
    subject: Decimal,
    *,
    n: int = 1,
    rate: float = 0.5,
    on: bool = False,
    how: Literal["mean", "resample"] = "mean",
    maybe: Literal["zero", "mean"] | None = None,
    sizes: tuple[int, ...] = (),
    where: Path = Path(),
    most: int | None = None,
    plain: Any = "x",
    late: Decimal | None = None,
    seed: int = 0,
    profile: str = "quick",
) -> None:
    """Is it typed?"""


def untyped(*, count=3, name="x", other=None) -> None:
    """Is it typed by its defaults?"""


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("n", "7", 7),
        ("rate", "2", 2.0),
        ("rate", "1e-3", 1e-3),
        ("on", "true", True),
        ("on", "no", False),
        ("how", "resample", "resample"),
        ("maybe", "zero", "zero"),
        ("sizes", "[1, 2]", (1, 2)),
        ("where", "a/b", Path("a/b")),
        ("most", "4", 4),
    ],
)
def test_a_value_has_the_type_of_its_parameter(name: str, text: str, value: object) -> None:
    found = parse(sample, name, text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(("name", "text", "value"), [("count", "4", 4), ("name", "4", "4"), ("other", "4", "4")])
def test_without_an_annotation_the_default_says_the_type(name: str, text: str, value: object) -> None:
    assert parse(untyped, name, text) == value


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("n", "many", "--set n=many: Input should be a valid integer"),
        ("n", "1.5", "--set n=1.5: Input should be a valid integer"),
        ("rate", "fast", "--set rate=fast: Input should be a valid number"),
        ("on", "perhaps", "--set on=perhaps: Input should be a valid boolean"),
        ("sizes", "[1, x]", "--set sizes=[1, x]: Invalid JSON"),
        ("sizes", '["a"]', '--set sizes=["a"]: Input should be a valid integer'),
        ("late", "1", "late of sample has a type that is not there: name 'Decimal' is not defined"),
    ],
)
def test_a_value_of_another_type_is_refused(name: str, text: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        parse(sample, name, text)
    assert str(error.value).startswith(said)


@pytest.mark.parametrize(("name", "text", "nearest"), [("how", "maen", "mean"), ("maybe", "zeroo", "zero")])
def test_a_choice_that_is_none_names_the_nearest(name: str, text: str, nearest: str) -> None:
    with pytest.raises(UnknownName, match=f"no {name} of sample named '{text}'. Did you mean '{nearest}'?"):
        parse(sample, name, text)


def test_what_has_an_option_of_its_own_is_no_parameter() -> None:
    assert {"seed", "profile", "subject"} & set(own_parameters(sample)) == set()
