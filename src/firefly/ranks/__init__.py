"""Several processes that work as one: what they tell each other, how a wrapped or sharded model grows, torchrun."""
