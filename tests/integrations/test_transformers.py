"""Growth inside the Hugging Face Trainer: a fresh process resumes, and grown models are saved, loaded and run."""

import pytest
import torch

import firefly

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from texts import MODELS, add_growth, make_data, make_model, make_trainer  # noqa: E402

from checkpoint.runs import run_in_fresh_process, same  # noqa: E402
from firefly.integrations.configs import find_tied, update_config  # noqa: E402
from firefly.integrations.transformers import from_pretrained, make_example  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning")]


def list_batch(name):
    rows = make_data(name, 4)
    return {key: torch.stack([row[key] for row in rows]) for key in rows[0]}


def grow(name, model, **options):
    batch = list_batch(name)
    example = make_example(model, batch)
    usual = {"neighborhood": firefly.New(2), "budget": firefly.Neurons(8), "steps": 2, "example": example}
    return firefly.grow(model, lambda model, batch: model(**batch).loss, [batch], **usual | options)


@torch.no_grad()
def answer(name, model):
    return model.eval()(**make_example(model, list_batch(name))).logits


def test_the_model_grows_and_what_trains_it_goes_on(tmp_path):
    trainer = make_trainer(tmp_path, save_strategy="no", max_grad_norm=0.5, bf16=True)
    callback = add_growth(trainer)
    trainer.train()
    model, optimizer = trainer.model, trainer.optimizer.optimizer
    assert [growth["parameters"][1] for growth in callback.history][-1] == sum(p.numel() for p in model.parameters())
    assert len(callback.history) == 2 and all(growth["added"] for growth in callback.history)
    assert {id(p) for group in optimizer.param_groups for p in group["params"]} == {id(p) for p in model.parameters()}
    assert all(state["exp_avg"].shape == p.shape and state["step"] == 12 for p, state in optimizer.state.items())
    assert trainer.lr_scheduler.last_epoch == 12
    logged = [row for row in trainer.state.log_history if "firefly/neurons" in row]
    assert [row["step"] for row in logged] == [4, 8] and logged[0]["firefly/neurons"] > 0
    assert make_trainer(tmp_path, model=model).evaluate()["eval_loss"] > 0


def resume(folder):
    trainer = make_trainer(folder / "resumed")
    add_growth(trainer)
    trainer.train(resume_from_checkpoint=str(folder / "checkpoint-6"))
    loaded = from_pretrained(transformers.GPT2LMHeadModel, folder / "checkpoint-12")
    torch.save((trainer.model.state_dict(), trainer.optimizer.state_dict(), loaded.state_dict()), folder / "resumed.pt")


def in_fresh_process(folder):
    run_in_fresh_process(f"test_transformers.resume(Path({str(folder)!r}))")


@pytest.mark.parametrize("go_on", [resume, pytest.param(in_fresh_process, marks=pytest.mark.slow)])
def test_a_run_resumes_bit_identically_and_loads(tmp_path, go_on):
    trainer = make_trainer(tmp_path)
    add_growth(trainer)
    trainer.train()
    go_on(tmp_path)
    state, optimizer, loaded = torch.load(tmp_path / "resumed.pt")
    own = {name: value for name, value in trainer.model.state_dict().items() if "firefly" not in name}
    assert same({name: state[name] for name in own}, own)
    assert same(optimizer["state"], trainer.optimizer.state_dict()["state"])
    assert same({name: loaded[name] for name in own}, own)


def test_the_best_model_comes_back_though_it_was_smaller(tmp_path):
    best = {
        "load_best_model_at_end": True,
        "eval_strategy": "steps",
        "eval_steps": 2,
        "metric_for_best_model": "eval_loss",
    }
    trainer = make_trainer(tmp_path, **best, greater_is_better=True)  # the first evaluation is the best then
    add_growth(trainer)
    trainer.train()
    assert trainer.state.best_model_checkpoint.endswith("checkpoint-2")
    assert sum(p.numel() for p in trainer.model.parameters()) == sum(p.numel() for p in make_model("GPT2").parameters())


def test_steps_can_be_counted(tmp_path):
    trainer = make_trainer(tmp_path, save_strategy="no", max_steps=6)
    callback = add_growth(trainer, unit="step", schedule=firefly.Milestones(1, 5))
    trainer.train()
    assert len(callback.history) == 1  # not after the last step


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(make_data("GPT2"))


def test_where_the_trainer_counts_no_epochs_steps_can_be_counted(tmp_path):
    def train(**options):
        arguments = make_trainer(tmp_path, save_strategy="no", max_steps=9).args
        trainer = transformers.Trainer(make_model("GPT2"), arguments, train_dataset=Stream())
        callback = add_growth(trainer, **options)
        trainer.train()
        return len(callback.history)

    assert train(unit="step", schedule=firefly.Every(4)) == 2
    with pytest.raises(firefly.FireflyError, match=r"no length, so the trainer counts no epochs: .*unit='step'"):
        train()


