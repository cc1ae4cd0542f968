"""`python -m firefly` is the command `firefly`."""

import os
import sys

from firefly.cli import main
from firefly.ranks.launch import is_launched

if __name__ == "__main__":
    code = main()
    if is_launched() and code == 0:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # torch's threads abort a process that ends by itself now and then: torchrun would start it again
    sys.exit(code)
