"""Train a tiny transformer of Stable Audio 3's class, in diffusers, on a task that is made up; for the notebook on it.

Of six words, a prompt has three, and each is the sound of a third of the time: six channels that the word alone decides. What
the transformer is told of a prompt is one key a word, in which the word and its place are added, and one key for the duration.
"""

import torch
from diffusers import StableAudio3DiTModel

from diffscope.prompts import Arguments

WORDS = ["piano", "rain", "bell", "drum", "wind", "voice"]
CHANNELS, PLACES, WIDTH = 6, 24, 16
SIZES = dict(embed_dim=32, depth=2, num_heads=2, num_memory_tokens=4, local_add_cond_dim=7)

draw = torch.Generator().manual_seed(0)
of_word, of_place, sounds = (torch.randn(size, generator=draw) for size in ((6, WIDTH), (4, WIDTH), (6, CHANNELS)))


def conditions(words: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return what the transformer is told of prompts of three words, given by number (prompt, 3)."""
    keys = torch.cat([of_word[words] + of_place[:3], of_place[3:].expand(len(words), 1, WIDTH)], 1)
    return {"encoder_hidden_states": keys, "global_hidden_states": torch.zeros(len(words), WIDTH)}


def trained(steps: int, rate: float = 5e-3) -> StableAudio3DiTModel:
    """Train a transformer to give the velocity from the sound of three words to noise."""
    torch.manual_seed(0)
    model = StableAudio3DiTModel(io_channels=CHANNELS, cond_token_dim=WIDTH, global_cond_dim=WIDTH, **SIZES)
    optimiser = torch.optim.AdamW(model.parameters(), rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, steps)
    for _ in range(steps):
        words = torch.rand(32, len(WORDS), generator=draw).argsort(1)[:, :3]
        sound = sounds[words].repeat_interleave(PLACES // 3, 1).mT  # (prompt, channel, place)
        noise, time = torch.randn(sound.shape, generator=draw), torch.rand(32, 1, 1, generator=draw)
        velocity = model(sound + time * (noise - sound), time.flatten(), **conditions(words), return_dict=False)[0]
        loss = (velocity - (noise - sound)).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    print(f"trained for {steps} steps; the mean square error of the last is {loss.item():.3f}, of a guess of 0 about 2")
    return model.eval()


def denoised(model: StableAudio3DiTModel, words: list[str], count: int = 8) -> list[Arguments]:
    """Return Euler's steps from noise to the sound of three words, as prompts; places are named by their time in seconds."""
    names = [f"{0.4 * place:.1f} s" for place in range(PLACES)], [*words, "duration"]
    told = conditions(torch.tensor([[WORDS.index(word) for word in words]]))
    latents, steps = torch.randn(1, CHANNELS, PLACES, generator=torch.Generator().manual_seed(5)), []
    for time in torch.linspace(1, 1 / count, count):
        given = {"hidden_states": latents, "timestep": time[None], **told}
        steps.append(Arguments(given, *names))
        with torch.no_grad():
            latents = latents - model(**given, return_dict=False)[0] / count
    return steps
