"""Grown Hugging Face models by every way they are loaded, and Trainers of all habits that are resumed."""

import copy

import pytest
import torch

import firefly

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from texts import GROUPED, LAYERS, WORDS, add_growth, make_data, make_model, make_trainer  # noqa: E402

from checkpoint.runs import same  # noqa: E402
from firefly.integrations.configs import find_tied, update_config  # noqa: E402
from firefly.integrations.transformers import carry_architecture, from_pretrained, make_example  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning")]
TOKENS = torch.arange(3, 27).view(4, 6)


def grow(model, batch, **options):
    example = make_example(model, batch)
    usual = {"neighborhood": firefly.New(2), "budget": firefly.Neurons(8), "steps": 2, "example": example}
    growth = firefly.grow(model, lambda model, batch: model(**batch).loss, [batch], **usual | options)
    assert growth.neurons and not update_config(model)
    return example


def grow_gpt(folder):
    model = make_model("GPT2")
    grow(model, {"input_ids": TOKENS, "labels": TOKENS}, widths=["transformer.h.0.mlp.c_fc"])
    model.save_pretrained(folder, max_shard_size="5KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    return model.eval()


def test_auto_classes_take_the_whole_or_the_bare_body(tmp_path):
    model = grow_gpt(tmp_path / "whole")
    whole = from_pretrained(transformers.AutoModelForCausalLM, tmp_path / "whole")
    assert type(whole) is type(model) and torch.equal(whole(TOKENS).logits, model(TOKENS).logits)
    body = from_pretrained(transformers.AutoModel, tmp_path / "whole")
    assert type(body) is transformers.GPT2Model and torch.equal(body(TOKENS)[0], model.transformer(TOKENS)[0])
    assert firefly.architecture(body)["widths"] == {"h.0.mlp.c_fc": 22}
    assert not update_config(body)
    body.save_pretrained(tmp_path / "body")
    again = from_pretrained(transformers.GPT2ForSequenceClassification, tmp_path / "body")
    assert torch.equal(again.transformer(TOKENS)[0], body(TOKENS)[0])
    assert firefly.architecture(again)["widths"] == {"transformer.h.0.mlp.c_fc": 22}


def test_what_is_asked_for_beside_the_model_comes_too(tmp_path):
    model = grow_gpt(tmp_path)
    loaded, told = from_pretrained(type(model), tmp_path, output_loading_info=True)
    assert type(loaded) is type(model) and not told["missing_keys"] and not told["mismatched_keys"]
    with pytest.raises(firefly.FireflyError, match="takes the class of the model first"):
        from_pretrained(str(tmp_path), transformers.GPT2LMHeadModel)


def test_weights_that_are_stored_under_other_names_are_found(tmp_path):
    torch.manual_seed(0)
    model = transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**LAYERS, **WORDS, max_position_embeddings=32))
    grow(model, {"input_ids": TOKENS, "labels": TOKENS}, widths=["gpt_neox.layers.0.mlp.dense_h_to_4h"])
    model.save_pretrained(tmp_path)
    loaded = from_pretrained(type(model), tmp_path)
    assert torch.equal(loaded.eval()(TOKENS).logits, model.eval()(TOKENS).logits)


@pytest.mark.parametrize("labels", [2, 5])
def test_another_number_of_classes_or_words_leaves_the_grown_body(tmp_path, labels):
    model = make_model("Bert")
    model = transformers.BertForSequenceClassification(model.config)
    grow(
        model, {"input_ids": TOKENS, "labels": torch.arange(4) % 2}, widths=["bert.encoder.layer.0.intermediate.dense"]
    )
    model.resize_token_embeddings(41 + labels)  # and no update_config
    model.save_pretrained(tmp_path)
    other = from_pretrained(type(model), tmp_path, num_labels=labels, ignore_mismatched_sizes=True)
    assert other(TOKENS).logits.shape == (4, labels) and other.classifier.out_features == labels
    assert same(dict(other.bert.named_parameters()), dict(model.bert.named_parameters()))


def test_speech_models_grow(tmp_path):
    sizes = {f"{part}_{what}": n for part in ("encoder", "decoder") for what, n in [("layers", 1), ("ffn_dim", 20)]}
    heads = {"d_model": 16, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "decoder_start_token_id": 1}
    lengths = {"num_mel_bins": 4, "max_source_positions": 8, "max_target_positions": 8}
    torch.manual_seed(0)
    model = transformers.WhisperForConditionalGeneration(
        transformers.WhisperConfig(**sizes, **heads, **lengths, **WORDS)
    )
    labels = TOKENS.masked_fill(TOKENS > 20, -100)
    example = grow(model, {"input_features": torch.randn(4, 4, 16), "labels": labels})
    model.save_pretrained(tmp_path)
    loaded = from_pretrained(type(model), tmp_path)
    assert torch.equal(loaded.eval()(**example).logits, model.eval()(**example).logits)


