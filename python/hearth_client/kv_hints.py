"""KV hints of a request: the actions of an envelope, the blocks they name, and their outcomes.

The vocabulary is docs/reference/kv-hints.md. Connectors add what their engine shows of a request.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Set, Tuple

VERSION = "1"
ACTIONS_MAX = 64
NAME_BYTES_MAX = 128

#: Executed as commands, once the blocks are stored.
COMMANDS = ("pin", "retain", "demote", "transient")
KNOWN = ("share", "prefetch", *COMMANDS)

_NAMES_MAX = 4096
_U64_MAX = (1 << 64) - 1
_RETAIN_MAX = 99
_RECEIPT_OUTCOMES = {
    "done": "accepted",
    "already": "accepted",
    "missing": "missing",
    "deferred": "deferred",
    "held": "rejected",
    "rejected": "rejected",
}


class Rejected(ValueError):
    """The payload of an action cannot be executed; the text says why."""


@dataclass(frozen=True)
class Selection:
    """At most one member is set; none: all full blocks of the prompt."""

    prefix_tokens: Optional[int] = None
    from_token: Optional[int] = None
    open_token: Optional[int] = None
    close_token: Optional[int] = None
    names: Tuple[Any, ...] = ()

    @property
    def bounded(self) -> bool:
        """The selection says where it ends, or that it ends with the request."""
        return self.prefix_tokens is not None or self.from_token is not None

    @property
    def hashes(self) -> Set[int]:
        """The names that are 64-bit hashes of the engine, without their sign."""
        found = set()
        for name in self.names:
            try:
                found.add(int(name) & _U64_MAX)
            except (TypeError, ValueError):
                continue
        return found

    def blocks(self, tokens: int, block_tokens: int) -> Tuple[int, int, bool]:
        """First and end index of the selected full blocks of `tokens` tokens; True if clipped."""
        end = tokens // block_tokens
        if self.from_token is not None:
            first = -(-self.from_token // block_tokens)
            return min(first, end), end, first > end
        if self.prefix_tokens is not None:
            wanted = self.prefix_tokens // block_tokens
            return 0, min(wanted, end), wanted > end
        return 0, end, False


def read_selection(payload: Mapping[str, Any], kind: str) -> Selection:
    """The selection of an action's payload; raises Rejected."""
    members = ("prefix_tokens", "from_token", "open_token", "close_token", "block_hashes")
    given = [name for name in members if payload.get(name) is not None]
    thinking = "open_token" in given or "close_token" in given
    if len(given) > 1 and set(given) != {"open_token", "close_token"}:
        raise Rejected(f"selection: {' and '.join(given)} exclude each other")
    if thinking and (kind != "transient" or len(given) != 2):
        raise Rejected("selection: open_token and close_token belong together, for transient")
    for name in given:
        value = payload[name]
        if name == "block_hashes":
            if not isinstance(value, list) or len(value) > _NAMES_MAX:
                raise Rejected(f"selection: block_hashes is a list of at most {_NAMES_MAX}")
        elif isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise Rejected(f"selection: {name} is a whole number from 0")
    if given == ["block_hashes"]:
        return Selection(names=tuple(payload["block_hashes"]))
    return Selection(**{name: payload[name] for name in given})


