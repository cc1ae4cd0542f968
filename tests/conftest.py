"""One thread per test process, and in those that tests start: they run side by side, and the models are small."""

import os
import signal
from collections.abc import Iterator

import pytest
import torch

from firefly.surgery.guard import State

torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"


@pytest.fixture(autouse=True)
def handlers_are_left_as_they_were() -> Iterator[None]:
    """What is left behind here would fail another test, later and elsewhere; each begins with Python's own handler."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in a shell's background
    depth, alarm = State.depth, signal.getsignal(signal.SIGALRM)
    yield
    assert State.depth == depth
    assert signal.getsignal(signal.SIGALRM) in (alarm, signal.SIG_DFL)  # pytest-timeout lets go where a test has failed
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
