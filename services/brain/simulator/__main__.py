"""`python -m services.brain.simulator`: what `recmesh simulate` starts."""

import sys

from services.brain.simulator.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
