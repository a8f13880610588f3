"""Tests of the index of earlier answers and of their look-up by prompt and identifier."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.byte_encoder import ByteEncoder

from specpipe.core import Completion, FinishReason, Request, SamplingParams
from specpipe.data import list_files, publish_part, to_table
from specpipe.data.answers import answer_index
from specpipe.data.answers.answer_files import AnswerFile
from specpipe.data.answers.answer_index import AnswerIndex, build_answer_index
from specpipe.data.answers.answer_keys import request_keys
from specpipe.data.answers.earlier_answers import EarlierAnswers


def request(name: str, prompt: str, row: int = 0, sample: int = 0) -> Request:
    return Request(
        request_id=name,
        shard=0,
        row=row,
        sample=sample,
        prompt=prompt,
        prompt_token_ids=tuple(prompt.encode()),
        sampling=SamplingParams(),
        seed=row,
    )


def write_part(path: Path, rows: list[tuple[str, str, int, list[int]]], failed: tuple[int, ...] = ()) -> Path:
    """A part of rows (identifier, prompt, sample, tokens)."""
    done = []
    for i, (name, prompt, sample, tokens) in enumerate(rows):
        error = "it failed" if i in failed else ""
        reason: FinishReason = "error" if error else "stop"
        made = request(name, prompt, i, sample)
        done.append(Completion(request=made, token_ids=tuple(tokens), finish_reason=reason, error=error))
    publish_part(str(path), to_table(done, len(done)), shard_hash="0", telemetry={})
    return path


def part(path: Path, source: int = 0) -> AnswerFile:
    (file,) = list_files(str(path))
    return AnswerFile(file=file, source=source, is_part=True)


def texts(path: Path, source: int = 0, **more: str) -> AnswerFile:
    (file,) = list_files(str(path))
    return AnswerFile(file=file, source=source, is_part=False, **more)


def answers(folder: Path, *files: AnswerFile, vocab_size: int = 1000, max_tokens: int = 100) -> EarlierAnswers:
    build_answer_index(files, str(folder / "index"))
    index = AnswerIndex.open(str(folder / "index"))
    return EarlierAnswers(index, ByteEncoder().encode_answer, vocab_size=vocab_size, max_tokens=max_tokens)


def find(found: EarlierAnswers, *requests: Request) -> list[tuple[int, ...]]:
    return found.find([request_keys(one, None, None) for one in requests])


def test_equal_prompt_comes_before_equal_identifier(tmp_path: Path) -> None:
    rows = [("0", "first", 0, [1]), ("1", "second", 0, [2, 2]), ("2", "third", 0, [3])]
    found = answers(tmp_path, part(write_part(tmp_path / "a.parquet", rows)))
    wanted = [request("9", "second"), request("0", "second"), request("2", "changed"), request("9", "unknown")]
    assert find(found, *wanted) == [(2, 2), (2, 2), (3,), ()]
    assert find(found) == []


def test_each_sample_follows_its_own_and_new_ones_the_first(tmp_path: Path) -> None:
    rows = [("0", "p", 0, [1]), ("0", "p", 1, [2]), ("1", "q", 0, [5])]
    found = answers(tmp_path, part(write_part(tmp_path / "a.parquet", rows)))
    assert find(found, *(request("0", "p", sample=i) for i in range(3))) == [(1,), (2,), (1,)]
    assert find(found, request("1", "changed", sample=4)) == [(5,)]


def test_repeated_prompts_are_told_apart_by_their_identifier(tmp_path: Path) -> None:
    rows = [(str(i), "same", 0, [i + 1]) for i in range(50)]
    found = answers(tmp_path, part(write_part(tmp_path / "a.parquet", rows)))
    assert find(found, *(request(str(i), "same") for i in range(50))) == [(i + 1,) for i in range(50)]
    assert len(find(found, request("another", "same"))[0]) == 1


def test_first_source_wins_whatever_its_identifiers(tmp_path: Path) -> None:
    new = part(write_part(tmp_path / "new.parquet", [("7", "p", 0, [1])]), source=0)
    old = part(write_part(tmp_path / "old.parquet", [("0", "p", 0, [2]), ("1", "only here", 0, [3])]), source=1)
    found = answers(tmp_path, new, old)
    assert find(found, request("0", "p"), request("0", "only here")) == [(1,), (3,)]


def test_failed_and_empty_rows_have_no_answer(tmp_path: Path) -> None:
    rows = [("0", "a", 0, [1, 2]), ("1", "b", 0, []), ("2", "c", 0, [3])]
    found = answers(tmp_path, part(write_part(tmp_path / "a.parquet", rows, failed=(0,))))
    assert find(found, request("0", "a"), request("1", "b"), request("2", "c")) == [(), (), (3,)]


def test_answers_end_at_foreign_tokens_and_at_the_limit(tmp_path: Path) -> None:
    rows = [("0", "a", 0, [1, 2, 1000, 3]), ("1", "b", 0, list(range(300)))]
    found = answers(tmp_path, part(write_part(tmp_path / "a.parquet", rows)), max_tokens=7)
    assert find(found, request("0", "a"), request("1", "b")) == [(1, 2), tuple(range(7))]


def test_datasets_of_texts_match_prompts_before_the_template(tmp_path: Path) -> None:
    lines = [
        {"prompt": "a", "answer": "text of a"},
        {"messages": [{"role": "user", "content": "b"}], "text": "of b"},
        {"id": "x", "prompt": "old", "response": "by name"},
        {"prompt": "c", "answer": ""},
        {"prompt": "d", "answer": 7},
        {"answer": "by position"},
    ]
    text = "\n".join(map(json.dumps, lines)) + '\n{"prompt": "e", "answer": "\\ud800"}\nno JSON\n'
    (tmp_path / "old.jsonl").write_text(text)
    found = answers(tmp_path, texts(tmp_path / "old.jsonl"))
    rows = [
        (request("0", "a"), {"prompt": "a"}),
        (request("1", "<user>b<end>"), {"messages": [{"role": "user", "content": "b"}]}),
        (request("x", "new"), {"prompt": "new"}),
        (request("3", "c"), {"prompt": "c"}),
        (request("4", "d"), {"prompt": "d"}),
        (request("5", "?"), {"prompt": "?"}),
        (request("6", "e"), {"prompt": "e"}),
    ]
    expected = ["text of a", "of b", "by name", "", "", "by position", "?"]
    keys = [request_keys(one, values, None) for one, values in rows]
    assert [bytes(ids).decode() for ids in found.find(keys)] == expected
    assert found.has_texts


def test_prompt_column_is_never_the_answer(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a"], "output": ["answer"]}), tmp_path / "old.parquet")
    (file,) = list_files(str(tmp_path / "old.parquet"), prompt="text")
    found = answers(tmp_path, AnswerFile(file=file, source=0, is_part=False, prompt_column="text"))
    assert find(found, request("5", "a")) == [tuple(b"answer")]


def test_unreadable_files_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    good = part(write_part(tmp_path / "good.parquet", [("0", "a", 0, [1])]))
    gone = part(write_part(tmp_path / "gone.parquet", [("1", "b", 0, [2])]))
    other = texts(pq_file(tmp_path / "other.parquet"))
    (tmp_path / "gone.parquet").unlink()
    build_answer_index([gone, good, other], str(tmp_path / "index"))
    index = AnswerIndex.open(str(tmp_path / "index"))
    assert (index.rows, len(index.unread)) == (1, 1) and "gone.parquet" in index.unread[0]
    found = EarlierAnswers(index, ByteEncoder().encode_answer, vocab_size=9, max_tokens=9)
    (tmp_path / "good.parquet").unlink()
    for _ in range(2):
        assert find(found, request("0", "a"), request("1", "b")) == [(), ()]
    assert caplog.text.count("their rows run without") == 1


def pq_file(path: Path) -> Path:
    pq.write_table(pa.table({"prompt": ["a"]}), path)
    return path


def test_latest_answers_are_those_of_the_first_source_up_to_a_number_of_tokens(tmp_path: Path) -> None:
    first = part(write_part(tmp_path / "a.parquet", [("0", "a", 0, [1, 2]), ("1", "b", 0, [3])]))
    second = part(write_part(tmp_path / "b.parquet", [("2", "c", 0, [4])]))
    old = part(write_part(tmp_path / "old.parquet", [("3", "d", 0, [5])]), source=1)
    found = answers(tmp_path, first, second, old)
    assert list(found.latest(100)) == [(1, 2), (3,), (4,)]
    assert list(found.latest(3)) == [(1, 2), (3,)]
    assert list(found.latest(0)) == []


def test_many_buckets_find_the_same_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_index, "_BUCKET", 64)
    monkeypatch.setattr(answer_index, "_FLUSH", 100)
    rng = np.random.default_rng(0)
    files, expected = [], {}
    for number in range(3):
        names = rng.choice(2000, 700, replace=False)
        rows = [(str(name), f"prompt {name}", 0, [number, int(name) % 900]) for name in names]
        files.append(part(write_part(tmp_path / f"{number}.parquet", rows), source=number))
        for name in names:
            expected.setdefault(int(name), (number, int(name) % 900))
    found = answers(tmp_path, *files)
    wanted = [request(str(name), f"prompt {name}") for name in range(2000)]
    assert find(found, *wanted) == [expected.get(name, ()) for name in range(2000)]
