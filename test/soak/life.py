"""One client's life: reserve, write, commit, acquire, copy, verify; it may end at any point."""

from __future__ import annotations

import os
import signal
import time
from random import Random
from typing import Callable, Dict, List, Optional, Tuple

from hearth_client import Block, ConnectionClosed, FrameStatus, Outcome, RefusedError, xxh3_64
from hearth_client import protocol
from hearth_client.connection import Connection
from hearth_client.layout import LAYER_ALL, Acquired, Commit, Handle, Op, Slot
from hearth_client.request import Request

import blocks

#: What a client does to itself when it comes to the point drawn for it, or (nap: stop in the
#: middle of it) to the first copy behind that.
ENDS = ("kill", "kill", "kill", "kill", "exit", "close", "stop", "nap", "tear", "never")
BLOCKS_AT_ONCE = 8


class Violation(Exception):
    """The agent did what it must never do."""


class Torn(Exception):
    """The frame was cut off on purpose."""


class Life:
    """Draws everything from ``random``, so that one seed gives one life (times apart)."""

    def __init__(self, path: str, lease_ms: int, random: Random) -> None:
        self.wrong_bytes = 0
        self.verified = 0
        self._path = path
        self._lease_s = lease_ms / 1000
        self._random = random
        self._end = random.choice(ENDS)
        # Most lives have some forty points; beyond the last one the client says goodbye.
        self._points_left = random.randrange(60)
        self._connection: Optional[Connection] = None
        self._last_frame = time.monotonic()
        self._longest_silence = 0.0
        self._reading: Dict[Handle, int] = {}
        self._writing: List[Handle] = []

    def run(self) -> None:
        """Raises Violation; a line lost to an overstayed lease ends the life quietly."""
        try:
            self._run()
        except Torn:
            return
        except (ConnectionClosed, RefusedError) as error:
            self._note_silence()
            refused = isinstance(error, RefusedError) and error.status != FrameStatus.OVERSTAYED
            if refused or self._longest_silence < self._lease_s / 2:
                raise Violation(f"the line was lost: {error}") from error

    def _note_silence(self) -> None:
        now = time.monotonic()
        self._longest_silence = max(self._longest_silence, now - self._last_frame)
        self._last_frame = now

    def _run(self) -> None:
        random = self._random
        self._point()
        if random.random() < 0.05:
            self._half_greeting()
            return
        self._connection = Connection(self._path, blocks.MANIFEST, "soak", 30.0)
        self._point()
        acts = (self._write, self._write, self._read, self._read, self._look, self._converse)
        for _ in range(1 + random.randrange(10)):
            random.choice(acts)()
            self._point()
        self._give_back()

    # --- acts -------------------------------------------------------------------------------------

    def _half_greeting(self) -> None:
        """Sends a part of HELLO, or all of it without reading the answer."""
        import socket

        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.connect(self._path)
            self._point()
            frame = protocol.hello_request(1, "soak", blocks.MANIFEST)
            sock.sendall(frame[: self._random.randrange(len(frame) + 1)])
            self._point()

    def _write(self) -> None:
        random = self._random
        chain, start = random.randrange(blocks.CHAINS), random.randrange(blocks.DEPTH)
        digests = blocks.chain_digests(chain, start, 1 + random.randrange(BLOCKS_AT_ONCE))
        wanted = []
        for depth, digest in enumerate(digests, start):
            length = len(blocks.payload_of(digest))
            alias = int.from_bytes(digest[:8], "little") if random.random() < 0.3 else None
            transient = random.random() < 0.1
            wanted.append(Block(digest, length, blocks.parent_of(chain, depth), alias, transient))
        slots = self._ask(
            Op.RESERVE,
            lambda number: protocol.reserve_request(number, LAYER_ALL, 0, wanted),
            protocol.read_reserve,
        )
        held = [(digest, one) for digest, one in zip(digests, slots) if one.outcome == Outcome.OK]
        self._writing += [(one.slot, one.generation) for _digest, one in held]
        self._point()
        for digest, one in held:
            self._fill(digest, one)
        self._finish_writing(held)

    def _fill(self, digest: bytes, one: Slot) -> None:
        data = blocks.payload_of(digest)
        half = self._random.randrange(len(data))
        arena = self._line().arena
        arena.write(one.offset, data[:half])
        self._point()
        arena.write(one.offset + half, data[half:])
        self._point()

    def _finish_writing(self, held: List[Tuple[bytes, Slot]]) -> None:
        """Commits most, aborts some, keeps a few to die with; a few checksums are wrong."""
        random = self._random
        commits, spoilt, aborts = [], [], []
        for digest, one in held:
            handle = (one.slot, one.generation)
            fate = random.random()
            if fate < 0.05:
                continue
            self._writing.remove(handle)
            if fate < 0.15:
                aborts.append(handle)
                continue
            data = blocks.payload_of(digest)
            given = len(data) <= blocks.CHECKED_BYTES_MAX and random.random() < 0.5
            wrong = random.random() < 0.03
            checksum = 1 if wrong else xxh3_64(data) if given else None
            commits.append(Commit(*handle, checksum))
            spoilt.append(wrong)
        self._point()
        outcomes = self._outcomes(Op.COMMIT, lambda n: protocol.commit_request(n, commits))
        for outcome, wrong in zip(outcomes, spoilt):
            if outcome != (Outcome.CORRUPT if wrong else Outcome.OK):
                raise Violation(f"a commit was answered {outcome.name}, spoilt: {wrong}")
        self._point()
        self._all_ok(Op.ABORT, aborts)

    def _read(self) -> None:
        random = self._random
        # Some chains are asked for more often than others, so that there is something to hit.
        chain = min(random.randrange(blocks.CHAINS), random.randrange(blocks.CHAINS))
        start = random.randrange(blocks.DEPTH) if random.random() < 0.5 else 0
        digests = blocks.chain_digests(chain, start, 1 + random.randrange(BLOCKS_AT_ONCE))
        stop = random.random() < 0.5
        found = self._ask(
            Op.ACQUIRE,
            lambda number: protocol.acquire_request(number, LAYER_ALL, 0, 0, stop, digests),
            protocol.read_acquire,
        )
        held = [(digest, one) for digest, one in zip(digests, found) if one.outcome == Outcome.OK]
        for _digest, one in held:
            handle = (one.slot, one.generation)
            self._reading[handle] = self._reading.get(handle, 0) + 1
        self._point()
        for digest, one in held:
            self._copy(digest, one)
        kept = [one for _digest, one in held if random.random() < 0.1]
        self._release([(one.slot, one.generation) for _digest, one in held if one not in kept])

    def _copy(self, digest: bytes, one: Acquired) -> None:
        half = self._random.randrange(one.length)
        arena = self._line().arena
        copy = arena.read(one.offset, half)
        self._point()
        if self._end == "nap" and self._points_left < 0:
            self._end = "never"
            os.kill(os.getpid(), signal.SIGSTOP)
        copy += arena.read(one.offset + half, one.length - half)
        wrong = blocks.wrong_bytes(digest, copy)
        sampled = len(copy) <= blocks.CHECKED_BYTES_MAX and self._random.random() < 0.1
        if wrong == 0 and sampled and xxh3_64(copy) != one.checksum:
            wrong = len(copy)
        self.wrong_bytes += wrong
        self.verified += 1

    def _release(self, handles: List[Handle]) -> None:
        self._all_ok(Op.RELEASE, handles)
        for handle in handles:
            self._reading[handle] -= 1
        gone = [handle for handle in handles if self._reading[handle] == 0]
        self._point()
        if not gone or self._random.random() > 0.1:
            return
        twice = self._outcomes(Op.RELEASE, lambda n: protocol.handles_request(Op.RELEASE, n, gone))
        if any(outcome != Outcome.STALE for outcome in twice):
            raise Violation("a slot was released twice")

    def _look(self) -> None:
        """What holds nothing: a lookup, a sign of life, notices of the GPU tier."""
        random = self._random
        digests = blocks.chain_digests(random.randrange(blocks.CHAINS), 0, BLOCKS_AT_ONCE)
        self._ask(
            Op.MATCH,
            lambda number: protocol.match_request(number, LAYER_ALL, 0, digests),
            protocol.read_match,
        )
        self._send(lambda number: protocol.ping_request(number, b"", True))
        notices = [Block(digest, 4096, None) for digest in digests[: random.randrange(4)]]
        self._outcomes(Op.GPU_STORED, lambda n: protocol.gpu_stored_request(n, LAYER_ALL, notices))

    def _converse(self) -> None:
        random = self._random
        session = 1 + random.randrange(blocks.SESSIONS)
        if random.random() < 0.3:
            read, request = protocol.read_outcomes, protocol.session_request
            self._ask(
                Op.SESSION_RELEASE,
                lambda number: request(Op.SESSION_RELEASE, number, session),
                lambda count, body: read(Op.SESSION_RELEASE, count, body),
            )
            return
        digest = blocks.digest_of(random.randrange(blocks.CHAINS), random.randrange(blocks.DEPTH))
        self._outcomes(
            Op.SESSION_COMMIT,
            lambda number: protocol.session_commit_request(number, session, LAYER_ALL, digest),
        )

    def _give_back(self) -> None:
        """A client that means to live on gives everything back; half of them do."""
        if self._random.random() < 0.5:
            return
        held = [handle for handle, count in self._reading.items() for _ in range(count)]
        self._all_ok(Op.RELEASE, held)
        self._all_ok(Op.ABORT, self._writing)
        self._line().close()
        self._point()

    # --- how --------------------------------------------------------------------------------------

    def _line(self) -> Connection:
        assert self._connection is not None
        return self._connection

    def _send(self, frame_of: Callable[[int], bytes], op: Optional[Op] = None) -> Optional[Request]:
        """Sends a frame, which has a reply if ``op`` is given."""
        line = self._line()
        request = None if op is None else line.expect(op)
        frame = frame_of(line.next_id() if request is None else request.number)
        if self._end == "tear" and self._points_left == 1:
            line.send(frame[: self._random.randrange(len(frame))])
            raise Torn
        self._note_silence()
        line.send(frame)
        self._point()
        return request

    def _ask(self, op, frame_of, read):
        line, request = self._line(), self._send(frame_of, op)
        return read(*line.result(request, line.timeout))

    def _outcomes(self, op: Op, frame_of: Callable[[int], bytes]) -> List[Outcome]:
        return self._ask(op, frame_of, lambda count, body: protocol.read_outcomes(op, count, body))

    def _all_ok(self, op: Op, handles: List[Handle]) -> None:
        outcomes = self._outcomes(op, lambda n: protocol.handles_request(op, n, handles))
        if any(outcome != Outcome.OK for outcome in outcomes):
            raise Violation(f"{op.name} of held slots was answered {outcomes}")

    def _point(self) -> None:
        self._points_left -= 1
        if self._points_left != 0:
            return
        if self._end == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self._end == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif self._end == "exit":
            raise Torn
        elif self._end == "close":
            if self._connection is not None:
                self._connection.close()
            # It lives on for a moment and touches nothing.
            time.sleep(0.005)
            raise Torn
