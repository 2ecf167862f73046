"""Forward hooks, and a registered attention implementation, that record each attention call and may replace its output."""

from __future__ import annotations

import inspect
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import checkpoint
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from diffscope.errors import DiffscopeWarning, UnsupportedModel
from diffscope.families.attention_pass import AttentionPass, Call
from diffscope.families.base import Family
from diffscope.families.flex import FLEX, compiled, compiled_apart
from diffscope.families.foreign import ForeignModule, filled
from diffscope.families.interface import record_call
from diffscope.families.model_call import ModelCall
from diffscope.families.offloaded import weights_loaded

_OBSERVED = "diffscope_of_"  # before the name of an implementation whose calls are observed


See = Callable[[Call, nn.Module], None]


def implementation_of(model: nn.Module) -> str:
    """The model's own attention implementation, to which all of its parts are set.

    Raises
    ------
    UnsupportedModel
        It is not a Hugging Face model, or its parts differ.
    """
    if not isinstance(model, PreTrainedModel):
        kind = type(model).__name__
        raise UnsupportedModel(
            f"{kind} is not a Hugging Face PreTrainedModel, so its attention cannot be observed; wrap it in one"
        )
    used = {own_implementation(str(config._attn_implementation)) for config in _configs(model)}
    if len(used) != 1:
        raise UnsupportedModel(f"parts of this model differ in attention implementation ({', '.join(sorted(used))}); set one")
    return used.pop()


def own_implementation(implementation: str) -> str:
    """The name of the model's own implementation, of one that :func:`observed` may have registered on top of it."""
    return implementation.removeprefix(_OBSERVED)


def _configs(model: nn.Module) -> list[Any]:
    """The configurations by which parts of a model choose their attention: of its models, and of layers with one of their own."""
    configs = {}
    for part in model.modules():
        config: Any = getattr(part, "config", None)
        layer_of_its_own = hasattr(part, "layer_idx") and getattr(config, "_attn_implementation", None) is not None
        if isinstance(part, PreTrainedModel) or layer_of_its_own:
            configs[id(config)] = config
    return list(configs.values())


def _original(module: nn.Module, implementation: str) -> Callable:
    """The function that `module` would have called."""
    if implementation in ALL_ATTENTION_FUNCTIONS:
        return ALL_ATTENTION_FUNCTIONS[implementation]
    # "eager" is not registered: every model brings its own, which its forward names, or else the file that defines the module.
    forward = inspect.unwrap(type(module).forward)
    named = [name for name in forward.__code__.co_names if "eager" in name and callable(forward.__globals__.get(name))]
    holder = forward.__globals__ if len(named) == 1 else vars(sys.modules[type(module).__module__])
    eager = holder.get(named[0] if len(named) == 1 else "eager_attention_forward")
    if eager is None:
        kind = type(module).__name__
        raise UnsupportedModel(f"{kind} has no eager attention of its own; load it with attn_implementation='sdpa'")
    return eager


def _copied(value: Any) -> Any:
    """Copy a tensor, or the tensors of a tuple: a module may change its output in place, or use the memory again."""
    if isinstance(value, tuple):
        return tuple(map(_copied, value))
    return value.clone(memory_format=torch.contiguous_format) if isinstance(value, Tensor) else value


_LOCAL = threading.local()


def this_thread() -> object:
    """Return an object that is the current thread's own: Python gives the number of a thread that ended to another one."""
    if not hasattr(_LOCAL, "thread"):
        _LOCAL.thread = object()
    return _LOCAL.thread


class _ObservedName(str):
    """The name of an implementation whose calls are observed; a copy or pickle of it is the plain name, without the prefix."""

    def __reduce__(self) -> tuple:
        return str, (own_implementation(self),)


