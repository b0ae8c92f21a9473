"""`@study`: a function with typed parameters and a docstring that asks one question is a study.

@probe.study(models=("minilm", "smollm2"))
def coreference(subject, *, data: Path | None = None, profile: str = "quick", seed: int = 0) -> Result:
    \"\"\"Which heads look from a pronoun to its antecedent?\"\"\"

@probe.study(models=())
def by_hand(*, profile: str = "quick", seed: int = 0) -> Findings:
    \"\"\"What does one attention head compute, number by number?\"\"\"
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from probe.errors import ProbeError, UnknownName, UsageError
from probe.runner.parameters import RESERVED, own_parameters, parse

if TYPE_CHECKING:
    from probe.runner.findings import Findings
    from probe.runner.results import Result

F = TypeVar("F", bound="Callable[..., Result | Findings]")
PROFILES = ("quick", "full")
_studies: dict[str, Study] = {}


@dataclass(frozen=True)
class Study:
    """name: the function's. question: the first line of its docstring. models: those it runs on by default; none if
    it takes no model.

    needs_data: whether it reads a file of the user's, given as `data`. file: the user's own file that it came from.
    helpers: other files of the user's that this one imports; they are part of a result's key.
    """

    name: str
    question: str
    function: Callable[..., Result | Findings]
    models: tuple[str, ...]
    needs_data: bool
    file: Path | None = None
    helpers: tuple[Path, ...] = ()

    @property
    def source(self) -> Path:
        return Path(inspect.getsourcefile(self.function) or "")

    def runs_on(self, given: Sequence[str] | None) -> tuple[str | None, ...]:
        """The models to run on: those given, else the default; (None,) for a study that takes no model.

        Raises UsageError for a model given to a study that takes none.
        """
        if self.models:
            return tuple(dict.fromkeys(given or self.models))
        if given:
            raise UsageError(f"{self.name} takes no model; leave out --model {given[0]}.")
        return (None,)

    def values(self, params: Mapping[str, str]) -> dict[str, Any]:
        """The study's own parameters, as the types that it says they have.

        Raises UnknownName for a parameter it does not take or a choice it does not have, UsageError for a value of
        another type.
        """
        for name in params:
            if name in RESERVED:
                raise UsageError(f"{name} is not set as a parameter: give --{name}.")
        return {name: parse(self.function, name, text) for name, text in params.items()}

    def check(self, *, profile: str, seed: int, data: Path | None, params: Mapping[str, str]) -> None:
        """Raises UnknownName for a parameter the study does not take, UsageError for a missing or wrong value."""
        given = self.values(params)
        for name, parameter in own_parameters(self.function).items():
            if parameter.default is parameter.empty and name not in given:
                raise UsageError(f"{self.name} needs the parameter {name}: give --set {name}=value.")
        if profile not in PROFILES:
            raise UnknownName.of("profile", profile, PROFILES)
        if seed < 0:
            raise UsageError(f"the seed {seed} is negative: seeds are whole numbers from 0.")
        if self.needs_data and data is None:
            raise UsageError(f"{self.name} reads a data file of yours: give it with --data PATH.")
        if data is not None and not self.needs_data:
            raise UsageError(f"{self.name} reads no data file; --data is for studies that do.")
        if data is not None and not data.is_file():
            raise UsageError(f"the data file {data} does not exist.")


def study(*, models: Sequence[str], needs_data: bool = False) -> Callable[[F], F]:
    """Register a study. models: what it runs on by default; () for a study that takes no model, whose function has
    no `subject`. needs_data: whether `data` must be given.

    Raises ProbeError if the docstring asks no question, or the function and `models` do not fit each other.
    """

    def register(function: F) -> F:
        question = (inspect.getdoc(function) or "").partition("\n")[0]
        place = f"{function.__name__} ({inspect.getsourcefile(function)})"
        if not question.endswith("?"):
            raise ProbeError(f"the docstring of study {place} must begin with its question, ending in '?'.")
        parameters = inspect.signature(function).parameters.values()
        takes_subject = any(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
        if takes_subject != bool(models):
            needs = "a subject, before the *" if models else "no subject, only keywords after a *, as models=() says"
            raise ProbeError(f"the study {place} must take {needs}.")
        _studies[function.__name__] = Study(function.__name__, question, function, tuple(models), needs_data)
        return function

    return register


def all_studies() -> dict[str, Study]:
    """Every study that ships with the package, by name."""
    package = importlib.import_module("probe.studies")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"probe.studies.{module.name}")
    return dict(sorted(_studies.items()))


def find_study(name: str) -> Study:
    """Raises UnknownName, with the nearest study."""
    known = all_studies()
    if name not in known:
        raise UnknownName.of("study", name, known)
    return known[name]
