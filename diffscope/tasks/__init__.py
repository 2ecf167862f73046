"""Prompts with exact spans: retrieval with any length and number of distractors, recall on text, plain text, and a user's own."""

from diffscope.tasks.backcopy import Backcopy
from diffscope.tasks.examples import examples
from diffscope.tasks.files import TextPrompt, read_prompts, read_texts
from diffscope.tasks.own import own_prompts
from diffscope.tasks.planted import PlantedLookups
from diffscope.tasks.recall import Recall
from diffscope.tasks.retrieval import Prompt, Retrieval

__all__ = [
    "Backcopy",
    "PlantedLookups",
    "Prompt",
    "Recall",
    "Retrieval",
    "TextPrompt",
    "examples",
    "own_prompts",
    "read_prompts",
    "read_texts",
]
