"""Tiny Hugging Face models, their data, and trainers that write nothing but checkpoints."""

import torch
import transformers

import firefly
from firefly.integrations.transformers import FireflyCallback

torch.set_num_threads(1)
WORDS = {"vocab_size": 40, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
LAYERS = {"hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 4}
GROUPED = LAYERS | {"num_key_value_heads": 2, "max_position_embeddings": 32}
T5 = {"d_model": 16, "d_kv": 4, "d_ff": 20, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 2}
MODELS = {
    "GPT2": ("GPT2LMHeadModel", {"n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_inner": 20, **WORDS}),
    "Bert": ("BertForMaskedLM", {**LAYERS, **WORDS}),
    "Llama": ("LlamaForCausalLM", {**GROUPED, **WORDS}),
    "Qwen2": ("Qwen2ForCausalLM", {**GROUPED, **WORDS}),
    "T5": ("T5ForConditionalGeneration", {**T5, **WORDS}),
    "ViT": ("ViTForImageClassification", {**LAYERS, "image_size": 8, "patch_size": 4, "num_labels": 5}),
}


def make_model(name):
    torch.manual_seed(0)
    kind, options = MODELS[name]
    return getattr(transformers, kind)(getattr(transformers, f"{name}Config")(**options))


def make_data(name, count=32):
    generator = torch.Generator().manual_seed(0)
    if name == "ViT":
        images, labels = torch.randn(count, 3, 8, 8, generator=generator), torch.arange(count) % 5
        return [{"pixel_values": image, "labels": label} for image, label in zip(images, labels)]
    tokens = torch.randint(3, 40, (count, 6), generator=generator)
    return [{"input_ids": row, "labels": row} for row in tokens]


def make_trainer(folder, name="GPT2", model=None, **options):
    """Three epochs of four steps, a checkpoint every two."""
    given = {"num_train_epochs": 3, "per_device_train_batch_size": 8, "save_steps": 2, "learning_rate": 0.01}
    quiet = {"report_to": "none", "disable_tqdm": True, "logging_steps": 4, "use_cpu": True}
    arguments = transformers.TrainingArguments(str(folder), **quiet, **given | options)
    data = make_data(name)
    return transformers.Trainer(model or make_model(name), arguments, train_dataset=data, eval_dataset=data[:8])


def add_growth(trainer, **options):
    usual = {"schedule": firefly.Every(1), "steps": 3, "budget": firefly.Neurons(6), "neighborhood": firefly.New(2)}
    callback = FireflyCallback(trainer, **usual | options)
    trainer.add_callback(callback)
    return callback
