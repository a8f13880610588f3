"""Offline text generation over Arrow datasets, with speculative decoding that pays."""

__version__ = "0.1.0"
