"""The residual stream at some tokens: what each part of a model writes into it, and how it becomes logits.

Parts are found by what they do and not by their names: a block's output is its input plus the outputs of its attention and of one
other module, bit by bit; the final norm's output is the unembedding's input. Any other model is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from diffscope.attribution.runs import Run, Runs
from diffscope.errors import DiffscopeError, UnsupportedModel
from diffscope.families.foreign import ForeignModule
from diffscope.families.offloaded import weights_loaded
from diffscope.scope import Scope
from diffscope.scope.images import ImageModel

EPS = torch.finfo(torch.float32).eps  # norms are in float32 in most models, whatever their dtype
ROUNDINGS = 64  # of that, in a sum as long as a model is wide
UNSUPPORTED = "so it cannot be taken apart into what its parts add (docs/instruments.md says which models can be)"


def check_decoder(scope: Scope) -> None:
    """Raise an error unless a scope is of a model that predicts tokens from those before them.

    Raises DiffscopeError if it is no scope, and UnsupportedModel if it is of images, or its queries look at tokens of another
    side.
    """
    if not isinstance(scope, Scope):
        raise DiffscopeError(f"this runs a model, and takes a scope, such as diffscope.load(model), not a {type(scope).__name__}")
    if isinstance(scope.runner, ImageModel):
        raise UnsupportedModel(f"{scope.name} is a model of images and predicts no tokens; {UNSUPPORTED}")
    if scope.runner.two_sided:
        raise UnsupportedModel(
            f"{scope.name} has cross-attention, whose keys are of another side than its residual stream; {UNSUPPORTED}"
        )


@dataclass(frozen=True)
class Frozen:
    """A norm as a linear map at each recorded token.

    Attributes
    ----------
    factor : Tensor (row,)
        Its factor, besides its weight.
    weight, bias : Tensor (hidden,)
    centred : bool
        Whether the mean is subtracted first.
    """

    factor: Tensor
    weight: Tensor
    bias: Tensor
    centred: bool

    def centre(self, x: Tensor) -> Tensor:
        """Subtract the mean of x (…, hidden) if the norm does."""
        return x - x.mean(-1, keepdim=True) if self.centred else x

    def __call__(self, x: Tensor, row: int | slice) -> Tensor:
        """Apply it to a part x (…, hidden) of what enters the norm at a token, without the bias."""
        return self.centre(x) * self.weight * self.factor[row, None]


@dataclass(frozen=True)
class Stream:
    """The residual stream at the last token of some prompts, in float64.

    Attributes
    ----------
    embedding : Tensor (prompt, hidden)
        The input of the first block.
    attention, mlp : list of Tensor (prompt, hidden), one a block
        Outputs of its output projection, and of its other part.
    norm : Frozen
    unembedding : nn.Module
    logits : Tensor (prompt, vocabulary)
    """

    embedding: Tensor
    attention: list[Tensor]
    mlp: list[Tensor]
    norm: Frozen
    unembedding: nn.Module
    logits: Tensor

    def direct(self, x: Tensor, prompt: int, tokens: Sequence[int]) -> Tensor:
        """Return what a part x (…, hidden) of the final residual adds to the logits of some tokens, (…, token)."""
        rows, _ = rows_of(self.unembedding, tokens)
        return self.norm(x.double().cpu(), prompt) @ rows.T

    def constant(self, tokens: Sequence[int]) -> Tensor:
        """Return what the biases of norm and unembedding add to the logits of some tokens, (token,)."""
        rows, bias = rows_of(self.unembedding, tokens)
        return rows @ self.norm.bias + bias


def rows_of(unembedding: ForeignModule, tokens: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return the rows of an unembedding's weight and bias for some tokens, (token, hidden) and (token,), in float64."""
    with weights_loaded(unembedding):
        index = torch.tensor(list(tokens), device=unembedding.weight.device)
        rows = unembedding.weight.detach()[index].double().cpu()
        bias = getattr(unembedding, "bias", None)
        return rows, torch.zeros(len(rows)).double() if bias is None else bias.detach()[index].double().cpu()


