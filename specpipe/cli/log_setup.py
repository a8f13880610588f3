"""Logging of a command: specpipe's own records on stderr, those of libraries only on request."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from typing import TextIO

from specpipe.pipeline.logs import JsonFormatter, TextFormatter


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to the current `sys.stderr`: the live display replaces it in order to print above itself."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def configure_logging(*, verbose: bool = False, as_json: bool = False) -> None:
    """Sends logs to stderr: warnings of specpipe, or with `verbose` also information and warnings of libraries.

    Call it before libraries are imported: they read the environment variables on import, and workers inherit them.

    Args:
        verbose: Also log specpipe's information and other libraries' warnings.
        as_json: Write one JSON object per line, from level information on, progress and results included.
    """
    handler = _StderrHandler()
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter())
    logging.basicConfig(handlers=[handler], force=as_json)
    logging.getLogger().setLevel(logging.WARNING if verbose else logging.ERROR)
    logging.getLogger("specpipe").setLevel(logging.INFO if verbose or as_json else logging.WARNING)
    if verbose:
        return
    warnings.simplefilter("ignore")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
