"""Cell search by growing (Sec. 3 "Cell-Based Neural Architecture Search", App. B.3).

network = firefly.nas.Network(genotype, cells=20, channels=40, classes=10)
"""

from firefly.nas.genotype import Cell, Genotype, read_genotype
from firefly.nas.known import draw_random, find_known, permute
from firefly.nas.network import Network, train_loss

__all__ = ["Cell", "Genotype", "Network", "draw_random", "find_known", "permute", "read_genotype", "train_loss"]
