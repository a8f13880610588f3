"""The index of earlier answers in a run's folder."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from specpipe.data.answers.answer_files import AnswerFile
from specpipe.data.answers.answer_index import (
    AnswerIndex,
    answers_fingerprint,
    build_answer_index,
    read_fingerprint,
)
from specpipe.data.answers.earlier_answers import EarlierAnswers
from specpipe.data.publish import publish_file
from specpipe.data.requests.request_builder import RequestBuilder
from specpipe.errors import OutputError
from specpipe.pipeline.store.folder import PRIVATE, RunFolder

log = logging.getLogger(__name__)
_INDEX = f"{PRIVATE}/answers"


def publish_answers(folder: RunFolder, files: Sequence[AnswerFile]) -> tuple[str, int]:
    """Publishes the index of these files in the run's folder, unless it is there, and returns its path and its rows.

    Raises OutputError when it cannot be written. A file of answers that cannot be read is logged.
    """
    path = folder.file(_INDEX)
    try:
        if read_fingerprint(path) != answers_fingerprint(files):
            with publish_file(path) as local:
                build_answer_index(files, local)
        index = AnswerIndex.open(path)
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error}. Check permissions and free space") from error
    for line in index.unread:
        log.warning("its earlier answers cannot be read, and their rows run without: %s", line)
    return path, index.rows


def open_answers(path: str, builder: RequestBuilder) -> EarlierAnswers:
    """Returns the earlier answers of an index as token ids of the builder's model."""
    return EarlierAnswers(
        AnswerIndex.open(path),
        builder.encoder.encode_answer,
        vocab_size=builder.vocab_size,
        max_tokens=builder.max_model_len,
    )