def read_stream(scope: Scope, attentions: Sequence[nn.Module], runs: Runs, candidates: Sequence[Sequence[int]]) -> Stream:
    """Read the residual stream from the recorded runs of a model.

    Raises UnsupportedModel if it has no such stream.

    Parameters
    ----------
    attentions : sequence of nn.Module
        The attention modules that were run, in layer order.
    candidates : sequence of sequence of int
        For each prompt the tokens whose logits have to follow from the stream.
    """
    blocks = read_blocks(scope, attentions, runs)
    logits = runs.logits
    unembedding, last = _unembedding(scope, runs, logits)
    _check_logits(scope, unembedding, last, logits, candidates)
    return Stream(
        embedding=blocks[0].input.double(),
        attention=[block.attention.double() for block in blocks],
        mlp=[block.mlp.double() for block in blocks],
        norm=frozen_norm(scope, runs, blocks[-1].output, last.input, "its last block and its unembedding"),
        unembedding=unembedding,
        logits=logits.double(),
    )


def attention_modules(scope: Scope, layers: Collection[int]) -> dict[int, nn.Module]:
    """Return the attention modules of some layers that were captured, by the layer's number.

    Raises UnsupportedModel if the model runs a module several times, so that one is several layers.
    """
    modules = {number: module for module, number in scope.family.layers(scope.model).items() if number in layers}
    if modules.keys() != set(layers):
        raise UnsupportedModel(f"{scope.name} runs an attention module several times; {UNSUPPORTED}")
    return modules


def read_by(scope: Scope, runs: Runs, module: nn.Module) -> Tensor:
    """Return what an attention module read, (row, hidden).

    Raises UnsupportedModel if the model ran it several times.
    """
    run = runs.single(module)
    if run is None:
        raise UnsupportedModel(f"{scope.name} runs an attention module several times; {UNSUPPORTED}")
    return run.input


@dataclass(frozen=True)
class Block:
    """Input and output of a block, and the outputs of its two parts, (row, hidden) each."""

    input: Tensor
    output: Tensor
    attention: Tensor
    mlp: Tensor


def read_blocks(scope: Scope, attentions: Sequence[nn.Module], runs: Runs) -> list[Block]:
    """Return the blocks of attention modules, each of which enters the next one as it is.

    Raises UnsupportedModel if a block adds something else to the residual stream, or something between two blocks does.
    """
    blocks = [_block(scope, runs, module) for module in attentions]
    for number, (before, after) in enumerate(pairwise(blocks)):
        if not torch.equal(before.output, after.input):
            raise UnsupportedModel(
                f"{scope.name}: between the blocks of attention modules {number} and {number + 1} something else changes the "
                f"residual stream, such as a layer without attention that is read; {UNSUPPORTED}"
            )
    return blocks


def _block(scope: Scope, runs: Runs, attention: nn.Module) -> Block:
    """Find the block of an attention module: the outermost module that adds its output and that of one other to its input."""
    projection = runs.single(scope.family.output_projection(attention))
    names = {module: name for name, module in scope.model.named_modules()}
    above = names[attention].split(".")[:-1]
    around = [scope.model.get_submodule(".".join(above[:depth])) for depth in range(1, len(above) + 1)]
    for module in around:
        run = runs.single(module)
        if projection is None or run is None or run.input.shape != run.output.shape or run.input.shape != projection.output.shape:
            continue
        others = (part for part in module.modules() if part is not module and part not in set(attention.modules()))
        for mlp in _written(runs, others, projection.output):
            if _adds_up(run, projection.output, mlp):
                return Block(run.input, run.output, projection.output, mlp)
    raise UnsupportedModel(
        f"{scope.name}: no block around attention module {names[attention]!r} adds what that wrote, and what one other part "
        f"wrote, to the residual stream as it is (it may norm, scale or mix them, or attend twice); {UNSUPPORTED}"
    )


def _written(runs: Runs, modules: Iterator[nn.Module], like: Tensor) -> Iterator[Tensor]:
    """Iterate over outputs that may be added beside an attention's output; first zeros, for blocks without another part."""
    yield torch.zeros_like(like)
    for module in modules:
        run = runs.single(module)
        if run is not None and run.output.shape == like.shape:
            yield run.output


