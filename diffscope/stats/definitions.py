"""What every statistic is, in words: its formula, units, range, where it is undefined, how it is averaged, where it comes from.

In the formulas, x is a row of A1, A2 or D, p = |x| / sum|x| its shares and n the number of keys that it can see; X is a key
set, on which <,>_X and |.|_X are taken; g is the gain of A1 (1 in most models) and lambda the coefficient of A2.

A sink logit has no key: rows of a map that has one sum to less than 1, and all sums are over keys. So what acts on the shares p
says how a row spreads what it puts on keys, raw masses are of the row as it is, and 1 - row_sum of A1 or A2 is what the sink
logit takes.
"""

from typing import Literal, NamedTuple

Averaged = Literal["mean", "median", "not"]


class Definition(NamedTuple):
    """One statistic in words.

    Attributes
    ----------
    units : str
        "1" if dimensionless.
    description : str
        One line.
    formula : str
    range : tuple of str
        The least and the largest value, of n visible keys; "inf" where there is no bound.
    undefined : str
        Where it is NaN; "nowhere".
    source : str
        By title; "defined here" where it has no other.
    averaged : {"mean", "median", "not"}
        Over queries, heads and layers: ratios without a bound by their median, positions and decibels not at all.
    averaged_over : str
        What the definition itself averages over.
    """

    units: str
    description: str
    formula: str
    range: tuple[str, str]
    undefined: str
    source: str = "defined here"
    averaged: Averaged = "mean"
    averaged_over: str = ""


DIFF = "Differential Transformer (Ye et al., 2024)"
ENTROPY = "A Mathematical Theory of Communication (Shannon, 1948)"
HILL = "Diversity and Evenness: A Unifying Notation and Its Consequences (Hill, 1973)"
SPARSITY = "Comparing Measures of Sparsity (Hurley & Rickard, 2009)"
HOYER = "Non-negative Matrix Factorization with Sparseness Constraints (Hoyer, 2004)"
KULLBACK = "On Information and Sufficiency (Kullback & Leibler, 1951)"
LIN = "Divergence Measures Based on the Shannon Entropy (Lin, 1991)"
BRAY = "An Ordination of the Upland Forest Communities of Southern Wisconsin (Bray & Curtis, 1957)"
SINK = "When Attention Sink Emerges in Language Models: An Empirical View (Gu et al., 2024)"
CKA = "Similarity of Neural Network Representations Revisited (Kornblith et al., 2019)"
ERANK = "The Effective Rank: A Measure of Effective Dimensionality (Roy & Vetterli, 2007)"
ECKART = "The Approximation of One Matrix by Another of Lower Rank (Eckart & Young, 1936)"

ONE_KEY = "rows with one visible key; rows of zeros"
ONE_OF_X = "rows that see fewer than two keys of X; where A1 or A2 has no mass on X"
NO_A1 = "rows with one visible key; where A1 has no mass on X"
NO_SECOND = "standard attention"

ROW = {
    "entropy": Definition("nats", "entropy of the shares", "-sum p ln p", ("0", "ln n"), ONE_KEY, ENTROPY),
    "entropy_normalised": Definition("1", "entropy over that of a uniform row", "entropy / ln n", ("0", "1"), ONE_KEY, ENTROPY),
    "effective_tokens": Definition(
        "keys", "keys of a uniform row of the same entropy", "exp(entropy)", ("1", "n"), ONE_KEY, HILL
    ),
    "participation": Definition("keys", "inverse participation of the shares", "1 / sum p²", ("1", "n"), ONE_KEY, HILL),
    "gini": Definition(
        "1", "Gini index", "sum_i (2i - n - 1)|x|_(i) / (n sum|x|), |x| ascending", ("0", "1 - 1/n"), ONE_KEY, SPARSITY
    ),
    "hoyer": Definition("1", "Hoyer sparsity", "(sqrt n - |x|_1/|x|_2) / (sqrt n - 1)", ("0", "1"), ONE_KEY, HOYER),
    "pseudo_norm": Definition("1", "pseudo-norm of the shares at 1/2", "(sum p^(1/2))²", ("1", "n"), ONE_KEY, SPARSITY),
    "near_zero": Definition(
        "1", "fraction of keys with next to no weight", "#{visible keys with p < 0.1/n} / n", ("0", "1"), ONE_KEY
    ),
    "top_k_mass": Definition(
        "1", "share of the k largest weights", "sum of the k largest p", ("k/n", "1"), "rows with n <= k; rows of zeros"
    ),
    "quantiles": Definition(
        "1", "quantiles of the shares, uniform = 1", "n times the ceil(q n)-th smallest p", ("0", "n"), ONE_KEY
    ),
    "argmax": Definition(
        "position", "key of the largest weight", "argmax |x|, the first of equals", ("0", "keys - 1"), ONE_KEY, averaged="not"
    ),
    "negative_share": Definition(
        "1", "share of the absolute mass that is negative", "sum max(-x, 0) / sum|x|", ("0", "1"), ONE_KEY
    ),
    "negative_count": Definition("keys", "keys of negative weight", "#{x < 0}", ("0", "n"), "rows with one visible key"),
    "row_sum": Definition(
        "1", "sum of the row", "sum x; without sink logits 1 for A1, A2 and g - lambda for D", ("-inf", "inf"), "nowhere"
    ),
}

