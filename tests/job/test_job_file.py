"""Job files: accepted values, YAML's traps, overrides and error messages."""

import datetime
from pathlib import Path

import pytest
from pydantic import ValidationError

from specpipe.errors import JobError
from specpipe.job import JobSpec, load_job, parse_job

MINIMAL = "model: {target: big, draft: small}\ndata: {path: rows.jsonl}\noutput: {path: runs/a}\n"


def job(text: str = "", *overrides: str, base: str = MINIMAL) -> JobSpec:
    path = Path("nightly.yaml")
    path.write_text(base + text, encoding="utf-8")
    return load_job(path, overrides)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def problem(text: str, *overrides: str, base: str = MINIMAL) -> str:
    with pytest.raises(JobError) as caught:
        job(text, *overrides, base=base)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_minimal_job_is_named_after_its_file() -> None:
    spec = job()
    assert (spec.name, spec.seed, spec.model.draft, spec.output.max_failed_rows) == ("nightly", 0, "small", 0)
    assert job("name: mine\n").name == "mine"


def test_job_is_frozen_and_hashable() -> None:
    spec = job("sampling: {stop: [a]}\n")
    assert hash(spec) == hash(job("sampling: {stop: [a]}\n"))
    with pytest.raises(ValidationError, match="frozen"):
        spec.seed = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "place", "value"),
    [
        ("speculation: {policy: off}", "speculation.policy", "off"),
        ("speculation: {policy: 'off'}", "speculation.policy", "off"),
        ("speculation:\n  # policy: off", "speculation.policy", "goodput"),
        ("sampling: {temperature: 1e-1}", "sampling.temperature", 0.1),
        ("sampling: {stop: END}", "sampling.stop", ("END",)),
        ("sampling: {stop_token_ids: 7}", "sampling.stop_token_ids", (7,)),
        ("workers: {count: auto}", "workers.count", "auto"),
        ("workers: {count: 3, slots: 16.0}", "workers.slots", 16),
        ("workers: {shard_tokens: none}", "workers.shard_tokens", None),
        ("workers: {shard_tokens: }", "workers.shard_tokens", None),
        ("speculation: {proposer: none}", "speculation.proposer", "none"),
        ("sampling: &s {top_k: 4}", "sampling.top_k", 4),
        ("sampling: {defaults: model}", "sampling.defaults", "model"),
    ],
)
def test_yaml_values_are_read_as_written(text: str, place: str, value: object) -> None:
    section, key = place.split(".")
    assert getattr(getattr(job(text), section), key) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("speculation: {polcy: off}", "line 4: speculation.polcy is not a key of a job file; did you mean spec"),
        ("specualtion: {policy: off}", "line 4: specualtion is not a key of a job file; did you mean speculation?"),
        ("slots: 4", "line 4: slots is not a key of a job file; did you mean workers.slots?"),
        ("sampling:\n  xyzzy: 4", "line 5: sampling.xyzzy is not a key of a job file; expected one of n, temperature"),
        ("speculation: {policy: on}", 'speculation.policy is true; expected off, fixed, queue_threshold or goodput'),
        ("speculation: {policy: goodish}", 'speculation.policy is "goodish"; expected off, fixed'),
        ("speculation: {num_speculative_tokens: 33}", "is 33; expected an integer (>= 1, <= 32)"),
        ("workers: {slots: yes}", "workers.slots is true; expected an integer (>= 1, <= 65536)"),
        ("workers: {slots: 1.5}", "workers.slots is 1.5; expected an integer"),
        ("workers: {slots: }", "workers.slots is empty; expected an integer"),
        ("workers: {count: many}", 'workers.count is "many"; expected an integer (1 to 10,000), auto or a range'),
        ("workers: {count: {min: 1}}", 'workers.count is {"min": 1}; expected an integer'),
        ("workers: {count: {min: 3, max: 2}}", "expected an integer (1 to 10,000), auto or a range such as {min: 2"),
        ("workers: {count: {max: 2, most: 2}}", "expected an integer (1 to 10,000), auto or a range such as {min:"),
        ("workers: {count: true}", "workers.count is true; expected an integer (1 to 10,000), auto or a"),
        ("workers: {gpus_per_worker: 2}", "workers.gpus_per_worker is 2; expected 1, because a pair runs on one GPU"),
        ("workers: {cpus_per_worker: 0}", "workers.cpus_per_worker is 0; expected a number (> 0) or auto"),
        ("workers: 3", "workers is 3; expected a section with keys and values"),
        ("name: 2024", "name is 2024; expected text; put it in quotes"),
        ("name: 2024-01-01", 'name is "2024-01-01"; expected text; put it in quotes'),
        ("seed: -1", "seed is -1; expected an integer (>= 0)"),
        ("sampling: {stop: [no]}", "sampling.stop is [false]; expected a list of: text"),
        ("sampling: {stop: ['']}", "sampling.stop is ('',); expected strings that are not empty"),
        ("sampling: {temperature: .nan}", "sampling.temperature is nan; expected 0 or more"),
        ("sampling: {top_p: 0}", "sampling.top_p is 0.0; expected above 0 and at most 1"),
        ("sampling: {max_new_tokens: 0}", "sampling.max_new_tokens is 0; expected 1 or more"),
        ("sampling: {min_tokens: 300}", "sampling.min_tokens is 300; expected at most max_new_tokens (256)"),
        ("sampling: {min_tokens: -1}", "sampling.min_tokens is -1; expected 0 (off) or more"),
        ("sampling: {n: 0}", "sampling.n is 0; expected an integer (>= 1, <= 10000)"),
        ("speculation: {policy: fixed, proposer: auto}", "proposer is auto, which requires policy: goodput"),
        ("speculation: {replay: runs/a}", "replay is set, which requires proposer: replay or auto; proposer is draft"),
        (
            "speculation: {proposer: replay, method: synthetic, synthetic_acceptance_length: 2}",
            "method is synthetic, which simulates a draft model; expected no replay, or another method",
        ),
        ("speculation: {policy: fixed, applies_to: new}", "is new, which requires policy: queue_threshold; policy is"),
        ("speculation: {applies_to: all}", 'speculation.applies_to is "all"; expected batch or new'),
        ("speculation: {ngram_min: 4}", "speculation.ngram_min is 4; expected at most ngram_max (3)"),
        ("speculation: {method: synthetic}", "method is synthetic; expected exactly one of synthetic_rates and"),
        ("speculation: {synthetic_acceptance_length: 2}", "is set, which requires method: synthetic"),
        ("speculation: {method: synthetic, synthetic_rates: [1]}", "has 1 entries; expected 3 (num_spec"),
        ("speculation: {method: synthetic, synthetic_rates: [0.1, 0.2, 0]}", "expected non-increasing rates"),
        ("speculation: {method: synthetic, synthetic_rates: [2, 1, 0]}", "a number (>= 0, <= 1)"),
        ("speculation: {method: synthetic, synthetic_acceptance_length: 5}", "expected at most 4 (num_speculative_"),
        ("model: {target: x}", "model is given twice, in line 1 and line 4; keep one"),
        ("seed: 1\nworkers:\n  slots: 4\n  slots: 8", "workers.slots is given twice, in line 6 and line 7"),
        ("sampling: {defaults: ours}", 'sampling.defaults is "ours"; expected specpipe or model'),
        ("seed: [1", "is not valid YAML: line 4, column 9: while parsing a flow sequence, expected ',' or ']'"),
        ("seed: !!python/object:os.system x", "is not valid YAML: line 4, column 7: could not determine a constr"),
        ("name: &a [*a]", "an anchor contains itself"),
        ("a: &a [x]\n" + "\n".join(f"b{i}: &b{i} [{', '.join([f'*b{i - 1}' if i else '*a'] * 9)}]" for i in range(9)),
         "aliases stand for"),
        ("workers:\n\tslots: 4", "is not valid YAML: line 5, column 1: while scanning for the next token, found"),
        ("workers:\n  slots: 4\n count: 1", "have the same indentation, in spaces"),
    ],
    ids=lambda value: value[:40],
)  # fmt: skip
def test_error_names_line_key_and_expected_values(text: str, message: str) -> None:
    assert message in problem(text)


