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
from diffscope.families.base import AttentionPass, Call, Family, ForeignModule, filled
from diffscope.families.flex import FLEX, compiled, compiled_apart
from diffscope.families.interface import call_of
from diffscope.families.model_call import ModelCall
from diffscope.families.offloaded import fetched

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


def _kept(value: Any) -> Any:
    """A copy of a tensor, or of a tuple of some: a module may change in place what it computed, or use its memory again."""
    if isinstance(value, tuple):
        return tuple(map(_kept, value))
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
            call = call_of(module, own, _kept(query), _kept(key), _kept(value), attention_mask, kwargs)
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


Take = Callable[[AttentionPass], Callable[[], None] | None]
Change = Callable[[AttentionPass], Tensor | None]


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


Begin = Callable[[AttentionPass, Replay], None]


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
    """The passages of this thread that are under way, and the hooks that follow them."""

    def __init__(self, family: Family, lengths: tuple[int, ...] | None, layers: int) -> None:
        self.family = family
        self.lengths = lengths
        self.layers = layers  # how far the numbers of a further round of the same modules are from those of the one before
        self.turns: Counter[nn.Module] | None = None  # how often each module was run; None while the model is not running
        self.call: ModelCall | None = None  # what the model was called with; None while it is not running
        self.learning = True  # whether the run of the model was begun with gradients, or only a part of it is run
        self.open: dict[nn.Module, AttentionPass] = {}
        self.then: dict[nn.Module, Callable[[], None] | None] = {}  # what to do when a module is done

    def begin(self, model: nn.Module, args: tuple, kwargs: dict) -> None:
        """Begin to count: a run of the model begins."""
        self.turns = Counter()
        self.call = ModelCall.of(model, args, kwargs)
        self.learning = torch.is_grad_enabled() or _within_checkpoint()  # which may have turned gradients off

    def finish(self, model: nn.Module, args: tuple, output: Any) -> None:
        self.turns = None
        self.call = None
        self.learning = True

    def see(self, call: Call, module: nn.Module) -> None:
        if module in self.open:
            self.open[module].calls.append(_of_tokens_so_far(call, self.open[module].cache_layer))

    @contextmanager
    def follow(
        self,
        module: nn.Module,
        index: int,
        number: int,
        take: Take | None = None,
        change: Change | None = None,
        begin: Begin | None = None,
    ) -> Iterator[None]:
        """Record every passage through one attention module; parameters as of :func:`passages`."""

        def start(module: nn.Module, args: tuple, kwargs: dict) -> None:
            turn = 0
            if self.turns is not None:
                turn = self.turns[module]
                self.turns[module] += 1
            named = _named(module, args, kwargs)
            passage = AttentionPass(module, index, number + turn * self.layers, (), named, turn=turn, call=self.call)
            self._check_prompts(passage)
            passage.lengths = self.lengths or (passage.hidden.shape[1],) * len(passage.hidden)
            before = passage.cache_layer  # a cache that keeps a window lets go of some as soon as others come
            passage.cached = None if before is None else (before.keys, before.values)
            if begin:  # before the passage is open: a forward that somebody replaced may lead a copy back to this module
                begin(passage, Replay(args, kwargs, partial(self._run_in_place, passage)))
            self.open[module] = passage

        def end(module: nn.Module, args: tuple, output: Any) -> None:
            passage = self.open.pop(module)
            if not hasattr(passage, "observed"):
                kind = type(module).__name__
                raise UnsupportedModel(f"{kind} does not call its output projection, so its maps cannot be proved")
            if then := self.then.pop(module):
                with fetched(module):
                    then()

        with ExitStack() as stack:
            stack.callback(module.register_forward_pre_hook(Hook(start), with_kwargs=True).remove)
            for name, watched in self.family.parts(module).items():
                stack.callback(watched.register_forward_hook(Hook(self._part(module, name))).remove)
            projection = self.family.output_projection(module)
            stack.callback(projection.register_forward_pre_hook(Hook(self._before_output(module, take, change))).remove)
            stack.callback(module.register_forward_hook(Hook(end)).remove)
            yield

    def _check_prompts(self, passage: AttentionPass) -> None:
        """Raise UnsupportedModel where a module is not given all prompts at once: which of them it has is not known."""
        given = (None, None) if passage.call is None else (passage.call.tokens, passage.call.prompts)
        tokens, prompts = given if self.lengths is None else (max(self.lengths), len(self.lengths))
        count, second = passage.hidden.shape[:2]
        if prompts and count < prompts and (count, second) != (tokens, prompts):  # some have the tokens first
            kind = type(passage.module).__name__
            raise UnsupportedModel(
                f"layer {passage.number}: {kind} is given {count} of {prompts} prompts at a time, so the model takes its batch "
                "apart; give it one prompt at a time"
            )

    def _part(self, owner: nn.Module, name: str) -> Callable:
        def hook(module: nn.Module, args: tuple, output: Any) -> None:
            if owner in self.open:
                self.open[owner].parts[name] = _kept(output)

        return hook

    def _before_output(self, owner: nn.Module, take: Take | None, change: Change | None) -> Callable:
        width = self.family.attention_width(owner)

        def hook(module: nn.Module, args: tuple) -> tuple | None:
            passage = self.open.get(owner)
            if passage is None:
                kind = type(owner).__name__
                raise UnsupportedModel(f"{kind} is not called itself, only its forward or a part of it, so it cannot be observed")
            if not self.family.interface and torch.is_autocast_enabled(args[0].device.type):
                raise UnsupportedModel(
                    f"under torch.autocast it is not known in which precision {type(owner).__name__} multiplies; "
                    "capture outside of it, or convert the model"
                )
            if hasattr(passage, "observed"):
                kind = type(owner).__name__
                raise UnsupportedModel(f"{kind} calls its output projection more than once, so it is not known what enters it")
            passage.observed = args[0][..., :width]
            with fetched(owner):
                self.then[owner] = take(passage) if take else None
                changed = change(passage) if change else None
            if changed is None:
                return None
            if self.learning and _within_checkpoint():
                raise UnsupportedModel(
                    "edits cannot be made under gradient checkpointing, which runs layers again in the backward pass, where they "
                    "may be closed; turn it off, or run the model under torch.no_grad()"
                )
            if width is not None:  # what is not attention goes on as it came
                changed = torch.cat([changed, args[0][..., width:]], dim=-1)
            return (changed, *args[1:])

        return hook

    def _run_in_place(self, passage: AttentionPass, module: nn.Module, args: tuple, kwargs: dict) -> AttentionPass:
        """Run another module in place of that of a pass, and return its own pass up to the output projection."""
        taken: list[AttentionPass] = []

        def take(passage: AttentionPass) -> None:
            taken.append(passage)
            raise _Enough

        with self.follow(module, passage.index, passage.number, take), suppress(_Enough):
            try:
                module(*args, **kwargs)
            finally:  # the layers that follow need its memory
                for held in (self.open, self.then, self.turns or {}):
                    held.pop(module, None)
        taken[0].lengths, taken[0].pack = passage.lengths, passage.pack
        return taken[0]


