"""Tests of the dry run: sampling, stop conditions, dtype and memory."""

import dataclasses
import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console
from support.fake_workers import make_job, real_models
from support.quantized_checkpoints import write_checkpoint

from specpipe.cli.plan_table import describe_endings, describe_sampling, print_plan
from specpipe.core.host_memory import CPU_MEMORY_SHARE, cpu_kv_budget, total_memory
from specpipe.errors import JobError, MachineError, ModelError, OutputError
from specpipe.models.quantization.planned_weights import PlannedWeights
from specpipe.pipeline.job_check import (
    PROCESS_BYTES,
    MemoryNeed,
    faster_dtype,
    faster_length,
    fit_copies,
    kv_budget,
    memory_need,
)
from specpipe.pipeline.prepare import prepare
from specpipe.pipeline.run.dry_run import RunPlan, plan_run
from specpipe.pipeline.run.prompt_tokens import PromptTokens

AUTHORS = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "eos_token_id": [7, 9]}


def plan(folder: Path, *overrides: str, generation: object = AUTHORS) -> RunPlan:
    job = make_job(folder, *overrides)
    real_models(folder)
    (folder / "target/generation_config.json").write_text(json.dumps(generation))
    return plan_run(job)


def need_of(folder: Path) -> MemoryNeed:
    job = make_job(folder)
    real_models(folder)
    return memory_need(prepare(job), "float32", "cpu")


def test_recommended_sampling_is_shown_but_not_used(tmp_path: Path) -> None:
    found = plan(tmp_path)
    assert found.sampling.greedy and found.eos_token_ids == (7, 9)
    assert describe_sampling(found) == (
        "greedy, up to 10 new tokens; the model's authors recommend temperature 0.6, top_k 50, top_p 0.9 "
        "(sampling.defaults: model)"
    )
    assert describe_endings(found) == "token 7, 9"


def test_defaults_model_uses_recommended_sampling(tmp_path: Path) -> None:
    found = plan(tmp_path, "sampling.defaults=model", "sampling.top_k=0")
    assert describe_sampling(found) == (
        "temperature 0.6, top_k 0, top_p 0.9, min_p 0, up to 10 new tokens; "
        "the model's authors recommend top_k 50 (sampling.defaults: model)"
    )


def test_jobs_that_cannot_run_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"max_model_len is 99999999, but model .* takes at most 200 positions"):
        plan(tmp_path, "model.max_model_len=99999999")
    with pytest.raises(OutputError, match="/proc/out cannot be written: /proc is not a folder that this user can"):
        plan(tmp_path, "output.path=/proc/out")
    job = make_job(tmp_path)
    real_models(tmp_path)
    tokenizer = json.loads((tmp_path / "draft/tokenizer.json").read_text())
    tokenizer["added_tokens"] += [{**tokenizer["added_tokens"][-1], "id": 5000, "content": "<more>"}]
    (tmp_path / "draft/tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ModelError, match="their vocabularies differ first at id"):
        plan_run(job)


def test_workers_that_do_not_fit_into_memory_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        MachineError, match=r"9,000 worker\(s\) with 3 slots need .* GiB, .* are free. Lower workers.count"
    ):
        plan(tmp_path, "workers.count=9000", "workers.cpus_per_worker=0.0001")
    with pytest.raises(MachineError, match=r"with 65,536 slots need .* GiB, of which .* slots without their KV"):
        plan(tmp_path, "workers.slots=65536", "speculation.num_speculative_tokens=32", "workers.count=50")
    for key in ("workers.slots", "sampling.n", "workers.count"):
        with pytest.raises(JobError, match=f"{key} is 1000000000"):
            make_job(tmp_path, f"{key}=1000000000")


def test_kv_memory_of_a_cpu_worker_is_what_the_engine_allocates(tmp_path: Path) -> None:
    found = plan(tmp_path)
    assert found.kv_budget == found.kv_bytes
    assert cpu_kv_budget() <= CPU_MEMORY_SHARE * total_memory()
    assert cpu_kv_budget(weights=10 * total_memory()) == 0


def test_more_slots_than_memory_get_the_kv_pages_that_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specpipe.pipeline.job_check.cpu_kv_budget", lambda **_: 3 << 20)
    found = plan(tmp_path, "workers.slots=60000")
    assert found.kv_bytes > found.kv_budget == 3 << 20
    shown = io.StringIO()
    print_plan("job", found, Console(file=shown, width=200))
    assert re.search(r"60000 slots each.*3\.0 MiB of \d.* for KV pages", shown.getvalue(), re.DOTALL)