@dataclass
class Action:
    """One action of an envelope and its outcome."""

    ident: str
    kind: str
    payload: Mapping[str, Any]
    selection: Selection
    blocks: Counter = field(default_factory=Counter)
    reason: str = ""
    ticket: Any = None
    asked: int = 0
    ttl_seconds: Optional[float] = None
    decided: bool = False
    #: A connector's reader of a selection by open and close token.
    scan: Any = None

    def reject(self, reason: str, blocks: int = 1) -> None:
        self.blocks["rejected"] += max(1, blocks)
        self.reason, self.decided = reason, True

    def answer(self) -> Dict[str, Any]:
        if not self.decided and "deferred" not in self.blocks:
            self.blocks["deferred"] += max(1, self.asked)
        answer: Dict[str, Any] = {"action_id": self.ident, "action_type": self.kind}
        answer["blocks"] = dict(self.blocks)
        if self.reason:
            answer["reason"] = self.reason
        if self.ttl_seconds is not None:
            answer["ttl_seconds"] = self.ttl_seconds
        return answer

    def take(self) -> None:
        """Takes in the result of `ticket`, a lookup or a command, as the outcome."""
        result, self.decided = self.ticket.result(), True
        if not isinstance(result, Mapping):
            found = {"accepted": result.ready, "missing": self.asked - result.ready}
            self.blocks.update({outcome: count for outcome, count in found.items() if count})
            if result.outcome != "ok":
                self.reason = f"agent: {result.outcome}"
            return
        counts = result.get("counts")
        for word, count in (counts if isinstance(counts, Mapping) else {}).items():
            if count:
                self.blocks[_RECEIPT_OUTCOMES.get(word, "rejected")] += count
        if result.get("status") in ("rejected", "gone") and not self.blocks:
            self.reject(str(result.get("reason", "refused")), self.asked)
        granted, asked = result.get("ttl_seconds"), self.payload.get("ttl_seconds")
        if isinstance(granted, (int, float)):
            self.ttl_seconds = granted
            if isinstance(asked, (int, float)) and granted < asked:
                self.blocks["clipped"] += self.blocks.pop("accepted", 0)


def read_actions(envelope: Any) -> Tuple[List[Action], int]:
    """The actions of an envelope, and how many were ignored.

    An action with a payload that cannot be executed is decided: rejected, with the reason. An
    envelope of another version has one ignored action.
    """
    if str(get(envelope, "protocol_version")) != VERSION:
        return [], 1
    actions, ignored = [], 0
    for item in list(get(envelope, "actions") or [])[:ACTIONS_MAX]:
        ident, kind = get(item, "action_id"), get(item, "action_type")
        payload = get(item, "payload")
        payload = payload if isinstance(payload, Mapping) else {}
        if kind not in KNOWN or str(get(item, "action_version")) != VERSION:
            ignored += 1
            continue
        action = Action(str(ident)[:NAME_BYTES_MAX], kind, payload, Selection())
        try:
            action.selection = read_selection(payload, kind)
        except Rejected as error:
            action.reject(str(error))
        actions.append(action)
    return actions, ignored


def command_body(
    action: Action, names: List[Any], params: Mapping[str, Any], issuer: str
) -> Dict[str, Any]:
    """The command of docs/reference/commands.md that executes an action.

    ``params`` has the defaults of ``session_id`` and ``priority``.
    """
    payload = action.payload
    session = payload.get("session_id", params.get("session_id"))
    owner = payload.get("owner") or session or issuer
    body: Dict[str, Any] = {"block_hashes": names, "owner": str(owner)[:NAME_BYTES_MAX]}
    ttl = payload.get("ttl_seconds")
    if action.kind == "transient":
        return {"type": "Think", "block_hashes": names, "transient": True}
    if action.kind == "prefetch":
        warm: Dict[str, Any] = {"type": "Warm", "block_keys": names, "target_tier": "CPU_TIER1"}
        source = source_of(action)
        return {**warm, "sources": [source]} if source else warm
    if action.kind == "retain":
        priority = payload.get("priority", params.get("priority", 1))
        body.update(type="Cache", retain=max(1, min(_RETAIN_MAX, _whole(priority))))
        if ttl is not None:
            body["retain_seconds"] = ttl
        return body
    if ttl is not None:
        body["ttl_seconds"] = ttl
    if action.kind == "pin":
        body.update(type="Cache", pin=True)
        return body
    lease = f"session-{session}" if session else f"hint-{action.ident}"
    body.update(type="Pause", lease_id=lease[:NAME_BYTES_MAX])
    return body


def source_of(action: Action) -> str:
    """The first of the workers that have or compute the blocks; empty: none is given."""
    sources = action.payload.get("sources")
    source = sources[0] if isinstance(sources, list) and sources else ""
    return source if isinstance(source, str) else ""


def get(thing: Any, name: str) -> Any:
    """A member of an envelope, which is an object of JSON or one of the engine's."""
    return thing.get(name) if isinstance(thing, Mapping) else getattr(thing, name, None)


def _whole(value: Any) -> int:
    return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else 1
