"""Attention with a projection each for q, k and v, declared by the names of its parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from numbers import Real
from operator import index
from typing import Any

from torch import Tensor, nn

from diffscope.attention.components import Mask, Pairing
from diffscope.attention.layer import LayerAttention
from diffscope.errors import UnsupportedModel, translated
from diffscope.families.attention_pass import AttentionPass
from diffscope.families.base import Family
from diffscope.families.foreign import attribute, has_attribute
from diffscope.families.reading import heads_of

PAIRED = "correct the family's heads, groups or pairing"
Lambda = str | float | Callable[[nn.Module, Mapping[str, Tensor]], Tensor | float]


@dataclass
class Projected(Family):
    """A family of modules that project q, k and v apart and do not turn them (RoPE): no class of its own is needed.

    Attributes
    ----------
    name : str
    module_class : type
        Of the attention modules.
    heads : str
        Attribute with the number of heads.
    lam : str, float or callable
        λ: an attribute, a number, or a function of the module and the outputs of its watched parts. A tensor is (heads,), or
        broadcasts to (batch, head, query).
    pairing : callable
        One of :class:`Pairing <diffscope.families.Pairing>`'s, such as ``Pairing.stripes`` or ``Pairing.halves``.
    groups : str, optional
        Attribute with the number of key and value groups; by default each head has its own.
    q, k, v, output : str
        Paths of the submodules.
    norm : str, optional
        Path of the norm of the heads' outputs.
    gain : str, float or callable, optional
        Factor of A1, as `lam` is of A2; by default 1. A gate g of both maps, g·A1 − (1 − g)·A2, is gain g with λ = 1 − g.
    causal : bool
        Whether queries see no later keys.
    watched_too : mapping of str to str
        Further submodules whose outputs `lam` or `gain` needs, by name.
    description : str
        The models that it reads, in a line.
    """

    name: str
    module_class: type[nn.Module]
    _: KW_ONLY
    heads: str
    lam: Lambda
    pairing: Callable[..., Pairing] = Pairing.stripes
    groups: str | None = None
    q: str = "q_proj"
    k: str = "k_proj"
    v: str = "v_proj"
    output: str = "o_proj"
    norm: str | None = None
    gain: Lambda | None = None
    causal: bool = True
    watched_too: Mapping[str, str] | None = None
    description: str = ""

    @property
    def watch(self) -> Mapping[str, str]:  # type: ignore[override]  # of the instance
        """Return the paths of the submodules whose outputs are needed, by name."""
        return {"q": self.q, "k": self.k, "v": self.v, **(self.watched_too or {})}

    def read(self, attention_pass: AttentionPass) -> LayerAttention:
        module, outputs = attention_pass.module, attention_pass.outputs
        groups = None if self.groups is None else self._count(module, "groups")
        declared = self._count(module, "heads")
        with translated(UnsupportedModel, f"{attention_pass.kind} has {declared} heads", PAIRED, errors=ValueError):
            pairing = self.pairing(declared, groups, device=outputs["q"].device)
        maps, values = pairing.key_of_map, int(pairing.value_of_head.max()) + 1
        counts = {"q": len(maps), "k": int(maps.max()) + 1, "v": values}
        for name, count in counts.items():
            if outputs[name].shape[-1] % count:
                wide = f"{attention_pass.kind} makes {name} {outputs[name].shape[-1]} wide"
                raise UnsupportedModel(f"{wide}, which {count} heads cannot share; {PAIRED}")
        q, k, v = (heads_of(outputs[name], outputs[name].shape[-1] // count) for name, count in counts.items())
        heads = len(pairing.value_of_head)
        return attention_pass.layer(
            q,
            k,
            v,
            pairing,
            lam=self._weight("lam", attention_pass, heads),
            norm=None if self.norm is None else self._declared(module, "norm"),
            mask=Mask("causal") if self.causal else Mask("full"),
            gain=None if self.gain is None else self._weight("gain", attention_pass, heads),
        )

    def _declared(self, module: nn.Module, name: str) -> Any:
        """Return the attribute of a module whose path is declared as `name`, which may be None.

        Raises
        ------
        UnsupportedModel
            The module has no such attribute.
        """
        path = getattr(self, name)
        if not has_attribute(module, path):
            raise UnsupportedModel(f"{type(module).__name__} has no {path!r}; correct the family's {name}")
        return attribute(module, path)

    def _count(self, module: nn.Module, name: str) -> int:
        """Return the number of a module whose path is declared as `name`."""
        value = self._declared(module, name)
        try:
            return index(value)
        except TypeError:
            is_none = f"{getattr(self, name)!r} of {type(module).__name__} is no whole number"
            raise UnsupportedModel(f"{is_none}; correct the family's {name}") from None

    def _weight(self, name: str, attention_pass: AttentionPass, heads: int) -> Tensor:
        """Return λ or the factor of A1, from how it was declared: (heads,), or what broadcasts to (batch, head, query).

        Raises
        ------
        UnsupportedModel
            It is neither a number nor a tensor of such a shape.
        """
        module, outputs = attention_pass.module, attention_pass.outputs
        weight: Any = getattr(self, name)
        if isinstance(weight, str):
            weight = self._declared(module, name)
        elif callable(weight):
            weight = weight(module, outputs)
        if isinstance(weight, Real):
            weight = outputs["q"].new_full((1,), float(weight))
        if not isinstance(weight, Tensor):
            raise UnsupportedModel(
                f"the {name} of {type(module).__name__} is no number and no tensor; correct the family's {name}"
            )
        shape, fits = tuple(weight.shape), (len(outputs["q"]), heads, outputs["q"].shape[1])
        sizes = (*shape, 1) if len(shape) == 1 else shape  # (batch, head, query), or the last of these
        if len(sizes) > 3 or any(size not in (1, most) for size, most in zip(reversed(sizes), reversed(fits))):
            raise UnsupportedModel(
                f"the {name} of {type(module).__name__} has the shape {shape}, which is neither ({heads},) nor broadcasts to "
                f"{fits}, (batch, head, query); correct the family's {name}"
            )
        return weight.detach().clone()  # which training may change
