"""What figures of any labelled values begin with: which dimension plays which role, and what the axes are called."""

from __future__ import annotations

from collections.abc import Mapping

import xarray as xr

from diffscope.errors import DiffscopeError, check_choice


def by_role(values: xr.DataArray, named: Mapping[str, str | None]) -> dict[str, str]:
    """Return the role that each dimension plays, from the dimension of each role; refuse a dimension without one."""
    if not isinstance(values, xr.DataArray):
        raise DiffscopeError(f"this figure is of labelled values, an xarray.DataArray, not of a {type(values).__name__}")
    chosen = {dim: role for role, dim in named.items() if dim is not None}
    given = [dim for dim in named.values() if dim is not None]
    if twice := next((dim for dim in chosen if given.count(dim) > 1), None):
        raise DiffscopeError(f"{twice!r} is drawn along twice; give each of {', '.join(named)} a dimension of its own")
    for dim in chosen:
        check_choice("dimension", dim, values.dims)
    if left := [str(dim) for dim in values.dims if dim not in chosen]:
        raise DiffscopeError(f"{_without_role(left)}{_remedy(left[0], [role for role, dim in named.items() if dim is None])}")
    return chosen


def _without_role(dims: list[str]) -> str:
    """Return a sentence that names the dimensions that this figure does not draw."""
    names = ", ".join(map(repr, dims))
    many = len(dims) > 1
    return f"the values have {'dimensions' if many else 'a dimension'} {names} that this figure was not told how to draw; "


def _remedy(dim: str, free: list[str]) -> str:
    """Return what to do about a dimension without a role, as Python."""
    keywords = {"panel": "panels"}
    roles = [f"{keywords.get(role, role)}={dim!r}" for role in free]
    draw = f"draw it ({' or '.join(roles)}), " if roles else ""
    return f"{draw}choose one label (values.sel({dim}=…)) or average over it (values.mean({dim!r}))"


def in_roles(values: xr.DataArray, chosen: Mapping[str, str], roles: tuple[str, ...]) -> xr.DataArray:
    """Return the values with roles as dimensions, in this order; a role that no dimension plays has one label without a name."""
    array = values.reset_coords(drop=True).rename(chosen)
    missing = {role: [""] for role in roles if role not in array.dims}
    return array.expand_dims(missing).transpose(*roles).astype(float)


def along_title(values: xr.DataArray, dim: str) -> str:
    """Return what the axis along a dimension is called."""
    return str(values[dim].attrs.get("long_name", dim)) if dim in values.coords else dim


def values_title(values: xr.DataArray) -> str:
    """Return what the axis of the values is called, with their units."""
    name = str(values.attrs.get("long_name", values.name or ""))
    units = str(values.attrs.get("units", ""))
    return f"{name}, {units}" if units not in ("", "1") else name
