"""Corpus generator: short chats and word problems in ShareGPT format, generated from a seed.

python -m jobs.tiny_pair.corpus --sample jobs/data/sharegpt_sample.parquet   # the sample dataset
python -m jobs.tiny_pair.corpus --questions specpipe/models/tiny/sample_questions.json   # its first questions
python -m jobs.tiny_pair.corpus --show 3                                                 # conversations, to read
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import cast

import pyarrow as pa
import pyarrow.parquet as pq

from jobs.tiny_pair import topics_knowledge, topics_small_talk, topics_tasks
from jobs.tiny_pair.arithmetic import ProblemFamily
from jobs.tiny_pair.families import FAMILIES
from jobs.tiny_pair.narrator import Narrator
from jobs.tiny_pair.phrasing import Exchange, Split, split_of
from jobs.tiny_pair.problems import final_answer, problem

Topic = Callable[[Narrator], list[Exchange]]
Conversation = dict[str, object]

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a friendly assistant who answers in short sentences.",
    "Answer briefly. Show your steps when you calculate.",
)
SAMPLE_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("conversations", pa.list_(pa.struct([("from", pa.string()), ("value", pa.string())]))),
        ("category", pa.string()),
        ("answer", pa.string()),
    ]
)
_MAX_TRIES = 500


def _solve(family: ProblemFamily, rng: Narrator) -> list[Exchange]:
    found = family.draw(rng)
    return [(found.question, found.solution)]


PROBLEM_TOPICS: tuple[Topic, ...] = tuple(partial(_solve, family) for family in FAMILIES)
OPENINGS: tuple[Topic, ...] = (topics_small_talk.greeting,)
CLOSINGS: tuple[Topic, ...] = (topics_small_talk.thanks,)
_TALK_TOPICS: tuple[Topic, ...] = (*topics_small_talk.TOPICS, *topics_knowledge.TOPICS, *topics_tasks.TOPICS)
CHAT_TOPICS = tuple(topic for topic in _TALK_TOPICS if topic not in (*OPENINGS, *CLOSINGS))
_ALL = (*CHAT_TOPICS, *PROBLEM_TOPICS)
CYCLE: tuple[Topic, ...] = tuple(Random("cycle").sample(_ALL, len(_ALL)))


def exchanges(rng: Narrator, split: Split, topics: Sequence[Topic]) -> list[Exchange]:
    """Returns a random topic's exchanges whose first question belongs to the split; empty if none was found."""
    for _ in range(_MAX_TRIES):
        found = rng.choice(topics)(rng)
        if split_of(found[0][0]) == split:
            return found
    return []


def stream(rng: Narrator, split: Split) -> Iterator[list[Exchange]]:
    """Yields conversations without end.

    A topic returns only after all others, so that a model trained on it does not loop. With probability 0.5 the next
    topic is the following one in CYCLE, so that greedy texts continue differently after each topic.
    """
    left: list[int] = []
    at = rng.randrange(len(CYCLE))
    while True:
        rng.new_conversation()
        talked = exchanges(rng, split, OPENINGS) if rng.random() < 0.15 else []
        for _ in range(rng.choice((1, 1, 2, 3, 4, 6, 8))):
            left = left or list(range(len(CYCLE)))
            at = (at + 1) % len(CYCLE)
            if at not in left or rng.random() < 0.5:
                at = rng.choice(left)
            left.remove(at)
            talked += exchanges(rng, split, [CYCLE[at]])
        closing = exchanges(rng, split, CLOSINGS) if rng.random() < 0.3 else []
        if talked:
            yield talked + closing


def sharegpt(name: str, talked: Sequence[Exchange], system: str = "") -> Conversation:
    """Returns `{"id", "conversations": [{"from": "human" | "gpt", "value"}]}`, a system message first."""
    turns = [{"from": "system", "value": system}] if system else []
    for human, gpt in talked:
        turns += [{"from": "human", "value": human}, {"from": "gpt", "value": gpt}]
    return {"id": name, "conversations": turns}


def conversations(split: Split, n: int, seed: int = 0) -> Iterator[Conversation]:
    """Yields n conversations of the split in ShareGPT format, determined by the seed."""
    rng = Narrator(f"conversations:{split}:{seed}")
    source = stream(rng, split)
    for i in range(n):
        yield sharegpt(f"{split}-{seed}-{i:05d}", next(source), _system(rng))


def _system(rng: Narrator) -> str:
    return rng.choice(SYSTEM_PROMPTS) if rng.random() < 0.15 else ""


def sample(n: int = 64, seed: int = 2024) -> list[Conversation]:
    """Returns held-out rows of the sample dataset: word problems, short chats, and every eighth a long prompt."""
    rng = Narrator(f"sample:{seed}")
    rows: list[Conversation] = []
    for i in range(n):
        rng.new_conversation()
        kinds: Sequence[Topic] = (*CHAT_TOPICS, topics_small_talk.greeting)
        category = "problem" if i % 2 == 0 else ("long" if i % 8 == 3 else "chat")
        if category == "problem":
            found = problem(rng, "heldout", FAMILIES[i // 2 % len(FAMILIES)])
            talked = [(found.question, found.solution)]
        elif category == "long":
            drawn = [exchanges(rng, "heldout", (topics_tasks.note, topics_tasks.summary)) for _ in range(4)]
            talked = max(drawn, key=lambda one: len(one[0][0]))
        else:
            talked = exchanges(rng, "heldout", kinds)
        for _ in range(rng.randint(0, 2)):
            talked += exchanges(rng, "heldout", kinds)
        answer = final_answer(talked[0][1]) if category == "problem" else None
        extra = {"category": category, "answer": None if answer is None else str(answer)}
        rows.append(sharegpt(f"sample-{i:03d}", talked) | extra)
    return rows


def first_questions(rows: Sequence[Conversation]) -> list[str]:
    """Returns the first human turn of each conversation."""
    turns = (cast(list[dict[str, str]], row["conversations"]) for row in rows)
    return [next(turn["value"] for turn in conversation if turn["from"] == "human") for conversation in turns]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=Path, help="write the sample dataset to this Parquet file")
    parser.add_argument("--questions", type=Path, help="write the first questions of the sample to this JSON file")
    parser.add_argument("--show", type=int, default=0, help="print this many training conversations")
    options = parser.parse_args()
    if options.questions:
        text = json.dumps(first_questions(sample()), indent=1, ensure_ascii=False)
        options.questions.write_text(text + "\n", encoding="utf-8")
    if options.sample:
        pq.write_table(pa.Table.from_pylist(sample(), schema=SAMPLE_SCHEMA), options.sample)
    for row in conversations("train", options.show):
        print(json.dumps(row, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()
