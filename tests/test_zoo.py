"""The zoo itself: every model runs, learns from its batches, and is made and fed the same way each time."""

import pytest
import torch

from zoo import ZOO, Entry

UNUSED = {"unused_layer": {"spare.weight", "spare.bias"}}  # trainable, and not reached by the loss

every_model = pytest.mark.parametrize("entry", ZOO.values(), ids=list(ZOO))


@every_model
def test_loss_is_finite_and_reaches_every_trainable_parameter(entry: Entry) -> None:
    model = entry.make()
    loss = entry.loss(model, entry.batches()[0])
    loss.backward()
    assert loss.ndim == 0 and loss.isfinite()
    missed = {name for name, p in model.named_parameters() if p.requires_grad and p.grad is None}
    assert missed == UNUSED.get(entry.name, set())
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


@every_model
def test_batches_can_be_learned(entry: Entry) -> None:
    model, batches = entry.make(), entry.batches()
    before = sum(entry.loss(model, batch).item() for batch in batches)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.01)
    for batch in batches * 5:
        optimizer.zero_grad()
        entry.loss(model, batch).backward()
        optimizer.step()
    assert sum(entry.loss(model, batch).item() for batch in batches) < 0.95 * before


@every_model
def test_is_the_same_each_time(entry: Entry) -> None:
    one, two = entry.make(), entry.make()
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), two.state_dict().values()))
    assert all(torch.equal(a, b) for a, b in zip(entry.example(), entry.example()))
    for (first, _), (second, _) in zip(entry.batches(), entry.batches()):
        assert all(torch.equal(a, b) for a, b in zip(first, second))


@every_model
def test_expected_widths_are_named_after_what_makes_them(entry: Entry) -> None:
    model = entry.make()
    known = {name for name, _ in model.named_modules()} | {name for name, _ in model.named_parameters()}
    expected = [*entry.grows, *entry.pinned, *entry.either]
    assert set(expected) <= known
    assert len(set(expected)) == len(expected)
