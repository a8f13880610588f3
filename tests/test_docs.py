"""The documentation: every page is in the site, which asks nothing of other servers; marked commands run."""

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
RUNNABLE = re.compile(r"<!-- run -->\n```bash\n(.*?)```", re.DOTALL)
PAGES = sorted(path.name for path in DOCS.glob("*.md"))


def nav(node: Any) -> list[str]:
    if isinstance(node, str):
        return [node]
    children = node if isinstance(node, list) else node.values()
    return [page for child in children for page in nav(child)]


def test_every_page_is_in_the_sites_navigation_once() -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert sorted(nav(config["nav"])) == PAGES


class Fetched(HTMLParser):
    """What a browser loads with a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "a":
            self.addresses += [value for name, value in attrs if name in ("src", "href", "srcset") and value]


@pytest.mark.slow
def test_the_site_builds_strict_and_asks_nothing_of_other_servers(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="`make docs` installs it")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    pages = sorted(tmp_path.glob("*.html"))
    assert {page.stem for page in pages} >= {name.removesuffix(".md") for name in PAGES}
    for page in pages:
        fetched = Fetched()
        fetched.feed(page.read_text(encoding="utf-8"))
        assert [address for address in fetched.addresses if re.match(r"(https?:)?//", address)] == [], page.name
    styles = [path.read_text(encoding="utf-8") for path in tmp_path.rglob("*.css")]
    assert styles and not any(re.search(r"(url\(|@import\s+)[\"']?(https?:)?//", style) for style in styles)


def test_some_commands_are_marked_as_runnable() -> None:
    assert len(RUNNABLE.findall((DOCS / "index.md").read_text(encoding="utf-8"))) >= 4


@pytest.mark.slow
@pytest.mark.parametrize("page", [name for name in PAGES if RUNNABLE.search((DOCS / name).read_text(encoding="utf-8"))])
def test_commands_of_a_page_run_one_after_the_other(page: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "jobs", tmp_path / "jobs")
    env = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "SPECPIPE_", "PYTEST_"))}
    env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
    for block in RUNNABLE.findall((DOCS / page).read_text(encoding="utf-8")):
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=280,
        )
        assert done.returncode == 0, f"{page}\n{block}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
