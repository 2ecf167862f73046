"""Measure what takes more than the rows as they are: inject noise, exchange texts, take maps apart, score heads by type.

Each function takes a capture, or an opened model, and returns a labelled Dataset.
"""

from diffscope.instruments.head_scores import head_types
from diffscope.instruments.injection import cmrr_by_injection, log_odds_under_noise, with_a2_moved
from diffscope.instruments.map_parts import anatomy
from diffscope.instruments.snr import signal_to_noise

__all__ = ["anatomy", "cmrr_by_injection", "head_types", "log_odds_under_noise", "signal_to_noise", "with_a2_moved"]
