"""Mixtures with quantised experts: logits of every format, dense on a CPU and as a GPU keeps them."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.engines import generate, make_engine, make_requests, run
from support.quantized_checkpoints import FORMATS, _quantize
from support.small_models import make_small_model, small_config, small_tokenizer
from torch import Tensor
from transformers import AutoModelForCausalLM

from specpipe.engine.forward.attention_interface import register
from specpipe.engine.forward.model_runner import ModelRunner
from specpipe.engine.loading import expert_modules
from specpipe.engine.loading.load_weights import load_outline, load_weights
from specpipe.errors import ModelError
from specpipe.models.loader import load_model
from specpipe.models.quantization.planned_weights import plan_weights
from specpipe.models.source import ModelSource, resolve
from specpipe_kernels import Fp8ExpertWeight, Mxfp4Weight

TOKENS = torch.tensor([[5, 77, 31, 200, 9, 310]])
CODES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
CASES = ["mxfp4", "qwen3_moe fp8-block", "mixtral ct-dynamic", "olmoe fp8-tensor"]


@pytest.fixture(autouse=True)
def registered() -> None:
    register()


class Written:
    """A checkpoint, and transformers' model of the stored values in fp32."""

    def __init__(self, folder: Path, model: Any, tensors: dict[str, Tensor], quantization: dict[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
        content = model.config.to_dict() | {"architectures": [type(model).__name__], "dtype": "bfloat16"}
        (folder / "config.json").write_text(json.dumps(content | {"quantization_config": quantization}))
        small_tokenizer(model.config.vocab_size).save_pretrained(folder)
        model.generation_config.eos_token_id = None
        self.source: ModelSource = resolve(str(folder), "target")
        self.reference = model.float().eval()


def model_of(kind: str, **changes: Any) -> Any:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(small_config(kind, **changes), attn_implementation="eager")
    for name, parameter in model.named_parameters():
        values = torch.randn(parameter.shape) * 0.1 + float("norm" in name)
        parameter.data = values.bfloat16().float()
    return model


def write_mxfp4(folder: Path, *, drop: str = "", **quantization: Any) -> Written:
    model = model_of("gpt_oss", hidden_size=96)
    tensors = {name: p.data.bfloat16() for name, p in model.named_parameters()}
    table = torch.tensor([sign * size for sign in (1.0, -1.0) for size in CODES])
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, columns, rows = tensors.pop(name).shape
        blocks = torch.randint(0, 256, (experts, rows, columns // 32, 16), dtype=torch.uint8)
        scales = torch.randint(119, 124, (experts, rows, columns // 32), dtype=torch.uint8)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        codes = torch.stack((blocks & 15, blocks >> 4), -1).flatten(-2).long()
        values = (table[codes] * torch.exp2(scales.float() - 127)[..., None]).flatten(-2)
        model.get_parameter(name).data = values.transpose(1, 2).contiguous()
    tensors = {name: tensor for name, tensor in tensors.items() if not drop or drop not in name}
    return Written(folder, model, tensors, {"quant_method": "mxfp4", **quantization})


def write_fp8(folder: Path, kind: str, name: str) -> Written:
    """Writes each expert as linear layers of its own, as checkpoints in 8 bits do."""
    sizes = {"hidden_size": 128, "moe_intermediate_size": 128, "intermediate_size": 192, "num_attention_heads": 8}
    if kind not in ("glm4_moe", "qwen3_moe"):
        del sizes["moe_intermediate_size"]
    model, made = model_of(kind, **sizes), FORMATS[name]
    tensors = _quantize(model, made.quantize)
    tensors |= {name: values for name, values in model.state_dict().items() if name.endswith("correction_bias")}
    for key, _ in model.named_parameters():
        if not key.endswith((".experts.gate_up_proj", ".experts.down_proj")):
            continue
        tensors.pop(key, None)
        module, _, leaf = key.rpartition(".")
        weight = model.get_parameter(key).data
        for expert, whole in enumerate(weight.float()):
            parts = whole.chunk(2) if leaf == "gate_up_proj" else [whole]
            names = ["gate_proj", "up_proj"] if leaf == "gate_up_proj" else ["down_proj"]
            layers = [made.quantize(part) for part in parts]
            weight[expert] = torch.cat([layer.values for layer in layers])
            for part, layer in zip(names, layers, strict=True):
                tensors |= {f"{module}.{expert}.{part}.{end}": tensor for end, tensor in layer.stored.items()}
    if kind == "mixtral":
        for old, new in (("gate_proj", "w1"), ("up_proj", "w3"), ("down_proj", "w2"), (".mlp.", ".block_sparse_moe.")):
            tensors = {key.replace(old, new): tensor for key, tensor in tensors.items()}
    return Written(folder, model, tensors, made.config)


def write(case: str, folder: Path) -> Written:
    return write_mxfp4(folder) if case == "mxfp4" else write_fp8(folder, *case.split())


def logits(model: Any) -> Tensor:
    with torch.inference_mode():
        return model(TOKENS, use_cache=False).logits[0]


@pytest.mark.parametrize("case", CASES)
def test_dense_logits_equal_those_of_the_stored_values(case: str, tmp_path: Path) -> None:
    written = write(case, tmp_path)
    model = load_weights(written.source, "cpu", torch.float32, "eager")
    expected = logits(written.reference)
    torch.testing.assert_close(logits(model), expected, rtol=1e-4, atol=1e-4 * float(expected.std()))


@pytest.mark.parametrize("case", CASES)
def test_quantised_experts_compute_the_same_in_own_layers(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expert_modules, "stays_dense", lambda device: False)  # as on a GPU
    written = write(case, tmp_path)
    model = load_weights(written.source, "cpu", torch.float32)
    kind = Mxfp4Weight if case == "mxfp4" else Fp8ExpertWeight
    assert all(isinstance(weight, kind) for weight in model.model.layers[1].mlp.experts.quantized)
    assert not any(".experts." in name and "bias" not in name for name, _ in model.named_parameters())
    monkeypatch.setattr(
        "support.engines.ModelRunner",
        lambda model, **_: ModelRunner(model, vocab_size=320, context_length=256, page_size=16, fused=True),
    )
    requests = make_requests(4, vocab_size=320, max_new_tokens=12)
    engine = make_engine(model, model, max_k=2)
    assert engine.target.fused
    completions = run(engine, requests, 2)
    assert [list(c.token_ids) for c in completions] == generate(written.reference, requests)


@pytest.mark.gpu
@pytest.mark.parametrize("case", [*CASES, "mixtral fp8-block", "olmoe ct-dynamic", "qwen2_moe fp8-block"])
def test_quantised_mixtures_generate_on_a_gpu(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = write(case, tmp_path)
    model = load_weights(written.source, "cuda", torch.bfloat16)
    monkeypatch.setattr(
        "support.engines.ModelRunner",
        lambda model, **_: ModelRunner(model, vocab_size=320, context_length=256, page_size=16),
    )
    engine = make_engine(model, copy.deepcopy(model), max_k=2)
    assert engine.target.fused == (not case.startswith("qwen2_moe")) and engine.target.compiled != engine.target.fused
    completions = run(engine, make_requests(7, vocab_size=320, max_new_tokens=12), 2)
    assert [len(c.token_ids) for c in completions] == [12] * 7
    assert engine.target.uncompiled_forwards == 0
    assert sum(c.accepted_tokens for c in completions) > 0.5 * sum(c.draft_tokens for c in completions)


@pytest.mark.parametrize("case", CASES)
def test_outlines_and_plans_have_the_bytes_of_the_checkpoint(case: str, tmp_path: Path) -> None:
    written = write(case, tmp_path)
    outline = load_outline(written.source, torch.bfloat16)
    stored = sum(t.nbytes for t in (*outline.parameters(), *outline.buffers()) if t.is_meta)
    rotary = sum(t.nbytes for name, t in outline.named_buffers() if "inv_freq" in name)
    assert plan_weights(written.source, dtype="bfloat16", device="cuda", quantize="none").bytes == stored - rotary


@pytest.mark.parametrize("kind", ["qwen3_moe", "gpt_oss"])
def test_model_quantize_rounds_experts_by_channel(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = resolve(str(make_small_model(kind, tmp_path, seed=0)), "target")
    dense = load_model(source, "cpu", torch.float32, "eager").model.layers[0].mlp.experts.down_proj
    rounded = load_weights(source, "cpu", torch.float32, quantize="fp8").model.layers[0].mlp.experts.down_proj
    assert 0 < float((rounded - dense).abs().max() / dense.abs().max()) < 1 / 16
    monkeypatch.setattr(expert_modules, "stays_dense", lambda device: False)
    kept = load_weights(source, "cpu", torch.float32, quantize="fp8").model.layers[0].mlp.experts.quantized[1]
    assert isinstance(kept, Fp8ExpertWeight) and kept.block == (1, kept.values.shape[2])
    values = kept.values.float() * kept.scale
    assert torch.equal(values.transpose(1, 2) if kind == "gpt_oss" else values, rounded)


def test_layers_that_the_family_leaves_out_are_not_read(tmp_path: Path) -> None:
    """Layers that predict further tokens (MTP), 8-bit experts among them, stand in checkpoints of DeepSeek and GLM."""
    written = write_fp8(tmp_path, "glm4_moe", "fp8-block")
    tensors = load_file(tmp_path / "model.safetensors")
    more = {
        name.replace(".1.", ".46.", 1): values for name, values in tensors.items() if name.startswith("model.layers.1.")
    }
    save_file(tensors | {name: values.clone() for name, values in more.items()}, tmp_path / "model.safetensors")
    expected = logits(written.reference)
    got = logits(load_weights(written.source, "cpu", torch.float32, "eager"))
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4 * float(expected.std()))


def test_a_scale_of_mxfp4_that_is_nan_is_named(tmp_path: Path) -> None:
    written = write_mxfp4(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    name = "model.layers.1.mlp.experts.down_proj_scales"
    tensors[name].view(-1)[3] = 255
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=rf"{name} in .*model\.safetensors has 1 of .* are NaN or infinite"):
        load_weights(written.source, "cpu", torch.float32)


def test_missing_scales_and_missing_configuration_are_named(tmp_path: Path) -> None:
    written = write_mxfp4(tmp_path / "scales", drop="layers.1.mlp.experts.down_proj_scales")
    with pytest.raises(ModelError, match=r"experts model.layers.1.mlp.experts do not fit.*lacks down_proj_scales"):
        load_weights(written.source, "cpu", torch.float32)
    written = write_mxfp4(tmp_path / "method", quant_method="fp8")
    with pytest.raises(ModelError, match=r"stored in mxfp4, and config.json has fp8; expected quant_method mxfp4"):
        load_weights(written.source, "cpu", torch.float32)


def test_a_missing_expert_is_named(tmp_path: Path) -> None:
    written = write_fp8(tmp_path, "qwen3_moe", "fp8-block")
    tensors = load_file(tmp_path / "model.safetensors")
    for end in ("weight", "weight_scale_inv"):
        del tensors[f"model.layers.0.mlp.experts.3.up_proj.{end}"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"lacks model.layers.0.mlp.experts.down_proj"):
        load_weights(written.source, "cpu", torch.float32)
