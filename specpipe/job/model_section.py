"""The section `model` of a job file. The text under each field is its reference (docs/jobs.md)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from specpipe.core import DeviceChoice, DraftDtypeChoice, DtypeChoice
from specpipe.job.field_types import Int, Keywords, Text
from specpipe.job.job_section import JobSection


class ModelSection(JobSection):
    """The pair: a target, whose distribution the outputs follow, and a smaller draft that proposes tokens."""

    target: Text
    """Model whose text you want: a Hugging Face name, a local folder, or `builtin:tiny`."""
    draft: Text | None = None
    """Model that proposes tokens. It must share the target's vocabulary. Needed by `proposer: draft` alone."""
    device: DeviceChoice = "auto"
    """`auto` takes a CUDA device where there is one."""
    dtype: DtypeChoice = "auto"
    """Type of weights and activations. `auto` is bfloat16 on CUDA and float32 on a CPU."""
    draft_dtype: DraftDtypeChoice = "auto"
    """`fp8` rounds the draft's weights to 8 bits: acceptance about the same, outputs still the target's; measured
    slower than bf16 on an H200. Needs a GPU of compute capability 8.9. `auto` is dtype."""
    max_model_len: Annotated[Int, Field(ge=2)] | None = None
    """Longest prompt + output in tokens. Left out, it is what the target was made for. Longer prompts become error
    rows; outputs end with `finish_reason: length` where they reach it."""
    trust_remote_code: bool = False
    """Run Python code that comes with a model. Only for sources that you trust."""
    allow_pickle: bool = False
    """Read `pytorch_model*.bin` where a model has no safetensors. Such files are pickles: only from sources that you
    trust."""
    chat_template: Text | None = None
    """File with a Jinja chat template that replaces the tokenizer's own."""
    chat_template_kwargs: Keywords = ()
    """What the chat template is told beside the messages, such as `{enable_thinking: false}`."""