# p, q are A1, A2 renormalised on X
BRANCH = {
    "cosine": Definition("1", "cosine of the branches", "<A1,A2>_X / (|A1|_X |A2|_X)", ("0", "1"), ONE_OF_X),
    "lambda_star": Definition(
        "1",
        "coefficient that leaves least of A1",
        "<A1,A2>_X / <A2,A2>_X; compare with lambda/g",
        ("0", "inf"),
        "rows with one visible key; where A1 or A2 has no mass on X",
        averaged="median",
    ),
    "residual_noise": Definition(
        "1", "what the subtraction leaves", "|D|_X / |g A1|_X, Euclidean norms", ("0", "inf"), NO_A1, averaged="median"
    ),
    "residual_floor": Definition("1", "what the best coefficient leaves", "sqrt(1 - cosine²)", ("0", "1"), ONE_OF_X),
    "noise_gain": Definition(
        "1", "absolute mass out over mass in", "sum_X |D| / sum_X A1", ("0", "inf"), NO_A1, averaged="median"
    ),
    "signal_gain": Definition("1", "net mass out over mass in", "sum_X D / sum_X A1", ("-inf", "inf"), NO_A1, averaged="median"),
    "selectivity": Definition(
        "1",
        "share of |D| (absolute weights) over share of A1",
        "(sum_X |D| / sum |D|) / (sum_X A1 / sum A1)",
        ("0", "inf"),
        f"{NO_A1}; where D is zero everywhere",
        averaged="median",
    ),
    "overlap": Definition(
        "1",
        "overlap of A1 and A2",
        "1 - sum_X |A1 - A2| / sum_X (A1 + A2)",
        ("0", "1"),
        "rows with one visible key; where neither branch has mass on X",
        BRAY,
    ),
    "kl_12": Definition("nats", "divergence of A2 from A1", "KL(A1|A2) = sum p ln(p/q)", ("0", "inf"), ONE_OF_X, KULLBACK),
    "kl_21": Definition("nats", "divergence of A1 from A2", "KL(A2|A1) = sum q ln(q/p)", ("0", "inf"), ONE_OF_X, KULLBACK),
    "js": Definition(
        "nats",
        "Jensen-Shannon divergence of the branches",
        "(KL(p|m) + KL(q|m))/2, m = (p + q)/2",
        ("0", "ln 2"),
        ONE_OF_X,
        LIN,
    ),
    "shape_overlap": Definition("1", "overlap of A1 and A2, each made to sum to 1", "sum min(p, q)", ("0", "1"), ONE_OF_X),
}

MASSES = (
    "raw: sum_X x; share: sum_X |x| / sum |x|; signed: sum_X x / sum x, which is sum_X D / (g - lambda) without sink logits; "
    "positive: sum_X x+ / sum x+"
)
NO_MASS = "rows that see no key of X, or no other; signed where |sum x| < 0.001; share and positive where their denominator is 0"
RANKS = (
    "of singular values s: erank: exp H(s/sum s); erank_energy: exp H(s²/sum s²); "
    "participation: (sum s²)²/sum s⁴; stable_rank: sum s²/max s²; r90: fewest s² that hold 90 %; controls: the uniform "
    "map over the same visible keys, the map with each row's visible keys permuted (the mean of 3 draws); always of all "
    "queries; beyond 4,096 tokens estimated matrix-free"
)
UNKNOWN_RANK = "maps of zeros, or not finite; estimates that are not within 5 %"

