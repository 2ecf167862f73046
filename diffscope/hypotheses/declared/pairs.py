"""What tests of pairs share."""

ONE_PAIR = "A single pair says what its two models do, not what the architectures do."
CONTROLS = ("untrained pairs of the same architectures, with scores as far apart and DIFF's λ", "same prompts")
