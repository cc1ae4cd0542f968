"""Other ways to grow, each a `Method` for `firefly.grow` or a function around it; they share all the rest."""

from firefly.baselines.autogrow import AutoGrow, autogrow
from firefly.baselines.fast_splitting import fast_splitting
from firefly.baselines.gradmax import gradmax
from firefly.baselines.nash import nash
from firefly.baselines.net2net import net2net
from firefly.baselines.random import random_growth, random_search
from firefly.baselines.splitting import splitting
from firefly.baselines.uniform import uniform

__all__ = [
    "AutoGrow",
    "autogrow",
    "fast_splitting",
    "gradmax",
    "nash",
    "net2net",
    "random_growth",
    "random_search",
    "splitting",
    "uniform",
]
