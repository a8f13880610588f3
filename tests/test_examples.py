"""The examples of CONTRIBUTING.md run."""

import importlib.util
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pytest
import torch
from pyarrow import orc
from support.engines import drain, make_engine, make_requests, plan
from support.fake_workers import InProcessBackend, make_job, outputs
from support.small_models import make_small_model

from specpipe.core import CostPoint, SpeculationPlan
from specpipe.data import list_files, read_rows
from specpipe.data.reading import input_files, table_formats
from specpipe.engine.engine import Engine
from specpipe.engine.forward.attention_interface import register
from specpipe.models.loader import load_model
from specpipe.models.source import resolve
from specpipe.pipeline.run.run import execute
from specpipe.simulator.scenarios import load_scenarios
from specpipe.simulator.simulation import simulate
from specpipe.speculation.estimates.acceptance import Acceptance
from specpipe.speculation.estimates.policy_inputs import PolicyInputs
from specpipe.speculation.estimates.round_costs import RoundCosts
from specpipe.speculation.policies.policy import Policy

EXAMPLES = Path(__file__).parents[1] / "docs/examples"
GOOD = Acceptance(rates=(0.9,), weights=(1000.0,))


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> torch.nn.Module:
    register()
    source = resolve(str(make_small_model("llama", tmp_path_factory.mktemp("model"), seed=1)), "target")
    return load_model(source, "cpu", torch.float32, "specpipe")


def tokens(engine: Engine, chosen: SpeculationPlan) -> list[tuple[int, ...]]:
    engine.submit(make_requests(5, vocab_size=engine.target.vocab_size), chosen)
    return [completion.token_ids for completion in drain(engine)]


def column_limit(column: list[int | None]) -> Policy:
    policy: Policy = example("policy").ColumnLimit.of(column, k=5, proposers=("ngram",))
    return policy


def test_custom_policy_changes_k_and_no_token(model: torch.nn.Module) -> None:
    fast = CostPoint(proposer="ngram", k=5, running=3, context=50, rounds=16, seconds=0.16)
    policy = column_limit([4, None, 2])
    chosen = policy.plan(
        PolicyInputs(slots=3, queue_depth=2.0, acceptance={"ngram": GOOD}, costs=RoundCosts().with_points([fast]))
    )
    assert policy.max_k == max(chosen.ks) == 2
    plain = tokens(make_engine(model, proposer="none"), plan(0, proposer="none"))
    assert tokens(make_engine(model, proposer="ngram", max_k=policy.max_k), chosen) == plain


@pytest.mark.parametrize(("column", "limit"), [([4, None, 2], 2), ([None], 5)])
def test_custom_policy_keeps_up_with_an_oracle_under_its_limit(column: list[int | None], limit: int) -> None:
    few_rows = next(one for one in load_scenarios() if one.family == "few rows")
    policy = example("policy").ColumnLimit.of(column, k=few_rows.max_k, proposers=few_rows.proposers)
    accepts = {who: rates[:, :limit] for who, rates in few_rows.accepts.items()}
    result = simulate(replace(few_rows, max_k=limit, accepts=accepts), policy=policy)
    assert policy.max_k == limit >= result.fixed_k > 0
    assert result.against_oracle < 0.03


def test_custom_proposer_drafts_and_loses_no_row(model: torch.nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = tokens(make_engine(model, proposer="none"), plan(0, proposer="none"))
    monkeypatch.setattr("specpipe.engine.proposers.make_proposers.NGramProposer", example("proposer").Repeat)
    engine = make_engine(model, proposer="ngram")
    engine.submit(make_requests(5, vocab_size=engine.target.vocab_size), plan(3, proposer="ngram"))
    completions = drain(engine)
    assert [completion.token_ids for completion in completions] == plain
    assert sum(completion.draft_tokens for completion in completions) > 5 * 15  # it always has three to offer


def test_custom_format_is_planned_read_and_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(table_formats.FORMATS, "orc", example("dataset_format").ORC)
    monkeypatch.setitem(input_files._EXTENSIONS, "orc", "orc")
    prompts = [f"prompt {i}" for i in range(3000)]
    table = pa.table({"n": range(3000), "prompt": prompts})
    orc.write_table(table, tmp_path / "rows.orc", stripe_size=1, batch_size=500)
    assert orc.ORCFile(tmp_path / "rows.orc").nstripes > 1
    (file,) = list_files(str(tmp_path / "rows.orc"))
    assert (file.rows, file.columns) == (3000, ("n", "prompt"))
    read = [row.values for row in read_rows(file, 1490, 1510, ["prompt", "none"])]
    assert read == [{"prompt": prompt} for prompt in prompts[1490:1510]]
    changes = [f"data.path={tmp_path}/rows.orc", "data.limit=24", "output.keep_columns=n"]
    assert execute(make_job(tmp_path, *changes), backend=InProcessBackend()).state == "complete"
    assert outputs(tmp_path / "out")["n"].to_pylist() == list(range(24))
