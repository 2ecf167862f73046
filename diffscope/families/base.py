"""Describe an implementation of attention: how its modules are recognised, what is watched in them, and how they are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from diffscope.attention.layer import LayerAttention
from diffscope.cards import FAMILIES
from diffscope.errors import UnsupportedModel
from diffscope.families.attention_pass import AttentionPass
from diffscope.families.foreign import REGISTER, ForeignModule, attribute, encoder_of, has_attribute, parts_of
from diffscope.families.model_call import signature_of


@dataclass(frozen=True)
class Convention:
    """Design of an implementation, in the terms in which implementations differ.

    Attributes
    ----------
    pairing : str
        Which query maps belong to head h, in words.
    lam : str
        Formula of λ.
    schedule : int or None
        λ_init of layer l (from 0) is the paper's 0.8 − 0.6·exp(−0.3·(l + schedule)); None without a λ_init.
    norm : {"rms", "rms, affine", None}
        Of a head's output.
    post_scale : bool
        Whether the normed output is multiplied with 1 − λ_init.
    rope : str
        ``half``, ``interleaved``, ``none`` or in words.
    keys : {"one a map", "shared by both maps"}
        Whether the two maps of a head look at keys of their own.
    """

    pairing: str
    lam: str
    schedule: int | None
    norm: str | None
    post_scale: bool
    rope: str
    keys: str = "one a map"


EXPONENTIAL = "exp(λq1·λk1) − exp(λq2·λk2) + λ_init"
SIGMOID = "sigmoid(W·x), per token and head"
STRIPES = "2h, 2h + 1"
HALVES = "h, h + H"
ONE_SECOND = "h, and one second map for all heads"


SOURCES = ("key_value_states", "encoder_hidden_states")  # arguments of transformers' cross-attention


class Family:
    """One implementation of attention.

    A new one is a subclass in a file of its own, listed in ``diffscope.families``; one that lives elsewhere is made known by
    :func:`diffscope.families.register`. Most of it is declared by class attributes; :meth:`read` is the only method needed, or
    :meth:`readings` where there are several.

    Attributes
    ----------
    name : str
    description : str
        The models that it reads, in a line. Those of diffscope's own families are in ``diffscope.cards``.
    convention : Convention or None
        What the implementation does by design; None for standard attention.
    tried_on : {"real class", "documented layout"}
        Whether the family was tested against the published class, or against a module of ours that follows its documentation.
    module_class : type
        Class of its attention modules, if it can be imported.
    has : tuple of str
        Attributes that a module must have to be one of its attention modules, such as ``"q_proj"`` or ``"inner.norm"``.
    watch : mapping of str to str
        Submodules whose outputs `read` needs: the name in :attr:`AttentionPass.outputs`, and the path in the module. Absent ones
        are left out. Without any, queries, keys and values are seen at the Hugging Face attention interface.
    output : str
        Path of the submodule whose input is the attention output that captures are proved against.
    tokens_first : bool
        Whether the modules take and give tensors of (token, batch, width). `read` gets their input as (batch, token, width), and
        the outputs of watched submodules as they are.
    """

    name: str
    convention: Convention | None = None
    tried_on: str = "real class"
    module_class: type[nn.Module] = nn.Module
    has: tuple[str, ...] = ()
    watch: ClassVar[Mapping[str, str]] = {}
    output: str = "o_proj"
    tokens_first: bool = False

    @property
    def description(self) -> str:
        """Return the models that it reads, in a line; empty for a family that does not say so."""
        card = FAMILIES.get(self.name)
        return "" if card is None else card.reads

    @property
    def interface(self) -> bool:
        """Return whether the modules are observed at the Hugging Face attention interface, and not by their submodules."""
        return not self.watch

    def recognises(self, module: ForeignModule) -> bool:
        """Return whether a module is an attention module of this family, by its class and attributes."""
        declared = bool(self.has) or self.module_class is not nn.Module
        return declared and isinstance(module, self.module_class) and all(has_attribute(module, path) for path in self.has)

    def modules(self, model: nn.Module) -> list[nn.Module]:
        """Return the attention modules that this family reads, in layer order; none if the model is of another family."""
        return [module for module in parts_of(model) if self.recognises(module)]

    def layers(self, model: nn.Module) -> dict[nn.Module, int]:
        """Return the attention modules in layer order, each with its layer's number in the model, from 0.

        The numbers are the :meth:`depths`, or the positions of the modules if depths repeat, as in an encoder with its decoder.
        Repeated ``layer_idx`` of other Hugging Face models stay, so that a capture refuses the model if several are run.
        """
        modules = self.modules(model)
        depths = self.depths(model, modules)
        numbers = [depth for depth in depths if depth is not None]
        indices = [getattr(module, "layer_idx", None) for module in modules]
        stay = self.interface and numbers == indices and encoder_of(model) is None
        if len(set(numbers)) < len(modules) and not stay:
            numbers = list(range(len(modules)))
        return dict(zip(modules, numbers))

    def output_projection(self, module: ForeignModule) -> nn.Module:
        """Return the submodule whose input is the attention output that captures are proved against.

        Raises
        ------
        UnsupportedModel
            The module has no submodule of that name.
        """
        projection = attribute(module, self.output)
        if not isinstance(projection, nn.Module):
            raise UnsupportedModel(
                f"{type(module).__name__} has no output projection named {self.output}, so its maps cannot be proved; {REGISTER}"
            )
        return projection

    def attention_width(self, module: ForeignModule) -> int | None:
        """Return how many leading elements of the output projection's input are the attention's; None if all are."""
        return None

    def watched(self, module: ForeignModule) -> dict[str, nn.Module]:
        """Return the submodules whose outputs are recorded, by their names in :attr:`AttentionPass.outputs`."""
        parts = {name: attribute(module, path) for name, path in self.watch.items()}
        return {name: part for name, part in parts.items() if isinstance(part, nn.Module)}

    def source_of(self, arguments: Mapping[str, Any]) -> Tensor | None:
        """Return what the keys of cross-attention are made of, (batch, key, hidden); None if they are of the queries' own tokens.

        Parameters
        ----------
        arguments : mapping of str
            Of the module's forward.
        """
        given = (arguments.get(name) for name in SOURCES)
        return next((source for source in given if source is not None), None)

    def crosses(self, module: ForeignModule) -> bool:
        """Return whether a module's forward takes what cross-attention looks at, by its parameters."""
        names = signature_of(type(module).forward).parameters
        marker = object()
        return self.source_of(dict.fromkeys(names, marker)) is marker

    def depths(self, model: nn.Module, modules: Sequence[ForeignModule]) -> list[int | None]:
        """Return the blocks that modules are in: ``layer_idx`` if all have one, else the last number in ``layers.3.attn``."""
        indices: list[Any] = [getattr(module, "layer_idx", None) for module in modules]
        if all(isinstance(index, int) and index >= 0 for index in indices):
            return indices
        names = {module: name for name, module in model.named_modules()}
        digits = [[int(part) for part in names[module].split(".") if part.isdigit()] for module in modules]
        return [numbers[-1] if numbers else None for numbers in digits]

    def __init_subclass__(cls) -> None:
        """Refuse a family that says in neither way how it reads."""
        super().__init_subclass__()
        if cls.read is Family.read and cls.readings is Family.readings:
            raise TypeError(f"{cls.__name__} reads no pass; give it a method read, or readings")

    def read(self, attention_pass: AttentionPass) -> LayerAttention:
        """Translate a pass into the contract; by default as the first of :meth:`readings`."""
        return next(iter(self.readings(attention_pass)))

    def convention_of(self, module: ForeignModule) -> Convention | None:
        """Return the convention of a module, if the modules of a family differ."""
        return self.convention

    def readings(self, attention_pass: AttentionPass) -> Iterator[LayerAttention]:
        """Yield every translation of a pass that the family allows; the first that rebuilds the model's output is used.

        By default there is one, by :meth:`read`.
        """
        yield self.read(attention_pass)

    def suspects(self, attention_pass: AttentionPass) -> Iterator[tuple[str, LayerAttention]]:
        """Yield likely mistakes in words, each with the layer as it would be read with it; tried if no reading fits."""
        yield from ()

    def warnings(self, layer: LayerAttention) -> list[str]:
        """Return what a user of this model should know, in one line each."""
        return []
