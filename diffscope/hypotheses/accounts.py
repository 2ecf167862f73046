"""The three accounts of differential attention, and the words in which a test speaks of each."""

ACCOUNTS = {"NC": "noise cancellation", "SP": "sparsification", "SH": "signed heads"}
FOR = "for"
AGAINST = "against"
OPEN = "open"
SILENT = "silent"
WORDS = (FOR, AGAINST, OPEN, SILENT)
NAMES = ", ".join(f"{account} is {name}" for account, name in ACCOUNTS.items())
LEGEND = (
    f"A column for each account: {NAMES}. For: what it predicts came out, and neither another account nor the absence of any "
    "effect predicts that. Against: the 95 % interval excludes what it predicts. Open: not decided. Silent: it predicts nothing "
    "here, or nothing of its own, or the second map (A2) does nothing in these heads."
)