@pytest.mark.parametrize("name", ["prompt", "error", "seed"])
def test_keep_columns_rejects_output_columns_and_duplicates(name: str) -> None:
    assert f"output.keep_columns names '{name}', which is an output column" in problem(
        "", f"output.keep_columns=[label, {name}]"
    )
    assert "names 'label' twice" in problem("", "output.keep_columns=[label, label]")


def test_one_message_lists_every_problem() -> None:
    text = "speculation:\n  polcy: off\n  ngram_min: 9\nsampling:\n  top_k: x\n  top_p: 3\n"
    assert problem(text, base="output:\nmodel: {draft: 1}\n").splitlines() == [
        "nightly.yaml: 8 problems",
        "  line 2: model.target is missing; expected text",
        "  line 2: model.draft is 1; expected text or nothing; put it in quotes",
        "  data is missing; expected a section with path",
        '  line 7: sampling.top_k is "x"; expected an integer',
        "  line 4: speculation.polcy is not a key of a job file; did you mean speculation.policy?",
        "  line 1: output.path is missing; expected text",
        "  line 8: sampling.top_p is 3.0; expected above 0 and at most 1",
        "  line 5: speculation.ngram_min is 9; expected at most ngram_max (3)",
    ]


@pytest.mark.parametrize("text", ["", "- a\n- b\n", "just words", "3"])
def test_file_without_sections_names_expected_sections(text: str) -> None:
    message = problem("", base=text)
    assert "model is missing" in message or "expected sections such as model, data and output" in message


