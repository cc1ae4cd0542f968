"""bf16 arithmetic on float32 weights, without casting every weight in every step.

Autocast casts each weight to bf16 in the forward and each gradient back in the backward: two tiny kernels per layer and
step, a good part of the time of a thin network. Here the layers read bf16 *copies* that one kernel refreshes after the
optimiser's step, and one kernel takes all gradients back to float32; the numbers are those of autocast. The counters of
batch norms, one more kernel each, are added up once per epoch instead. Both are swapped in for the step only: between
steps, and for everyone else, the model holds its own tensors.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from firefly.errors import FireflyError

CAST = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)  # a SyncBatchNorm insists on its counter

Slot = tuple[dict[str, Any], str, Any]  # a module's dictionary, the name in it, and what a step finds there


@dataclass(frozen=True, eq=False)
class StandIns:
    """What stands in for the model's own tensors during a step."""

    weights: list[nn.Parameter]  # float32, the model's own
    copies: list[nn.Parameter]  # the same in bf16
    counters: list[Tensor]  # of the batch norms that do not count in a step
    slots: list[Slot]


def check_precision(precision: str | None, device: torch.device) -> str:
    """The precision to use: by default bf16 on a GPU, where it is fast, and float32 elsewhere."""
    if precision not in (None, "bf16", "float32"):
        raise FireflyError(f"precision={precision!r}: use 'bf16' or 'float32'")
    return precision or ("bf16" if device.type == "cuda" else "float32")


def autocast(precision: str, device: torch.device) -> torch.autocast:
    """bf16 where it is safe, if asked for; without the cache of casts, which a CUDA graph must not keep."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16", cache_enabled=False)


def make_stand_ins(model: nn.Module, precision: str) -> StandIns:
    """bf16 copies of the weights that only layers read which autocast casts anyway; nothing for the norms' counters."""
    slots: list[Slot] = []
    counters = []
    for module in model.modules():
        counter = module._buffers.get("num_batches_tracked")
        if type(module) in NORMS and counter is not None and getattr(module, "momentum", None) is not None:
            slots.append((module._buffers, "num_batches_tracked", None))
            counters.append(counter)
    owners: dict[nn.Parameter, list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and precision == "bf16":
                owners.setdefault(parameter, []).append((module, name))
    weights, copies = [], []
    for parameter, places in owners.items():
        if parameter.dtype is torch.float32 and all(type(module) in CAST for module, _ in places):
            copy = nn.Parameter(parameter.detach().to(torch.bfloat16), parameter.requires_grad)
            slots += [(module._parameters, name, copy) for module, name in places]
            weights.append(parameter)
            copies.append(copy)
    return StandIns(weights, copies, counters, slots)


@torch.no_grad()
def hand_over_gradients(stand_ins: StandIns) -> None:
    """Give the weights the gradients of their copies, in float32."""
    targets, gradients = [], []
    for weight, copy in zip(stand_ins.weights, stand_ins.copies):
        if copy.grad is None:
            continue
        if weight.grad is not None:  # the loss also reads the weight itself, a penalty on it, say
            weight.grad.add_(copy.grad)
            continue
        weight.grad = torch.empty_like(weight)
        targets.append(weight.grad)
        gradients.append(copy.grad)
    if targets:
        torch._foreach_copy_(targets, gradients)


@torch.no_grad()
def refresh_copies(stand_ins: StandIns) -> None:
    """Bring the copies up to date with the weights."""
    if stand_ins.copies:
        torch._foreach_copy_(list(stand_ins.copies), list(stand_ins.weights))


@torch.no_grad()
def add_steps(stand_ins: StandIns, steps: int) -> None:
    """Count the steps that the norms did not."""
    if stand_ins.counters:
        torch._foreach_add_(stand_ins.counters, steps)
