"""Capture, edit and generate from random DiffLlamas, padded and not, and hold each against a slow computation of V1.

    python -m benchmarks.random_models --count 300

The slow computation (tests/reference.py) is written from the formula, in float64, from the hidden states that each layer was
given.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from transformers import DiffLlamaConfig, DiffLlamaForCausalLM

import diffscope
from benchmarks import results
from benchmarks.results import Section, table
from diffscope import DiffscopeError, edits
from tests.reference import DiffLlamaLayer, diffllama_layer, seen_by

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
IMPLEMENTATIONS = ("eager", "sdpa")
PADDINGS = ("none", "right", "left")
OUTCOMES = ("right", "wrong", "refused", "traceback")
WHAT = ("capture", "capture under an edit", "generate under an edit")
NEW_TOKENS = 4
VOCABULARY = 300
MAPS_OFF = 2e-4  # of a weight between 0 and 1
# Of an output, in units of gain·A1·V and λ·A2·V after the norm: what the model computes itself in half precision is rounded at
# every step, what an edit rebuilds once, in eager attention the scores besides.
OUTPUT_OFF = {("float32", "eager"): 1e-3, ("float32", "sdpa"): 1e-3, ("bfloat16", "sdpa"): 0.03, ("bfloat16", "eager"): 0.1}
OWN_OUTPUT_OFF = {"float32": 1e-3, "bfloat16": 0.1}
ROWS_OFF = 0.02  # of eager half precision: the mean over rows of half of Σ|A − A'|, for a score may round to either side
LOGITS_OFF = {"float32": 1e-2, "bfloat16": 0.3}  # of a chosen token below the largest, in the spread of the logits

EDITS = {
    "none": edits.scale_lambda(1.0),
    "λ = 0.3": edits.set_lambda(0.3),
    "A2 uniform": edits.uniform_a2(),
    "|D|": edits.absolute_d(),
    "head 0 ablated": edits.ablate_heads(heads=0),
}


# models


def random_model(seed: int) -> DiffLlamaForCausalLM:
    """Return a small DiffLlama of random shape, with weights large enough that no map is uniform."""
    draw = random.Random(seed)
    pairs = draw.choice([1, 1, 2, 3])  # of key heads
    heads = pairs * draw.choice([1, 2, 3])
    head_dim = draw.choice([4, 8, 16, 32])
    config = DiffLlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=2 * heads * draw.choice([4, 8, head_dim]),
        intermediate_size=draw.choice([16, 48]),
        num_hidden_layers=draw.choice([1, 2, 3]),
        num_attention_heads=2 * heads,
        num_key_value_heads=2 * pairs,
        head_dim=head_dim,
        max_position_embeddings=128,
        rope_parameters={"rope_type": "default", "rope_theta": draw.choice([100.0, 10_000.0, 1_000_000.0])},
        rms_norm_eps=draw.choice([1e-6, 1e-5, 1e-3]),
        tie_word_embeddings=draw.random() < 0.5,
        attention_bias=draw.random() < 0.5,
        lambda_std_dev=draw.choice([0.0, 0.1, 0.5]),
        bos_token_id=0,
        eos_token_id=None,
        pad_token_id=1,
    )
    torch.manual_seed(seed)
    model = DiffLlamaForCausalLM(config).eval()
    spread = draw.choice([0.5, 1.0, 2.0])
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2:
                parameter.normal_().mul_(spread / parameter.shape[1] ** 0.5)
            elif name.endswith("bias"):
                parameter.normal_().mul_(0.3)
    return model


def random_prompts(seed: int, alike: bool) -> list[list[int]]:
    """Return two or three prompts, of one length if they are to be alike."""
    draw = random.Random(seed)
    count = draw.choice([2, 3])
    lengths = [draw.randint(2, 24)] * count if alike else [draw.randint(1, 24) for _ in range(count)]
    return [[draw.randrange(2, VOCABULARY) for _ in range(length)] for length in lengths]


# a model that computes slowly, and what its modules were given


@contextmanager
def slowly(model: nn.Module, tokens: Tensor, eager: bool, edit: str) -> Iterator[None]:
    """Have every attention module compute slowly, under an edit."""

    def forward(module: nn.Module) -> Callable:
        def slow(hidden_states: Tensor, position_embeddings: tuple[Tensor, Tensor], **_: object) -> tuple[Tensor, None]:
            slow = diffllama_layer(module, hidden_states, position_embeddings, seen_by(tokens), eager, edit)
            return module.o_proj(slow.out.to(hidden_states.dtype)), None

        return slow

    modules = [layer.self_attn for layer in model.model.layers]
    try:
        for module in modules:
            module.forward = forward(module)
        yield
    finally:
        for module in modules:
            del module.forward


@contextmanager
def watched(model: nn.Module) -> Iterator[list[dict]]:
    """Record what each attention module was given, and what entered its output projection, in the order of the layers."""
    rows: list[dict] = []
    handles = []

    def begun(module: nn.Module, args: tuple, kwargs: dict) -> None:
        rows.append({"module": module, "hidden": kwargs["hidden_states"], "angles": kwargs["position_embeddings"]})

    def projected(module: nn.Module, args: tuple, output: Tensor) -> None:
        rows[-1]["entered"] = args[0]

    for layer in model.model.layers:
        handles.append(layer.self_attn.register_forward_pre_hook(begun, with_kwargs=True))
        handles.append(layer.self_attn.o_proj.register_forward_hook(projected))
    try:
        yield rows
    finally:
        for handle in handles:
            handle.remove()


# one model in one way


@dataclass
class Run:
    """One model, dtype, implementation and padding."""

    seed: int
    dtype: str
    implementation: str
    padding: str
    edit: str = field(init=False)

    def __post_init__(self) -> None:
        self.model = random_model(self.seed).to(DTYPES[self.dtype])
        self.model.set_attn_implementation(self.implementation)
        self.scope = diffscope.load(self.model)
        self.prompts = random_prompts(self.seed, self.padding == "none")
        self.edit = random.Random(self.seed).choice(list(EDITS)[1:])

    @property
    def eager(self) -> bool:
        return self.implementation == "eager"

    def wrong(self, what: str) -> str:
        """Return what is wrong; empty if nothing is."""
        edit = "none" if what == "capture" else self.edit
        with torch.no_grad():
            if what == "generate under an edit":
                return self._generated(edit)
            bare = self._run_bare(edit) if self.padding == "left" else ""
            return bare or self._captured(edit, what == "capture")

    def padded(self) -> tuple[Tensor, Tensor]:
        """Return token ids of a batch padded on the left, and which of them are tokens."""
        longest = max(map(len, self.prompts))
        ids = torch.tensor([[1] * (longest - len(prompt)) + prompt for prompt in self.prompts])
        tokens = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in self.prompts])
        return ids, tokens

    def _slow(self, row: dict, tokens: Tensor, edit: str) -> DiffLlamaLayer:
        return diffllama_layer(row["module"], row["hidden"], row["angles"], seen_by(tokens.bool()), self.eager, edit)

    def _outputs_wrong(self, row: dict, slow: DiffLlamaLayer, tokens: Tensor, own: bool = False) -> str:
        off = (row["entered"].double() - slow.out).abs() / slow.size.clamp_min(1e-30)
        off = off.masked_fill(slow.size == 0, 0)[tokens.bool()]
        worst = float(off.max())
        bound = OWN_OUTPUT_OFF[self.dtype] if own else OUTPUT_OFF[self.dtype, self.implementation]
        return "" if worst <= bound else f"an output is off by {worst:.2g}"

    def _captured(self, edit: str, plain: bool) -> str:
        batches = [[prompt] for prompt in self.prompts] if self.padding == "none" else [self.prompts]
        for batch in batches:
            given = dict(zip(("input_ids", "attention_mask"), self.padded())) if self.padding == "left" else batch
            with self.scope.edit(*([] if plain else [EDITS[edit]])), watched(self.model) as rows:
                capture = self.scope.capture(given)
            lengths = torch.tensor([len(prompt) for prompt in batch])
            tokens = torch.arange(int(lengths.max())) < lengths[:, None]
            for layer, row in zip(capture.layers, rows, strict=True):
                slow = self._slow(row, tokens, edit)
                if problem := self._outputs_wrong(row, slow, tokens, plain) or self._maps_wrong(layer, slow):
                    return f"layer {layer.layer}: {problem}"
        return ""

    def _maps_wrong(self, layer: diffscope.attention.layer.LayerAttention, slow: DiffLlamaLayer) -> str:
        for index, n in enumerate(layer.lengths):
            rows = layer.prompt(index).rows()
            for name, shown, expected in (("A1", rows.a1, slow.a1), ("A2", rows.a2, slow.a2), ("D", rows.d, slow.d)):
                off = (shown.double() - expected[index, :, :n, :n]).abs()
                if self.dtype == "bfloat16" and self.eager:
                    worst, bound = float(off.sum(-1).mean() / 2), ROWS_OFF
                else:
                    worst, bound = float(off.max()), MAPS_OFF
                if not worst <= bound:
                    return f"{name} is off by {worst:.2g}"
        return ""

    def _run_bare(self, edit: str) -> str:
        ids, tokens = self.padded()
        places = (tokens.cumsum(1) - 1).clamp_min(0)
        with self.scope.edit(EDITS[edit]), watched(self.model) as rows:
            self.model(ids, attention_mask=tokens, position_ids=places, use_cache=False)
        for number, row in enumerate(rows):
            if problem := self._outputs_wrong(row, self._slow(row, tokens, edit), torch.ones_like(tokens)):
                return f"layer {number}: {problem}"
        return ""

    def _generated(self, edit: str) -> str:
        if self.padding == "right":  # a text is not continued behind padding: one after the other
            with self.scope.edit(EDITS[edit]):
                texts = [[int(token) for token in self.scope.generate(ids, NEW_TOKENS).split()] for ids in self.prompts]
            batches = [(torch.tensor([prompt + text]), torch.ones(1, len(prompt))) for prompt, text in zip(self.prompts, texts)]
        else:
            ids, tokens = self.padded()
            with self.scope.edit(EDITS[edit]):
                whole = self.model.generate(ids, attention_mask=tokens, max_new_tokens=NEW_TOKENS, do_sample=False)
            batches = [(whole, tokens)]
        return next(filter(None, (self._text_wrong(whole, tokens, edit) for whole, tokens in batches)), "")

    def _text_wrong(self, whole: Tensor, tokens: Tensor, edit: str) -> str:
        """Check that new tokens are those that the slow model finds likeliest, given all before them."""
        start = tokens.shape[1]
        tokens = torch.cat([tokens, tokens.new_ones(len(whole), whole.shape[1] - start)], 1).long()
        places = (tokens.cumsum(1) - 1).clamp_min(0)
        with slowly(self.model, tokens.bool(), self.eager, edit):
            logits = self.model(whole, attention_mask=tokens, position_ids=places, use_cache=False).logits.double()
        before = logits[:, start - 1 : -1]  # (batch, new token, vocabulary)
        chosen = before.gather(-1, whole[:, start:, None])[..., 0]
        worst = float(((before.amax(-1) - chosen) / before.std(-1)).max())
        return "" if worst <= LOGITS_OFF[self.dtype] else f"a new token is {worst:.2g} below the likeliest"


def outcome(run: Run, what: str) -> tuple[str, str]:
    """Return ``right``, ``wrong``, ``refused`` or ``traceback``, and the reason."""
    try:
        problem = run.wrong(what)
    except DiffscopeError as error:
        return "refused", str(error)
    except Exception as error:
        return "traceback", repr(error)
    return ("wrong", problem) if problem else ("right", "")


def tally(count: int, first: int = 0) -> tuple[dict[tuple[str, ...], Counter], list[str]]:
    """Count outcomes of models by dtype, implementation, padding and what was done; return what was not right, too."""
    counts: dict[tuple[str, ...], Counter] = {}
    reasons = []
    for way in itertools.product(DTYPES, IMPLEMENTATIONS, PADDINGS):
        for seed in range(first, first + count):
            run = Run(seed, *way)
            for what in WHAT:
                result, reason = outcome(run, what)
                counts.setdefault((*way, what), Counter())[result] += 1
                if result != "right":
                    reasons.append(f"{result}: model {seed}, {', '.join(way)}, {what} ({run.edit}): {reason}")
    return counts, reasons


def main() -> None:
    """Try random models in every way, and say what was not right."""
    parser = results.parser(__doc__)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--first", type=int, default=0, help="seed of the first model")
    options = parser.parse_args()
    count = 1 if options.quick else options.count
    counts, reasons = tally(count, options.first)
    rows = [[*way, *(counter[of] for of in OUTCOMES)] for way, counter in counts.items()]
    total = sum(counts.values(), Counter())
    rows.append(["all", "", "", "", *(total[of] for of in OUTCOMES)])
    caption = f"{count} random models in every dtype, implementation and padding, each against a slow computation of V1."
    shown = table(caption, ("dtype", "attention", "padding", "what", *OUTCOMES), rows)
    command = f"python -m benchmarks.random_models --count {count}"
    words = "random DiffLlamas of one to three layers"
    numbers = {"total": dict(total), "reasons": reasons}
    results.keep("random_models", [Section("random", "Random models", command, words, [shown], numbers=numbers)], options)
    print("\n".join(reasons))


if __name__ == "__main__":
    main()