class Noting(transformers.Trainer):
    """A loss of one's own that logs and notes what it sees."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.noted = []

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        self.noted.append(len(inputs["input_ids"]))
        self.log({"mine": 1.0})
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)


@pytest.mark.parametrize("options", [{}, {"dataloader_num_workers": 1, "dataloader_persistent_workers": True}])
def test_a_growth_logs_and_notes_nothing_of_the_trainers_own(tmp_path, options):
    plain = make_trainer(tmp_path, save_strategy="no", **options)
    trainer = Noting(plain.model, plain.args, train_dataset=make_data("GPT2"))
    add_growth(trainer, unit="step", schedule=firefly.Every(5))
    trainer.train()
    assert len(trainer.noted) == sum("mine" in row for row in trainer.state.log_history) == 12
    assert len(firefly.architecture(trainer.model)["history"]) == 2


@pytest.mark.filterwarnings("ignore:.gradient_checkpointing:FutureWarning")
def test_a_model_that_computes_layers_again_grows_as_one_that_does_not(tmp_path):
    def run(again):
        model = make_model("GPT2")
        if again:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        options = {"gradient_accumulation_steps": 2, "label_smoothing_factor": 0.1}
        trainer = make_trainer(tmp_path, model=model, save_strategy="no", num_train_epochs=2, **options)
        add_growth(trainer, neighborhood=[firefly.Split(), firefly.New(2)])
        trainer.train()
        return trainer.model.state_dict()

    one, other = run(again=False), run(again=True)
    names = [name for name in one if "firefly" not in name]
    assert all(torch.allclose(one[name], other[name], atol=1e-6) for name in names)


@pytest.mark.parametrize("schedule", [firefly.Every(1), firefly.Plateau(patience=1, threshold=9.0)])
def test_a_run_resumed_at_the_end_of_an_epoch_is_the_same(tmp_path, schedule):
    def run(folder, resume=None):
        trainer = make_trainer(folder, save_strategy="epoch", eval_strategy="epoch", num_train_epochs=4)
        monitor = "eval_loss" if isinstance(schedule, firefly.Plateau) else None
        callback = add_growth(trainer, schedule=copy.deepcopy(schedule), monitor=monitor)
        trainer.train(resume_from_checkpoint=resume)
        state = {name: one for name, one in trainer.model.state_dict().items() if "firefly" not in name}
        return state, [growth["parameters"] for growth in callback.history]

    assert same(run(tmp_path), run(tmp_path / "resumed", str(tmp_path / "checkpoint-8")))


def test_a_run_is_resumed_with_another_schedule_or_without_growth(tmp_path):
    trainer = make_trainer(tmp_path, num_train_epochs=2, save_strategy="epoch")
    add_growth(trainer)
    trainer.train()
    other = make_trainer(tmp_path / "other", num_train_epochs=5, eval_strategy="epoch", save_strategy="no")
    callback = add_growth(other, schedule=firefly.Plateau(patience=1, threshold=9.0), monitor="eval_loss")
    other.train(resume_from_checkpoint=str(tmp_path / "checkpoint-8"))
    assert len(callback.history) == 2  # the second after epoch 4, the second evaluation of this run
    model = carry_architecture(make_model("GPT2"))
    without = make_trainer(tmp_path / "without", model=model, save_strategy="no")
    without.train(resume_from_checkpoint=str(tmp_path / "checkpoint-8"))
    save_and_load(without, tmp_path / "out", from_pretrained)
    assert len(firefly.architecture(model)["history"]) == 1
    with pytest.raises(firefly.FireflyError, match="name the one that is logged"):
        add_growth(without, schedule=firefly.Plateau())


def test_grouped_heads_grow_again_after_loading(tmp_path):
    torch.manual_seed(0)
    model = transformers.MistralForCausalLM(transformers.MistralConfig(**GROUPED, **WORDS))
    batch = {"input_ids": TOKENS, "labels": TOKENS}
    for folder in ("one", "two"):
        grow(model, batch, widths=lambda width: ".1." in width.name)
        model.save_pretrained(tmp_path / folder)
        model = from_pretrained(transformers.AutoModelForCausalLM, tmp_path / folder)
    assert len(firefly.architecture(model)["history"]) == 2
    cached, plain = (
        model.generate(TOKENS, max_new_tokens=4, min_new_tokens=4, do_sample=False, use_cache=use)
        for use in (True, False)
    )
    assert torch.equal(cached, plain)


def test_a_number_that_makes_heads_smaller_says_no_more_of_them():
    torch.manual_seed(0)
    model = transformers.AlbertForMaskedLM(transformers.AlbertConfig(embedding_size=16, **LAYERS, **WORDS))
    anatomy = firefly.trace(model, {"input_ids": TOKENS})
    layer = "albert.encoder.albert_layer_groups.0.albert_layers.0"
    assert anatomy[f"{layer}.attention.query"].pinned is None
    assert find_tied(model, anatomy) == [(f"{layer}.ffn",)]


# ---- what the config says ------------------------------------------------------------------------------------------


def save_and_load(trainer, folder, load):
    """What has been written now is the trainer's model, for whoever loads it."""
    trainer.save_model(folder)
    loaded = load(type(trainer.model), folder)
    assert same(dict(loaded.named_parameters()), dict(trainer.model.named_parameters()))
    return loaded


