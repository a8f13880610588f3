"""Only our own words on the terminal, unless asked for more."""

from __future__ import annotations

import logging
import os
import warnings


def quiet(*, verbose: bool) -> None:
    """Our log goes to stderr, from warnings on or from information on; other libraries' only with `verbose`.

    Call it before they are imported: they read the environment then. Workers inherit it.
    """
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S")
    logging.getLogger().setLevel(logging.WARNING if verbose else logging.ERROR)
    logging.getLogger("specpipe").setLevel(logging.INFO if verbose else logging.WARNING)
    if verbose:
        return
    warnings.simplefilter("ignore")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
