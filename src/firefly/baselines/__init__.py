"""Other ways to grow, each a `Method` for `firefly.grow` or a function around it; they share all the rest.

`firefly.grow(..., method="gradmax")` finds those that are methods by name. NASH, races, AutoGrow and random search
train copies of the model or steer its training: they are functions of their own. `prune` goes the other way.
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
from firefly.method import METHODS

METHODS |= {
    "fast-splitting": fast_splitting,
    "gradmax": gradmax,
    "net2net": net2net,
    "random": random_growth,
    "splitting": splitting,
    "uniform": uniform,
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
