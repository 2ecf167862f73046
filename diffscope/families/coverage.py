"""Name the layers without attention that is read: what is shown is not about them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from torch import nn

CONTAINERS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)
NAMED = 12  # layers that are numbered one by one


def unread_layers(model: nn.Module, numbers: dict[nn.Module, int]) -> str | None:
    """Return in a line which layers hold no attention that is read; None if all do.

    A layer is what stands in one list of modules with others that hold an attention module. Whether it was built without
    attention or has one that is not known is all the same here: what it has instead is named.

    Parameters
    ----------
    model : nn.Module
    numbers : dict of nn.Module to int
        The attention modules that are read with their layers' numbers, as ``Family.layers`` gives them.
    """
    holders = {module for module in model.modules() if not numbers.keys().isdisjoint(module.modules())}
    lists = [layers for layers in _lists_of_layers(model, holders) if not all(layer in holders for _, layer in layers)]
    return "; ".join(_unread_of(layers, numbers) for layers in lists) or None


def _lists_of_layers(model: nn.Module, holders: Collection[nn.Module]) -> Iterator[list[tuple[int, nn.Module]]]:
    """Yield the outermost lists of modules of a model that have members among `holders`, each member with its place."""
    for module in model.children():
        members = list(enumerate(_members(module)))
        kinds = {type(member) for _, member in members if member in holders}
        if not isinstance(module, nn.ModuleList):  # which may begin with an embedding and end with a head
            places = [place for place, member in members if type(member) in kinds]
            members = members[min(places, default=0) : max(places, default=-1) + 1]
        if isinstance(module, nn.ModuleDict) and any(issubclass(kind, CONTAINERS) for kind in kinds):  # which holds the lists
            members = []
        if len(members) < 2 or not kinds:
            yield from _lists_of_layers(module, holders)
        else:
            yield members


def _members(module: nn.Module) -> Iterable[nn.Module]:
    """Return the members of a list of modules in order; none of any other module."""
    if isinstance(module, nn.ModuleDict):
        return module.values()
    return module.children() if isinstance(module, CONTAINERS) else ()


def _unread_of(layers: Sequence[tuple[int, nn.Module]], numbers: dict[nn.Module, int]) -> str:
    """Return the line on a list of layers, not all with attention that is read."""
    read = {place: {numbers[part] for part in layer.modules() if part in numbers} for place, layer in layers}
    unread = [(place, layer) for place, layer in layers if not read[place]]
    ordinary = {(name, type(part)) for place, layer in layers if read[place] for name, part in layer.named_children()}
    kinds = ", ".join(sorted({_instead(layer, ordinary) for _, layer in unread}))
    if all(place in of_place for place, of_place in read.items() if of_place):
        without = _counted([place for place, _ in unread])
        shown = _counted(sorted(set().union(*read.values())))
        return f"{without} without attention that diffscope reads ({kinds}); what is shown is about {shown}"
    return f"{len(unread)} of {len(layers)} layers without attention that diffscope reads ({kinds}); nothing is shown of them"


def _instead(layer: nn.Module, ordinary: set[tuple[str, type]]) -> str:
    """Return the class of what a layer has, other than norms, and those with attention have not; without such a part its own."""
    other = (type(part).__name__ for name, part in layer.named_children() if (name, type(part)) not in ordinary)
    return next((name for name in other if "Norm" not in name), type(layer).__name__)


def _counted(numbers: Sequence[int]) -> str:
    """Return layers by number if they are few, else how many there are."""
    layers = "layer" if len(numbers) == 1 else "layers"
    return f"{len(numbers)} {layers}" if len(numbers) > NAMED else f"{layers} {', '.join(map(str, numbers))}"
