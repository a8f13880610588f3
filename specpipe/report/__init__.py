"""A run as one self-contained HTML page: what ran, what it cost, how speculation did, what went wrong."""

from specpipe.report.run_page import render_run
from specpipe.report.run_source import ErrorExample, RunSource

__all__ = ["ErrorExample", "RunSource", "render_run"]
