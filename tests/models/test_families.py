"""Logits over paged KV memory equal transformers' own for every family that check_support accepts.

A tiny random model of each family of this version of transformers reads two rows at once, and in ragged chunks over
pages. The test finds families whose attention has features that the attention interface does not see.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError

from specpipe.engine.forward.attention_interface import register
from specpipe.engine.forward.model_runner import ModelRunner
from specpipe.engine.loading.load_weights import check_tensors
from specpipe.errors import ModelError
from specpipe.models.source import ModelSource
from specpipe.models.support import check_support

SMALL: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "embedding_size", "word_embed_proj_dim"), 64),
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_hidden_size", "ffn_dim", "dff"), 96),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size"), 48),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads"), 4),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "zero_expert_num"), 2),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts", "num_dense_layers", "first_k_dense_replace"), 1),
    **dict.fromkeys(("head_dim", "kv_channels", "query_pre_attn_scalar", "v_head_dim", "qk_nope_head_dim"), 16),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 512),
    **{"num_key_value_heads": 2, "kv_lora_rank": 16, "q_lora_rank": 32, "qk_rope_head_dim": 8, "sliding_window": 24},
    **{"vocab_size": 320, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "moe_layer_start_index": 1},
}
# Their sizes stand in nested configurations, or their defaults do not make a model.
NOT_SHRUNK = {"dbrx", "cohere_compass_text", "lfm2_moe"}
LENGTHS = (70, 33)
CHUNKS = ((0, 40, 70), (0, 10, 33)), ((0, 69, 70), (0, 0, 33)), ((0, 66, 70), (0, 29, 33))


def supported() -> dict[str, type]:
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    found = {}
    for config_class in MODEL_FOR_CAUSAL_LM_MAPPING:
        try:
            config = config_class()
            check_support(config)
        except (ModelError, TypeError, ValueError, StrictDataclassError):  # refused, or nothing without arguments
            continue
        if config.model_type not in NOT_SHRUNK:
            found[config.model_type] = config_class
    return found


def shrunk(config_class: type) -> Any:
    base: Any = config_class()
    values = {name: value for name, value in SMALL.items() if _has(base, name)}
    if _has(base, "qk_rope_head_dim"):  # latent attention: as many KV heads as heads, rotating a part of them
        values |= {"head_dim": 8, "num_key_value_heads": 4}
    elif base.model_type.startswith("gemma4"):
        values |= {"num_hidden_layers": 6, "head_dim": 16}
        values.pop("num_key_value_heads", None)
    elif base.num_key_value_heads == base.num_attention_heads if _has(base, "num_key_value_heads") else False:
        values["num_key_value_heads"] = 4
    kinds = getattr(base, "layer_types", None)
    if kinds:
        layers = values.get("num_hidden_layers", 2)
        values["layer_types"] = kinds[:layers] if layers > 2 else (list(dict.fromkeys(kinds)) * 2)[:2]
    if getattr(base, "mlp_layer_types", None):
        values["mlp_layer_types"] = base.mlp_layer_types[:2]
    return config_class(**values)


def _has(config: Any, name: str) -> bool:
    try:
        return hasattr(config, name)
    except Exception:  # per-layer attributes have no single value, which is said with an error of its own
        return False


def build(config_class: type, attention: str) -> Any:
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        shrunk(config_class), attn_implementation=attention, dtype=torch.float32
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(3)
    return model


def in_chunks(
    runner: ModelRunner, rows: list[torch.Tensor], cuts: tuple[tuple[int, ...], ...], *, kept: int = 0
) -> list[torch.Tensor]:
    """Logits of the chunks from the kept one on; those before leave keys and values alone."""
    tables = torch.arange(1, 13, dtype=torch.int32).view(2, 6)
    out: list[list[torch.Tensor]] = [[], []]
    for step in range(len(cuts[0]) - 1):
        spans = [(cut[step], cut[step + 1]) for cut in cuts]
        counts = [stop - start for start, stop in spans]
        logits = runner.forward(
            torch.cat([row[slice(*span)] for row, span in zip(rows, spans, strict=True)]),
            torch.cat([torch.arange(*span) for span in spans]),
            block_tables=tables,
            cu_queries=torch.tensor([0, counts[0], sum(counts)], dtype=torch.int32),
            starts=torch.tensor([start for start, _ in spans]),
            max_queries=max(counts),
            keep=0 if step >= kept else None,
        )
        if step < kept:
            assert logits.shape == (0, runner.vocab_size)
            continue
        for part, piece in zip(out, logits.split(counts), strict=True):
            part.append(piece)
    return [torch.cat(part) for part in out]


def check_family(config_class: type, compiler: str) -> bool:
    """→ whether its layers were compiled."""
    rows = [torch.randint(5, 300, (n,), generator=torch.Generator().manual_seed(n)) for n in LENGTHS]
    with torch.inference_mode():
        model = build(config_class, "eager")
        expected = [model(input_ids=row[None], use_cache=False).logits[0] for row in rows]
    vocab_size = expected[0].shape[-1]
    runner = ModelRunner(
        build(config_class, "specpipe"), vocab_size=vocab_size, context_length=512, page_size=16, compiler=compiler
    )
    runner.allocate_pages(13)
    # The exponentials of torch's fused attention are good to 20 units in the last place, those of eager ones to one.
    tolerance = 5e-5 * float(expected[0].std().clamp(min=1))
    for cuts in CHUNKS:
        for got, want in zip(in_chunks(runner, rows, cuts), expected, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=tolerance)
    for got, want in zip(in_chunks(runner, rows, CHUNKS[-1], kept=1), expected, strict=True):
        torch.testing.assert_close(got, want[-len(got) :], rtol=1e-4, atol=tolerance)
    return runner.compiled


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # families warn about their own defaults
def test_headers_of_every_supported_family_fit_its_configuration(tmp_path: Path) -> None:
    refused = {}
    for model_type, config_class in supported().items():
        build(config_class, "eager").save_pretrained(tmp_path / model_type)
        try:
            check_tensors(ModelSource(path=str(tmp_path / model_type), name=model_type, revision=""))
        except ModelError as error:
            refused[model_type] = str(error)
    assert not refused


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore")  # families warn about their own defaults
@pytest.mark.parametrize("compiler", ["", "eager"])
def test_paged_logits_equal_the_models_in_every_supported_family(
    compiler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One test over all: to know the families, 400 configuration modules must be imported, too slow for collection."""
    register()
    monkeypatch.setattr("specpipe.engine.forward.model_runner.STANCE", "fail_on_recompile")
    wrong, uncompiled = {}, set()
    families = supported()
    for model_type, config_class in families.items():
        try:
            if not check_family(config_class, compiler):
                uncompiled.add(model_type)
        except Exception as error:
            wrong[model_type] = f"{type(error).__name__}: {error}"
    assert not wrong, "\n".join(f"{name}: {reason}" for name, reason in wrong.items())
    assert {"llama", "qwen3", "mistral", "gemma2", "gemma3_text", "gpt2", "gpt_oss", "deepseek_v3"} <= families.keys()
    assert not compiler or uncompiled <= {"beam"}, f"layers of {uncompiled} do not compile"
