"""Train the embedded pair: tokenizer, target, then the draft by distillation from it.

    python -m specpipe.models.tiny.train --out build/tiny            # as shipped; minutes on one data-centre GPU
    python -m specpipe.models.tiny.train --out build/tiny --quick    # a few steps, to try the script on a CPU

Seeded; on a GPU two runs still differ in the last bits, and so in the weights.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F
from transformers.utils import logging

from specpipe.models.tiny.evaluate import report
from specpipe.models.tiny.network import MAX_LENGTH, build, load, parameters, save
from specpipe.models.tiny.packing import stream_text, token_windows
from specpipe.models.tiny.tokenizer import save_tokenizer, train_tokenizer


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """Everything that the weights depend on, beside the code."""

    seed: int = 0
    windows: int = 120_000
    """Training windows of MAX_LENGTH tokens."""
    batch: int = 64
    """Windows of one step."""
    target_steps: int = 5000
    target_lr: float = 2e-3
    draft_steps: int = 4000
    draft_lr: float = 4e-3
    written: int = 8192
    """Windows that the target writes greedily, for the draft to imitate: half of the draft's batches."""
    max_seconds: float = math.inf
    """Longest time for each of the two trainings; the schedule shrinks to it."""


QUICK = Recipe(windows=256, batch=2, target_steps=6, draft_steps=6, written=8)


def next_token(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Cross entropy of the next token, over user turns as well: a run that ignores the end of a turn writes them."""
    return F.cross_entropy(logits[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten())


def imitation(logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Half KL(target ‖ draft), half cross entropy with the target's greedy choice, which is what acceptance counts."""
    teacher = wanted.float().log_softmax(-1).flatten(0, 1)
    student = logits.float().log_softmax(-1).flatten(0, 1)
    divergence = F.kl_div(student, teacher, log_target=True, reduction="batchmean")
    return 0.5 * divergence + 0.5 * F.nll_loss(student, teacher.argmax(-1))


def compiled(model: Any) -> Any:
    """Compile layer by layer on CUDA: within a whole compiled model transformers gives up the causal flash kernel."""
    if model.device.type == "cuda":
        for layer in model.model.layers:
            layer.compile(dynamic=False)
    return model


def fit(model: Any, teacher: Any, batch_of: Callable[[int], torch.Tensor], steps: int, lr: float, limit: float) -> None:
    """Train on the next token, or to imitate a teacher. AdamW, warm-up, cosine decay; bf16 autocast on CUDA."""
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
def write(target: Any, windows: torch.Tensor, length: int, chunk: int = 4096) -> torch.Tensor:
    """[n, length]: the first tokens of each window, continued greedily by the target. Prompts are 32 to 256 tokens."""
    written = []
    for number, rows in enumerate(windows.split(chunk)):
        prompt = rows[:, : (48, 192)[number % 2]].long()
        with torch.autocast(target.device.type, torch.bfloat16, enabled=target.device.type == "cuda"):
            written.append(target.generate(input_ids=prompt, max_new_tokens=length - prompt.shape[1]))
    return torch.cat(written)


def train(out: Path, recipe: Recipe) -> dict[str, Any]:
    """Write out/target, out/draft and out/report.json; returns the report."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    logging.disable_progress_bar()
    torch.manual_seed(recipe.seed)
    torch.set_float32_matmul_precision("high")
    clock = {"start": time.perf_counter()}

    def lap(name: str) -> None:
        clock[name] = time.perf_counter() - clock["start"]
        print(f"[{clock[name]:.0f} s] {name}", flush=True)

    texts = (stream_text(f"{recipe.seed}:tokenizer:{i}", 5000) for i in range(min(2000, recipe.windows)))
    save_tokenizer(train_tokenizer(texts), out / "target", MAX_LENGTH)
    packed = token_windows(
        str(out / "target" / "tokenizer.json"), seed=recipe.seed, count=recipe.windows, length=MAX_LENGTH
    )
    windows = torch.from_numpy(packed.astype("int16")).to(device)
    order = torch.randperm(len(windows), device=device)
    lap(f"{windows.numel() / 1e6:.0f} M tokens ready")

    def corpus_batch(step: int) -> torch.Tensor:
        at = torch.arange(step * recipe.batch, (step + 1) * recipe.batch, device=device) % len(order)
        return windows[order[at]].long()

    target = build("target").to(device)
    fit(target, None, corpus_batch, recipe.target_steps, recipe.target_lr, recipe.max_seconds)
    save(target, out / "target")
    lap("target trained")

    teacher = load(out / "target", device)
    written = write(teacher, windows[-recipe.written :], MAX_LENGTH // 2)
    lap(f"target wrote {written.numel() / 1e6:.1f} M tokens")

    def draft_batch(step: int) -> torch.Tensor:
        if step % 2:
            return written[torch.randint(len(written), (recipe.batch * 2,), device=device)]
        return corpus_batch(step)

    draft = build("draft").to(device)
    fit(draft, compiled(teacher), draft_batch, recipe.draft_steps, recipe.draft_lr, recipe.max_seconds)
    save(draft, out / "draft")
    lap("draft trained")
    print(f"parameters: target {parameters(target)}, draft {parameters(draft)}", flush=True)
    return report(out, device=device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="a few steps only: the result is of no use")
    parser.add_argument("--max-seconds", type=float, default=math.inf, help="for each of the two trainings")
    options = parser.parse_args()
    base = QUICK if options.quick else Recipe()
    result = train(options.out, replace(base, seed=options.seed, max_seconds=options.max_seconds))
    text = json.dumps(result, indent=2, ensure_ascii=False)
    (options.out / "report.json").write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