OTHERS = {
    "span_mass": Definition("1", "attention on each key set", MASSES, ("-inf", "inf"), NO_MASS),
    "sink_mass": Definition(
        "1",
        "attention on the first token, or the span named sink where one is given, and on the first four",
        MASSES,
        ("-inf", "inf"),
        NO_MASS,
    ),
    "sink_rate": Definition(
        "1",
        "share of heads with an attention sink",
        "share of heads whose mean mass over queries is above 0.3",
        ("0", "1"),
        "where no head has a mean",
        SINK,
        averaged_over="queries, then heads",
    ),
    "column_sink": Definition(
        "1",
        "mean mass of the most attended key",
        "max over keys of the mean over queries",
        ("-inf", "inf"),
        "where no row has a value",
        SINK,
        averaged_over="queries",
    ),
    "column_sink_position": Definition(
        "position",
        "the most attended key",
        "argmax over keys of the mean over queries",
        ("0", "keys - 1"),
        "where no row has a value",
        SINK,
        "not",
        "queries",
    ),
    "lambda": Definition(
        "1",
        "the coefficient of A2",
        "used: after casting; fp32: before; init: at initialisation; minus_init: used - init",
        ("-inf", "inf"),
        f"{NO_SECOND}; init where the family has none",
        DIFF,
    ),
    "cmrr": Definition(
        "dB",
        "common-mode rejection ratio",
        "20 log10((|g + lambda|/2) / |g - lambda|), of the sizes of both gains; inf at lambda = g, -inf at lambda = -g, where "
        "nothing of the differential mode comes through",
        ("-inf", "inf"),
        f"{NO_SECOND}; where D is changed after the subtraction, as d_plus does; where g and lambda are 0",
        f"{DIFF}: its analogy with differential amplifiers",
        "not",
    ),
    "logit_outliers": Definition(
        "1",
        "largest and median magnitude of the attention logits",
        "of |scale q.k|, capped where the model caps it, over all maps of the layer and the keys each query sees, exact; keys "
        "beyond a sliding window are not seen, and a sink logit is no key; of edited scores over both maps of each head",
        ("0", "inf"),
        "the k-th largest of fewer than k",
        DIFF,
    ),
    "map_distance": Definition(
        "1",
        "mean cosine distance between the heads' maps",
        "mean over pairs of heads of 1 - <A_i,A_j> / (|A_i||A_j|)",
        ("0", "2"),
        "layers of one head; where a map is zero",
        averaged_over="pairs of heads",
    ),
    "head_cka": Definition(
        "1",
        "linear CKA between the heads' outputs",
        "|Yj'Yi|² / (|Yi'Yi||Yj'Yj|), Y = D V centred over queries",
        ("0", "1"),
        "heads whose output does not vary",
        CKA,
    ),
    "effective_rank": Definition(
        "1", "effective ranks beside their controls", RANKS, ("0", "inf"), UNKNOWN_RANK, ERANK, averaged="median"
    ),
    "effective_rank_error": Definition(
        "1",
        "half-widths of the effective ranks",
        "0 where they are exact, else half the bracket of their quadrature and three standard errors of its vectors; of the "
        "permuted control that and the standard error of its mean over 3 draws; of a ratio the relative errors of both parts",
        ("0", "inf"),
        "where nothing is known",
        averaged="median",
    ),
    "rank_residual": Definition(
        "1",
        "what the best approximation of rank r leaves",
        "|A - A_r|_F / |A|_F, for A2 without lambda; always of all queries",
        ("0", "1"),
        UNKNOWN_RANK,
        ECKART,
    ),
    "rank_residual_error": Definition(
        "1", "half-widths of the rank residuals", "0 where they are exact", ("0", "inf"), "where nothing is known"
    ),
}

DEFINITIONS = ROW | BRANCH | OTHERS


