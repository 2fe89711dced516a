"""Input errors that are also what Python's users catch, and names that were probably meant."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

from ._terrace import Refused, TerraceError, hint

P = ParamSpec("P")
R = TypeVar("R")


class UnknownName(Refused, KeyError):
    """A name that is none of those that there are."""

    __module__ = "terrace"

    def __str__(self) -> str:
        return Refused.__str__(self) if not self.args else str(self.args[0])


class UnknownArgument(Refused, TypeError):
    """An argument that a class or function does not have, or one of another type."""

    __module__ = "terrace"


def check_name(of: str, got: object, known: Iterable[str]) -> None:
    """Refuses a name that is none of these."""
    names = list(known)
    if not isinstance(got, str):
        raise UnknownArgument(f"{of} = {got!r}: expected a text, one of {', '.join(names)}")
    if got not in names:
        raise UnknownName(
            f"no {of} is named '{got}'; expected one of {', '.join(names)}{hint(got, names)}"
        )


def named_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Has a function refuse an argument of an unknown name with the name that was probably meant."""
    parameters = inspect.signature(function).parameters
    names = [p.name for p in parameters.values() if p.kind is not p.VAR_KEYWORD]
    names = [name for name in names if name not in ("self", "cls")]
    called = function.__qualname__.removesuffix(".__init__")

    @functools.wraps(function)
    def checked(*arguments: Any, **keywords: Any) -> Any:
        for name in keywords:
            if name not in names:
                raise UnknownArgument(
                    f"{called} has no argument '{name}'; expected one of {', '.join(names)}"
                    f"{hint(name, names)}"
                )
        return function(*arguments, **keywords)

    return checked  # type: ignore[return-value]


def exit_code(command: Callable[[], int]) -> int:
    """The exit code of a command: its own, or 2 and a line where input is refused, 1 and a line where
    something went wrong."""
    try:
        return command()
    except (Refused, OSError, TerraceError) as error:
        print(f"terrace: {error}", file=sys.stderr)
        return 1 if isinstance(error, TerraceError) else 2
