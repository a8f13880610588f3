"""Finished answers as references of rows with the same prompt, such as further samples of it."""

from __future__ import annotations

from collections import Counter

from specpipe.engine.state.row_state import RowState


class Siblings:
    """Holds the latest answer to each prompt that rows without a reference of their own still wait with."""

    def __init__(self) -> None:
        self._waiting: Counter[tuple[int, ...]] = Counter()
        """Rows by prompt, before their first slot."""
        self._answers: dict[tuple[int, ...], tuple[int, ...]] = {}

    def wait(self, row: RowState) -> None:
        """Adds a row that waits for its first slot."""
        if row.window is None and not row.reference:
            self._waiting[row.request.prompt_token_ids] += 1

    def start(self, row: RowState) -> None:
        """Removes a row that gets its first slot, and makes a finished sibling's answer its reference."""
        if row.window is not None or row.reference:
            return
        prompt = row.request.prompt_token_ids
        row.reference = self._answers.get(prompt, ())
        row.following = bool(row.reference)
        self._waiting[prompt] -= 1
        if not self._waiting[prompt]:
            del self._waiting[prompt]
            self._answers.pop(prompt, None)

    def finish(self, row: RowState) -> None:
        """Stores the answer of a row that has ended, if others wait for it."""
        if row.window is None and row.request.prompt_token_ids in self._waiting:
            self._answers[row.request.prompt_token_ids] = tuple(row.generated)
