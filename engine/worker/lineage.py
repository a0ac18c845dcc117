"""No orphans: every process of a worker dies with its parent.

vLLM's API server starts an engine core, which starts a model worker. Killed without warning, the API server
would leave both running. The kernel's parent-death signal takes the chain down.
"""

import atexit
import ctypes
import logging
import multiprocessing
import os
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def die_with_parent() -> None:
    """Ask the kernel for SIGKILL when the parent process ends; leave at once if it has ended already.

    The signal is bound to the parent's *thread* that started this process, so start workers from a thread
    that lives as long as its process. Outside Linux this does nothing.
    """
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid != os.getppid():
        os._exit(1)


def leave_quickly() -> None:
    """Skip the interpreter's teardown when this process ends: with torch loaded it takes seconds.

    Hooks run in reverse, so this one, registered late, runs before those of libraries; nothing is left to
    write by then, blocks are published within their step.
    """
    atexit.register(_leave)


def _leave() -> None:
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def lead_group() -> None:
    """Leave the terminal's process group, so that Ctrl-C reaches the supervisor alone."""
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
