"""Small models in the shape of published ones, with one head written by hand, saved where a user's copy would lie."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
import transformers as tf
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor

from probe.data.coreference_templates import FEMALE, MALE

LAYERS, HEADS, WIDTH = 12, 12, 16  # of a head
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SHARP = 12.0


def word_pieces(words: Sequence[str], *, wrapped: bool, characters: bool = False) -> tf.PreTrainedTokenizerFast:
    """Words of a closed list, all others unknown. wrapped: between [CLS] and [SEP]."""
    ids = {word: n for n, word in enumerate((*SPECIAL, *words))}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = (
        pre_tokenizers.Split("", behavior="isolated") if characters else pre_tokenizers.BertPreTokenizer()
    )
    if wrapped:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    return tf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]",
    )  # fmt: skip


def solved(inputs: Tensor, wanted: Tensor) -> Tensor:
    """The matrix (width, model) that maps each input (n, model) to what is wanted (n, width)."""
    return torch.linalg.lstsq(inputs, wanted).solution.T


@torch.no_grad()
def bert(
    folder: Path, words: Sequence[str], looks: dict[str, Sequence[str]], head: tuple[int, int], **options: bool
) -> Path:
    """A BERT whose layers write nothing, so that every layer reads the words; one head looks from each word of `looks`
    to those that it names.
    """
    tokenizer = word_pieces(words, wrapped=True, **options)
    torch.manual_seed(0)
    model = tf.BertForMaskedLM(
        tf.BertConfig(
            vocab_size=len(tokenizer), hidden_size=HEADS * WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
            intermediate_size=16, max_position_embeddings=128,
        )
    )  # fmt: skip
    embeddings = model.bert.embeddings
    embeddings.position_embeddings.weight.zero_()
    embeddings.token_type_embeddings.weight.zero_()
    embeddings.word_embeddings.weight.normal_()
    for layer in model.bert.encoder.layer:
        for written in (layer.attention.output.dense, layer.output.dense):
            written.weight.zero_()
            written.bias.zero_()
    inputs = embeddings.LayerNorm(embeddings.word_embeddings.weight)
    query, key = torch.zeros(2, len(tokenizer), WIDTH)
    for n, (word, targets) in enumerate(looks.items()):
        query[tokenizer.convert_tokens_to_ids(word), n] = SHARP
        key[tokenizer.convert_tokens_to_ids(list(targets)), n] = SHARP
    attention = model.bert.encoder.layer[head[0]].attention.self
    part = slice(head[1] * WIDTH, (head[1] + 1) * WIDTH)
    for projection, wanted in ((attention.query, query), (attention.key, key)):
        projection.weight[part] = solved(inputs, wanted)
        projection.bias[part] = 0
    return saved(folder, model, tokenizer)


def bert_base_uncased(folder: Path) -> Path:
    """One that resolves `he` and `she` to names, in head 4.3."""
    words = (*MALE, *FEMALE, "he", "she", "and", "the", ".", ",", "with")
    return bert(folder / "bert-base-uncased", words, {"he": MALE, "she": FEMALE}, (4, 3))


def bert_base_chinese(folder: Path) -> Path:
    """One that looks from 它 to 猫, in head 6.5."""
    looks = {"它": ["猫"]}
    return bert(folder / "bert-base-chinese", "那只猫没跳上桌子因为它太累了", looks, (6, 5), characters=True)


@torch.no_grad()
def gpt2(folder: Path, words: Sequence[str], *, previous: tuple[int, int] | None) -> Path:
    """A GPT-2 at random; with `previous`, one whose layers write nothing, and whose head looks at the token before."""
    tokenizer = word_pieces(words, wrapped=False)
    torch.manual_seed(0)
    model = tf.GPT2LMHeadModel(
        tf.GPT2Config(
            vocab_size=len(tokenizer), n_embd=HEADS * WIDTH, n_layer=LAYERS, n_head=HEADS, n_positions=64,
            bos_token_id=None, eos_token_id=None,
        )
    )  # fmt: skip
    if previous is not None:
        model.transformer.wpe.weight.normal_()
        for block in model.transformer.h:
            block.attn.c_proj.weight.zero_()
            block.mlp.c_proj.weight.zero_()
        layer, head = previous
        inputs = model.transformer.h[layer].ln_1(model.transformer.wpe.weight)
        code = torch.nn.functional.normalize(torch.randn(64, WIDTH), dim=-1)
        start, size = head * WIDTH, HEADS * WIDTH
        matrix = model.transformer.h[layer].attn.c_attn.weight
        matrix[:, start : start + WIDTH] = solved(inputs, SHARP * code.roll(1, 0)).T
        matrix[:, size + start : size + start + WIDTH] = solved(inputs, SHARP * code).T
    return saved(folder, model, tokenizer)


def saved(folder: Path, model: tf.PreTrainedModel, tokenizer: tf.PreTrainedTokenizerFast) -> Path:
    """Where it was saved."""
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
