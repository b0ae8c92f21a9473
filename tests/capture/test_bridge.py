"""TransformerLens' bridges: the same weights read both ways.

A bridge rewires the model it is given and computes attention in modules of its own, which ask nobody. `probe` follows
it like any model that does not ask, so it needs no adapter; the bridge's own hooks are the oracle here.
"""

from __future__ import annotations

import copy
import os
from typing import Any

import pytest
import torch

import probe
from probe import edits
from probe.capture.capture import Capture
from probe.subject import Subject

os.environ.setdefault("WANDB_MODE", "disabled")
pytestmark = pytest.mark.filterwarnings("ignore")  # of transformer-lens and what it imports
lens = pytest.importorskip("transformer_lens.model_bridge", reason="the [lens] extra is not installed")

HOOKS = {
    "q": "blocks.{}.attn.hook_q",
    "k": "blocks.{}.attn.hook_k",
    "v": "blocks.{}.attn.hook_v",
    "rot_q": "blocks.{}.attn.hook_rot_q",
    "rot_k": "blocks.{}.attn.hook_rot_k",
    "scores": "blocks.{}.attn.hook_attn_scores",
    "pattern": "blocks.{}.attn.hook_pattern",
    "z": "blocks.{}.attn.hook_z",
    "attn_out": "blocks.{}.attn.o.hook_out",
    "mlp_out": "blocks.{}.mlp.hook_out",
    "resid_pre": "blocks.{}.hook_in",
    "resid_mid": "blocks.{}.ln2.hook_in",
    "resid_post": "blocks.{}.hook_out",
}
TEXT = "The cat chased the dog because it was hungry."


def bridged(model: Any, tokenizer: Any) -> Any:
    """A bridge around a copy of the model: the original stays as it is."""
    return lens.TransformerBridge.boot_transformers("probe/model", hf_model=copy.deepcopy(model), tokenizer=tokenizer)


@pytest.fixture(scope="module")
def pair(smollm2: Subject) -> tuple[Subject, Any]:
    return smollm2, bridged(smollm2.model, smollm2.tokenizer)


def test_a_bridge_is_read_to_what_its_own_hooks_say(pair: tuple[Subject, Any]) -> None:
    subject, bridge = pair
    ids = torch.tensor([subject.encode(TEXT).ids])
    told: dict[tuple[str, int], torch.Tensor] = {}
    hooks = [
        (name.format(layer), lambda tensor, hook, key=(site, layer): told.__setitem__(key, tensor))
        for site, name in HOOKS.items()
        for layer in (0, 29)
    ]
    with torch.no_grad(), bridge.hooks(fwd_hooks=hooks), Capture(bridge, list(HOOKS)) as seen:
        bridge.original_model(input_ids=ids, use_cache=False)
    for (site, layer), tensor in told.items():
        assert torch.equal(seen[site, layer], tensor), (site, layer)
    assert len(told) == 2 * len(HOOKS)


def test_the_same_weights_read_both_ways_agree(pair: tuple[Subject, Any]) -> None:
    """Bit for bit with the model's own eager attention. Under sdpa the model itself differs from its eager attention
    by rounding that grows through the layers: up to 1e-3 of the largest value in the residual stream.
    """
    subject, bridge = pair
    sites = [*HOOKS, "result", "embed", "logits"]
    other = probe.load(bridge, subject.tokenizer)
    assert (other.n_layers, other.n_heads, other.n_kv_heads, other.d_head) == (30, 9, 3, 64)
    theirs = other.run([TEXT, "Mary thanked John."], sites)
    eager = probe.load("smollm2", attention="eager").run([TEXT, "Mary thanked John."], sites)
    fused = subject.run([TEXT, "Mary thanked John."], sites)
    for key, tensor in theirs.values.items():
        assert torch.equal(tensor.nan_to_num(), eager.values[key].nan_to_num()), key
        mine = fused.values[key].nan_to_num()
        hidden = mine < -1e30
        scale = mine.masked_fill(hidden, 0).abs().max().clamp(min=1)
        assert (tensor.nan_to_num() - mine).masked_fill(hidden, 0).abs().max() <= 1e-4 * scale, key


def test_edits_of_a_bridge_are_edits_of_the_model(pair: tuple[Subject, Any]) -> None:
    subject, bridge = pair
    other, eager = probe.load(bridge, subject.tokenizer), probe.load("smollm2", attention="eager")
    for change in (
        edits.zero("z", 29, heads=8),
        edits.scale("resid_mid", 12, 1.5),
        edits.scale("q", 3, 0.5, heads=2),
        edits.zero("v", 4, heads=8),
        edits.knock_out(7, query=5, key=2, heads=1),
        edits.scale("result", 20, 2.0, heads=0),
        edits.scale("mlp_out", 2, 0.0),
    ):
        theirs = other.run(TEXT, "logits", edits=[change])["logits"]
        mine = eager.run(TEXT, "logits", edits=[change])["logits"]
        apart, moved = (theirs - mine).abs().max(), (theirs - eager.run(TEXT, "logits")["logits"]).abs().max()
        assert apart <= 2e-3, str(change)
        assert moved > 10 * apart, str(change)
        assert moved > 1e-3, str(change)


@pytest.mark.parametrize("kind", ["gpt2", "gemma2", "neox", "qwen3"])
def test_bridges_of_other_families_are_read_exactly(kind: str, smollm2: Subject) -> None:
    import transformers as tf

    size = {"vocab_size": 400, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    llama = {**size, "intermediate_size": 32, "num_key_value_heads": 2, "head_dim": 16}
    config = {
        "gpt2": lambda: tf.GPT2Config(vocab_size=400, n_embd=32, n_layer=2, n_head=4),
        "gemma2": lambda: tf.Gemma2Config(**llama, sliding_window=4),
        "neox": lambda: tf.GPTNeoXConfig(**size, intermediate_size=32),
        "qwen3": lambda: tf.Qwen3Config(**llama),
    }[kind]()
    torch.manual_seed(0)
    model = tf.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    ids = torch.tensor([[5, 6, 7, 8, 9, 10, 11]])
    bridge = bridged(model, smollm2.tokenizer)
    sites = ["v", "z", "pattern", "scores", "resid_pre", "resid_post", "rot_q", "rot_k"]
    sites += [] if kind == "neox" else ["resid_mid"]
    with torch.no_grad(), Capture(bridge, sites) as theirs:
        bridge.original_model(input_ids=ids, use_cache=False)
    with torch.no_grad(), Capture(model, sites) as mine:
        model(input_ids=ids, use_cache=False)
    for site in sites:
        for layer in range(2):
            assert torch.allclose(theirs[site, layer], mine[site, layer], atol=2e-6), (site, layer)
