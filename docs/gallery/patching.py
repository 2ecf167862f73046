"""What each head carries of another prompt

How the lead of the answer over another prompt's answer changes, in nats, where one head alone is patched with what it
computes on that prompt. A1 and A2 are maps, with the values of this prompt; the outputs of both branches have the
other's values too. Heads that stand in for each other change little one by one.
"""

import diffscope
from diffscope import figures, readings

text = "Magic numbers. Rome 2174. {} 3308. {} 7421. Paris"
prompt, source = text.format("Oslo", "Paris"), text.format("Paris", "Oslo")
what = ["A1", "A2", "A1 output", "A2 output"]
figure = figures.patching(readings.patched_heads(diffscope.load("mini-diff"), prompt, source, what=what))
