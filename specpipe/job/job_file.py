"""Loading of job files: YAML and `--set` overrides become a JobSpec, or one message with every problem and its line."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from specpipe.errors import LONG_NUMBER, JobError
from specpipe.job.job_problems import JobProblem, job_problems
from specpipe.job.job_spec import JobSpec

_MAX_VALUES = 100_000
"""Values of a job file, aliases replaced: nine of nine each, nine deep, would be 387 million."""
Keys = tuple[str, ...]
"""Path of keys, such as ("speculation", "policy")."""


def load_job(path: str | Path, overrides: Sequence[str] = ()) -> JobSpec:
    """Reads a job file. `overrides` are `section.key=value`, each value YAML.

    Raises JobError that lists every problem with its line.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise JobError(f"job file {path} does not exist (working directory {Path.cwd()})") from None
    except (OSError, UnicodeDecodeError) as error:
        raise JobError(f"job file {path} cannot be read: {error}") from None
    values, lines = _parse_yaml(text, str(path))
    return parse_job(values, overrides, source=str(path), name=path.stem, lines=lines)


def parse_job(
    values: object,
    overrides: Sequence[str] = (),
    *,
    source: str,
    name: str = "job",
    lines: Mapping[Keys, str] | None = None,
) -> JobSpec:
    """Checks a job given as nested mappings. `source` names it in messages; `lines` holds the line of each key.

    Raises JobError that lists every problem.
    """
    origins = dict(lines or {})
    if isinstance(values, dict):
        values = {"name": name, **values}
        for override in overrides:
            keys = _apply_override(values, override)
            origins[keys] = "--set"
            origins.setdefault(keys[:1], "--set")
    try:
        return _fill_placeholders(JobSpec.model_validate(values), source)
    except ValidationError as error:
        problems = job_problems(error, JobSpec, values)
    raise JobError(_message([*problems, *_further_problems(problems, values)], origins, source))


def _fill_placeholders(job: JobSpec, source: str) -> JobSpec:
    """Replaces the placeholders of paths once per start, so that the folder does not change at midnight."""
    today = datetime.date.today()
    dates = {"date": today.isoformat(), "yesterday": (today - datetime.timedelta(days=1)).isoformat()}
    known = {**dates, "name": job.name}
    path = _filled(job.output.path, {name: known[name] for name in ("date", "name")}, f"{source}: output.path")
    replay = tuple(_filled(text, known, f"{source}: speculation.replay") for text in job.speculation.replay)
    return job.model_copy(
        update={
            "output": job.output.model_copy(update={"path": path}),
            "speculation": job.speculation.model_copy(update={"replay": replay}) if replay else job.speculation,
        }
    )


def _filled(path: str, known: Mapping[str, str], key: str) -> str:
    """Returns a path with its placeholders replaced. Raises JobError for an unknown one. key: for the message."""
    if unknown := [name for name in re.findall(r"{([^{}]*)}", path) if name not in known]:
        expected = " or ".join(f"{{{name}}}" for name in known)
        raise JobError(f"{key} is {path!r}; expected {expected}, not {{{unknown[0]}}}")
    for name, value in known.items():
        path = path.replace(f"{{{name}}}", value)
    return path


def _further_problems(known: list[JobProblem], values: object) -> list[JobProblem]:
    """Returns the problems that show without the keys of the known ones: checks across keys run on valid keys only."""
    rest = _without(values, {keys for keys, _ in known})
    try:
        JobSpec.model_validate(rest)
    except ValidationError as error:
        names = {keys[-1] for keys, _ in known if keys}
        found = job_problems(error, JobSpec, rest)
        return [p for p in found if p not in known and not any(name in p.text for name in names)]
    return []


def _without(values: object, dropped: set[Keys]) -> object:
    """Returns a copy of the nested mapping without these keys."""
    if not isinstance(values, dict):
        return values
    rest = {key: value for key, value in values.items() if (key,) not in dropped}
    for key, section in rest.items():
        if isinstance(section, dict):
            rest[key] = {name: value for name, value in section.items() if (key, name) not in dropped}
    return rest