class Instrument(NamedTuple):
    """A variable that a function of ``diffscope.instruments`` gives: its dimensions, prompt and layer left out, and its words."""

    dims: tuple[str, ...]
    words: Definition


NOISY = ("head", "sigma", "span")
OTHER_MAPS = "where an edit makes other maps of A1 and A2"
NO_CHANGE = "rows that see one key, or none of X"
AMPLIFIER = f"{DIFF}: its analogy with differential amplifiers"
BY_OUTPUT = ("head", "output", "stage")
BY_A2 = ("head", "a2", "stage")
SIGNAL_POWER = "How Linear are Auditory Cortical Responses? (Sahani & Linden, 2003): signal and noise power"
JACKKNIFE = "jackknife over answers and over fillers, of several prompts over these"
PARTS = ("head", "map", "part")
SHAPLEY = "A Value for n-Person Games (Shapley, 1953)"
NO_ROWS = f"prompts of one token; A2 and the part other of {NO_SECOND}"
EXPLAINED = (
    "of rows of n >= 2 visible keys, each over its Euclidean norm; uniform: (sum x)² / (n sum x²); the others by least squares "
    "on centred rows with one coefficient a head; distance: w(t - j) of other prompts; key: c(j) of the queries of other parity; "
    "other: the other map; rest: what all leave"
)

