"""Training of the embedded pair: tokenizer, target, then the draft by distillation from it.

    python -m jobs.tiny_pair.train --out build/tiny            # as shipped; 3 minutes on an H200
    python -m jobs.tiny_pair.train --out build/tiny --quick    # a few steps, to try the script on a CPU

Seeded. On a GPU two runs still differ in the last bits of sums, and therefore in the weights.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F
from transformers.utils import logging

from jobs.tiny_pair.evaluate import report
from jobs.tiny_pair.network import MAX_LENGTH, build, load, save
from jobs.tiny_pair.packing import stream_text, token_windows
from jobs.tiny_pair.tokenizer import save_tokenizer, train_tokenizer


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """Training parameters that determine the weights, besides the code."""

    seed: int = 0
    windows: int = 100_000
    """Training windows of MAX_LENGTH tokens."""
    batch: int = 64
    """Windows per step."""
    target_steps: int = 7000
    target_lr: float = 2e-3
    draft_steps: int = 400
    draft_lr: float = 4e-3
    written: int = 4096
    """Windows that the target generates greedily, which are half of the draft's batches."""
    max_seconds: float = 3600.0
    """Longest time of each of the two trainings; the learning-rate schedule adapts to it."""


QUICK = Recipe(windows=256, batch=2, target_steps=6, draft_steps=6, written=4)


def next_token(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Returns the cross entropy of the next token. logits: [n, T, V]; ids: [n, T] int64.

    Includes user turns, because runs that ignore the end of a turn generate them.
    """
    return F.cross_entropy(logits[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten())


def imitation(logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Returns 0.5 KL(target ‖ draft) + 0.5 cross entropy with the target's greedy token, which acceptance counts.

    logits: the draft's [n, T, V]; wanted: the target's logits [n, T, V].
    """
    teacher = wanted.float().log_softmax(-1).flatten(0, 1)
    student = logits.float().log_softmax(-1).flatten(0, 1)
    divergence = F.kl_div(student, teacher, log_target=True, reduction="batchmean")
    return 0.5 * divergence + 0.5 * F.nll_loss(student, teacher.argmax(-1))


def compiled(model: Any) -> Any:
    """Compiles layer by layer on CUDA: in a whole compiled model transformers does not use the causal flash kernel."""
    if model.device.type == "cuda":
        for layer in model.model.layers:
            layer.compile(dynamic=False)
    return model


def fit(model: Any, teacher: Any, batch_of: Callable[[int], torch.Tensor], steps: int, lr: float, limit: float) -> None:
    """Trains on the next token, or on a teacher's logits. AdamW, warm-up, cosine decay; bf16 autocast on CUDA.

    batch_of: step → ids [batch, T] int64. limit: longest time in seconds.
    """
    cuda = model.device.type == "cuda"
    compiled(model)
    distance = torch.compile(imitation if teacher else next_token, dynamic=False, disable=not cuda)
    matrices = [p for p in model.parameters() if p.dim() > 1]
    gains = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": gains, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), fused=cuda)
    start, step, progress = time.perf_counter(), 0, 0.0
    while progress < 1:
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1.0, (step + 1) / 100) * (0.51 + 0.49 * math.cos(math.pi * progress))
        ids = batch_of(step)
        with torch.autocast(model.device.type, torch.bfloat16, enabled=cuda):
            wanted = _logits(teacher, ids) if teacher else ids
            loss = distance(model(input_ids=ids, use_cache=False).logits, wanted)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        spent = time.perf_counter() - start
        progress = max(step / steps, spent / limit)
        if step in (1, 20) or step % 200 == 0 or progress >= 1:
            print(f"step {step}/{steps}  loss {loss.item():.4f}  {spent:.0f} s", flush=True)


@torch.no_grad()
def _logits(model: Any, ids: torch.Tensor) -> Any:
    return model(input_ids=ids, use_cache=False).logits


