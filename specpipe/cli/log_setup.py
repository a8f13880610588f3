"""Only our own words on the terminal, unless asked for more."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from typing import TextIO

from specpipe.pipeline.logs import JsonFormatter, TextFormatter


class _Stderr(logging.StreamHandler[TextIO]):
    """Writes to whatever sys.stderr is at the time: a live display replaces it, to print above itself."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def quiet(*, verbose: bool, as_json: bool = False) -> None:
    """Our log goes to stderr, from warnings on or from information on; other libraries' only with `verbose`.

    `as_json`: one line of JSON each, from information on: progress and results too.

    Call it before they are imported: they read the environment then. Workers inherit it.
    """
    handler = _Stderr()
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter())
    logging.basicConfig(handlers=[handler], force=as_json)
    logging.getLogger().setLevel(logging.WARNING if verbose else logging.ERROR)
    logging.getLogger("specpipe").setLevel(logging.INFO if verbose or as_json else logging.WARNING)
    if verbose:
        return
    warnings.simplefilter("ignore")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
