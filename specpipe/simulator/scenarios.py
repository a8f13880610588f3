"""Scenarios of the policy's simulator: what rounds truly take, what is truly accepted, and which rows come when."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml

from specpipe.arrays import Array
from specpipe.core import EngineConfig, ProposerName
from specpipe.errors import JobError
from specpipe.simulator.machine import Machine

LEAST_ROUNDS = 700
"""About as many as a scenario has even where every round drafts the most."""
BUILT_IN = Path(__file__).with_name("scenarios.yaml")


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """One run of one worker. Rows come in shards, in order. R rows, D kinds of rows."""

    family: str
    index: int
    machine: Machine
    slots: int
    max_k: int
    proposers: tuple[ProposerName, ...]
    refill: float
    """The next shard comes when so many rows, or fewer, still run, as a share of the slots."""
    shard: npt.NDArray[np.int64]
    """[R]: which shard a row belongs to, rising."""
    kind: npt.NDArray[np.int64]
    """[R]."""
    input: npt.NDArray[np.int64]
    """[R] tokens."""
    output: npt.NDArray[np.int64]
    """[R] tokens, 2 or more."""
    accepts: Mapping[ProposerName, Array]
    """[D, max K]: conditional acceptance."""
    coverage: Mapping[ProposerName, Array]
    """[D]: share of rounds that have a draft."""
    seed: int
    prefill_budget: int = field(default_factory=lambda: EngineConfig().prefill_budget)
    """Tokens that the draft catches up a step at most."""


def load_scenarios(path: str | None = None, *, seed: int | None = None) -> list[Scenario]:
    """The scenarios of a file, or of the one that comes with specpipe; `seed`: in place of the file's, others of the
    same families. Raises JobError for a file that is none."""
    source = path or str(BUILT_IN)
    try:
        data = yaml.safe_load(Path(source).read_text(encoding="utf-8"))
        machines = {name: Machine.of(values) for name, values in data["machines"].items()}
        out = []
        for place, (name, family) in enumerate(data["families"].items()):
            for index in range(int(family["count"])):
                rng = np.random.default_rng([int(data["seed"]) if seed is None else seed, place, index])
                out.append(_scenario(name, index, family, machines, data, rng))
    except OSError as error:
        raise JobError(f"{source} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise JobError(
            f"{source} is no file of scenarios: {what}; expected machines, datasets and families as in {BUILT_IN.name}"
        ) from None
    return out


def _one(rng: np.random.Generator, values: Any) -> Any:
    return values[int(rng.integers(len(values)))] if isinstance(values, list) else values


def _scenario(
    name: str,
    index: int,
    family: Mapping[str, Any],
    machines: Mapping[str, Machine],
    data: Mapping[str, Any],
    rng: np.random.Generator,
) -> Scenario:
    machine = machines[_one(rng, family["machines"])]
    slots, shards = int(_one(rng, family["slots"])), int(_one(rng, family["shards"]))
    names = _one(rng, family["datasets"])
    kinds = [data["datasets"][kind] for kind in names]
    proposers = tuple(family.get("proposers", ["draft"]))
    max_k = int(data["max_k"])
    accepts: dict[ProposerName, Array] = {
        "draft": _positions(kinds, "draft", max_k),
        "ngram": _positions(kinds, "ngram", max_k),
    }
    fastest = max(1 + np.cumprod(accepts[who], axis=1).sum(axis=1).max() for who in proposers)
    output = float(np.mean([entry["output"] for entry in kinds]))
    rows = max(shards, int(slots * max(family.get("rows", 1), LEAST_ROUNDS * fastest / output)))
    shard = np.arange(rows) * shards // rows
    kind = rng.integers(len(kinds), size=rows) if family.get("mixed") else shard % len(kinds)
    bounds = np.array([[*entry["input"], *entry["output"]] for entry in kinds])[kind]
    return Scenario(
        family=name,
        index=index,
        machine=machine,
        slots=slots,
        max_k=max_k,
        proposers=proposers,
        refill=float(_one(rng, family.get("refill", 1.0))),
        shard=shard,
        kind=kind,
        input=rng.integers(bounds[:, 0], bounds[:, 1] + 1),
        output=rng.integers(np.maximum(2, bounds[:, 2]), bounds[:, 3] + 1),
        accepts=accepts,
        coverage={"draft": np.ones(len(kinds)), "ngram": np.array([float(entry["coverage"]) for entry in kinds])},
        seed=int(rng.integers(2**31)),
    )


def _positions(kinds: list[Mapping[str, Any]], proposer: str, max_k: int) -> Array:
    return np.array([[entry[proposer][min(i, len(entry[proposer]) - 1)] for i in range(max_k)] for entry in kinds])


def families(scenarios: list[Scenario], *, limit: int | None = None) -> Iterator[tuple[str, list[Scenario]]]:
    """By family, in the order of the file; `limit`: only the first so many of each."""
    for name in dict.fromkeys(scenario.family for scenario in scenarios):
        yield name, [scenario for scenario in scenarios if scenario.family == name][:limit]
