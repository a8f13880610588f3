"""Training windows: conversations, rendered, tokenised and packed by several processes."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from jobs.tiny_pair.corpus import SYSTEM_PROMPTS, stream
from jobs.tiny_pair.narrator import Narrator
from jobs.tiny_pair.tokenizer import END_OF_TEXT, render

_WINDOWS_PER_TASK = 256


def stream_text(seed: str, characters: int) -> str:
    """Returns at least `characters` characters of training conversations, starting with a new one."""
    rng = Narrator(seed)
    text = ""
    for talked in stream(rng, "train"):
        system = rng.choice(SYSTEM_PROMPTS) if rng.random() < 0.15 else ""
        text += render(talked, system) + END_OF_TEXT
        if len(text) >= characters:
            break
    return text


def _windows(tokenizer_file: str, seed: int, task: int, length: int) -> NDArray[np.uint16]:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    tokenizer = Tokenizer.from_file(tokenizer_file)
    rows = np.empty((_WINDOWS_PER_TASK, length), dtype=np.uint16)
    for row in range(_WINDOWS_PER_TASK):
        ids = tokenizer.encode(stream_text(f"{seed}:{task}:{row}", length * 5)).ids
        if len(ids) < length:
            raise AssertionError(f"{length * 5} characters gave only {len(ids)} tokens; a window has {length}")
        rows[row] = ids[:length]
    return rows


def token_windows(tokenizer_file: str, *, seed: int, count: int, length: int) -> NDArray[np.uint16]:
    """Returns ids [count, length] uint16, independent of the number of cores. A window starts with a conversation."""
    tasks = -(-count // _WINDOWS_PER_TASK)
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        parts = list(pool.map(_windows, [tokenizer_file] * tasks, [seed] * tasks, range(tasks), [length] * tasks))
    return np.concatenate(parts)[:count]
