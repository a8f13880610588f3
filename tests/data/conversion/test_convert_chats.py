"""Conversion of chat files: streamed, with every role mapped or counted, published atomically."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specpipe.data import kept_schema, list_files, require_prompt_column
from specpipe.data.conversion.chat_records import ROLES
from specpipe.data.conversion.convert_chats import ConvertReport, convert_chats
from specpipe.data.locations import locate
from specpipe.errors import DataError, JobError

SOURCE, OUT = "chats.json", "chats.parquet"


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def sharegpt(*pairs: tuple[str, object], **more: object) -> dict[str, object]:
    return {"conversations": [{"from": who, "value": value} for who, value in pairs], **more}


def openai(*pairs: tuple[str, object], **more: object) -> dict[str, object]:
    return {"messages": [{"role": who, "content": content} for who, content in pairs], **more}


def convert(records: object, **options: object) -> tuple[ConvertReport, list[dict[str, object]]]:
    Path(SOURCE).write_text(json.dumps(records), encoding="utf-8")
    report = convert_chats(SOURCE, OUT, **options)  # type: ignore[arg-type]
    return report, pq.read_table(OUT).to_pylist()


def said(row: dict[str, object]) -> list[tuple[str, str]]:
    return [(turn["role"], turn["content"]) for turn in row["messages"]]  # type: ignore[attr-defined]


TOOLS = sharegpt(("system", "s"), ("human", "a"), ("function_call", "{}"), ("observation", "[1]"), ("gpt", "b"), id=7)


def test_a_conversation_becomes_first_user_turn_and_answer() -> None:
    report, (row, other) = convert([TOOLS, sharegpt(("human", "x"), ("bard", "y"))])
    assert (row["id"], said(row), row["answer"]) == ("7", [("system", "s"), ("user", "a")], "{}")
    assert (other["id"], said(other), other["answer"]) == (None, [("user", "x")], "y")
    assert report.turns[("observation", "tool")] == report.turns[("bard", "assistant")] == 1
    assert (report.records, report.written, report.skipped) == (2, 2, {})


def test_the_prompt_of_messages_ends_before_the_last_answer() -> None:
    chats = [openai(("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")), openai(("user", "open"))]
    _, (closed, unanswered) = convert(chats)
    assert said(closed) == [("user", "a"), ("assistant", "b"), ("user", "c")] and closed["answer"] == "d"
    assert said(unanswered) == [("user", "open")] and unanswered["answer"] is None


def test_the_user_chooses_which_turns_are_the_prompt() -> None:
    _, (row,) = convert([TOOLS], take="all")
    assert [role for role, _ in said(row)] == ["system", "user", "assistant", "tool"] and row["answer"] == "b"
    _, (row,) = convert([openai(("user", "a"), ("assistant", "b"))] * 1, take="first", overwrite=True)
    assert said(row) == [("user", "a")]


@pytest.mark.parametrize(("speaker", "role"), ROLES.items())
def test_every_name_of_a_speaker_is_mapped(speaker: str, role: str) -> None:
    report, (row,) = convert([sharegpt((speaker, "1"), ("human", "2"), ("gpt", "3"))], take="all")
    assert said(row)[0] == (role, "1") and report.turns[(speaker, role)] >= 1


def test_lists_text_parts_json_text_and_system_keys_are_read() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": 1.5}}]}
    records = [
        [{"role": "user", "content": parts}],
        {"conversations": json.dumps(sharegpt(("human", "c"), ("gpt", "d"))["conversations"]), "system": "be kind"},
        {"messages": [{"role": "user", "content": "e"}, call, {"role": "tool", "content": "f"}]},
    ]
    report, rows = convert(records)
    assert [said(row) for row in rows[:2]] == [[("user", "ab")], [("system", "be kind"), ("user", "c")]]
    assert said(rows[2])[1] == ("assistant", '[{"function": {"name": "f", "arguments": 1.5}}]')
    assert report.turns[("assistant (tool_calls)", "assistant")] == 1


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (sharegpt(("gpt", "a"), ("human", "b"), ("gpt", "c")), "begins with gpt"),
        (sharegpt(("human", "a")), "nothing after the first user turn"),
        (sharegpt(("system", "a"), ("gpt", "b")), "begins with gpt"),
        (sharegpt(("narrator", "a"), ("human", "b"), ("gpt", "c")), "begins with narrator"),
        (openai(("user", "a"), ("narrator", "b")), "a turn by narrator, which has no known role"),
        (openai(("user", ""), ("assistant", "b")), "an empty turn by user"),
        (openai(("user", [{"type": "image_url"}])), "a turn by user that is not text"),
        (openai(("assistant", "b")), "no user turn"),
        (sharegpt(), "no turns"),
        ({"conversations": "[{"}, "turns in text that is not JSON"),
        ({"conversations": [1]}, "no list of turns"),
        ({"prompt": "a"}, "neither conversations nor messages"),
        (12, "no list of turns"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_records_without_a_prompt_are_skipped_by_reason(record: object, reason: str) -> None:
    report, rows = convert([record, TOOLS, record])
    assert len(rows) == report.written == 1
    assert report.skipped == {reason: 2}


def test_keys_are_kept_as_text_or_counted_as_left_out() -> None:
    records = [{**TOOLS, "category": "math", "score": 0.5, "tags": ["a"]}, {**TOOLS, "category": None}]
    report, rows = convert(records, keep=["category", "tags"])
    assert [(row["category"], row["tags"]) for row in rows] == [("math", '["a"]'), (None, None)]
    assert report.left_out == {"score": 1}


def test_converted_answers_can_be_kept_as_a_column() -> None:
    convert([TOOLS])
    files = list_files(OUT)
    require_prompt_column(files)
    assert kept_schema(files, ["answer"]).field("answer").type == pa.string()


def test_json_lines_are_converted_and_bad_lines_skipped() -> None:
    Path(SOURCE).write_text(f"{json.dumps(TOOLS)}\n{{broken\n{json.dumps(TOOLS)}\n", encoding="utf-8")
    report = convert_chats(SOURCE, OUT)
    assert (report.written, report.skipped) == (2, {"a line that is not a JSON object": 1})


def test_white_space_and_byte_order_mark_before_an_array_are_skipped() -> None:
    Path(SOURCE).write_bytes(b"\xef\xbb\xbf" + b" \n" * (600 << 10) + json.dumps([TOOLS]).encode())
    assert convert_chats(SOURCE, OUT).written == 1


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (json.dumps([TOOLS, TOOLS])[:-20].encode(), "is not JSON after 1 records"),
        (json.dumps([TOOLS]).encode() + b"x", "is not JSON after 1 records"),
        (b'[{"conversations": "\xff"}]', "is not JSON after 0 records"),
        (b"[NaN]", "is not JSON after 0 records"),
        (b"[]", "contains no chat with a prompt (0 records)"),
        (b"", "contains no chat with a prompt (0 records)"),
        (b'[{"prompt": "a"}]', "(1 records; neither conversations nor messages: 1)"),
    ],
)
def test_files_that_are_broken_or_have_no_chats_write_nothing(data: bytes, reason: str) -> None:
    Path(SOURCE).write_bytes(data)
    with pytest.raises(DataError) as caught:
        convert_chats(SOURCE, OUT)
    assert reason in str(caught.value)
    assert os.listdir() == [SOURCE]


def test_what_is_there_is_not_overwritten_unless_asked_for() -> None:
    convert([TOOLS])
    with pytest.raises(JobError, match="already exists; expected another --out, or --overwrite"):
        convert([TOOLS])
    assert convert([TOOLS] * 3, overwrite=True)[0].written == 3
    with pytest.raises(JobError, match="is the input file"):
        convert_chats(SOURCE, SOURCE, overwrite=True)
    with pytest.raises(JobError, match="--keep answer"):
        convert([TOOLS], keep=["answer"], overwrite=True)
    with pytest.raises(DataError, match="is not a file"):
        convert_chats("missing.json", "b.parquet")


def test_an_object_store_gets_the_whole_file_or_none() -> None:
    out = "mock:///sets/chats.parquet"
    store = locate(out).filesystem
    store.create_dir("sets")
    Path(SOURCE).write_text("[{}", encoding="utf-8")
    with pytest.raises(DataError):
        convert_chats(SOURCE, out)
    assert store.get_file_info(pa.fs.FileSelector("sets")) == []
    Path(SOURCE).write_text(json.dumps([TOOLS]), encoding="utf-8")
    assert convert_chats(SOURCE, out).written == 1
    assert list_files(out)[0].rows == 1


_text = st.text(max_size=5) | st.sampled_from(["human", "gpt", "system", "user", "\ud800", "[{}]"])
_keys = st.sampled_from(["conversations", "messages", "from", "value", "role", "content", "id", "system", "tool_calls"])
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_keys, inner, max_size=4),
    max_leaves=12,
)
_turns = st.lists(st.dictionaries(_keys, _text | _json, max_size=3), max_size=4)
_records = st.lists(_json | st.fixed_dictionaries({"conversations": _turns}) | _turns, max_size=4)


@settings(max_examples=40, deadline=None)
@given(records=_records, take=st.sampled_from([None, "first", "all"]))
def test_any_record_is_written_or_counted(records: list[object], take: str | None) -> None:
    report, rows = convert([TOOLS, *records], take=take, keep=["system", "id2"], overwrite=True)
    assert report.records == len(records) + 1 == report.written + sum(report.skipped.values())
    assert len(rows) == report.written and all(said(row) for row in rows)


_CONVERT = """
import sys
from specpipe.data.conversion.convert_chats import convert_chats
from support.peak_memory import peak_mib
warm = convert_chats(sys.argv[1], "warm.parquet", take="all")
before = peak_mib()
report = convert_chats(sys.argv[2], "big.parquet", take="all")
print(report.written, peak_mib() - before)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file() -> None:
    record = json.dumps(sharegpt(("human", "long words " * 500), ("gpt", "y" * 5000), ("human", "z"), ("gpt", "x")))
    for name, count in (("small.json", 5_000), ("big.json", 50_000)):
        with open(name, "w") as file:
            file.write("[" + record)
            file.writelines(f",\n{record}" for _ in range(count - 1))
            file.write("]")
    done = subprocess.run(
        [sys.executable, "-c", _CONVERT, "small.json", "big.json"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, capture_output=True, text=True, timeout=250,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    written, grown_mib = map(int, done.stdout.split())
    assert written == 50_000 and os.path.getsize("big.json") > 500 << 20
    assert grown_mib < 60
