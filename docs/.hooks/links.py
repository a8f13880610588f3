"""For the site: links to files of the repository that are no pages become their paths."""

import re
from typing import Any

_OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./([^)#]+)[^)]*\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    def path(match: re.Match[str]) -> str:
        text, target = match.groups()
        return text if target.strip("/") in text else f"{text} (`{target}`)"

    return _OUTSIDE.sub(path, markdown)