def load_plainly(kind, folder):
    return kind.from_pretrained(folder)


EITHER = pytest.mark.parametrize(("tied", "load"), [(True, load_plainly), (False, from_pretrained)])


@EITHER
def test_a_resumed_run_that_grows_no_more_is_saved_as_it_is(tmp_path, tied, load):
    def run(folder, resume=None):
        trainer = make_trainer(folder)
        add_growth(trainer, tied=tied, schedule=firefly.Milestones(0), budget=firefly.Parameters(fraction=0.5))
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    whole = run(tmp_path)
    resumed = run(tmp_path / "resumed", str(tmp_path / "checkpoint-6"))
    loaded = save_and_load(resumed, tmp_path / "out", load)
    assert firefly.architecture(whole.model)["widths"] == firefly.architecture(resumed.model)["widths"]
    assert sum(p.numel() for p in loaded.parameters()) > sum(p.numel() for p in make_model("GPT2").parameters())


@EITHER
def test_the_best_model_is_saved_as_the_smaller_one_that_it_was(tmp_path, tied, load):
    best = {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 2}
    trainer = make_trainer(tmp_path, **best, metric_for_best_model="eval_loss", greater_is_better=True)
    add_growth(trainer, tied=tied, budget=firefly.Parameters(fraction=0.5))
    trainer.train()
    assert trainer.state.best_model_checkpoint.endswith("checkpoint-2")
    save_and_load(trainer, tmp_path / "out", load)
    now, once = (one.config.to_dict() for one in (trainer.model, make_model("GPT2")))
    changed = {name for name in now.keys() | once.keys() if now.get(name) != once.get(name)}
    assert changed == {"architectures", "dtype", "use_cache"}  # those by the Trainer


def test_an_earlier_model_is_said_though_the_config_had_words_for_the_later_one():
    model = carry_architecture(make_model("GPT2"))
    batch = {"input_ids": TOKENS, "labels": TOKENS}
    first, second = ([f"transformer.h.{k}.mlp.c_fc"] for k in (0, 1))
    grow(model, batch, widths=first)
    earlier = copy.deepcopy(model.state_dict())
    example = make_example(model, batch)
    firefly.grow(model, lambda m, b: m(**b).loss, [batch], example=example, widths=second, steps=2,
                 neighborhood=firefly.New(2), budget=firefly.Neurons(8))  # fmt: skip
    assert update_config(model) and model.config.n_inner == 22
    model.load_state_dict(earlier)
    assert model.config.n_inner == 20 and model.config.firefly["widths"] == {first[0]: 22}


@pytest.mark.parametrize("name", ["Llama", "T5"])
def test_what_is_tied_is_said_again_after_a_second_growth(tmp_path, name):
    trainer = make_trainer(tmp_path, name=name, save_strategy="no")
    callback = add_growth(trainer, tied=True, budget=firefly.Parameters(fraction=0.4))
    trainer.train()
    assert len(callback.history) == 2
    save_and_load(trainer, tmp_path / "out", load_plainly)


def test_a_config_that_was_left_behind_is_named_and_one_that_carries_follows_load(tmp_path):
    grown = make_model("GPT2")
    grow(grown, {"input_ids": TOKENS, "labels": TOKENS}, widths=["transformer.h.0.mlp.c_fc"])
    firefly.save(tmp_path / "run", grown)
    for name, carries in (("left", False), ("followed", True)):
        model = make_model("GPT2")
        model = firefly.load(tmp_path / "run", carry_architecture(model) if carries else model)
        model.save_pretrained(tmp_path / name)
    with pytest.raises(firefly.FireflyError, match=r"update_config\(model\) before"):
        from_pretrained(type(grown), tmp_path / "left")
    again = from_pretrained(type(grown), tmp_path / "followed")
    assert torch.equal(again.eval()(TOKENS).logits, grown.eval()(TOKENS).logits)
