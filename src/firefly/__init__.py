"""Firefly grows neural networks: it finds where more neurons lower the loss most, and grows the model there.

>>> growth = firefly.grow(model, loss, batches, example=x, budget=firefly.Neurons(fraction=0.3), optimizer=optimizer)
"""

from importlib import import_module
from typing import Any

from firefly import baselines
from firefly.anatomy.examples import Call, Examples
from firefly.anatomy.register import register
from firefly.anatomy.tracing import trace
from firefly.anatomy.widths import Anatomy, Width
from firefly.checkpoint import architecture, carry_architecture, load, rebuild, save
from firefly.depth import deepen
from firefly.descent import Firefly, grow
from firefly.errors import FireflyError
from firefly.growth import Growth
from firefly.neighborhood.kinds import New, Split, Unlock
from firefly.ranks.talk import alone
from firefly.ranks.wrap import rewrap
from firefly.schedule import Every, Milestones, Plateau
from firefly.stages.budget import Flops, Layers, Multiples, Neurons, Parameters, Tied
from firefly.training import find

__version__ = "0.2.0"

LATER = ("continual", "nas", "vision")  # imported when they are asked for: firefly.continual.Master


def __getattr__(name: str) -> Any:
    if name in LATER:
        return import_module(f"firefly.{name}")
    raise AttributeError(f"module 'firefly' has no attribute {name!r}")


__all__ = [
    "Anatomy",
    "Call",
    "Every",
    "Examples",
    "Firefly",
    "FireflyError",
    "Flops",
    "Growth",
    "Layers",
    "Milestones",
    "Multiples",
    "Neurons",
    "New",
    "Parameters",
    "Plateau",
    "Split",
    "Tied",
    "Unlock",
    "Width",
    "alone",
    "architecture",
    "baselines",
    "carry_architecture",
    "deepen",
    "find",
    "grow",
    "load",
    "rebuild",
    "register",
    "rewrap",
    "save",
    "trace",
]
