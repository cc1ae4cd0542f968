"""The kinds of growth (Sec. 2.2, Sec. 2.4), one file each behind the protocol of `kind.py`."""

from firefly.neighborhood.kinds.kind import Copy, Kind, read_neighborhood
from firefly.neighborhood.kinds.new import New
from firefly.neighborhood.kinds.split import Split
from firefly.neighborhood.kinds.unlock import Unlock

__all__ = ["Copy", "Kind", "New", "Split", "Unlock", "read_neighborhood"]
