"""The plan of a run as a table, for `specpipe run --dry-run`."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from specpipe.pipeline.run.dry_run import RunPlan
from specpipe.pipeline.run.prompt_tokens import PromptTokens

_MAX_WIDTH = 80
_UNITS = ((10**12, " T"), (10**9, " G"), (10**6, " M"), (10**3, " k"))


def bytes_text(count: int) -> str:
    """Returns a number of bytes as text: 512 B, 1.5 KiB, 30 GiB."""
    amount, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if amount < 1024 or unit == "TiB":
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if amount >= 100 or unit == "B" else f"{amount:.1f} {unit}"


def describe_prompts(prompts: PromptTokens | None) -> str:
    """Returns the prompt tokens of a run and the shared ones: 1,480,211 tokens, 1,349,656 of them shared."""
    if prompts is None:
        return "not counted: the dataset cannot be read"
    show = _rounded if prompts.estimated else "{:,}".format
    shared = f", {show(prompts.shared)} of them shared" if prompts.shared else ""
    return f"{'about ' * prompts.estimated}{show(prompts.total)} tokens{shared}"


def _rounded(count: int) -> str:
    """Returns a number with three digits: 1.48 M."""
    amount, unit = next(((count / size, unit) for size, unit in _UNITS if count >= size), (float(count), ""))
    return f"{amount:.3g}{unit}"


def describe_sampling(plan: RunPlan) -> str:
    """Returns the sampling parameters in one line, and those that the model recommends if they differ."""
    sampling = plan.sampling
    method = "greedy" if sampling.greedy else f"temperature {sampling.temperature:g}"
    parameters = (
        [f"{name} {getattr(sampling, name):g}" for name in ("top_k", "top_p", "min_p")] if sampling.truncates else []
    )
    parameters += [
        f"{name} {value:g}"
        for name, off in (("repetition_penalty", 1), ("presence_penalty", 0), ("frequency_penalty", 0))
        if (value := getattr(sampling, name)) != off
    ]
    if sampling.logprobs is not None:
        parameters.append(f"logprobs {sampling.logprobs}")
    least = f"{sampling.min_tokens:,}" if sampling.min_tokens else "up"
    text = ", ".join([method, *parameters, f"{least} to {sampling.max_new_tokens:,} new tokens"])
    if not plan.recommended:
        return text
    recommended = ", ".join(f"{name} {value:g}" for name, value in plan.recommended.items())
    return f"{text}; the model's authors recommend {recommended} (sampling.defaults: model)"


def describe_endings(plan: RunPlan) -> str:
    """Returns the tokens and strings that end a row, in one line."""
    sampling = plan.sampling
    ids = () if sampling.ignore_eos else plan.eos_token_ids
    ids = tuple(dict.fromkeys((*ids, *sampling.stop_token_ids)))
    parts = [f"token {', '.join(map(str, ids))}"] if ids else []
    if not plan.eos_token_ids and not sampling.ignore_eos:
        parts.append("the tokenizer's end of sequence")
    return "; ".join([*parts, *map(repr, sampling.stop)]) or "max_new_tokens alone"


def _process(plan: RunPlan) -> str:
    """Returns the size of a CPU worker's process, for a line that continues with its parts; "" on a GPU."""
    if not plan.process_bytes:
        return ""
    more = plan.loading_bytes > plan.process_bytes
    loading = f" ({bytes_text(plan.loading_bytes)} while loading)" if more else ""
    return f"{bytes_text(plan.process_bytes)}{loading}: "


def print_plan(name: str, plan: RunPlan, console: Console | None = None) -> None:
    """Prints the plan of the job `name`."""
    console = console or Console()
    table = Table(box=box.SIMPLE_HEAD, show_header=False, width=min(_MAX_WIDTH, console.width), pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1, overflow="fold")
    speculation = f"{plan.policy}, K up to {plan.k}" if plan.k else "off: plain decoding"
    samples = f", {plan.samples:,} samples of each prompt," if plan.samples > 1 else ""
    done = f", {plan.done_shards:,} of them done" if plan.done_shards else ""
    pages = "KV pages in 8 bits" if plan.kv_dtype == "fp8" else "KV pages"
    kv = bytes_text(plan.kv_budget) + (f" of {bytes_text(plan.kv_bytes)} for" if plan.kv_budget < plan.kv_bytes else "")
    weights = f"{bytes_text(plan.weight_bytes)} weights"
    weights += f", {bytes_text(plan.copy_bytes)} dense copies" if plan.copy_bytes else ""
    for left, right in (
        ("rows", f"{plan.rows:,}{samples} in {plan.files:,} file(s)"),
        ("prompts", describe_prompts(plan.prompts)),
        ("shards", f"{plan.shards:,}{done}"),
        ("workers", f"{plan.workers:,} on {plan.device}, {plan.slots} slots each"),
        ("target", f"{plan.target} ({plan.weights['target'].describe()})"),
        *([("draft", f"{plan.draft} ({plan.weights['draft'].describe()})")] if plan.draft else []),
        ("speculation", speculation),
        *([("replay", plan.replay)] if plan.replay else []),
        ("memory a worker", f"{_process(plan)}{weights}, {kv} {pages}"),
        *([("faster", plan.faster)] if plan.faster else []),
        ("sampling", describe_sampling(plan)),
        ("ends at", describe_endings(plan)),
        ("longest row", f"{plan.max_model_len:,} tokens, prompt and output"),
        ("output", plan.output),
    ):
        table.add_row(Text(left, style="dim"), right)
    console.print(Text.assemble((name, "bold"), "  ", ("dry run: nothing was started", "yellow")))
    console.print(table)
