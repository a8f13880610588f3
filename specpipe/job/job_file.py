"""From a YAML file and `--set` overrides to a JobSpec, or to one message with everything that is wrong."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from specpipe.errors import JobError
from specpipe.job.job_problems import JobProblem, job_problems
from specpipe.job.job_spec import JobSpec

Place = tuple[str, ...]


def load_job(path: str | Path, overrides: Sequence[str] = ()) -> JobSpec:
    """Reads a job file. `overrides` are `section.key=value`, each value YAML.

    Raises JobError that lists every problem with its line.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise JobError(f"job file {path} is not there (working directory {Path.cwd()})") from None
    except (OSError, UnicodeDecodeError) as error:
        raise JobError(f"job file {path} cannot be read: {error}") from None
    values, places = _parse_yaml(text, str(path))
    return parse_job(values, overrides, source=str(path), name=path.stem, places=places)


def parse_job(
    values: object,
    overrides: Sequence[str] = (),
    *,
    source: str,
    name: str = "job",
    places: Mapping[Place, str] | None = None,
) -> JobSpec:
    """Checks a job that is nested mappings already. `source` names it in messages, `places` the line of each key."""
    where = dict(places or {})
    if isinstance(values, dict):
        values = {"name": name, **values}
        for override in overrides:
            place = _override(values, override)
            where[place] = "--set"
            where.setdefault(place[:1], "--set")
    try:
        return _fill_output(JobSpec.model_validate(values), source)
    except ValidationError as error:
        problems = job_problems(error, JobSpec, values)
    raise JobError(_message([*problems, *_further(problems, values)], where, source))


def _fill_output(job: JobSpec, source: str) -> JobSpec:
    """Placeholders of output.path, once a start: everything that follows agrees on the folder, whatever the time."""
    known = {"date": datetime.date.today().isoformat(), "name": job.name}
    path = job.output.path
    if unknown := [name for name in re.findall(r"{([^{}]*)}", path) if name not in known]:
        raise JobError(
            f"{source}: output.path is {path!r}; {{{unknown[0]}}} is not known, expected {{date}} or {{name}}"
        )
    for name, value in known.items():
        path = path.replace(f"{{{name}}}", value)
    return job.model_copy(update={"output": job.output.model_copy(update={"path": path})})


def _further(known: list[JobProblem], values: object) -> list[JobProblem]:
    """Problems that show once the known ones are out of the way: checks across keys run on sound keys only."""
    mended = _without(values, {place for place, _ in known})
    try:
        JobSpec.model_validate(mended)
    except ValidationError as error:
        names = {place[-1] for place, _ in known if place}
        found = job_problems(error, JobSpec, mended)
        return [p for p in found if p not in known and not any(name in p.text for name in names)]
    return []


def _without(values: object, places: set[Place]) -> object:
    if not isinstance(values, dict):
        return values
    rest = {key: value for key, value in values.items() if (key,) not in places}
    for key, section in rest.items():
        if isinstance(section, dict):
            rest[key] = {name: value for name, value in section.items() if (key, name) not in places}
    return rest


def _parse_yaml(text: str, source: str) -> tuple[object, dict[Place, str]]:
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        places: dict[Place, str] = {}
        for key, node in _entries(root, (), places, source):
            for _ in _entries(node, (key,), places, source):
                pass
        values = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        hint = "Check brackets and quotes, and that each section's lines are indented alike, with spaces"
        raise JobError(f"{source} is not YAML: {_yaml_problem(error)}. {hint}") from None
    return {} if values is None else values, places


def _yaml_problem(error: Exception) -> str:
    """Where it is and what the parser says of it, in one line."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return " ".join(str(error).split())
    mark, said = error.problem_mark, [part for part in (error.context, error.problem) if part]
    return f"line {mark.line + 1}, column {mark.column + 1}: {', '.join(said)}"


def _entries(
    node: yaml.Node | None, above: Place, places: dict[Place, str], source: str
) -> list[tuple[str, yaml.Node]]:
    """The keys of a mapping. Notes their lines; a key that stands twice is an error, YAML would drop the first."""
    if not isinstance(node, yaml.MappingNode):
        return []
    entries = []
    for key_node, value_node in node.value:
        place = (*above, str(key_node.value))
        line = f"line {key_node.start_mark.line + 1}"
        if place in places:
            raise JobError(f"{source}: {'.'.join(place)} stands twice, in {places[place]} and {line}; keep one")
        places[place] = line
        entries.append((place[-1], value_node))
    return entries


def _override(values: dict[str, Any], override: str) -> Place:
    """Writes one `section.key=value` into `values`; gives its place."""
    dotted, equals, text = override.partition("=")
    place = tuple(part.strip() for part in dotted.split("."))
    if not equals or not all(place) or len(place) > 2:
        raise JobError(f"--set {override}: expected section.key=value, such as --set speculation.policy=off")
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:
        raise JobError(f"--set {override}: the value is not YAML: {_yaml_problem(error)}") from None
    if len(place) == 1:
        values[place[0]] = value
        return place
    section = values.get(place[0]) or {}
    if not isinstance(section, dict):
        return place  # the section itself is the problem, and validation names it
    values[place[0]] = {**section, place[1]: value}
    return place


def _message(problems: Sequence[JobProblem], where: Mapping[Place, str], source: str) -> str:
    lines = []
    for place, text in problems:
        line = next((where[place[:n]] for n in range(len(place), 0, -1) if place[:n] in where), "")
        lines.append(f"{line}: {text}" if line else text)
    if len(lines) == 1:
        return f"{source}: {lines[0]}"
    return "\n".join([f"{source}: {len(lines)} problems", *(f"  {line}" for line in lines)])
