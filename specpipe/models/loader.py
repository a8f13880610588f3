"""Model loading: configuration and weights, checked for completeness."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from specpipe.errors import ModelError
from specpipe.models.source import ModelSource
from specpipe.models.support import check_class

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# transformers replaces parts of torch while it loads; two concurrent loads would leave them replaced.
_LOAD_LOCK = threading.Lock()


def load_config(source: ModelSource, *, trust_remote_code: bool = False) -> Any:
    """Returns the model's transformers configuration, a new object per call, without padding. Raises ModelError."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(source.path, local_files_only=True, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError, StrictDataclassError) as error:
        raise ModelError(f"model {source.name}: config.json cannot be used: {error}") from error
    with suppress(StrictDataclassError):  # some families require an id
        config.pad_token_id = None  # else GPT-2 searches the ids for padding, which synchronises with the host
    return config


def load_model(
    source: ModelSource,
    device: torch.device | str,
    dtype: torch.dtype,
    attn_implementation: str = "specpipe",
    *,
    trust_remote_code: bool = False,
) -> PreTrainedModel:
    """Loads a causal language model in eval mode, without gradients.

    Each call builds its own configuration: models that share one would share their attention implementation. Raises
    ModelError, also for a checkpoint with missing weights.
    """
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    config = load_config(source, trust_remote_code=trust_remote_code)
    try:
        with _LOAD_LOCK:
            model, info = AutoModelForCausalLM.from_pretrained(
                source.path,
                config=config,
                dtype=dtype,
                attn_implementation=attn_implementation,
                local_files_only=True,
                use_safetensors=any(
                    Path(source.path).glob("*.safetensors")
                ),  # resolve() has checked the permission for pickles
                weights_only=True,
                trust_remote_code=trust_remote_code,
                output_loading_info=True,
            )
    except pickle.UnpicklingError:
        raise ModelError(
            f"model {source.name} cannot be loaded: its pytorch_model*.bin hold more than weights, which could run "
            "code; expected a checkpoint in safetensors"
        ) from None
    except (OSError, ValueError, ImportError, KeyError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"model {source.name} cannot be loaded from {source.path}: {error}") from error
    _check_complete(source, info)
    check_class(type(model), source.name)
    result: PreTrainedModel = model.to(device).eval().requires_grad_(False)
    return result


def outline_of(config: Any, dtype: torch.dtype, *, trust_remote_code: bool = False) -> PreTrainedModel:
    """Builds a model without weights on torch's `meta` device, for compiling kernels ahead of time.

    It has as few layers as contain every layer type, at least two (a first and a last one). Changes `config` in place.
    """
    from transformers import AutoModelForCausalLM

    kinds = list(getattr(config, "layer_types", None) or ())
    layers = max([2, *(kinds.index(kind) + 1 for kind in kinds)])
    if layers < config.num_hidden_layers:
        config.num_hidden_layers = layers
        if kinds:
            config.layer_types = kinds[:layers]
    config.quantization_config = None
    with _LOAD_LOCK, torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            config, dtype=dtype, attn_implementation="specpipe", trust_remote_code=trust_remote_code
        )
    return model.eval().requires_grad_(False)


def skeleton_of(
    config: Any, dtype: torch.dtype, attn_implementation: str, *, trust_remote_code: bool = False
) -> PreTrainedModel:
    """Builds a model whose parameters are on torch's `meta` device and whose buffers hold their values.

    Changes `config` in place. Raises ModelError for a class that cannot be served.
    """
    from transformers import AutoModelForCausalLM

    config.quantization_config = None
    with _LOAD_LOCK, _parameters_on_meta():
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            config, dtype=dtype, attn_implementation=attn_implementation, trust_remote_code=trust_remote_code
        )
    check_class(type(model), config.model_type)
    return model.eval().requires_grad_(False)


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Moves each parameter to `meta` as a module registers it, before any of its memory is touched."""

    def on_meta(module: nn.Module, name: str, param: nn.Parameter) -> Any:  # torch annotates hooks as returning None
        return None if param.is_meta else nn.Parameter(param.to("meta"), requires_grad=False)

    handle = register_module_parameter_registration_hook(on_meta)
    try:
        yield
    finally:
        handle.remove()


def _check_complete(source: ModelSource, info: dict[str, Any]) -> None:
    """Raises ModelError for missing or mismatched weights, which transformers initialises randomly with a warning."""
    missing = sorted(map(str, info.get("missing_keys") or ()))
    mismatched = sorted(str(entry[0]) for entry in info.get("mismatched_keys") or ())
    if missing or mismatched:
        wrong = [f"lacks {missing[0]}"] if missing else []
        wrong += [f"has another shape for {mismatched[0]}"] if mismatched else []
        raise ModelError(
            f"model {source.name}: the weights in {source.path} do not fit its config.json ({', '.join(wrong)}; "
            f"{len(missing) + len(mismatched)} in all); expected a complete checkpoint of a causal language model"
        )
