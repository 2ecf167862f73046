"""Errors of other libraries become errors of diffscope in one line."""

import pytest

from diffscope.errors import CorruptFile, PromptError, translated


def test_an_error_of_another_library_is_raised_as_one_line():
    with pytest.raises(CorruptFile) as raised, translated(CorruptFile, "f.bin cannot be read", "copy it again", errors=OSError):
        raise OSError("no such device\nsee the manual")
    assert str(raised.value) == "f.bin cannot be read (no such device); copy it again" and raised.value.__suppress_context__


def test_other_errors_and_those_of_diffscope_pass():
    with pytest.raises(KeyError), translated(CorruptFile, "f.bin cannot be read", errors=OSError):
        raise KeyError("name")
    with pytest.raises(PromptError, match="^the prompt is empty$"), translated(CorruptFile, "f.bin cannot be read"):
        raise PromptError("the prompt is empty")
