"""Report of a run as one self-contained HTML page.

Sections (`*_section.py`) turn a `RunSource` into plain text, tables and figures (`elements.py`); `page.py` renders them
with Jinja, `plots.py` draws with matplotlib. Imports speculation and telemetry; begin reading with `run_page.py`.
"""

from specpipe.report.run_page import render_run
from specpipe.report.run_source import AnswerExample, ErrorExample, RowFigures, RowGroup, RunSource

__all__ = ["AnswerExample", "ErrorExample", "RowFigures", "RowGroup", "RunSource", "render_run"]
