"""Memory of the machine and of processes, in bytes: available, resident, peak resident; and errors for lack of it."""

import os
import resource
import sys
from contextlib import suppress
from errno import ENOMEM
from pathlib import Path

SIGNS = ("can't allocate memory", "not enough memory", "out of memory", "alloc_failed")
"""Lower-case parts of the message of a RuntimeError that is about a lack of memory."""


def resident_memory(pid: int) -> int:
    """Return the resident memory of a process in bytes; 0 if the process has ended or there is no /proc."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, IndexError):
        return 0


def peak_memory() -> int:
    """Return the peak resident memory of this process in bytes.

    It is the peak since the last reset through /proc/self/clear_refs, or since the process started where /proc has no
    such count.
    """
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def memory_available(root: Path = Path("/")) -> int:
    """Return the bytes that this process may still take: the machine's available memory, or less if a cgroup (v1 or v2)
    around the process has less left.
    """
    return min([_free(root), *_left_in_cgroups(root)])


def _free(root: Path) -> int:
    with suppress(OSError):
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


CGROUPS = {
    "": ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    "memory": ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""Mount point, limit file, usage file, and the key of reclaimable cache in memory.stat, by controller.

Controllers are named as in /proc/self/cgroup: the empty string for v2, `memory` for v1.
"""


def _left_in_cgroups(root: Path) -> list[int]:
    """Return, for every memory cgroup from this process's to the root, its limit less the usage it cannot reclaim."""
    try:
        mine = [line.split(":", 2)[1:] for line in (root / "proc/self/cgroup").read_text().splitlines()]
    except OSError:
        return []
    left: list[int] = []
    for controllers, path in mine:
        for controller in set(controllers.split(",")) & CGROUPS.keys():
            top, limit, usage, cache = CGROUPS[controller]
            below = Path(path.lstrip("/"))
            for place in (below, *below.parents):
                with suppress(OSError, ValueError):  # not mounted here, or "max": no limit
                    folder = root / top / place
                    stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
                    most, used = int((folder / limit).read_text()), int((folder / usage).read_text())
                    left.append(max(most - used + int(stat.get(cache, 0)), 0))
    return left


def is_out_of_memory(error: Exception) -> bool:
    """Whether an exception means a lack of memory, by its name and text, so that torch need not be imported."""
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & {"MemoryError", "OutOfMemoryError"} or (isinstance(error, OSError) and error.errno == ENOMEM):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in SIGNS)
