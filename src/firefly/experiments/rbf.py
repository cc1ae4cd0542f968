"""The networks of the toy experiment (Sec. 3, App. B.1): f(x) = Σ w_i exp(-(θ_i1 x + θ_i2)²/2), x in one dimension.

`RBF` is an ordinary module, which `firefly.grow` grows. `train` trains many of them at once: their parameters are
stacked, the gradients written out, and every step is one full batch of Adam for all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Data = tuple[Tensor, Tensor]  # x, y: (points, 1)


class RBF(nn.Module):
    def __init__(self, neurons: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(1, neurons, dtype=torch.float64)  # θ_i1, θ_i2
        self.out = nn.Linear(neurons, 1, bias=False, dtype=torch.float64)  # w_i

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.exp(-self.hidden(x).square() / 2))

    @property
    def neurons(self) -> int:
        return self.hidden.out_features

    def rows(self) -> tuple[Tensor, Tensor, Tensor]:
        """θ_1, θ_2 and w, one number per neuron each, as views of the parameters."""
        return self.hidden.weight.detach()[:, 0], self.hidden.bias.detach(), self.out.weight.detach()[0]


def draw_network(neurons: int, std: float, seed: int) -> RBF:
    """A network whose w and θ are normal with this standard deviation."""
    generator = torch.Generator().manual_seed(seed)
    net = RBF(neurons)
    for row in net.rows():
        row.copy_(std * torch.randn(neurons, generator=generator, dtype=torch.float64))
    return net


@torch.no_grad()
def draw_truth(seed: int, neurons: int = 15, std: float = 3.0, points: int = 1000) -> Data:
    """A random network of 15 neurons with w, θ ~ N(0, 3²), seen at 1000 points of [-5, 5]."""
    generator = torch.Generator().manual_seed(seed)
    x = 10 * torch.rand(points, 1, generator=generator, dtype=torch.float64) - 5
    return x, draw_network(neurons, std, seed + 1_000_000)(x)


def mean_square(net: nn.Module, data: Data) -> Tensor:
    """The loss: the mean squared error, in the unit of y²."""
    return (net(data[0]) - data[1]).square().mean()


@dataclass
class Stack:
    """K networks side by side: parameters (3, K, m, 1) in the order θ_1, θ_2, w; narrower ones are padded."""

    parameters: Tensor
    there: Tensor  # (K, m, 1) 1 for a neuron, 0 for padding

    @classmethod
    def of(cls, nets: list[RBF], dtype: torch.dtype) -> Stack:
        size = max(net.neurons for net in nets)
        stack = cls(torch.zeros(3, len(nets), size, 1, dtype=dtype), torch.zeros(len(nets), size, 1, dtype=dtype))
        for k, net in enumerate(nets):
            stack.there[k, : net.neurons] = 1
            for part, row in zip(stack.parameters, net.rows()):
                part[k, : net.neurons, 0] = row
        return stack

    def unstack(self, nets: list[RBF]) -> None:
        for k, net in enumerate(nets):
            for part, row in zip(self.parameters, net.rows()):
                row.copy_(part[k, : net.neurons, 0])


class Slope:
    """∂L/∂parameters of every network of a stack, with all the room it needs made once."""

    def __init__(self, stack: Stack, data: list[Data]) -> None:
        dtype = stack.parameters.dtype
        self.x = torch.stack([x.T for x, _ in data]).to(dtype)  # (K, 1, N)
        self.minus_y = -torch.stack([y.T for _, y in data]).to(dtype)
        self.t = torch.empty(*stack.there.shape[:2], self.x.shape[2], dtype=dtype)  # (K, m, N)
        self.bump = torch.empty_like(self.t)
        self.out = torch.empty_like(stack.parameters)
        self.factor = stack.there * (2 / self.x.shape[2])

    def __call__(self, parameters: Tensor) -> Tensor:
        theta, shift, w = parameters
        torch.mul(theta, self.x, out=self.t).add_(shift)
        # exp2 is several times faster than exp where the result underflows, as bumps do far away
        torch.mul(self.t, self.t, out=self.bump).mul_(-0.5 * math.log2(math.e)).exp2_()
        error = torch.baddbmm(self.minus_y, w.transpose(1, 2), self.bump)  # (K, 1, N)
        column = error.transpose(1, 2)
        self.t.mul_(self.bump)
        torch.bmm(self.t, (error * self.x).transpose(1, 2), out=self.out[0])
        torch.bmm(self.t, column, out=self.out[1])
        torch.bmm(self.bump, column, out=self.out[2])
        self.out[:2].mul_(-w)
        return self.out.mul_(self.factor)


@torch.no_grad()
def train(nets: list[RBF], data: list[Data], iterations: int, lr: float, dtype: torch.dtype = torch.float32) -> None:
    """So many full-batch steps of Adam for every network on its own data, the rate falling along a cosine."""
    stack = Stack.of(nets, dtype)
    parameters, slope_of = stack.parameters, Slope(stack, data)
    first, second = torch.zeros_like(parameters), torch.zeros_like(parameters)
    for step in range(1, iterations + 1):
        slope = slope_of(parameters)
        first.lerp_(slope, 0.1)
        second.mul_(0.999).addcmul_(slope, slope, value=0.001)
        size = second.sqrt().div_(math.sqrt(1 - 0.999**step)).add_(1e-8)
        rate = lr * 0.5 * (1 + math.cos(math.pi * (step - 1) / iterations))
        parameters.addcdiv_(first, size, value=-rate / (1 - 0.9**step))
    stack.unstack(nets)
