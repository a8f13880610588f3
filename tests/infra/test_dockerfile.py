"""The image: linted, not root, pinned versions, no weights."""

import re
import subprocess
import sys
from pathlib import Path


def test_hadolint_finds_nothing(infra: Path) -> None:
    linter = Path(sys.executable).parent / "hadolint"
    done = subprocess.run([linter, infra / "Dockerfile"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")


def test_image_runs_as_numeric_user_with_pinned_packages(infra: Path) -> None:
    text = (infra / "Dockerfile").read_text(encoding="utf-8")
    final = text.split("\nFROM ")[-1]
    users = re.findall(r"^USER (.+)$", final, re.MULTILINE)
    assert users == ["10001:10001"]  # Kubernetes proves runAsNonRoot by number
    installs = re.findall(r"pip install (.+)", text)
    assert installs and all("--constraint constraints.txt" in install for install in installs)


def test_image_copies_only_the_package(infra: Path) -> None:
    text = (infra / "Dockerfile").read_text(encoding="utf-8")
    copied = [
        source for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE) for source in line.split()[:-1]
    ]
    assert copied and all((infra.parent / source).exists() for source in copied)
    ignored = (infra / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in ignored
    assert sorted(line[1:] for line in ignored if line.startswith("!")) == sorted(copied)
