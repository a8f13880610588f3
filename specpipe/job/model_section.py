"""The section `model` of a job file. The text under each field is its reference (docs/jobs.md)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from specpipe.core import DeviceChoice, DtypeChoice, KVDtypeChoice, QuantizeChoice
from specpipe.job.field_types import Int, Keywords, Text, Tuning
from specpipe.job.job_section import JobSection


class ModelSection(JobSection):
    """The pair of models: a target, which defines the distribution of the outputs, and a smaller draft."""

    target: Text
    """Target model: a Hugging Face name, a local folder, or `builtin:tiny`."""
    draft: Text | None = None
    """Draft model, with the target's vocabulary. Required for `proposer: draft`."""
    device: Tuning[DeviceChoice] = "auto"
    """`auto` is CUDA where there is a GPU."""
    dtype: DtypeChoice = "auto"
    """dtype of weights and activations. `auto` is bfloat16 on CUDA and float32 on a CPU."""
    quantize: QuantizeChoice = "none"
    """`fp8` rounds the target's linear layers to 8 bits at load (docs/quantisation.md); a GPU needs compute capability
    8.9."""
    quantize_draft: Tuning[QuantizeChoice] = "none"
    """The same for the draft; outputs stay exact."""
    kv_dtype: KVDtypeChoice = "auto"
    """`fp8` stores keys and values in 8 bits: twice the rows in the same memory (docs/quantisation.md); a GPU needs
    compute capability 8.9."""
    max_model_len: Annotated[Int, Field(ge=2)] | None = None
    """Maximum prompt + output, in tokens; by default the target's context length. Longer prompts become error rows.
    Outputs that reach it end with `finish_reason: length`."""
    trust_remote_code: bool = False
    """Run Python code that comes with a model. Only for sources that you trust."""
    allow_pickle: bool = False
    """Read pickles (`pytorch_model*.bin`) of a model without safetensors. Only for sources that you trust."""
    chat_template: Text | None = None
    """File with a Jinja chat template, in place of the tokenizer's own."""
    chat_template_kwargs: Keywords = ()
    """Keyword arguments of the chat template, such as `{enable_thinking: false}`."""
