"""Prompts with exact spans: retrieval with any length and number of distractors, recall on text, plain text, and a user's own."""

from diffscope.tasks.backcopy import Backcopy
from diffscope.tasks.encoding import encode_prompts
from diffscope.tasks.files import examples, read_prompts, read_texts
from diffscope.tasks.planted import PlantedLookups
from diffscope.tasks.prompt import Prompt, TextPrompt
from diffscope.tasks.recall import Recall
from diffscope.tasks.retrieval import Retrieval

__all__ = [
    "Backcopy",
    "PlantedLookups",
    "Prompt",
    "Recall",
    "Retrieval",
    "TextPrompt",
    "encode_prompts",
    "examples",
    "read_prompts",
    "read_texts",
]
