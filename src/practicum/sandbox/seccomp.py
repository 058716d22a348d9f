"""The system-call filter of a box: a classic BPF program that refuses what namespaces do not cover.

`program()` guarantees: AF_VSOCK and other unlisted socket families, new namespaces, mounts,
io_uring, userfaultfd, keys, bpf, perf, kernel modules, terminal injection, POSIX message queues and
limits of another process fail with an error; system calls of another architecture kill the caller.
Everything else is allowed.
"""

import errno
import platform
import struct
from functools import cache

# struct seccomp_data (linux/seccomp.h): nr at 0, arch at 4, args[i] at 16 + 8 i (low word first).
_LOAD, _JUMP_EQUAL, _JUMP_GE, _JUMP_SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NR, _ARCH = 0, 4
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
NEW_NAMESPACES = 0x7E020000  # CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET}
FAMILIES = (1, 2, 10, 16)  # AF_UNIX, AF_INET, AF_INET6, AF_NETLINK
TERMINAL_INJECTION = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX

# name: (number on x86_64, number on aarch64); None where the call does not exist.
CALLS: dict[str, tuple[int | None, int]] = {
    "socket": (41, 198),
    "clone": (56, 220),
    "ioctl": (16, 29),
    "clone3": (435, 435),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "userfaultfd": (323, 282),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "open_by_handle_at": (304, 265),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "syslog": (103, 116),
    "prlimit64": (302, 261),
    "mq_open": (240, 180),  # queues would outlive the command, and nobody could list them
    "iopl": (172, -1),
    "ioperm": (173, -1),
}
ABSENT = {"clone3", "io_uring_setup", "io_uring_enter", "io_uring_register", "mq_open"}
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column, AUDIT_ARCH_*


def _op(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("=HBBI", code, yes, no, value)


def _refuse(error: int) -> bytes:
    return _op(_RETURN, _ERRNO | error)


@cache
def program(*, weak: bool = False) -> bytes:
    """The filter for this machine as an array of `sock_filter`; empty on an unknown machine.

    `weak` leaves only Unix sockets, for boxes without a network namespace.
    """
    if platform.machine() not in _MACHINES:
        return b""
    column, arch = _MACHINES[platform.machine()]
    numbers = {name: row[column] for name, row in CALLS.items() if row[column] not in (None, -1)}

    def argument(index: int) -> bytes:
        return _op(_LOAD, 16 + 8 * index)

    # Special calls: load an argument, decide, return. Each block is skipped when nr differs.
    kept = FAMILIES[:1] if weak else FAMILIES
    families = b"".join(
        _op(_JUMP_EQUAL, family, yes=len(kept) - i) for i, family in enumerate(kept)
    )
    blocks = {
        # limits of others: pid 1 has the guest's uid, and a limit can kill it
        "prlimit64": argument(0)
        + _op(_JUMP_EQUAL, 0, yes=1)
        + _refuse(errno.EPERM)
        + _op(_RETURN, _ALLOW),
        "socket": argument(0) + families + _refuse(errno.EAFNOSUPPORT) + _op(_RETURN, _ALLOW),
        "clone": argument(0)
        + _op(_JUMP_SET, NEW_NAMESPACES, no=1)
        + _refuse(errno.EPERM)
        + _op(_RETURN, _ALLOW),
        "ioctl": argument(1)
        + _op(_JUMP_EQUAL, TERMINAL_INJECTION[0], yes=1)
        + _op(_JUMP_EQUAL, TERMINAL_INJECTION[1], no=1)
        + _refuse(errno.EPERM)
        + _op(_RETURN, _ALLOW),
    }
    code = _op(_LOAD, _ARCH) + _op(_JUMP_EQUAL, arch, yes=1) + _op(_RETURN, _KILL) + _op(_LOAD, _NR)
    if column == 0:  # the x32 numbering of x86_64 would go round the table
        code += _op(_JUMP_GE, 0x40000000, no=1) + _refuse(errno.ENOSYS)
    for name, number in numbers.items():
        assert number is not None
        block = blocks.get(name) or _refuse(errno.ENOSYS if name in ABSENT else errno.EPERM)
        code += _op(_JUMP_EQUAL, number, no=len(block) // 8) + block
    return code + _op(_RETURN, _ALLOW)
