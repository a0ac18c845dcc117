"""The supervisor of a detached stack: ``python -m admin.run.stack OPTIONS_FILE`` of `kvitto up --detach`."""

import sys
from pathlib import Path

from admin.stack import state, supervisor
from admin.stack.errors import StackError


def main(arguments: list[str]) -> int:
    """Run until told to stop; the state file says how it went. Returns the exit status."""
    options = state.read_options(Path(arguments[0]))
    try:
        supervisor.run(options, lambda _status: None)
    except StackError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
