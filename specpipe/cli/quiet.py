"""Only our own words on the terminal, unless asked for more."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from typing import TextIO


class _Stderr(logging.StreamHandler[TextIO]):
    """Writes to whatever sys.stderr is at the time: a live display replaces it, to print above itself."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def quiet(*, verbose: bool) -> None:
    """Our log goes to stderr, from warnings on or from information on; other libraries' only with `verbose`.

    Call it before they are imported: they read the environment then. Workers inherit it.
    """
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S", handlers=[_Stderr()])
    logging.getLogger().setLevel(logging.WARNING if verbose else logging.ERROR)
    logging.getLogger("specpipe").setLevel(logging.INFO if verbose else logging.WARNING)
    if verbose:
        return
    warnings.simplefilter("ignore")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
