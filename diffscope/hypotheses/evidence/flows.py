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

Table = dict[str, torch.Tensor]  # by name, (head,)
SETS = ("answer", "needles", "irrelevant")


def flows(scope: Scope, prompts: Sequence[Prompt], spreads=None) -> xr.Dataset:
    """Of the answering query and the loss of the first token of the answer.

    Returns
    -------
    Dataset (prompt, layer, head)
        ``flow_answer``, ``flow_needles``: shares of Σ|D·∂L/∂D|; ``mass_answer``: the answer's share in |D|. Of differential
        models besides, all of gradients on the scores: ``push``, how far descent goes along ρ on irrelevant tokens; ``cosine``
        of the gradients of the two branches; ``ratio``, log2 of their norms' ratio, second over first; ``ratio_lambda``, that
        minus log2 λ/g.
    """
    targets = [prompt.answer[0] for prompt in prompts]
    rows = last_rows(scope, [prompt.ids for prompt in prompts], targets, _sharpened(spreads))
    sets = [
        scope.encode(prompt.ids, {name: at for name, at in prompt.spans.items() if name != "sink" and at}) for prompt in prompts
    ]
    return of_rows(rows, [masks(encoded.key_sets(), len(encoded.ids)) for encoded in sets])


def of_rows(rows: Sequence[LastRow], keys: Sequence[Table]) -> xr.Dataset:
    """The table of :func:`flows`, of last rows by layer and the key sets of each prompt, bool (key,) by name."""
    return _table([[_of_row(row, i, sets) for row in rows] for i, sets in enumerate(keys)])


def _sharpened(spreads) -> Callable[[int, LayerAttention], LayerAttention] | None:
    return None if spreads is None else lambda at, layer: as_sharp(layer, spreads[at])


def masks(sets: dict[str, torch.Tensor], length: int) -> Table:
    return {name: torch.isin(torch.arange(length), sets[name].cpu()) for name in SETS if name in sets}


def _of_row(row: LastRow, prompt: int, keys: Table) -> Table:
    d, gradient = row.d[prompt].cpu(), row.gradient[prompt].cpu()  # (head, key)
    found = {f"flow_{name}": flow_share(d, gradient, keys[name]) for name in ("answer", "needles")}
    found["mass_answer"] = (d.abs() * keys["answer"]).sum(-1) / d.abs().sum(-1)
    if row.a2 is None:
        return found
    a1, a2, lam, gain = (x[prompt].cpu() for x in (row.a1, row.a2, row.lam, row.gain))
    pulls = on_scores(a1, gain[:, None] * gradient), on_scores(a2, -lam[:, None] * gradient)
    along = tuple(map(on_scores, (a1, a2), rho_gradient(a1, a2, keys["irrelevant"])))
    ratio = torch.log2(pulls[1].norm(dim=-1) / pulls[0].norm(dim=-1))
    apart = ratio - torch.log2(lam / gain)
    return found | {
        "push": descent_of_rho(pulls, along),
        "cosine": alignment(*pulls),
        "ratio": ratio.where(ratio.isfinite(), torch.nan),
        "ratio_lambda": apart.where(apart.isfinite(), torch.nan),  # λ of 0 or below has no logarithm
    }


def noise_ranks(scope: Scope, prompts: Sequence[Prompt], spreads=None) -> xr.Dataset:
    """Effective ranks of λA2 over all queries, exact, in both definitions.

    Returns
    -------
    Dataset (prompt, layer, head)
        ``erank``, ``erank_energy``; ``erank_over``, ``erank_energy_over``: log2 of it over that of the same map with each row's
        visible keys permuted.
    """
    sharpen, cap = _sharpened(spreads), scope.capture([prompt.ids for prompt in prompts])
    layers = [sharpen(at, layer) if sharpen else layer for at, layer in enumerate(cap.layers)]
    generator = torch.Generator().manual_seed(0)
    return _table([[_ranks_of(layer.prompt(i), generator) for layer in layers] for i in range(len(prompts))])


def _ranks_of(layer: LayerAttention, generator: torch.Generator) -> Table:
    rows, visible, found = layer.rows(), layer.visible(), []
    for head in range(layer.n_heads):
        noise = rows.lam[head][:, None] * rows.a2[head]  # (query, key)
        own, permuted = (ranks(singular_values(a))[:2] for a in (noise, permute_visible(noise, visible, generator)))
        found.append(torch.cat([own, torch.log2(own / permuted)]))
    names = ("erank", "erank_energy", "erank_over", "erank_energy_over")
    return dict(zip(names, torch.stack(found, 1).cpu()))


def _table(found: list[list[Table]]) -> xr.Dataset:
    """Tables by prompt and layer, whose heads need not be as many."""
    heads = max(len(next(iter(table.values()))) for table in found[0])
    made = {}
    for name in found[0][0]:
        values = np.full((len(found), len(found[0]), heads), np.nan)
        for prompt, layers in enumerate(found):
            for layer, table in enumerate(layers):
                if name in table:
                    values[prompt, layer, : len(table[name])] = table[name].double().numpy()
        made[name] = ("prompt", "layer", "head"), values
    return xr.Dataset(made)
