"""Hook of mkdocs: replaces links to files outside of docs/ by the files' paths."""

import re
from typing import Any

_OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./([^)#]+)[^)]*\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Returns a page's Markdown with these links replaced; mkdocs calls it for every page."""

    def path(match: re.Match[str]) -> str:
        text, target = match.groups()
        return text if target.strip("/") in text else f"{text} (`{target}`)"

    return _OUTSIDE.sub(path, markdown)