@contextmanager
def passages(
    model: nn.Module,
    family: Family,
    lengths: tuple[int, ...] | None,
    take: Take | None = None,
    change: Change | None = None,
    begin: Begin | None = None,
) -> Iterator[None]:
    """While the context is open, record every passage through an attention module and hand it over.

    Only those of this thread: other threads that run the model meanwhile run it as it is.

    Parameters
    ----------
    lengths : tuple of int, optional
        Tokens of each prompt of the batch about to be run; padding is on the right. Without it every row is a token.
    take : callable, optional
        Gets a passage before the output projection, while what the module was called with is as it attended to it; its tensors
        must not be changed. What it returns, if anything, is called when the module is done and its memory is free again.
    change : callable, optional
        Gets a passage before the output projection, and gives what is to enter it instead, or None.
    begin : callable, optional
        Gets a passage before its module has done anything, and its inputs with a function that runs another module on such inputs
        first (:class:`Replay`).
    """
    numbers = family.numbers(model)
    watch = _Watch(family, lengths, 1 + max(numbers, default=0))
    with ExitStack() as stack:
        stack.callback(model.register_forward_pre_hook(Hook(watch.begin), with_kwargs=True).remove)
        stack.callback(model.register_forward_hook(Hook(watch.finish), always_call=True).remove)
        for index, (module, number) in enumerate(zip(family.modules(model), numbers)):
            stack.enter_context(watch.follow(module, index, number, take, change, begin))
        if family.interface:
            stack.enter_context(observed(model, watch.see))
        yield
