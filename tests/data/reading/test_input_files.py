"""Input files: equal rows in every format and range, and errors for unreadable ones."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from support.arrow_tables import write_table

from specpipe.data import (
    InputFile,
    hash_rows,
    kept_schema,
    list_files,
    read_kept_columns,
    read_rows,
    require_prompt_column,
)
from specpipe.data.locations import locate
from specpipe.data.reading.jsonl import STRIDE
from specpipe.errors import DataError

ROWS = 2 * STRIDE + 37


def conversation(i: int) -> dict[str, object]:
    turns = [{"from": "human", "value": f"question {i}"}, {"from": "gpt", "value": f"answer {i}"}]
    return {"id": f"r{i}", "conversations": turns, "weight": i / 3}


@pytest.fixture(scope="module")
def rows() -> list[dict[str, object]]:
    return [conversation(i) for i in range(ROWS)]


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    table = pa.Table.from_pylist(rows)
    if path.name == "rows.parquet":
        pq.write_table(table, path, row_group_size=501)
    elif path.name == "file.arrow":
        pyarrow.feather.write_feather(table, str(path), chunksize=333)
    elif path.name == "stream.arrow":
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=333)
    else:
        lines = (json.dumps(row) + ("\r\n\n" if i % 5 == 0 else "\n") for i, row in enumerate(rows))
        path.write_text("\n" + "".join(lines), encoding="utf-8")
    return path


FILES = ["rows.parquet", "file.arrow", "stream.arrow", "rows.jsonl"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, object]]) -> dict[str, InputFile]:
    folder = tmp_path_factory.mktemp("formats")
    return {name: list_files(str(write(folder / name, rows)))[0] for name in FILES}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    ("start", "stop"), [(0, 1), (0, ROWS), (499, 503), (STRIDE - 1, STRIDE + 1), (1000, 1700), (ROWS - 1, ROWS), (7, 7)]
)
def test_a_range_gives_exactly_its_rows(
    files: dict[str, InputFile], rows: list[dict[str, object]], name: str, start: int, stop: int
) -> None:
    assert files[name].rows == ROWS
    got = list(read_rows(files[name], start, stop))
    assert [row.index_in_file for row in got] == list(range(start, stop))
    assert [row.values for row in got] == rows[start:stop]


def test_the_hash_depends_on_rows_and_not_on_format(files: dict[str, InputFile]) -> None:
    hashes = {hash_rows(read_rows(file, 100, 900)) for file in files.values()}
    assert len(hashes) == 1
    assert hash_rows(read_rows(files["rows.jsonl"], 101, 901)) not in hashes


@pytest.mark.parametrize("name", FILES)
def test_only_the_wanted_columns_are_read(files: dict[str, InputFile], name: str) -> None:
    (row,) = read_rows(files[name], 5, 6, ["id", "absent"])
    assert row.values == {"id": "r5"}
    assert [row.values for row in read_rows(files[name], 5, 8, ["absent"])] == [{}, {}, {}]


@pytest.mark.parametrize("name", FILES)
def test_kept_columns_come_with_their_type_or_as_text(files: dict[str, InputFile], name: str) -> None:
    schema = kept_schema([files[name]], ["weight", "id"])
    table = read_kept_columns(files[name], 900, 1300, schema)
    assert table.schema == schema and table.num_rows == 400
    expected = pa.string() if name == "rows.jsonl" else pa.float64()
    assert schema.field("weight").type == expected
    assert table["id"][3].as_py() == "r903"
    assert float(table["weight"][3].as_py()) == 301.0


def test_kept_columns_may_have_types_that_python_lacks(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    stamps = pa.array([1, 2**40 + 1, None], pa.timestamp("ns"))
    pq.write_table(pa.table({"prompt": ["a", "b", "c"], "at": stamps}), path)
    files = list_files(str(path))
    assert read_kept_columns(files[0], 1, 3, kept_schema(files, ["at"]))["at"].combine_chunks() == stamps.slice(1)


def test_text_that_is_not_utf8_costs_its_own_row(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    broken = pa.StringArray.from_buffers(2, pa.py_buffer(b"\0\0\0\0\x02\0\0\0\x04\0\0\0"), pa.py_buffer(b"ok\xff\xfe"))
    pq.write_table(pa.table({"prompt": broken}), path)
    good, bad = read_rows(list_files(str(path))[0], 0, 2)
    assert good.values == {"prompt": "ok"}
    assert bad.values is None and "utf-8" in bad.error


def test_folder_glob_and_uri_list_the_same_files(tmp_path: Path) -> None:
    for name in ("b/2.jsonl", "a/1.jsonl", "a/_tmp.jsonl", ".hidden/3.jsonl", "a/readme.txt", "a/state.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('{"prompt": "x"}\n')
    expected = [str(tmp_path / "a/1.jsonl"), str(tmp_path / "b/2.jsonl")]
    assert [file.path for file in list_files(str(tmp_path))] == expected
    assert [file.path for file in list_files(f"{tmp_path}/*/[0-9].json?")] == expected
    assert [file.path for file in list_files(f"{tmp_path}/**/*.jsonl")] == expected
    assert [file.path for file in list_files(f"{tmp_path}/a/1.jsonl")] == expected[:1]
    assert [file.path for file in list_files(f"{tmp_path}/[!b]/?.jsonl")] == expected[:1]
    uris = [file.path for file in list_files(f"file://{tmp_path}/**")]
    assert uris == [f"file://{path}" for path in expected]
    assert [locate(uri).path for uri in uris] == expected
    with pytest.raises(DataError, match="matches no file"):
        list_files(f"{tmp_path}/*.jsonl")


@pytest.mark.parametrize("name", FILES)
def test_an_object_store_gives_the_same_rows_by_uri(
    files: dict[str, InputFile], rows: list[dict[str, object]], name: str
) -> None:
    folder = f"mock:///store/{name.replace('.', '-')}"
    location = locate(f"{folder}/{name}")
    location.filesystem.create_dir(locate(folder).path, recursive=True)
    with location.filesystem.open_output_stream(location.path) as stream:
        stream.write(Path(files[name].path).read_bytes())
    (stored,) = list_files(folder)
    assert (stored.path, stored.rows) == (f"{folder}/{name}", ROWS)
    assert [row.values for row in read_rows(stored, 1000, 1100)] == rows[1000:1100]
    schema = kept_schema([stored], ["weight"])
    assert read_kept_columns(stored, 1000, 1100, schema) == read_kept_columns(files[name], 1000, 1100, schema)


def test_a_name_with_wildcard_characters_is_found_as_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "run [1] 100%.jsonl"
    path.write_text('{"prompt": "x"}\n')
    assert list_files(str(path))[0].rows == 1
    (by_uri,) = list_files(f"file://{tmp_path}/*")
    assert next(read_rows(by_uri, 0, 1)).values == {"prompt": "x"}


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("rows.jsonl.gz", "gunzip --keep "),
        ("rows.jsonl.zst", "zstd --decompress "),
        ("rows.csv", "c.read_csv('"),
        ("rows.tsv", "ParseOptions(delimiter="),
        ("rows.zip", "unzip "),
    ],
)
def test_formats_that_are_not_read_are_refused_with_a_command(tmp_path: Path, name: str, command: str) -> None:
    (tmp_path / name).write_bytes(b"")
    for path in (tmp_path / name, tmp_path, tmp_path / "rows*"):
        with pytest.raises(DataError, match=r"in a format that is not read.*Convert it with") as caught:
            list_files(str(path))
        assert command in str(caught.value) and str(tmp_path / name) in str(caught.value)
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a"}\n')
    assert len(list_files(str(tmp_path))) == 1  # in a folder they may be copies
    with pytest.raises(DataError, match="is in a format that is not read"):
        list_files(str(tmp_path / "rows*"))


def test_a_folder_of_save_to_disk_is_read_without_its_cache(tmp_path: Path, rows: list[dict[str, object]]) -> None:
    write(tmp_path / "stream.arrow", rows[:9]).rename(tmp_path / "data-00000-of-00001.arrow")
    (tmp_path / "cache-0123.arrow").write_bytes((tmp_path / "data-00000-of-00001.arrow").read_bytes())
    for name in ("state.json", "dataset_info.json"):
        (tmp_path / name).write_text("{}")
    assert [file.rows for file in list_files(str(tmp_path))] == [9]


def test_a_path_with_a_nul_is_refused() -> None:
    with pytest.raises(DataError, match="contains a NUL character"):
        locate("runs/a\0b")


def test_mixed_unknown_and_missing_files_say_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"prompt": "x"}\n')
    pq.write_table(pa.table({"prompt": ["x"]}), tmp_path / "a.parquet")
    (tmp_path / "a.txt").write_text("prompt\nx\n")
    with pytest.raises(DataError, match=r"jsonl and parquet files; choose one with data\.format"):
        list_files(str(tmp_path))
    assert [file.kind for file in list_files(str(tmp_path), "parquet")] == ["parquet"]
    with pytest.raises(DataError, match=r"set its format with data\.format"):
        list_files(str(tmp_path / "a.txt"))
    with pytest.raises(DataError, match="does not exist"):
        list_files(str(tmp_path / "b.jsonl"))
    (tmp_path / "b.parquet").write_bytes(b"PAR1 but not really")
    with pytest.raises(DataError, match="cannot be read as parquet"):
        list_files(str(tmp_path / "b.parquet"))


@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
def test_a_json_array_is_refused_with_what_to_do(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text('\n\ufeff [{"id": "1",\n "conversations": []}]', encoding="utf-8")
    with pytest.raises(DataError, match=r"one JSON array.*jq -c"):
        list_files(str(tmp_path / name))
    with pytest.raises(DataError, match=r"one JSON array.*jq -c"):
        list_files(str(tmp_path), "sharegpt")


def test_json_lines_may_be_called_json(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"prompt": "x"}\n{"prompt": "y"}')
    assert list_files(str(tmp_path / "a.json"))[0].rows == 2


def test_a_password_in_a_uri_is_refused_and_not_repeated() -> None:
    with pytest.raises(DataError, match="contains a password") as caught:
        locate("s3://key:s3cret@bucket/folder")
    assert "s3cret" not in str(caught.value)


def test_an_unknown_scheme_names_the_known_ones() -> None:
    with pytest.raises(DataError, match=r"nosuch://bucket/ cannot be opened: .* Expected file://, s3://"):
        locate("nosuch://bucket/folder")


def test_an_empty_file_has_no_rows(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"\n \n")
    (file,) = list_files(str(tmp_path))
    assert (file.rows, list(read_rows(file, 0, 0))) == (0, [])
    with pytest.raises(ValueError, match="rows 0 to 1"):
        next(read_rows(file, 0, 1))


def test_a_dataset_without_a_prompt_column_is_refused_at_once(tmp_path: Path) -> None:
    pq.write_table(pa.table({"question": ["x"], "extra": [1]}), tmp_path / "a.parquet")
    files = list_files(str(tmp_path))
    with pytest.raises(DataError, match="has the columns question, extra; expected one of body"):
        require_prompt_column(files)
    with pytest.raises(DataError, match=r"data\.prompt is 'qestion'.*did you mean question\?"):
        require_prompt_column(files, "qestion")
    require_prompt_column(files, "question")
    (tmp_path / "b.jsonl").write_text('not json\n{"question": "x"}\n')
    with pytest.raises(DataError, match="has the columns question; expected one of"):
        require_prompt_column(list_files(str(tmp_path / "b.jsonl")))


def test_kept_columns_must_be_there_and_of_one_type(tmp_path: Path) -> None:
    pq.write_table(pa.table({"prompt": ["x"], "n": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"prompt": ["x"], "n": ["1"]}), tmp_path / "b.parquet")
    files = list_files(str(tmp_path))
    with pytest.raises(DataError, match=r"names 'm', which .*a\.parquet lacks; it has the columns prompt, n"):
        kept_schema(files, ["m"])
    with pytest.raises(DataError, match=r"'n' is string in .*b\.parquet and int64"):
        kept_schema(files, ["n"])


def test_a_kept_column_missing_in_first_lines_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.jsonl").write_text('{"prompt": "x", "answer": 4}\n')
    (tmp_path / "b.jsonl").write_text('{"prompt": "y", "source": "z"}\n')
    files = list_files(str(tmp_path))
    assert kept_schema(files, ["answer", "source"]).names == ["answer", "source"]
    assert not caplog.messages
    assert kept_schema(files, ["sources"]).names == ["sources"]
    assert caplog.messages == [
        "output.keep_columns names 'sources', which no file has in its first 20 rows; did you mean source?"
    ]


def test_kept_columns_that_parquet_cannot_hold_are_named(tmp_path: Path) -> None:
    kinds = {
        "interval": pa.array([(1, 2, 3)], pa.month_day_nano_interval()),
        "nothing": pa.array([{}], pa.struct([])),
        "runs": pa.RunEndEncodedArray.from_arrays([1], ["x"]),
    }
    write_table(tmp_path / "a.arrow", pa.table({"prompt": ["x"], "fine": [1], **kinds}))
    files = list_files(str(tmp_path))
    assert kept_schema(files, ["fine"]).names == ["fine"]
    for name in kinds:
        with pytest.raises(DataError, match=rf"names '{name}', which is .*a\.arrow; outputs are Parquet, which"):
            kept_schema(files, ["fine", name])


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_a_column_that_is_there_twice_is_named(tmp_path: Path, kind: str) -> None:
    write_table(tmp_path / f"a.{kind}", pa.Table.from_arrays([pa.array(["x"])] * 5, ["k", "k", "m", "m", "prompt"]))
    files = list_files(str(tmp_path))
    require_prompt_column(files)  # nobody reads k and m
    with pytest.raises(DataError, match=r"has 2 columns called 'm'; expected one: rename the others"):
        require_prompt_column(files, "m")
    with pytest.raises(DataError, match=r"has 2 columns called 'k'"):
        kept_schema(files, ["k"])
