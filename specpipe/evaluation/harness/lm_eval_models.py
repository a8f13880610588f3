"""Models for lm-eval: RequestRecorder writes requests to a file, Replayer answers them from a run's outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.parquet as pq
from lm_eval.api.model import LM, TemplateLM
from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs, resolve_max_length

from specpipe.data.publish import publish_file
from specpipe.errors import JobError, OutputError
from specpipe.evaluation.harness.recorded_requests import SCHEMA, PromptCutter, RequestIds, request_rows
from specpipe.evaluation.run_outputs import RunOutputs
from specpipe.models.loader import load_config
from specpipe.models.source import resolve
from specpipe.models.tokenizer import load_tokenizer

_BATCH_ROWS = 2048


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

    def loglikelihood(self, requests: list[Any]) -> NoReturn:
        """Raises JobError: such tasks generate nothing."""
        self._refuse(requests, "loglikelihood")

    def loglikelihood_rolling(self, requests: list[Any]) -> NoReturn:
        """Raises JobError: such tasks generate nothing."""
        self._refuse(requests, "loglikelihood_rolling")

    def _refuse(self, requests: list[Any], kind: str) -> NoReturn:
        tasks = ", ".join(sorted({str(request.task_name) for request in requests})[:5])
        raise JobError(
            f"{tasks}: these tasks score given texts ({kind}) without generating, so speculation cannot affect "
            "them; expected tasks of output_type generate_until"
        )


class RequestRecorder(_TargetModel):
    """Writes every request to a Parquet file, in lm-eval's order, and returns empty answers."""

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
        """path: the file to write. max_length: longest prompt + output in tokens; None for the target's own."""
        super().__init__(target, trust_remote_code, chat_template)
        self._path, self._add_bos_token = path, add_bos_token
        self._max_length = max_length or resolve_max_length(
            load_config(self._source, trust_remote_code=trust_remote_code), self.tokenizer
        )

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Writes the requests to the file. Returns an empty answer for each. Raises JobError as request_rows does."""
        cutter = PromptCutter(tokenizer=self.tokenizer, max_length=self._max_length, add_bos_token=self._add_bos_token)
        batch: list[dict[str, object]] = []
        with publish_file(self._path) as path, pq.ParquetWriter(path, SCHEMA, compression="zstd") as writer:
            for row in request_rows(requests, cutter, normalize_gen_kwargs, handle_stop_sequences):
                batch.append(row)
                if len(batch) == _BATCH_ROWS:
                    writer.write_batch(pa.RecordBatch.from_pylist(batch, SCHEMA))
                    batch = []
            writer.write_batch(pa.RecordBatch.from_pylist(batch, SCHEMA))
        return [""] * len(requests)


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
        ids = RequestIds()
        keys = [(ids.next(*request.args), request.args[0]) for request in requests]
        answers = self._answers({request_id for request_id, _ in keys})
        if missing := [request_id for request_id, _ in keys if request_id not in answers]:
            raise OutputError(
                f"{self._run} has no output for {len(missing):,} of {len(keys):,} requests (the first is "
                f"{missing[0]}); expected a complete run on the recording of the same flags, without a data.limit "
                "below the evaluation's"
            )
        for request_id, context in keys:
            if answers[request_id][0] != context:
                raise OutputError(
                    f"{self._run}: request {request_id} has another prompt in the run; expected a job that does not "
                    "change the recording's prompts (no data.prompt, no data.system_prompt)"
                )
        return [answers[request_id][1] for request_id, _ in keys]

    def _answers(self, wanted: set[str]) -> dict[str, tuple[str, str]]:
        """Returns {request id: (prompt, text)} for `wanted`. Raises OutputError if one of them failed."""
        answers, failed = {}, []
        outputs = RunOutputs.open(self._run)
        for batch in outputs.batches(["request_id", "prompt", "generated_text", "finish_reason", "error"]):
            for request_id, prompt, text, reason, error in zip(*(c.to_pylist() for c in batch.columns), strict=True):
                if request_id in wanted:
                    answers[request_id] = (prompt, text)
                    if reason == "error":
                        failed.append((request_id, error))
        if failed:
            raise OutputError(
                f"{self._run}: {len(failed):,} of the requests failed (the first, {failed[0][0]}: {failed[0][1]}); "
                "expected an answer to every request, because a score without them would not be comparable"
            )
        return answers
