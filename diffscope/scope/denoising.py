"""Record what a pipeline of diffusers gives its transformer at each step of denoising, as prompts, and measure the steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import xarray as xr
from torch import Tensor, nn

from diffscope.errors import PromptError
from diffscope.families.model_call import signature_of
from diffscope.prompts.arguments import Arguments
from diffscope.prompts.encoded import Encoded, encode
from diffscope.scope.two_sides import CONTEXT, LATENTS, TIMESTEP
from diffscope.scope.unwrap import unwrapped

if TYPE_CHECKING:
    from diffscope.scope.scope import Scope

Step = Arguments | list[Arguments]  # several prompts if several sounds are made, or, with guidance, negative ones first


def denoising_steps(pipeline: Any, *args: Any, **kwargs: Any) -> list[Step]:
    """Run a pipeline of diffusers, and return what its transformer was given at each step.

    One step is one capture, ``diffscope.load(pipeline.transformer).capture(step)``. Its queries are named by their time, and its
    keys by the text's tokens and the duration. The run computes what it computes without being recorded.

    Parameters
    ----------
    pipeline : diffusers.StableAudio3Pipeline
    *args, **kwargs
        As the pipeline takes them; ``output_type="latent"`` leaves out the decoding to sound.

    Returns
    -------
    list of Arguments, or of lists of them
        Of each step the prompt; a batch if several sounds are made, or with guidance, whose negative prompts come first.
    """
    recorded: list[dict[str, Any]] = []

    def record(module: nn.Module, given: tuple, named: dict) -> None:
        inside = unwrapped(module)  # whose arguments have names
        values = signature_of(type(inside).forward).bind(inside, *given, **named).arguments
        kept = {name: x.detach().clone() if isinstance(x, Tensor) else x for name, x in list(values.items())[1:]}
        recorded.append({name: x for name, x in kept.items() if name != "return_dict" and x is not None})

    handle = pipeline.transformer.register_forward_pre_hook(record, with_kwargs=True)
    try:
        pipeline(*args, **kwargs)
    finally:
        handle.remove()
    texts = _texts(pipeline, args, kwargs, len(recorded[0][LATENTS])) if recorded else []
    keys = [_keys(pipeline.tokenizer, text, recorded[0][CONTEXT].shape[1]) for text in texts]
    return [_apart(pipeline, values, keys) for values in recorded]


def measure_steps(
    scope: Scope, steps: Sequence[Step], statistics: Sequence[str] | str | None = None, **options: Any
) -> xr.Dataset:
    """Measure the steps of denoising one after the other, as ``scope.measure(step, statistics, ...)`` does each.

    Parameters
    ----------
    scope : Scope
        Of the transformer.
    steps : sequence
        Of :func:`denoising_steps`.
    statistics, **options
        As of ``Scope.measure``.

    Returns
    -------
    xarray.Dataset
        With a dimension ``step`` before the others, and its coordinate ``timestep``.

    Raises
    ------
    PromptError
        There is no step.
    """
    if not steps:
        raise PromptError("there is no step to measure; give those that diffscope.denoising_steps records")
    measured = [scope.measure(step, statistics, **options) for step in steps]
    first = [step if isinstance(step, Arguments) else step[0] for step in steps]
    times = [float(each.values[TIMESTEP][0]) for each in first]
    joined = xr.concat(
        measured, "step", combine_attrs="override", coords="minimal", compat="override", join="outer", data_vars="all"
    )
    return joined.assign_coords(
        step=("step", range(len(steps)), {"long_name": "step of denoising", "units": "steps"}),
        timestep=("step", times, {"long_name": "timestep", "units": "1"}),
    )


def _texts(pipeline: Any, args: tuple, kwargs: dict, count: int) -> list[str | None]:
    """Return the text that each prompt of the transformer's batch has, None where it is not known."""
    given = signature_of(type(pipeline).__call__).bind(pipeline, *args, **kwargs).arguments
    prompt, negative = (given.get(name) for name in ("prompt", "negative_prompt"))
    texts = [prompt] if isinstance(prompt, str) else list(prompt or [])
    sounds = [text for text in texts for _ in range(given.get("num_waveforms_per_prompt", 1))]
    if len(sounds) == count:
        return sounds
    against = list(negative) if isinstance(negative, (list, tuple)) else [negative or ""] * len(texts)
    both = [text for text in against for _ in range(given.get("num_waveforms_per_prompt", 1))] + sounds
    return both if texts and len(both) == count else [None] * count


def _keys(tokenizer: Any, text: str | None, count: int) -> Encoded | None:
    """Return the tokens that a pipeline makes of a text, padded, and behind them the duration: `count` in all."""
    if text is None:
        return None
    ids = tokenizer(text, padding="max_length", max_length=count - 1, truncation=True)["input_ids"]
    keys = encode(tokenizer, ids)
    return replace(
        keys, ids=(*keys.ids, 0), tokens=(*keys.tokens, "duration"), offsets=(*keys.offsets, (0, 0)), spans={"sink": (0,)}
    )


def _apart(pipeline: Any, values: dict[str, Any], keys: Sequence[Encoded | None]) -> Step:
    """Return the arguments of one call as one a prompt, with names for the places of its latents, in seconds."""
    config = pipeline.transformer.config
    seconds = getattr(config, "patch_size", 1) * pipeline.vae.downsampling_ratio / pipeline.vae.config.sampling_rate
    places = values[LATENTS].shape[-1] // getattr(config, "patch_size", 1)
    names = [f"{place * seconds:.2f} s" for place in range(places)]
    parts = [
        Arguments({name: x[at : at + 1] if isinstance(x, Tensor) else x for name, x in values.items()}, names, of_prompt)
        for at, of_prompt in enumerate(keys)
    ]
    return parts[0] if len(parts) == 1 else parts
