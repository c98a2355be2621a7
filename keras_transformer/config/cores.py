"""Number of CPU cores that this process may use."""

import os


def usable_cores() -> int:
    """Returns the number of CPU cores that this process may use, at least 1.

    Linux can restrict a process to some cores (`taskset`, containers). Systems without such a restriction,
    such as macOS, count all cores.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
