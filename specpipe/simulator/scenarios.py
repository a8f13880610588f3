"""Scenarios of the simulator: true costs of rounds, true acceptance, and the arrival of rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml

from specpipe.arrays import Array
from specpipe.core import EngineConfig, ProposerName, Request, SamplingParams
from specpipe.engine.rounds.profiled_rounds import PROFILED_CONTEXT
from specpipe.errors import JobError
from specpipe.simulator.machine import Machine, read_machine

LEAST_ROUNDS = 250
"""Approximate number of rounds of a scenario in which every round drafts max K tokens."""
BUILT_IN = Path(__file__).with_name("scenarios.yaml")


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """One run of one worker. Rows arrive in shards, in order. Shapes: R rows, D kinds of rows."""

    family: str
    index: int
    machine: Machine
    slots: int
    max_k: int
    proposers: tuple[ProposerName, ...]
    refill: float
    """Share of busy slots at or below which the next shard arrives; 1: rows always wait."""
    shard: npt.NDArray[np.int64]
    """[R] shard of each row, ascending."""
    kind: npt.NDArray[np.int64]
    """[R] kind of each row, an index into `accepts` and `coverage`."""
    input: npt.NDArray[np.int64]
    """[R] prompt tokens."""
    output: npt.NDArray[np.int64]
    """[R] generated tokens, at least 2."""
    accepts: Mapping[ProposerName, Array]
    """[D, max K] conditional acceptance by position."""
    coverage: Mapping[ProposerName, Array]
    """[D] share of rounds that have a draft."""
    seed: int
    neighbours: bool = False
    """Bursts of load on the machine double the seconds of rounds."""
    slow_first_rounds: bool = False
    """The first rounds of a shape take ten times as long."""
    cache: str = "empty"
    """Costs that earlier runs have left: "empty", "slower machine" or "one slow round"."""
    profile: str = "whole"
    """Start-up profile of the worker: "whole", "slow plain rounds" or "none"."""
    prefill_budget: int = 2**20
    """Largest number of tokens that each model prefills in a step. Enough for all slots by default: where the target's
    prefill takes no time, a limit would only leave slots empty."""

    @property
    def plain_round_s(self) -> float:
        """Seconds of a plain round with all slots."""
        return self.machine.seconds("none", 0, self.slots, float(PROFILED_CONTEXT))

    @property
    def engine_config(self) -> EngineConfig:
        """Configuration of the engine. One KV page holds a row."""
        longest = int(self.input.max() + self.output.max())
        return EngineConfig(
            slots=self.slots,
            max_model_len=longest,
            max_k=self.max_k,
            proposer="auto",
            prefill_budget=self.prefill_budget,
            prefix_sharing=False,
            page_size=longest + self.max_k + 1,
        )

    def requests(self) -> list[list[Request]]:
        """Returns the rows by shard. All have the limit of the longest one; `seed` is the row."""
        sampling = SamplingParams(max_new_tokens=int(self.output.max()))
        prompts = {tokens: (0,) * tokens for tokens in set(self.input.tolist())}
        shards: list[list[Request]] = [[] for _ in range(int(self.shard[-1]) + 1)]
        for row, (shard, tokens) in enumerate(zip(self.shard.tolist(), self.input.tolist(), strict=True)):
            shards[shard].append(
                Request(
                    request_id=str(row),
                    shard=shard,
                    row=row,
                    prompt="",
                    prompt_token_ids=prompts[tokens],
                    sampling=sampling,
                    seed=row,
                )
            )
        return shards


def load_scenarios(path: str | None = None, *, seed: int | None = None, count: int | None = None) -> list[Scenario]:
    """Returns the scenarios of a file, by default of the one in the package. Raises JobError for an invalid file.

    seed: replaces the seed of the file; other scenarios of the same families result. count: replaces the number of
    scenarios of each family.
    """
    source = path or str(BUILT_IN)
    try:
        data = yaml.safe_load(Path(source).read_text(encoding="utf-8"))
        folder = Path(source).parent
        machines = {name: read_machine(values, folder) for name, values in data["machines"].items()}
        out = []
        for place, (name, family) in enumerate(data["families"].items()):
            for index in range(count or int(family["count"])):
                rng = np.random.default_rng([int(data["seed"]) if seed is None else seed, place, index])
                out.append(_scenario(name, index, family, machines, data, rng))
    except OSError as error:
        raise JobError(f"{error.filename or source} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise JobError(
            f"{source} is not a valid scenario file: {what}. Expected machines, datasets and families as in {BUILT_IN}"
        ) from None
    return out


def _one(rng: np.random.Generator, values: Any) -> Any:
    """Returns a random entry of a list, or a value that is no list."""
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
    kind = rng.integers(len(kinds), size=rows) if _one(rng, family.get("mixed")) else shard % len(kinds)
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
        neighbours=bool(family.get("neighbours", False)),
        slow_first_rounds=bool(family.get("slow_first_rounds", False)),
        cache=str(family.get("cache", "empty")),
        profile=str(family.get("profile", "whole")),
    )


def _positions(kinds: list[Mapping[str, Any]], proposer: str, max_k: int) -> Array:
    return np.array([[entry[proposer][min(i, len(entry[proposer]) - 1)] for i in range(max_k)] for entry in kinds])


def families(
    scenarios: list[Scenario], *, limit: int | None = None, only: Sequence[str] = ()
) -> Iterator[tuple[str, list[Scenario]]]:
    """Yields the scenarios by family, in the order of the file.

    limit: scenarios per family; only: names of families, all if empty. Raises JobError for a name that is no family.
    """
    names = list(dict.fromkeys(scenario.family for scenario in scenarios))
    if unknown := set(only) - set(names):
        raise JobError(f"no family is called {', '.join(sorted(unknown))}; expected some of: {', '.join(names)}")
    for name in (name for name in names if not only or name in only):
        yield name, [scenario for scenario in scenarios if scenario.family == name][:limit]
