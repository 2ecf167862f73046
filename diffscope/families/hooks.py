"""Record every pass through a model's attention modules by forward hooks, which may replace what enters the output projection."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from diffscope.errors import UnsupportedModel
from diffscope.families.attention_pass import AttentionPass, Call
from diffscope.families.base import Family
from diffscope.families.foreign import encoder_of, filled
from diffscope.families.interface import observed
from diffscope.families.model_call import ModelCall, signature_of
from diffscope.families.offloaded import weights_loaded
from diffscope.families.threads import Hook, within_checkpoint


def _named(module: nn.Module, args: tuple, kwargs: dict, tokens_first: bool) -> dict:
    """Return what a module was called with, by the names of its forward; its input as (batch, token, hidden)."""
    try:
        # Of the class: others who look on may have put something of their own before the module's forward.
        bound = signature_of(type(module).forward).bind(module, *args, **kwargs)
    except TypeError as error:
        raise UnsupportedModel(f"{type(module).__name__} was called in a way its forward does not take: {error}") from None
    named: dict = {}
    for name, value in list(bound.arguments.items())[1:]:
        kind = bound.signature.parameters[name].kind
        named.update(value if kind is inspect.Parameter.VAR_KEYWORD else {name: value})
    if tokens_first:
        first = next(iter(named))
        named[first] = named[first].transpose(0, 1)
    return named


def _copied(output: Any) -> Any:
    """Copy a tensor, or the tensors of a tuple: a module may change its output in place, or use the memory again."""
    if isinstance(output, tuple):
        return tuple(map(_copied, output))
    return output.clone(memory_format=torch.contiguous_format) if isinstance(output, Tensor) else output


AfterForward = Callable[[], None]
OnPass = Callable[[AttentionPass], AfterForward | None]
ReplaceOutput = Callable[[AttentionPass], Tensor | None]


class Replay(NamedTuple):
    """Hold the inputs of an attention module whose pass has not begun, so that another module can be run in its place.

    Attributes
    ----------
    args, kwargs : tuple, dict
        The inputs.
    run : callable
        Takes a module, its args and its kwargs, calls the module in place of the other, and returns its pass up to the output
        projection.
    """

    args: tuple
    kwargs: dict
    run: Callable[[nn.Module, tuple, dict], AttentionPass]


BeforeForward = Callable[[AttentionPass, Replay], None]


class _Enough(BaseException):
    """Stop the run of a module in place of another once its attention was recorded; no module catches it."""


@dataclass
class _Watch:
    """The passes through attention of this thread that are under way, and the hooks that record them."""

    family: Family
    encoder: frozenset[nn.Module]  # the modules of an encoder beside a decoder
    lengths: tuple[int, ...] | None
    key_lengths: tuple[int, ...] | None  # of the side that an encoder reads, and cross-attention looks at
    layers: int  # the numbers of one round of the modules: each further round is numbered on by so many
    call: ModelCall | None = None  # the call of the model; None while it is not running
    open: dict[nn.Module, AttentionPass] = field(default_factory=dict)
    after_forward: dict[nn.Module, AfterForward | None] = field(default_factory=dict)

    def start_run(self, model: nn.Module, args: tuple, kwargs: dict) -> None:
        """Read the call of the model: a forward of it begins."""
        self.call = ModelCall.of(model, args, kwargs)

    def end_run(self, model: nn.Module, args: tuple, output: Any) -> None:
        """Forget the call: a forward of the model has ended."""
        self.call = None

    def see(self, call: Call, module: nn.Module) -> None:
        """Add a call of the attention interface to its pass, without keys of a static cache that no token has yet."""
        if module not in self.open:
            return
        attention_pass = self.open[module]
        layer = attention_pass.cache_layer
        if layer is not None and call.key.shape[-2] == layer.keys.shape[-2]:
            key, value = filled(layer, call.key), filled(layer, call.value)
            by_key = isinstance(call.mask, Tensor) and call.mask.dim() == 4
            call = replace(call, key=key, value=value, mask=call.mask[..., : key.shape[-2]] if by_key else call.mask)
        attention_pass.calls.append(call)

    @contextmanager
    def follow(
        self,
        module: nn.Module,
        index: int,
        number: int,
        on_pass: OnPass | None = None,
        replace_output: ReplaceOutput | None = None,
        before_forward: BeforeForward | None = None,
    ) -> Iterator[None]:
        """Record every pass through one attention module; parameters as of :func:`attention_passes`."""

        def start(module: nn.Module, args: tuple, kwargs: dict) -> None:
            repeat = 0
            if self.call is not None:
                repeat = self.call.runs[module]
                self.call.runs[module] += 1
            attention_pass = AttentionPass(
                module,
                index,
                number + repeat * self.layers,
                (),
                _named(module, args, kwargs, self.family.tokens_first),
                repeat=repeat,
                call=self.call,
                family=self.family.name,
            )
            source = self.family.source_of(attention_pass.arguments)
            attention_pass.role = "cross" if source is not None else "encoder" if module in self.encoder else "self"
            self._check_prompts(attention_pass)
            attention_pass.set_lengths(self.lengths, self.key_lengths, source)
            before = attention_pass.cache_layer  # a cache of a window drops old keys as soon as new ones come
            attention_pass.cached = None if before is None else (before.keys, before.values)
            if before_forward:  # before the pass is open: a forward that was replaced may lead a copy back to this module
                before_forward(attention_pass, Replay(args, kwargs, partial(self._run_in_place, attention_pass)))
            self.open[module] = attention_pass

        def end(module: nn.Module, args: tuple, output: Any) -> None:
            attention_pass = self.open.pop(module)
            if not hasattr(attention_pass, "observed"):
                kind = type(module).__name__
                raise UnsupportedModel(f"{kind} does not call its output projection, so its maps cannot be proved")
            if after_forward := self.after_forward.pop(module):
                with weights_loaded(module):
                    after_forward()

        with ExitStack() as stack:
            stack.callback(module.register_forward_pre_hook(Hook(start), with_kwargs=True).remove)
            for name, submodule in self.family.watched(module).items():
                stack.callback(submodule.register_forward_hook(Hook(partial(self._after_watched, module, name))).remove)
            projection = self.family.output_projection(module)
            width = self.family.attention_width(module)
            before_output = partial(self._before_output, module, width, on_pass, replace_output)
            stack.callback(projection.register_forward_pre_hook(Hook(before_output)).remove)
            stack.callback(module.register_forward_hook(Hook(end)).remove)
            yield

    def _check_prompts(self, attention_pass: AttentionPass) -> None:
        """Raise UnsupportedModel if a module does not get all prompts at once: it is not known which of them it has."""
        call = attention_pass.call
        given = (None, None) if call is None else (call.tokens, call.prompts)
        lengths = self.key_lengths if attention_pass.role == "encoder" else self.lengths
        tokens, prompts = given if lengths is None else (max(lengths), len(lengths))
        count, second = attention_pass.hidden.shape[:2]
        if prompts and count < prompts and (count, second) != (tokens, prompts):  # some have the tokens first
            kind = attention_pass.kind
            raise UnsupportedModel(
                f"layer {attention_pass.number}: {kind} is given {count} of {prompts} prompts at a time, so the model takes its "
                "batch apart; give it one prompt at a time"
            )

    def _after_watched(self, owner: nn.Module, name: str, module: nn.Module, args: tuple, output: Any) -> None:
        """Record the output of a watched submodule under the name that the family knows it by."""
        if owner in self.open:
            self.open[owner].outputs[name] = _copied(output)

    def _before_output(
        self,
        owner: nn.Module,
        width: int | None,
        on_pass: OnPass | None,
        replace_output: ReplaceOutput | None,
        module: nn.Module,
        args: tuple,
    ) -> tuple | None:
        """Show a pass as its output projection is called, and replace what enters that if anybody asks to."""
        kind = type(owner).__name__
        attention_pass = self.open.get(owner)
        if attention_pass is None:
            raise UnsupportedModel(f"{kind} is not called itself, only its forward or a part of it, so it cannot be observed")
        if not self.family.interface and torch.is_autocast_enabled(args[0].device.type):
            raise UnsupportedModel(
                f"under torch.autocast it is not known in which precision {kind} multiplies; capture outside of it, or convert "
                "the model"
            )
        if hasattr(attention_pass, "observed"):
            raise UnsupportedModel(f"{kind} calls its output projection more than once, so it is not known what enters it")
        entering = args[0].transpose(0, 1) if self.family.tokens_first else args[0]
        attention_pass.observed = entering[..., :width]
        with weights_loaded(owner):
            self.after_forward[owner] = on_pass(attention_pass) if on_pass else None
            output = replace_output(attention_pass) if replace_output else None
        if output is None:
            return None
        if (self.call is None or self.call.learning) and within_checkpoint():
            raise UnsupportedModel(
                "edits cannot be made under gradient checkpointing, which runs layers again in the backward pass, where they "
                "may be closed; turn it off, or run the model under torch.no_grad()"
            )
        if width is not None:  # the rest is not attention and stays
            output = torch.cat([output, entering[..., width:]], dim=-1)
        return (output.transpose(0, 1) if self.family.tokens_first else output, *args[1:])

    def _run_in_place(self, attention_pass: AttentionPass, module: nn.Module, args: tuple, kwargs: dict) -> AttentionPass:
        """Run another module in place of that of a pass, and return its own pass up to the output projection."""
        passes: list[AttentionPass] = []

        def stop(other: AttentionPass) -> None:
            passes.append(other)
            raise _Enough

        with self.follow(module, attention_pass.index, attention_pass.number, stop), suppress(_Enough):
            try:
                module(*args, **kwargs)
            finally:  # the layers that follow need its memory
                for by_module in (self.open, self.after_forward, self.call.runs if self.call else {}):
                    by_module.pop(module, None)
        for name in ("lengths", "key_lengths", "role", "pack"):
            setattr(passes[0], name, getattr(attention_pass, name))
        return passes[0]


@contextmanager
def attention_passes(
    model: nn.Module,
    family: Family,
    lengths: tuple[int, ...] | None,
    on_pass: OnPass | None = None,
    replace_output: ReplaceOutput | None = None,
    before_forward: BeforeForward | None = None,
    key_lengths: tuple[int, ...] | None = None,
) -> Iterator[None]:
    """Record every pass through a model's attention modules while the context is open.

    Only the passes of this thread are recorded: in other threads the model runs as it is.

    Parameters
    ----------
    model : nn.Module
    family : Family
    lengths : tuple of int, optional
        Tokens of each prompt of the batch about to be run; padding is on the right. By default every position is a token.
    on_pass : callable, optional
        Called with a pass before its output projection, while the arguments of the module are as it attended to them. It must
        not change the tensors of the pass. If it returns a function, that is called when the module is done and its memory is
        free again.
    replace_output : callable, optional
        Called with a pass before its output projection. Returns the tensor that is to enter the projection instead, or None.
    before_forward : callable, optional
        Called with a pass before its module runs, and with the inputs and a function that runs another module on such inputs
        (:class:`Replay`).
    key_lengths : tuple of int, optional
        Tokens of each prompt on the side that cross-attention looks at; by default every position is a token.

    Raises
    ------
    UnsupportedModel
        The model runs its attention in a way that cannot be observed.
    """
    layers = family.layers(model)
    encoder = encoder_of(model)
    of_encoder = frozenset() if encoder is None else frozenset(encoder.modules())
    watch = _Watch(family, of_encoder, lengths, key_lengths, 1 + max(layers.values(), default=0))
    with ExitStack() as stack:
        stack.callback(model.register_forward_pre_hook(Hook(watch.start_run), with_kwargs=True).remove)
        stack.callback(model.register_forward_hook(Hook(watch.end_run), always_call=True).remove)
        for index, (module, number) in enumerate(layers.items()):
            stack.enter_context(watch.follow(module, index, number, on_pass, replace_output, before_forward))
        if family.interface:
            stack.enter_context(observed(model, watch.see))
        yield
