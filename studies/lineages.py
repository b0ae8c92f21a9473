"""Decoder, encoder, encoder-decoder: what each may look at, and what that makes it able to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import probe
from probe.sites import head_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from probe.capture.run import Run
    from probe.models.reversal import String
    from probe.runner.findings import Findings, Section
    from probe.scores.reversing import Best, Learned
    from probe.subject import Subject

STEPS = {"quick": 700, "full": 1500}
SEEDS = {"quick": 1, "full": 3}
N_STRINGS = 200
N_TEXTS = 24
WRITTEN = 8
SHOWN = ("c", "a", "f", "e", "h", "d")
SIDES = {"": "decoder", "encoder.": "encoder", "cross.": "cross"}


class _Only(NamedTuple):
    """A model of one stack. texts: what it is measured on. shown: the one that is drawn. changed: the same text twice,
    but for one token.
    """

    name: str
    subject: Subject
    texts: tuple[str, ...]
    shown: str
    changed: tuple[str, str]


@probe.study(models=())
def lineages(*, profile: str = "quick", seed: int = 0) -> Findings:
    """What may each kind of transformer look at?

    The decoder is the tiny GPT, the encoder MiniLM; the encoder-decoder is a small BART-type model, trained here to
    write strings backwards, so that what its cross-attention has to look at is known.
    """
    from probe.models import reversal
    from probe.runner.findings import Findings
    from probe.scores.reversing import learn

    decoder, encoder = _decoder(), _encoder()
    strings = reversal.held_out(N_STRINGS, seed=seed)
    learned = [learn(seed + n, STEPS[profile], strings) for n in range(SEEDS[profile])]
    both = learned[0].subject
    masks, later = _masks(decoder, encoder, both, strings)
    crossing, best = _crossing(learned, strings, seed)
    return Findings(
        answer=(
            f"A decoder only at what came before ({decoder.name}: {later[0]:.0%} of its attention on later tokens), an "
            f"encoder at everything ({encoder.name}: {later[1]:.0%}), an encoder-decoder at all of its source and at "
            f"what it has written: of held-out strings it writes {learned[0].right} of {N_STRINGS} backwards, and its "
            f"cross-attention head {best.layer}.{best.head} looks at the mirrored symbol in {best.share:.2f} "
            f"[{best.low:.2f}, {best.high:.2f}] of the steps (chance {best.chance:.2f})."
        ),
        sections=(
            masks,
            _reached(decoder, encoder, both),
            _task(learned),
            crossing,
            _passes(decoder, encoder, both),
            _sites(decoder, encoder, both),
        ),
        method=(
            f"Patterns are read from {len(decoder.texts)} texts of the synthetic language ({decoder.name}), "
            f"{len(encoder.texts)} English sentences ({encoder.name}) and {N_STRINGS} strings that the encoder-decoder "
            "was not trained on; its decoder reads the right answer up to each step (teacher forcing).",
            "The encoder-decoder, called reverser, is a BART-type model with two layers on either side and four heads "
            f"of width 16, trained for {STEPS[profile]:,} steps on strings of {reversal.SHORTEST} to "
            f"{reversal.LONGEST} symbols out of {len(reversal.SYMBOLS)}. The head named for its cross-attention is "
            "picked on one half of the strings and measured on the other.",
        ),
        notes=("Shares are of these small models, and say what they use; only the zeros are of the kind.",),
    )


def _decoder() -> _Only:
    texts = _spread([item.text for item in probe.data.language.coreference(per_frame=4).items])
    start = "the cat did not reach the shelf because it was too"
    return _Only("tiny", probe.load("tiny"), texts, f"{start} tired : cat .", (f"{start} tired", f"{start} high"))


def _encoder() -> _Only:
    texts = _spread([item.text for item in probe.data.coreference(2).items])
    start = "The cat didn't jump onto the table because it was too"
    return _Only("minilm", probe.load("minilm"), texts, f"{start} tired.", (f"{start} tired.", f"{start} high."))


def _spread(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(texts[:: max(1, len(texts) // N_TEXTS)][:N_TEXTS])


def _masks(
    decoder: _Only, encoder: _Only, both: Subject, strings: Sequence[String]
) -> tuple[Section, tuple[float, float]]:
    """Where self-attention falls; the decoder's and the encoder's share on later tokens."""
    import pandas as pd

    from probe.runner.findings import Section, Table
    from probe.scores.reversing import read
    from probe.scores.sight import directions

    ours = read(both, strings, ["pattern", "encoder.pattern"])
    measured = {
        (decoder.name, "decoder"): directions(decoder.subject.run(decoder.texts)),
        (encoder.name, "encoder"): directions(encoder.subject.run(encoder.texts)),
        (both.name, "encoder"): directions(ours, "encoder.pattern"),
        (both.name, "decoder"): directions(ours),
    }
    table = pd.DataFrame(
        [
            {
                "model": model,
                "stack": stack,
                "heads": len(heads),
                **heads[["earlier", "itself", "later", "uniform_later"]].mean(),
                "largest weight on a later token": heads["latest"].max(),
            }
            for (model, stack), heads in measured.items()
        ]
    ).rename(columns={"uniform_later": "later, if all weights were equal"})
    largest = table["largest weight on a later token"]
    return (
        Section(
            "What self-attention may look at",
            (
                "In a decoder the mask leaves a token itself and what came before: the largest of all weights on later "
                f"tokens is {largest[0]:g} in {decoder.name} and {largest[3]:g} in the decoder of the {both.name}. An "
                f"encoder has no such mask: {table['later'][1]:.0%} of {encoder.name}'s attention is on later tokens.",
            ),
            (
                Table(
                    "directions",
                    table,
                    "Share of attention on earlier tokens, on the token itself and on later ones; mean over queries, "
                    "texts and heads.",
                ),
                *_pattern(decoder, -1),
                *_pattern(encoder, 1),
            ),
        ),
        (float(table["later"][0]), float(table["later"][1])),
    )


def _pattern(which: _Only, offset: int) -> tuple[probe.Table, probe.Plot]:
    """The head that looks most at the token before (offset -1) or after."""
    from probe.runner.findings import Plot, Table
    from probe.scores.reversing import cells
    from probe.scores.sight import neighbour_head

    run = which.subject.run(which.shown)
    layer, head, weight = neighbour_head(run, offset)
    names = [f"{n} {name}" for n, name in enumerate(run.prompts[0].names)]
    table = f"pattern_{which.name}"
    return (
        Table(table, cells(run["pattern", layer][0, head].tolist(), names, names), "As drawn.", shown=False),
        Plot(
            f"attention_{which.name}",
            table,
            "heat",
            "key",
            "query",
            f"Attention of head {layer}.{head} of {which.name}, of all its heads the one that looks most at the token "
            f"{'before' if offset < 0 else 'after'} (mean weight {weight:.2f}); one text.",
            value="weight",
        ),
    )


def _reached(decoder: _Only, encoder: _Only, both: Subject) -> Section:
    import pandas as pd

    from probe.models import reversal
    from probe.runner.findings import Section, Table
    from probe.scores.sight import reach

    rows = []

    def note(model: str, what: str, where: str, run: Run, n: int, site: str = "resid_post") -> None:
        found = reach(run, range(n), site)
        rows.append((model, what, where, found.positions, found.changed, found.largest))

    for which in (decoder, encoder):
        run = which.subject.run(which.changed, "resid_post")
        one, other = (prompt.ids for prompt in run.prompts)
        at = next(n for n, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
        note(which.name, f"“{run.prompts[0].names[at]}”", "all tokens before it", run, at)
    string, reads = SHOWN, reversal.read_by_decoder(SHOWN)
    text, changed = (reversal.source(s) for s in (string, (*string[:-1], "b")))
    run = both.run([text, changed], ["resid_post", "encoder.resid_post"], decoder=[reads, reads])
    note(both.name, "the source's last symbol", "the source before it", run, len(string), "encoder.resid_post")
    note(both.name, "the source's last symbol", "all the decoder reads", run, len(reads))
    run = both.run([text, text], "resid_post", decoder=[reads, (*reads[:-1], reads[1])])
    note(both.name, "the last token the decoder reads", "the decoder before it", run, len(reads) - 1)
    columns = ["model", "changed", "read at", "positions", "that differ", "largest difference"]
    return Section(
        "What a changed token reaches",
        (
            "The same seen from outside: one token is exchanged and the last layer's stream compared. In a decoder "
            f"what comes before it stays the same to the last bit ({rows[0][4]} of {rows[0][3]} positions differ); in "
            f"an encoder it does not ({rows[1][4]} of {rows[1][3]}). The decoder of an encoder-decoder sees all of its "
            f"source at its first step already ({rows[3][4]} of {rows[3][3]}), but none of what it has yet to write "
            f"({rows[4][4]} of {rows[4][3]}).",
        ),
        (
            Table(
                "reach",
                pd.DataFrame(rows, columns=columns),
                "Positions whose vectors differ, and the largest difference of any number in them.",
                4,
            ),
        ),
    )


def _task(learned: Sequence[Learned]) -> Section:
    import pandas as pd

    from probe.models import reversal
    from probe.runner.findings import Plot, Section, Table
    from probe.scores.reversing import wilson

    rows = []
    for each in learned:
        low, high = wilson(each.right, N_STRINGS)
        row = {"seed": each.seed, "steps": len(each.losses), "loss": sum(each.losses[-100:]) / len(each.losses[-100:])}
        row |= {"right": each.right / N_STRINGS, "low": low, "high": high}
        rows.append({**row, f"right, {reversal.FAR} symbols": each.right_far / N_STRINGS})
    curve = pd.DataFrame(
        [
            {"step": at + 50, "loss": sum(each.losses[at : at + 50]) / 50, "seed": str(each.seed)}
            for each in learned
            for at in range(0, len(each.losses) - 49, 50)
        ]
    )
    first = rows[0]
    return Section(
        "An encoder-decoder learns to write backwards",
        (
            f"Written token by token, {first['right']:.1%} [{first['low']:.1%}, {first['high']:.1%}] of {N_STRINGS} "
            f"held-out strings come out backwards without a mistake and end where they should. Of strings of "
            f"{reversal.FAR} symbols, whose last positions it was never trained on, {learned[0].right_far} do.",
        ),
        (
            Table(
                "learned",
                pd.DataFrame(rows),
                f"Share of {N_STRINGS} held-out strings written backwards without a mistake, with its 95 % Wilson "
                "interval; loss: nats per token, mean of the last 100 steps.",
            ),
            Table("losses", curve, "As drawn.", shown=False),
            Plot(
                "loss",
                "losses",
                "lines",
                "step",
                "loss",
                "Training loss, means of 50 steps; a line for each seed.",
                by="seed",
                log="y",
                y_label="loss, nats per token",
            ),
        ),
    )


def _crossing(learned: Sequence[Learned], strings: Sequence[String], seed: int) -> tuple[Section, Best]:
    import pandas as pd

    from probe.runner.findings import Plot, Section, Table
    from probe.scores.reversing import aims, pattern, untrained_copy

    tables, bests = zip(*(aims(each, strings, seed=seed) for each in learned), strict=True)
    found, best = tables[0], bests[0]
    columns = ["head", "share", "low", "high", "mass", "offset", "share of offset", "untrained"]
    heads = found.rename(columns={"offset_share": "share of offset"}).assign(
        head=head_names(zip(found["layer"], found["head"], strict=True))
    )[columns]
    each = pd.DataFrame([b._asdict() for b in bests]).assign(head=[f"{b.layer}.{b.head}" for b in bests])
    models = {"trained": learned[0].subject, "untrained": untrained_copy(learned[0])}
    drawn = [pattern(model, SHOWN, best.layer, best.head).assign(model=name) for name, model in models.items()]
    section = Section(
        "What cross-attention looks at",
        (
            "To write the next symbol the decoder has to find its mirror image in the source, all of which it may see. "
            f"Head {best.layer}.{best.head} looks hardest at just that position in {best.share:.1%} [{best.low:.1%}, "
            f"{best.high:.1%}] of the steps; a uniform choice would in {best.chance:.1%}, and the best head of an "
            f"untrained copy does in {best.untrained:.1%}.",
        ),
        (
            Table(
                "cross_heads",
                heads,
                f"Every cross-attention head at {found['n_positions'][0]} steps of {found['n_prompts'][0]} held-out "
                "strings. Share of the steps whose largest weight is on the mirrored symbol, with its 95 % interval "
                "(bootstrap over strings); mass: mean weight there; offset: where its largest weight usually is, "
                "counted from there, and in what share; untrained: the same head's share in an untrained copy.",
            ),
            *([Table("cross_seeds", each.drop(columns="layer"), "The best head of each training.")] * (len(bests) > 1)),
            Table("cross_pattern", pd.concat(drawn, ignore_index=True), "As drawn.", shown=False),
            Plot(
                "cross_attention",
                "cross_pattern",
                "heat",
                "key",
                "query",
                f"Cross-attention of head {best.layer}.{best.head} while “{' '.join(SHOWN)}” is written backwards.",
                value="weight",
                panel="model",
                x_label="read by the encoder",
                y_label="written by the decoder",
            ),
        ),
    )
    return section, best


def _passes(decoder: _Only, encoder: _Only, both: Subject) -> Section:
    import pandas as pd

    from probe.models import reversal
    from probe.runner.findings import Section, Table
    from probe.scores.sight import counting_passes, passes

    with counting_passes(decoder.subject) as seen:
        prompt = decoder.subject.generate(decoder.changed[0], max_new_tokens=WRITTEN).prompts[0]
    one = {"model": decoder.name, "prompt": len(prompt), "written": WRITTEN, **passes(seen)._asdict()}
    with counting_passes(encoder.subject) as seen:
        prompt = encoder.subject.run(encoder.shown, "resid_post").prompts[0]
    seen = [("encoder.", n) for _, n in seen]  # its only stack
    two = {"model": encoder.name, "prompt": len(prompt), "written": 0, **passes(seen)._asdict()}
    with counting_passes(both) as seen:
        made = both.generate(reversal.source(SHOWN), max_new_tokens=len(SHOWN) + 1)
    three = {"model": both.name, "prompt": len(made.prompts[0]), "written": len(made.new_ids[0])}
    three |= passes(seen)._asdict()
    return Section(
        "How many passes it takes",
        (
            f"To write {WRITTEN} tokens {decoder.name} runs {one['decoder']} times: over the prompt, then over one new "
            f"token at a time, with keys and values kept. {encoder.name} gives every token its "
            f"vector in {two['encoder']} pass, and writes nothing. The {both.name} takes {three['encoder']} pass over "
            f"its source and {three['decoder']} of its decoder for {three['written']} tokens.",
        ),
        (
            Table(
                "passes",
                pd.DataFrame([one, two, three]).rename(columns=lambda name: name.replace("_", " ")),
                "Passes of each stack, and the positions they ran over in all; prompt and written: tokens.",
            ),
        ),
    )


def _sites(decoder: _Only, encoder: _Only, both: Subject) -> Section:
    from probe.runner.findings import Section, Table
    from probe.scores.sight import available

    theirs = available(both)
    table = theirs[["site"]].assign(
        **{only.name: available(only.subject)[""] for only in (decoder, encoder)},
        **{f"{both.name}, {name}": theirs[prefix] for prefix, name in SIDES.items()},
    )
    return Section(
        "What can be read of each",
        (
            "In an encoder-decoder the sites come three times: the decoder's own, the encoder's (encoder.pattern), and "
            "the decoder's reading of the encoder (cross.pattern).",
        ),
        (Table("sites", table.replace({True: "yes", False: "–"}), "Which sites exist, by the names of probe.sites."),),
    )
