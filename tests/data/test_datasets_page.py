"""The table of examples in docs/datasets.md, line by line, in every suitable file format."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from support.byte_encoder import ByteEncoder

from specpipe.core import Completion, Request, SamplingParams, Shard
from specpipe.data import RequestBuilder, list_files, plan_shards, read_rows
from specpipe.data.conversion.chat_records import ROLES

PAGE = (Path(__file__).parents[2] / "docs" / "datasets.md").read_text(encoding="utf-8")


class Line(NamedTuple):
    """One row of the table."""

    what: str
    example: str
    bad: str
    error: str


def lines() -> list[Line]:
    table = PAGE.partition("| rows of | example |")[2].partition("\n\n")[0]
    cells = [[cell.strip().strip("`") for cell in row.strip("|").split(" | ")] for row in table.splitlines()[2:]]
    return [Line(*row) for row in cells]


def results(path: Path) -> Iterator[Request | Completion]:
    """Yields the requests and error rows of a file, as a worker builds them."""
    files = list_files(str(path))
    builder = RequestBuilder(
        encoder=ByteEncoder(), sampling=SamplingParams(), job_seed=0, max_model_len=1000, vocab_size=256
    )
    for shard in plan_shards(files, shard_tokens=10_000, max_new_tokens=9, workers=1):
        assert isinstance(shard, Shard)
        for row in read_rows(files[0], shard.start, shard.stop, builder.columns):
            yield builder.build(row, shard)


def write(path: Path, texts: Sequence[str]) -> Path:
    if path.suffix == ".jsonl":
        path.write_text("\n".join(texts), encoding="utf-8")
        return path
    table = pa.Table.from_pylist([json.loads(text) for text in texts])
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    else:
        pyarrow.feather.write_feather(table, str(path))
    return path


def test_the_table_has_all_examples() -> None:
    assert len(lines()) == 13


def named(line: Line) -> str:
    return f"{line.what}: {line.bad[:30]}"


@pytest.mark.parametrize("line", lines(), ids=named)
def test_an_example_in_json_lines_leaves_other_rows_alone(tmp_path: Path, line: Line) -> None:
    before, bad, after = results(write(tmp_path / "rows.jsonl", [line.example, line.bad, line.example]))
    require(line, before, bad)
    require(line, after, bad)


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
@pytest.mark.parametrize("line", [line for line in lines() if not line.what.startswith("JSON lines")], ids=named)
def test_an_example_in_parquet_and_arrow(tmp_path: Path, line: Line, suffix: str) -> None:
    (good,) = results(write(tmp_path / f"good{suffix}", [line.example]))
    (bad,) = results(write(tmp_path / f"bad{suffix}", [line.bad]))
    require(line, good, bad)


def require(line: Line, good: Request | Completion, bad: Request | Completion) -> None:
    assert isinstance(good, Request) and good.prompt_token_ids
    assert isinstance(bad, Completion) and line.error in bad.error
    assert ", row " in bad.error


def test_documented_roles_are_those_of_the_converter() -> None:
    row = next(line for line in PAGE.splitlines() if line.startswith("| speakers → roles"))
    mapping = row.split("|")[2]
    documented = {
        speaker.strip(): role.strip()
        for group in mapping.split(";")
        for role in [group.split("→")[1]]
        for speaker in group.split("→")[0].split(",")
    }
    assert documented == dict(ROLES)
