"""load_weights: logits and greedy tokens of every quantised format, and of weights quantised at load."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.engines import generate, make_engine, make_requests, run, slow
from support.quantized_checkpoints import FORMATS, QuantizedCheckpoint, write_checkpoint
from support.small_models import make_small_model
from torch import Tensor

from specpipe.engine.forward.attention_interface import register
from specpipe.engine.forward.model_runner import ModelRunner
from specpipe.engine.forward.quantized_linear import QuantizedLinear
from specpipe.engine.loading.linear_modules import quantize_linears
from specpipe.engine.loading.load_weights import check_tensors, load_weights
from specpipe.errors import ModelError
from specpipe.models.loader import load_model
from specpipe.models.source import resolve
from specpipe_kernels import dequantize

TOKENS = torch.tensor([[5, 77, 31, 200, 9, 310]])


def load(checkpoint: QuantizedCheckpoint, attention: str = "eager", **options: Any) -> Any:
    return load_weights(resolve(str(checkpoint.folder), "target"), "cpu", torch.float32, attention, **options)


def logits(model: Any) -> Tensor:
    with torch.inference_mode():
        return model(TOKENS, use_cache=False).logits[0].double()


@pytest.mark.parametrize("name", FORMATS)
def test_logits_equal_those_of_the_stored_values(name: str, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path, name)
    expected = logits(checkpoint.reference)
    torch.testing.assert_close(logits(load(checkpoint)), expected, rtol=1e-4, atol=1e-4 * float(expected.std()))


@pytest.mark.parametrize(
    ("name", "kind"), [("ct-dynamic", "llama"), ("awq", "qwen3"), *(slow(name, "llama") for name in FORMATS)]
)
def test_greedy_tokens_equal_generate_on_the_stored_values(name: str, kind: str, tmp_path: Path) -> None:
    register()
    checkpoint = write_checkpoint(tmp_path, name, kind=kind)
    model = load(checkpoint, "specpipe")
    requests = make_requests(4, vocab_size=320, max_new_tokens=12)

    completions = run(make_engine(model, model, max_k=2), requests, 2)

    assert [list(c.token_ids) for c in completions] == generate(checkpoint.reference.float(), requests)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["ct-dynamic", "fp8-block", "awq"])
def test_layers_on_a_gpu_hold_the_stored_values(name: str, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path, name)
    model = load_weights(resolve(str(tmp_path), "target"), "cuda", torch.bfloat16, "eager")
    found = {name: module for name, module in model.named_modules() if isinstance(module, QuantizedLinear)}
    assert len(found) == 14
    for place, module in found.items():
        expected = checkpoint.reference.get_submodule(place).weight
        torch.testing.assert_close(dequantize(module.quantized, torch.float32).cpu().double(), expected)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("llama", "ct-dynamic"),
        ("mistral", "modelopt"),
        ("qwen2", "fp8-block"),
        ("qwen3", "awq"),
        ("llama", "gptq-asym"),
        ("gemma", "w4a16"),
        ("gemma2", "ct-dynamic"),
        ("gemma3_text", "ct-static"),
        ("phi3", "fp8-block"),
    ],
)
def test_forwards_on_a_gpu_compute_with_the_stored_values(kind: str, name: str, tmp_path: Path) -> None:
    """Rounding inputs to 8 bits changes logits by up to a fifth of their size, other weights by all of it."""
    register()
    checkpoint = write_checkpoint(tmp_path, name, kind=kind, spread=0.2)
    model = load_weights(resolve(str(tmp_path), "target"), "cuda", torch.bfloat16)
    runner = ModelRunner(model, vocab_size=320, context_length=512, page_size=16)
    assert runner.fused or runner.compiled
    runner.allocate_pages(10)
    tokens = torch.arange(130) * 7 % 320
    chunks = ((0, 70), (70, 71), (71, 130))
    got = torch.cat([runner._feed_alone(tokens.cuda(), *chunk, keep=0) for chunk in chunks]).double().cpu()
    with torch.inference_mode():
        expected = checkpoint.reference(tokens[None], use_cache=False).logits[0]
    assert float((got - expected).norm() / expected.norm()) < 0.3
    assert runner.uncompiled_forwards == 0


def edited(name: str, edit: str) -> Callable[[dict[str, Tensor]], None]:
    """Returns a change of the tensors of layer 0."""
    at, other = "model.layers.0.mlp.gate_proj", "model.layers.0.mlp.up_proj"

    def change(tensors: dict[str, Tensor]) -> None:
        scale = next(key for key in tensors if key.startswith(at) and "scale" in key and "input" not in key)
        if edit == "swapped":
            tensors[scale], tensors[scale.replace(at, other)] = tensors[scale.replace(at, other)], tensors[scale]
        elif edit == "shifted":
            tensors[scale] = tensors[scale].roll(1, 0)
        elif edit == "transposed":
            attention = scale.replace(at, "model.layers.0.self_attn.q_proj")
            tensors[attention] = tensors[attention].T.contiguous()
        elif edit == "ignored":
            tensors[scale] = torch.ones_like(tensors[scale])

    return change


@pytest.mark.parametrize(
    ("name", "edit"),
    [("ct-dynamic", "shifted"), ("ct-static", "swapped"), ("fp8-block", "transposed"), slow("awq", "shifted")]
    + [slow(name, "ignored") for name in FORMATS],
)
def test_a_wrong_scale_changes_logits_by_more_than_the_tolerance(name: str, edit: str, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path, name, change=edited(name, edit))
    expected = logits(checkpoint.reference)
    assert float((logits(load(checkpoint)) - expected).abs().max()) > 1e-2 * float(expected.std())


def without(*names: str) -> Callable[[dict[str, Tensor]], None]:
    return lambda tensors: [tensors.pop(name) for name in names] and None


def also(name: str, tensor: Tensor) -> Callable[[dict[str, Tensor]], None]:
    return lambda tensors: tensors.update({name: tensor})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("model.norm.weight"), r"it lacks model\.norm\.weight; expected a complete"),
        (
            without("model.layers.1.mlp.up_proj.weight", "model.layers.1.mlp.up_proj.weight_scale"),
            "lacks model.*up_pro",
        ),
        (
            also("model.norm.weight", torch.ones(255)),
            r"other shapes .*: model\.norm\.weight F32 \[255\] in model-0000\d.*\.safetensors \(expected \[256\]\)",
        ),
        (
            also("model.layers.0.mlp.up_proj.weight", torch.ones(300, 256).to(torch.float8_e4m3fn)),
            r"up_proj does not fit FP8 by channel .*weight_scale has shape \[320, 1\]",
        ),
        (
            also("model.norm.weight", torch.ones(256, dtype=torch.int32)),
            r"has other dtypes: model\.norm\.weight I32 \[256\] in .*\(expected floating-point\)",
        ),
        (also("model.extra.weight", torch.ones(3)), r"unexpected model\.extra\.weight"),
        (
            also("model.layers.0.mlp.up_proj.weight_zero_point", torch.ones(3)),
            "has weight_zero_point; expected weight,",
        ),
        (without("model.layers.0.mlp.up_proj.weight_scale"), r"up_proj lacks weight_scale; expected weight, weight_sc"),
        (also("lm_head.weight", torch.ones(320, 256).to(torch.float8_e4m3fn)), "lm_head is stored quantised, and"),
    ],
)
def test_tensors_that_do_not_fit_are_named(change: Any, message: str, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path, "ct-dynamic", change=change)
    with pytest.raises(ModelError, match=message):
        load(checkpoint)


@pytest.mark.parametrize(
    ("kind", "name", "tensor", "message"),
    [
        (
            "llama",
            "model.layers.1.mlp.up_proj.weight",
            None,
            r"it lacks model\.layers\.1\.mlp\.up_proj\.weight; expected",
        ),
        (
            "gpt2",
            "transformer.h.1.mlp.c_fc.weight",
            torch.ones(9, 4),
            r"c_fc\.weight F32 \[9, 4\] in .*\(expected \[48, 192\]",
        ),
        (
            "mixtral",
            "model.norm.weight",
            torch.ones(64).int(),
            r"model\.norm\.weight I32 \[64\] in .*\(expected floating",
        ),
    ],
)
def test_headers_that_do_not_fit_the_configuration_are_named(
    kind: str, name: str, tensor: Tensor | None, message: str, tmp_path: Path
) -> None:
    make_small_model(kind, tmp_path, seed=1)
    source, file = resolve(str(tmp_path), "target"), tmp_path / "model.safetensors"
    check_tensors(source)
    tensors = {key: values for key, values in load_file(file).items() if key != name}
    save_file(tensors if tensor is None else tensors | {name: tensor}, file, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=message):
        check_tensors(source)
    with pytest.raises(ModelError, match=message):
        load_weights(source, "cpu", torch.float32, "eager")


@pytest.mark.parametrize(
    ("name", "scale", "value"),
    [
        ("fp8-block", "weight_scale_inv", float("nan")),
        ("awq", "scales", float("inf")),
        slow("w4a16", "weight_scale", float("nan")),
    ],
)
def test_scales_that_are_not_finite_are_named(name: str, scale: str, value: float, tmp_path: Path) -> None:
    def spoil(tensors: dict[str, Tensor]) -> None:
        tensors[f"model.layers.1.mlp.up_proj.{scale}"].view(-1)[1] = value

    checkpoint = write_checkpoint(tmp_path, name, change=spoil)
    with pytest.raises(
        ModelError, match=rf"layers\.1\.mlp\.up_proj\.{scale} in .*\.safetensors has 1 of .* are NaN or"
    ):
        load(checkpoint)


def test_layers_in_16_bits_and_tied_heads_stay(tmp_path: Path) -> None:
    def dense(tensors: dict[str, Tensor]) -> None:
        values, scale = (tensors.pop(f"model.layers.0.mlp.up_proj.{part}") for part in ("weight", "weight_scale"))
        tensors["model.layers.0.mlp.up_proj.weight"] = values.float() * scale.float()

    checkpoint = write_checkpoint(tmp_path, "ct-dynamic", change=dense, tie_word_embeddings=True)
    model = load(checkpoint)
    torch.testing.assert_close(logits(model), logits(checkpoint.reference), rtol=1e-4, atol=1e-3)
    assert model.lm_head.weight is model.model.embed_tokens.weight


@pytest.mark.parametrize(
    ("names", "values"),
    [
        (("self_attn.k_scale", "self_attn.v_scale"), ([0.5], [0.25])),
        (("self_attn.k_proj.k_scale", "self_attn.v_proj.v_scale"), ([0.5, 2.0], [0.25, 1.0])),
        (("self_attn.kv_scale",), ([0.5],)),
    ],
)
def test_scales_of_keys_and_values_are_buffers_of_the_attention(
    names: tuple[str, ...], values: tuple[list[float], ...], tmp_path: Path
) -> None:
    def scales(tensors: dict[str, Tensor]) -> None:
        for name, value in zip(names, values, strict=True):
            tensors[f"model.layers.1.{name}"] = torch.tensor(value)

    model = load(write_checkpoint(tmp_path, "modelopt", change=scales))
    attention = model.model.layers[1].self_attn
    assert [attention.k_scale.tolist(), attention.v_scale.tolist()] == [values[0], values[-1]]
    assert not hasattr(model.model.layers[0].self_attn, "k_scale")


@pytest.mark.parametrize("pickled", [False, True])
def test_quantising_at_load_rounds_as_a_whole_model_is_rounded(pickled: bool, tmp_path: Path) -> None:
    make_small_model("gpt2", tmp_path, seed=1)
    source = resolve(str(tmp_path), "target")
    expected = load_model(source, "cpu", torch.float32, "eager")
    if pickled:
        torch.save(expected.state_dict(), tmp_path / "pytorch_model.bin")
        (tmp_path / "model.safetensors").unlink()
    quantize_linears(expected)
    model = load_weights(source, "cpu", torch.float32, "eager", quantize="fp8")
    assert all(torch.equal(weights, expected.state_dict()[name]) for name, weights in model.state_dict().items())
    assert torch.equal(logits(model), logits(expected))
