"""What a page that AppTest ran looks like."""


def fine(test):
    """The page, which has no red box."""
    assert not test.exception, test.exception
    return test


def shown(elements):
    """The texts of some elements, without the marks that keep Markdown from reading them."""
    return " ".join(element.value for element in elements).replace("\\", "")
