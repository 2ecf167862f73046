"""What has been published of differential attention, and which quantities of the tests bear on each claim.

Written down before the cohort was read. Figures are those that the sources give, Transformer / DIFF where there are two.
"""

from __future__ import annotations

from diffscope.hypotheses.claims import Bearing, Claim, Says
from diffscope.hypotheses.declared.sources import DEX, NOTES, PAPER, REVIEW, SENSITIVITY
from diffscope.hypotheses.rules import ABOVE, BELOW, NONE

INTRODUCTION = "notes on the introduction of Differential Transformer"
POST = "the introductory post (B. Fischer, 2025)"
SHORT = {  # as tables name the sources
    PAPER: "paper",
    INTRODUCTION: "introduction",
    DEX: "DEX paper",
    NOTES: "notes on it",
    REVIEW: "review",
    SENSITIVITY: "sensitivity",
    POST: "post",
}
BASELINES = ("standard", "double-width")
NORMALISATIONS = ("share", "raw", "signed", "positive")
RETRIEVAL = "Here 0.7 M parameters that look up numbers in at most 512 tokens; log-odds in place of exact answers."
TEXT = "Of a cohort that learns to retrieve, on held-out text; the text cohort of the study has the perplexity of models of text."
LIVE = "Of the seeds whose weights are at hand, one standard baseline."


def _of(test: str, says: Says | tuple[float, float], *quantities: str) -> tuple[Bearing, ...]:
    return tuple(Bearing(test, quantity, says) for quantity in quantities)


