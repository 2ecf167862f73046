"""The variables that the functions of ``diffscope.instruments`` measure, in words: by function and variable."""

from __future__ import annotations

from diffscope.stats.statistic import DIFF, NO_SECOND, Definition

NOISY = ("head", "sigma", "span")
OTHER_MAPS = "where an edit makes other maps of A1 and A2"
NO_CHANGE = "rows that see one key, or none of X"
AMPLIFIER = f"{DIFF}: its analogy with differential amplifiers"
BY_OUTPUT = ("head", "output", "stage")
BY_A2 = ("head", "a2", "stage")
SIGNAL_POWER = "How Linear are Auditory Cortical Responses? (Sahani & Linden, 2003): signal and noise power"
JACKKNIFE = "jackknife over answers and over fillers, of several prompts over these"
PARTS = ("head", "map", "part")
TYPES = ("head", "map", "type")
ON_KEYS = "mean over queries of sum_K a / sum |a|, K the keys of the type; of retrieval, how often the largest a is on K"
NO_TYPE = f"no query sees a key of the type and another; A2 of {NO_SECOND}"
INDUCTION = "In-context Learning and Induction Heads (Olsson et al., 2022)"
RETRIEVAL_HEADS = "Retrieval Head Mechanistically Explains Long-Context Factuality (Wu et al., 2024)"
SHAPLEY = "A Value for n-Person Games (Shapley, 1953)"
NO_ROWS = f"prompts of one token; a map of zeros; A2 and the part other of {NO_SECOND}"
EXPLAINED = (
    "of rows of n >= 2 visible keys, each over its Euclidean norm; uniform: (sum x)² / (n sum x²); the others by least squares "
    "on centred rows with one coefficient a head; distance: w(t - j) of other prompts; key: c(j) of the queries of other parity; "
    "other: the other map; rest: what all leave"
)

