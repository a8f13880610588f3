"""Comparisons and the evaluation history as Markdown and self-contained HTML."""
