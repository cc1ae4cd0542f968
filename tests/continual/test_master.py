"""Parts of continual learning: who owns what, what stays still, what a task begins with, and what is refused."""

import itertools
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from nets import CLASSES, EXAMPLE, RECIPE, ResNet, draw_task, hash_logits, learn_task, make_mlp, make_vgg
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, default_collate

import firefly
from firefly.continual import Master, Pick, Until, desk, learning, metrics
from firefly.continual.lock import Held, lock
from firefly.continual.ownership import find_own, find_places
from firefly.continual.picking import Masked
from firefly.errors import FireflyError
from firefly.tensors import Layout, Run
from firefly.training import Recipe, evaluate, fit


@pytest.fixture(scope="module")
def master() -> Master:
    """Two tasks, in memory."""
    one = Master(make_vgg, EXAMPLE)
    for number in range(2):
        learn_task(one, number)
    return one


# ---- ownership -------------------------------------------------------------------------------------------------------


def test_an_entry_belongs_to_the_first_task_that_has_both_neurons() -> None:
    a, b = (Run("a", 0, 1),), (Run("b", 0, 2), Run(None, 1))  # two entries for each neuron of b, then a fixed one
    layout = Layout("w", (a, b, (Run(None, 3),)), ("makes", "reads", None))
    random = torch.Generator().manual_seed(0)
    tasks = [{n: torch.randperm(5, generator=random)[:3] for n in "ab"} for _ in range(4)]
    for number, lists in enumerate(tasks):
        own = find_own(layout, lists, tasks[:number])
        assert own.shape == (3, 7, 1)
        columns = [name for name in lists["b"].tolist() for _ in range(2)] + [None]
        for (i, x), (j, y) in itertools.product(enumerate(lists["a"].tolist()), enumerate(columns)):
            taken = any(x in t["a"] and (y is None or y in t["b"]) for t in tasks[:number])
            assert bool(own[i, j, 0]) is not taken


def test_places_of_a_list_in_the_masters_tensor() -> None:
    layout = Layout("w", ((Run("a", 0, 2), Run(None, 1)), (Run("b", 0),)), ("makes", "reads"))
    full = torch.arange(9 * 3).view(9, 3)  # 4 neurons of a, twice each, and one fixed row
    lists = {"a": torch.tensor([3, 0]), "b": torch.tensor([2, 1])}
    found = full[find_places(layout, lists, {"a": 4, "b": 3})]
    assert torch.equal(found, full[[6, 7, 0, 1, 8]][:, [2, 1]])


def test_norms_and_heads_are_private_and_biases_follow_their_neurons() -> None:
    blueprint = Master(ResNet, EXAMPLE).blueprint
    assert set(blueprint.shared) == {"stem.weight", "one.weight", "one.bias", "two.weight"}
    assert set(blueprint.head) == {"head.weight", "head.bias"}
    assert {name.partition(".")[0] for name in blueprint.followers} == {"norm", "norm1", "norm2"}
    assert set(blueprint.others) == {f"{norm}.num_batches_tracked" for norm in ("norm", "norm1", "norm2")}


def test_locked_neurons_listen_to_new_ones_and_no_older_task_hears_it() -> None:
    master = Master(make_vgg, EXAMPLE)
    learn_task(master, 0)
    answers = hash_logits(master.network("task 0"))
    learn_task(master, 1, neighborhood=firefly.New(2), rank="magnitude")  # two in every width
    task, before = master["task 1"], master["task 0"]
    own = find_own(master.blueprint.shared["4.weight"], task.lists, [before.lists])[:, :, 0, 0]
    old = [torch.isin(task.lists[name], before.lists[name]) for name in ("4", "0")]
    assert bool((own == ~(old[0][:, None] & old[1][None, :])).all())
    heard = master.network("task 1").get_parameter("4.weight").detach()[old[0]][:, ~old[1]]
    assert heard.shape[1] == 2 and bool((heard.abs().sum((0, 2, 3)) > 0).all())
    assert hash_logits(master.network("task 0")) == answers


