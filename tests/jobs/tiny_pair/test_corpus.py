"""The corpus: disjoint splits, determined by the seed, with correct solutions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from jobs.tiny_pair import corpus
from jobs.tiny_pair.corpus import CYCLE, SAMPLE_SCHEMA, Topic, conversations, first_questions, sample, stream
from jobs.tiny_pair.families import FAMILIES
from jobs.tiny_pair.narrator import Narrator
from jobs.tiny_pair.phrasing import Exchange, Split, say, split_of
from jobs.tiny_pair.problems import final_answer, problems
from specpipe.models.tiny import sample_questions

SAMPLE = Path(__file__).parents[3] / "jobs" / "data" / "sharegpt_sample.parquet"
STEP = re.compile(r"(\d+) ([-+*/]) (\d+) = (\d+)")


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_problems_belong_to_their_split(split: Split) -> None:
    assert {split_of(p.question) for p in problems(split, 100)} == {split}


def test_no_heldout_problem_is_in_any_training_conversation() -> None:
    questions = {p.question for p in problems("heldout", 300)}
    rng = Narrator("any")
    source = stream(rng, "train")
    asked = {human for _ in range(300) for human, _ in next(source)}
    assert len(asked) > 600
    assert not asked & questions


def test_a_seed_fixes_problems_and_conversations() -> None:
    assert problems("train", 20, seed=5) == problems("train", 20, seed=5) != problems("train", 20, seed=6)
    assert (
        list(conversations("train", 9, 1)) == list(conversations("train", 9, 1)) != list(conversations("train", 9, 2))
    )


def test_problems_are_all_different() -> None:
    assert len({p.question for p in problems("heldout", 333)}) == 333


@pytest.mark.parametrize("family", range(len(FAMILIES)))
def test_solution_steps_are_right_and_end_with_the_answer(family: int) -> None:
    rng = Narrator(family)
    for _ in range(25):
        found = FAMILIES[family].draw(rng)
        steps = STEP.findall(found.solution)
        for left, sign, right, result in steps:
            a, b = int(left), int(right)
            assert int(result) == {"+": a + b, "-": a - b, "*": a * b, "/": a / b}[sign]
        assert int(steps[-1][3]) == found.answer == final_answer(found.solution)


def test_a_solution_uses_only_numbers_of_its_question() -> None:
    for found in problems("heldout", 160):
        known = set(re.findall(r"\d+", found.question)) | {"2"}  # a rectangle has two pairs of sides
        for left, _, right, result in STEP.findall(found.solution):
            assert {left, right} <= known, found
            known.add(result)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so 5 * 8 = 40\n#### 40", 40),
        ("#### 1,204<|im_end|> #### 7", 1204),
        ("####-3", -3),
        ("#### forty", None),
        ("40", None),
        ("", None),
    ],
)
def test_final_answer_is_the_first_marked_number(text: str, answer: int | None) -> None:
    assert final_answer(text) == answer


def test_a_topic_comes_back_only_after_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []

    def record(rng: Narrator, split: Split, topics: Sequence[Topic]) -> list[Exchange]:
        told.extend(topics if topics[0] in CYCLE else [])
        return [("question", "answer")]

    monkeypatch.setattr(corpus, "exchanges", record)
    source = stream(Narrator("topics"), "train")
    while len(told) < 3 * len(CYCLE):
        next(source)
    for lap in range(3):
        assert set(told[lap * len(CYCLE) : (lap + 1) * len(CYCLE)]) == set(CYCLE)


def test_templates_fill_fields_choose_and_correct_articles() -> None:
    rng = Narrator(0)
    assert say(rng, "a $Colour {cat|cat}", Colour="orange") == "an orange cat"
    assert {say(rng, "{a|b{1|2}}") for _ in range(99)} == {"a", "b1", "b2"}


def test_no_template_mark_survives_in_a_conversation() -> None:
    for row in conversations("heldout", 150):
        turns = row["conversations"]
        assert isinstance(turns, list)
        assert not [turn for turn in turns if re.search(r"[${}|\[\]]", turn["value"])]


def test_conversations_are_in_sharegpt_shape() -> None:
    for row in conversations("train", 40):
        turns = row["conversations"]
        assert isinstance(turns, list)
        speakers = [turn["from"] for turn in turns]
        speakers = speakers[1:] if speakers[0] == "system" else speakers
        assert len(speakers) >= 2 and speakers == ["human", "gpt"] * (len(speakers) // 2)


def test_the_generator_reproduces_the_shipped_sample() -> None:
    table = pq.read_table(SAMPLE)
    assert table.schema.equals(SAMPLE_SCHEMA)
    assert table.to_pylist() == sample()
    assert sample_questions() == first_questions(sample())


def test_the_sample_is_held_out_and_its_answers_fit() -> None:
    for row in sample():
        turns = row["conversations"]
        assert isinstance(turns, list)
        assert split_of(turns[0]["value"]) == "heldout"
        answer = final_answer(turns[1]["value"])
        assert row["answer"] == (None if answer is None else str(answer))