#: by function and variable; dimensions without prompt and layer
INSTRUMENTS: dict[str, dict[str, Definition]] = {
    "cmrr_by_injection": {
        "cmrr_injected": Definition(
            dims=NOISY,
            units="dB",
            description="common-mode rejection ratio, measured by injecting noise",
            formula="20 log10(rms|O_differential - O| / rms|O_common - O|), O = D V, noise on the scores of X",
            range=("-inf", "inf"),
            undefined=f"{NO_SECOND}; {NO_CHANGE}",
            source=AMPLIFIER,
            averaged="not",
            averaged_over="draws and queries, as root mean squares",
        ),
        "cmrr_injected_error": Definition(
            dims=NOISY,
            units="dB",
            description="standard error of cmrr_injected over draws",
            formula="of a ratio of means of paired draws, by the delta method",
            range=("0", "inf"),
            undefined="where cmrr_injected is not finite; of one draw",
            averaged="not",
        ),
        "change_common": Definition(
            dims=NOISY,
            units="activation",
            description="what common noise changes in a head's output",
            formula="rms|O_common - O|, +n on the scores of both maps",
            range=("0", "inf"),
            undefined="nowhere",
            averaged_over="draws and queries, as root mean squares",
        ),
        "change_differential": Definition(
            dims=NOISY,
            units="activation",
            description="what opposite noise changes in a head's output",
            formula="rms|O_differential - O|, +n on the scores of A1, -n on those of A2",
            range=("0", "inf"),
            undefined="nowhere",
            averaged_over="draws and queries, as root mean squares",
        ),
        "cmrr_ceiling": Definition(
            dims=NOISY,
            units="dB",
            description="what cmrr_injected would be if A2 had A1's shape on X",
            formula="cmrr_injected of A1 and A2', A2'_X = A1_X sum_X A2 / sum_X A1, at the learned lambda",
            range=("-inf", "inf"),
            undefined=f"as cmrr_injected; {OTHER_MAPS}",
            source=AMPLIFIER,
            averaged="not",
            averaged_over="draws and queries, as root mean squares",
        ),
        "change_common_ceiling": Definition(
            dims=NOISY,
            units="activation",
            description="what common noise changes in a head's output if A2 has A1's shape on X",
            formula="as change_common, of A1 and A2'",
            range=("0", "inf"),
            undefined=f"in standard attention; {OTHER_MAPS}",
            averaged_over="draws and queries, as root mean squares",
        ),
        "change_differential_ceiling": Definition(
            dims=NOISY,
            units="activation",
            description="what opposite noise changes in a head's output if A2 has A1's shape on X",
            formula="as change_differential, of A1 and A2'",
            range=("0", "inf"),
            undefined=f"in standard attention; {OTHER_MAPS}",
            averaged_over="draws and queries, as root mean squares",
        ),
    },
    "signal_to_noise": {
        "signal": Definition(
            dims=BY_OUTPUT,
            units="activation^2",
            description="what the answer changes in a head's output, the filler kept",
            formula="mean over fillers of the variance over answers, trace of the covariance; O = M V of M = A1, lambda A2, D",
            range=("0", "inf"),
            undefined=f"lambda A2 and what is made with it of {NO_SECOND}; after the norm where there is none",
            source=SIGNAL_POWER,
            averaged_over="fillers; summed over queries",
        ),
        "noise": Definition(
            dims=BY_OUTPUT,
            units="activation^2",
            description="what the filler changes in a head's output, the answer kept",
            formula="mean over answers of the variance over fillers, trace of the covariance",
            range=("0", "inf"),
            undefined="as signal",
            source=SIGNAL_POWER,
            averaged_over="answers; summed over queries",
        ),
        "interaction": Definition(
            dims=BY_OUTPUT,
            units="activation^2",
            description="what an answer changes in one filler and not in another, a part of signal and of noise",
            formula="sum |O[a,f] - O[a,.] - O[.,f] + O[.,.]|² / ((I - 1)(J - 1)), of I answers and J fillers",
            range=("0", "inf"),
            undefined="as signal",
        ),
        "snr": Definition(
            dims=BY_OUTPUT,
            units="dB",
            description="signal-to-noise ratio of a head's output",
            formula="10 log10(signal / noise)",
            range=("-inf", "inf"),
            undefined="where signal or noise is 0; as signal",
            averaged="not",
        ),
        "snr_error": Definition(
            dims=BY_OUTPUT,
            units="dB",
            description="standard error of snr",
            formula=JACKKNIFE,
            range=("0", "inf"),
            undefined="as snr; of two draws",
            averaged="not",
        ),
        "snr_gain": Definition(
            dims=BY_A2,
            units="dB",
            description="signal-to-noise gain of the subtraction",
            formula="snr of D V - snr of A1 V; D with the head's own A2, with a uniform one, or with that of the next head",
            range=("-inf", "inf"),
            undefined=f"where a variance is 0; {NO_SECOND}; next head where it has the same A2; after the norm where there is "
            "none",
            source=AMPLIFIER,
            averaged="not",
        ),
        "snr_gain_error": Definition(
            dims=BY_A2,
            units="dB",
            description="standard error of snr_gain",
            formula=JACKKNIFE,
            range=("0", "inf"),
            undefined="as snr_gain; of two draws",
            averaged="not",
        ),
        "signal_change": Definition(
            dims=BY_A2,
            units="dB",
            description="what the subtraction does to the signal",
            formula="10 log10(signal of D V / signal of A1 V)",
            range=("-inf", "inf"),
            undefined="as snr_gain",
            averaged="not",
        ),
        "noise_change": Definition(
            dims=BY_A2,
            units="dB",
            description="what the subtraction does to the noise",
            formula="10 log10(noise of D V / noise of A1 V)",
            range=("-inf", "inf"),
            undefined="as snr_gain",
            averaged="not",
        ),
    },
    "log_odds_under_noise": {
        "log_odds": Definition(
            dims=(),
            units="nats",
            description="log-odds of the answer against distractors, without noise",
            formula="logit of the answer - logsumexp of the distractors' logits",
            range=("-inf", "inf"),
            undefined="nowhere",
        ),
        "log_odds_lost": Definition(
            dims=("mode", "sigma"),
            units="nats",
            description="log-odds lost to injected noise",
            formula="log-odds without noise - log-odds with it",
            range=("-inf", "inf"),
            undefined="nowhere",
            averaged_over="draws",
        ),
        "log_odds_lost_error": Definition(
            dims=("mode", "sigma"),
            units="nats",
            description="its standard error",
            formula="standard deviation over draws / sqrt draws",
            range=("0", "inf"),
            undefined="of one draw",
        ),
        "lost_to_common_more": Definition(
            dims=("sigma",),
            units="nats",
            description="log-odds that common noise takes more than opposite noise of the same draws",
            formula="log-odds lost to common noise - to opposite noise",
            range=("-inf", "inf"),
            undefined="nowhere",
            averaged_over="draws",
        ),
        "lost_to_common_more_error": Definition(
            dims=("sigma",),
            units="nats",
            description="its standard error",
            formula="standard deviation over draws / sqrt draws",
            range=("0", "inf"),
            undefined="of one draw",
        ),
    },
    "anatomy": {
        "alone": Definition(
            dims=PARTS,
            units="1",
            description="what a part explains of a map by itself",
            formula=EXPLAINED,
            range=("0", "1"),
            undefined=NO_ROWS,
        ),
        "added": Definition(
            dims=PARTS,
            units="1",
            description="what a part adds to those before it",
            formula="as alone; parts in the order of their labels",
            range=("0", "1"),
            undefined=NO_ROWS,
        ),
        "shapley": Definition(
            dims=PARTS,
            units="1",
            description="what a part adds, mean over all orders",
            formula="as alone; Shapley value",
            range=("0", "1"),
            undefined=NO_ROWS,
            source=SHAPLEY,
        ),
    },
    "head_types": {
        "score": Definition(
            dims=TYPES,
            units="1",
            description="what a map gives to the keys that make a head one of a type",
            formula=ON_KEYS,
            range=("-1", "1"),
            undefined=NO_TYPE,
            source=f"{INDUCTION}; {RETRIEVAL_HEADS} of retrieval",
            averaged_over="queries",
        ),
        "shuffled": Definition(
            dims=TYPES,
            units="1",
            description="the score at the same positions of the shuffled prompt",
            formula=ON_KEYS,
            range=("-1", "1"),
            undefined=f"{NO_TYPE}; without a shuffled prompt",
            averaged_over="queries",
        ),
        "uniform": Definition(
            dims=TYPES,
            units="1",
            description="the score of equal weights on all visible keys",
            formula="mean over queries of |K| / n",
            range=("0", "1"),
            undefined=NO_TYPE,
            averaged_over="queries",
        ),
        "queries": Definition(
            dims=("type",),
            units="queries",
            description="queries that are scored, if their masks let them see the keys",
            formula="#{queries whose K is not empty}",
            range=("0", "inf"),
            undefined="nowhere",
            averaged="not",
        ),
    },
}
