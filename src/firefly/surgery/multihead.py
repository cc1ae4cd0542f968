"""`nn.MultiheadAttention` with any number of heads: torch's own takes the size of a head from the width of its input.

A module whose heads have grown becomes a `MultiheadAttention` of this file: the same object with the same parameters
under the same names, an `nn.MultiheadAttention` still, with a forward that reads the number of heads off its weights.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class MultiheadAttention(nn.MultiheadAttention):
    """The same function of the same parameters, for `num_heads` heads of `head_dim` entries each."""

    _qkv_same_embed_dim = property(lambda self: False, lambda self, value: None)  # torch's fast paths ask it

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,  # a hint that attn_mask is causal
    ) -> tuple[Tensor, Tensor | None]:
        batched = query.dim() == 3
        inputs = [x.unsqueeze(0) if not batched else x if self.batch_first else x.transpose(0, 1) for x in
                  (query, key, value)]  # fmt: skip
        if key_padding_mask is not None and not batched:
            key_padding_mask = key_padding_mask.unsqueeze(0)
        q, k, v = self._project(inputs)  # (N, heads, L or S, head_dim)
        causal = is_causal and key_padding_mask is None and not need_weights  # as torch takes the hint
        mask = None if causal else _join_masks(attn_mask, key_padding_mask, q, k)
        dropout = self.dropout if self.training else 0.0
        if need_weights:
            scores = q * math.sqrt(1 / self.head_dim) @ k.transpose(-2, -1)
            weights = torch.softmax(scores if mask is None else scores + mask, -1)
            weights = F.dropout(weights, dropout) if dropout else weights
            out = weights @ v
            weights = weights.mean(1) if average_attn_weights else weights
        else:
            out, weights = F.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal=causal), None
        out = self.out_proj(out.transpose(1, 2).flatten(2))
        if not batched:
            return out.squeeze(0), None if weights is None else weights.squeeze(0)
        return out if self.batch_first else out.transpose(0, 1), weights

    def _project(self, inputs: list[Tensor]) -> list[Tensor]:
        separate = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        weights = separate if self.in_proj_weight is None else self.in_proj_weight.chunk(3)
        biases = [None] * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        q, k, v = (F.linear(x, w, b) for x, w, b in zip(inputs, weights, biases))
        if self.bias_k is not None and self.bias_v is not None:
            k, v = (torch.cat([x, bias.expand(len(x), -1, -1)], 1) for x, bias in ((k, self.bias_k), (v, self.bias_v)))
        if self.add_zero_attn:
            k, v = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1))
        return [x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for x in (q, k, v)]


def _join_masks(attn: Tensor | None, padding: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
    """One mask to add to the scores (N, heads, L, S), or none."""
    masks = []
    if attn is not None:
        masks.append(attn if attn.dim() == 2 else attn.view(-1, q.shape[1], *attn.shape[1:]))
    if padding is not None:
        masks.append(padding[:, None, None])
    added = [
        m if m.is_floating_point() else torch.zeros_like(m, dtype=q.dtype).masked_fill(m, -math.inf) for m in masks
    ]
    added = [F.pad(mask, (0, k.shape[2] - mask.shape[-1])) for mask in added]  # bias_k and add_zero_attn lengthen S
    return sum(added[1:], added[0]) if added else None


def fit_class(module: Any) -> None:
    """Give an attention the forward that its number of heads needs."""
    if type(module) in (nn.MultiheadAttention, MultiheadAttention):
        plain = module.num_heads * module.head_dim == module.embed_dim
        module.__class__ = nn.MultiheadAttention if plain else MultiheadAttention


def list_openable(model: nn.Module) -> list[nn.Module]:
    """Every attention that may grow; with the forward of this file an export can follow it.

    An `nn.TransformerEncoder` with nested tensors hands them to its layers, which only torch's own forward takes.
    """
    encoders = [m for m in model.modules() if isinstance(m, nn.TransformerEncoder) and m.use_nested_tensor]
    nested = {inner for encoder in encoders for inner in encoder.modules()}
    return [m for m in model.modules() if type(m) is nn.MultiheadAttention and m not in nested]
