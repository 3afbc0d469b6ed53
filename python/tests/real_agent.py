"""An agent of its own for tests that kill, stop and restart it.

HEARTH_TEST_AGENT is a JSON list: the words that start ``hearth`` from this checkout.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from typing import Callable, List, Optional

COMMAND: List[str] = json.loads(os.environ.get("HEARTH_TEST_AGENT", "[]"))
#: A hang detector.
HANG_SECONDS = 60.0


def until(condition: Callable[[], object], what: str = "") -> None:
    deadline = time.monotonic() + HANG_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"it did not come to this in {HANG_SECONDS} s: {what}")
        time.sleep(0.002)


class RealAgent:
    def __init__(self, ram_mib: int = 32, *, ssd: bool = False) -> None:
        self.folder = tempfile.mkdtemp(prefix="hearth-test-")
        self.path = os.path.join(self.folder, "engine.sock")
        self._log = os.path.join(self.folder, "log")
        self._config = os.path.join(self.folder, "hearth.toml")
        tier = f'ssd_dir = "{self.folder}/ssd"\nssd_gib = 0.25\n' if ssd else ""
        with open(self._config, "w", encoding="utf-8") as file:
            file.write(
                f'[kv]\nram_gib = {ram_mib / 1_024}\nlock_memory = "off"\n{tier}'
                f'[engine]\nsocket = "{self.path}"\ncommand_role = "purge"\n'
                '[gpu]\nenabled = "off"\n[api]\nlisten = "127.0.0.1:0"\n[log]\nformat = "json"\n'
            )
        self._process: Optional["subprocess.Popen[bytes]"] = None
        self.start()

    def __enter__(self) -> "RealAgent":
        return self

    def __exit__(self, *_unused: object) -> None:
        self.kill()
        shutil.rmtree(self.folder)

    def start(self) -> None:
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                [*COMMAND, "agent", "--config", self._config],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stderr=log,
            )
        until(self._is_ready, "an agent that serves")

    def _is_ready(self) -> bool:
        assert self._process is not None
        with open(self._log, encoding="utf-8") as file:
            text = file.read()
        if self._process.poll() is not None:
            raise AssertionError(f"the agent ended: {text}")
        return "api listening" in text and "arena complete" in text

    def log(self) -> str:
        with open(self._log, encoding="utf-8") as file:
            return file.read()

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        until(lambda: self._state() == "T", "a stopped agent")

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _state(self) -> str:
        assert self._process is not None
        with open(f"/proc/{self._process.pid}/stat", encoding="utf-8") as file:
            return file.read().rsplit(")", 1)[1].split()[0]