@torch.inference_mode()
def write(target: Any, windows: torch.Tensor, length: int) -> torch.Tensor:
    """Returns ids [n, length]: the target's greedy continuation of each window's first 48 or 192 tokens.

    windows: [n, MAX_LENGTH] int16.
    """
    written = []
    for rows, prompt_length in zip(windows.chunk(2), (48, 192), strict=True):
        prompt = rows[:, :prompt_length].long()
        with torch.autocast(target.device.type, torch.bfloat16, enabled=target.device.type == "cuda"):
            mask = torch.ones_like(prompt)
            written.append(target.generate(prompt, attention_mask=mask, max_new_tokens=length - prompt_length))
    return torch.cat(written)


def pack_corpus(out: Path, recipe: Recipe, device: str) -> torch.Tensor:
    """Trains and saves the tokenizer. Returns the training windows, [windows, MAX_LENGTH] int16."""
    texts = (stream_text(f"{recipe.seed}:tokenizer:{i}", 5000) for i in range(min(2000, recipe.windows)))
    save_tokenizer(train_tokenizer(texts), out / "target", MAX_LENGTH)
    file = out / "target" / "tokenizer.json"
    packed = token_windows(str(file), seed=recipe.seed, count=recipe.windows, length=MAX_LENGTH)
    return torch.from_numpy(packed.astype("int16")).to(device)


def train_target(out: Path, windows: torch.Tensor, recipe: Recipe) -> None:
    """Trains the target on the corpus and saves it."""
    torch.manual_seed(recipe.seed)
    target = build("target").to(windows.device)
    limit = recipe.max_seconds
    fit(target, None, _batches(windows, recipe.batch), recipe.target_steps, recipe.target_lr, limit)
    save(target, out / "target")


def train_draft(out: Path, windows: torch.Tensor, written: torch.Tensor, recipe: Recipe) -> None:
    """Trains the draft on the saved target's logits, alternating between corpus and `written`; saves it."""
    torch.manual_seed(recipe.seed)
    teacher = compiled(load(out / "target", str(windows.device)))
    sources = (_batches(windows, recipe.batch), _batches(written, recipe.batch * windows.shape[1] // written.shape[1]))
    draft = build("draft").to(windows.device)
    limit = recipe.max_seconds
    fit(draft, teacher, lambda step: sources[step % 2](step), recipe.draft_steps, recipe.draft_lr, limit)
    save(draft, out / "draft")


def _batches(windows: torch.Tensor, size: int) -> Callable[[int], torch.Tensor]:
    """Returns a function from step to batch [size, T]: windows in a seeded order, repeated."""
    order = torch.randperm(len(windows), device=windows.device)

    def batch_of(step: int) -> torch.Tensor:
        at = torch.arange(step * size, (step + 1) * size, device=windows.device) % len(order)
        return windows[order[at]].long()

    return batch_of


def train(out: Path, recipe: Recipe) -> dict[str, Any]:
    """Writes out/target and out/draft. Returns the evaluation, with the seconds of each phase."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    marks = [("", time.perf_counter())]

    def lap(name: str) -> None:
        marks.append((name, time.perf_counter()))
        print(f"{name}: {marks[-1][1] - marks[-2][1]:.0f} s", flush=True)

    windows = pack_corpus(out, recipe, device)
    lap("corpus")
    train_target(out, windows, recipe)
    lap("target")
    written = write(load(out / "target", device), windows[-recipe.written :], MAX_LENGTH // 2)
    lap("written")
    train_draft(out, windows, written, recipe)
    lap("draft")
    seconds = {name: round(end - start) for (_, start), (name, end) in pairwise(marks)}
    return {"recipe": asdict(recipe), "seconds": seconds} | report(out, device=device)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="a few steps only: the result is of no use")
    parser.add_argument("--max-seconds", type=float, default=3600.0, help="for each of the two trainings")
    options = parser.parse_args()
    logging.disable_progress_bar()
    base = QUICK if options.quick else Recipe()
    result = train(options.out, replace(base, seed=options.seed, max_seconds=options.max_seconds))
    text = json.dumps(result, indent=2, ensure_ascii=False)
    (options.out / "report.json").write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
