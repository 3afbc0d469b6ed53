"""Stands in for systemd with FileDescriptorStoreMax=2: runs an agent and keeps its descriptors.

Words: the agent's command. SIGUSR1 stops the agent with SIGTERM and starts it again, SIGUSR2 kills
it and starts it again; both pass on what is kept, by LISTEN_FDS. SIGTERM stops the agent for good.
Each restart writes a line of JSON to standard error, in the form of the agent's log: which names
are kept.
"""

import array
import ctypes
import json
import os
import select
import signal
import socket
import sys
import tempfile

FIRST_FD = 3
PR_SET_PDEATHSIG = 1


def start(command, path, kept):
    pid = os.fork()
    if pid != 0:
        return pid
    # The agent does not outlive its manager.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # Above those that will be put in their places.
    high = [os.dup2(fd, 200 + i) for i, (_, fd) in enumerate(kept)]
    for i, fd in enumerate(high):
        os.dup2(fd, FIRST_FD + i, inheritable=True)
        os.close(fd)
    os.environ.update(NOTIFY_SOCKET=path, FDSTORE="2")
    if kept:
        names = ":".join(name for name, _ in kept)
        os.environ.update(
            LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(kept)), LISTEN_FDNAMES=names
        )
    os.execvp(command[0], command)


def take(receiver, kept):
    fds = array.array("i")
    data, control, _, _ = receiver.recvmsg(4096, socket.CMSG_SPACE(8 * fds.itemsize))
    for level, kind, content in control:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    fields = dict(line.split("=", 1) for line in data.decode().splitlines() if "=" in line)
    name = fields.get("FDNAME", "stored")
    if fields.get("FDSTORE") == "1":
        kept.extend((name, fd) for fd in fds)
    elif fields.get("FDSTOREREMOVE") == "1":
        for one in [one for one in kept if one[0] == name]:
            os.close(one[1])
            kept.remove(one)


def main():
    command = sys.argv[1:]
    kept = []
    asked = []
    wake, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker)
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, lambda number, _: asked.append(number))
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "notify")
        receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        receiver.bind(path)
        pid = start(command, path, kept)
        again = False
        while True:
            ready, _, _ = select.select([receiver, wake], [], [])
            if receiver in ready:
                take(receiver, kept)
                continue
            os.read(wake, 64)
            for number in asked:
                if number == signal.SIGCHLD:
                    continue
                again = number != signal.SIGTERM
                os.kill(pid, signal.SIGKILL if number == signal.SIGUSR2 else signal.SIGTERM)
            ended = signal.SIGCHLD in asked and os.waitpid(pid, os.WNOHANG)[0] == pid
            asked.clear()
            if not ended:
                continue
            while select.select([receiver], [], [], 0)[0]:
                take(receiver, kept)
            names = [name for name, _ in kept]
            line = {"level": "info", "message": "manager: the agent ended", "kept": names}
            print(json.dumps(line), file=sys.stderr, flush=True)
            if not again:
                return
            pid = start(command, path, kept)


main()
