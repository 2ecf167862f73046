"""What hypotheses are tested on, and the tests of it in the background."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

from background import CancellableScope, Job
from cache import stamp_of
from catalog import display_name
from file_picker import own_prompts
from uploads import File

from diffscope.errors import DiffscopeError, PromptError
from diffscope.hypotheses import TESTS, Settings, Verdict, gather, run
from diffscope.hypotheses.gathering import with_own
from diffscope.hypotheses.rules import KNOCK_OUT, Weights
from diffscope.scope import Scope, load

MOST_PROMPTS = 200


@dataclass(frozen=True)
class TestRequest:
    """What is tested, with how much, and which tests; empty where nothing is chosen.

    Attributes
    ----------
    model, beside, cohort : str
        A model and the standard one that it is compared with, or the folder of a cohort.
    prompts, length, untrained : int
        As of :class:`diffscope.hypotheses.Settings`.
    weights : {"knock-out", "a2", "answer"}
        As of :class:`diffscope.hypotheses.Settings`.
    own : File, optional
        A file with prompts.
    tests : tuple of str
        Ids of the tests; empty for all.
    """

    model: str
    beside: str
    cohort: str
    prompts: int
    length: int
    untrained: int
    weights: Weights
    own: File | None
    tests: tuple[str, ...]

    @property
    def key(self) -> tuple:
        """What results depend on; a model or cohort that was written again is another one."""
        named = (self.model, self.beside, self.cohort)
        written = (stamp_of(name, weights=True) for name in named)
        return (*named, *written, self.prompts, self.length, self.untrained, self.weights, self.own and self.own.key)

    @property
    def names(self) -> list[str]:
        """The models that are named."""
        return [name for name in (self.model, self.beside) if name]

    @property
    def title(self) -> str:
        """What the board is about."""
        models = " beside ".join(map(display_name, self.names)) or self.cohort
        return f"{models}, prompts of {self.own.name}" if self.own else models

    @property
    def asked(self) -> tuple[str, ...]:
        """Ids of the tests."""
        return self.tests or tuple(TESTS)

    def settings(self) -> Settings:
        """The prompts, and how much is spent on them."""
        settings = Settings(prompts=self.prompts, length=self.length, untrained=self.untrained, weights=self.weights)
        if self.own is None:
            return settings
        own = own_prompts(self.own.name, self.own.content)
        if len(own) > MOST_PROMPTS:
            raise PromptError(f"{self.own.name} has {len(own):,} prompts, and {MOST_PROMPTS} are taken here; leave some out")
        return with_own(settings, own)

    def code(self) -> str:
        """Python that gives the board."""
        named = {
            "model": display_name(self.model),
            "baseline": self.beside,
            "cohort": self.cohort,
            "own": self.own and self.own.name,
        }
        amount = {"prompts": self.prompts, "length": self.length, "untrained": self.untrained}
        amount |= {} if self.weights == KNOCK_OUT else {"weights": self.weights}
        amount |= {"tests": list(self.tests)} if self.tests else {}
        options = {name: value for name, value in named.items() if value} | amount
        words = ", ".join(f"{name}={value!r}" for name, value in options.items())
        return f"import diffscope\n\nboard = diffscope.hypotheses.test({words})\n"


@dataclass(frozen=True)
class Board:
    """Verdicts by id, what they are about, Python that gives them as ``board``, and how the models answer, in words."""

    title: str
    verdicts: Mapping[str, Verdict]
    code: str
    statements: tuple[str, ...] = ()


def provisional(choices: TestRequest, finished: Mapping, statements: list[str]) -> Board:
    """The chosen tests that are done: mechanism tests are corrected over these."""
    results = dict(finished)  # a job may be adding to it
    ids = [id for id in TESTS if id in results and id in choices.asked]
    verdicts = run(ids, finished=results) if ids else []
    return Board(choices.title, {verdict.test.id: verdict for verdict in verdicts}, choices.code(), tuple(statements))


def run_tests(
    job: Job,
    choices: TestRequest,
    settings: Settings,
    opened: Mapping[str, Scope],
    places: Mapping[str, str],
    trust: bool,
    finished: MutableMapping,
    statements: list[str],
) -> None:
    """Run what is not finished, as a job's work.

    Parameters
    ----------
    job : Job
    choices : TestRequest
    settings : Settings
        Those of the choices.
    opened : mapping of str to Scope
        The models that are named; their checkpoints, and the models of a cohort, are opened for this job alone.
    places : mapping of str to str
        Where each of them lies, which pages do not say.
    trust : bool
        Whether code that comes with checkpoints is run.
    finished : mutable mapping
        Gets each result by its test's id.
    statements : list of str
        Gets how the models answer, as soon as that is known.
    """
    at = {places[name]: opened[name] for name in choices.names}

    def shown(words: str) -> str:
        for name, place in places.items():
            words = words.replace(place, display_name(name))
        return words

    def open_watched(place: str) -> Scope:
        return CancellableScope(
            at[place] if place in at else load(place, trust_remote_code=trust), job.check_cancelled, shown(place)
        )

    asked = [id for id in choices.asked if id not in finished]
    try:
        subjects = gather(
            [places[choices.model]] if choices.model else [],
            [places[choices.beside]] if choices.beside else [],
            choices.cohort or None,
            needs={TESTS[id].needs for id in asked},
            settings=settings,
            progress=lambda done, total, words: job.report(done, total, shown(words)),
            opener=open_watched,
        )
        statements[:] = dict.fromkeys([*statements, *subjects.statements])  # other tests may have needed other models
        subjects.run(asked, finished=finished)
    except DiffscopeError as error:
        raise type(error)(shown(str(error))) from None