def test_loading_in_another_dtype_needs_the_mapped_file_beside_it(tmp_path: Path) -> None:
    same, converted = plan(tmp_path, "model.dtype=bfloat16"), plan(tmp_path)
    weights = converted.weights["target"]
    assert same.weights["target"].mapped == 0 and 2 * weights.mapped == weights.bytes == 4 * 4_525_312
    need = need_of(tmp_path)
    assert converted.process_bytes == need.process_bytes(converted.kv_bytes) > PROCESS_BYTES + converted.kv_bytes
    need = dataclasses.replace(need, weights={"target": PlannedWeights("float32", 600, 300)})
    assert need.loading_bytes == PROCESS_BYTES + 900
    pair = {"target": PlannedWeights("float32", 600, 300), "draft": PlannedWeights("float32", 400, 200)}
    assert dataclasses.replace(need, weights=pair).loading_bytes == PROCESS_BYTES + 1200


def test_bfloat16_is_advised_where_a_cpu_is_fast_at_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specpipe.pipeline.job_check.has_bf16_products", lambda: True)
    need = need_of(tmp_path)
    assert faster_dtype(need, "float32", "cpu") == ""  # too small to be sure
    large = dataclasses.replace(need, weights={"target": PlannedWeights("float32", 2 << 30)})
    assert "model.dtype: bfloat16 is about 2.4 times as fast" in faster_dtype(large, "float32", "cpu")
    assert "near-ties" in faster_dtype(large, "float32", "cpu")
    assert faster_dtype(large, "bfloat16", "cpu") == faster_dtype(large, "float32", "cuda") == ""
    monkeypatch.setattr("specpipe.pipeline.job_check.has_bf16_products", lambda: False)
    assert faster_dtype(large, "float32", "cpu") == ""


def test_workers_that_do_not_fit_onto_a_gpu_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specpipe.pipeline.run.dry_run.visible_gpus", lambda: 2)
    monkeypatch.setattr("specpipe.pipeline.job_check.gpu_memory", lambda: 1 << 10)
    with pytest.raises(MachineError, match=r"a worker with 3 slots needs .* GiB.* weights .*; its GPU has 0\.0 GiB"):
        plan(tmp_path, "workers.count=1", "model.device=cuda")
    monkeypatch.setattr("specpipe.pipeline.job_check.gpu_memory", lambda: 80 << 30)
    assert plan(tmp_path, "workers.count=2", "model.device=cuda").workers == 2
    with pytest.raises(MachineError, match=r"workers.count is 3 and this machine has 2 GPU\(s\)"):
        plan(tmp_path, "workers.count=3", "model.device=cuda")
    monkeypatch.setenv("RAY_ADDRESS", "cluster:6379")  # of unknown size
    assert plan(tmp_path, "workers.count={min: 8, max: 12}", "model.device=cuda").workers == 12


def test_copies_get_the_memory_that_kv_pages_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    gib = 1 << 30
    weights = {
        "target": PlannedWeights("4 bits", 36 * gib, copies=137 * gib),
        "draft": PlannedWeights("4 bits", gib, copies=2 * gib),
    }
    need = MemoryNeed(max_model_len=1024, weights=weights, kv_bytes=22 * gib, slot_bytes=0)

    def copies(memory: int) -> list[float]:
        monkeypatch.setattr("specpipe.pipeline.job_check.gpu_memory", lambda: memory * gib)
        found = fit_copies(need)
        assert found.weight_bytes == need.weight_bytes and found.kv_bytes == need.kv_bytes
        advice = faster_length(need, found)
        assert advice == "" if found.copy_bytes else "a lower model.max_model_len (1,024) leaves GPU memory" in advice
        return [one.copies / gib for one in found.weights.values()]

    assert copies(0) == [137, 2], "no GPU here"
    assert copies(141) == [pytest.approx(0.95 * (141 - 4 - 37) - 22 - 2), 2]
    assert copies(66) == [0, pytest.approx(0.95 * (66 - 4 - 37) - 22)]
    assert copies(48) == [0, 0]
    assert kv_budget(need, "cuda", 1) / gib == pytest.approx(0.95 * (48 - 4 - 37)), "the rest holds fewer rows at once"
    assert copies(0) and kv_budget(need, "cuda", 1) == need.kv_bytes


def test_plan_states_dense_copies_of_4_bit_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specpipe.pipeline.run.dry_run.visible_gpus", lambda: 1)
    monkeypatch.setattr("specpipe.pipeline.job_check.gpu_memory", lambda: 80 << 30)
    model = write_checkpoint(tmp_path / "model", "awq").folder
    job = make_job(tmp_path, f"model.target={model}", f"model.draft={model}", "model.device=cuda", "workers.count=1")
    found = plan_run(job)
    entries = 2 * (256 * (256 + 64 + 64 + 256) + 3 * 256 * 320)  # of two layers
    assert found.copy_bytes == 2 * 2 * entries
    shown = io.StringIO()
    print_plan("job", found, Console(file=shown, width=200))
    assert f"{2 * 2 * entries / 2**20:.1f} MiB dense copies" in shown.getvalue()


