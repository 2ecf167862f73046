"""Forward hooks, and a registered attention implementation, that record each attention call and may replace its output."""

from __future__ import annotations

import inspect
import itertools
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import partial, wraps
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from diffscope.errors import DiffscopeWarning, UnsupportedModel
from diffscope.families.base import Call, Family, ForeignModule, Passage
from diffscope.families.flex import FLEX, compiled, compiled_apart
from diffscope.families.float32 import float32_copy, widened
from diffscope.families.keywords import call_of
from diffscope.families.offloaded import fetched

_numbers = itertools.count()
_NAME = "diffscope_{}_of_{}"
_left: set[str] = set()  # names of observations that are over, which another thread may be about to look up
_leaving = threading.Lock()


def implementation_of(model: nn.Module) -> str:
    """The attention implementation that all parts of a model are set to.

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
    used = {part.config._attn_implementation for part in model.modules() if isinstance(part, PreTrainedModel)}
    if len(used) != 1:
        raise UnsupportedModel(f"parts of this model differ in attention implementation ({', '.join(sorted(used))}); set one")
    return used.pop()


def own_implementation(implementation: str) -> str:
    """The name of the model's own implementation, of one that :func:`observed` may have registered on top of it."""
    return implementation.rpartition("_of_")[2] if implementation.startswith("diffscope_") else implementation


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


def _set_implementation(model: nn.Module, implementation: str) -> None:
    """Set all parts of a model, without asking its class, which may not offer what it is set to, whether it may be."""
    for part in model.modules():
        if isinstance(part, PreTrainedModel):
            part.config._attn_implementation = implementation


def _kept(value: Any) -> Any:
    """A copy of a tensor, or of a tuple of some: a module may change in place what it computed, or use its memory again."""
    if isinstance(value, tuple):
        return tuple(map(_kept, value))
    return value.clone(memory_format=torch.contiguous_format) if isinstance(value, Tensor) else value


@contextmanager
def observed(model: ForeignModule, see: Callable[[Call, nn.Module], None]) -> Iterator[None]:
    """Run the model's own attention implementation, and show `see` every call of it that this thread makes.

    On leaving, the model is set back, and the registered name is gone as soon as no other thread can be about to look it up.
    """
    implementation = implementation_of(model)
    name = _NAME.format(next(_numbers), implementation)
    own = own_implementation(implementation)
    thread = threading.get_ident()

    def attend(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **kwargs: Any) -> Any:
        looks = threading.get_ident() == thread
        if looks:
            see(call_of(module, own, _kept(query), _kept(key), _kept(value), attention_mask, kwargs), module)
        function = _original(module, implementation)
        if own == FLEX and looks:
            function = compiled_apart(function)
        return function(module, query, key, value, attention_mask, **kwargs)

    if implementation not in ALL_MASK_ATTENTION_FUNCTIONS:
        raise UnsupportedModel(
            f"attention implementation {implementation!r} has no mask function registered; use 'sdpa' or 'eager'"
        )
    mask = ALL_MASK_ATTENTION_FUNCTIONS[implementation]
    try:
        AttentionInterface.register(name, attend)
        AttentionMaskInterface.register(name, compiled(mask) if own == FLEX else mask)
        _set_implementation(model, name)
        yield
    finally:
        _set_implementation(model, implementation)
        with _leaving:
            _left.add(name)
            if not _others_run_modules():
                _forget_names()


def _others_run_modules() -> bool:
    """Whether another thread is within a module, so that it may have read which implementation to use and not yet used it."""
    own = threading.get_ident()
    return any(_runs_module(frame) for thread, frame in sys._current_frames().items() if thread != own)