class _Observers:
    """Who observes the calls of attention implementations, and the configurations in which these go by another name meanwhile.

    Models may share a configuration or a part, and whoever observes one of them may begin and end in any order. Each is shown the
    calls of its own thread alone.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.seeing: dict[str, list[tuple[object, See]]] = {}  # by implementation: threads, in the order in which they began
        self.renamed: dict[int, tuple[Any, int]] = {}  # by identity, a configuration and how many observe its models
        self.unobserved: set[str] = set()  # implementations no longer observed, whose name another thread may be about to look up

    def add(self, implementation: str, configs: list[Any], thread: object, see: See) -> None:
        """Show `see` every call of an implementation that a thread makes with the models of some configurations."""
        with self.lock:
            name = _ObservedName(_OBSERVED + implementation)
            mask = ALL_MASK_ATTENTION_FUNCTIONS[implementation]
            self.seeing.setdefault(implementation, []).append((thread, see))
            AttentionInterface.register(name, partial(self._attend, implementation))
            AttentionMaskInterface.register(name, compiled(mask) if implementation == FLEX else mask)
            for config in configs:
                _, count = self.renamed.get(id(config), (config, 0))
                self.renamed[id(config)] = config, count + 1
                config._attn_implementation = name

    def remove(self, implementation: str, configs: list[Any], thread: object, see: See) -> None:
        """Undo :meth:`add`; with the last, configurations are set back, and the name goes as soon as no thread can need it."""
        with self.lock:
            self.seeing[implementation].remove((thread, see))
            for config in configs:
                _, count = self.renamed.pop(id(config))
                if count > 1:
                    self.renamed[id(config)] = config, count - 1
                elif config._attn_implementation == _OBSERVED + implementation:  # nobody has set another since
                    config._attn_implementation = implementation
            # Setting a configuration sets those nested in it: what others still observe is renamed again.
            for config, _ in self.renamed.values():
                if config._attn_implementation == implementation:
                    config._attn_implementation = _ObservedName(_OBSERVED + implementation)
            if not self.seeing[implementation]:
                del self.seeing[implementation]
                self.unobserved.add(implementation)
            self.unobserved -= self.seeing.keys()
            if not _others_run_modules():
                self._forget()

    def _forget(self) -> None:
        """Take away the names of the implementations that nobody observes any more."""
        for interface in (AttentionInterface, AttentionMaskInterface):
            for implementation in self.unobserved:
                interface._global_mapping.pop(_OBSERVED + implementation, None)
        self.unobserved.clear()

    def _attend(
        self, own: str, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **kwargs: Any
    ) -> Any:
        thread = this_thread()
        looking = [see for of, see in tuple(self.seeing.get(own, ())) if of is thread]
        if looking:
            call = record_call(module, own, _copied(query), _copied(key), _copied(value), attention_mask, kwargs)
            for see in looking:
                see(call, module)
        function = _original(module, own)
        if own == FLEX and looking:
            function = compiled_apart(function)
        return function(module, query, key, value, attention_mask, **kwargs)


_OBSERVERS = _Observers()


@contextmanager
def observed(model: ForeignModule, see: See) -> Iterator[None]:
    """Run the model's own attention implementation, and show `see` every call of it that this thread makes.

    Calls of other models may be among them. On leaving, the model is set back, and the registered name is gone as soon as nobody
    observes it and no other thread can be about to look it up.
    """
    implementation = implementation_of(model)
    if implementation not in ALL_MASK_ATTENTION_FUNCTIONS:
        raise UnsupportedModel(
            f"attention implementation {implementation!r} has no mask function registered; use 'sdpa' or 'eager'"
        )
    configs, thread = _configs(model), this_thread()
    _OBSERVERS.add(implementation, configs, thread, see)
    try:
        yield
    finally:
        _OBSERVERS.remove(implementation, configs, thread, see)


def _others_run_modules() -> bool:
    """Whether another thread is within a module, so that it may have read which implementation to use and not yet used it."""
    own = threading.get_ident()
    call = nn.Module._call_impl.__code__
    return any(_within(frame, call.co_filename, call) for thread, frame in sys._current_frames().items() if thread != own)


def _within_checkpoint() -> bool:
    """Whether what runs is run by torch.utils.checkpoint, for the first time or again."""
    return _within(sys._getframe(), checkpoint.__file__)


def _within(frame: FrameType | None, file: str, code: CodeType | None = None) -> bool:
    """Whether a frame was called, however far up, from a file, or from one function of it."""
    while frame is not None and (frame.f_code is not code if code else frame.f_code.co_filename != file):
        frame = frame.f_back
    return frame is not None


def _named(module: nn.Module, args: tuple, kwargs: dict) -> dict:
    """What a module was called with, by the names of its forward."""
    try:
        # Of the class: others who look on may have put something of their own before the module's forward.
        bound = inspect.signature(type(module).forward).bind(module, *args, **kwargs)
    except TypeError as error:
        raise UnsupportedModel(f"{type(module).__name__} was called in a way its forward does not take: {error}") from None
    named: dict = {}
    for name, value in list(bound.arguments.items())[1:]:
        kind = bound.signature.parameters[name].kind
        named.update(value if kind is inspect.Parameter.VAR_KEYWORD else {name: value})
    return named


def _of_tokens_so_far(call: Call, cache_layer: Any) -> Call:
    """A call without the keys that a static cache has room for and that no token has yet."""
    if cache_layer is None or call.key.shape[-2] != cache_layer.keys.shape[-2]:
        return call
    key, value = filled(cache_layer, call.key), filled(cache_layer, call.value)
    by_key = isinstance(call.mask, Tensor) and call.mask.dim() == 4
    return replace(call, key=key, value=value, mask=call.mask[..., : key.shape[-2]] if by_key else call.mask)


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


class Hook:
    """A forward hook that acts in the thread alone that made it: in others the model runs as if nobody looked on.

    It acts on the very module that it is registered on: in a copy of that, or a pickle, it does nothing.
    """

    def __init__(self, act: Callable[..., Any]) -> None:
        self._act = act
        self._thread = this_thread()

    def __call__(self, *given: Any) -> Any:
        return self._act(*given) if self._acts() else None

    def _acts(self) -> bool:
        return this_thread() is self._thread

    def __reduce__(self) -> tuple:
        return Hook, (_nothing,)


def _nothing(*given: Any) -> None:
    """Do nothing."""


class WarnsOtherThreads(Hook):
    """Warn other threads once that edits do not act in their runs."""

    def __init__(self) -> None:
        super().__init__(self._warn)
        self._warned = False

    def _acts(self) -> bool:
        return not (self._warned or super()._acts())

    def _warn(self, module: nn.Module, args: tuple) -> None:
        self._warned = True
        words = (
            f"{type(module).__name__} is edited in another thread, and this run of it is not; run it in the thread that "
            "opened scope.edit to have it edited"
        )
        warnings.warn_explicit(words, DiffscopeWarning, __name__, 1, registry={})  # for each block of edits anew


class _Enough(BaseException):
    """Stop the run of a module in place of another once its attention was recorded; no module catches it."""


class _Watch:
    """The passes through attention of this thread that are under way, and the hooks that record them."""

    def __init__(self, family: Family, lengths: tuple[int, ...] | None, layers: int) -> None:
        self.family = family
        self.lengths = lengths
        self.layers = layers  # the numbers of one round of the modules: each further round is numbered on by so many
        self.runs: Counter[nn.Module] | None = None  # how often each module was run; None while the model is not running
        self.call: ModelCall | None = None  # the call of the model; None while it is not running
        self.learning = True  # whether the model was called with gradients; true if only a part of it is run
        self.open: dict[nn.Module, AttentionPass] = {}
        self.after_forward: dict[nn.Module, AfterForward | None] = {}

    def start_run(self, model: nn.Module, args: tuple, kwargs: dict) -> None:
        """Begin to count the runs of each module: a forward of the model begins."""
        self.runs = Counter()
        self.call = ModelCall.of(model, args, kwargs)
        self.learning = torch.is_grad_enabled() or _within_checkpoint()  # which may have turned gradients off

    def end_run(self, model: nn.Module, args: tuple, output: Any) -> None:
        """Forget what belongs to the forward of the model that has ended."""
        self.runs = None
        self.call = None
        self.learning = True

    def see(self, call: Call, module: nn.Module) -> None:
        """Add a call of the attention interface to the pass that it belongs to."""
        if module in self.open:
            self.open[module].calls.append(_of_tokens_so_far(call, self.open[module].cache_layer))

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
            if self.runs is not None:
                repeat = self.runs[module]
                self.runs[module] += 1
            attention_pass = AttentionPass(
                module,
                index,
                number + repeat * self.layers,
                (),
                _named(module, args, kwargs),
                repeat=repeat,
                call=self.call,
                family=self.family.name,
            )
            self._check_prompts(attention_pass)
            hidden = attention_pass.hidden
            attention_pass.lengths = self.lengths or (hidden.shape[1],) * len(hidden)
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
                stack.callback(submodule.register_forward_hook(Hook(self._after_watched(module, name))).remove)
            projection = self.family.output_projection(module)
            before_output = Hook(self._before_output(module, on_pass, replace_output))
            stack.callback(projection.register_forward_pre_hook(before_output).remove)
            stack.callback(module.register_forward_hook(Hook(end)).remove)
            yield

    def _check_prompts(self, attention_pass: AttentionPass) -> None:
        """Raise UnsupportedModel if a module does not get all prompts at once: it is not known which of them it has."""
        call = attention_pass.call
        given = (None, None) if call is None else (call.tokens, call.prompts)
        tokens, prompts = given if self.lengths is None else (max(self.lengths), len(self.lengths))
        count, second = attention_pass.hidden.shape[:2]
        if prompts and count < prompts and (count, second) != (tokens, prompts):  # some have the tokens first
            kind = attention_pass.kind
            raise UnsupportedModel(
                f"layer {attention_pass.number}: {kind} is given {count} of {prompts} prompts at a time, so the model takes its "
                "batch apart; give it one prompt at a time"
            )

    def _after_watched(self, owner: nn.Module, name: str) -> Callable:
        """Return a hook that records the output of a watched submodule under the name that the family knows it by."""

        def hook(module: nn.Module, args: tuple, output: Any) -> None:
            if owner in self.open:
                self.open[owner].outputs[name] = _copied(output)

        return hook

    def _before_output(self, owner: nn.Module, on_pass: OnPass | None, replace_output: ReplaceOutput | None) -> Callable:
        """Return a hook that shows a pass as its output projection is called, and may replace what enters that."""
        width = self.family.attention_width(owner)

        def hook(module: nn.Module, args: tuple) -> tuple | None:
            attention_pass = self.open.get(owner)
            if attention_pass is None:
                kind = type(owner).__name__
                raise UnsupportedModel(f"{kind} is not called itself, only its forward or a part of it, so it cannot be observed")
            if not self.family.interface and torch.is_autocast_enabled(args[0].device.type):
                raise UnsupportedModel(
                    f"under torch.autocast it is not known in which precision {type(owner).__name__} multiplies; "
                    "capture outside of it, or convert the model"
                )
            if hasattr(attention_pass, "observed"):
                kind = type(owner).__name__
                raise UnsupportedModel(f"{kind} calls its output projection more than once, so it is not known what enters it")
            attention_pass.observed = args[0][..., :width]
            with weights_loaded(owner):
                self.after_forward[owner] = on_pass(attention_pass) if on_pass else None
                output = replace_output(attention_pass) if replace_output else None
            if output is None:
                return None
            if self.learning and _within_checkpoint():
                raise UnsupportedModel(
                    "edits cannot be made under gradient checkpointing, which runs layers again in the backward pass, where they "
                    "may be closed; turn it off, or run the model under torch.no_grad()"
                )
            if width is not None:  # the rest is not attention and stays
                output = torch.cat([output, args[0][..., width:]], dim=-1)
            return (output, *args[1:])

        return hook

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
                for by_module in (self.open, self.after_forward, self.runs or {}):
                    by_module.pop(module, None)
        passes[0].lengths, passes[0].pack = attention_pass.lengths, attention_pass.pack
        return passes[0]


@contextmanager
def attention_passes(
    model: nn.Module,
    family: Family,
    lengths: tuple[int, ...] | None,
    on_pass: OnPass | None = None,
    replace_output: ReplaceOutput | None = None,
    before_forward: BeforeForward | None = None,
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

    Raises
    ------
    UnsupportedModel
        The model runs its attention in a way that cannot be observed.
    """
    numbers = family.numbers(model)
    watch = _Watch(family, lengths, 1 + max(numbers, default=0))
    with ExitStack() as stack:
        stack.callback(model.register_forward_pre_hook(Hook(watch.start_run), with_kwargs=True).remove)
        stack.callback(model.register_forward_hook(Hook(watch.end_run), always_call=True).remove)
        for index, (module, number) in enumerate(zip(family.modules(model), numbers)):
            stack.enter_context(watch.follow(module, index, number, on_pass, replace_output, before_forward))
        if family.interface:
            stack.enter_context(observed(model, watch.see))
        yield
