"""The manifest of a result: everything that can change its numbers, and the hashes of what came out."""

from __future__ import annotations

import hashlib
import json
import shlex
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from probe.errors import ResultsError

if TYPE_CHECKING:
    from probe.runner.registry import Study
    from probe.subject import Subject

SCHEMA = 1
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
    "sites.py",
    "subject.py",
)
VERSIONED = ("headprobe", "torch", "transformers", "tokenizers", "numpy", "scipy")


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
    """One data set that was measured."""

    name: str
    source: str
    licence: str
    sha256: str
    n_items: int


class Git(_Strict):
    """The checkout the code ran from. dirty: whether its code had uncommitted changes."""

    commit: str
    dirty: bool


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
    fields = {name: value for name, value in inputs.model_dump().items() if name in Inputs.model_fields}
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


class Manifest(Inputs):
    """The file manifest.json. times and git are for the reader and part of no hash."""

    schema_version: int = Field(default=SCHEMA, alias="schema")
    key: str
    question: str
    data: tuple[DataInfo, ...]
    command: str
    outputs: dict[str, str]
    git: Git | None
    times: dict[str, float | str]

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Raises ResultsError if the folder is missing or foreign, or its manifest malformed (the field is named)."""
        if not folder.is_dir():
            raise ResultsError(f"no results folder at {folder}: expected a folder that `probe run` wrote.")
        path = folder / "manifest.json"
        if not path.is_file():
            found = ", ".join(sorted(p.name for p in folder.iterdir())[:5])
            state = f"found {found}" if found else "it is empty"
            raise ResultsError(
                f"{folder} is not a results folder, or its run has not finished: no manifest.json ({state})."
            )
        try:
            manifest = cls.model_validate_json(path.read_bytes())
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(map(str, first["loc"])) or "the file"
            raise ResultsError(f"{path} is not a manifest of probe: {field}: {first['msg']}") from error
        if manifest.schema_version != SCHEMA:
            raise ResultsError(f"{path} has schema {manifest.schema_version}; this version reads schema {SCHEMA}.")
        if manifest.key != key_of(manifest):
            raise ResultsError(f"{path} was edited after it was written: its key does not fit its fields.")
        return manifest

    def write(self, folder: Path) -> None:
        text = json.dumps(self.model_dump(by_alias=True), indent=1, ensure_ascii=False)
        (folder / "manifest.json").write_text(text + "\n", encoding="utf-8")

    def read_outputs(self, folder: Path) -> dict[str, bytes]:
        """Every output's bytes. Raises ResultsError naming the file that is missing or was changed since the run."""
        contents = {}
        for name, expected in self.outputs.items():
            path = folder / name
            if Path(name).name != name or not path.is_file():
                raise ResultsError(f"{path} is missing, but the manifest lists it.")
            contents[name] = path.read_bytes()
            found = hashlib.sha256(contents[name]).hexdigest()
            if found != expected:
                raise ResultsError(
                    f"{path} is not the file the run wrote: its SHA-256 is {found[:12]}…, the manifest says "
                    f"{expected[:12]}…."
                )
        return contents


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
        versions={name: version(name) for name in VERSIONED},
        code=_code_hash(study.source),
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


def _code_hash(study: Path) -> str:
    digest = hashlib.sha256()
    for name in CODE:
        place = PACKAGE / name
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            digest.update(path.relative_to(PACKAGE).as_posix().encode() + b"\0" + path.read_bytes())
    digest.update(study.read_bytes())
    return digest.hexdigest()
