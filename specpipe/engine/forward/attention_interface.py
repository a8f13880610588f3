"""The attention function of transformers models loaded with `attn_implementation="specpipe"`.

Every forward is packed: one batch row that holds the N tokens of all rows behind each other, so that prefill
chunks and decode rounds take the same path and no shape but N depends on the batch.

Shapes: N tokens, Hq/Hkv query/KV heads, D head size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from specpipe.engine.forward.attention_batch import AttentionBatch, AttentionSpec
from specpipe.engine.forward.kv_attention import LayerCall, attend, attend_compiled
from specpipe.errors import ModelError

ATTENTION_NAME = "specpipe"

# Keywords that transformers passes along and that do not affect attention over our own KV memory.
_IGNORED = frozenset(
    {
        "dropout",
        "is_causal",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "position_ids",
        "use_cache",
    }
)


class AttentionProbe:
    """Collects the `AttentionSpec` of every attention module while a model runs once without KV memory."""

    def __init__(self) -> None:
        self.specs: dict[nn.Module, AttentionSpec] = {}

    def record(self, module: nn.Module, spec: AttentionSpec) -> None:
        """Adds a module. Raises ModelError if it attends twice in one forward."""
        if module in self.specs:
            raise ModelError(
                f"{type(module).__name__} attends twice in one forward; expected one attention a layer, whose keys and "
                "values can be kept in one place"
            )
        self.specs[module] = spec


def _attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    specpipe_batch: AttentionBatch | AttentionProbe | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """query [1, Hq, N, D], key and value [1, Hkv, N, D] → ([1, N, Hq, D], None), as transformers expects.

    Raises NotImplementedError for a mask or a keyword that specpipe's attention does not support.
    """
    if specpipe_batch is None:
        # A compiled layer. Its other arguments are as they were when the layer was probed; reading them here would
        # add guards to the compiled code.
        return attend_compiled(query, key, value), None
    unknown = sorted(name for name, given in others.items() if given is not None and name not in _IGNORED)
    if unknown or attention_mask is not None:
        # An attention feature that is ignored would give wrong text without an error.
        raise NotImplementedError(
            f"{type(module).__name__} passes {', '.join(unknown) or 'a mask'} to attention, which specpipe does not "
            "support"
        )
    spec = AttentionSpec(key.shape[1], key.shape[3], value.shape[3], scaling, sliding_window, softcap, s_aux)
    if isinstance(specpipe_batch, AttentionProbe):
        specpipe_batch.record(module, spec)
        return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3]), None
    return attend(LayerCall(module, spec, specpipe_batch), query, key, value), None


def register() -> None:
    """Registers `attn_implementation="specpipe"`. Without an entry in the mask registry no mask is ever built."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION_NAME, _attention_forward)


def probe_attention(model: nn.Module, device: torch.device) -> dict[nn.Module, AttentionSpec]:
    """Returns the `AttentionSpec` of every attention module, found by one forward over two tokens.

    Raises ModelError for a model that was loaded without specpipe's attention.
    """
    probe = AttentionProbe()
    tokens = torch.zeros(1, 2, dtype=torch.int64, device=device)
    with torch.inference_mode():
        model(
            input_ids=tokens,
            position_ids=torch.arange(2, device=device)[None],
            use_cache=False,
            logits_to_keep=1,
            specpipe_batch=probe,
        )
    if not probe.specs:
        raise ModelError(
            f"{type(model).__name__} never called specpipe's attention; expected a model that is loaded with it"
        )
    return probe.specs
