"""Rows in, outputs out: formats, shards, requests and parts. Imports core, errors and pyarrow; never torch."""

from specpipe.data.files import InputFile, list_files, require_unchanged
from specpipe.data.output import output_schema, sums_of, to_table
from specpipe.data.part import PartFooter, publish_part, read_part_footer
from specpipe.data.planner import plan_shards
from specpipe.data.preflight import kept_schema, require_prompt
from specpipe.data.publish import publish_bytes
from specpipe.data.requests import PromptEncoder, RequestBuilder, expected_identity, input_columns, row_seed
from specpipe.data.rows import Row, RowHasher, hash_rows, read_kept, read_rows
from specpipe.data.samples import repeat_rows, samples_of

__all__ = [
    "InputFile",
    "PartFooter",
    "PromptEncoder",
    "RequestBuilder",
    "Row",
    "RowHasher",
    "expected_identity",
    "hash_rows",
    "input_columns",
    "kept_schema",
    "list_files",
    "output_schema",
    "plan_shards",
    "publish_bytes",
    "publish_part",
    "read_kept",
    "read_part_footer",
    "read_rows",
    "repeat_rows",
    "require_prompt",
    "require_unchanged",
    "row_seed",
    "samples_of",
    "sums_of",
    "to_table",
]
