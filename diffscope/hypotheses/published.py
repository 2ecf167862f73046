"""What has been published of differential attention, and which quantities of the tests bear on each claim.

Written down before the cohort was read; what `limits` say of a second reading came after. Figures are those that the sources
give, Transformer / DIFF where there are two.
"""

from __future__ import annotations

from diffscope.hypotheses.claims import NOT_ABOVE, NOT_BELOW, Bearing, Claim, Says
from diffscope.hypotheses.rules import ABOVE, BELOW, NONE
from diffscope.hypotheses.tests import SOURCES

PAPER, REVIEW, DEX, NOTES, SENSITIVITY = (SOURCES[name]["name"] for name in ("paper", "review", "dex", "notes", "sensitivity"))
INTRODUCTION = "notes on the introduction of Differential Transformer"
POST = "the introductory post (B. Fischer, 2025)"
V2 = "Differential Transformer V2 (Ye et al., 2026)"
ISSUES_OF_UNILM = "issues of microsoft/unilm"
SHORT = {  # as tables name the sources
    PAPER: "paper",
    INTRODUCTION: "introduction",
    DEX: "DEX paper",
    NOTES: "notes on it",
    REVIEW: "review",
    SENSITIVITY: "sensitivity",
    POST: "post",
    V2: "V2",
    ISSUES_OF_UNILM: "issues",
}
BASELINES = ("standard", "double-width")
NORMALISATIONS = ("share", "raw", "signed", "positive")
RANKS = ("erank", "erank_energy", "participation", "stable_rank", "r90")
RETRIEVAL = "Here 0.7 M parameters that look up numbers in at most 512 tokens; log-odds in place of exact answers."
TEXT = "Of a cohort that learns to retrieve, on held-out text; the text cohort of the study has the perplexity of models of text."
HEADS = "Heads weighted by what they cost the answer, and beside it by A1's mass on it."
LIVE = "Of the seeds whose weights are at hand, beside standard attention with twice the heads."


def _of(test: str, says: Says | tuple[float, float], *quantities: str) -> tuple[Bearing, ...]:
    return tuple(Bearing(test, quantity, says) for quantity in quantities)


