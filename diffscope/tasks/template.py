"""The sentence of retrieval prompts, in the tokens of any tokenizer."""

from __future__ import annotations

from functools import cache

from transformers import PreTrainedTokenizerBase

from diffscope.errors import PromptError
from diffscope.tasks.pieces import OWN, after_word, around
from diffscope.tasks.tokenizer import CITIES

SOME = [f"{n:02d}{n * 37 % 100:02d}" for n in range(100)]  # numbers by which a tokenizer's way with numbers is seen


def check_template(template: str) -> None:
    """Raise PromptError where a template does not hold ``{city}`` once and then, after a space, ``{number}`` once."""
    city = "{city}"
    number = " {number}"
    rest = template.replace(city, "", 1).replace(number, "", 1)
    if not (-1 < template.find(city) < template.find(number)) or set(rest) & set("{}"):
        raise PromptError(
            f"template {template!r} has to hold {{city}} once and after it, with a space before, {{number}} once, and no other "
            "braces; what stands before the number is the question"
        )


class Wording:
    """A needle sentence piece by piece: question, number, and what comes after it.

    Parameters
    ----------
    tokenizer
        Any that marks where words begin; cities and numbers may be of several tokens.
    template : str
        The sentence, with ``{city}`` and after it ``{number}``.

    Attributes
    ----------
    tail : list of int
        Tokens of what comes after the number.

    Raises
    ------
    PromptError
        The template is no such sentence, or the tokenizer joins it to what stands around it.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, template: str):
        check_template(template)
        self.template = template
        self._tokenizer = tokenizer
        self._head, self._end = template.split(" {number}")
        self.asked = cache(self._asked)
        self.number = cache(self._number)
        parts = [around(tokenizer, " ", number, self._end) for number in SOME]
        self.tail = parts[0][2]
        leads = {tuple(lead) for lead, _, _ in parts}
        # A space that is a token of its own before every number says nothing of which: it belongs to the question.
        self._lead = list(leads.pop()) if len(leads) == 1 else []
        self._check()

    def _check(self) -> None:
        """Raise PromptError unless sentences have the same tokens alone as between words."""
        texts = [f"{self._head.format(city=city)} {number}{self._end} a" for city, number in zip(CITIES, SOME)]
        after = self.encode(" a")
        for city, number, whole in zip(CITIES, SOME, after_word(self._tokenizer, texts)):
            if not self.template[0].isspace() or [*self.sentence(city, self.number(number)), *after] != whole:
                raise PromptError(
                    f"this tokenizer has other tokens for the template {self.template!r} alone than between words; begin it with "
                    f"a space and end it with a point, or {OWN}"
                )

    def encode(self, text: str) -> list[int]:
        """The tokens of a text that stands after a word."""
        return after_word(self._tokenizer, [text])[0]

    def _asked(self, city: str) -> tuple[int, ...]:
        """The tokens of what stands before the number, without any of it."""
        return tuple(self.encode(self._head.format(city=city)))

    def question(self, city: str) -> tuple[int, ...]:
        """The tokens after which the first that tells numbers apart comes."""
        return (*self.asked(city), *self._lead)

    def _number(self, number: str) -> list[int]:
        """The tokens of a number, as it stands after a question."""
        lead, digits, _ = around(self._tokenizer, " ", number, self._end)
        if self._lead and lead != self._lead:
            raise PromptError(f"this tokenizer begins the number {number} otherwise than others; {OWN}")
        return digits if self._lead else [*lead, *digits]

    def sentence(self, city: str, number: list[int]) -> list[int]:
        """The tokens of a whole sentence."""
        return [*self.question(city), *number, *self.tail]
