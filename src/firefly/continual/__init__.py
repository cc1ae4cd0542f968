"""Continual learning (Sec. 2.4): task after task in one network that grows, and nothing is forgotten.

master = firefly.continual.Master(make, example, "run/")
master.learn("first", train, valid, classes=5)
model = master.network("first")
"""

from firefly.continual import metrics
from firefly.continual.master import Master
from firefly.continual.ownership import Task
from firefly.continual.picking import Pick
from firefly.continual.until import Until

__all__ = ["Master", "Pick", "Task", "Until", "metrics"]
