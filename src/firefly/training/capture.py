"""Record a step once, replay it for ever: the whole step as one CUDA graph (Sec. 3: every table is paid in steps).

A step of a small network is hundreds of tiny kernels, and Python cannot launch them as fast as a GPU runs them. `Step`
runs a closure a few times to warm up, undoes what that changed, bit for bit, and records one more call as a CUDA graph;
from then on a call is one launch. Where there is no GPU it just calls the closure. It knows nothing of training: what
the closure reads and writes are tensors that stay where they are, and inputs are copied into them between calls.
"""

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Generic, TypeVar

import torch
from torch import Tensor

from firefly.errors import FireflyError
from firefly.method import Method, find_method
from firefly.stages.step_one import descend

Result = TypeVar("Result")
Kept = list[tuple[Tensor, Tensor]]  # a tensor and a copy of what it held


class Step(Generic[Result]):
    """`fn`, called as `step()`; on a GPU captured at the first call and replayed by every call.

    `tensors` lists (or is a function that lists) all that `fn` changes and that must outlive the warm-up: parameters,
    buffers, optimiser state, counters. Tensors that first appear during the warm-up, as an optimiser's moments do, are
    set to zero after it. `refresh()` forgets the capture if any of the tensors was replaced, as after a growth.

    What `fn` returns is returned, on a GPU as the same tensors every time, overwritten by the next call. Inside `fn`
    nothing may wait for the GPU (`.item()`, `print(tensor)`, a copy from the CPU) or depend on values in Python.
    """

    result: Result

    def __init__(
        self,
        fn: Callable[[], Result],
        tensors: Iterable[Tensor] | Callable[[], Iterable[Tensor]],
        *,
        capture: bool | None = None,
        warmup: int = 3,
    ) -> None:
        self.fn = fn
        fixed = None if callable(tensors) else list(tensors)
        self.list_tensors: Callable[[], Iterable[Tensor]] = tensors if callable(tensors) else lambda: fixed or []
        self.device = next((tensor.device for tensor in self.list_tensors() if tensor.is_cuda), None)
        self.captures = self.device is not None if capture is None else capture
        if self.captures and self.device is None:
            raise FireflyError("capture=True, but no tensor of the step is on a GPU: move them there, or capture=False")
        self.warmup = warmup
        self.graph: torch.cuda.CUDAGraph | None = None
        self.identity: tuple[object, ...] = ()

    def __call__(self) -> Result:
        if not self.captures:
            return self.fn()
        if self.graph is None:
            self.capture()
        assert self.graph is not None
        self.graph.replay()
        return self.result

    def refresh(self) -> bool:
        """Forget the capture if a tensor has been replaced; True if so. Cheap, but not for every step."""
        if self.graph is None or self.identity == identify(self.list_tensors()):
            return False
        self.release()
        return True

    def release(self) -> None:
        """Give the graph and its memory back; the next call captures anew."""
        if self.graph is not None:
            torch.cuda.synchronize(self.device)
            self.graph = None
            del self.result

    def capture(self) -> None:
        """Warm up on a stream of its own, put everything back, and record one call without running it."""
        with torch.cuda.device(self.device):
            stream = torch.cuda.Stream()
            self.warm_up(stream)
            graph = torch.cuda.CUDAGraph()
            try:
                with uncollected(), torch.cuda.graph(graph, stream=stream):
                    self.result = self.fn()
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                raise FireflyError(
                    f"the step cannot be captured as a CUDA graph ({str(error).splitlines()[0]}): something in it "
                    "waits for the GPU or copies from the CPU, such as .item(); take that out, or switch the capture "
                    "off (fit: graph=False)"
                ) from error
            self.graph = graph
        self.identity = identify(self.list_tensors())

    def warm_up(self, stream: torch.cuda.Stream) -> None:
        """Run `fn` until libraries are loaded, algorithms chosen and state made; leave the tensors as they were."""
        kept, random = keep(self.list_tensors()), torch.cuda.get_rng_state()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(self.warmup):
                self.fn()
        torch.cuda.current_stream().wait_stream(stream)
        put_back(kept, self.list_tensors())
        torch.cuda.set_rng_state(random)


@contextmanager
def uncollected() -> Iterator[None]:
    """Without garbage collection: the end of another graph, in the middle of a capture, would break the capture."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def captured(method: Method | str = "firefly") -> Method:
    """A growth method whose step one is captured where the model is on a GPU: `grow(..., method=captured())`.

    The loss may then not wait for the GPU, and all batches must be of the same shape. A method with a step one of its
    own is left as it is.
    """
    method = find_method(method)
    return replace(method, descend=partial(descend, capture=Step)) if method.descend is descend else method


def identify(tensors: Iterable[Tensor]) -> tuple[object, ...]:
    """What a captured graph depends on: which tensors, where they lie and how large they are."""
    return tuple((id(tensor), tensor.data_ptr(), tensor.shape, tensor.stride()) for tensor in tensors)


def keep(tensors: Iterable[Tensor]) -> Kept:
    """A copy of every tensor, for `put_back`."""
    return [(tensor, tensor.detach().clone()) for tensor in tensors]


@torch.no_grad()
def put_back(kept: Kept, tensors: Iterable[Tensor] = ()) -> None:
    """Give the kept tensors their old values, and zeros to those of `tensors` that were not there to be kept."""
    for tensor, values in kept:
        tensor.copy_(values)
    old = {id(tensor) for tensor, _ in kept}
    for tensor in tensors:
        if id(tensor) not in old:
            tensor.zero_()
