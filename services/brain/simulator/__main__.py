"""`python -m services.brain.simulator`: what `recmesh simulate` starts."""

import sys

from services.brain.simulator import command
from services.brain.simulator.online import command as online

if __name__ == "__main__":
    arguments = sys.argv[1:]
    is_online = any(each == "--online" or each.startswith("--online=") for each in arguments)
    sys.exit((online if is_online else command).main(arguments))
