"""The rule table: one small rule per operator (see `table.py`)."""

from firefly.anatomy.rules import entries, layers, picks, shapes
from firefly.anatomy.rules.table import RULES, find, rule

__all__ = ["RULES", "entries", "find", "layers", "picks", "rule", "shapes"]
