"""The sections of the page Amplifier, a file each."""
