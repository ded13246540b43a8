"""Stand-ins for what upstream's code uses and a proof does not know."""

from __future__ import annotations

import contextlib
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .verdicts import Inconclusive


class Unknown:
    """Stands for something that a proof knows nothing about.

    It can be called, handed on, decorate or be a base class. Wherever it would decide (a condition,
    a comparison, a loop), the proof is inconclusive.
    """

    def __init__(self, name: str) -> None:
        self.__dict__["_name"] = name

    def __getattr__(self, name: str) -> Any:
        hide_special(name)
        return self.__dict__.setdefault(name, Unknown(f"{self._name}.{name}"))

    def __call__(self, *given: object, **named: object) -> Any:
        if len(given) == 1 and not named:
            is_plain = isinstance(given[0], type | types.FunctionType)
            if is_plain or "__wrapped__" in getattr(given[0], "__dict__", {}):  # decorated by this
                return given[0]
        return Unknown(f"{self._name}()")

    def __getitem__(self, key: object) -> Any:
        return Unknown(f"{self._name}[]")

    def __or__(self, other: object) -> Any:
        return self

    def __mro_entries__(self, bases: object) -> tuple[type, ...]:
        return ()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def _decides(self, *_: object) -> Any:
        raise Inconclusive(f"{self._name} would decide, and this proof does not know it")

    __ror__ = __or__
    __hash__ = object.__hash__
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _decides
    __bool__ = __len__ = __iter__ = __contains__ = __index__ = __float__ = _decides


class Anything:
    """Stands for anything: a base class, a decorator, a function, a flag that is not set."""

    def __getattr__(self, name: str) -> object:
        hide_special(name)
        return self.__dict__.setdefault(name, Anything())

    def __call__(self, *given: object, **named: object) -> object:
        decorated = len(given) == 1 and isinstance(given[0], type | types.FunctionType)
        return given[0] if decorated and not named else Anything()

    def __mro_entries__(self, bases: object) -> tuple[type, ...]:
        return ()

    def __or__(self, other: object) -> object:
        return self

    def __getitem__(self, key: object) -> object:
        return Anything()

    def __iter__(self) -> Iterator[object]:
        return iter(())

    def __bool__(self) -> bool:
        return False

    __ror__ = __or__


def hide_special(name: str) -> None:
    """Raises AttributeError for Python's own names: no stand-in answers Python's questions."""
    if name.startswith("__"):
        raise AttributeError(name)


class Fields:
    """An object with the given fields; what else it is asked for is ``Unknown``."""

    def __init__(self, **given: object) -> None:
        vars(self).update(given)

    def __getattr__(self, name: str) -> object:
        return Unknown(name)


class Known(dict[str, object]):
    """Stand-ins by name for ``Source.in_tree``; ``make`` gives those that match a pattern."""

    def __init__(self, pattern: str, make: Callable[[str], object], **given: object) -> None:
        super().__init__(given)
        self.pattern, self.make = re.compile(pattern), make

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or bool(self.pattern.fullmatch(str(name)))

    def __missing__(self, name: str) -> object:
        self[name] = self.make(name)
        return self[name]


def mocked(name: str, **attributes: object) -> Any:
    """A stand-in that does anything, such as for ``Source.run``."""
    from unittest import mock  # noqa: PLC0415 - most of the time that a small proof takes

    return mock.MagicMock(name=name, **attributes)


@contextlib.contextmanager
def modules(contents: Mapping[str, Mapping[str, object]]) -> Iterator[None]:
    """Modules that can be imported meanwhile: their contents, by name."""
    from unittest import mock  # noqa: PLC0415 - as above

    made = {name: types.ModuleType(name) for full in contents for name in _with_parents(full)}
    for name, inside in contents.items():
        vars(made[name]).update(inside)
    with mock.patch.dict(sys.modules, made):
        yield


def _with_parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts) + 1)]
