"""A growth of a task's network: copies of unlocked neurons stand where their originals stood, and compute the same."""

import pytest
import torch
from nets import EXAMPLE, NETS, draw_task, learn_task

import firefly
from firefly.continual import Master
from firefly.continual.growing import settle_lists
from firefly.continual.learning import Pupil
from firefly.training.recipe import make_loss


@pytest.mark.parametrize("name", NETS)
def test_dropping_originals_changes_nothing_and_numbers_are_new(name: str) -> None:
    master = Master(NETS[name], EXAMPLE)
    learn_task(master, 0)
    everyone = {width: torch.arange(size) for width, size in master.born.items()}
    pupil = Pupil(*master.begin(2, everyone, seed=1))
    images, labels = draw_task(1)
    kinds = [firefly.Unlock(locked={w: n < master.born[w] for w, n in everyone.items()}), firefly.New(2)]
    how = {"example": EXAMPLE, "neighborhood": kinds, "budget": firefly.Neurons(6), "rank": "magnitude", "steps": 5}
    growth = firefly.grow(pupil.model, make_loss(0.0), [(images, labels)], **how)
    unlocked = {width: kinds.get("unlock", 0) for width, kinds in growth.added.items()}
    assert sum(unlocked.values()) > 0
    with torch.no_grad():
        before = pupil.model.eval()(images)
        settle_lists(master, pupil, growth)
        assert torch.allclose(pupil.model(images), before, atol=1e-5)
    for width, (size, after) in growth.widths.items():
        numbers = pupil.lists[width]
        assert len(numbers) == after - unlocked.get(width, 0)
        old, fresh = numbers < master.born[width], set(range(size, after))
        assert set(numbers[~old].tolist()) == fresh  # every newborn neuron is there, numbered in order of birth
        chosen = growth.chosen.get(width, {}).get("unlock", [])
        stays = set(range(size)) - set(chosen)
        assert set(numbers[old].tolist()) == stays
        assert all(int(numbers[place]) >= master.born[width] for place in chosen)  # in its original's place
