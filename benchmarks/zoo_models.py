"""The models of `zoo_sweep.py`: what torchvision, timm and transformers offer, with the smallest input each takes."""

from __future__ import annotations

import importlib
import inspect
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

SMALL = ("test_", "atto", "femto", "pico", "nano", "xxs", "xxtiny", "zero", "tiny", "micro", "xs", "_t0", "_s0", "_b0",
         "050", "025", "002", "128s", "121", "small", "18", "26", "_s", "_m")  # words of small models  # fmt: skip
KINDS = ("", ".segmentation", ".video")  # of torchvision's models

# transformers: options of any configuration; what a class does not know, it leaves out
TINY = {
    99: ["vocab_size"],
    64: ["max_position_embeddings", "n_positions", "max_source_positions", "max_target_positions"],
    48: ["intermediate_size", "ffn_dim", "d_ff", "n_inner", "hidden_dim", "moe_intermediate_size",
         "encoder_ffn_dim", "decoder_ffn_dim"],
    32: ["hidden_size", "d_model", "n_embd", "dim", "embed_dim", "word_embed_proj_dim", "image_size"],
    16: ["embedding_size"],
    8: ["head_dim", "d_kv", "num_mel_bins", "patch_size"],
    4: ["num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads", "decoder_attention_heads",
        "num_local_experts", "num_experts", "state_size", "rotary_dim"],
    2: ["num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers", "eos_token_id",
        "num_experts_per_tok"],
    1: ["bos_token_id"],
    0: ["pad_token_id", "decoder_start_token_id"],
}  # fmt: skip
SIZES = {name: size for size, names in TINY.items() for name in names}
CAUSAL = ("GPTNeo", "GPTNeoX", "GPTJ", "OPT", "Bloom", "Falcon", "Gemma", "Phi", "Mamba")
GROUPED = ("Llama", "Mistral", "Mixtral", "Qwen2", "Qwen3", "Qwen3Moe", "Gemma2", "Phi3", "Starcoder2", "StableLm",
           "Cohere", "Olmo2")  # two heads of queries for one of keys and values  # fmt: skip
MASKED = ("Bert", "Roberta", "DistilBert", "Albert", "Electra", "DebertaV2", "ModernBert")
TEXT = (
    "GPT2LMHeadModel",
    *(f"{name}ForCausalLM" for name in (*CAUSAL, *GROUPED)),
    *(f"{n}ForMaskedLM" for n in MASKED),
)
BOTH = ("T5ForConditionalGeneration", "BartForConditionalGeneration", "WhisperForConditionalGeneration")
IMAGE = ("ViTForImageClassification", "DeiTForImageClassification", "SwinForImageClassification",
         "ConvNextForImageClassification", "Dinov2ForImageClassification", "ResNetForImageClassification")  # fmt: skip
OWN: dict[str, dict[str, Any]] = {
    "GPTNeoForCausalLM": {"attention_types": [[["global"], 2]], "window_size": 8},
    "GemmaForCausalLM": {"num_key_value_heads": 1},
    # the default product of experts wants widths that are multiples of 16 bytes
    **{f"{name}ForCausalLM": {"experts_implementation": "batched_mm"} for name in ("Mixtral", "Qwen3Moe")},
    "ModernBertForMaskedLM": {"attn_implementation": "sdpa"},
    "SwinForImageClassification": {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4], "patch_size": 4,
                                   "window_size": 4},
    "ConvNextForImageClassification": {"hidden_sizes": [16, 24, 32, 40], "depths": [1, 1, 1, 1], "patch_size": 4},
    "ResNetForImageClassification": {"embedding_size": 16, "hidden_sizes": [16, 24, 32, 40], "depths": [1, 1, 1, 1]},
    "Dinov2ForImageClassification": {"patch_size": 8},
}  # fmt: skip


