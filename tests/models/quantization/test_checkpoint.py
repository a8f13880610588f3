"""Configurations of quantised checkpoints: layers that they exclude, and what is refused before weights are read."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.quantized_checkpoints import FORMATS, write_checkpoint
from torch import Tensor

from specpipe.errors import ModelError
from specpipe.models.quantization.checkpoint import inspect_checkpoint, read_rules
from specpipe.models.source import ModelSource


def rules_of(folder: Path, config: Any) -> Any:
    (folder / "config.json").write_text(json.dumps({"quantization_config": config}))
    return read_rules(ModelSource(path=str(folder), name="big", revision=""))


@pytest.mark.parametrize(
    ("name", "key", "excluded", "module", "kept"),
    [
        ("ct-dynamic", "ignore", "lm_head", "lm_head", "model.lm_head"),
        ("ct-dynamic", "ignore", "re:.*gate$", "model.layers.0.mlp.gate", "model.layers.0.mlp.gate_proj"),
        ("ct-dynamic", "ignore", "re:model.layers.1[.]", "model.layers.1.mlp.up_proj", "x.model.layers.1.up_proj"),
        ("fp8-block", "modules_to_not_convert", "model.layers.1", "model.layers.1.mlp.a", "model.layers.11.mlp.a"),
        ("fp8-block", "modules_to_not_convert", "mlp.gate", "model.layers.0.mlp.gate", "model.layers.0.mlp.gate_proj"),
        ("modelopt-channel", "ignore", "model.layers.1*", "model.layers.11.a", "model.layers.2.a"),
        ("modelopt-channel", "ignore", "model.layers.1", "model.layers.1.a", "model.layers.11.a"),
        ("awq", "modules_to_not_convert", "gate", "model.layers.0.mlp.gate_proj", "model.layers.0.mlp.up_proj"),
        ("gptq", "dynamic", {"-:.*down.*": {}}, "model.layers.0.mlp.down_proj", "model.layers.0.mlp.up_proj"),
    ],
)
def test_lists_of_excluded_layers(name: str, key: str, excluded: Any, module: str, kept: str, tmp_path: Path) -> None:
    entries = excluded if isinstance(excluded, dict) else [excluded]
    rules = rules_of(tmp_path, FORMATS[name].config | {key: entries})
    assert rules.layout_of(module) is None and rules.layout_of(kept) is not None


def test_groups_of_compressed_tensors_apply_from_name_to_class(tmp_path: Path) -> None:
    config = copy.deepcopy(FORMATS["ct-dynamic"].config)
    group = config["config_groups"]["group_0"]
    special = copy.deepcopy(group) | {"targets": ["re:.*down_proj"]}
    special["weights"]["strategy"] = "tensor"
    config["config_groups"] = {"group_0": group, "group_1": special}
    rules = rules_of(tmp_path, config)
    assert [rules.layout_of(f"model.layers.0.mlp.{name}").granularity for name in ("down_proj", "up_proj")] == [
        "tensor",
        "channel",
    ]


def weights(name: str, **changes: Any) -> dict[str, Any]:
    config = copy.deepcopy(FORMATS[name].config)
    config["config_groups"]["group_0"]["weights"] |= changes
    return config


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quant_method": "bitsandbytes"}, "quant_method is bitsandbytes; expected one of compressed-tensors, fp8, mo"),
        (weights("ct-dynamic", num_bits=4), r"weights is \('float', 4\); expected \('float', 8\) or \('int', 4\)"),
        (weights("ct-dynamic", type="int"), r"weights is \('int', 8\); expected"),
        (weights("ct-block", block_structure=[64, 64]), r"block_structure is \[64, 64\]; expected \[128, 128\]"),
        (FORMATS["ct-dynamic"].config | {"quantization_status": "frozen"}, "status is frozen; expected compressed"),
        (FORMATS["ct-dynamic"].config | {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparse-24-bitmask"),
        (FORMATS["ct-dynamic"].config | {"transform_config": {"config_groups": {"u": 1}}}, "rotates weights"),
        (FORMATS["ct-dynamic"].config | {"config_groups": {"a": {}}}, r"config_groups\.a.*Field required"),
        (FORMATS["fp8-block"].config | {"weight_block_size": [1, 32]}, r"weight_block_size is \[1, 32\]"),
        (FORMATS["fp8-block"].config | {"fmt": "e5m2"}, "fmt is e5m2; expected e4m3"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "quant_algo is NVFP4; expected FP8 or FP8_PER_CHANNEL"),
        (FORMATS["awq"].config | {"version": "gemv"}, "version is gemv; expected gemm"),
        (FORMATS["gptq"].config | {"bits": 8}, "bits is 8; expected 4"),
        (FORMATS["gptq"].config | {"checkpoint_format": "marlin"}, "checkpoint_format is marlin; expected gptq or gpt"),
        (FORMATS["gptq"].config | {"dynamic": {"+:.*down.*": {"bits": 8}}}, r"number format of \+:\.\*down"),
        (FORMATS["gptq"].config | {"group_size": 0}, "group_size: Value error, 0 inputs cannot share a scale"),
        (weights("w4a16", group_size=0), r"group_0\.weights\.group_size: Value error, 0 inputs"),
        (
            FORMATS["ct-dynamic"].config | {"ignore": ["re:(", "lm_head"]},
            r"have 're:\(', which is not a regular expres",
        ),
        (FORMATS["fp8-block"].config | {"modules_to_not_convert": ["*head"]}, r"have '\*head', which is not a regular"),
        (["fp8"], r"quantization_config of config\.json is a list; expected an object"),
    ],
)
def test_unknown_formats_are_refused_with_the_reason(config: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=message):
        rules_of(tmp_path, config)


@pytest.mark.parametrize(("name", "order"), [("gptq", "g_idx"), ("w4a16", "weight_g_idx")])
def test_permuted_groups_are_refused_before_weights_are_read(name: str, order: str, tmp_path: Path) -> None:
    def permute(tensors: dict[str, Tensor]) -> None:
        tensors[f"model.layers.1.mlp.up_proj.{order}"] = torch.randperm(256).to(torch.int32) // 64

    folder = write_checkpoint(tmp_path, name, change=permute).folder
    with pytest.raises(ModelError, match=rf"layers\.1\.mlp\.up_proj does not fit 4 bits .*{order} permutes its groups"):
        inspect_checkpoint(ModelSource(path=str(folder), name="big", revision=""))


def test_experts_in_4_bits_are_refused_before_weights_are_read(tmp_path: Path) -> None:
    def add(tensors: dict[str, Tensor]) -> None:
        for part in ("weight_packed", "weight_scale", "weight_shape", "weight_g_idx"):
            tensors[f"model.layers.0.mlp.experts.0.up_proj.{part}"] = tensors[
                f"model.layers.0.mlp.up_proj.{part}"
            ].clone()

    folder = write_checkpoint(tmp_path, "w4a16", change=add).folder
    with pytest.raises(
        ModelError, match=r"experts\.0\.up_proj is an expert in 4 bits in groups of 64 \(compressed-tensors\), which"
    ):
        inspect_checkpoint(ModelSource(path=str(folder), name="big", revision=""))


def test_damaged_files_are_named(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, "ct-dynamic").folder
    file = folder / "model-00002-of-00002.safetensors"
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(ModelError, match=r"00002-of-00002\.safetensors is not a complete safetensors file"):
        inspect_checkpoint(ModelSource(path=str(folder), name="big", revision=""))
    (folder / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ModelError, match=r"index\.json is not an index of weights with a weight_map \(KeyError"):
        inspect_checkpoint(ModelSource(path=str(folder), name="big", revision=""))
