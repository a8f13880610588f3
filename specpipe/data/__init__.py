"""Datasets and outputs: input formats, shards, requests and output parts.

Folders: `reading` (files to rows), `requests` (rows to requests), `parts` (completions to output files), `conversion`
(chat files to a dataset). Begin with `reading/input_files` and `requests/request_builder`. Imported by pipeline,
evaluation, api and cli. Imports core, errors, pyarrow and ijson; never torch.
"""

from specpipe.data.parts.output_table import output_schema, output_totals, to_table, with_added_columns
from specpipe.data.parts.part_file import PartFooter, publish_part, read_part_footer
from specpipe.data.publish import publish_bytes
from specpipe.data.reading.column_checks import kept_schema, require_prompt_column
from specpipe.data.reading.dataset_rows import Row, RowHasher, hash_rows, read_kept_columns, read_rows
from specpipe.data.reading.input_files import InputFile, list_files, require_unchanged
from specpipe.data.requests.request_builder import (
    EncoderProtocol,
    RequestBuilder,
    expected_identity,
    input_columns,
    row_seed,
)
from specpipe.data.requests.row_samples import expand_samples, repeat_rows
from specpipe.data.shard_planner import plan_shards
from specpipe.data.shared_prompts import Blocks, shared_blocks

__all__ = [
    "Blocks",
    "EncoderProtocol",
    "InputFile",
    "PartFooter",
    "RequestBuilder",
    "Row",
    "RowHasher",
    "expand_samples",
    "expected_identity",
    "hash_rows",
    "input_columns",
    "kept_schema",
    "list_files",
    "output_schema",
    "output_totals",
    "plan_shards",
    "publish_bytes",
    "publish_part",
    "read_kept_columns",
    "read_part_footer",
    "read_rows",
    "repeat_rows",
    "require_prompt_column",
    "require_unchanged",
    "row_seed",
    "shared_blocks",
    "to_table",
    "with_added_columns",
]
