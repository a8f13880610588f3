"""Rows of a recording: lm-eval's generate_until requests, tokenised and truncated as its transformers backend does."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from specpipe.errors import JobError

SCHEMA = pa.schema(
    [
        pa.field("request_id", pa.string(), nullable=False),
        pa.field("prompt", pa.string(), nullable=False),
        pa.field("prompt_token_ids", pa.list_(pa.int32()), nullable=False),
        pa.field("task", pa.string(), nullable=False),
        pa.field("doc_id", pa.int64(), nullable=False),
        pa.field("continuations", pa.list_(pa.list_(pa.int32()))),
        pa.field("gen_kwargs", pa.string()),
        pa.field("temperature", pa.float64()),
        pa.field("top_p", pa.float64()),
        pa.field("top_k", pa.int64()),
        pa.field("min_p", pa.float64()),
        pa.field("repetition_penalty", pa.float64()),
        pa.field("max_tokens", pa.int64()),
        pa.field("stop", pa.list_(pa.string())),
        pa.field("stop_token_ids", pa.list_(pa.int64())),
        pa.field("ignore_eos", pa.bool_()),
    ]
)
"""Columns of a recording. Rows that generate set every sampling and stop parameter, so that a job's `sampling` changes
no score; rows with continuations have none (`score_rows`)."""
MAX_GEN_TOKS = 256  # default of lm-eval's transformers backend
_SUPPORTED = {"until", "do_sample", "max_gen_toks", "temperature", "top_p", "top_k", "min_p", "repetition_penalty"}
_NO_EFFECT: Mapping[str, tuple[object, ...]] = {
    "num_beams": (1,),
    "num_return_sequences": (1,),
    "use_cache": (True,),
}


def request_key(kind: str, *args: Any) -> str:
    """Returns 32 hexadecimal digits of the SHA-256 over a request's type and arguments."""
    text = json.dumps([kind, *args], sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


@dataclass(slots=True)
class RequestIds:
    """Request ids in lm-eval's order. A repeated request (`repeats`) gets the next number."""

    _seen: Counter[str] = field(default_factory=Counter)

    def next(self, kind: str, *args: Any) -> str:
        """Returns "key:occurrence", the occurrence counted from 0. kind, args: of lm-eval's Instance."""
        key = request_key(kind, *args)
        self._seen[key] += 1
        return f"{key}:{self._seen[key] - 1}"


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptCutter:
    """Encoder of prompts that matches lm-eval's transformers backend (HFLM.tok_batch_encode)."""

    tokenizer: Any
    max_length: int
    """Longest prompt + output in tokens."""
    add_bos_token: bool | None = None

    @property
    def eos(self) -> str | None:
        """Text of the end-of-sequence token, which that backend adds to all stop strings; None without one."""
        token_id = self.tokenizer.eos_token_id
        return None if token_id is None else str(self.tokenizer.decode(token_id, skip_special_tokens=False))

    def token_ids(self, context: str, max_gen_toks: int) -> list[int]:
        """Returns the last max_length - max_gen_toks tokens of the prompt. Raises JobError if that is not positive."""
        available = self.max_length - max_gen_toks
        if available < 1:
            raise JobError(
                f"a request has max_gen_toks {max_gen_toks}, but the model's length is {self.max_length}; expected "
                "fewer (--gen_kwargs max_gen_toks=…), or a larger --max-length"
            )
        special = {} if self.add_bos_token is None else {"add_special_tokens": self.add_bos_token}
        bos = self.tokenizer.bos_token
        if bos and context.startswith(bos):
            special = {"add_special_tokens": False}
        ids: list[int] = self.tokenizer(context, verbose=False, **special)["input_ids"]
        return ids[-available:]


def request_rows(
    requests: Iterable[Any], cutter: PromptCutter, normalise: Any, stops: Any
) -> Iterator[dict[str, object]]:
    """Yields a row of SCHEMA for each of lm-eval's Instances, in order.

    normalise, stops: normalize_gen_kwargs and handle_stop_sequences of lm_eval.models.utils. Raises JobError for
    requests with unsupported arguments.
    """
    ids, eos = RequestIds(), cutter.eos
    for request in requests:
        context, gen_kwargs = request.args
        arguments = normalise(gen_kwargs, MAX_GEN_TOKS)
        _check(request.task_name, arguments)
        yield {
            "request_id": ids.next("generate_until", context, gen_kwargs),
            "prompt": context,
            "prompt_token_ids": cutter.token_ids(context, arguments["max_gen_toks"]),
            "task": request.task_name,
            "doc_id": request.doc_id,
            "gen_kwargs": json.dumps(gen_kwargs, sort_keys=True, ensure_ascii=False, default=str),
            "temperature": float(arguments.get("temperature", 0.0)) if arguments["do_sample"] else 0.0,
            **{name: arguments.get(name) for name in ("top_p", "top_k", "min_p", "repetition_penalty")},
            "max_tokens": arguments["max_gen_toks"],
            "stop": [text for text in stops(list(arguments["until"]), eos=eos) if text],
            "stop_token_ids": [],
            "ignore_eos": False,
        }


def _check(task: str, arguments: Mapping[str, Any]) -> None:
    for name, value in arguments.items():
        if name not in _SUPPORTED and value is not None and value not in _NO_EFFECT.get(name, ()):
            raise JobError(
                f"task {task} sets {name}={value!r}, which specpipe does not support; remove it, or change it "
                "with --gen_kwargs"
            )
    if arguments["do_sample"] and not arguments.get("temperature"):
        raise JobError(
            f"task {task} sets do_sample without a temperature; expected one above 0 "
            "(--gen_kwargs do_sample=True,temperature=0.7), or do_sample=False"
        )