# ---- the lock --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_neither_decay_nor_momentum_moves_what_is_locked(optimizer: Any) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    before, free = model.weight.detach().clone(), torch.rand(3, 4) > 0.5
    how = {"momentum": 0.9} if optimizer is torch.optim.SGD else {}
    stepper = optimizer(model.parameters(), lr=0.1, weight_decay=0.1, **how)
    handle = lock(stepper, [Held(model.weight, free, before)])
    for _ in range(5):
        model(torch.randn(8, 4)).square().mean().backward()
        stepper.step()
    assert torch.equal(model.weight[~free], before[~free])
    assert not torch.isclose(model.weight[free], before[free]).any()
    handle.remove()
    stepper.step()
    assert not torch.isclose(model.weight[~free], before[~free]).any()


def test_a_task_that_moved_older_entries_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Master(make_mlp, EXAMPLE)
    learn_task(one, 0)
    monkeypatch.setattr(learning, "lock", lambda optimizer, held: lock(optimizer, []))
    with pytest.raises(FireflyError, match=r"changed .* weights of older tasks"):
        learn_task(one, 1)
    assert list(one.tasks) == ["task 0"]


@pytest.mark.parametrize("number", [0, 1])
def test_what_was_trained_is_what_the_master_gives(master: Master, number: int) -> None:
    accuracy = evaluate(master.network(f"task {number}"), draw_task(number, 12)).accuracy
    assert accuracy == master[f"task {number}"].told["accuracy"]


# ---- where a task begins, and where it ends --------------------------------------------------------------------------


def test_a_mask_is_the_same_as_leaving_neurons_out(master: Master) -> None:
    blueprint = master.blueprint
    everyone = {name: torch.arange(size) for name, size in master.born.items()}
    model, _ = master.begin(3, everyone)
    masked = Masked(model, {**blueprint.shared, **blueprint.head}, master.born).eval()
    kept = {name: torch.arange(0, size, 2) for name, size in master.born.items()}
    with torch.no_grad():
        for name, mask in masked.part(masked.mask).items():
            mask.fill_(-1.0)[kept[name]] = 0.3
    assert all(torch.equal(masked.list_kept()[name], places) for name, places in kept.items())
    images = draw_task(0)[0]
    whole = masked(images)
    pupil = learning.Pupil(model, everyone)
    learning.keep_only(master, pupil, kept)
    assert torch.allclose(pupil.model.eval()(images), whole, atol=1e-6)


def test_a_price_switches_neurons_off_and_gradients_keep_some(master: Master) -> None:
    for price, fewer in ((0.0, False), (50.0, True)):
        one = Master(make_vgg, EXAMPLE)
        learn_task(one, 0, growths=0)
        learn_task(one, 1, Pick("mask", epochs=20, lr=0.05, price=price), growths=0)
        picked = sum(len(numbers) for numbers in one["task 1"].lists.values())
        assert (picked <= 5) is fewer and picked >= 2  # of 9; one stays in each width
        assert one["task 1"].told["epochs"]["mask"] == 20


@pytest.mark.parametrize(("multiple", "counts"), [(1, (3, 1)), (2, (4, 2)), (4, (4, 4)), (8, (6, 5))])
def test_a_mask_keeps_the_best_so_that_layers_are_multiples(
    master: Master, multiple: int, counts: tuple[int, ...]
) -> None:
    sizes = {"six": 6, "five": 5}
    masked = Masked(nn.Linear(1, 1), {}, sizes)
    with torch.no_grad():
        masked.mask.copy_(torch.tensor([-0.1, 0.3, 0.1, -0.2, 0.2, -0.3, -0.1, -0.2, -0.3, -0.05, -0.4]))
    order = {"six": [1, 4, 2, 0, 3, 5], "five": [3, 0, 1, 2, 4]}
    kept = masked.list_kept(multiple)
    assert {name: places.tolist() for name, places in kept.items()} == {
        name: sorted(order[name][:count]) for name, count in zip(sizes, counts)
    }


def test_a_network_of_its_own_shares_nothing() -> None:
    one = Master(make_mlp, EXAMPLE)
    for number in range(2):
        learn_task(one, number, "none")
    lists = [one[f"task {number}"].lists for number in range(2)]
    assert not any(bool(torch.isin(lists[0][name], lists[1][name]).any()) for name in one.born)
    assert one.parameters == sum(p.numel() for k in range(2) for p in one.network(f"task {k}").parameters())


