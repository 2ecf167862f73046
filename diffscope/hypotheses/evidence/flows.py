"""Where the loss of the answer draws on attention, which way it pushes the scores, and of how many patterns λA2 is made.

Each function takes (scope, prompts, spreads) and gives a Dataset (prompt, layer, head); with `spreads` the maps are taken as
sharp as those say (see :func:`diffscope.hypotheses.evidence.last_query.read`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
import xarray as xr

from diffscope.attention.layer import LayerAttention
from diffscope.hypotheses.evidence.gradients import LastRow, last_rows
from diffscope.hypotheses.evidence.last_query import as_sharp
from diffscope.scope import Scope
from diffscope.stats.formulas.rank import permute_visible, ranks, singular_values
from diffscope.stats.formulas.saliency import alignment, descent_of_rho, flow_share, on_scores, rho_gradient
from diffscope.tasks.retrieval import Prompt

HeadTable = dict[str, torch.Tensor]  # by name, (head,)
KeySets = dict[str, torch.Tensor]  # by name, bool (key,)
SETS = ("answer", "needles", "irrelevant")
RANKS = ("erank", "erank_energy", "erank_over", "erank_energy_over")


def flows(scope: Scope, prompts: Sequence[Prompt], spreads: Sequence[torch.Tensor] | None = None) -> xr.Dataset:
    """Of the answering query and the loss of the first token of the answer.

    Returns
    -------
    Dataset (prompt, layer, head)
        ``flow_answer``, ``flow_needles``: shares of Σ|D·∂L/∂D|; ``mass_answer``: the answer's share in |D|. Of differential
        models four more, all of gradients on the scores: ``push``, how far descent goes along ρ on irrelevant tokens; ``cosine``
        of the gradients of the two branches; ``ratio``, log2 of their norms' ratio, second over first; ``ratio_lambda``, that
        minus log2 λ/g.
    """
    answers = [prompt.answer[0] for prompt in prompts]
    rows = last_rows(scope, [prompt.ids for prompt in prompts], answers, _sharpen(spreads))
    keys = []
    for prompt in prompts:
        spans = {name: positions for name, positions in prompt.spans.items() if name != "sink" and positions}
        encoded = scope.encode(prompt.ids, spans)
        keys.append(masks(encoded.key_sets(), len(encoded.ids)))
    return flows_of_rows(rows, keys)


def flows_of_rows(rows: Sequence[LastRow], keys: Sequence[KeySets]) -> xr.Dataset:
    """The table of :func:`flows`, of the last rows of each layer and the key sets of each prompt."""
    return _dataset([[_flows_of_row(row, index, sets) for row in rows] for index, sets in enumerate(keys)])


def masks(sets: dict[str, torch.Tensor], length: int) -> KeySets:
    """Key sets, given as positions, as bool (key,)."""
    return {name: torch.isin(torch.arange(length), sets[name].cpu()) for name in SETS if name in sets}


def _sharpen(spreads: Sequence[torch.Tensor] | None) -> Callable[[int, LayerAttention], LayerAttention] | None:
    return None if spreads is None else lambda number, layer: as_sharp(layer, spreads[number])


def _flows_of_row(row: LastRow, prompt: int, keys: KeySets) -> HeadTable:
    d = row.d[prompt].cpu()
    gradient = row.gradient[prompt].cpu()  # (head, key)
    table = {f"flow_{name}": flow_share(d, gradient, keys[name]) for name in ("answer", "needles")}
    table["mass_answer"] = (d.abs() * keys["answer"]).sum(-1) / d.abs().sum(-1)
    if row.a2 is None:
        return table
    a1, a2, lam, gain = (tensor[prompt].cpu() for tensor in (row.a1, row.a2, row.lam, row.gain))
    pulls = on_scores(a1, gain[:, None] * gradient), on_scores(a2, -lam[:, None] * gradient)  # (head, key) each
    along = tuple(map(on_scores, (a1, a2), rho_gradient(a1, a2, keys["irrelevant"])))
    ratio = torch.log2(pulls[1].norm(dim=-1) / pulls[0].norm(dim=-1))
    ratio_lambda = ratio - torch.log2(lam / gain)
    return table | {
        "push": descent_of_rho(pulls, along),
        "cosine": alignment(*pulls),
        "ratio": ratio.where(ratio.isfinite(), torch.nan),
        "ratio_lambda": ratio_lambda.where(ratio_lambda.isfinite(), torch.nan),  # λ of 0 or below has no logarithm
    }


def second_map_ranks(scope: Scope, prompts: Sequence[Prompt], spreads: Sequence[torch.Tensor] | None = None) -> xr.Dataset:
    """Effective ranks of λA2 over all queries, exact, in both definitions.

    Returns
    -------
    Dataset (prompt, layer, head)
        ``erank``, ``erank_energy``; ``erank_over``, ``erank_energy_over``: log2 of it over that of the same map with each row's
        visible keys permuted.
    """
    sharpen = _sharpen(spreads)
    cap = scope.capture([prompt.ids for prompt in prompts])
    layers = [sharpen(number, layer) if sharpen else layer for number, layer in enumerate(cap.layers)]
    generator = torch.Generator().manual_seed(0)
    return _dataset([[_ranks_of_layer(layer.prompt(index), generator) for layer in layers] for index in range(len(prompts))])


def _ranks_of_layer(layer: LayerAttention, generator: torch.Generator) -> HeadTable:
    rows = layer.rows()
    visible = layer.visible()
    heads = []
    for head in range(layer.n_heads):
        second = rows.lam[head][:, None] * rows.a2[head]  # (query, key)
        exact = ranks(singular_values(second))[:2]
        permuted = ranks(singular_values(permute_visible(second, visible, generator)))[:2]
        heads.append(torch.cat([exact, torch.log2(exact / permuted)]))
    return dict(zip(RANKS, torch.stack(heads, 1).cpu()))


def _dataset(tables: list[list[HeadTable]]) -> xr.Dataset:
    """Tables by prompt and layer as one Dataset (prompt, layer, head), NaN where a layer has fewer heads."""
    heads = max(len(next(iter(table.values()))) for table in tables[0])
    variables = {}
    for name in tables[0][0]:
        values = np.full((len(tables), len(tables[0]), heads), np.nan)
        for prompt, layers in enumerate(tables):
            for layer, table in enumerate(layers):
                if name in table:
                    values[prompt, layer, : len(table[name])] = table[name].double().numpy()
        variables[name] = ("prompt", "layer", "head"), values
    return xr.Dataset(variables)
