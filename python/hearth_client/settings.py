"""Settings of a connector, read from the object of values that its engine passes on."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any, Collection, Dict, List, Mapping, Optional, Tuple, Type, TypeVar

_TEXT_BYTES_MAX = 4096

_Settings = TypeVar("_Settings")


@dataclass(frozen=True)
class Form:
    """Constraints on a connector's settings, besides the names and defaults of its fields."""

    #: The object that holds them, as its engine calls it.
    where: str
    #: Least and largest value of each number.
    ranges: Mapping[str, Tuple[float, float]]
    #: Before the name of each field.
    prefix: str = ""
    #: Values of the texts that are a choice.
    choices: Mapping[str, Tuple[str, ...]] = field(default_factory=dict)
    #: Bytes of a text, if fewer than 4096.
    text_bytes_max: Mapping[str, int] = field(default_factory=dict)
    #: Keys of the same object that are not the connector's.
    others: Collection[str] = ()
    #: Fields that are no settings.
    derived: Collection[str] = ()


def read(settings: Type[_Settings], values: Optional[Mapping[str, Any]], form: Form) -> _Settings:
    """An instance of the dataclass ``settings``. ValueError names the key, its value and the fix.

    The default of a field says what it holds: true or false, a whole number, a number, or a text.
    A text whose default is neither None nor empty may not be empty.
    """
    known = {
        form.prefix + one.name: one
        for one in fields(settings)  # type: ignore[arg-type]
        if one.name not in form.derived
    }
    found: Dict[str, Any] = {}
    for key, value in (values or {}).items():
        if key in form.others:
            continue
        one = known.get(key)
        if one is None:
            raise ValueError(_unknown(str(key), list(known), form))
        where = f"{form.where}[{key!r}] is {value!r}"
        found[one.name] = _checked(where, one.name, one.default, value, form)
    return settings(**found)


def _unknown(key: str, known: List[str], form: Form) -> str:
    possible = [*known, *form.others]
    near = get_close_matches(key, possible, n=1, cutoff=0.5)
    if not near:
        near = get_close_matches(form.prefix + key, possible, n=1, cutoff=0.5)
    advice = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
    return f"{form.where} has an unknown key {key!r}: {advice}"


def _checked(where: str, name: str, default: Any, value: Any, form: Form) -> Any:
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise ValueError(f"{where}: set it to true or false")
        return value
    if default is None or isinstance(default, str):
        return _checked_text(where, name, default, value, form)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{where}: set it to a number")
    if isinstance(default, int) and value != int(value):
        raise ValueError(f"{where}: set it to a whole number")
    least, most = form.ranges[name]
    if not least <= value <= most:
        raise ValueError(f"{where}: set it to a number from {least} to {most}")
    return int(value) if isinstance(default, int) else float(value)


def _checked_text(where: str, name: str, default: Any, value: Any, form: Form) -> str:
    if not isinstance(value, str) or (not value and default != ""):
        raise ValueError(f"{where}: set it to a text" + ("" if default == "" else " with content"))
    choices = form.choices.get(name)
    if choices is not None and value not in choices:
        raise ValueError(f"{where}: set it to one of {', '.join(choices)}")
    most = form.text_bytes_max.get(name, _TEXT_BYTES_MAX)
    if len(value.encode("utf-8")) > most:
        raise ValueError(f"{where}: shorten it to at most {most} bytes")
    return value
