"""Models in torch's DistributedDataParallel: the module inside, and a wrapper that sees it as it has grown."""

from __future__ import annotations

import inspect
from typing import Any, TypeVar

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from firefly.errors import FireflyError
from firefly.ranks.talk import count_ranks

Model = TypeVar("Model", bound=nn.Module)

KEPT = ("device_ids", "output_device", "dim", "find_unused_parameters", "gradient_as_bucket_view", "static_graph")
NEWER = ("skip_all_reduce_unused_params", "batched_grad_copy", "forward_sync_buffers")  # not in every torch


def bare(model: Any) -> Any:
    """The module inside a DistributedDataParallel, or what it was given."""
    return model.module if isinstance(model, DistributedDataParallel) else model


def rewrap(model: Model) -> Model:
    """Make a DistributedDataParallel anew, in place, once the module inside has grown; on every rank.

    The wrapper holds the parameters that it was made with: those that came later would never be averaged. It stays the
    same object, with its settings, hooks and mode, so that whoever holds it (a trainer, say) need not know. Nothing is
    sent: after a growth all ranks have the same parameters. It may be compiled; what is no such wrapper is returned as
    it is.
    """
    if type(model).__name__ == "OptimizedModule":
        rewrap(model.get_submodule("_orig_mod"))
    if not isinstance(model, DistributedDataParallel):
        return model
    check_wrapper(model)
    plain = {name: value for name, value in vars(model).items() if name in PLAIN}
    hooks = list(model._comm_hooks)
    for name in ("reducer", "logger"):
        vars(model).pop(name, None)  # while they live, so do the ends of the graph, with the sizes that they had
    DistributedDataParallel.__init__(model, model.module, init_sync=False, **read_settings(model))
    vars(model).update(plain)
    for hook, state in hooks:
        forget_sizes(state)
        model.register_comm_hook(state, hook)
    return model


def is_in_wrapper() -> bool:
    """Whether a DistributedDataParallel is in its forward now: it will wait for the gradients of all parameters."""
    return getattr(DistributedDataParallel, "_active_ddp_module", None) is not None


def check_wrapper(model: Any) -> None:
    """Refuse a wrapper that could not be made anew, or that averages over some of the ranks only."""
    if not isinstance(model, DistributedDataParallel):
        return
    if getattr(model, "mixed_precision", None) is not None or model._delay_all_reduce_params:
        raise FireflyError(
            "a DistributedDataParallel with mixed_precision or delay_all_reduce_named_params cannot be made anew: "
            "grow model.module, and wrap that again yourself"
        )
    ranks, everyone = model.process_group.size(), count_ranks()
    if ranks != everyone > 1:
        raise FireflyError(
            f"this DistributedDataParallel averages over {ranks} of {everyone} ranks, but a growth works on all of "
            "them: wrap the model for all ranks, or start a job for each group"
        )


def forget_sizes(state: Any) -> None:
    """What PowerSGD remembers of each bucket of gradients has the size that the bucket had: it begins anew."""
    if hasattr(state, "error_dict"):
        for remembered in (state.error_dict, state.p_memory_dict, state.q_memory_dict):
            remembered.clear()
        state.iter = 0


PLAIN = {name for name in vars(nn.Module()) if name not in ("_parameters", "_buffers", "_modules")}  # hooks, the mode


def read_settings(model: DistributedDataParallel) -> dict[str, Any]:
    """What the wrapper was made with."""
    known = inspect.signature(DistributedDataParallel.__init__).parameters
    names = [*KEPT, *(name for name in NEWER if name in known)]
    settings = {name: getattr(model, name) for name in names}
    if "forward_sync_buffers" not in known:
        settings["broadcast_buffers"] = model.broadcast_buffers
    if not model.bucket_bytes_cap_default:
        settings["bucket_cap_mb"] = model.bucket_bytes_cap / 2**20
    mesh = getattr(model, "device_mesh", None)
    return settings | ({"process_group": model.process_group} if mesh is None else {"device_mesh": mesh})
