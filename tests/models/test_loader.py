"""load_model: folders of several families, and refusal of incomplete checkpoints."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.small_models import KINDS, make_small_model, small_config
from transformers import ModernBertDecoderConfig

from specpipe.errors import ModelError
from specpipe.models.loader import load_config, load_model
from specpipe.models.source import ModelSource, resolve


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_small_model("llama", tmp_path_factory.mktemp("models") / "llama", seed=3)


@pytest.mark.parametrize("kind", KINDS)
def test_loads_every_family_ready_to_generate(kind: str, tmp_path: Path) -> None:
    source = resolve(str(make_small_model(kind, tmp_path / kind, seed=1)), "target")
    model = load_model(source, "cpu", torch.float32, "eager")
    assert not model.training and not any(p.requires_grad for p in model.parameters())
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    with torch.inference_mode():
        logits = model(torch.tensor([[0, 7, 9]]), use_cache=False).logits
    assert logits.shape == (1, 3, 320) and torch.isfinite(logits).all() and logits.std() > 0.1


def test_two_models_of_one_folder_share_nothing(llama: Path) -> None:
    source = resolve(str(llama), "target")
    first = load_model(source, "cpu", torch.float32, "eager")
    second = load_model(source, "cpu", torch.float32, "sdpa")
    assert first.config._attn_implementation == "eager" and second.config._attn_implementation == "sdpa"
    assert torch.equal(next(first.parameters()), next(second.parameters()))


def test_loads_in_the_dtype_asked_for(llama: Path) -> None:
    model = load_model(resolve(str(llama), "target"), "cpu", torch.bfloat16, "eager")
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}


def damaged(llama: Path, tmp_path: Path, change: str) -> ModelSource:
    folder = tmp_path / "damaged"
    folder.mkdir()
    for name in ("config.json", "generation_config.json"):
        (folder / name).write_bytes((llama / name).read_bytes())
    weights = load_file(llama / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    if change == "missing":
        del weights[name]
    elif change == "shape":
        weights[name] = weights[name][:-1].contiguous()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    if change == "truncated":
        file = folder / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-100])
    return resolve(str(folder), "target")


@pytest.mark.parametrize("change", ["missing", "shape", "truncated"])
def test_damaged_weights_are_refused_and_never_made_up(llama: Path, tmp_path: Path, change: str) -> None:
    with pytest.raises(ModelError, match="damaged"):
        load_model(damaged(llama, tmp_path, change), "cpu", torch.float32, "eager")


def test_a_config_of_an_unknown_kind_is_refused(llama: Path, tmp_path: Path) -> None:
    source = damaged(llama, tmp_path, "none")
    (Path(source.path) / "config.json").write_text(json.dumps({"model_type": "no-such-thing"}))
    with pytest.raises(ModelError, match=r"config\.json cannot be used"):
        load_config(source)


def test_importing_the_package_imports_neither_torch_nor_transformers() -> None:
    """`specpipe --help` must not wait seconds for them."""
    code = "import sys, specpipe.models.source, specpipe.models.support, specpipe.models.tokenizer as t; "
    code += "print(sorted({'torch', 'transformers', 'jinja2', 'huggingface_hub'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_a_checkpoint_of_pickles_loads_the_same_weights(llama: Path, tmp_path: Path) -> None:
    folder = tmp_path / "old"
    folder.mkdir()
    whole = load_model(resolve(str(llama), "target"), "cpu", torch.float32, "eager")
    torch.save(whole.state_dict(), folder / "pytorch_model.bin")
    (folder / "config.json").write_text((llama / "config.json").read_text())
    old = load_model(resolve(str(folder), "target", allow_pickle=True), "cpu", torch.float32, "eager")
    assert all(torch.equal(weights, old.state_dict()[name]) for name, weights in whole.state_dict().items())


def test_a_pickle_that_would_run_code_is_refused(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "evil"
    folder.mkdir()
    torch.save({"model.embed_tokens.weight": _Evil()}, folder / "pytorch_model.bin")
    (folder / "config.json").write_text((llama / "config.json").read_text())
    with pytest.raises(ModelError, match=r"evil cannot be loaded: .* hold more than weights"):
        load_model(resolve(str(folder), "target", allow_pickle=True), "cpu", torch.float32, "eager")
    assert not Path("ran").exists()


class _Evil:
    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return open, ("ran", "w")


def test_models_can_be_loaded_by_several_threads() -> None:
    source = resolve("builtin:tiny", "target")
    with ThreadPoolExecutor(4) as threads:
        models = [threads.submit(load_model, source, "cpu", torch.float32, "eager") for _ in range(4)]
        for model in models:
            assert model.result().lm_head.weight is model.result().model.embed_tokens.weight  # tied


def test_configurations_have_no_padding_unless_the_family_requires_it(tmp_path: Path) -> None:
    found = []
    for name, config in (("llama", small_config("llama", pad_token_id=2)), ("bert", ModernBertDecoderConfig())):
        config.save_pretrained(tmp_path / name)
        found.append(load_config(ModelSource(path=str(tmp_path / name), name=name, revision="")).pad_token_id)
    assert found == [None, 50283]
    (tmp_path / "bert/config.json").write_text('{"model_type": "modernbert-decoder", "pad_token_id": "none"}')
    with pytest.raises(ModelError, match=r"model bert: config.json cannot be used: .*pad_token_id"):
        load_config(ModelSource(path=str(tmp_path / "bert"), name="bert", revision=""))
