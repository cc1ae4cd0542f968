"""Splitting steepest descent (Wu, Wang & Liu 2019), the exact method that Firefly is compared with (Sec. 3).

Splitting neuron i into θ_i ± u, each with half of the outgoing weight, changes the loss by ½ uᵀS_i u + O(u⁴). The best
direction is the eigenvector of S_i with the lowest eigenvalue λ_i; the neurons with the lowest λ_i < 0 split, by a set
step. No S_i is ever formed: the loss is even in the displacement of every single pair, so its Hessian in all of them
has the S_i on its diagonal and zeros elsewhere, and one Hessian-vector product at u = 0 multiplies every S_i of every
width with its own vector. Lanczos does the rest, for all neurons at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from firefly.baselines.net2net import check_copies
from firefly.baselines.twice import TwiceDifferentiable
from firefly.errors import FireflyError
from firefly.method import Method
from firefly.neighborhood.kinds import Split
from firefly.neighborhood.overgrown import Directions, OverGrown
from firefly.ranks.talk import average
from firefly.stages.losses import Loss, scalar_loss
from firefly.stages.scores import Gains
from firefly.stages.selection import select
from firefly.stages.step_one import Steps
from firefly.tensors import along, along_runs, sum_neurons

Vectors = dict[str, Tensor]  # one entry per row of every neuron, named and shaped like δ
PerNeuron = dict[str, Tensor]  # one number per neuron of every width


def splitting(
    step: float = 0.01, iterations: int = 20, batches: int = 8, sharpness: float = 3.0, always: bool = False
) -> Method:
    """Splitting steepest descent as a method for `firefly.grow`; it only splits.

    Args:
        step: ‖u‖, how far the two copies of a neuron move, in the unit of its weights.
        iterations: of Lanczos, each one pass over the batches; exact from the number of a neuron's own weights on.
        batches: how many of the first batches the S_i are averaged over.
        sharpness: β of the softplus whose second derivative stands in for that of ReLU.
        always: spend the whole budget even on neurons with λ ≥ 0, as the authors' code does.
    """
    for name, value in (("step", step), ("iterations", iterations), ("batches", batches), ("sharpness", sharpness)):
        if not value > 0:
            raise FireflyError(f"splitting({name}={value!r}): must be above 0")
    return Method(
        name="splitting",
        descend=partial(find_directions, step=step, iterations=iterations, count=batches, sharpness=sharpness),
        score=partial(score_curvature, sharpness=sharpness),
        select=partial(select, everyone=True) if always else select,
        trust=False,
        neighborhood=(Split(),),
    )


def find_directions(
    over: OverGrown,
    loss: Loss,
    batches: Iterable[Any],
    steps: Steps,
    *,
    step: float,
    iterations: int,
    count: int,
    sharpness: float,
) -> Directions:
    """Instead of step one: δ_i is the eigenvector of λ_min(S_i), and ε_i the step."""
    start = begin(over, "splitting")
    held = list(islice(batches, count))
    rows = max((int(number.max()) for number in count_weights(over, start).values()), default=0)
    _, vectors = find_lowest(
        over, partial(multiply, over, loss, held, sharpness=sharpness), start, min(iterations, rows), steps.report
    )
    return take(over, vectors, step)


def begin(over: OverGrown, method: str) -> Vectors:
    """A random vector for every neuron, over all tensors that make it."""
    check_copies(over, f"{method} only splits")
    return {name: delta.detach() for name, delta in over.delta.items() if over.layouts[name].role("makes") is not None}


def take(over: OverGrown, vectors: Vectors, step: float) -> Directions:
    """Let every pair move along its unit vector, by the step."""
    delta = {name: vectors.get(name, torch.zeros_like(own)).detach() for name, own in over.delta.items()}
    return Directions(delta, {name: step / scale for name, scale in over.scale.items()})  # u = ε·s·δ


def score_curvature(over: OverGrown, loss: Loss, batches: list[Any], path: str, *, sharpness: float) -> Gains:
    """D_i = -½ u_iᵀS_i u_i, the decrease that the curvature promises: -½·step²·λ_i."""
    vectors = {name: delta.detach() for name, delta in over.delta.items()}
    curvature = dot(over, vectors, multiply(over, loss, batches, vectors, sharpness))
    return {name: -0.5 * (epsilon * over.scale[name]) ** 2 * curvature[name] for name, epsilon in over.epsilon.items()}


def multiply(over: OverGrown, loss: Loss, batches: list[Any], vectors: Vectors, sharpness: float = 3.0) -> Vectors:
    """S_i v_i for every neuron of every width: the mean over the batches of all ranks, two derivatives at u = 0."""
    unit = {name: 1 / scale for name, scale in over.scale.items()}  # makes u = δ
    free = {name: torch.zeros_like(vector).requires_grad_() for name, vector in vectors.items()}
    product = {name: torch.zeros_like(vector) for name, vector in vectors.items()}
    delta = {**{name: torch.zeros_like(own) for name, own in over.delta.items()}, **free}
    for batch in batches:
        # the fused attentions cannot be differentiated twice
        with over.attached(unit, delta), TwiceDifferentiable(sharpness), sdpa_kernel(SDPBackend.MATH):
            value = scalar_loss(loss, over.model, batch)
            for name, found in zip(product, _differentiate_twice(value, free, vectors)):
                product[name] += found / len(batches)
    average(product.values())
    return product


def _differentiate_twice(value: Tensor, free: Vectors, vectors: Vectors) -> list[Tensor]:
    """The Hessian times a vector; what does not depend on an input is zero."""
    slopes = torch.autograd.grad(value, list(free.values()), create_graph=True, allow_unused=True)
    terms = [(slope * vectors[name]).sum() for name, slope in zip(free, slopes) if slope is not None]
    terms = [term for term in terms if term.requires_grad]
    if not terms:
        return [torch.zeros_like(vector) for vector in free.values()]
    found = torch.autograd.grad(torch.stack(terms).sum(), list(free.values()), allow_unused=True)
    return [torch.zeros_like(v) if hessian is None else hessian for v, hessian in zip(free.values(), found)]


def find_lowest(
    over: OverGrown,
    product: Callable[[Vectors], Vectors],
    start: Vectors,
    iterations: int,
    report: Callable[[int, int], None] = lambda step, steps: None,
) -> tuple[PerNeuron, Vectors]:
    """λ_min and its unit eigenvector for every neuron: Lanczos with full reorthogonalisation, all neurons at once."""
    basis: list[Vectors] = []
    diagonal: list[PerNeuron] = []
    beside: list[PerNeuron] = []
    vector, length = normalise(over, start, {name: torch.zeros_like(eps) for name, eps in over.epsilon.items()})
    for k in range(iterations):
        basis.append(vector)
        rest = product(vector)
        diagonal.append(dot(over, vector, rest))
        for known in basis * 2:
            rest = _subtract(rest, times(over, dot(over, known, rest), known))
        seen = {name: torch.stack([part[name].abs() for part in diagonal + beside]).amax(0) for name in over.epsilon}
        vector, length = normalise(over, rest, seen)
        beside.append(length)
        report(k + 1, iterations)
    values, weights = _solve_small(diagonal, beside)
    return values, _combine(over, basis, weights)


def _solve_small(diagonal: list[PerNeuron], beside: list[PerNeuron]) -> tuple[PerNeuron, PerNeuron]:
    """The lowest eigenpair of every neuron's tridiagonal matrix; λ (n,), weights of the basis (n, k)."""
    values, weights = {}, {}
    for name in diagonal[0]:
        alpha = torch.stack([part[name] for part in diagonal], 1).double()  # (n, k)
        beta = torch.stack([part[name] for part in beside], 1).double()[:, :-1]
        ended = torch.cat([torch.zeros_like(alpha[:, :1]), (beta == 0).cumsum(1)], 1) > 0
        far = 1 + alpha.abs().sum(1, keepdim=True) + 2 * beta.sum(1, keepdim=True)  # above every eigenvalue
        small = torch.diag_embed(torch.where(ended, far, alpha))
        small = small + torch.diag_embed(beta, 1) + torch.diag_embed(beta, -1)
        found, vectors = torch.linalg.eigh(small)
        values[name], weights[name] = found[:, 0], vectors[:, :, 0]
    return values, weights