#: what the functions of ``diffscope.instruments`` measure: by function and variable
INSTRUMENTS: dict[str, dict[str, Instrument]] = {
    "cmrr_by_injection": {
        "cmrr_injected": Instrument(
            NOISY,
            Definition(
                "dB",
                "common-mode rejection ratio, measured by injecting noise",
                "20 log10(rms|O_differential - O| / rms|O_common - O|), O = D V, noise on the scores of X",
                ("-inf", "inf"),
                f"{NO_SECOND}; {NO_CHANGE}",
                AMPLIFIER,
                "not",
                "draws and queries, as root mean squares",
            ),
        ),
        "cmrr_injected_error": Instrument(
            NOISY,
            Definition(
                "dB",
                "standard error of cmrr_injected over draws",
                "of a ratio of means of paired draws, by the delta method",
                ("0", "inf"),
                "where cmrr_injected is not finite; of one draw",
                averaged="not",
            ),
        ),
        "change_common": Instrument(
            NOISY,
            Definition(
                "activation",
                "what common noise changes in a head's output",
                "rms|O_common - O|, +n on the scores of both maps",
                ("0", "inf"),
                "nowhere",
                averaged_over="draws and queries, as root mean squares",
            ),
        ),
        "change_differential": Instrument(
            NOISY,
            Definition(
                "activation",
                "what opposite noise changes in a head's output",
                "rms|O_differential - O|, +n on the scores of A1, -n on those of A2",
                ("0", "inf"),
                "nowhere",
                averaged_over="draws and queries, as root mean squares",
            ),
        ),
        "cmrr_ceiling": Instrument(
            NOISY,
            Definition(
                "dB",
                "what cmrr_injected would be if A2 had A1's shape on X",
                "cmrr_injected of A1 and A2', A2'_X = A1_X sum_X A2 / sum_X A1, at the learned lambda",
                ("-inf", "inf"),
                f"as cmrr_injected; {OTHER_MAPS}",
                AMPLIFIER,
                "not",
                "draws and queries, as root mean squares",
            ),
        ),
        "change_common_ceiling": Instrument(
            NOISY,
            Definition(
                "activation",
                "what common noise changes in a head's output if A2 has A1's shape on X",
                "as change_common, of A1 and A2'",
                ("0", "inf"),
                f"in standard attention; {OTHER_MAPS}",
                averaged_over="draws and queries, as root mean squares",
            ),
        ),
        "change_differential_ceiling": Instrument(
            NOISY,
            Definition(
                "activation",
                "what opposite noise changes in a head's output if A2 has A1's shape on X",
                "as change_differential, of A1 and A2'",
                ("0", "inf"),
                f"in standard attention; {OTHER_MAPS}",
                averaged_over="draws and queries, as root mean squares",
            ),
        ),
    },
    "signal_to_noise": {
        "signal": Instrument(
            BY_OUTPUT,
            Definition(
                "activation^2",
                "what the answer changes in a head's output, the filler kept",
                "mean over fillers of the variance over answers, trace of the covariance; O = M V of M = A1, lambda A2, D",
                ("0", "inf"),
                f"lambda A2 and what is made with it of {NO_SECOND}; after the norm where there is none",
                SIGNAL_POWER,
                averaged_over="fillers; summed over queries",
            ),
        ),
        "noise": Instrument(
            BY_OUTPUT,
            Definition(
                "activation^2",
                "what the filler changes in a head's output, the answer kept",
                "mean over answers of the variance over fillers, trace of the covariance",
                ("0", "inf"),
                "as signal",
                SIGNAL_POWER,
                averaged_over="answers; summed over queries",
            ),
        ),
        "interaction": Instrument(
            BY_OUTPUT,
            Definition(
                "activation^2",
                "what an answer changes in one filler and not in another, a part of signal and of noise",
                "sum |O[a,f] - O[a,.] - O[.,f] + O[.,.]|² / ((I - 1)(J - 1)), of I answers and J fillers",
                ("0", "inf"),
                "as signal",
            ),
        ),
        "snr": Instrument(
            BY_OUTPUT,
            Definition(
                "dB",
                "signal-to-noise ratio of a head's output",
                "10 log10(signal / noise)",
                ("-inf", "inf"),
                "where signal or noise is 0; as signal",
                averaged="not",
            ),
        ),
        "snr_error": Instrument(
            BY_OUTPUT,
            Definition("dB", "standard error of snr", JACKKNIFE, ("0", "inf"), "as snr; of two draws", averaged="not"),
        ),
        "snr_gain": Instrument(
            BY_A2,
            Definition(
                "dB",
                "signal-to-noise gain of the subtraction",
                "snr of D V - snr of A1 V; D with the head's own A2, with a uniform one, or with that of the next head",
                ("-inf", "inf"),
                f"where a variance is 0; {NO_SECOND}; next head where it has the same A2; after the norm where there is none",
                AMPLIFIER,
                "not",
            ),
        ),
        "snr_gain_error": Instrument(
            BY_A2,
            Definition("dB", "standard error of snr_gain", JACKKNIFE, ("0", "inf"), "as snr_gain; of two draws", averaged="not"),
        ),
        "signal_change": Instrument(
            BY_A2,
            Definition(
                "dB",
                "what the subtraction does to the signal",
                "10 log10(signal of D V / signal of A1 V)",
                ("-inf", "inf"),
                "as snr_gain",
                averaged="not",
            ),
        ),
        "noise_change": Instrument(
            BY_A2,
            Definition(
                "dB",
                "what the subtraction does to the noise",
                "10 log10(noise of D V / noise of A1 V)",
                ("-inf", "inf"),
                "as snr_gain",
                averaged="not",
            ),
        ),
    },
    "log_odds_under_noise": {
        "log_odds": Instrument(
            (),
            Definition(
                "nats",
                "log-odds of the answer against distractors, without noise",
                "logit of the answer - logsumexp of the distractors' logits",
                ("-inf", "inf"),
                "nowhere",
            ),
        ),
        "log_odds_lost": Instrument(
            ("mode", "sigma"),
            Definition(
                "nats",
                "log-odds lost to injected noise",
                "log-odds without noise - log-odds with it",
                ("-inf", "inf"),
                "nowhere",
                averaged_over="draws",
            ),
        ),
        "log_odds_lost_error": Instrument(
            ("mode", "sigma"),
            Definition("nats", "its standard error", "standard deviation over draws / sqrt draws", ("0", "inf"), "of one draw"),
        ),
    },
    "anatomy": {
        "alone": Instrument(PARTS, Definition("1", "what a part explains of a map by itself", EXPLAINED, ("0", "1"), NO_ROWS)),
        "added": Instrument(
            PARTS,
            Definition(
                "1", "what a part adds to those before it", "as alone; parts in the order of their labels", ("0", "1"), NO_ROWS
            ),
        ),
        "shapley": Instrument(
            PARTS,
            Definition("1", "what a part adds, mean over all orders", "as alone; Shapley value", ("0", "1"), NO_ROWS, SHAPLEY),
        ),
    },
}
