"""Python that does what the Intervene page shows."""

from __future__ import annotations

from choices import as_code, as_loaded
from edit_table import Written, text_length
from edited import answer_of, new_tokens, spans

TEXTS = """
# held-out text, with room for what follows the prompt
texts, _ = diffscope.tasks.Recall(scope.tokenizer).rows({count}, {length}, numpy.random.default_rng(0))
texts = texts.tolist()
"""
SCRIPT = """{numpy}import diffscope
from diffscope import edits, readings

scope = {scope}
prompt = {prompt!r}
spans = {spans}
before = scope.capture(prompt, spans=spans)
question = {question}
{texts}
changes = [{changes}]

says = readings.predict(scope, before, question)
continuation = scope.generate(prompt, {tokens})
with scope.edit(*changes):
    after = scope.capture(prompt, spans=spans)
    says_then = readings.predict(scope, before, question)
    continuation_then = scope.generate(prompt, {tokens})

print(readings.next_tokens(says, says_then, scope.tokenizer).to_dataframe())
print(readings.answers(says, says_then))
print(repr(continuation), "→", repr(continuation_then))
print(readings.effects(before, after, changes))
comparison = diffscope.Comparison(("without edits", "with edits"), (before, after))
diffscope.figures.maps(comparison, layer={layer}, head={head}).save("maps.pdf")
"""


def script(subject, cap, written: tuple[Written, ...], distractors: tuple[str, ...], layer: int, head: int) -> str:
    """The whole of it, from loading the model to the figure of one head."""
    answer = answer_of(subject, cap)
    count = max((max(edit.values) for edit in written if edit.kind.of_texts), default=0)
    lines = "".join(f"\n    {edit.code}," for edit in written)
    return SCRIPT.format(
        numpy="import numpy\n\n" if count else "",
        scope=as_loaded(subject.model),
        prompt=subject.prompt,
        spans=as_code(spans(subject, cap)),
        question=f"readings.encode_question(scope, before, {answer!r}, {list(distractors)!r})" if answer else None,
        texts=TEXTS.format(count=count, length=text_length(subject.scope(), cap)) if count else "",
        changes=f"{lines}\n" if lines else "",
        tokens=new_tokens(subject, cap),
        layer=layer,
        head=head,
    )
