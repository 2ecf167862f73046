"""Hold what a model attended with on a prompt: maps on request, statistics, and a file that answers the same questions."""

from diffscope.capture.capture import Capture, open_capture

__all__ = ["Capture", "open_capture"]