CLAIMS = (
    # Differential Transformer
    Claim(
        "answer",
        PAPER,
        "DIFF gives more of its attention to the answer (Table 3; how scores are normalised was not published).",
        "3 B, 4K, by depth: .03 .03 .03 .07 .09 / .27 .30 .31 .32 .40",
        _of("key-token-gain-pair", ABOVE, *NORMALISATIONS),
        "All four normalisations that the scores may have had. Heads weighted by A1's mass on the answer, the paper's are a "
        "plain mean over heads and layers.",
    ),
    Claim(
        "noise",
        PAPER,
        "DIFF gives less of its attention to irrelevant context (Table 3).",
        "by depth: .51 .54 .52 .49 .49 / .01 .02 .02 .02 .01",
        _of("key-token-gain-pair", BELOW, "needles") + _of("amplifier", BELOW, "gain"),
        "The distractors' share beside standard attention; and on all irrelevant tokens what the subtraction leaves of A1, "
        "beside what it leaves on the answer.",
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
        "accuracy (N, R): (4, 2) .62 / .84; (6, 2) .55 / .85",
        _of("distractors", ABOVE, *BASELINES),
        RETRIEVAL,
    ),
    Claim(
        "length",
        PAPER,
        "The lead grows with the length of the context.",
        "near-perfect at 64K, where the Transformer degrades",
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
        TEXT,
    ),
    Claim(
        "norm-alone",
        PAPER,
        "The norm alone does nothing for standard attention.",
        "loss 3.087 without, 3.086 with",
        _of("norm", NONE, "standard-norm_text", "standard-norm_distractors"),
        TEXT,
    ),
    Claim(
        "geometry",
        PAPER,
        "Half as many heads of double width are no worse.",
        "loss 3.087 with 16 heads, 3.088 with 8",
        _of("head-geometry", NONE, "text", "distractors"),
        TEXT,
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
        _of("sinks", BELOW, "d", "a1"),
        "Of the answering query; it says nothing where no model has a sink.",
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
        "figures by layer",
        _of("sparsity-pair", BELOW, "gini", "entropy", "hoyer", "pseudo_norm"),
        "All four are larger where DIFF is sparser. The notes below say the opposite.",
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
        "No head of DIFF is indispensable: importance is flatter.",
        "figures by head",
        _of("redundancy-importance", BELOW, "worst_head"),
        f"DIFF has half as many heads, so losing one loses more. {LIVE}",
    ),
    # Notes on the DEX paper
    Claim(
        "rank",
        NOTES,
        "λA2 is of low rank, a background that is the same everywhere.",
        "effective rank 2–5 (which definition is not said)",
        _of("low-rank-noise", (2.0, 5.0), "erank", "erank_energy", "participation", "stable_rank", "r90"),
        "Each of five definitions against that range, at 256 tokens; a map that attends to nothing is in it by some of them, so "
        "the next claim is the one that says something.",
    ),
    Claim(
        "rank-over-uniform",
        NOTES,
        "The same, beside a map that attends to nothing and one whose keys are shuffled.",
        "no control is given",
        _of("low-rank-noise", BELOW, "erank_over_uniform", "stable_rank_over_uniform", "erank_over_permuted"),
        "In octaves over the control.",
    ),
    Claim(
        "fixed-map",
        NOTES,
        "A fixed map of low rank could stand in for the second one.",
        "suggested, not tried",
        _of("low-rank-noise", NONE, "low_1", "low_5", "mean", "uniform") + _of("text-loss", NONE, "low-rank_other"),
        "Rises of the answers' loss; and the loss on text of an arm that was trained with a second map of low rank, minus "
        "DIFF's.",
    ),
    Claim(
        "key-tokens",
        NOTES,
        "The subtraction raises the weight of key tokens.",
        "+30–50 %",
        _of("key-token-gain", ABOVE, *NORMALISATIONS, "share_answering", "positive_answering"),
        "Gains are shares of A1's mass: 0.3 is 30 %.",
    ),
    Claim(
        "entropy",
        NOTES,
        "Attention after the subtraction has lower entropy.",
        '"lower"',
        _of("sparsity", ABOVE, "entropy", "entropy_answering") + _of("sparsity-pair", ABOVE, "entropy"),
        "Entropy of A1, or of the standard model, minus that of D: above 0 is lower.",
    ),
    Claim(
        "optimal-lambda",
        NOTES,
        "λ learns to be what removes the noise best.",
        "no figure",
        _of("amplifier", NONE, "excess", "distance"),
        "In octaves: what the learned λ leaves over the least that any could, and λ over the λ* of the mean map.",
    ),
    Claim(
        "layers",
        NOTES,
        "The benefit is greatest in the final layers.",
        "no figure",
        (),
        "Three layers, of which the lookup circuit takes two.",
    ),
    Claim(
        "flow",
        NOTES,
        "More of the information flows from the tokens that matter.",
        "no figure",
        _of("information-flow-pair", ABOVE, "flow"),
        "Share of attention times its gradient that comes from the answer.",
    ),
    # The review
    Claim(
        "noise-symmetry",
        REVIEW,
        "If noise cancels, A1 and A2 are more alike on irrelevant tokens than on relevant ones, and ever more so in training.",
        "asked for",
        _of("noise-symmetry", ABOVE, "sharing", "kind") + _of("noise-symmetry-training", ABOVE, "sharing", "kind"),
        "Above the controls.",
    ),
    Claim(
        "lambda-near-1",
        REVIEW,
        "To cancel, λ would have to be near 1; it is not.",
        "λ_init 0.2 to 0.8 by layer (the review has the schedule backwards)",
        _of("amplifier", (0.0, 0.9), "lam"),
        "Mean over heads, weighted by A1's mass on the answer; by layer in the amplifier's note.",
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
        "Descent of the loss along ρ on irrelevant tokens: below 0 is towards sharing.",
    ),
    Claim(
        "top-k",
        REVIEW,
        "If it is sparsity, the k largest weights of standard attention gain as much.",
        "asked for",
        _of("top-k", ABOVE, "own") + _of("top-k", NONE, "difference"),
        "Continued from the formed standard model.",
    ),
    Claim(
        "sparser",
        REVIEW,
        "If it is sparsity, DIFF's maps are sparser than standard attention's.",
        "asked for",
        _of("sparsity-pair", ABOVE, "gini", "entropy", "pseudo_norm"),
        "The DEX paper says less sparse, the notes on it sparser.",
    ),
    Claim(
        "signed-mask",
        REVIEW,
        "If it is sign, one softmax with a signed mask gains as much.",
        "asked for",
        _of("signed-mask", ABOVE, "own") + _of("signed-mask", NONE, "difference"),
        RETRIEVAL,
    ),
    Claim(
        "gate",
        REVIEW,
        "If it is a gate, gated softmax heads gain as much.",
        "asked for",
        _of("gated", ABOVE, "own") + _of("gated", NONE, "difference"),
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
        "norm-scalar",
        REVIEW,
        "The norm does the work: with one number a head in its place the gain is gone.",
        "asked for",
        _of("norm", BELOW, "scalar_distractors") + _of("norm", ABOVE, "scalar_text"),
        TEXT,
    ),
    Claim(
        "finer-heads",
        REVIEW,
        "Twice as many heads of DIFF's map width gain as much as DIFF.",
        "asked for",
        _of("head-geometry", ABOVE, "distractors") + _of("distractors", NONE, "standard"),
        RETRIEVAL,
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
        "Does the sink vanish? In training D keeps less of it than A1.",
        "asked for",
        _of("sinks-training", BELOW, "kept"),
        "It says nothing where no model has a sink.",
    ),
    # Sensitivity of Differential Attention
    Claim(
        "opposed",
        SENSITIVITY,
        "Gradients on the two branches are often opposed.",
        "negative cosines, frequent",
        _of("gradient-dynamics", BELOW, "cosine"),
        "Of the scores; of the maps themselves they are opposed by construction.",
    ),
    # The introductory post
    Claim(
        "short",
        POST,
        "Differences are minor in short contexts and grow with length and depth.",
        "no figure",
        _of("distractors-or-length", ABOVE, *(f"{arm}_length" for arm in BASELINES)),
        "Of 128 to 512 tokens.",
    ),
    Claim(
        "diverse",
        POST,
        "Patterns of DIFF's heads are sparser and more diverse.",
        "no figure",
        _of("sparsity-pair", ABOVE, "gini") + _of("redundancy-importance", ABOVE, "distance_d"),
        LIVE,
    ),
)