def test_until_an_accuracy_a_plateau_or_a_budget() -> None:
    assert Until(accuracy=0.9).find_reason([0.5, 0.9], 10) == "accuracy 0.9000"
    assert Until(accuracy=0.9).find_reason([0.5, 0.89], 10) is None
    assert Until(plateau=0.01).find_reason([0.5], 10) is None
    assert Until(plateau=0.01).find_reason([0.5, 0.505], 10) == "plateau"
    assert Until(parameters=10).find_reason([0.5], 10) == "10 parameters"


@pytest.mark.parametrize(
    ("until", "growths"),
    [(0.0, 0), (Until(parameters=10), 0), (Until(parameters=10_000), 2), (Until(plateau=1.0), 1)],
)
def test_it_grows_as_long_as_it_is_asked_to(until: Any, growths: int) -> None:
    one = Master(make_vgg, EXAMPLE)
    learn_task(one, 0, until=until, budget=firefly.Neurons(2), growths=2 if growths == 2 else None)
    assert len(one["task 0"].told["growths"]) == growths
    assert len(one["task 0"].told["rounds"]) == growths + 1


def test_the_network_of_a_task_trains_and_grows_like_any_other(master: Master) -> None:
    model = master.network("task 1")
    assert firefly.trace(model, EXAMPLE).sizes()["0"] == len(master["task 1"].lists["0"])
    fit(model, draw_task(1), recipe=RECIPE, progress=False)
    assert hash_logits(model) != hash_logits(master.network("task 1"))


# ---- folders ---------------------------------------------------------------------------------------------------------


def test_a_learning_that_fails_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    straight, one = Master(make_mlp, EXAMPLE), Master(make_mlp, EXAMPLE, tmp_path)
    for number in range(2):
        learn_task(straight, number, "all", growths=2)
    learn_task(one, 0, growths=2)
    rounds = learning.grow_round
    calls: list[int] = []

    def fail(*given: Any) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise OSError("the power went")
        rounds(*given)

    monkeypatch.setattr(learning, "grow_round", fail)
    with pytest.raises(OSError, match="power"):
        learn_task(one, 1, growths=2)
    with pytest.raises(FireflyError, match=r"task 1.*interrupted.*is not this one"):
        learn_task(Master(make_mlp, EXAMPLE, tmp_path), 2, growths=2)
    with pytest.raises(FireflyError, match=r"interrupted, with another growths"):
        learn_task(Master(make_mlp, EXAMPLE, tmp_path), 1, growths=3)
    again = Master(make_mlp, EXAMPLE, tmp_path)
    learn_task(again, 1, growths=2)
    assert len(calls) == 3  # the first growth was not done again
    assert hash_logits(again.network("task 1")) == hash_logits(straight.network("task 1"))
    assert not (tmp_path / "learning").exists()


