"""Write files atomically and with a digest, and read them back. Statistics, and with them xarray, are imported on first use."""

from diffscope.lazily import lazily

__getattr__, __dir__, __all__ = lazily(__name__, {"open_statistics": "statistics", "save_statistics": "statistics"})
