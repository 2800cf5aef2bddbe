"""The system calls that a sandboxed program may not make, as a seccomp filter for the kernel.

What is refused: new namespaces and mounts, which would undo the isolation; memory that no limit of
a process counts (System V segments, memfd, message queues, io_uring, keyrings, bpf); other
processes' memory; kernel interfaces that ordinary programs do not use; larger buffers of sockets;
and signals to the supervisor that ends the program, or another priority for it. The filter is
classic BPF: see seccomp(2).
"""

from __future__ import annotations

import errno
import platform
import struct

SUPERVISOR = 0x7FFF0001
"""Stands for the supervisor's process id in `program`; `sandbox_child` puts the real one in."""

_X86_64, _AARCH64 = 0xC000003E, 0xC00000B7  # AUDIT_ARCH_*

_DENIED: dict[str, tuple[int, int]] = {  # name: (x86_64, aarch64)
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39),
    "pivot_root": (155, 41), "chroot": (161, 51), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fspick": (433, 433), "mount_setattr": (442, 442), "swapon": (167, 224), "swapoff": (168, 225),
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "semget": (64, 190),
    "semctl": (66, 191), "msgget": (68, 186), "msgsnd": (69, 189), "msgctl": (71, 187),
    "mq_open": (240, 180), "memfd_create": (319, 279), "memfd_secret": (447, 447),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "io_setup": (206, 0), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427), "bpf": (321, 280), "perf_event_open": (298, 241),
    "userfaultfd": (323, 282), "fanotify_init": (300, 262), "ptrace": (101, 117),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "process_madvise": (440, 440),
    "pidfd_send_signal": (424, 424), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "tkill": (200, 130), "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265), "quotactl": (179, 60), "quotactl_fd": (443, 443),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "acct": (163, 89),
    "setpriority": (141, 140), "ioprio_set": (251, 30), "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119), "sched_setattr": (314, 274),
    "reboot": (169, 142), "syslog": (103, 116), "lookup_dcookie": (212, 18),
}  # fmt: skip

_NEW_NAMESPACES = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET."""

_BUFFERS = [7, 8, 32, 33]
"""SO_SNDBUF, SO_RCVBUF and both with FORCE: memory of the kernel, of up to megabytes a socket."""

_MINUS_ONE = 0xFFFFFFFF

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _ARCHITECTURE = 0, 4  # offsets in struct seccomp_data; arguments are 8 bytes from 16


def program(machine: str = platform.machine(), *, inet: bool = False) -> bytes:
    """The filter for a machine; empty where the machine is not known here.

    Args:
      machine: its name.
      inet: whether sockets of the internet protocols are allowed, and not only those of Unix.
    """
    if machine not in ("x86_64", "aarch64"):
        return b""
    arm = machine == "aarch64"

    def number(x86: int, aarch64: int) -> int:
        return aarch64 if arm else x86

    lines = [
        _line(_LOAD, _ARCHITECTURE),
        _line(_EQUAL, _AARCH64 if arm else _X86_64, 1, 0),
        _line(_RETURN, _KILL),
        _line(_LOAD, _NUMBER),
    ]
    if not arm:  # the x32 numbers, which would pass by the others
        lines += _refuse(_AT_LEAST, 0x40000000, errno.ENOSYS)
    for pair in _DENIED.values():
        lines += _refuse(_EQUAL, number(*pair), errno.EPERM)
    lines += _refuse(_EQUAL, 435, errno.ENOSYS)  # clone3: libc then takes clone, filtered here
    minus = 2**32 - SUPERVISOR
    for call, argument, test, values, is_allowlist in [
        (number(56, 220), 0, _ANY_BIT, [_NEW_NAMESPACES], False),  # clone
        (number(62, 129), 0, _EQUAL, [SUPERVISOR, minus, _MINUS_ONE], False),  # kill
        (number(234, 131), 0, _EQUAL, [SUPERVISOR], False),  # tgkill
        (number(302, 261), 0, _EQUAL, [0], True),  # prlimit64: of itself alone
        (number(72, 25), 1, _EQUAL, [8, 10, 15], False),  # fcntl F_SETOWN, F_SETSIG, F_SETOWN_EX
        (number(16, 29), 1, _EQUAL, [0x8901, 0x8902], False),  # ioctl FIOSETOWN, SIOCSPGRP
        (number(41, 198), 0, _EQUAL, [1, 2, 10] if inet else [1], True),  # socket: unix, inet(6)
        (number(54, 208), 2, _EQUAL, _BUFFERS, False),  # setsockopt of the size of buffers
        (number(203, 122), 0, _EQUAL, [0], True),  # sched_setaffinity: of itself alone
        (number(53, 199), 0, _EQUAL, [1], True),  # socketpair: unix alone
    ]:
        lines += _refuse_arguments(call, argument, test, values, is_allowlist)
    return b"".join([*lines, _line(_RETURN, _ALLOW)])


def _refuse(test: int, value: int, error: int) -> list[bytes]:
    return [_line(test, value, 0, 1), _line(_RETURN, _ERROR | error)]


def _refuse_arguments(
    call: int, argument: int, test: int, values: list[int], is_allowlist: bool
) -> list[bytes]:
    """Refuse a call whose argument meets the test for one of the values; of an allowlist, for none.

    Arguments of these calls are 32 bits wide: the kernel ignores their upper half, and so does
    this.
    """
    refuse, allow = _line(_RETURN, _ERROR | errno.EPERM), _line(_RETURN, _ALLOW)
    met, unmet = (allow, refuse) if is_allowlist else (refuse, allow)
    inner = [_line(_LOAD, 16 + 8 * argument)]
    for i, value in enumerate(values):
        inner.append(_line(test, value, len(values) - i, 0))
    inner += [unmet, met]
    return [_line(_EQUAL, call, 0, len(inner)), *inner]


def _line(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """One instruction, `struct sock_filter`."""
    return struct.pack("<HBBI", code, if_true, if_false, value)
