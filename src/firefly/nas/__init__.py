"""Cell search by growing (Sec. 3 "Cell-Based Neural Architecture Search", App. B.3).

found = firefly.nas.search(images, firefly.nas.Plan(), folder="runs/mine")
network = firefly.nas.Network(found.genotype, cells=20, channels=40, classes=10)
"""

from firefly.nas.agreement import Agreement, measure_agreement
from firefly.nas.drawing import draw_genotype, draw_growth
from firefly.nas.genotype import Cell, Genotype, read_genotype
from firefly.nas.known import draw_random, find_known, permute
from firefly.nas.network import Network, train_loss
from firefly.nas.plan import Plan
from firefly.nas.searching import Searched, read_search, search, write_search
from firefly.nas.template import Template

__all__ = [
    "Agreement",
    "Cell",
    "Genotype",
    "Network",
    "Plan",
    "Searched",
    "Template",
    "draw_genotype",
    "draw_growth",
    "draw_random",
    "find_known",
    "measure_agreement",
    "permute",
    "read_genotype",
    "read_search",
    "search",
    "train_loss",
    "write_search",
]
