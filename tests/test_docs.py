"""Documentation: pages, links, names of files and commands, length, and commands that run."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from specpipe.cli.main import main

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
RUNNABLE = re.compile(r"<!-- run -->\n```bash\n(.*?)```", re.DOTALL)
PAGES = sorted(path.name for path in DOCS.glob("*.md"))
OTHERS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "kernels/README.md", "infra/README.md")
FILES = [*(ROOT / name for name in OTHERS), *(DOCS / name for name in PAGES)]
TEXTS = {path: path.read_text(encoding="utf-8") for path in FILES}
MAX_WORDS = 20_000
MAX_COLUMNS = 120
PLACEHOLDERS = {"specpipe/speculation/policies/NAME.py"}


def nav(node: Any) -> list[str]:
    """Returns the pages of a part of mkdocs' navigation, in order."""
    if isinstance(node, str):
        return [node]
    children = node if isinstance(node, list) else node.values()
    return [page for child in children for page in nav(child)]


def prose(text: str) -> str:
    """Returns a page without its code blocks."""
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(text: str) -> set[str]:
    """Returns the anchors of a page's headings, as GitHub and mkdocs make them."""
    headings = re.findall(r"^#+ (.+)$", prose(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_every_page_is_in_the_navigation_once() -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert sorted(nav(config["nav"])) == PAGES


def test_documentation_stays_within_its_word_limit() -> None:
    assert sum(len(text.split()) for text in TEXTS.values()) <= MAX_WORDS


@pytest.mark.parametrize(
    "path", [path for path in FILES if path.name != "jobs.md"], ids=lambda path: str(path.relative_to(ROOT))
)
def test_prose_is_wrapped_except_on_the_generated_page(path: Path) -> None:
    lines = [line for line in prose(TEXTS[path]).splitlines() if not line.startswith(("|", "    "))]
    assert [line for line in lines if len(line) > MAX_COLUMNS] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_and_anchors(path: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", prose(TEXTS[path])):
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        assert file.exists(), f"{path}: {target}"
        assert not anchor or anchor in anchors(file.read_text(encoding="utf-8")), f"{path}: {target}"


def test_files_that_pages_name_exist() -> None:
    pattern = re.compile(r"(?<![\w/.])((?:specpipe|kernels|tests|jobs|docs|infra)/[\w./-]*\w)")
    named = {name for text in TEXTS.values() for name in pattern.findall(text)} - PLACEHOLDERS
    assert len(named) > 50
    assert sorted(name for name in named if not (ROOT / name).exists()) == []


def test_the_design_page_names_every_package() -> None:
    packages = [path.parent.name for path in (ROOT / "specpipe").glob("*/__init__.py")]
    assert [name for name in packages if f"| `specpipe/{name}`" not in TEXTS[DOCS / "design.md"]] == []


def test_modules_that_pages_name_exist() -> None:
    named = {
        name for text in TEXTS.values() for name in re.findall(r"python -m ((?:specpipe|jobs|support)\.[\w.]+)", text)
    }
    assert named
    paths = [ROOT / name.replace("support.", "tests.support.").replace(".", "/") for name in sorted(named)]
    assert [path for path in paths if not path.with_suffix(".py").exists() and not path.is_dir()] == []


def commands(text: str) -> Iterator[list[str]]:
    """Yields the words of every `specpipe …` command in the code of a page."""
    joined = text.replace("\\\n", " ")
    for line in re.findall(r"^    (?:.* )?(?<!/)specpipe (.*)$|`specpipe ([^`]*)`", joined, re.MULTILINE):
        yield re.split(r"\s+#", "".join(line))[0].split()
    for block in RUNNABLE.findall(joined):
        yield from (
            line.removeprefix("specpipe ").split() for line in block.splitlines() if line.startswith("specpipe ")
        )


def problem(words: list[str]) -> str | None:
    """Returns the first subcommand or option in `words` that the command line lacks."""
    command: click.Command = main
    for word in words:
        if isinstance(command, click.Group) and not word.startswith("-"):
            if word not in command.commands:
                return word
            command = command.commands[word]
        elif word.startswith("--") and not command.context_settings.get("ignore_unknown_options"):
            options = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
            if word.split("=")[0] not in options | {"--help"}:
                return word
    return None


def test_commands_and_options_that_pages_name_exist() -> None:
    found = [(path.name, words) for path, text in TEXTS.items() for words in commands(text) if words]
    assert len(found) > 40
    assert [(name, " ".join(words), missing) for name, words in found if (missing := problem(words))] == []


class LoadedAddresses(HTMLParser):
    """Addresses that a browser loads with a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "a":
            self.addresses += [value for name, value in attrs if name in ("src", "href", "srcset") and value]


@pytest.mark.slow
def test_the_site_builds_strictly_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="`make docs` installs it")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    pages = sorted(tmp_path.glob("*.html"))
    assert {page.stem for page in pages} >= {name.removesuffix(".md") for name in PAGES}
    for page in pages:
        loaded = LoadedAddresses()
        loaded.feed(page.read_text(encoding="utf-8"))
        assert [address for address in loaded.addresses if re.match(r"(https?:)?//", address)] == [], page.name
    styles = [path.read_text(encoding="utf-8") for path in tmp_path.rglob("*.css")]
    assert styles and not any(re.search(r"(url\(|@import\s+)[\"']?(https?:)?//", style) for style in styles)


def test_the_example_of_the_kernels_readme_runs() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", TEXTS[ROOT / "kernels/README.md"], re.DOTALL)
    names: dict[str, Any] = {}
    exec(example, names)
    assert names["out"].tokens.shape == (4, 4)


def test_the_tutorial_has_runnable_commands() -> None:
    assert len(RUNNABLE.findall(TEXTS[DOCS / "index.md"])) >= 4


@pytest.mark.slow
@pytest.mark.parametrize("page", [name for name in PAGES if RUNNABLE.search(TEXTS[DOCS / name])])
def test_commands_of_a_page_run_in_order(page: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "jobs", tmp_path / "jobs")
    env = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "SPECPIPE_", "PYTEST_"))}
    env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
    for block in RUNNABLE.findall(TEXTS[DOCS / page]):
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=280,
        )
        assert done.returncode == 0, f"{page}\n{block}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
