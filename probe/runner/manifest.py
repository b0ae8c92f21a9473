"""The manifest of a result: everything that can change its numbers, and the hashes of what came out.

manifest.schema.json beside this file is its JSON schema. Manifests of schema 1, which kept no item names, are read too.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import platform
import shlex
import subprocess
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, computed_field
from pydantic_core import from_json
from typing_extensions import TypedDict

from probe.errors import Changed, ResultsError

if TYPE_CHECKING:
    from probe.data.texts import Dataset
    from probe.runner.registry import Study
    from probe.subject import Subject

SCHEMA = 2
READ = (1, SCHEMA)
PACKAGE = Path(__file__).parents[1]
CODE = (
    "data",
    "tokens",
    "anatomy",
    "capture",
    "scores",
    "causal",
    "runner",
    "models",
    "by_hand",
    "cost",
    "stats.py",
    "targets.py",
    "threads.py",
    "sites.py",
    "subject.py",
)
VERSIONED = ("headprobe", "torch", "transformers", "tokenizers", "numpy", "scipy", "scikit-learn", "pandas", "pyarrow")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class ModelInfo(_Strict):
    """The model that was measured, down to the hash of its weights."""

    name: str
    family: str
    weights_sha256: str
    config_sha256: str
    tokenizer_sha256: str
    n_layers: int
    n_heads: int
    n_kv_heads: int
    d_model: int
    n_parameters: int
    dtype: str
    attention: str


class DataInfo(_Strict):
    """One data set that was measured. items: each item's name -> the first eight digits of its SHA-256."""

    name: str
    source: str
    licence: str
    sha256: str
    n_items: int
    items: dict[str, str] = {}

    @classmethod
    def of(cls, data: Dataset) -> DataInfo:
        return cls(
            name=data.name,
            source=data.source,
            licence=data.licence,
            sha256=data.hash,
            n_items=len(data.items),
            items=data.item_hashes,
        )


class Asked(_Strict):
    """What was asked for by name, to ask for it again. model: what it was loaded by. data, study_file: the names of
    the user's own files, without their folders.
    """

    model: str | None = None
    data: str | None = None
    study_file: str | None = None


class Git(_Strict):
    """The checkout the code ran from. dirty: whether its code had uncommitted changes."""

    commit: str
    dirty: bool


class Times(TypedDict):
    """When the study began (ISO 8601, UTC), and the seconds it took."""

    started: str
    seconds: float


class Inputs(_Strict):
    """What a cell's key is made of. model: None for a study that takes no model. code: SHA-256 of the sources that
    make the numbers, the study's own included.
    """

    study: str
    profile: str
    seed: int
    params: dict[str, str]
    data_file: str | None
    model: ModelInfo | None
    versions: dict[str, str]
    code: str
    device: str
    threads: int


def key_of(inputs: Inputs) -> str:
    """SHA-256 of the canonical JSON of a cell's inputs: equal keys, equal numbers."""
    return _canonical_hash({name: value for name, value in inputs.model_dump().items() if name in Inputs.model_fields})