CLAIMS = (
    # Differential Transformer
    Claim(
        "answer",
        PAPER,
        "DIFF gives more of its attention to the answer (Table 3; how scores are normalised was not published).",
        "3 B, 4K, by depth: .03 .03 .03 .07 .09 / .27 .30 .31 .32 .40",
        _of("allocation", ABOVE, *(f"{arm}_{name}" for name in NORMALISATIONS for arm in BASELINES)),
        "All four normalisations that the scores may have had, each head alike, beside twice the heads and beside as "
        "many. Raw, D sums to 1 − λ and is below A1 wherever A2 is above 0. Weighting heads by what they give to the "
        "answer can turn the sign: key-token-gain-pair on the board does that.",
    ),
    Claim(
        "noise",
        PAPER,
        "DIFF gives less of its attention to irrelevant context (Table 3).",
        "by depth: .51 .54 .52 .49 .49 / .01 .02 .02 .02 .01",
        _of("allocation", BELOW, *(f"{arm}_needles" for arm in BASELINES)) + _of("amplifier", BELOW, "gain"),
        "The distractors' share alone, each head alike; and of DIFF alone what the subtraction leaves of A1 on "
        "irrelevant tokens minus what it leaves on the answer, a ratio that is large in heads with little noise. All "
        "irrelevant context by depth is what studies/laptop/text.py reads.",
    ),
    Claim(
        "common-mode",
        PAPER,
        "The subtraction cancels common-mode noise, as a differential amplifier does.",
        "no figure",
        _of("common-noise", ABOVE, "diff") + _of("common-mode-injection", ABOVE, "irrelevant"),
        "Of noise that is put in.",
    ),
    Claim(
        "needles",
        PAPER,
        "DIFF retrieves better where there are many needles.",
        "accuracy (N needles, R questions): (4, 2) .62 / .84; (6, 2) .55 / .85",
        _of("distractors", ABOVE, *BASELINES),
        "24 and 48 distractors and one question, in log-odds, of models of 0.7 M parameters at 512 tokens or less. "
        "Exact answers to two questions are under Described.",
    ),
    Claim(
        "length",
        REVIEW,
        "The lead grows with the length of the context.",
        "near-perfect at 64K, where the Transformer degrades, as the review sums up",
        _of("distractors-or-length", ABOVE, *(f"{arm}_length" for arm in BASELINES)),
        "Of 128 to 512 tokens, at a given number of distractors.",
    ),
    Claim(
        "perplexity",
        PAPER,
        "DIFF's loss on text is lower.",
        "1.4 B: 3.087 / 3.062; what an n-gram gives away .898 / .880, others 3.272 / 3.247",
        _of("text-loss", ABOVE, *(f"{arm}_{token}" for arm in BASELINES for token in ("other", "hit"))),
        f"Arm minus DIFF, so above 0 is DIFF's gain. {TEXT}",
    ),
    Claim(
        "scaling",
        PAPER,
        "DIFF needs about 65 % of the parameters or the training tokens.",
        "65 %",
        (),
        "One size and one length of training; how soon the lookup circuit forms is a primary test of its own.",
    ),
    Claim(
        "outliers",
        PAPER,
        "Activations of DIFF have smaller outliers.",
        "largest / median: scores 318 / 5.4 against 38.8 / 3.3; layer outputs 3608.6 / 0.6 against 1688.2 / 1.2",
        _of("outliers-quantisation", BELOW, "logits", "outputs"),
        f"Outliers of this kind are of large models trained for long. {LIVE}",
    ),
    Claim(
        "quantisation",
        PAPER,
        "DIFF bears coarser scores.",
        "4 bits of DIFF are as good as 6 of the Transformer",
        _of("outliers-quantisation", BELOW, "bits_6", "bits_4"),
        LIVE,
    ),
    Claim(
        "norm-needed",
        PAPER,
        "Without the norm of heads DIFF is worse.",
        "loss 3.062 with, 3.122 without (Transformer 3.087)",
        _of("norm", ABOVE, "no-norm_text") + _of("norm", BELOW, "no-norm_distractors"),
        "Of a cohort that learns to retrieve.",
    ),
    Claim(
        "norm-alone",
        PAPER,
        "The norm alone does nothing for standard attention.",
        "loss 3.087 without, 3.086 with",
        _of("norm", NONE, "standard-norm_text", "standard-norm_distractors"),
        "Of a cohort that learns to retrieve.",
    ),
    Claim(
        "geometry",
        PAPER,
        "Half as many heads of double width are no worse.",
        "loss 3.087 with 16 heads, 3.088 with 8",
        _of("head-geometry", NOT_BELOW, "text") + _of("head-geometry", NOT_ABOVE, "distractors"),
        "Twice the heads minus double width: below 0 the loss, above 0 the log-odds would be the gain of more heads.",
    ),
    Claim(
        "lambda-init",
        PAPER,
        "Other initial values of λ do as well.",
        "loss 3.062; at 0.8 throughout 3.065, at 0.5 3.066",
        (),
        "No arm has another initial value; λ fixed at 1 and at 0 are arms.",
    ),
    Claim(
        "gradients",
        PAPER,
        "Gradients of the two branches are of one size, up to λ.",
        "a factor −λ by derivation",
        _of("gradient-dynamics", NONE, "ratio"),
        "Of the scores, behind each softmax's own derivative; of the maps themselves it holds by construction.",
    ),
    Claim(
        "hallucination",
        PAPER,
        "DIFF hallucinates less in summaries and answers.",
        "accuracy by judges, 3 B",
        _of("faithfulness", ABOVE, "d"),
        'These models write no summaries. Nearest: telling questions without an answer from those with one, by saying "unknown".',
    ),
    Claim(
        "in-context",
        PAPER,
        "DIFF learns better in context, and minds the order of examples less.",
        "many-shot classification, 3 B, 64K",
        (),
        "No task of these models has examples in its context.",
    ),
    # Notes on the paper's introduction
    Claim(
        "bos",
        INTRODUCTION,
        "DIFF gives less to the first token (Figure 1).",
        "BOS .32 / .19; context .18 and .34 / .01 and .01; answer .03 / .31; query .13 / .48",
        _of("allocation", BELOW, *(f"{arm}_sink" for arm in BASELINES)),
        "Of the answering query, each head alike. It says nothing where no model has a sink: the text cohort is asked that.",
    ),
    # The DEX paper
    Claim(
        "salient",
        DEX,
        "The two maps agree on tokens that do not matter, and differ on those that do.",
        "correlation high on the first, low on the second",
        _of("noise-symmetry", ABOVE, "sharing", "difference", "kind", "sharing_cosine", "difference_cosine", "kind_cosine"),
        "Above the controls: another head's A2, spans of the answer's size, the other sentences' numbers.",
    ),
    Claim(
        "less-sparse",
        DEX,
        "DIFF's maps are usually less sparse than a plain softmax, of higher entropy.",
        "no figure at hand",
        _of("sparsity-pair", BELOW, "gini", "entropy", "hoyer", "pseudo_norm"),
        f"{HEADS} Standard attention has twice as many heads. All four are larger "
        "where DIFF is sparser. The paper and the notes say the opposite.",
    ),
    Claim(
        "redundancy",
        DEX,
        "DIFF's heads repeat each other less.",
        "larger cosine distance, lower CKA",
        _of("redundancy-importance", ABOVE, "distance_d") + _of("redundancy-importance", BELOW, "cka"),
        f"DIFF has half as many heads. {LIVE}",
    ),
    Claim(
        "importance",
        DEX,
        "The importance of DIFF's heads is flatter.",
        "no figure at hand",
        _of("redundancy-importance", BELOW, "worst_head"),
        "What the head that does most costs; flat would be that beside the mean over heads, on the same board. DIFF has "
        "half as many heads, so losing one loses more. Of the seeds whose weights are at hand.",
    ),
    Claim(
        "negative",
        DEX,
        "Negative attention weights are what makes it expressive.",
        "no figure at hand",
        (),
        "It can be asked, and was not. Known so far, of the one DIFF model of the cohort whose weights are shipped, and read "
        "after the study: with the negative weights of D set to 0 in layer 0 the answer's loss rises by 10.1 nats, in layers 1 "
        "and 2 by 0.01. There A2 is on the token before, and is subtracted (python -m studies.laptop.first_layer). It is being "
        "repeated with all eight. The signed mask is an arm of its own: see the review.",
        open=True,
    ),
    Claim(
        "dynamics",
        DEX,
        "DIFF learns more quickly.",
        "no figure at hand",
        _of("formation", BELOW, *BASELINES),
        "When the lookup circuit forms; each arm at its own learning rate.",
    ),
    # Notes on the DEX paper
    Claim(
        "rank",
        NOTES,
        "λA2 is of low rank.",
        "effective rank 2–5 (which definition is not said)",
        _of("low-rank-noise", (2.0, 5.0), *RANKS),
        f"{HEADS} Each of five definitions, at 256 tokens, where a map that attends "
        "to nothing has 47.8, 5.98, 3.54, 2.15 and 6: so the range itself says little.",
    ),
    Claim(
        "background",
        NOTES,
        "λA2 is a background that is the same everywhere.",
        "no control is given",
        _of("low-rank-noise", NONE, *(f"{name}_over_uniform" for name in RANKS)),
        f"{HEADS} Octaves over a map that attends to nothing: a uniform background is "
        "0. Of what parts A2 is made is under Described.",
    ),
    Claim(
        "few-patterns",
        NOTES,
        "λA2 is made of few patterns.",
        "no control is given",
        _of("low-rank-noise", BELOW, *(f"{name}_over_permuted" for name in RANKS)),
        f"{HEADS} Octaves over the same map with the keys of each row permuted.",
    ),
    Claim(
        "fixed-map",
        NOTES,
        "A fixed map of low rank could stand in for the second one.",
        "a variant that does: perplexity lowest or on par, needles high",
        _of("low-rank-noise", NOT_ABOVE, "low_1", "low_5", "mean", "uniform")
        + _of("low-rank-noise", ABOVE, "zero")
        + _of("text-loss", NOT_ABOVE, "low-rank_other"),
        "Rises of the answers' loss with A2 replaced; that with A2 = 0 has to be above 0, or there was nothing to lose. "
        "The mean map is of five other prompts. The last is of an arm whose second scores, not map, have rank 8, "
        "trained so.",
    ),
    Claim(
        "key-tokens",
        NOTES,
        "The subtraction raises the weight of key tokens.",
        "+30–50 %",
        _of("key-token-gain", ABOVE, "share", "signed", "positive", "share_answering", "positive_answering"),
        "Gains are shares of A1's mass: 0.3 is 30 %. Ratios of weighted sums over heads and prompts. A raw sum of D cannot rise "
        "where λ and A2 are above 0.",
    ),
    Claim(
        "entropy",
        NOTES,
        "Attention after the subtraction has lower entropy.",
        '"lower"',
        _of("sparsity", ABOVE, "entropy", "entropy_answering") + _of("sparsity-pair", ABOVE, "entropy"),
        f"{HEADS} Entropy of A1, or of the standard model, which has twice the heads, minus that of D: above 0 is lower.",
    ),
    Claim(
        "optimal-lambda",
        NOTES,
        "λ learns to be what removes the noise best.",
        "no figure",
        _of("amplifier", NOT_ABOVE, "excess") + _of("amplifier", NONE, "distance"),
        "In octaves: what the learned λ leaves over the least that any could, which is small for any λ where that least "
        "is near 1 (floor_itself on the board); and λ over the λ* of the mean map.",
    ),
    Claim(
        "layers",
        NOTES,
        "The benefit is greatest in the final layers; the rank is low in all layers.",
        "no figure",
        (),
        "Three layers are too few; what there is by layer is under Described.",
    ),
    Claim(
        "flow",
        NOTES,
        "More of the information flows from the tokens that matter.",
        "no figure",
        _of("information-flow-pair", ABOVE, "flow"),
        "Share of attention times its gradient that comes from the answer.",
    ),
    Claim(
        "suppressed",
        NOTES,
        "Weights of tokens that do not matter are suppressed, to near zero or below it.",
        "near-zero or negative",
        _of("amplifier", (0.0, 1.0), "noise_gain"),
        "Σ|D| over ΣA1 on irrelevant tokens: below 1 is less than before, and near zero would be near 0. A ratio "
        f"of weighted sums. {HEADS}",
    ),
    # The review
    Claim(
        "noise-symmetry",
        REVIEW,
        "If noise cancels, A1 and A2 are more alike on irrelevant tokens than on relevant ones, and ever more so in training.",
        "asked for",
        _of("noise-symmetry", ABOVE, "sharing", "kind") + _of("noise-symmetry-training", ABOVE, "sharing", "kind"),
        f"Above the controls. {HEADS}",
    ),
    Claim(
        "removed",
        REVIEW,
        "If noise cancels, the second map takes from the distractors what the first gave them, and spares the answer.",
        "asked for",
        _of("branch-attribution", ABOVE, "rejection", "margin"),
        "Direct paths to the logits, above the same with A2 of another prompt.",
    ),
    Claim(
        "lambda-near-1",
        REVIEW,
        "If noise cancels, λ is near 1.",
        "asked for; λ_init 0.2 to 0.8 by layer (the review has the schedule backwards)",
        _of("amplifier", (0.9, 1.1), "lam"),
        f"0.9 to 1.1 is ours. {HEADS} The weights decide: the first layer, which costs most, is near 1, and heads that answer "
        "are not. λ by layer, while the circuit forms and at the end, is under Described.",
    ),
    Claim(
        "lambda-1",
        REVIEW,
        "If noise cancels, λ = 1 is better among many distractors.",
        "asked for",
        _of("lambda-1", ABOVE, "distractors"),
        RETRIEVAL,
    ),
    Claim(
        "pushed",
        REVIEW,
        "If noise cancels, the gradient pushes the two maps towards shared noise.",
        "asked for",
        _of("gradient-dynamics", BELOW, "push"),
        "Descent of the loss towards less overlap on irrelevant tokens: below 0 is towards sharing.",
    ),
    Claim(
        "top-k",
        REVIEW,
        "If it is sparsity, the k largest weights of standard attention gain as much.",
        "asked for",
        _of("top-k", ABOVE, "own") + _of("top-k", NOT_ABOVE, "difference"),
        "Continued from the formed standard model.",
    ),
    Claim(
        "sparser",
        REVIEW,
        "If it is sparsity, DIFF's maps are sparser than standard attention's.",
        "asked for; the paper calls its patterns sparser",
        _of("sparsity-pair", ABOVE, "gini", "entropy", "pseudo_norm"),
        f"{HEADS} Standard attention has twice as many heads. The DEX paper says less sparse, the notes on it sparser.",
    ),
    Claim(
        "signed-mask",
        REVIEW,
        "If it is sign, one softmax with a signed mask gains as much.",
        "asked for",
        _of("signed-mask", ABOVE, "own") + _of("signed-mask", NOT_ABOVE, "difference"),
        RETRIEVAL,
    ),
    Claim(
        "gate",
        REVIEW,
        "If it is a gate, gated softmax heads gain as much.",
        "asked for",
        _of("gated", ABOVE, "own") + _of("gated", NOT_ABOVE, "difference"),
        RETRIEVAL,
    ),
    Claim(
        "distractors-or-length",
        REVIEW,
        "If noise cancels, the benefit grows with distractors and not with length.",
        "asked for",
        _of("distractors-or-length", ABOVE, *BASELINES),
        "Slope per doubling of distractors minus that per doubling of length.",
    ),
    Claim(
        "norm-does-it",
        REVIEW,
        "The norm does the work: with λ = 0 and the norm the models are as good as DIFF.",
        "asked for",
        _of("norm", NOT_BELOW, "lambda-0_distractors") + _of("norm", NOT_ABOVE, "lambda-0_text"),
        "Arm minus DIFF, of models in which the lookup circuit formed; whether there is a gain to be explained are the "
        "primary tests.",
    ),
    Claim(
        "norm-scalar",
        REVIEW,
        "One number a head in place of the norm loses what DIFF gains.",
        "asked for",
        _of("norm", BELOW, "scalar_distractors") + _of("norm", ABOVE, "scalar_text"),
        "Arm minus DIFF; a gain of DIFF to be lost is asked by the primary tests.",
    ),
    Claim(
        "finer-heads",
        REVIEW,
        "Twice as many heads of DIFF's map width gain as much as DIFF.",
        "asked for",
        _of("head-geometry", ABOVE, "distractors") + _of("distractors", NOT_ABOVE, "standard"),
        "Twice the heads minus double width, and DIFF minus twice the heads, in log-odds.",
    ),
    Claim(
        "conservative",
        REVIEW,
        "Less hallucination may be more caution: a higher criterion, and not a better sense of what is there.",
        "asked for",
        _of("faithfulness", ABOVE, "c"),
        'Saying "unknown" to questions with and without an answer.',
    ),
    Claim(
        "sinks",
        REVIEW,
        "Do sinks vanish? D has less of one than standard attention, and in training keeps less of it than A1.",
        "asked for",
        _of("sinks", BELOW, "d") + _of("sinks-training", BELOW, "kept"),
        f"Of the answering query. {HEADS} A head which is all sink hardly counts. It says nothing where no model has a sink.",
    ),
    # Sensitivity of Differential Attention
    Claim(
        "opposed",
        SENSITIVITY,
        "Gradients on the two branches are often opposed, which makes the model fragile.",
        "negative cosines, frequent",
        _of("gradient-dynamics", BELOW, "cosine"),
        "The mean cosine, of the scores; of the maps themselves they are opposed by construction. Fragility is not asked.",
    ),
    # The introductory post
    Claim(
        "short",
        POST,
        "Differences grow with the length of the context.",
        "no figure",
        _of("distractors-or-length", ABOVE, *(f"{arm}_length" for arm in BASELINES)),
        "Of 128 to 512 tokens. That they are minor in short contexts, and grow with depth, is not asked.",
    ),
    Claim(
        "diverse",
        POST,
        "Patterns of DIFF's heads are sparser and more diverse.",
        "no figure",
        _of("sparsity-pair", ABOVE, "gini") + _of("redundancy-importance", ABOVE, "distance_d"),
        "Standard attention has twice as many heads. The second is of the seeds whose weights are at hand.",
    ),
    # Others
    Claim(
        "small-scale",
        ISSUES_OF_UNILM,
        "At a small scale the gains are not there.",
        "issues 1637 and 1663",
        _of("distractors", NOT_ABOVE, *BASELINES) + _of("formation", NOT_BELOW, *BASELINES),
        "Of 0.7 M parameters, each arm at its own learning rate.",
    ),
    Claim(
        "arises",
        ISSUES_OF_UNILM,
        "Does cancellation arise in training?",
        "issue 1661",
        _of("noise-symmetry-training", ABOVE, "sharing") + _of("amplifier-training", BELOW, "floor"),
        "Growth over a training, beside series of untrained models.",
    ),
    Claim(
        "no-norm",
        V2,
        "With λ of each token no norm of heads is needed.",
        "no figure",
        _of("text-loss", NOT_ABOVE, "diff-v2_other") + _of("formation-arms", NOT_ABOVE, "diff-v2"),
        "V2 minus V1: loss on text, and octaves of steps.",
    ),
)
