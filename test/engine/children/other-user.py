"""Becomes another user, connects and says a word too early.

Words: SOCKET UID GID GROUPS (with commas between). Prints ``answered`` where the agent answers,
``closed`` where it hangs up without a word, ``refused`` where the file cannot be opened.
"""

import os
import socket
import sys

path, uid, gid, groups = sys.argv[1:]
os.setgroups([int(group) for group in groups.split(",") if group])
os.setgid(int(gid))
os.setuid(int(uid))
ping = (16).to_bytes(4, "little") + bytes([2]) + bytes(11)
with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
    try:
        line.connect(path)
    except PermissionError:
        print("refused")
        sys.exit()
    try:
        line.sendall(ping)
        said = line.recv(1000)
    except ConnectionError:
        said = b""
    print("answered" if said else "closed")
