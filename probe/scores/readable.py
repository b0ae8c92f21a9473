"""From which block on a property can be read off the stream: probes on a model beside all that they must beat."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from probe.errors import OutOfRange
from probe.scores.probes import Array, activations, baselines, read_features
from probe.scores.properties import Property
from probe.sites import Site
from probe.subject import Subject

TRAINED, RANDOM = "trained", "random weights"
OWN_PLACE = "position"  # properties that are the place itself: the baseline that knows it is no rival there
MOST = 0.9  # of what is gained over the best baseline


def spread(subject: Subject, at_most: int) -> list[int]:
    """At most so many layers, spread evenly over the model, first and last among them. Raises OutOfRange below 1."""
    OutOfRange.check_count("at_most", at_most)
    n = subject.n_layers
    return sorted({int(layer) for layer in np.linspace(0, n - 1, min(at_most, n)).round()})


def beside_random(subject: Subject, measure: Callable[[Subject], pd.DataFrame], *, seed: int = 0) -> pd.DataFrame:
    """What is measured of the subject and of a copy with random weights: a column `weights` says which. seed: of the
    copy.
    """
    models = {TRAINED: subject, RANDOM: subject.random_copy(seed)}
    return pd.concat([measure(model).assign(weights=name) for name, model in models.items()], ignore_index=True)


def probed(
    subject: Subject, props: Sequence[Property], *, layers: Sequence[int] | None = None, seed: int = 0
) -> pd.DataFrame:
    """`probes.read_off` of the stream for every property, on the subject and on a copy with random weights. Raises
    OutOfRange without a property.
    """
    if not props:
        raise OutOfRange("props=[] names none: give at least one property (probe.scores.properties).")

    def every(model: Subject) -> pd.DataFrame:
        held: dict[tuple[object, object], dict[Site, Array]] = {}  # several properties have the same places
        tables = []
        for prop in props:
            key = prop.prompts, prop.places
            if key not in held:
                held[key] = activations(model, prop, layers=layers)
            tables.append(read_features(held[key], prop, seed=seed))
        return pd.concat(tables)

    return beside_random(subject, every, seed=seed)


def summary(found: pd.DataFrame, props: Sequence[Property], *, seed: int = 0) -> pd.DataFrame:
    """One row a property: property, majority, place (baselines), embedding (the token's own, alone), random (best of
    the random weights), best (trained, at any depth) with low, high, control, selectivity, shuffled and error there, at
    (blocks passed), above (the number of depths whose interval lies above majority, place, embedding and the random
    weights at any depth) of depths, from (the first depth from which on all do; NaN if the last does not), most_from
    (the first that has `MOST` of the best one's lead over these; NaN if none is above), groups, places, types.

    found: as `probed` returns it. Where a property is the position itself, "place" is no rival.
    """
    rows = []
    for prop in props:
        base = baselines(prop, seed=seed).set_index("baseline")["score"]
        mine = found[found["property"] == prop.name]
        blocks = mine[(mine["weights"] == TRAINED) & (mine["blocks"] >= 0)].sort_values("blocks")
        embedding = mine[(mine["weights"] == TRAINED) & (mine["site"] == "embed")]["score"].iloc[0]
        random = mine[(mine["weights"] == RANDOM) & (mine["blocks"] >= 0)]["score"].max()
        rivals = [base["majority"], embedding, random]
        rivals += [] if prop.name.startswith(OWN_PLACE) else [base["place"]]
        best = blocks.sort_values("score", ascending=False, kind="stable").iloc[0]
        above = (blocks["low"] > max(rivals)).to_numpy()
        stays = np.logical_and.accumulate(above[::-1])[::-1]  # here and at every later depth
        most = blocks[blocks["score"] >= max(rivals) + MOST * (best["score"] - max(rivals))]["blocks"]
        rows.append(
            {
                "property": prop.name,
                "majority": base["majority"],
                "place": base["place"],
                "embedding": embedding,
                "random": random,
                **{
                    name: best[name] for name in ("score", "low", "high", "control", "selectivity", "shuffled", "error")
                },
                "at": int(best["blocks"]),
                "above": int(above.sum()),
                "depths": len(above),
                "from": float(blocks["blocks"][stays].iloc[0]) if stays.any() else float("nan"),
                "most_from": float(most.iloc[0]) if above.any() else float("nan"),
                "groups": int(best["groups"]),
                "places": int(best["places"]),
                "types": int(best["types"]),
            }
        )
    return pd.DataFrame(rows).rename(columns={"score": "best"})


def in_words(row: pd.Series) -> str:
    """From where on a property can be read, of a row of `summary`: "on" only where it stays readable to the end."""
    best = f"best {row['best']:.2f} [{row['low']:.2f}, {row['high']:.2f}] after {row['at']}"
    if row["from"] == row["from"]:  # not NaN
        return f"{row['property']} from {row['from']:.0f} on ({best})"
    where = f"{row['above']} of {row['depths']} depths" if row["above"] else "no depth"
    return f"{row['property']} at {where} ({best})"