def _combine(over: OverGrown, basis: list[Vectors], weights: PerNeuron) -> Vectors:
    total = {name: torch.zeros_like(part) for name, part in basis[0].items()}
    for k, vectors in enumerate(basis):
        part = times(over, {name: weight[:, k] for name, weight in weights.items()}, vectors)
        total = {name: total[name] + part[name] for name in total}
    return normalise(over, total, {name: torch.zeros_like(eps) for name, eps in over.epsilon.items()})[0]


# ---- arithmetic with one vector per neuron ---------------------------------------------------------------------------


def dot(over: OverGrown, a: Vectors, b: Vectors) -> PerNeuron:
    """⟨a_i, b_i⟩ for every neuron i, over all tensors that make it."""
    total = {name: torch.zeros_like(epsilon, dtype=torch.float64) for name, epsilon in over.epsilon.items()}
    for name in a:
        make = over.layouts[name].role("makes")
        if make is not None:
            runs = over.layouts[name].dims[make]
            for width, value in sum_neurons(runs, (a[name] * b[name]).double(), make, over.slots).items():
                if width in total:
                    total[width] += value
    return total


def times(over: OverGrown, factors: PerNeuron, vectors: Vectors) -> Vectors:
    """c_i·v_i for every neuron i; zero for rows of widths that do not grow."""
    out = {}
    for name, vector in vectors.items():
        make = over.layouts[name].role("makes")
        if make is not None:
            row = along_runs(over.layouts[name].dims[make], factors, 0.0, vector)
            out[name] = vector * along(row, make, vector.ndim)
    return out


def normalise(over: OverGrown, vectors: Vectors, against: PerNeuron) -> tuple[Vectors, PerNeuron]:
    """Unit vectors and their lengths before; what is nothing but rounding beside `against` becomes zero."""
    rounding = 100 * max((torch.finfo(vector.dtype).eps for vector in vectors.values()), default=0.0)
    length = {name: square.sqrt() for name, square in dot(over, vectors, vectors).items()}
    length = {name: torch.where(value > rounding * against[name], value, 0.0) for name, value in length.items()}
    inverse = {name: torch.where(value > 0, 1 / value, 0.0) for name, value in length.items()}
    return times(over, inverse, vectors), length


def _subtract(a: Vectors, b: Vectors) -> Vectors:
    return {name: a[name] - b[name] for name in b}


def count_weights(over: OverGrown, vectors: Vectors) -> PerNeuron:
    """How many weights every neuron owns."""
    ones = {name: torch.ones_like(vector) for name, vector in vectors.items()}
    return dot(over, ones, ones)
