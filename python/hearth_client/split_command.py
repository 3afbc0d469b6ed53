"""Commands that name more blocks than one may: several commands with one receipt."""

from __future__ import annotations

import json
import re
import time
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from .ticket import CommandTicket

#: Limits of one command (docs/reference/commands.md); a frame may be smaller.
COMMAND_BYTES_MAX = 96 << 10
BLOCKS_MAX = 1_024

#: Room for the number that is put behind the ``id`` of a part.
_NUMBER_BYTES = 8
_NAMES = ("block_hashes", "block_keys")
#: Members that order an issuer's commands: parts of one command cannot share them.
_ORDER = ("epoch", "seq")
_SUMS = ("bytes", "blocks_left_out", "elapsed_ms")


class Part(NamedTuple):
    json_bytes: bytes
    #: Blocks that it names.
    names: int


def parts_of(body: Mapping[str, object], bytes_max: int) -> List[Part]:
    """The command in parts of at most ``bytes_max`` that name all its blocks in order.

    The parts of a command with an ``id`` have that and their number: sent again, it has the same
    parts. ValueError: it is too large and cannot be split.
    """
    parts = _parts(body, bytes_max - _NUMBER_BYTES)
    if len(parts) == 1 or body.get("id") is None:
        return [_encoded(part) for part in parts]
    return [_encoded({**part, "id": f"{body['id']}.{at}"}) for at, part in enumerate(parts)]


def _encoded(body: Mapping[str, object]) -> Part:
    return Part(json.dumps(body).encode("utf-8"), len(_names_of(body)[1]))


def _names_of(body: Mapping[str, object]) -> Tuple[str, Sequence[Any]]:
    named = [name for name in _NAMES if isinstance(body.get(name), (list, tuple))]
    return (named[0], body[named[0]]) if len(named) == 1 else ("", ())  # type: ignore[return-value]


def _parts(body: Mapping[str, object], bytes_max: int) -> List[Mapping[str, object]]:
    whole = len(json.dumps(body).encode("utf-8"))
    name, names = _names_of(body)
    if whole <= bytes_max and len(names) <= BLOCKS_MAX:
        return [body]
    if len(names) < 2 or any(body.get(member) is not None for member in _ORDER):
        raise ValueError(f"a command of {whole} bytes, {bytes_max} are allowed")
    middle = len(names) // 2
    halves = [names[:middle], names[middle:]]
    return [part for half in halves for part in _parts({**body, name: half}, bytes_max)]


def merged(receipts: Sequence[Mapping[str, object]]) -> Dict[str, object]:
    """One receipt for all parts of a command."""
    statuses = [receipt.get("status") for receipt in receipts]
    whole: Dict[str, object] = dict(receipts[0])
    if isinstance(whole.get("id"), str):
        whole["id"] = re.sub(r"\.\d+$", "", str(whole["id"]))
    whole["status"] = statuses[0] if len(set(statuses)) == 1 else "partial"
    reasons = [receipt["reason"] for receipt in receipts if receipt.get("reason")]
    if reasons:
        whole["reason"] = reasons[0]
    counts: Dict[str, int] = {}
    blocks: List[object] = []
    for receipt in receipts:
        part = receipt.get("counts")
        for outcome, count in (part if isinstance(part, Mapping) else {}).items():
            counts[outcome] = counts.get(outcome, 0) + count
        listed = receipt.get("blocks")
        blocks += listed if isinstance(listed, list) else []
    whole.update(counts=counts, blocks=blocks)
    for member in _SUMS:
        numbers = _numbers(receipts, member)
        if numbers:
            whole[member] = sum(numbers)
    times = _numbers(receipts, "ttl_seconds")
    if times:
        whole["ttl_seconds"] = min(times)
    if any("durable" in receipt for receipt in receipts):
        whole["durable"] = all(receipt.get("durable") is True for receipt in receipts)
    return whole


def _numbers(receipts: Sequence[Mapping[str, Any]], member: str) -> List[Any]:
    found = [receipt.get(member) for receipt in receipts]
    return [one for one in found if isinstance(one, (int, float)) and not isinstance(one, bool)]


class SplitCommandTicket(CommandTicket):
    """The parts of one command. Its receipt is there when those of all parts are."""

    def __init__(self, tickets: Sequence[CommandTicket], parts: Sequence[Part]) -> None:
        super().__init__(None)
        self._parts = list(tickets)
        self._names = [part.names for part in parts]
        self._merged: Optional[Dict[str, object]] = None

    def done(self) -> bool:
        return all([part.done() for part in self._parts])

    def wait(self, timeout: float) -> bool:
        until = time.monotonic() + timeout
        return all([part.wait(max(until - time.monotonic(), 0.0)) for part in self._parts])

    def result(self) -> Any:
        if self._merged is None:
            receipts = [part.result() for part in self._parts]
            self._merged = merged([_counted(*one) for one in zip(receipts, self._names)])
        return self._merged

    def cancel(self) -> None:
        for part in self._parts:
            part.cancel()


def _counted(receipt: Mapping[str, object], names: int) -> Mapping[str, object]:
    """A part that was refused or has no receipt counts its blocks as rejected."""
    if receipt.get("status") in ("rejected", "gone") and not receipt.get("counts"):
        return {**receipt, "counts": {"rejected": names}}
    return receipt
