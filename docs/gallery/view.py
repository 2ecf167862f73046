"""Move in the maps of a head

What a notebook shows as the last line of a cell: A1, A2, λ·A2 and D, linked. Point at a cell to read it, click a token to
lock its row or column, zoom with Ctrl (or ⌘) and the wheel, or with the wheel alone once you have clicked. This page holds the
one head that the code names; in a running notebook arrow keys lead to the next head. Of long prompts it shows bins, each by its
value of largest magnitude.
"""

import diffscope

scope = diffscope.load("mini-diff")
prompt = "Magic numbers. Paris 7421. Rome 2174. Paris"
cap = scope.capture(prompt, spans={"answer": "7421"})
figure = diffscope.views.view(cap, layer=2, head=1)
