"""Power cuts: record the writes of a run, and check every disk that a cut could leave.

    recording = recorded(run, place, "sound", STEPS, directory=directory)   # writes, syncs, renames, acknowledgements
    for state in crashes(recording.events, seed=1, count=400):       # disks after a cut at any moment
        state.put_into(directory)
        check(place, ...)                                            # open the store there, and look

The model of a disk is the worst case that POSIX allows. A file's data and size are durable after its `fsync` or
`fdatasync`, a name after the `fsync` of its directory. Until then each sector, size and name may be old or new, in any
combination.
"""

from .builds import BUILDS
from .checking import Broken, broken, check
from .crashes import State, crashes
from .disk import Disk, Inode
from .events import Acknowledged, Create, Event, Link, Mkdir, Remove, Rename, Sync, Truncate, Write
from .parsing import Unmodelled, parsed
from .recording import Recording, recorded
from .tracing import Traced, require_strace
from .workload import IGNORED, INDEXES, PLACES, STEPS, expected, run, values_at

__all__ = [
    "BUILDS",
    "IGNORED",
    "INDEXES",
    "PLACES",
    "STEPS",
    "Acknowledged",
    "Broken",
    "Create",
    "Disk",
    "Event",
    "Inode",
    "Link",
    "Mkdir",
    "Recording",
    "Remove",
    "Rename",
    "State",
    "Sync",
    "Traced",
    "Truncate",
    "Unmodelled",
    "Write",
    "broken",
    "check",
    "crashes",
    "expected",
    "parsed",
    "recorded",
    "require_strace",
    "run",
    "values_at",
]
