"""What tests of the instruments share."""

from tests.families.conftest import timm

__all__ = ["timm"]
