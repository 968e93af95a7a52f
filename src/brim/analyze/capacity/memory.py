"""How much memory there is, and how much of it a process has."""

import os
import resource
import sys
from contextlib import suppress
from pathlib import Path


def resident_memory(pid: int) -> int:
    """0 where it cannot be known: the process is gone, or there is no /proc."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, IndexError):
        return 0


def peak_memory() -> int:
    """Since the last reset; since the start, where the kernel keeps no count that can be reset."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def memory_available(root: Path = Path("/")) -> int:
    """Bytes that a process may still take: what the kernel says, or what the narrowest cgroup around us (v1 or v2)
    leaves.
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
"""By controller, as /proc/self/cgroup names it: v2 has none, v1 is `memory`."""


def _left_in_cgroups(root: Path) -> list[int]:
    """Of every memory cgroup from ours to the top: its limit, less what it uses and could not give back."""
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
                with suppress(OSError, ValueError):  # not mounted here, or "max"
                    folder = root / top / place
                    stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
                    most, used = int((folder / limit).read_text()), int((folder / usage).read_text())
                    left.append(max(most - used + int(stat.get(cache, 0)), 0))
    return left
