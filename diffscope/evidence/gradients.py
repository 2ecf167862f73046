"""Take the gradient of the answer's loss on the attention of the query that answers: what it draws on, and how it pushes scores.

With a `match` the maps are those of layers made like others; see :func:`diffscope.evidence.untrained.matched`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from diffscope.attention.changes import RowContext
from diffscope.attention.components import Rows
from diffscope.attention.layer import LayerAttention
from diffscope.errors import PromptError, UnsupportedModel
from diffscope.evidence.key_sets import KeySets, key_sets
from diffscope.evidence.saliency import alignment, descent_of_rho, flow_share, on_scores, rho_gradient
from diffscope.evidence.untrained import Match, matched
from diffscope.families import AttentionPass
from diffscope.proof.prove import prove_passage
from diffscope.scope import Scope
from diffscope.stats.ragged import stack_layers
from diffscope.tasks.prompt import Prompt


@dataclass(frozen=True)
class LastRow:
    """The last query's row of every head of a layer, with the gradient of the loss.

    Attributes
    ----------
    layer : int
    a1, d : Tensor (prompt, head, key)
    a2 : Tensor (prompt, head, key), or None
    gradient : Tensor (prompt, head, key)
        ∂L/∂D, in nats; all other queries as they are.
    lam, gain : Tensor (prompt, head)
    pull : Tensor (prompt, head, key)
        ∂L/∂(g·A1 − λ·A2), which is ∂L/∂D unless the layer changes D after the subtraction. On A1 it is g times that, on A2 −λ
        times.
    """

    layer: int
    a1: Tensor
    a2: Tensor | None
    d: Tensor
    gradient: Tensor
    lam: Tensor
    gain: Tensor
    pull: Tensor


def last_rows(
    scope: Scope,
    prompts: Sequence[Sequence[int]],
    targets: Sequence[int],
    change: Callable[[int, LayerAttention], LayerAttention] | None = None,
) -> list[LastRow]:
    """Run prompts of one length and take the gradient of the loss of the token that comes next.

    Raises PromptError if prompts have several lengths, and UnsupportedModel if its weights take no gradient.

    Parameters
    ----------
    prompts : sequence of token ids
        All of one length.
    targets : sequence of int
        The token that each is to be continued with; L is its cross-entropy in nats.
    change : callable, optional
        (number of the layer from 0, LayerAttention) → LayerAttention, whose maps are taken in place of the model's. The gradient
        is that on the output of the model as it is.

    Returns
    -------
    list of LastRow
        One a layer.
    """
    lengths = tuple(map(len, prompts))
    if len(set(lengths)) != 1:
        raise PromptError("gradients are taken of prompts of one length")
    layers: list[LayerAttention] = []
    outputs: list[Tensor] = []

    def take(passage: AttentionPass) -> Tensor:
        with torch.no_grad():
            layers.append(prove_passage(scope.family, passage)[0])
        outputs.append(passage.observed)
        return passage.observed  # so that the model goes on with the very tensor that the gradient is asked of

    device = scope.runner.device
    ids = torch.tensor(list(map(list, prompts)))
    last = lengths[0] - 1
    with scope.exclusively(lengths), torch.enable_grad(), scope.hooked(replace_output=take, lengths=lengths):
        logits = scope.logits(ids, 1, gradients=True)[:, 0].float()
        if not logits.requires_grad:
            raise UnsupportedModel(f"{scope.name} takes no gradient: all of its weights are frozen")
        loss = torch.nn.functional.cross_entropy(logits, torch.tensor(list(targets), device=device), reduction="sum")
        received = torch.autograd.grad(loss, outputs)
    with torch.no_grad():
        layers = [change(number, layer) if change else layer for number, layer in enumerate(layers)]
        return [_last_row(layer, gradients[:, last]) for layer, gradients in zip(layers, received)]


def _last_row(layer: LayerAttention, received: Tensor) -> LastRow:
    """`received` is ∂L on what enters the output projection at the last query, (prompt, width) or (prompt, head, width)."""
    parts: dict[str, list[Tensor]] = {}
    for index, length in enumerate(layer.lengths):
        prompt = layer.prompt(index)
        query = [length - 1]
        rows = prompt.rows(query)
        values = prompt.v[0][prompt.pairing.value_of_head].to(prompt.dtype)  # (head, key, width)
        with torch.enable_grad():
            before = _before_changes(prompt, rows).clone().requires_grad_()  # (head, 1, key)
            d = prompt.changed_difference(
                RowContext(prompt, torch.arange(prompt.n_heads, device=before.device), rows.queries), before
            )
            out = prompt.head_postprocess(d @ values, query).transpose(0, 1).reshape(-1)
            gradient, pull = torch.autograd.grad((out * received[index].reshape(-1).to(out.dtype)).sum(), (d, before))
        fields = {name: getattr(rows, name) for name in ("a1", "a2", "d", "lam", "gain")} | {"gradient": gradient, "pull": pull}
        for name, tensor in fields.items():
            if tensor is not None:
                parts.setdefault(name, []).append(tensor[:, 0])
    return LastRow(layer.layer, **{"a2": None} | {name: torch.stack(tensors) for name, tensors in parts.items()})


def _before_changes(layer: LayerAttention, rows: Rows) -> Tensor:
    """g·A1 − λ·A2 of some rows, (head, query, key)."""
    if not layer.d_is_changed:
        return rows.d
    first = rows.gain[..., None] * rows.a1
    return first if rows.a2 is None else first - rows.lam[..., None] * rows.a2


HeadTable = dict[str, torch.Tensor]  # by name, (head,)
TOKENS = 2  # of the answer, each with the query that it follows


def flows(scope: Scope, prompts: Sequence[Prompt], match: Sequence[Match] | None = None) -> xr.Dataset:
    """Measure shares and pushes at the queries that the answer's first tokens follow, mean over these queries.

    Returns
    -------
    Dataset (prompt, layer, head)
        ``flow_answer``, ``flow_needles``: shares of Σ|D·∂L/∂D|; ``mass_answer``: the answer's share in |D|. Of differential
        models four more, all of gradients on the scores: ``push``, how far descent goes along ρ on irrelevant tokens; ``cosine``
        of the gradients of the two branches; ``ratio``, log2 of their norms' ratio, second over first; ``ratio_lambda``, that
        minus log2 |λ/g|.
    """
    tokens = min(TOKENS, *(len(prompt.answer) for prompt in prompts))
    tables = [_flows_of_token(scope, prompts, token, match) for token in range(tokens)]
    return xr.concat(tables, "token").mean("token")


def _flows_of_token(scope: Scope, prompts: Sequence[Prompt], token: int, match: Sequence[Match] | None) -> xr.Dataset:
    ids = [[*prompt.ids, *prompt.answer[:token]] for prompt in prompts]
    change = None if match is None else lambda number, layer: matched(layer, match[number])
    rows = last_rows(scope, ids, [prompt.answer[token] for prompt in prompts], change)
    said = torch.zeros(token, dtype=torch.bool)  # what was said of the answer is in no set
    keys = [{name: torch.cat([keys, said]) for name, keys in key_sets(prompt).items()} for prompt in prompts]
    return flows_of_rows(rows, keys)


def flows_of_rows(rows: Sequence[LastRow], keys: Sequence[KeySets]) -> xr.Dataset:
    """Return the table of :func:`flows`, of the last rows of each layer and the key sets of each prompt."""
    return head_tables([[_flows_of_row(row, index, sets) for row in rows] for index, sets in enumerate(keys)])


def _flows_of_row(row: LastRow, prompt: int, keys: KeySets) -> HeadTable:
    d, a1 = (tensor[prompt].cpu() for tensor in (row.d, row.a1))
    gradient, pull = (tensor[prompt].cpu() for tensor in (row.gradient, row.pull))  # (head, key)
    table = {f"flow_{name}": flow_share(d, gradient, keys[name]) for name in ("answer", "needles")}
    table["mass_answer"] = (d.abs() * keys["answer"]).sum(-1) / d.abs().sum(-1)
    if row.a2 is None:
        return table
    a2, lam, gain = (tensor[prompt].cpu() for tensor in (row.a2, row.lam, row.gain))
    pulls = on_scores(a1, gain[:, None] * pull), on_scores(a2, -lam[:, None] * pull)  # (head, key) each
    along = tuple(map(on_scores, (a1, a2), rho_gradient(a1, a2, keys["irrelevant"])))
    ratio = torch.log2(pulls[1].norm(dim=-1) / pulls[0].norm(dim=-1))
    ratio_lambda = ratio - torch.log2((lam / gain).abs())
    return table | {
        "push": descent_of_rho(pulls, along),
        "cosine": alignment(*pulls),
        "ratio": ratio.where(ratio.isfinite(), torch.nan),
        "ratio_lambda": ratio_lambda.where(ratio_lambda.isfinite(), torch.nan),  # λ of 0 has no logarithm
    }


def head_tables(tables: list[list[HeadTable]]) -> xr.Dataset:
    """Return tables by prompt and layer as one Dataset (prompt, layer, head), NaN where a layer has fewer heads."""
    variables = {}
    for name in dict.fromkeys(name for table in tables[0] for name in table):
        rows = [[table.get(name, torch.full_like(table["mass_answer"], torch.nan)).numpy() for table in of] for of in tables]
        variables[name] = ("prompt", "layer", "head"), np.stack([stack_layers(layers) for layers in rows])
    return xr.Dataset(variables)