def _adds_up(run: Run, attention: Tensor, mlp: Tensor) -> bool:
    """Return whether a block's output is the sum of its input and these two, added in any order, to the last bit."""
    entering = run.input
    sums = (entering + attention + mlp, attention + mlp + entering, entering + mlp + attention)
    return any(torch.equal(total.to(run.output.dtype), run.output) for total in sums)


def _unembedding(scope: Scope, runs: Runs, logits: Tensor) -> tuple[ForeignModule, Run]:
    """Find the linear module that makes the logits, and its run."""
    module = scope.model.get_output_embeddings() if isinstance(scope.model, PreTrainedModel) else None
    if module is None:
        own = {part: runs.single(part) for part in runs.of if part is not scope.model}
        module = next((part for part, run in own.items() if run and run.output.shape == logits.shape), None)
    run = module and runs.single(module)
    weight = getattr(module, "weight", None)
    if not run or not isinstance(weight, Tensor) or weight.shape != (logits.shape[-1], run.input.shape[-1]):
        raise UnsupportedModel(f"{scope.name}: no linear module makes its logits from the residual stream; {UNSUPPORTED}")
    return module, run


def _check_logits(scope: Scope, unembedding: nn.Module, last: Run, logits: Tensor, candidates: Sequence[Sequence[int]]) -> None:
    """Raise UnsupportedModel unless the model's logits are those of its unembedding: caps and scales may follow it."""
    precision = torch.finfo(last.output.dtype).eps
    for x, of_prompt, tokens in zip(last.input.double(), logits.double(), candidates):
        rows, bias = rows_of(unembedding, tokens)
        wanted = of_prompt[list(tokens)]
        size = 2 * precision * wanted.abs() + ROUNDINGS * EPS * (rows.abs() @ x.abs() + bias.abs())
        if not ((rows @ x + bias - wanted).abs() <= size).all():
            raise UnsupportedModel(
                f"{scope.name}: its logits are not what its unembedding makes of what enters it (they may be capped, scaled "
                f"or adapted); {UNSUPPORTED}"
            )


def frozen_norm(scope: Scope, runs: Runs, residual: Tensor, entered: Tensor, between: str) -> Frozen:
    """Return the norm between the residual stream and a module as a linear map; the identity if there is none.

    Raises UnsupportedModel if it is no RMSNorm and no LayerNorm.

    Parameters
    ----------
    residual, entered : Tensor (row, hidden)
        The stream, and what enters the module.
    between : str
        What the norm is between, in words.
    """
    if torch.equal(residual, entered):
        ones = torch.ones(residual.shape[-1]).double()
        return Frozen(torch.ones(len(residual)).double(), ones, 0 * ones, centred=False)
    for module in runs.of:
        run = runs.single(module)
        if run is None or run.input.shape != residual.shape or not torch.equal(run.input, residual):
            continue
        if run.output.shape == entered.shape and torch.equal(run.output.to(entered.dtype), entered):
            frozen = as_frozen(module, run)
            if frozen is not None:
                return frozen
    raise UnsupportedModel(f"{scope.name}: what is between {between} is no RMSNorm and no LayerNorm; {UNSUPPORTED}")


def as_frozen(module: nn.Module, run: Run) -> Frozen | None:
    """Fit a norm as a linear map to its run; its weight may count from 0 (Gemma) or be missing, and it may subtract the mean."""
    entering = run.input.double()
    leaving = run.output.double()
    with weights_loaded(module):
        held = (getattr(module, name, None) for name in ("weight", "bias"))
        weight, bias = (torch.zeros(entering.shape[-1]).double() if x is None else x.detach().double().cpu() for x in held)
    precision = 2 * max(ROUNDINGS * EPS, torch.finfo(run.output.dtype).eps)
    for centred in (False, True):
        for scale in (weight, 1 + weight):
            linear = Frozen(torch.ones(len(entering)).double(), scale, bias, centred)
            shape = linear(entering, slice(None))  # all factors are 1
            factor = (shape * (leaving - bias)).sum(-1) / shape.square().sum(-1)  # least squares
            size = factor.abs()[:, None] * (shape.abs() + (scale * entering).abs()) + bias.abs()
            if ((factor[:, None] * shape + bias - leaving).abs() <= precision * size).all():
                return Frozen(factor, scale, bias, centred)
    return None
