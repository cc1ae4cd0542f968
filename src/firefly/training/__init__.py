"""The fast training loop: data on the device, one CUDA graph per step, growth in between (Sec. 3).

history = firefly.training.fit(model, train, epochs=100, test=test)
accuracy, loss = firefly.training.evaluate(model, test)
found = firefly.find(model, train, Recipe(100), parameters=800_000)
"""

from firefly.training.capture import Step, captured
from firefly.training.find import Found, find
from firefly.training.fit import fit
from firefly.training.history import Epoch, History
from firefly.training.recipe import Recipe
from firefly.training.score import Score, evaluate

__all__ = ["Epoch", "Found", "History", "Recipe", "Score", "Step", "captured", "evaluate", "find", "fit"]
