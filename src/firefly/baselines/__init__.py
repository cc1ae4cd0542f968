"""Other ways to grow, each a `Method` for `firefly.grow` or a function around it; they share all the rest.

By name, or with arguments of their own: `firefly.grow(..., method="gradmax")`, `method=gradmax(batches=4)`:
    "splitting", "fast-splitting", "net2net", "gradmax", "uniform", "random"
Those that train copies of the model and keep the best are called in place of `grow`, with its arguments and a few more:
    `nash`, `race`, `random_search`, and `autogrow`, which trains the model itself
`prune` goes the other way.
"""

from firefly.baselines.autogrow import AutoGrow, autogrow
from firefly.baselines.fast_splitting import fast_splitting
from firefly.baselines.gradmax import gradmax
from firefly.baselines.nash import nash
from firefly.baselines.net2net import net2net
from firefly.baselines.pruning import prune
from firefly.baselines.race import race
from firefly.baselines.random import random_growth, random_search
from firefly.baselines.splitting import splitting
from firefly.baselines.uniform import uniform
from firefly.method import METHODS, SEARCHES

METHODS |= {
    "fast-splitting": fast_splitting,
    "gradmax": gradmax,
    "net2net": net2net,
    "random": random_growth,
    "splitting": splitting,
    "uniform": uniform,
}

SEARCHES |= {
    "nash": "nash(model, loss, batches, example=..., budget=..., tune=..., judge=...)",
    "race": "race(model, loss, batches, example=..., budget=..., tune=..., judge=...)",
    "random-search": "random_search(model, loss, batches, example=..., budget=...)",
    "autogrow": "autogrow(model, loss, batches, example=..., tune=..., judge=...)",
}

__all__ = [
    "AutoGrow",
    "autogrow",
    "fast_splitting",
    "gradmax",
    "nash",
    "net2net",
    "prune",
    "race",
    "random_growth",
    "random_search",
    "splitting",
    "uniform",
]
