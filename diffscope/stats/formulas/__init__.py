"""The statistics themselves: pure functions on rows, without models or files."""