def _runs_module(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code is not nn.Module._call_impl.__code__:
        frame = frame.f_back
    return frame is not None


def _forget_names() -> None:
    for interface in (AttentionInterface, AttentionMaskInterface):
        for name in _left:
            interface._global_mapping.pop(name, None)
    _left.clear()


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


_NOTHING: AbstractContextManager[Any] = nullcontext()
Take = Callable[[Passage], Callable[[], None] | None]
Change = Callable[[Passage], Tensor | None]
Again = Callable[..., Passage]  # the same passage through a float32 copy of its module, run within a context if one is given
Begin = Callable[[Passage, Again], None]


def of_this_thread(hook: Callable) -> Callable:
    """A hook that acts in the thread alone that makes it: in others the model runs as if nobody looked on."""
    thread = threading.get_ident()

    @wraps(hook)
    def call(*args: Any, **kwargs: Any) -> Any:
        return hook(*args, **kwargs) if threading.get_ident() == thread else None

    return call


def _changed_elsewhere() -> Callable:
    """A hook that says once to a thread other than this one that what is changed here is not changed there."""
    thread = threading.get_ident()
    told: list[bool] = []

    def hook(module: nn.Module, args: tuple) -> None:
        if threading.get_ident() != thread and not told:
            told.append(True)
            warnings.warn(
                f"{type(module).__name__} is edited in another thread, and this run of it is not; run it in the thread that "
                "opened scope.edit to have it edited",
                DiffscopeWarning,
                stacklevel=2,
            )

    return hook


class _Enough(BaseException):
    """Ends the run of a copy, of which nothing is needed that comes after its attention; no module catches it."""


class _Watch:
    """The passages of this thread that are under way, and the hooks that follow them."""

    def __init__(self, family: Family, lengths: tuple[int, ...] | None, layers: int) -> None:
        self.family = family
        self.lengths = lengths
        self.layers = layers  # how far the numbers of a further round of the same modules are from those of the one before
        self.turns: Counter[nn.Module] | None = None  # how often each module was run; None while the model is not running
        self.open: dict[nn.Module, Passage] = {}
        self.then: dict[nn.Module, Callable[[], None] | None] = {}  # what to do when a module is done

    def begin(self, model: nn.Module, args: tuple) -> None:
        """Begin to count: a run of the model begins."""
        self.turns = Counter()

    def finish(self, model: nn.Module, args: tuple, output: Any) -> None:
        self.turns = None

    def see(self, call: Call, module: nn.Module) -> None:
        if module in self.open:
            self.open[module].calls.append(call)

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
            passage = Passage(module, index, number + turn * self.layers, (), _named(module, args, kwargs), turn=turn)
            passage.lengths = self.lengths or (passage.hidden.shape[1],) * len(passage.hidden)
            before = passage.cache_layer  # a cache that keeps a window lets go of some as soon as others come
            passage.cached = None if before is None else (before.keys, before.values)
            if begin:  # before the passage is open: a forward that somebody replaced may lead a copy back to this module
                begin(passage, partial(self._again, passage, args, kwargs))
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
            stack.callback(module.register_forward_pre_hook(of_this_thread(start), with_kwargs=True).remove)
            for name, watched in self.family.parts(module).items():
                stack.callback(watched.register_forward_hook(of_this_thread(self._part(module, name))).remove)
            projection = self.family.output_projection(module)
            before_output = of_this_thread(self._before_output(module, take, change))
            stack.callback(projection.register_forward_pre_hook(before_output).remove)
            stack.callback(module.register_forward_hook(of_this_thread(end)).remove)
            yield

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
            if width is not None:  # what is not attention goes on as it came
                changed = torch.cat([changed, args[0][..., width:]], dim=-1)
            return (changed, *args[1:])

        return hook

    def _again(self, passage: Passage, args: tuple, kwargs: dict, within: AbstractContextManager[Any] = _NOTHING) -> Passage:
        """The passage through a float32 copy of its module, given what the module itself was given."""
        copy = float32_copy(passage.module)
        taken: list[Passage] = []

        def take(passage: Passage) -> None:
            taken.append(passage)
            raise _Enough

        inputs, options = widened((args, kwargs), getattr(passage.module, "layer_idx", None))
        device = passage.hidden.device
        random = torch.random.fork_rng([device] if device.type == "cuda" else [])
        with self.follow(copy, passage.index, passage.number, take), torch.no_grad(), random:
            with torch.autocast(device.type, enabled=False), within, suppress(_Enough):
                try:
                    copy(*inputs, **options)
                finally:  # the layers that follow need its memory
                    for held in (self.open, self.then, self.turns or {}):
                        held.pop(copy, None)
        taken[0].lengths = passage.lengths
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
        Gets a passage before its module has done anything, and a function that sends what the module was given through a
        float32 copy of it first and returns that passage.
    """
    numbers = family.numbers(model)
    watch = _Watch(family, lengths, 1 + max(numbers, default=0))
    with ExitStack() as stack:
        if change:
            stack.callback(model.register_forward_pre_hook(_changed_elsewhere()).remove)
        stack.callback(model.register_forward_pre_hook(of_this_thread(watch.begin)).remove)
        stack.callback(model.register_forward_hook(of_this_thread(watch.finish), always_call=True).remove)
        for index, (module, number) in enumerate(zip(family.modules(model), numbers)):
            stack.enter_context(watch.follow(module, index, number, take, change, begin))
        if family.interface:
            stack.enter_context(observed(model, watch.see))
        yield
