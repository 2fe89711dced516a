"""`python -m terrace.serve FILE CLASS`: runs a policy for Terrace, which starts this and speaks to it
by its standard input and output. Not for people.

Before the policy is read, this process gives up what a policy has no use for: other processes and
threads, files that grow, more memory than it was given, and new privileges.
"""

from __future__ import annotations

import os
import resource
import sys
import traceback
import types
from typing import Any

from . import _terrace
from ._terrace import Refused
from .experiment import _own

# Open files: those that Python itself needs.
_MOST_FILES = 64


def _give_up(memory_bytes: int) -> None:
    for what, most in [
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, _MOST_FILES),
        (resource.RLIMIT_NPROC, 0),
    ]:
        _, hard = resource.getrlimit(what)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (most, most))


def _made(hello: dict[str, Any]) -> Any:
    """The policy: the class of the file, made for one group."""
    module = types.ModuleType(os.path.splitext(os.path.basename(hello["file"]))[0])
    module.__file__ = hello["file"]
    sys.modules[module.__name__] = module
    exec(compile(hello["source"], hello["file"], "exec"), vars(module))
    kind = getattr(module, hello["class"], None)
    if not isinstance(kind, type):
        there = [name for name, value in vars(module).items() if isinstance(value, type)]
        raise Refused(
            f"no class '{hello['class']}' in {hello['file']}; expected one of "
            f"{', '.join(there) or 'its classes, of which it has none'}"
        )
    _, make = _own(kind)
    return make(hello["seed"])


def _described(error: BaseException, file: str) -> str:
    """An error in a line, with the line of the policy's file that it comes from."""
    text = traceback.format_exception_only(error)[-1].strip()
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == file]
    place = f"{os.path.basename(file)}, line {frames[-1].lineno}: " if frames else ""
    return place + text


def main() -> int:
    """Answers until there is nothing more to answer."""
    conversation = _terrace.Conversation()
    try:
        hello = conversation.hello()
    except Refused as error:
        print(f"terrace.serve: {error}", file=sys.stderr)
        return 2
    try:
        conversation.take_no_privileges()
        _give_up(hello["memory_bytes"])
        policy = _made(hello)
        conversation.ready()
        while (asked := conversation.period()) is not None:
            scan, budget = asked
            answer = policy.decide(scan, budget)
            try:
                conversation.answer(answer)
            except Refused as error:
                conversation.refuse(str(error))
    except Exception as error:
        traceback.print_exc()
        conversation.fail(_described(error, hello["file"]))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
