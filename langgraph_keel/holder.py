"""Who makes a call: a name that another process of the same machine can find dead without waiting for a lease."""

from __future__ import annotations

import os
import socket
from functools import cache
from pathlib import Path

_UNKNOWN = "-"


def this_holder() -> str:
    """Return this process's name: host, machine, process id, and when the process began.

    The machine is the boot and the space of process ids (containers share the first), both from Linux's `/proc`; where
    there is none they are `-`, and only the lease tells whether a holder is alive.
    """
    return _name_of(os.getpid())


@cache
def _name_of(pid: int) -> str:
    return "/".join((socket.gethostname().replace("/", "_"), _machine(), str(pid), _began(pid)))


def is_dead(holder: str) -> bool:
    """Return whether a holder was a process of this very machine and is no more; `False` if nobody can say."""
    parts = holder.rsplit("/", 3)
    if len(parts) != 4 or _UNKNOWN in parts[1:] or parts[1] != _machine():
        return False
    began = _began(int(parts[2]))
    # Where /proc hides the processes of others (hidepid, ProtectProc), none of them may be taken for dead.
    return _is_gone(int(parts[2])) if began == _UNKNOWN else began != parts[3]


def _is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot}.{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return _UNKNOWN


def _began(pid: int) -> str:
    """Return when a process began, in ticks since the machine did; `-` if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", errors="replace")
    except OSError:
        return _UNKNOWN
    # The second field, the name of the program in brackets, may hold anything; see proc(5). The state comes next.
    state, *fields = stat.rpartition(")")[2].split()
    return "over" if state in ("Z", "X") else fields[18]
