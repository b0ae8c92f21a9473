"""Direct logit attribution adds up to the model's own logit difference, and each part is what its component wrote."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import torch
import transformers

import probe
from probe.data import language
from probe.errors import OutOfRange, PromptError, UnsupportedModel
from probe.models.config import Config
from probe.models.gpt import GPT
from probe.models.tokenizer import word_tokenizer
from probe.scores.attribution import direct_logit_attribution
from probe.scores.tail import check_tail, frozen_norm, tail_of
from probe.subject import Subject
from probe.targets import Answer, Unit

TOKENIZER = word_tokenizer(tuple("abcdefgh"))


def asked(n: int = 4, length: int = 9, vocabulary: int = 11) -> list[Unit]:
    """Random ids, each asking at a place of its own."""
    draws = np.random.default_rng(0)
    return [
        Unit(
            item=f"item-{i}",
            cluster=f"{i % 2}",
            ids=tuple(int(t) for t in draws.integers(3, vocabulary, length - i)),
            rows=(),
            answer=Answer(read_at=length - i - 1 - i % 3, right=(4,), wrong=((7,),)),
        )
        for i in range(n)
    ]


def test_the_parts_of_the_shipped_model_add_up(tiny: Subject) -> None:
    units = tiny.bind(language.coreference(per_frame=4)).units[:40]
    table = direct_logit_attribution(tiny, units)
    assert len(table) == len(units) * (2 + 2 * tiny.n_layers)
    assert table["residue"].abs().max() <= 1e-4
    assert (table.groupby("item")["difference"].first() > 0).mean() >= 0.9, "it answers most of them right"
    apart = direct_logit_attribution(tiny, units, heads=True)
    assert len(apart) == len(units) * (3 + tiny.n_layers * (tiny.n_heads + 3))
    assert apart["residue"].abs().max() <= 1e-4


@pytest.mark.parametrize(
    "options",
    [{}, {"norm": "rms"}, {"norm": "none"}, {"bias": False}, {"tied": False, "ffn": "swiglu", "position": "rope"}],
    ids=str,
)
def test_the_parts_of_any_tiny_gpt_add_up_and_are_those_computed_by_hand(options: dict[str, object]) -> None:
    torch.manual_seed(3)
    sizes = {"vocab_size": len(TOKENIZER), "n_layers": 2, "n_heads": 2, "d_model": 16, "max_positions": 16}
    model = GPT(Config(**{**sizes, "init_scale": 0.3, **options})).eval()  # type: ignore[arg-type]
    norm = model.base_model.norm
    if hasattr(norm, "weight"):
        torch.nn.init.normal_(norm.weight, mean=1.0, std=0.3)
    if getattr(norm, "bias", None) is not None:
        torch.nn.init.normal_(norm.bias, std=0.3)
    unit = asked()[2]
    table = direct_logit_attribution(probe.load(model, TOKENIZER), [unit])
    assert table["residue"].abs().max() <= 1e-5

    written: list[np.ndarray] = []
    for block in model.base_model.blocks:
        for half in (block.attention, block.mlp):
            half.register_forward_hook(lambda _, args, out: written.append(out[0].double().numpy()))
    stream: list[np.ndarray] = []
    model.base_model.blocks[0].register_forward_pre_hook(lambda _, args: stream.append(args[0][0].double().numpy()))
    with torch.no_grad():
        model(torch.tensor([unit.ids]))
    assert unit.answer is not None
    parts = [part[unit.answer.read_at] for part in (stream[0], *written)]
    whole = sum(parts)
    kind = options.get("norm", "layer")
    centre = (lambda x: x - x.mean()) if kind == "layer" else (lambda x: x)
    scale = 1.0 if kind == "none" else np.sqrt(np.mean(centre(whole) ** 2) + (1e-5 if kind == "layer" else 1e-6))
    gain = norm.weight.detach().double().numpy() if kind != "none" else 1.0
    matrix = (model.base_model.embed.weight if model.config.tied else model.unembed.weight).detach().double().numpy()
    expected = [float(gain * centre(p) / scale @ (matrix[4] - matrix[7])) for p in parts]
    assert table["value"].tolist()[:-1] == pytest.approx(expected, abs=1e-4)


def config_of(kind: str) -> transformers.PretrainedConfig:
    common = {"vocab_size": 11, "num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16}
    if kind == "gpt2":
        return transformers.GPT2Config(vocab_size=11, n_layer=2, n_head=2, n_embd=16, n_positions=16)
    if kind == "gpt_neox":
        return transformers.GPTNeoXConfig(
            **common, intermediate_size=32, max_position_embeddings=16, use_parallel_residual=True
        )
    return transformers.Gemma2Config(
        **common, intermediate_size=32, num_key_value_heads=1, head_dim=8, final_logit_softcapping=None
    )


def drawn(kind: str) -> transformers.PreTrainedModel:
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config_of(kind)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, mean=0.2, std=0.3)
    return model


@pytest.mark.parametrize("kind", ["gpt2", "gpt_neox", "gemma2"])
def test_the_parts_add_up_whatever_the_block(kind: str) -> None:
    model = drawn(kind)
    table = direct_logit_attribution(probe.load(model, TOKENIZER), asked())
    assert table["residue"].abs().max() <= 1e-4 * max(1.0, table["difference"].abs().max())


@pytest.mark.parametrize("kind", ["gpt2", "gpt_neox", "gemma2"])
def test_heads_and_biases_add_up_whatever_the_block(kind: str) -> None:
    model = drawn(kind)
    subject = probe.load(model, TOKENIZER)
    table = direct_logit_attribution(subject, asked(), heads=True)
    assert table["residue"].abs().max() <= 1e-4 * max(1.0, table["difference"].abs().max())
    assert len(table) == len(asked()) * (3 + 2 * (2 + 3))
    assert (table[table["component"] == "norm bias"]["value"] != 0).all() == (kind != "gemma2"), "RMSNorm has none"
    halves = direct_logit_attribution(subject, asked())
    attention = halves[halves["component"] == "attention"].groupby(["item", "layer"])["value"].sum()
    heads = table[table["component"].isin(["head", "attention bias"])].groupby(["item", "layer"])["value"].sum()
    assert heads.tolist() == pytest.approx(attention.tolist(), abs=1e-6)


def test_heads_and_biases_of_gpt2_are_those_computed_by_hand() -> None:
    model = drawn("gpt2")
    unit, n = asked()[1], 8
    assert unit.answer is not None
    table = direct_logit_attribution(probe.load(model, TOKENIZER), [unit], heads=True)
    found = table.set_index(["component", "layer", "head"])["value"]
    z: list[np.ndarray] = []
    for block in model.transformer.h:
        block.attn.c_proj.register_forward_pre_hook(lambda _, args: z.append(args[0][0, unit.answer.read_at].numpy()))
    last: list[np.ndarray] = []
    model.transformer.ln_f.register_forward_pre_hook(
        lambda _, args: last.append(args[0][0, unit.answer.read_at].numpy())
    )
    with torch.no_grad():
        model(torch.tensor([unit.ids]))
    norm = model.transformer.ln_f
    difference = (model.lm_head.weight[4] - model.lm_head.weight[7]).detach().numpy()
    scale = np.sqrt(last[0].var() + norm.eps)

    def part(x: np.ndarray) -> float:
        return float(((x - x.mean()) / scale * norm.weight.detach().numpy()) @ difference)

    for layer, block in enumerate(model.transformer.h):
        matrix = block.attn.c_proj.weight.detach().numpy()
        for head in range(2):
            own = z[layer][head * n : (head + 1) * n] @ matrix[head * n : (head + 1) * n]
            assert found["head", layer, head] == pytest.approx(part(own), abs=1e-3)
        for name, projection in (("attention bias", block.attn.c_proj), ("mlp bias", block.mlp.c_proj)):
            assert found[name, layer, -1] == pytest.approx(part(projection.bias.detach().numpy()), abs=1e-3)
    assert found["norm bias", -1, -1] == pytest.approx(float(norm.bias.detach().numpy() @ difference), abs=1e-3)


def test_heads_of_gemma2_pass_the_norm_after_their_half_as_computed_by_hand() -> None:
    model = drawn("gemma2")
    unit, n = asked()[1], 8
    assert unit.answer is not None
    at = unit.answer.read_at
    table = direct_logit_attribution(probe.load(model, TOKENIZER), [unit], heads=True)
    found = table.set_index(["component", "layer", "head"])["value"]
    z: list[np.ndarray] = []
    whole: list[np.ndarray] = []  # what attention writes, before the norm of its own
    for layer in model.model.layers:
        layer.self_attn.o_proj.register_forward_pre_hook(lambda _, args: z.append(args[0][0, at].double().numpy()))
        layer.self_attn.register_forward_hook(lambda _, args, out: whole.append(out[0][0, at].double().numpy()))
    last: list[np.ndarray] = []
    model.model.norm.register_forward_pre_hook(lambda _, args: last.append(args[0][0, at].double().numpy()))
    with torch.no_grad():
        model(torch.tensor([unit.ids]))
    difference = (model.lm_head.weight[4] - model.lm_head.weight[7]).detach().double().numpy()

    def frozen(norm: torch.nn.Module, x: np.ndarray, like: np.ndarray) -> np.ndarray:
        gain = 1 + norm.weight.detach().double().numpy()
        return x / np.sqrt(np.mean(like**2) + norm.eps) * gain

    for number, layer in enumerate(model.model.layers):
        matrix = layer.self_attn.o_proj.weight.detach().double().numpy()
        for head in range(2):
            own = matrix[:, head * n : (head + 1) * n] @ z[number][head * n : (head + 1) * n]
            entered = frozen(layer.post_attention_layernorm, own, whole[number])
            expected = float(frozen(model.model.norm, entered, last[0]) @ difference)
            assert found["head", number, head] == pytest.approx(expected, abs=1e-4)
            assert abs(expected - float(frozen(model.model.norm, own, last[0]) @ difference)) > 1e-2
        assert found["attention bias", number, -1] == pytest.approx(0, abs=1e-4), "there is none"


def test_a_bias_of_the_unembedding_is_a_part() -> None:
    torch.manual_seed(2)
    sizes = {"vocab_size": 11, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16, "rotary_dim": 4}
    model = transformers.GPTJForCausalLM(transformers.GPTJConfig(**sizes)).eval()
    bias = torch.nn.init.normal_(model.lm_head.bias).detach()
    table = direct_logit_attribution(probe.load(model, TOKENIZER), asked(), heads=True)
    assert table["residue"].abs().max() <= 1e-4
    found = table[table["component"] == "unembedding bias"]["value"]
    assert found.tolist() == pytest.approx([float(bias[4] - bias[7])] * 4)


def test_a_factor_on_the_logits_is_in_every_part() -> None:
    torch.manual_seed(2)
    sizes = {"vocab_size": 11, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.GraniteConfig(
        **sizes, num_key_value_heads=1, intermediate_size=32, logits_scaling=4.0, residual_multiplier=0.5
    )
    model = transformers.GraniteForCausalLM(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, mean=0.2, std=0.3)
    table = direct_logit_attribution(probe.load(model, TOKENIZER), asked(), heads=True)
    assert table["residue"].abs().max() <= 1e-4


def test_a_softcap_is_left_as_the_residue() -> None:
    config = config_of("gemma2")
    config.final_logit_softcapping = 0.5
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, mean=0.2, std=0.3)
    table = direct_logit_attribution(probe.load(model, TOKENIZER), asked()).groupby("item").first()
    assert (table["difference"].abs() <= 1.0).all()
    assert table["residue"].abs().max() > 0.1


MASKED = {
    "bert": lambda small: transformers.BertConfig(**small, intermediate_size=32, max_position_embeddings=16),
    "distilbert": lambda small: transformers.DistilBertConfig(
        vocab_size=11, n_layers=2, n_heads=2, dim=16, hidden_dim=32, max_position_embeddings=16
    ),
    "modernbert": lambda small: transformers.ModernBertConfig(
        **small,
        intermediate_size=32,
        max_position_embeddings=16,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        cls_token_id=1,
        sep_token_id=2,
    ),
}


@pytest.mark.parametrize("heads", [False, True])
@pytest.mark.parametrize("kind", list(MASKED))
def test_the_head_of_a_masked_model_is_more_than_a_norm_and_is_refused(kind: str, heads: bool) -> None:
    small = {"vocab_size": 11, "num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16}
    torch.manual_seed(0)
    model = transformers.AutoModelForMaskedLM.from_config(MASKED[kind](small)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, mean=0.2, std=1.0)
    with pytest.raises(UnsupportedModel, match=r"does more than a final norm and an unembedding after its last block"):
        direct_logit_attribution(probe.load(model, TOKENIZER), asked(), heads=heads)


@pytest.mark.parametrize("heads", [False, True])
def test_logits_that_a_run_bends_are_refused(heads: bool) -> None:
    model = drawn("gpt2")  # as it should be on short prompts
    model.lm_head.register_forward_hook(lambda _, args, out: torch.tanh(out) if out.shape[1] > 4 else out)
    subject = probe.load(model, TOKENIZER)
    short = [Unit("short", "a", (3, 5, 8, 6), (), answer=Answer(3, (4,), ((7,),)))]
    assert direct_logit_attribution(subject, short, heads=heads)["residue"].abs().max() <= 1e-4
    with pytest.raises(UnsupportedModel, match="does more than a final norm and an unembedding"):
        direct_logit_attribution(subject, asked(), heads=heads)


def test_half_precision_is_not_taken_for_more_than_a_norm() -> None:
    table = direct_logit_attribution(probe.load(drawn("gpt2").to(torch.bfloat16), TOKENIZER), asked())
    assert (table["residue"].abs() <= 0.05 * table["difference"].abs().max()).all()


@pytest.mark.parametrize(("dtype", "passes"), [(torch.float32, False), (torch.bfloat16, True)])
def test_one_step_of_rounding_is_allowed_for_what_the_weights_can_hold(dtype: torch.dtype, passes: bool) -> None:
    subject = probe.load(drawn("gpt2").to(dtype), TOKENIZER)
    tail, stream = tail_of(subject), torch.randn(3, 16, generator=torch.Generator().manual_seed(0)).to(dtype)
    own = tail.logits(stream)
    check_tail(subject, tail, stream, own)
    with contextlib.nullcontext() if passes else pytest.raises(UnsupportedModel, match="does more than"):
        check_tail(subject, tail, stream, own.double() * (1 + 2**-8))
    with pytest.raises(UnsupportedModel, match="does more than"):
        check_tail(subject, tail, stream, own.double() * 1.1)


def test_the_parts_of_a_pretrained_model_add_up(smollm2: Subject) -> None:
    ids = smollm2.encode("Then he, whose name was").ids
    name = [smollm2.tokenizer.encode(w, add_special_tokens=False)[0] for w in (" John", " Mary")]
    unit = Unit("a", "a", tuple(ids), (), answer=Answer(len(ids) - 1, (name[0],), ((name[1],),)))
    table = direct_logit_attribution(smollm2, [unit])
    assert len(table) == 2 + 2 * 30
    assert table["residue"].abs().max() <= 1e-4
    apart = direct_logit_attribution(smollm2, [unit], heads=True)
    assert len(apart) == 3 + 30 * (9 + 3)
    assert apart["residue"].abs().max() <= 1e-4
    assert apart[apart["component"].str.contains("bias")]["value"].abs().max() <= 1e-4, "a Llama has none"


def test_a_norm_that_is_no_scale_is_refused() -> None:
    class Bent(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(x)

    with pytest.raises(UnsupportedModel, match="final Bent is not a scale and a gain"):
        frozen_norm(Bent(), torch.randn(16, dtype=torch.float64))


def test_heads_of_post_norm_blocks_are_refused() -> None:
    config = Config(len(TOKENIZER), n_layers=1, n_heads=2, d_model=16, norm_place="post")
    with pytest.raises(UnsupportedModel, match="layer 0 writes enters its residual stream by more than a factor"):
        direct_logit_attribution(probe.load(GPT(config), TOKENIZER), asked(), heads=True)


def test_what_cannot_be_attributed_is_refused(minilm: Subject, tiny: Subject) -> None:
    with pytest.raises(UnsupportedModel, match="minilm has no language-model head"):
        direct_logit_attribution(minilm, asked())
    with pytest.raises(PromptError, match="item-x asks nothing"):
        direct_logit_attribution(tiny, [Unit("item-x", "c", (1, 5, 6), ())])
    for answer, message in (
        (Answer(2, (9999,), ((7,),)), r"right answer of item-x, token 9999 does not exist: allowed are 0 to 345"),
        (Answer(2, (4,), ((-1,),)), r"wrong answer of item-x, token -1 does not exist: .* nearest is 0"),
    ):
        with pytest.raises(OutOfRange, match=message):
            direct_logit_attribution(tiny, [Unit("item-x", "c", (1, 5, 6), (), answer=answer)])
    with pytest.raises(PromptError, match="item-x asks nothing"):
        direct_logit_attribution(tiny, [Unit("item-x", "c", (1, 5, 6), (), answer=Answer(2, (4,), ()))])
    with pytest.raises(OutOfRange, match="batch_size=0 was given: a batch holds 1 prompt or more"):
        direct_logit_attribution(tiny, asked(), batch_size=0)
