"""Triton's interpreter without repeated work: it replaces the language's functions anew at every call of a helper."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def patch_once_per_launch() -> Iterator[None]:
    """Replaces the language's functions once for each module in a launch: further times change nothing (triton 3.7).

    They took a third of the time of interpreted tests.
    """
    if not os.environ.get("TRITON_INTERPRET"):
        yield
        return
    from triton.runtime import interpreter

    launch, patch_lang = interpreter.GridExecutor.__call__, interpreter._patch_lang
    patched: set[int] = set()

    def start(executor: Any, *args: Any, **kwargs: Any) -> Any:
        patched.clear()
        return launch(executor, *args, **kwargs)

    def patch(function: Any) -> Any:
        module = id(function.__globals__)
        if module in patched:  # a helper's call, which ignores the result
            return None
        patched.add(module)
        return patch_lang(function)

    with pytest.MonkeyPatch.context() as context:
        context.setattr(interpreter.GridExecutor, "__call__", start)
        context.setattr(interpreter, "_patch_lang", patch)
        yield
