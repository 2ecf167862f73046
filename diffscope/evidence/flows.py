"""Where the loss of the answer draws on attention, and which way it pushes the scores.

With a `match` the maps are those of layers made like others; see :func:`diffscope.evidence.matching.matched`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import xarray as xr

from diffscope.evidence.gradients import LastRow, last_rows
from diffscope.evidence.key_sets import KeySets, key_sets
from diffscope.evidence.matching import Match, matched
from diffscope.scope import Scope
from diffscope.stats.formulas.saliency import alignment, descent_of_rho, flow_share, on_scores, rho_gradient
from diffscope.stats.ragged import stack_layers
from diffscope.tasks.prompt import Prompt

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