def test_missing_or_binary_file_raises_job_error() -> None:
    with pytest.raises(JobError, match=r"job file no\.yaml does not exist \(working directory"):
        load_job("no.yaml")
    Path("bin.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(JobError, match=r"bin\.yaml cannot be read"):
        load_job("bin.yaml")


def test_byte_order_mark_is_ignored() -> None:
    assert job(base="\ufeff" + MINIMAL).model.target == "big"


def test_draft_is_required_only_where_it_drafts() -> None:
    base = MINIMAL.replace(", draft: small", "")
    assert "model.draft is missing; name a draft model, or set speculation.proposer: ngram" in problem("", base=base)
    for override in ("speculation.policy=off", "speculation.proposer=ngram", "speculation.proposer=none"):
        assert job("", override, base=base).draft_model is None
    assert job().draft_model == "small"
    assert job("", "speculation.policy=off").draft_model is None
    eight = problem("", "model.quantize_draft=fp8", "speculation.proposer=ngram", base=base)
    assert "model.quantize_draft is fp8 and model.draft is missing; name a draft model, or leave" in eight


def test_a_renamed_key_is_named() -> None:
    found = problem("", "model.draft_dtype=fp8")
    assert "model.draft_dtype is not a key of a job file; it is model.quantize_draft (none or fp8) now" in found


class TestOverrides:
    def test_values_are_yaml_and_override_the_file(self) -> None:
        spec = job(
            "sampling: {top_k: 5, top_p: 0.5}\n",
            "speculation.policy=off",
            "sampling.top_k=7",
            "output.keep_columns=[a, b]",
            "model.draft=none",
            "name=x=y",
        )
        assert (spec.speculation.policy, spec.sampling.top_k, spec.sampling.top_p) == ("off", 7, 0.5)
        assert (spec.output.keep_columns, spec.model.draft, spec.name) == (("a", "b"), None, "x=y")

    def test_single_value_becomes_a_list(self) -> None:
        assert job("", "output.keep_columns=label").output.keep_columns == ("label",)

    def test_whole_section_can_be_replaced(self) -> None:
        assert job("workers: {slots: 4}\n", "workers={count: 2}").workers.slots == 16

    @pytest.mark.parametrize(
        ("override", "message"),
        [
            ("speculation.methd=block", "--set: speculation.methd is not a key of a job file; did you mean spec"),
            ("specualtion.policy=off", "--set: specualtion is not a key of a job file; did you mean speculation?"),
            ("speculation.policy", "--set speculation.policy: expected section.key=value"),
            ("a.b.c=1", "--set a.b.c=1: expected section.key=value"),
            ("=1", "--set =1: expected section.key=value"),
            ("workers.slots=[", "--set workers.slots=[: the value is not valid YAML: line 1, column 2"),
            ("workers.slots=x", '--set: workers.slots is "x"; expected an integer'),
        ],
    )  # fmt: skip
    def test_error_names_the_override(self, override: str, message: str) -> None:
        assert message in problem("", override)

    def test_parse_job_leaves_given_mapping_unchanged(self) -> None:
        values = {"model": {"target": "a"}, "data": {"path": "b"}, "output": {"path": "c"}}
        spec = parse_job(values, ["speculation.policy=off", "data.limit=4"], source="command line")
        assert (spec.name, spec.data.limit) == ("job", 4)
        assert values == {"model": {"target": "a"}, "data": {"path": "b"}, "output": {"path": "c"}}


class TestOutputPlaceholders:
    def test_date_and_name_are_filled_in(self) -> None:
        path = job("", "output.path=runs/{name}-{date}/a").output.path
        day = path.removeprefix("runs/nightly-").removesuffix("/a")
        assert datetime.date.today() - datetime.date.fromisoformat(day) <= datetime.timedelta(days=1)

    @pytest.mark.parametrize("path", ["runs/{time}", "runs/{}", "runs/{date:%Y}"])
    def test_unknown_placeholder_raises_job_error(self, path: str) -> None:
        assert "expected {date} or {name}, not {" in problem("", f"output.path='{path}'")

    def test_replay_has_yesterdays_date_too(self) -> None:
        replay = job("", "speculation.proposer=replay", "speculation.replay=[a, 'runs/{name}-{yesterday}']").speculation
        assert replay.replay[0] == "a" and replay.replay[1].startswith("runs/nightly-")
        day = datetime.date.fromisoformat(replay.replay[1].removeprefix("runs/nightly-"))
        assert 1 <= (datetime.date.today() - day).days <= 2
        wrong = problem("", "speculation.proposer=replay", "speculation.replay='runs/{today}'")
        assert "speculation.replay is 'runs/{today}'; expected {date} or {yesterday} or {name}, not {today}" in wrong


class TestTemplateKeywords:
    BASE = MINIMAL.replace("draft: small", "draft: small, chat_template_kwargs: {enable_thinking: false, depth: 2}")

    def test_keywords_are_a_mapping_in_file_and_identity(self) -> None:
        spec = job(base=self.BASE)
        assert dict(spec.model.chat_template_kwargs) == {"enable_thinking": False, "depth": 2}
        assert spec.identity()["model.chat_template_kwargs"] == {"depth": 2, "enable_thinking": False}
        assert hash(spec) == hash(job(base=self.BASE))
        assert job("", "model.chat_template_kwargs={enable_thinking: true}") != spec

    @pytest.mark.parametrize("value", ["3", "[1]", "{a: [1]}", "{1: a}"])
    def test_other_values_raise_job_error(self, value: str) -> None:
        found = problem("", f"model.chat_template_kwargs={value}")
        assert "expected a mapping of names to text, numbers, true or false" in found
