"""The models every property of tracing and growing is tested on: small, seeded, written as users write them.

`ZOO[name]` is an `Entry`: how to make the model, what to feed it, its loss, and what a trace of it must say. A width is
named by the layer that makes it first in order of execution, and its size counts neurons: whole heads, whole groups.

    grows    widths that must be found growable, with their size
    pinned   widths that must be found pinned, with a word of the reason
    either   widths that may be pinned; one that is offered for growth must have this size

Widths listed nowhere are left to the tracer. The traps are forwards that a width must not outgrow:
whatever a trace offers there has to survive being grown. The paper grows any f of a space of networks (Sec. 2.1).
"""

from importlib import import_module

from zoo.entry import ZOO, Batch, Entry

__all__ = ["ZOO", "Batch", "Entry"]

ROOMS = ("perceptrons", "reuse", "plain_convolutional", "branching_convolutional", "shuffled_and_normed", "parts",
         "transformers", "attention", "tokens", "messages", "traps")  # fmt: skip
for room in ROOMS:
    import_module(f"zoo.{room}")
