"""Properties that do not hold yet, each with its smallest reproduction; pytest does not collect this file by itself.

Run `pytest tests/found_bugs.py`. A test that passes belongs into the test file of its room.
"""

import pytest

import firefly
from laws import assert_close, grow_blindly, make_trained, run
from zoo import ZOO


@pytest.mark.parametrize("name", ["vgg", "resnet", "mobilenet_v2", "conv1d"])
def test_a_split_without_length_changes_nothing(name: str) -> None:
    """In train mode the running statistics of both copies are measured anew on the few held batches.

    Where the running averages of the parent are others (early in training, or over far more data), a split with ε = 0
    changes what the model computes in eval mode. What the split adds to the parent's statistics would be continuous.
    """
    entry = ZOO[name]
    model, _ = make_trained(entry)
    expected = run(model, entry.example())
    growth = grow_blindly(model.train(), entry, neighborhood=[firefly.Split(1e-6)]).growth
    assert growth.neurons > 0
    assert_close(run(model, entry.example()), expected, 1e-3)
