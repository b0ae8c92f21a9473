"""The residual stream of one prompt, layer by layer: how long it is, how far each half of a block moves it, and what
the model would say if it stopped there.
"""

from __future__ import annotations

import pandas as pd
import torch

from probe.capture import edits
from probe.errors import UnsupportedModel
from probe.models.distribution import entropy
from probe.subject import Subject

NEVER = float("nan")


def embeddings(subject: Subject, text: str) -> pd.DataFrame:
    """One row for each token: position, token (its name), and norms: embedding (of the token alone), given (of what the
    first block gets), changed (of their difference: positions, segments, a norm; 0 where nothing comes in between).
    """
    _one_stack(subject)
    start = subject.anatomy.layers[0]
    run = subject.run(text, ["embed", "resid_pre"], layers=start)
    embedding, given = run["embed"][0].double(), run["resid_pre", start][0].double()
    return pd.DataFrame(
        {
            "position": range(len(embedding)),
            "token": run.prompts[0].names,
            "embedding": embedding.norm(dim=-1),
            "changed": (given - embedding).norm(dim=-1),
            "given": given.norm(dim=-1),
        }
    )


def stream(subject: Subject, text: str) -> pd.DataFrame:
    """One row for each layer and position. Lengths are Euclidean norms.

    Columns: layer, position, before and after (length of the stream before and after the block), attention and mlp
    (length of what each half changed, norms of a post-norm block included; NaN where the halves run side by side),
    cosine (of the stream after the block with the stream before it).
    Raises UnsupportedModel for an encoder-decoder, PromptError.
    """
    _one_stack(subject)
    halves = all(layer.mid for layer in subject.anatomy.stack.layers.values())
    run = subject.run(text, ["resid_pre", "resid_post", *(["resid_mid"] if halves else [])])
    rows = []
    for layer in subject.anatomy.layers:
        before, after = run["resid_pre", layer][0].double(), run["resid_post", layer][0].double()
        middle = run["resid_mid", layer][0].double() if halves else None
        cosine = torch.cosine_similarity(before, after, dim=-1)
        for position in range(len(before)):
            moved = (NEVER, NEVER)
            if middle is not None:
                mid = middle[position]
                moved = float((mid - before[position]).norm()), float((after[position] - mid).norm())
            rows.append(
                {
                    "layer": layer,
                    "position": position,
                    "before": float(before[position].norm()),
                    "attention": moved[0],
                    "mlp": moved[1],
                    "after": float(after[position].norm()),
                    "cosine": float(cosine[position]),
                }
            )
    return pd.DataFrame(rows)


def norms(moved: pd.DataFrame) -> pd.DataFrame:
    """The lengths of `stream` to be drawn, one row for each line and block: block (from 1), what, norm.

    The lines: the stream after each block at the last position and at the first, and what attention and the MLP changed
    at the last, where they are told apart.
    """
    last, first = (moved[moved["position"] == at].reset_index() for at in (moved["position"].max(), 0))
    lines = {
        "stream, last position": last["after"],
        "changed by attention, last": last["attention"],
        "changed by MLP, last": last["mlp"],
        "stream, first position": first["after"],
    }
    frames = [pd.DataFrame({"block": last["layer"] + 1, "what": what, "norm": line}) for what, line in lines.items()]
    return pd.concat(frames, ignore_index=True).dropna()


def logit_lens(subject: Subject, text: str) -> pd.DataFrame:
    """What the model would say next if the stream went from each layer straight to its final norm and unembedding
    (nostalgebraist 2020): one row for each layer, at the prompt's last position.

    The stream after a layer is put in the place of the last layer's, so the model's own final norm and unembedding,
    and whatever else it does to its logits, are what reads it.
    Columns: layer, token and probability (of the token that is likeliest in the end), rank (its place, 1 is first),
    likeliest and likeliest_probability (of this layer), entropy (nats). Token columns hold ids.
    Raises UnsupportedModel for a model that predicts no next token, PromptError.
    """
    check_predicts(subject)
    layers = subject.anatomy.layers
    run = subject.run(text, ["resid_post", "logits"])
    final = int(run["logits"][0, -1].argmax())
    swaps = [[edits.replace("resid_post", layers[-1], run["resid_post", layer][0])] for layer in layers]
    read = subject.run([text] * len(layers), ["logits"], rows=[-1], edits=swaps)["logits"][:, 0].double()
    rows = []
    for layer, logits in zip(layers, read, strict=True):
        p = logits.softmax(-1)
        rows.append(
            {
                "layer": layer,
                "token": final,
                "probability": float(p[final]),
                "rank": 1 + int((logits > logits[final]).sum()),
                "likeliest": int(p.argmax()),
                "likeliest_probability": float(p.max()),
                "entropy": float(entropy(p)),
            }
        )
    return pd.DataFrame(rows)


def check_predicts(subject: Subject) -> None:
    """Raises UnsupportedModel for a model that does not predict the next token of what it has read."""
    _one_stack(subject)
    if not subject.has_logits or not subject.is_causal:
        why = "its tokens see later ones" if subject.has_logits else "it has no language-model head"
        raise UnsupportedModel(f"{subject.name} predicts no next token: {why}. Take a decoder, such as smollm2.")


def _one_stack(subject: Subject) -> None:
    if subject.anatomy.is_encoder_decoder:
        raise UnsupportedModel(f"{subject.name} is an encoder-decoder: it has two streams, not one.")