def test_what_another_task_left_on_the_desk_is_not_taken_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is killed while it clears the desk leaves trainings there, and no network."""

    def leave_trainings(folder: Path, **how: Any) -> None:
        for path in (folder / "network").iterdir():
            path.unlink()

    straight = Master(make_mlp, EXAMPLE)
    learn_task(straight, 0), learn_task(straight, 2)
    for wrong in (False, True):
        master = Master(make_mlp, EXAMPLE, tmp_path / str(wrong))
        with monkeypatch.context() as patch:
            if wrong:
                patch.setattr(desk.shutil, "rmtree", leave_trainings)
            learn_task(master, 0)
        assert (tmp_path / str(wrong) / "learning").exists() == wrong
        learn_task(master, 2)
        assert [hash_logits(master.network(name)) for name in master.tasks] == [
            hash_logits(straight.network(name)) for name in straight.tasks
        ]


def test_a_folder_of_another_network_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    one = Master(make_mlp, EXAMPLE, tmp_path)
    for number in range(2):
        learn_task(one, number, growths=0)
    with pytest.raises(FireflyError, match="another small network"):
        Master(make_vgg, EXAMPLE, tmp_path)
    other = Master(make_mlp, EXAMPLE, tmp_path)
    learn_task(one, 2, growths=0)
    with pytest.raises(FireflyError, match="another process"):
        learn_task(other, 3)
    file = next((tmp_path / "task-002").glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(FireflyError, match=r"task-002.*altered"):
        Master(make_mlp, EXAMPLE, tmp_path)
    (tmp_path / "task-002").rename(tmp_path / "gone")
    with pytest.raises(FireflyError, match="task-003 but not task-002"):
        Master(make_mlp, EXAMPLE, tmp_path)


# ---- what is refused -------------------------------------------------------------------------------------------------


def small(labels: Tensor) -> tuple[Tensor, Tensor]:
    return torch.randn(len(labels), 1, 6, 6), labels


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"name": "task 0"}, "learnt already"),
    ({"name": " "}, "needs a name"),
    ({"train": small(torch.zeros(0, dtype=torch.long))}, "'x': train has 0 images"),
    ({"train": small(torch.arange(16) % 4)}, "labels from 0 to 3, but 3 classes are 0 to 2"),
    ({"valid": small(torch.full((4,), -1))}, "'x': valid has labels from -1"),
    ({"train": small(torch.rand(16))}, "give class numbers"),
    ({"classes": 1}, "classes=1"),
    ({"growths": -1}, "growths=-1"),
    ({"until": "soon"}, "until='soon'"),
    ({"until": 0.9, "valid": False}, r"valid=False, but Until\(accuracy=0.9"),
    ({"until": Until(plateau=0.0), "valid": False}, "asks for a held-out accuracy"),
    ({"pick": "some"}, "pick='some'"),
    ({"recipe": 3}, "recipe is a int"),
    ({"neighborhood": [firefly.Split()]}, "'split' would change neurons of older tasks"),
    ({"example": 1}, "example cannot be given"),
    ({"stps": 3}, "stps cannot be given here; of a growth steps, lr"),
    ({"steps": 0}, "steps=0"),
    ({"method": "fireflies"}, "method='fireflies'"),
    ({"budget": 5}, "budget=5"),
    ({"seed": "a"}, "seed='a'"),
    ({"train": small(torch.arange(32) % 2)}, "no image of train is of class 2"),
    ({"train": (torch.randn(32, 3, 9, 9), torch.arange(32) % 3)}, r"cannot take images of train, .*\(3, 9, 9\)"),
    ({"valid": (torch.randn(6, 1, 6), torch.arange(6) % 3)}, r"cannot take images of valid, .*\(1, 6\)"),
]


@pytest.mark.parametrize(("wrong", "why"), REFUSED, ids=[why for _, why in REFUSED])
def test_what_is_refused_before_anything_is_trained(
    master: Master, wrong: dict[str, Any], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {"name": "x", "train": small(torch.arange(32) % 3), "classes": 3, "recipe": RECIPE, **wrong}
    monkeypatch.setattr(learning, "fit", lambda *_, **__: pytest.fail("it was trained before it was refused"))
    with pytest.raises(FireflyError, match=why):
        master.learn(given.pop("name"), given.pop("train"), **given)
    assert list(master) == ["task 0", "task 1"]


def test_a_task_may_be_learnt_on_all_its_images(tmp_path: Path) -> None:
    one = Master(make_mlp, EXAMPLE, tmp_path)
    for number in range(2):
        images = draw_task(number)
        how: dict[str, Any] = {"recipe": RECIPE, "steps": 2, "until": Until(parameters=10_000), "growths": 1}
        task = one.learn(f"task {number}", images, False, classes=CLASSES[number], **how)
        assert task.told["images"] == len(images[1])
        assert task.told["accuracy"] is None and "held out" not in repr(task)
    again = Master(make_mlp, EXAMPLE, tmp_path)
    assert metrics.tabulate(again) == metrics.tabulate(one)
    assert "%" not in metrics.tabulate(again)


@pytest.mark.parametrize("kind", [torch.uint8, torch.uint16, torch.int16])
def test_labels_may_be_of_any_whole_type(kind: torch.dtype) -> None:
    images, labels = draw_task(0)
    one = Master(make_mlp, EXAMPLE)
    one.learn("task", (images, labels.to(kind)), classes=CLASSES[0], recipe=RECIPE, growths=0)
    assert len(one) == 1


def test_a_hidden_layer_as_wide_as_there_are_classes_is_refused() -> None:
    def make(classes: int) -> nn.Module:
        head = [nn.Linear(5, 2 * classes), nn.ReLU(), nn.Linear(2 * classes, classes)]
        return nn.Sequential(nn.Flatten(), nn.Linear(36, 5), nn.ReLU(), *head)

    with pytest.raises(FireflyError, match=r"layer 3 of make\(classes\) has another width"):
        Master(make, EXAMPLE)


def test_there_is_a_usual_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    one = Master(make_mlp, EXAMPLE)
    one.learn("task", draw_task(0, 80), classes=CLASSES[0], steps=2)
    assert one["task"].told["epochs"]["training"] == 120 and "epoch" in capsys.readouterr().err


def test_a_data_set_of_torch_is_told_how_it_becomes_tensors(master: Master) -> None:
    dataset = TensorDataset(*draw_task(0))
    for data in (dataset, DataLoader(dataset)):
        with pytest.raises(FireflyError, match="default_collate"):
            master.learn("other", data, classes=3)
    images, labels = default_collate([dataset[k] for k in range(len(dataset))])
    assert torch.equal(images, dataset.tensors[0]) and torch.equal(labels, dataset.tensors[1])


def test_a_task_is_told_in_a_line(master: Master) -> None:
    assert re.fullmatch(r"Task\('task 1': \d classes, \d+ neurons, \d+\.\d\d% held out\)", repr(master["task 1"]))


def test_unknown_tasks_and_networks_that_do_not_fit() -> None:
    one = Master(make_mlp, EXAMPLE)
    with pytest.raises(FireflyError, match="no task 'x' was learnt; there are none yet"):
        one.network("x")
    with pytest.raises(FireflyError, match="make is a Linear"):
        Master(nn.Linear(3, 3), EXAMPLE)
    with pytest.raises(FireflyError, match="only heads may differ"):
        Master(lambda classes: make_mlp(2), EXAMPLE)
    with pytest.raises(FireflyError, match=r"no layer of make\(2\) can grow.*1: it is an output"):
        Master(lambda classes: nn.Sequential(nn.Flatten(), nn.Linear(36, classes)), EXAMPLE)
    odd = Master(lambda classes: make_mlp(classes if classes < 4 else 3), EXAMPLE)
    with pytest.raises(FireflyError, match=r"make\(4\) answers with shape \(2, 3\)"):
        odd.begin(4)


def test_an_optimiser_of_ones_own_and_a_warm_up_longer_than_the_mask() -> None:
    recipe = Recipe(3, batch=16, lr=0.01, augment=False, device="cpu", warmup=2)
    made: list[torch.optim.Optimizer] = []

    def make(parameters: Any) -> torch.optim.Optimizer:
        made.append(torch.optim.AdamW(parameters, 0.01))
        return made[-1]

    one = Master(make_mlp, EXAMPLE)
    for number in range(2):
        how: dict[str, Any] = {"pick": Pick("mask", epochs=1), "recipe": recipe, "optimizer": make, "growths": 1}
        one.learn(f"task {number}", draw_task(number), classes=CLASSES[number], steps=3, progress=False, **how)
    assert len(made) == 4 and one["task 1"].told["lesson"]["optimizer"] == "a function"
    with pytest.raises(FireflyError, match="give a function from parameters"):
        one.learn("third", draw_task(2), classes=CLASSES[2], optimizer=made[0], progress=False)  # type: ignore[arg-type]


def test_a_mask_is_asked_in_multiples() -> None:
    one = Master(make_vgg, EXAMPLE)
    learn_task(one, 0, growths=0)
    odd = {name: size for name, size in one.born.items() if size % 2}
    learn_task(one, 1, Pick("mask", epochs=1, price=0.0, multiple=2), growths=0)
    assert odd and all(one["task 1"].lists[name].tolist() == [*range(size - 1)] for name, size in odd.items())
