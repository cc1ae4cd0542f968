"""Other ways to grow, each a `Method` for `firefly.grow` or a function around it; they share all the rest."""

from firefly.baselines.random import random_growth, random_search
from firefly.baselines.splitting import splitting

__all__ = ["random_growth", "random_search", "splitting"]
