"""Word problems with and without five examples before them, on the embedded pair and a CPU: `python -m
support.five_shots [REPEATS]` from `tests`. Prints the seconds of both in turn, and their median ratio.

Both have 64 rows of 100 new tokens, 16 at once, K=3. Rows of a run share no token with those of another run.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from support.engines import plan, requests_of

from specpipe.core import EngineConfig
from specpipe.engine.build import EngineSpec, build_engine
from specpipe.engine.engine import Engine
from specpipe.models.source import resolve
from specpipe.models.tokenizer import load_tokenizer

DATA = Path(__file__).parents[2] / "jobs/data"
ROWS, SHOTS, NEW_TOKENS, K = 64, 5, 100, 3


def problems(name: str, count: int) -> list[dict[str, str]]:
    return [json.loads(line) for line in (DATA / name).read_text(encoding="utf-8").splitlines()[:count]]


def prompts(shots: int) -> list[list[int]]:
    """Returns the token ids of the chats; each shot is a turn."""
    tokenizer = load_tokenizer(resolve("builtin:tiny", "target"))
    turns = []
    for shot in problems("word_problems_train.jsonl", shots):
        turns += [{"role": "user", "content": shot["question"]}, {"role": "assistant", "content": shot["solution"]}]
    chats = [[*turns, {"role": "user", "content": row["question"]}] for row in problems("word_problems.jsonl", ROWS)]
    return [list(tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)) for chat in chats]


def seconds(engine: Engine, rows: Sequence[Sequence[int]], run: int) -> float:
    requests = requests_of([[run, *row] for row in rows], max_new_tokens=NEW_TOKENS, ignore_eos=True)
    began = time.perf_counter()
    engine.submit(requests, plan(K))
    while engine.step() is not None:
        pass
    return time.perf_counter() - began


def main() -> None:
    target, draft = (resolve("builtin:tiny", role) for role in ("target", "draft"))
    config = EngineConfig(slots=16, max_k=K, proposer="draft")
    engine = build_engine(EngineSpec(target=target, draft=draft, device="cpu", dtype="float32", config=config))
    jobs = [prompts(0), prompts(SHOTS)]
    ratios = []
    for repeat in range(1 + int(sys.argv[1] if len(sys.argv) > 1 else 3)):
        alone, few_shot = (seconds(engine, rows, 2 * repeat + i) for i, rows in enumerate(jobs))
        if repeat:  # the first one warms up
            print(f"{alone:.2f} s without, {few_shot:.2f} s with {SHOTS} shots")
            ratios.append(few_shot / alone)
    print(f"median ratio {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
