"""Evaluation of a pair: accuracy on held-out problems, acceptance length and repetition on the sample dataset.

python -m jobs.tiny_pair.evaluate            # the shipped pair
python -m jobs.tiny_pair.evaluate DIR        # DIR/target and DIR/draft
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from jobs.tiny_pair.corpus import first_questions, sample
from jobs.tiny_pair.network import load, parameters
from jobs.tiny_pair.problems import WordProblem, final_answer, problems
from specpipe.models.tiny import TARGET


@torch.inference_mode()
def generate(model: Any, tokenizer: Any, prompts: Sequence[str], new_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns greedy continuations of n prompts, end tokens ignored: ids and mask, [n, longest + new_tokens] int64."""
    texts = [
        tokenizer.apply_chat_template([{"role": "user", "content": p}], tokenize=False, add_generation_prompt=True)
        for p in prompts
    ]
    batch = tokenizer(texts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False)
    ids, mask = batch["input_ids"].to(model.device), batch["attention_mask"].to(model.device)
    out = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=new_tokens)
    return out, torch.cat((mask, mask.new_ones(len(mask), new_tokens)), dim=1)


def accuracy(model: Any, tokenizer: Any, found: Sequence[WordProblem], new_tokens: int = 112) -> float:
    """Returns the share of problems whose greedy answer has the right number after its first `####`."""
    out, _ = generate(model, tokenizer, [p.question for p in found], new_tokens)
    texts = tokenizer.batch_decode(out[:, -new_tokens:], skip_special_tokens=False)
    return sum(final_answer(text) == p.answer for text, p in zip(texts, found, strict=True)) / len(found)


@torch.inference_mode()
def agreement(draft: Any, ids: torch.Tensor, mask: torch.Tensor, new_tokens: int) -> torch.Tensor:
    """Returns bool [n, new_tokens]: the draft's greedy token equals the target's. ids, mask: from `generate`."""
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
    logits = draft(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False).logits
    choices: torch.Tensor = logits[:, -new_tokens - 1 : -1].argmax(dim=-1)
    return choices == ids[:, -new_tokens:]


def acceptance_length(agrees: torch.Tensor, k: int) -> float:
    """Returns 1 + accepted tokens per draft round of greedy speculation with k draft tokens.

    agrees: [n, new_tokens] bool, from `agreement` on the target's text. Exact: the draft conditions on the target's
    text until a draft token is rejected, and the rejected one is replaced by the target's.
    """
    rounds = accepted = 0
    for row in agrees.tolist():
        at = 0
        while at < len(row):
            width = min(k, len(row) - at - 1)
            run = next((i for i in range(width) if not row[at + i]), width)
            rounds, accepted, at = rounds + (width > 0), accepted + run, at + run + 1
    return 1 + accepted / rounds


def repetition(ids: torch.Tensor, n: int = 8) -> float:
    """Returns the share of repeated n-grams of a row, mean over rows; near 1 in a loop. ids: [rows, tokens]."""
    shares = []
    for row in ids.tolist():
        grams = [tuple(row[i : i + n]) for i in range(len(row) - n + 1)]
        shares.append(1 - len(set(grams)) / len(grams))
    return sum(shares) / len(shares)


def report(folder: Path, *, count: int = 512, new_tokens: int = 300, k: int = 3, device: str = "cpu") -> dict[str, Any]:
    """Returns the figures of docs/tiny-pair.md, and three generated texts. folder: contains target/ and draft/."""
    tokenizer = AutoTokenizer.from_pretrained(folder / "target")
    target, draft = load(folder / "target", device), load(folder / "draft", device)
    found = problems("heldout", count)
    rows = sample()
    prompts = first_questions(rows)
    ids, mask = generate(target, tokenizer, prompts, new_tokens)
    agrees = agreement(draft, ids, mask, new_tokens)
    by_category = {
        category: acceptance_length(agrees[[i for i, row in enumerate(rows) if row["category"] == category]], k)
        for category in ("problem", "chat", "long")
    }
    return {
        "parameters": {"target": parameters(target), "draft": parameters(draft)},
        "problems": count,
        "accuracy": {"target": accuracy(target, tokenizer, found), "draft": accuracy(draft, tokenizer, found)},
        "acceptance_length": {"k": k, "all": acceptance_length(agrees, k), **by_category},
        "agreement": agrees.float().mean().item(),
        "repeated_8_grams": repetition(ids[:, -new_tokens:]),
        "texts": [tokenizer.decode(row[m.bool()]) for row, m in zip(ids[[0, 1, 3]], mask[[0, 1, 3]], strict=True)],
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=TARGET.parent)
    parser.add_argument("--problems", type=int, default=512)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(json.dumps(report(options.folder, count=options.problems, device=device), indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()
