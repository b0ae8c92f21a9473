"""Running text that asks nothing: plain sentences drawn from frames, as many as are wanted, or those of a file."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from probe.data.language.parts import listed
from probe.errors import DataError

FRAMES = listed(
    """The {thing} by the {place} was {state}, and {remark}.
{when}, the {people} of the {place} {acted}.
It was {state} near the {place}, so the {people} {acted}.
Nobody knew why the {thing} behind the {place} was so {state}.
{when}, a {state} {thing} stood in front of the {place}.
The {people} said that the {thing} was {state}, but {remark}.
Between the {place} and the {second} there was a {state} {thing}.
The {people} {acted}, for {remark}.
{when}, {remark}, and the {people} {acted}.
A {thing} like that is {state} in most years, although {remark}.
From the {place} to the {second} it took the {people} half a day.
As long as the {place} was {state}, the {people} {acted}.""",
    "\n",
)
SLOTS = {
    "thing": listed("wall roof garden fence well path field stone stove wheel sail tower window gate canal plough"),
    "place": listed("river harbour mill church forest hill station bridge valley school quarry orchard lake inn"),
    "state": listed("quiet grey narrow cold bright dusty heavy green dry broken steep pale busy wet low crooked plain"),
    "people": listed("farmers sailors children builders teachers visitors weavers neighbours soldiers miners bakers"),
    "acted": listed(
        "waited until the evening, went home early, talked about the weather, counted what was left, worked without a "
        "word, looked at the clouds, began again from the start, took the longer way, sang on the way back, closed "
        "every door, asked for more time, wrote nothing down",
        ", ",
    ),
    "remark": listed(
        "the days were short, the water kept rising, no one was in a hurry, the harvest had been good, the road was "
        "hardly used, it rained for most of the week, there was enough for everyone, the frost came late, the wind had "
        "turned, prices were lower than before, it had always been so, the letters took a month",
        ", ",
    ),
    "when": listed(
        "In spring, Every year, On the last day, Before dawn, After the war, In those days, Late in autumn, At noon, "
        "Once a month, During the strike, Towards the end, From time to time",
        ", ",
    ),
}
_END = re.compile(r"(?<=[.!?])\s+")


def sentences(seed: int | str = 0) -> Iterator[str]:
    """Plain English sentences without end, drawn from twelve frames."""
    rng = random.Random(f"running {seed}")
    while True:
        place, second = rng.sample(SLOTS["place"], 2)
        words = {slot: rng.choice(choices) for slot, choices in SLOTS.items()}
        words |= {"place": place, "second": second}
        yield rng.choice(FRAMES).format(**words)


def sentences_of(path: str | Path) -> tuple[str, ...]:
    """The sentences of a text file, in order, each on one line. Raises DataError for a file that is missing, is not
    UTF-8 or has no sentences.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist; give a text file.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as text: {error}.") from error
    found = tuple(" ".join(s.split()) for s in _END.split(text.strip()))
    if not any(found):
        raise DataError(f"{path}: there are no sentences in it.")
    return found


def passage(length: int, *, count: Callable[[str], int] = lambda text: len(text.split()), seed: int | str = 0) -> str:
    """Sentences until they are at least `length` words, or whatever `count` counts, long together."""
    text = ""
    for sentence in sentences(seed):
        if count(text) >= length:
            break
        text = f"{text} {sentence}".strip()
    return text
