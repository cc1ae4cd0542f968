"""Hugging Face models as their configs make them, with caches and outputs of their own kinds, are traced and grow."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import firefly
from laws import assert_epsilon_zero_preserves, grow_blindly, run
from zoo import Entry

transformers = pytest.importorskip("transformers")

TOKENS = torch.randint(3, 50, (3, 7), generator=torch.Generator().manual_seed(0))
SOUND = torch.randn(3, 8, 40, generator=torch.Generator().manual_seed(0))
WORDS = {"vocab_size": 50, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
DECODER = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
GROUPED = DECODER | {"num_key_value_heads": 2, "max_position_embeddings": 32}
T5 = {"d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 2}
WHISPER = {f"{side}_{key}": n for side in ("encoder", "decoder") for key, n in (("layers", 2), ("attention_heads", 4))}
WHISPER |= {"d_model": 16, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_source_positions": 20}
WHISPER |= {"max_target_positions": 32, "num_mel_bins": 8, "decoder_start_token_id": 2}

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "GPT2": ("GPT2LMHeadModel", {"n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 4}),
    "Llama": ("LlamaForCausalLM", GROUPED),
    "Mistral": ("MistralForCausalLM", GROUPED),
    "Qwen2": ("Qwen2ForCausalLM", GROUPED),
    "Gemma": ("GemmaForCausalLM", GROUPED | {"num_key_value_heads": 1, "head_dim": 4}),
    "Mixtral": ("MixtralForCausalLM", GROUPED | {"num_local_experts": 3, "num_experts_per_tok": 2}),
    "OPT": ("OPTForCausalLM", {**DECODER, "ffn_dim": 24, "word_embed_proj_dim": 16, "max_position_embeddings": 32}),
    "T5": ("T5ForConditionalGeneration", T5),
    "Whisper": ("WhisperForConditionalGeneration", WHISPER),
    "Bert": ("BertForMaskedLM", DECODER),
}
FREE = {  # some of the widths that must be free, with their sizes: hidden layers, and heads
    "GPT2": {"transformer.h.1.mlp.c_fc": 64, "transformer.h.1.attn.c_attn": 4},
    "Llama": {"model.layers.1.mlp.gate_proj": 24, "model.layers.1.self_attn.q_proj": 2},
    "Mistral": {"model.layers.1.mlp.gate_proj": 24, "model.layers.1.self_attn.q_proj": 2},
    "Qwen2": {"model.layers.1.mlp.gate_proj": 24, "model.layers.1.self_attn.q_proj": 2},
    "Gemma": {"model.layers.1.mlp.gate_proj": 24},
    "Mixtral": {"model.layers.1.self_attn.q_proj": 2},
    "OPT": {"model.decoder.layers.1.fc1": 24, "model.decoder.layers.1.self_attn.q_proj": 4},
    "T5": {"encoder.block.1.layer.1.DenseReluDense.wi": 24, "decoder.block.1.layer.2.DenseReluDense.wi": 24},
    "Whisper": {"model.encoder.layers.1.fc1": 24, "model.decoder.layers.1.encoder_attn.q_proj": 4},
    "Bert": {"bert.encoder.layer.1.intermediate.dense": 24, "bert.encoder.layer.1.attention.self.query": 4},
}


def make(name: str, **options: Any) -> tuple[Any, dict[str, Tensor]]:
    torch.manual_seed(0)
    kind, own = MODELS[name]
    model = getattr(transformers, kind)(getattr(transformers, f"{name}Config")(**WORDS, **own | options)).eval()
    example = {"input_ids": TOKENS}
    if name in ("T5", "Whisper"):
        example = {"input_features": SOUND} if name == "Whisper" else example
        example |= {"decoder_input_ids": TOKENS}
    if name == "Mixtral":  # its experts are multiplied in single precision only
        return model, example
    return model.double(), {key: x.double() if x.is_floating_point() else x for key, x in example.items()}


def loss(model: nn.Module, batch: Any) -> Tensor:
    given = {key: x for key, x in batch.items() if key != "decoder_input_ids"}
    out: Tensor = model(**given, labels=TOKENS).loss
    return out


@pytest.mark.parametrize("name", list(MODELS))
def test_models_grow_with_their_default_config(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    model, example = make(name)
    anatomy = firefly.trace(model, example)
    assert capfd.readouterr() == ("", "")
    assert {n: (anatomy[n].size, anatomy[n].pinned) for n in FREE[name]} == {
        n: (s, None) for n, s in FREE[name].items()
    }
    tolerance = 1e-5 if name == "Mixtral" else 1e-12
    entry = Entry(name, lambda: model, lambda: example, lambda: [example], loss, grows=FREE[name])  # type: ignore
    blind = grow_blindly(model, entry, anatomy=anatomy, preview=True)
    assert_epsilon_zero_preserves(blind.over, example, run(model, example), tolerance)
    few: list[Any] = [firefly.Split(), firefly.New(2)]
    optimizer = torch.optim.AdamW(model.parameters())
    growth = firefly.grow(
        *(model, loss, [example]), example=example, neighborhood=few, budget=firefly.Neurons(6), steps=5,
        anatomy=anatomy, optimizer=optimizer,
    )  # fmt: skip
    assert growth.neurons > 0
    loss(model, example).backward()
    optimizer.step()
    if hasattr(model, "generate") and name != "Bert":
        start = {key: x for key, x in example.items() if key != "decoder_input_ids"}
        assert len(model.generate(**start, max_new_tokens=4, do_sample=False)) == 3


def test_the_number_of_heads_follows() -> None:
    """`num_heads` is not in a shape of GPT-2's forward; `layer_idx` equals it in the fifth block, and stays."""
    model, example = make("GPT2", n_layer=6)
    heads = [f"transformer.h.{k}.attn.c_attn" for k in range(6)]
    few: list[Any] = [firefly.New(2)]
    growth = firefly.grow(
        *(model, loss, [example]), example=example, neighborhood=few, budget=firefly.Neurons(8), steps=4,
        widths=heads,
    )  # fmt: skip
    grown = 0
    for k, block in enumerate(model.transformer.h):
        attention = block.attn
        rows = attention.c_proj.weight.shape[0]
        assert (attention.num_heads, attention.split_size) == (rows // 4, rows)
        assert (attention.embed_dim, attention.head_dim, attention.layer_idx) == (16, 4, k)
        assert (attention.c_attn.nf, attention.c_attn.nx) == (3 * rows, 16)
        assert (attention.c_proj.nf, attention.c_proj.nx) == (16, rows)
        grown += attention.num_heads - 4
    assert grown == growth.neurons > 0
    assert model.generate(TOKENS, max_new_tokens=4, do_sample=False).shape[1] > 7