def test_penalties_and_logprobs_are_shown(tmp_path: Path) -> None:
    model = {"do_sample": False, "repetition_penalty": 1.1}
    found = plan(tmp_path, "sampling.defaults=model", "sampling.logprobs=2", generation=model)
    assert describe_sampling(found) == "greedy, repetition_penalty 1.1, logprobs 2, up to 10 new tokens"


def test_changed_recommendation_changes_the_identity(tmp_path: Path) -> None:
    plan(tmp_path)
    job = make_job(tmp_path, "sampling.defaults=model")
    before = prepare(job).identity
    (tmp_path / "target/generation_config.json").write_text(json.dumps({**AUTHORS, "temperature": 0.7}))
    after = prepare(job).identity
    assert (before["sampling.temperature"], after["sampling.temperature"]) == (0.6, 0.7)


def test_stop_conditions_are_described(tmp_path: Path) -> None:
    assert describe_endings(plan(tmp_path, "sampling.stop_token_ids=3", "sampling.stop=END")) == "token 7, 9, 3; 'END'"
    replaced = plan(tmp_path, "sampling.ignore_eos=true", "sampling.stop_token_ids=[3]")
    assert describe_endings(replaced) == "token 3"
    assert describe_endings(plan(tmp_path, "sampling.ignore_eos=true")) == "max_new_tokens alone"
    assert describe_endings(plan(tmp_path, generation={})) == "the tokenizer's end of sequence"


def test_unsupported_recommendation_fails_only_with_defaults_model(tmp_path: Path) -> None:
    generation = {"do_sample": True, "no_repeat_ngram_size": 3}
    assert plan(tmp_path, generation=generation).recommended == {}
    with pytest.raises(ModelError, match="sets no_repeat_ngram_size to 3"):
        plan(tmp_path, "sampling.defaults=model", generation=generation)


def test_samples_and_min_tokens_are_shown(tmp_path: Path) -> None:
    found = plan(tmp_path, "sampling.n=3", "sampling.min_tokens=2", "sampling.defaults=specpipe", generation={})
    assert (found.rows, found.samples) == (72, 3)
    assert describe_sampling(found) == "greedy, 2 to 10 new tokens"
    console = Console(width=80, file=io.StringIO())
    print_plan("job", found, console)
    assert "72, 3 samples of each prompt, in 1 file(s)" in console.file.getvalue()


def test_dtype_and_memory_are_those_of_the_workers_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specpipe.pipeline.run.dry_run.visible_gpus", lambda: 0)
    monkeypatch.setenv("RAY_ADDRESS", "cluster:6379")  # its machines may have GPUs, unlike this one

    def found(device: str, kv_dtype: str = "auto", **latent: int) -> RunPlan:
        job = make_job(
            tmp_path,
            f"model.device={device}",
            f"model.kv_dtype={kv_dtype}",
            "workers.count=1",
            "sampling.defaults=specpipe",
        )
        real_models(tmp_path, **latent)
        return plan_run(job)

    cpu, cuda = found("cpu"), found("cuda")
    assert (cpu.device, cpu.dtype, cuda.device, cuda.dtype) == ("cpu", "float32", "cuda", "bfloat16")
    assert cpu.kv_bytes == 2 * cuda.kv_bytes > 0
    assert found("cpu", "fp8").kv_bytes == found("cuda", "fp8").kv_bytes == cuda.kv_bytes // 2
    latent = found("cuda", kv_lora_rank=8, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16)
    assert 4 * (32 + 32) * latent.kv_bytes == 8 * (16 + 8 + 16) * cuda.kv_bytes, "keys and values of every head"
    assert cpu.weight_bytes == 2 * cuda.weight_bytes > 0


@pytest.mark.parametrize("share", [True, False])
def test_plan_states_prompt_tokens_and_those_that_are_shared(tmp_path: Path, share: bool) -> None:
    make_job(tmp_path)
    data = tmp_path / "shots.jsonl"
    rows = [{"prompt_token_ids": [7] * 100 + [i] * 30} for i in range(9)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = plan(tmp_path, f"data.path={data}", "workers.count=1", f"workers.prefix_sharing={share}".lower())
    assert found.prompts == PromptTokens(total=9 * 130, shared=8 * (100 // 16) * 16 if share else 0)
    shown = io.StringIO()
    print_plan("job", found, Console(file=shown, width=200))
    assert re.search(
        "prompts +1,170 tokens, 768 of them shared" if share else "prompts +1,170 tokens\\s", shown.getvalue()
    )
