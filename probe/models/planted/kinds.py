"""The planted models by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from probe.errors import ProbeError, UnknownName
from probe.models.planted.circuit import Circuit
from probe.models.planted.positions import FIRST_TOKEN, PREVIOUS_TOKEN
from probe.models.planted.repeats import DUPLICATE_TOKEN, INDUCTION
from probe.models.planted.sentences import AGREEMENT, COREFERENCE, RETRIEVAL

if TYPE_CHECKING:
    from probe.models.gpt import GPT

CIRCUITS: dict[str, Circuit] = {
    "previous_token": PREVIOUS_TOKEN,
    "first_token": FIRST_TOKEN,
    "duplicate_token": DUPLICATE_TOKEN,
    "induction": INDUCTION,
    "coreference": COREFERENCE,
    "agreement": AGREEMENT,
    "retrieval": RETRIEVAL,
}


def _heads(circuit: Circuit) -> dict[str, list[tuple[int, int]]]:
    found: dict[str, list[tuple[int, int]]] = {}
    for head in circuit.heads:
        found.setdefault(head.does, []).append((head.layer, head.head))
    return found


# Kind -> what a head does -> the (layer, head) that do it. The head that a kind is named after gives the answer; others
# make notes for it.
HEADS = {kind: _heads(circuit) for kind, circuit in CIRCUITS.items()}


def build(
    kind: str,
    *,
    n_layers: int | None = None,
    n_heads: int = 4,
    noise: float = 0.0,
    seed: int = 0,
    attention: str = "fused",
) -> GPT:
    """A planted model, in evaluation mode. Its tokenizer is `word_tokenizer(language.WORDS)`.

    kind: a key of `CIRCUITS`. n_layers, n_heads: more of them are idle; default as many layers as the circuit needs.
    noise: standard deviation of what is added to every weight, drawn with `seed`: idle heads then differ from each
    other and ties are broken; up to 1e-3, the written heads hardly change. attention: "fused" or "eager", see `Config`.
    Raises UnknownName, and ProbeError for fewer layers or heads than the circuit needs.
    """
    from probe.models.planted.weights import write

    if kind not in CIRCUITS:
        raise UnknownName.of("planted model", kind, CIRCUITS)
    circuit = CIRCUITS[kind]
    needed = {"n_layers": circuit.n_layers, "n_heads": 1 + max(head.head for head in circuit.heads)}
    given = {"n_layers": circuit.n_layers if n_layers is None else n_layers, "n_heads": n_heads}
    for name, least in needed.items():
        if given[name] < least:
            raise ProbeError(f"{name}={given[name]}: the heads of planted:{kind} take at least {least}.")
    return write(circuit, **given, noise=noise, seed=seed, attention=attention)
