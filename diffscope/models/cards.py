"""Read the cards of the bundled models, before any model is loaded."""

from __future__ import annotations

import json
from pathlib import Path

from diffscope.storage.checksum import check_sums

BUNDLED = Path(__file__).parent / "bundled"
CARD_FILE = "card.json"


def bundled() -> list[dict]:
    """Return the cards of the models that come with diffscope.

    Returns
    -------
    list of dict
        name, path, attention, layers, heads, parameters, positions, scores, checkpoints (steps along training).
    """
    cards = sorted(BUNDLED.glob(f"*/{CARD_FILE}"))
    for card in cards:
        check_sums(card.parent, only=[CARD_FILE])
    return [{**json.loads(card.read_text(encoding="utf-8"))["summary"], "path": str(card.parent)} for card in cards]
