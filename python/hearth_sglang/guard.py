"""Storage calls that never raise: an exception ends SGLang's storage threads."""

from __future__ import annotations

from functools import wraps
from typing import Any, Callable, Dict, List, Sequence, TypeVar, cast

_Call = TypeVar("_Call", bound=Callable[..., Any])


def guarded(default: Callable[..., Any]) -> Callable[[_Call], _Call]:
    """An error becomes what ``default`` answers, a miss. Its object logs it once a call."""

    def decorate(call: _Call) -> _Call:
        @wraps(call)
        def guard(self: Any, *args: Any, **options: Any) -> Any:
            try:
                return call(self, *args, **options)
            except Exception:
                self._log_once(call.__name__)
                return default(*args)

        return cast(_Call, guard)

    return decorate


def no_pages(keys: Sequence[str], *_rest: Any) -> List[bool]:
    return [False] * len(keys)


def no_transfers(transfers: Sequence[Any], *_rest: Any) -> Dict[Any, List[bool]]:
    return {transfer.name: [False] * len(transfer.keys or []) for transfer in transfers}
