"""`python -m firefly` is the command `firefly`."""

import sys

from firefly.cli import main

if __name__ == "__main__":
    sys.exit(main())