def _canonical_hash(fields: dict[str, Any]) -> str:
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def upgraded(found: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a manifest of schema 1, with what its command says was asked for."""
    words = shlex.split(found["command"]) if _is_quoted_well(found.get("command")) else []
    after = dict(itertools.pairwise(words))
    return {**found, "asked": {"model": after.get("--model"), "data": after.get("--data")}}


def _is_quoted_well(command: object) -> bool:
    try:
        return isinstance(command, str) and bool(shlex.split(command))
    except ValueError:
        return False


class Manifest(Inputs):
    """The file manifest.json. sha256: of everything but itself, times and git, which are for the reader.

    machine: system, processor type and instruction set, which may change last digits. question: the study's.
    """

    schema_version: int = Field(default=SCHEMA, alias="schema")
    key: str
    question: str
    asked: Asked = Asked()
    machine: str = ""
    data: tuple[DataInfo, ...]
    command: str
    outputs: dict[str, str]
    git: Git | None
    times: Times

    @computed_field  # type: ignore[prop-decorator]
    @property
    def sha256(self) -> str:
        """SHA-256 of the canonical JSON of the hashed part."""
        return _canonical_hash(self.model_dump(mode="json", by_alias=True, exclude={"sha256", "times", "git"}))

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Raises ResultsError if the folder is missing or foreign, or its manifest malformed (the field is named);
        Changed if it was edited.
        """
        if not folder.is_dir():
            raise ResultsError(f"no results folder at {folder}: expected a folder that `probe run` wrote.")
        path = folder / "manifest.json"
        if not path.is_file():
            found = ", ".join(sorted(p.name for p in folder.iterdir())[:5])
            state = f"found {found}" if found else "it is empty"
            raise ResultsError(
                f"{folder} is not a results folder, or its run has not finished: no manifest.json ({state})."
            )
        return cls.parse(path.read_bytes(), path)

    @classmethod
    def parse(cls, text: bytes | str, place: Path) -> Manifest:
        """A manifest from its JSON. place: where it was found, for messages. Raises as `read`."""
        try:
            found = from_json(text)
        except ValueError as error:
            raise ResultsError(f"{place} is not a manifest of probe: the file: Invalid JSON: {error}") from error
        if not isinstance(found, dict):
            raise ResultsError(f"{place} is not a manifest of probe: the file: it holds no JSON object.")
        schema = found.get("schema", SCHEMA)
        if schema not in READ:
            raise ResultsError(
                f"{place} has schema {schema}; this version reads schema {' and '.join(map(str, READ))}."
            )
        stated = found.pop("sha256", None)
        try:
            manifest = cls.model_validate(found if schema == SCHEMA else upgraded(found))
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(map(str, first["loc"])) or "the file"
            raise ResultsError(f"{place} is not a manifest of probe: {field}: {first['msg']}") from error
        if manifest.key != key_of(manifest):
            raise Changed(f"{place} was edited after it was written: its key does not fit its fields.")
        if schema == SCHEMA and stated != manifest.sha256:
            raise Changed(f"{place} was edited after it was written: its sha256 does not fit its fields.")
        return manifest

    def write(self, folder: Path) -> None:
        text = json.dumps(self.model_dump(by_alias=True), indent=1, ensure_ascii=False)
        (folder / "manifest.json").write_text(text + "\n", encoding="utf-8")

    def read_outputs(self, folder: Path) -> dict[str, bytes]:
        """Every output's bytes. Raises Changed naming the file that is missing or not as the run wrote it."""
        contents = {}
        for name, expected in self.outputs.items():
            path = folder / name
            if Path(name).name != name or not path.is_file():
                raise Changed(f"{path} is missing, but the manifest lists it.")
            contents[name] = path.read_bytes()
            found = hashlib.sha256(contents[name]).hexdigest()
            if found != expected:
                raise Changed(
                    f"{path} is not the file the run wrote: its SHA-256 is {found[:12]}…, the manifest says "
                    f"{expected[:12]}…."
                )
        return contents


def json_schema() -> str:
    """The JSON schema of a manifest: the text of manifest.schema.json."""
    made = Manifest.model_json_schema(by_alias=True, mode="serialization")
    return json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **made}, indent=1) + "\n"


def inputs_of(
    study: Study, subject: Subject | None, *, profile: str, seed: int, data: Path | None, params: dict[str, str]
) -> Inputs:
    """Everything that can change the numbers of one cell. subject: None for a study that takes no model."""
    import torch

    return Inputs(
        study=study.name,
        profile=profile,
        seed=seed,
        params=params,
        data_file=sha256(data) if data else None,
        model=None if subject is None else _model_info(subject),
        versions={"python": platform.python_version(), **{name: version(name) for name in VERSIONED}},
        code=_code_hash(study.source, *study.helpers),
        device="cpu" if subject is None else str(next(subject.model.parameters()).device),
        threads=torch.get_num_threads(),
    )


def _model_info(subject: Subject) -> ModelInfo:
    return ModelInfo(
        name=subject.name,
        family=subject.family,
        weights_sha256=subject.weights_hash,
        config_sha256=subject.config_hash,
        tokenizer_sha256=subject.tokenizer_hash,
        n_layers=subject.n_layers,
        n_heads=subject.n_heads,
        n_kv_heads=subject.n_kv_heads,
        d_model=subject.d_model,
        n_parameters=subject.n_parameters,
        dtype=subject.dtype,
        attention=subject.attention,
    )


def finished(root: Path) -> list[Path]:
    """The folders of finished results below `root`, <study>/<model> or <study>/run; those a runner has not finished
    begin with a dot.
    """
    return sorted(p.parent for p in root.glob("[!.]*/[!.]*/manifest.json"))


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def git_state() -> Git | None:
    """The commit the package's own checkout is at; None for an installed package."""
    if not (PACKAGE.parent / ".git").exists():
        return None

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=PACKAGE, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return Git(
            commit=git("rev-parse", "HEAD"),
            dirty=bool(git("status", "--porcelain", "--", "probe", "studies")),
        )
    except (OSError, subprocess.CalledProcessError):
        return None


def command_of(
    study: str, model: str | None, *, profile: str, seed: int, data: Path | None, params: dict[str, str]
) -> str:
    """The command line that makes this cell again."""
    words = ["probe", "run", study]
    if model is not None:
        words += ["--model", model]
    if profile != "quick":
        words += ["--profile", profile]
    if seed:
        words += ["--seed", str(seed)]
    if data:
        words += ["--data", data.name]
    for name, value in params.items():
        words += ["--set", f"{name}={value}"]
    return shlex.join(words)


def machine() -> str:
    """System, processor type and instruction set: "Linux x86_64, AVX2"."""
    import torch

    return f"{platform.system()} {platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"


def _code_hash(*studies: Path) -> str:
    digest = hashlib.sha256()
    for name in CODE:
        place = PACKAGE / name
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            digest.update(path.relative_to(PACKAGE).as_posix().encode() + b"\0" + path.read_bytes())
    for study in studies:
        digest.update(study.read_bytes())
    return digest.hexdigest()
