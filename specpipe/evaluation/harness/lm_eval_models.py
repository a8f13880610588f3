"""Models for lm-eval: RequestRecorder writes requests to a file, Replayer answers them from a run's outputs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from lm_eval.api.model import LM, TemplateLM
from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs, resolve_max_length
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from specpipe.data.publish import publish_file
from specpipe.errors import JobError, OutputError
from specpipe.evaluation.harness.recorded_requests import SCHEMA, PromptCutter, RequestIds, request_rows
from specpipe.evaluation.harness.score_rows import (
    LOGLIKELIHOOD,
    ROLLING,
    RecordedScore,
    loglikelihood_rows,
    rolling_ids,
    rolling_rows,
    windows_by_text,
)
from specpipe.evaluation.run_outputs import RunOutputs
from specpipe.models.loader import load_config
from specpipe.models.source import resolve
from specpipe.models.tokenizer import load_tokenizer

_BATCH_ROWS = 2048
_COLUMNS = ("request_id", "prompt", "generated_text", "scores", "finish_reason", "error")


class _TargetModel(LM):  # type: ignore[misc]
    """Base of both models: tokenizer and chat template of the target."""

    def __init__(self, target: str, trust_remote_code: bool = False, chat_template: str | None = None) -> None:
        super().__init__()
        self._source = resolve(target, "target", trust_remote_code=trust_remote_code)
        self.tokenizer = load_tokenizer(self._source, trust_remote_code=trust_remote_code, chat_template=chat_template)

    @property
    def tokenizer_name(self) -> str:
        """Name of the tokenizer, a part of lm-eval's cache keys."""
        return str(self.tokenizer.name_or_path).replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """Returns the chat template, selected as lm-eval's TemplateLM does."""
        text: str | None = TemplateLM.chat_template(self, chat_template)
        return text

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Applies the chat template, as lm-eval's transformers backend does.

        A template that rejects system turns gets the chat without them. Raises JobError without a chat template.
        """
        from jinja2 import TemplateError

        if not self.tokenizer.chat_template:
            raise JobError(
                f"{self._source.name} has no chat template; remove --apply_chat_template, or set one with "
                "--chat-template"
            )
        try:
            return self._templated(chat_history, add_generation_prompt)
        except TemplateError:
            return self._templated([turn for turn in chat_history if turn["role"] != "system"], add_generation_prompt)

    def _templated(self, chat: Sequence[Mapping[str, str]], add_generation_prompt: bool) -> str:
        return str(
            self.tokenizer.apply_chat_template(
                [dict(turn) for turn in chat],
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
            )
        )


class RequestRecorder(_TargetModel):
    """Writes every request to Parquet files, in lm-eval's order, and returns empty answers."""

    def __init__(
        self,
        path: str,
        target: str,
        max_length: int | None = None,
        add_bos_token: bool | None = None,
        trust_remote_code: bool = False,
        chat_template: str | None = None,
        **_: Any,
    ) -> None:
        """path: folder for a file of each type of request. max_length: longest prompt + output in tokens; None for the
        target's own."""
        super().__init__(target, trust_remote_code, chat_template)
        self._path, self._add_bos_token = Path(path), add_bos_token
        self._max_length = max_length or resolve_max_length(
            load_config(self._source, trust_remote_code=trust_remote_code), self.tokenizer
        )

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Records the requests. Returns an empty answer for each. Raises JobError as request_rows does."""
        cutter = PromptCutter(tokenizer=self.tokenizer, max_length=self._max_length, add_bos_token=self._add_bos_token)
        self._write("generate_until", request_rows(requests, cutter, normalize_gen_kwargs, handle_stop_sequences))
        return [""] * len(requests)

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Records the requests. Returns a log-probability of 0 for each. Raises JobError as loglikelihood_rows does."""
        self._scored = requests
        answers: list[tuple[float, bool]] = TemplateLM.loglikelihood(self, requests, disable_tqdm)
        return answers

    def _loglikelihood_tokens(self, encoded: list[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Records the requests of `loglikelihood`, which TemplateLM has encoded."""
        self._write(LOGLIKELIHOOD, loglikelihood_rows(self._scored, encoded, self._max_length))
        return [(0.0, False)] * len(encoded)

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """Records the windows of the requests' texts. Returns a log-probability of 0 for each text."""
        windows = ([*self._rolling_windows(*request.args)] for request in requests)
        self._write(ROLLING, rolling_rows(requests, windows))
        return [0.0] * len(requests)

    def _rolling_windows(self, text: str) -> Iterator[tuple[list[int], list[int]]]:
        """Yields contexts and scored tokens, as HFLM.loglikelihood_rolling makes them."""
        windows = get_rolling_token_windows(
            token_list=self.tok_encode(text),
            prefix_token=self.prefix_token_id,
            max_seq_len=self._max_length,
            context_len=1,
        )
        return map(make_disjoint_window, windows)

    backend = "causal"
    """Read by TemplateLM._encode_pair."""

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Encodes a context and a continuation, as lm-eval's TemplateLM does."""
        encoded: tuple[list[int], list[int]] = TemplateLM._encode_pair(self, context, continuation)
        return encoded

    @property
    def prefix_token_id(self) -> int:
        """Token before a text without context, as in HFLM: beginning of sequence, else end of sequence."""
        bos = self.tokenizer.bos_token_id
        return int(self.tokenizer.eos_token_id if bos is None else bos)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Returns token ids, as HFLM.tok_encode does."""
        special = self._add_bos_token if add_special_tokens is None else add_special_tokens
        if add_special_tokens is None and string.startswith(self.tokenizer.decode(self.prefix_token_id)):
            special = False
        options = {} if special is None else {"add_special_tokens": special}
        ids: list[int] = self.tokenizer(string, verbose=False, **options)["input_ids"]
        return ids

    def _write(self, kind: str, rows: Iterator[dict[str, object]]) -> None:
        """Writes the requests of one type to a file of their own."""
        with (
            publish_file(str(self._path / f"{kind}.parquet")) as path,
            pq.ParquetWriter(path, SCHEMA, compression="zstd") as writer,
        ):
            while batch := list(islice(rows, _BATCH_ROWS)):
                writer.write_batch(pa.RecordBatch.from_pylist(batch, SCHEMA))


class Replayer(_TargetModel):
    """Answers requests from a run's outputs only."""

    def __init__(
        self,
        run: str,
        target: str,
        model: str = "run",
        trust_remote_code: bool = False,
        chat_template: str | None = None,
        **_: Any,
    ) -> None:
        """run: output folder of a run on a recording. model: name of the model in lm-eval's results."""
        super().__init__(target, trust_remote_code, chat_template)
        self._run, self._name = run, model

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Returns the run's texts for the requests, in order. Raises OutputError for missing or failed rows."""
        names = self._names("generate_until", requests)
        answers = self._answers(set(names))
        self._check_prompts(names, requests, answers)
        return [str(answers[name]["generated_text"]) for name in names]

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Returns the run's log-probabilities, in order. Raises OutputError for missing or failed rows."""
        names = self._names(LOGLIKELIHOOD, requests)
        answers = self._answers(set(names))
        self._check_prompts(names, requests, answers)
        scores = [_only_score(answers[name]) for name in names]
        return [(score.logprob, score.is_greedy) for score in scores]

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """Returns the sums over the windows of each text, in order. Raises OutputError for missing or failed rows."""
        names = self._names(ROLLING, requests)
        texts = set(names)
        answers = self._answers(texts, of_windows=True)
        windows = windows_by_text(answers)
        missing = [
            name
            for name, request in zip(names, requests, strict=True)
            if name not in windows and self.tokenizer(*request.args, verbose=False)["input_ids"]
        ]
        self._require_none_missing(missing, len(names))
        return [
            math.fsum(_only_score(answers[part]).logprob for part in rolling_ids(name, windows.get(name, ())))
            for name in names
        ]

    @staticmethod
    def _names(kind: str, requests: Sequence[Any]) -> list[str]:
        """Returns the ids of requests, in order."""
        ids = RequestIds()
        return [ids.next(kind, *request.args) for request in requests]

    def _check_prompts(
        self, names: Sequence[str], requests: Sequence[Any], answers: Mapping[str, Mapping[str, Any]]
    ) -> None:
        """Raises OutputError for requests without an answer, or whose row has another prompt."""
        self._require_none_missing([name for name in names if name not in answers], len(names))
        for name, request in zip(names, requests, strict=True):
            if answers[name]["prompt"] != request.args[0]:
                raise OutputError(
                    f"{self._run}: request {name} has another prompt in the run; expected a job that does not "
                    "change the recording's prompts (no data.prompt, no data.system_prompt)"
                )

    def _require_none_missing(self, missing: Sequence[str], total: int) -> None:
        if missing:
            raise OutputError(
                f"{self._run} has no output for {len(missing):,} of {total:,} requests (the first is "
                f"{missing[0]}); expected a complete run on the recording of the same flags, without a data.limit "
                "below the evaluation's"
            )

    def _answers(self, wanted: set[str], *, of_windows: bool = False) -> dict[str, dict[str, Any]]:
        """Returns output rows by request id. of_windows: `wanted` are texts, whose windows are returned.

        Raises OutputError if one of them failed.
        """
        answers, failed = {}, []
        for row in RunOutputs.open(self._run).records(_COLUMNS):
            name = row["request_id"]
            if (name.rpartition(":")[0] if of_windows else name) in wanted:
                answers[name] = row
                if row["finish_reason"] == "error":
                    failed.append((name, row["error"]))
        if failed:
            raise OutputError(
                f"{self._run}: {len(failed):,} of the requests failed (the first, {failed[0][0]}: {failed[0][1]}); "
                "expected an answer to every request, because a score without them would not be comparable"
            )
        return answers


def _only_score(row: Mapping[str, Any]) -> RecordedScore:
    """Returns the score of an output row with one continuation."""
    (score,) = row["scores"]
    return RecordedScore(score["logprob"], score["is_greedy"])