def _parse_yaml(text: str, source: str) -> tuple[object, dict[Keys, str]]:
    """Returns the file's values and the line of each key ("line 3"). Raises JobError."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        _expanded_size(root, {}, source)
        lines: dict[Keys, str] = {}
        for key, node in _entries(root, (), lines, source):
            for _ in _entries(node, (key,), lines, source):
                pass
        values = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        hint = "Check brackets and quotes, and that the lines of each section have the same indentation, in spaces"
        raise JobError(f"{source} is not valid YAML: {_yaml_problem(error)}. {hint}") from None
    return {} if values is None else values, lines


def _expanded_size(node: yaml.Node | None, sizes: dict[int, int | None], source: str) -> int:
    """Returns the number of a node's values with aliases replaced. Raises JobError for endless or too many values."""
    if node is None or isinstance(node, yaml.ScalarNode):
        return 1
    if id(node) in sizes:
        size = sizes[id(node)]
        if size is None:
            line = node.start_mark.line + 1
            raise JobError(f"{source}: line {line}: an anchor contains itself; write its values out")
        return size
    sizes[id(node)] = None
    children = [child for entry in node.value for child in (entry if isinstance(entry, tuple) else (entry,))]
    size = sizes[id(node)] = 1 + sum(_expanded_size(child, sizes, source) for child in children)
    if size > _MAX_VALUES:
        line = node.start_mark.line + 1
        raise JobError(f"{source}: line {line}: aliases stand for {size:,} values; expected at most {_MAX_VALUES:,}")
    return size


def _yaml_problem(error: Exception) -> str:
    """Returns place and text of a YAML error in one line."""
    if LONG_NUMBER in str(error):
        return "a number of more than 4,300 digits"
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return " ".join(str(error).split())
    mark, texts = error.problem_mark, [text for text in (error.context, error.problem) if text]
    return f"line {mark.line + 1}, column {mark.column + 1}: {', '.join(texts)}"


def _entries(node: yaml.Node | None, above: Keys, lines: dict[Keys, str], source: str) -> list[tuple[str, yaml.Node]]:
    """Returns the entries of a mapping and records their lines.

    Raises JobError for a duplicate key, of which YAML would drop the first.
    """
    if not isinstance(node, yaml.MappingNode):
        return []
    entries = []
    for key_node, value_node in node.value:
        keys = (*above, str(key_node.value))
        line = f"line {key_node.start_mark.line + 1}"
        if keys in lines:
            raise JobError(f"{source}: {'.'.join(keys)} is given twice, in {lines[keys]} and {line}; keep one")
        lines[keys] = line
        entries.append((keys[-1], value_node))
    return entries


def _apply_override(values: dict[str, Any], override: str) -> Keys:
    """Writes one `section.key=value` into `values` and returns its keys. Raises JobError."""
    dotted, equals, text = override.partition("=")
    keys = tuple(part.strip() for part in dotted.split("."))
    if not equals or not all(keys) or len(keys) > 2:
        raise JobError(f"--set {override}: expected section.key=value, such as --set speculation.policy=off")
    try:
        _expanded_size(yaml.compose(text, Loader=yaml.SafeLoader), {}, f"--set {dotted}")
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise JobError(f"--set {override:.100}: the value is not valid YAML: {_yaml_problem(error)}") from None
    if len(keys) == 1:
        values[keys[0]] = value
        return keys
    section = values.get(keys[0]) or {}
    if not isinstance(section, dict):
        return keys  # the section itself is invalid, which validation reports
    values[keys[0]] = {**section, keys[1]: value}
    return keys


def _message(problems: Sequence[JobProblem], origins: Mapping[Keys, str], source: str) -> str:
    """Returns one line for each problem, with the line of its key or of the nearest section above it."""
    lines = []
    for keys, text in problems:
        origin = next((origins[keys[:n]] for n in range(len(keys), 0, -1) if keys[:n] in origins), "")
        lines.append(f"{origin}: {text}" if origin else text)
    if len(lines) == 1:
        return f"{source}: {lines[0]}"
    return "\n".join([f"{source}: {len(lines)} problems", *(f"  {line}" for line in lines)])
