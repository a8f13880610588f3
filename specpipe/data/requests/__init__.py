"""Rows to requests: finding the prompt, sampling values of a row, seeds and samples. Begin with `request_builder`."""
