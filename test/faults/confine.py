"""Runs a command as on a host that allows less.

confine.py [--deny-io-uring] [--memlock BYTES] -- COMMAND...
"""

import ctypes
import os
import resource
import struct
import sys

PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
CAP_IPC_LOCK = 14
SECCOMP_MODE_FILTER = 2
# io_uring_setup, _enter and _register have these numbers on every architecture.
IO_URING = (425, 426, 427)
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, DENY = 0x7FFF0000, 0x00050001

libc = ctypes.CDLL(None, use_errno=True)


def prctl(*arguments):
    if libc.prctl(*arguments, *[0] * (5 - len(arguments))) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def deny_io_uring():
    lines = [(LOAD, 0, 0, 0)]
    for left, number in zip(range(len(IO_URING), 0, -1), IO_URING):
        lines.append((EQUAL, left, 0, number))
    lines += [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, DENY)]
    text = b"".join(struct.pack("HBBI", *line) for line in lines)
    code = ctypes.create_string_buffer(text, len(text))
    program = struct.pack("HxxxxxxP", len(lines), ctypes.addressof(code))
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.c_char_p(program))


def main(words):
    while words[0] != "--":
        word = words.pop(0)
        if word == "--deny-io-uring":
            deny_io_uring()
        elif word == "--memlock":
            size = int(words.pop(0))
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (size, size))
            try:
                prctl(PR_CAPBSET_DROP, CAP_IPC_LOCK)
            except OSError:
                # Who may not drop it does not have it.
                pass
        else:
            sys.exit(f"unknown option {word}")
    os.execvp(words[1], words[1:])


main(sys.argv[1:])
