"""Tests of bad rows: each has an error with reason and position, and the rows around it are unchanged."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.fake_workers import InProcessBackend, make_job, outputs

from specpipe.pipeline.run.run import execute
from specpipe.pipeline.store.verify import verify


def of(**values: object) -> bytes:
    return json.dumps(values).encode()


def hi(**values: object) -> bytes:
    return of(prompt="hi", **values)


def chat(*turns: object) -> bytes:
    return of(messages=list(turns))


USER = {"role": "user", "content": "hi"}
BAD_LINES: dict[str, tuple[bytes, str]] = {
    "empty prompt": (of(prompt=""), "column prompt: empty; expected text"),
    "no prompt": (of(note="x"), "no prompt: expected a value in one of the columns"),
    "null prompt": (of(prompt=None), "no prompt: expected a value"),
    "empty object": (b"{}", "no prompt"),
    "number as prompt": (of(prompt=3), "column prompt: 3; expected text, token ids or chat messages"),
    "truth as prompt": (of(prompt=True), "column prompt: True; expected text"),
    "object as prompt": (of(prompt={"a": 1}), "column prompt: has neither messages nor prompt"),
    "mixed list as prompt": (of(prompt=[1, "a"]), "column prompt: holds [1, 'a']; expected token ids, or turns"),
    "over-long prompt": (of(prompt="x" * 200), "the prompt has 200 tokens; expected at most 199 (max_model_len 200"),
    "huge prompt": (of(prompt="x" * 500_000), "the prompt has 500000 tokens; expected at most 199"),
    "raw control character": (b'{"prompt": "a\x01b"}', "the line is not JSON: Invalid control character"),
    "lone surrogate": (b'{"prompt": "a\\ud800b"}', "column prompt: a lone surrogate (\\ud800) at character 1"),
    "lone surrogate in a turn": (
        b'{"messages": [{"role": "user", "content": "\\udc80"}]}', "column messages[0].content: a lone surrogate",
    ),
    "invalid UTF-8": (b'{"prompt": "\xff"}', "the line is not UTF-8 (byte 12)"),
    "torn line": (b'{"prompt": "h', "the line is not JSON"),
    "array": (b"[1]", "the line is an array; expected a JSON object"),
    "deep nesting": (b'{"prompt": ' + b"[" * 50_000 + b"]" * 50_000 + b"}", "nested too deeply"),
    "token id too large": (of(prompt_token_ids=[1, 1000]), "token id 1000 in the prompt; expected 0 to 999"),
    "negative token id": (of(prompt_token_ids=[-1]), "token id -1 in the prompt; expected 0 to 999"),
    "no token ids": (of(prompt_token_ids=[]), "column prompt_token_ids: an empty list"),
    "fraction as token id": (of(prompt_token_ids=[1.5]), "column prompt_token_ids: holds [1.5]"),
    "NaN temperature": (b'{"prompt": "hi", "temperature": NaN}', "column temperature: nan; expected a number"),
    "infinite temperature": (b'{"prompt": "hi", "temperature": Infinity}', "column temperature: inf; expected"),
    "negative temperature": (hi(temperature=-1), "temperature is -1.0; expected 0 or more"),
    "temperature in words": (hi(temperature="hot"), "column temperature: 'hot'; expected a number"),
    "top_p of nothing": (hi(top_p=0), "top_p is 0.0; expected above 0 and at most 1"),
    "negative top_k": (hi(top_k=-1), "top_k is -1; expected 0 (off) or more"),
    "half a top_k": (hi(top_k=1.5), "column top_k: 1.5; expected a whole number"),
    "min_p above one": (hi(min_p=2), "min_p is 2.0; expected between 0 and 1"),
    "no tokens wanted": (hi(max_tokens=0), "max_new_tokens is 0; expected 1 or more"),
    "endless tokens wanted": (hi(max_tokens=10**30), "column max_tokens: 1000000000000000000000"),
    "negative seed": (hi(seed=-1), "seed is -1; expected between 0 and 2**63 - 1"),
    "empty stop": (hi(stop=[""]), "stop is ('',); expected strings that are not empty"),
    "number as stop": (hi(stop=3), "column stop: 3; expected text or a list of texts"),
    "stop token outside": (hi(stop_token_ids=[1000]), "column stop_token_ids: 1000; expected 0 to 999"),
    "unknown role": (chat(USER, {"role": "narrator", "content": "x"}), "column messages[1].role: 'narrator'; exp"),
    "no role": (chat({"content": "x"}), "column messages[0].role: no value; expected one of"),
    "null content": (chat({"role": "user", "content": None}), "column messages[0].content: no value; expected text"),
    "picture": (
        chat({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}),
        "column messages[0].content: has a part",
    ),
    "no turns": (chat(), "column messages: an empty list"),
    "chat as text that is not JSON": (of(messages="hi"), "column messages: text that is not JSON"),
    "unknown speaker": (of(conversations=[{"from": "alien", "value": "x"}]), "column conversations: begins with alien"),
    "no answer": (of(conversations=[{"from": "human", "value": "x"}]), "column conversations: 1 turn(s); expected"),
    "several answers": (of(body={"prompt": "hi", "n": 2}), "column body.n: 2; expected sampling.n"),
    "fraction as id": (hi(id=1.5), "column id: 1.5; expected text or a whole number"),
    "list as id": (hi(request_id=["a"]), "column request_id: ['a']; expected text or a whole number"),
}  # fmt: skip


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, object]]]:
    """The outputs of all bad lines, each between two good ones, and of as many good lines."""
    found = {}
    for name, bad in (("bad", [line for line, _ in BAD_LINES.values()]), ("calm", [hi()] * len(BAD_LINES))):
        folder = tmp_path_factory.mktemp(name)
        lines = [hi()] + [line for broken in bad for line in (broken, hi())]
        (folder / "rows.jsonl").write_bytes(b"\n".join(lines))
        job = make_job(folder, f"data.path={folder / 'rows.jsonl'}", "output.max_failed_rows=99", "workers.slots=16")
        result = execute(job, backend=InProcessBackend())
        assert (result.state, result.exit_code) == ("complete", 0)
        proof = verify(str(folder / "out"))
        assert proof.complete, "\n".join(map(str, proof.findings))
        found[name] = outputs(folder / "out").to_pylist()
    return found


@pytest.mark.parametrize("kind", BAD_LINES)
def test_bad_row_has_a_precise_error_and_neighbours_are_unchanged(
    rows: dict[str, list[dict[str, object]]], kind: str
) -> None:
    at = 1 + 2 * list(BAD_LINES).index(kind)
    bad = rows["bad"][at]
    assert BAD_LINES[kind][1] in bad["error"]
    assert f"rows.jsonl, row {at}: " in bad["error"]
    assert (bad["finish_reason"], bad["generated_token_ids"], bad["generated_text"]) == ("error", [], "")
    assert len(bad["error"]) < 600
    for neighbour in (at - 1, at + 1):
        there, expected = rows["bad"][neighbour], rows["calm"][neighbour]
        for column in ("request_id", "generated_token_ids", "generated_text", "finish_reason", "seed", "error"):
            assert there[column] == expected[column]


def test_bad_cells_of_a_table_become_error_rows(tmp_path: Path) -> None:
    prompts = pa.array([b"hi", b"\xff\xfe", None, b"", b"hi"]).cast(pa.binary()).view(pa.binary())
    broken = pa.StringArray.from_buffers(5, *prompts.buffers()[1:], prompts.buffers()[0])
    temperature = pa.array([0.0, 0.0, 0.0, 0.0, float("nan")])
    pq.write_table(pa.table({"prompt": broken, "temperature": temperature}), tmp_path / "rows.parquet")
    execute(make_job(tmp_path), backend=InProcessBackend())
    assert verify(str(tmp_path / "out")).complete
    errors = outputs(tmp_path / "out")["error"].to_pylist()
    for error, expected in zip(errors, ("", "utf-8", "no prompt", "column prompt: empty", "nan"), strict=True):
        assert expected in error.lower()
        assert bool(error) == bool(expected)


def test_request_ids_are_never_used_as_paths(tmp_path: Path) -> None:
    ids = ["same", "same", "../../escape", "/etc/passwd", "a\x00b", "s3://bucket/key", "." * 300, "part-00000.parquet"]
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps({"prompt": "hi", "id": name}) for name in ids))
    execute(make_job(tmp_path, f"data.path={tmp_path / 'rows.jsonl'}"), backend=InProcessBackend())
    assert verify(str(tmp_path / "out")).complete
    assert outputs(tmp_path / "out")["request_id"].to_pylist() == ids
    assert {path.name for path in tmp_path.iterdir()} == {"rows.jsonl", "rows.parquet", "target", "draft", "out"}
    files = {path.name for path in (tmp_path / "out/outputs").iterdir()}
    assert all(name.startswith("part-") and name.endswith(".parquet") for name in files)