def test_a_metric_decides_once_for_each_value_and_so_does_a_resumed_run(tmp_path):
    def run(folder, **options):
        trainer = make_trainer(folder, max_steps=12, eval_strategy="steps", eval_steps=2)
        late = firefly.Plateau(patience=2, threshold=9.0)  # after the third evaluation, asked in the step after it
        add_growth(trainer, unit="step", schedule=late, monitor="eval_loss")
        trainer.train(**options)
        return [row["step"] for row in trainer.state.log_history if "firefly/neurons" in row]

    assert run(tmp_path / "one") == [7]
    assert run(tmp_path / "two", resume_from_checkpoint=str(tmp_path / "one" / "checkpoint-4")) == [7]


def test_a_metric_that_is_none_is_refused(tmp_path):
    trainer = make_trainer(tmp_path, save_strategy="no", eval_strategy="steps", eval_steps=1)
    add_growth(trainer, unit="step", schedule=firefly.Plateau(), monitor="eval_los")
    with pytest.raises(firefly.FireflyError, match=r"monitor='eval_los' is no metric.*eval_loss"):
        trainer.train()


ALIKE = {"Llama", "Bert"}  # Qwen2 and ViT
every_model = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in ALIKE else name for name in MODELS]
)


@every_model
def test_a_grown_model_is_saved_and_loaded(tmp_path, name):
    """Widths and heads of all kinds, each layer as it likes: `from_pretrained` of ours loads it, and it generates."""
    model = make_model(name)
    free = [w.name for w in firefly.trace(model, make_example(model, list_batch(name))) if w.pinned is None]
    heads = [width for width in free if "att" in width.lower()]
    hidden = [width for width in free if width not in heads]
    for width in (hidden[0], heads[-1]):
        assert grow(name, model, widths=[width]).neurons > 0
    assert not update_config(model)
    model.save_pretrained(tmp_path)
    loaded = from_pretrained(type(model), tmp_path)
    assert type(loaded) is type(model) and torch.equal(answer(name, loaded), answer(name, model))
    if name in ("GPT2", "Llama", "Qwen2", "T5"):
        tokens = list_batch(name)["input_ids"]
        cached, plain = (
            loaded.generate(tokens, max_new_tokens=4, min_new_tokens=4, do_sample=False, use_cache=use)
            for use in (True, False)
        )
        assert torch.equal(cached, plain)


@every_model
def test_what_is_tied_the_config_says(tmp_path, name):
    model = make_model(name)
    anatomy = firefly.trace(model, make_example(model, list_batch(name)))
    groups = find_tied(model, anatomy)
    names = [width for group in groups for width in group]
    budget = firefly.Parameters(fraction=0.5) & firefly.Tied(*groups)
    growth = grow(name, model, anatomy=anatomy, widths=names, budget=budget)
    assert all(growth.widths[width][1] > growth.widths[width][0] for width in names)
    assert update_config(model) and not hasattr(model.config, "firefly")
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert torch.allclose(answer(name, loaded), answer(name, model), atol=1e-6)
    assert sum(p.numel() for p in loaded.parameters()) == growth.parameters[1]


def test_the_trainer_keeps_what_is_tied(tmp_path):
    trainer = make_trainer(tmp_path, name="Qwen2", num_train_epochs=2, save_strategy="no")
    add_growth(trainer, tied=True, budget=firefly.Parameters(fraction=0.5))
    trainer.train()
    trainer.save_model(tmp_path / "plain")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "plain")
    assert loaded.config.intermediate_size > 20 and loaded.config.num_key_value_heads > 2
    assert torch.allclose(answer("Qwen2", loaded), answer("Qwen2", trainer.model), atol=1e-6)


def test_another_head_and_dtype_take_the_grown_body(tmp_path):
    model = make_model("Bert")
    grow("Bert", model, widths=["bert.encoder.layer.0.intermediate.dense"])
    assert not update_config(model)
    model.save_pretrained(tmp_path)
    other = from_pretrained(transformers.BertForSequenceClassification, tmp_path, dtype=torch.bfloat16)
    body = {n: p for n, p in other.bert.named_parameters() if "pooler" not in n}
    assert all(torch.equal(p, model.bert.get_parameter(n).bfloat16()) for n, p in body.items())


def test_what_cannot_be_is_refused(tmp_path):
    trainer = make_trainer(tmp_path)
    with pytest.raises(firefly.FireflyError, match="unit='hour'"):
        add_growth(trainer, unit="hour")
    with pytest.raises(firefly.FireflyError, match="schedule=5"):
        add_growth(trainer, schedule=5)