def list_models(package: str) -> list[str]:
    """Their names, or none where the package is not installed."""
    try:
        module = bring(package)
    except ImportError:
        return []
    if package == "transformers":
        return [name for name in (*TEXT, *BOTH, *IMAGE) if hasattr(module, name)]
    if package == "torchvision":
        places = [importlib.import_module(f"torchvision.models{kind}") for kind in KINDS]
        return [name for place in places for name in module.models.list_models(module=place)]
    return [
        smallest(module.list_models(module=name)) for name in module.list_modules() if module.list_models(module=name)
    ]


def bring(package: str) -> Any:
    """The package; torchvision also where its compiled operators do not fit this torch: no model here needs them."""
    try:
        return importlib.import_module(package)
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == package]:
            del sys.modules[name]
        about = "torchvision._meta_registrations"  # of the shapes of those operators
        sys.modules[about] = types.ModuleType(about)
        return importlib.import_module(package)


def smallest(names: list[str]) -> str:
    """The one whose name says so; the shortest name where none does."""
    return min(names, key=lambda name: (next((k for k, word in enumerate(SMALL) if word in name), 99), len(name)))


def build(package: str, name: str) -> tuple[nn.Module, dict[str, Any]]:
    """The model and the smallest input it runs with, as keyword arguments of its forward, two examples a batch."""
    torch.manual_seed(0)
    trials = {"torchvision": try_torchvision, "timm": try_timm, "transformers": try_transformers}[package]
    problem: Exception | None = None
    for model, example in trials(name):
        try:
            with torch.no_grad():
                model.eval()(**example)
                model.train()(**example)
            return model, example
        except Exception as error:
            problem = problem or error
    raise problem or ValueError(f"{name} cannot be built")


def try_torchvision(name: str) -> Iterator[tuple[nn.Module, dict[str, Any]]]:
    import torchvision

    builder = torchvision.models.get_model_builder(name)
    options: dict[str, Any] = {"weights": None}
    options |= {key: None for key in ("weights_backbone",) if key in inspect.signature(builder).parameters}
    options |= {"init_weights": True} if name in ("googlenet", "inception_v3") else {}
    video = name in torchvision.models.list_models(module=torchvision.models.video)
    for size in (64, 96, 128, 224, 299):
        sized: dict[str, Any] = {"image_size": size} if name.startswith("vit_") else {}
        sized |= {"input_size": (size, size)} if name.startswith("maxvit") else {}
        try:
            model = builder(**options | sized)
        except (ValueError, AssertionError):  # windows or patches that do not fit into this size
            continue
        first = next(iter(inspect.signature(model.forward).parameters))
        for frames in ([8], [16]) if video else ([],):
            yield model, {first: torch.randn(2, 3, *frames, size, size)}


def try_timm(name: str) -> Iterator[tuple[nn.Module, dict[str, Any]]]:
    import timm

    default = timm.create_model(name, pretrained=False)
    channels, full = default.pretrained_cfg["input_size"][:2]
    first = next(iter(inspect.signature(default.forward).parameters))
    for size in (64, 96, 128, full):
        image = {first: torch.randn(2, channels, size, size)}
        yield default, image
        try:
            yield timm.create_model(name, pretrained=False, img_size=size), image
        except Exception:  # it takes no img_size, or not this one
            continue


def try_transformers(name: str) -> Iterator[tuple[nn.Module, dict[str, Any]]]:
    import transformers

    kind, own = getattr(transformers, name), OWN.get(name, {})
    aliases = kind.config_class.attribute_map  # other names of the same options
    known = set(vars(kind.config_class())) | set(aliases)
    options = {key: value for key, value in SIZES.items() if key in known and aliases.get(key) not in own}
    if any(name.startswith(f"{word}For") for word in GROUPED):
        options["num_key_value_heads"] = 2
    model = kind(kind.config_class(**options | own))
    tokens = torch.randint(3, 99, (2, 8))
    if name in IMAGE:
        yield model, {"pixel_values": torch.randn(2, 3, 32, 32)}
    elif name.startswith("Whisper"):
        yield model, {"input_features": torch.randn(2, 8, 128), "decoder_input_ids": tokens}
    elif name in BOTH:
        yield model, {"input_ids": tokens, "decoder_input_ids": tokens.flip(1)}
    else:
        yield model, {"input_ids": tokens}
