"""A state_dict that carries the architecture: whoever keeps checkpoints by state_dict can load a grown model."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor, nn

from firefly.checkpoint.architecture import architecture, rebuild
from firefly.checkpoint.model import CARRIED
from firefly.checkpoint.packing import Json
from firefly.errors import FireflyError


def carry_architecture(model: nn.Module) -> nn.Module:
    """From now on the model's state_dict carries its architecture, and load_state_dict rebuilds the model first.

    ```python
    model = firefly.carry_architecture(make_model())
    torch.save(model.state_dict(), "model.pt")  # after growth
    fresh = firefly.carry_architecture(make_model())
    fresh.load_state_dict(torch.load("model.pt"))  # grows to the saved size, then gets the weights
    ```
    """
    if not isinstance(model, nn.Module):
        raise FireflyError(f"carry_architecture takes an nn.Module, not {type(model).__name__}")
    if add_architecture not in model._state_dict_hooks.values():
        model.register_state_dict_post_hook(add_architecture)
        model.register_load_state_dict_pre_hook(take_architecture)
    return model


def add_architecture(model: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    """The hook of state_dict."""
    state[prefix + CARRIED] = write_json(architecture(model))


def take_architecture(model: nn.Module, state: dict[str, Any], prefix: str, *rest: Any) -> None:
    """The hook of load_state_dict."""
    carried = state.pop(prefix + CARRIED, None)
    if carried is not None:
        rebuild(model, read_json(carried))


def write_json(content: Json) -> Tensor:
    """JSON as a tensor of bytes."""
    return torch.frombuffer(bytearray(json.dumps(content).encode()), dtype=torch.uint8)


def read_json(carried: Tensor) -> Json:
    """JSON out of such a tensor, also of one that was made another type along with the weights."""
    try:
        found: Json = json.loads(bytes(carried.to(torch.uint8).tolist()))
    except (ValueError, TypeError) as error:
        raise FireflyError(f"the architecture in the state_dict is damaged: load another one ({error})") from error
    return found
