"""`check`: whether `probe` reads one architecture exactly, and which of its sites it has.

    finding = check(Pair("llama", "causal"))
    finding.status, finding.why                    # "exact", ""

A tiny random model is run with and without captures and edits, under every attention implementation it has, without
padding and with padding on either side. Nothing is downloaded.
"""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack

from probe.anatomy import dissect
from probe.compatibility.changes import edited
from probe.compatibility.configs import Padding, Pair, mapped, note, tiny_config, tiny_inputs, tiny_model
from probe.compatibility.oracle import ask
from probe.compatibility.parts import Offer, hooks, listed, same, tensors
from probe.compatibility.steps import Case, Failed, read
from probe.compatibility.table import NOT_TEXT
from probe.errors import ProbeError
from probe.sites import CROSS, ENCODER, PREFIXED, SITES, split
from probe.threads import limited

Status = Literal["exact", "exact output, no pattern", "unsupported"]
IMPLEMENTATIONS = ("eager", "sdpa")
PADDINGS: tuple[Padding | None, ...] = (None, "left", "right")
EDITED = (("eager", "left"), ("sdpa", None), ("sdpa", "right"))  # every edit in every case would take too long


@dataclasses.dataclass(frozen=True)
class Finding:
    """What the check found about one pair.

    why: the first step that failed, or why nothing was to be tried; step: its name. head_layers: the layers that have
    heads, of n_layers. asks: whether attention is read where the model asks for its attention function (else by
    following its products). sites: those that every layer with heads has; some: those that only some have; read_only:
    those of them that refuse edits. implementations: those that passed. max_error: the largest difference between a
    pattern and the model's own. trace: the end of the traceback of an unexpected error.
    """

    pair: Pair
    class_name: str
    status: Status
    why: str = ""
    step: str = ""
    n_layers: int = 0
    head_layers: tuple[int, ...] = ()
    asks: bool = False
    sites: tuple[str, ...] = ()
    some: tuple[str, ...] = ()
    read_only: tuple[str, ...] = ()
    implementations: tuple[str, ...] = ()
    max_error: float | None = None
    notes: tuple[str, ...] = ()
    trace: str = ""

    @property
    def missing(self) -> tuple[str, ...]:
        """The sites that none of its layers has, of the stacks it has."""
        if self.status == "unsupported":
            return ()
        held = {*self.sites, *self.some}
        stacks = {split(name)[0] for name in held} | {""}
        return tuple(n for n in (*SITES, *PREFIXED) if split(n)[0] in stacks and n not in held)


def check(pair: Pair) -> Finding:
    """Check one pair. Never raises for what a model does: that is a finding, with status "unsupported" and why.

    Raises UnknownName for a pair that transformers does not map.
    """
    if pair not in mapped():
        tiny_config(pair)
    found = Finding(pair, mapped()[pair], "exact")
    if pair.model_type in NOT_TEXT:
        return dataclasses.replace(found, status="unsupported", why=NOT_TEXT[pair.model_type], step="inputs")
    examination = _Examination(pair)
    try:
        with _quietly():
            examination.run()
    except Failed as failure:
        refused = {"why": f"{examination.where}{failure.why}", "step": failure.step}
    except ProbeError as error:
        refused = {"why": f"{examination.where}{error}", "step": examination.step}
    except Exception as error:  # whatever a model's own code, or a bug of ours, may raise
        refused = {"why": f"{examination.where}{type(error).__name__}: {error}", "step": examination.step}
        refused["trace"] = "".join(traceback.format_tb(error.__traceback__)[-3:])
    else:
        return dataclasses.replace(found, **examination.facts())
    return dataclasses.replace(found, **{**examination.facts(), "status": "unsupported", **refused})


