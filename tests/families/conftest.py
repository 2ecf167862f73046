"""What tests of families share."""

import pytest


@pytest.fixture(scope="session")
def timm():
    """timm, installed or in the folder ``vision`` of the environment."""
    from tests.layouts import vision

    try:
        return vision.import_timm()
    except ImportError as error:
        pytest.skip(f"{error}; `make test` puts it there, or pip install timm with a torchvision of the same build as torch")
