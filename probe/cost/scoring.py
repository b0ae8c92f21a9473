"""What scoring costs: an exact effect of every head, and nine phenomena read in one pass; timed in pairs.

python -m probe.cost.scoring sweep smollm2 --repeats 3

The last line on stdout is a JSON object: {"plain": seconds of plain passes, "contender": seconds of the scoring}.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from probe import data
from probe.capture.batch import alike, make_batch
from probe.causal.readout import ask, asked
from probe.causal.sweep import sweep
from probe.cost.pairs import Pairs, paired, timing_options
from probe.scores.measure import measure_together
from probe.scores.placement import texts
from probe.subject import Subject, load

PROMPTS, TOKENS = 200, 128  # of "nine"
PAIRS = 6  # minimal pairs of "sweep": each of their prompts is patched from the other
NINE = (
    data.previous_token,
    data.own_token,
    data.first_token,
    data.delimiters,
    data.duplicate_token,
    data.after_duplicate,
    lambda them: data.fixed_offset(them, -2),
    lambda them: data.fixed_offset(them, -3),
    lambda them: data.fixed_offset(them, -4),
)

Run = Callable[[], object]


class Task(NamedTuple):
    """label: for tables. work: what the times are of. make: from a subject and a seed to the plain passes, the scoring,
    and how many times the plain passes must be run to be the same work.
    """

    label: str
    work: str
    make: Callable[[Subject, int], tuple[Run, Run, float]]


def sweeping(subject: Subject, seed: int) -> tuple[Run, Run, float]:
    """Every head's z patched from the minimal pair, on prompts of `probe.data.asked_names`; beside one plain forward
    pass for each head and prompt, batched alike: as many rows as a layer has heads.
    """
    texts = data.asked_names(12)
    units = subject.bind(texts).units[: 2 * PAIRS]
    prompts = [p for p in asked(subject, units, most=1) for _ in range(subject.n_heads)]
    ids = [p.ids for p in prompts]
    return (
        lambda: ask(subject, prompts, ids),
        lambda: sweep(subject, units, ("patch",), seed=seed, quiet=True),
        subject.n_layers,
    )


def nine(subject: Subject, seed: int, n: int = PROMPTS, tokens: int = TOKENS) -> tuple[Run, Run, float]:
    """Nine phenomena of place and form in every row of every head; beside plain passes over the same batches, without
    logits, which neither needs.
    """
    them = [
        data.Text(f"{i:03}", f"{i:03}", text)
        for i, text in enumerate(texts(subject, "natural text", n=n, tokens=tokens, seed=seed))
    ]
    targets = [subject.bind(phenomenon(them)) for phenomenon in NINE]
    prompts = [u.ids for u in targets[0].units]
    batches = [make_batch(subject.anatomy, prompts, numbers).inputs for numbers in alike([len(p) for p in prompts])]

    def plain() -> None:
        for inputs in batches:
            subject.anatomy.backbone(**inputs)

    return plain, lambda: measure_together(subject, targets, quiet=True), 1.0


TASKS = {
    "sweep": Task(
        "every head's z patched from the minimal pair, exactly", "one forward pass for each head and prompt", sweeping
    ),
    "nine": Task(
        f"nine phenomena, every row of all heads, {PROMPTS} prompts of {TOKENS} tokens",
        "forward passes over the same prompts",
        nine,
    ),
}


def timed(task: Task, subject: Subject, repeats: int, seed: int) -> Pairs:
    """Seconds of plain passes, as many as are the same work, and of the scoring."""
    with torch.no_grad():
        plain, scoring, times = task.make(subject, seed)
        pairs = paired(plain, scoring, repeats)
    return Pairs([seconds * times for seconds in pairs.plain], pairs.contender)


def main(words: Sequence[str] | None = None) -> None:
    """Time one task as the command line says and print the JSON."""
    parser = argparse.ArgumentParser(prog="probe.cost.scoring")
    parser.add_argument("task", choices=sorted(TASKS))
    parser.add_argument("model")
    timing_options(parser)
    given = parser.parse_args(words)
    torch.set_num_threads(given.threads)
    print(json.dumps(timed(TASKS[given.task], load(given.model), given.repeats, given.seed)._asdict()))


if __name__ == "__main__":
    main()