class _Examination:
    """One pair being checked. where: which model is being looked at, to be put before a reason; step: at what."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.where, self.step = "", "build"
        self.offer: Offer | None = None
        self.passed: list[str] = []
        self.notes = {note(pair)} - {""}
        self.max_error: float | None = None
        self.read_only: set[str] = set()
        self.without_oracle: set[str] = set()

    def run(self) -> None:
        oracle = None
        for implementation in IMPLEMENTATIONS:
            self.where, self.step = "", "build"
            try:
                model = tiny_model(self.pair, implementation)
            except (ValueError, ImportError) as error:
                if implementation == "eager" or "scaled_dot_product" not in str(error):
                    raise
                continue
            if oracle is None:
                oracle = tiny_model(self.pair, implementation)
            self._examine(model, oracle, implementation)

    def _examine(self, model: nn.Module, oracle: nn.Module, implementation: str) -> None:
        self.step = "run"
        inputs = {padding: tiny_inputs(model, self.pair, padding) for padding in PADDINGS}
        untouched = {padding: _run(model, inputs[padding]) for padding in PADDINGS}
        self.step = "dissect"
        before = hooks(model)
        try:
            anatomy = dissect(model)
        except ProbeError as error:
            if not self.passed:
                raise
            self.notes.add(f"under {implementation}: {error}")
            return
        offer = Offer(anatomy)
        self.offer = self.offer or offer
        for padding in PADDINGS:
            self.where = f"{implementation}, {padding}-padded: " if padding else f"{implementation}, unpadded: "
            self.step = "read"
            plain = untouched[padding]
            if isinstance(plain, Exception):
                raise plain
            own = ask(oracle, inputs[padding])
            case = Case(model, anatomy, offer, inputs[padding], implementation, *own)
            if not same(plain, case.run()):
                raise Failed("dissect", "the model is random in evaluation mode, or changed when it was looked at.")
            read(case)
            if "decoder_input_ids" in inputs[padding]:
                parts = (("its encoder's attention", ENCODER), ("its cross-attention", CROSS))
                self.notes |= {f"{part} cannot be read" for part, prefix in parts if prefix not in offer.prefixes()}
            if (implementation, padding) in EDITED:
                self.step = "edit"
                edited(case)
            self.step = "afterwards"
            _left_behind(model, before)
            if not same(plain, case.run()):
                raise Failed("afterwards", "a plain pass is not what it was before.")
            self.notes |= case.notes
            self.read_only |= case.read_only
            self.without_oracle |= case.without_oracle
            self.max_error = max(self.max_error or 0.0, case.max_error)
        self.passed.append(implementation)

    def facts(self) -> dict[str, Any]:
        """What was found, as fields of a `Finding`."""
        facts: dict[str, Any] = {"implementations": tuple(self.passed)}
        if self.offer is not None:
            anatomy, offer = self.offer.anatomy, self.offer
            facts |= {"n_layers": anatomy.n_layers, "head_layers": anatomy.layers, "asks": anatomy.asks}
            facts |= {"sites": tuple(offer.whole), "some": tuple(offer.partial), "max_error": self.max_error}
            facts["read_only"] = tuple(n for n in (*SITES, *PREFIXED) if n in self.read_only)
            facts |= self._pattern_status(offer)
            self.notes |= {f"{n} in layers {listed(offer.layers[n])} only" for n in offer.partial}
        facts["notes"] = tuple(sorted(self.notes))
        return facts

    def _pattern_status(self, offer: Offer) -> dict[str, str]:
        why = ""
        if "pattern" not in offer.layers:
            why = offer.reasons.get("pattern", "it has none.")
        elif "" in self.without_oracle:
            why = "the model returns no weights to compare with."
        elif self.without_oracle:
            self.notes.add(f"{', '.join(sorted(self.without_oracle))}pattern has nothing to be compared with")
        return {"status": "exact output, no pattern", "why": why} if why else {}


def _run(model: nn.Module, inputs: dict[str, Any]) -> dict[str, Tensor] | Exception:
    """The output of a model, or what it raises."""
    try:
        with torch.no_grad():
            return tensors(model(**inputs))
    except Exception as error:
        return error


def _left_behind(model: nn.Module, before: int) -> None:
    from transformers.modeling_utils import AttentionInterface

    if hooks(model) != before:
        raise Failed("afterwards", "hooks stayed behind.")
    if AttentionInterface.get_interface is not _LOOKUP[0]:
        raise Failed("afterwards", "the look-up of attention functions stayed wrapped.")
    if _get_current_function_mode_stack():  # type: ignore[no-untyped-call]
        raise Failed("afterwards", "a mode that watches functions stayed on.")


_LOOKUP: list[Any] = []


@contextmanager
def _quietly() -> Iterator[None]:
    """Without what transformers says about the kernels that it would rather have, and in one thread: tiny models are
    slower in more.
    """
    import transformers
    from transformers.modeling_utils import AttentionInterface

    if not _LOOKUP:
        _LOOKUP.append(AttentionInterface.get_interface)
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        with limited(1):
            yield
    finally:
        transformers.logging.set_verbosity(before)
