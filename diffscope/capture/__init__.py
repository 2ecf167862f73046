"""What a model attended with on a prompt: maps on request, statistics, and a file that answers the same questions."""

from diffscope.capture.capture import Capture, CaptureBatch, open_capture

__all__ = ["Capture", "CaptureBatch", "open_capture"]
