"""Totals of a run as one table of at most 80 columns, for `specpipe run` and `specpipe show`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from specpipe.cli.run_display import duration, rate

if TYPE_CHECKING:
    from specpipe.pipeline.run.run import RunResult

_MAX_WIDTH = 80


def print_result(result: RunResult, max_failed_rows: int) -> None:
    """Prints the totals of a finished run, and what the user can do next."""
    console = Console()
    print_summary({**result.summary, "state": result.state}, title=result.folder, console=console, wall_s=result.wall_s)
    console.print("Outputs: outputs/*.parquet. Report with plots: report.html.", highlight=False)
    failed = result.summary["failed"]
    if result.state == "already complete":
        console.print("The run was already complete; nothing was run.", highlight=False)
    if not result.summary["complete"]:
        console.print("Run it again to resume; published shards are not run again.", highlight=False)
    if failed > max_failed_rows:
        rows = f"{failed:,} row{'s' if failed > 1 else ''} failed"
        console.print(f"{rows}; output.max_failed_rows is {max_failed_rows:,}.", highlight=False)
        console.print("See the column error of the outputs; report.html has examples.", highlight=False)
        console.print("Run it again with --retry-failed to retry only these rows.", highlight=False)


def print_summary(
    summary: Mapping[str, Any], *, title: str, console: Console | None = None, wall_s: float = 0.0
) -> None:
    """Prints the contents of summary.json as a table. wall_s: seconds of the start that ended just now; 0: none."""
    console = console or Console()
    table = Table(box=box.SIMPLE_HEAD, show_header=False, width=min(_MAX_WIDTH, console.width), pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    for section in (_rows(summary), _speed(summary), _speculation(summary), _time(summary, wall_s)):
        for name, value in section:
            table.add_row(Text(name, style="dim"), value)
        table.add_section()
    heading = Text.assemble((title, "bold"), "  ", (str(summary["state"]), _style(summary)))
    if summary["synthetic"]:
        heading.append("  SYNTHETIC ACCEPTANCE: the outputs are not usable text", style="bold red")
    console.print(heading, soft_wrap=True)
    console.print(table)


def _style(summary: Mapping[str, Any]) -> str:
    return "green" if summary["complete"] else "yellow"


def _rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    done = summary["completed"] + summary["failed"]
    rows = [
        ("rows", f"{done:,} of {summary['total_rows']:,}" + _if_any(summary["failed"], ", {:,} failed")),
        ("shards", f"{summary['published_shards']:,} of {summary['total_shards']:,}" + _starts(summary)),
        (
            "tokens",
            f"{summary['total_input_tokens']:,} in"
            + _if_any(summary["total_cached_tokens"], " ({:,} of them shared)")
            + f", {summary['total_output_tokens']:,} out"
            + _if_any(summary.get("total_scored_tokens", 0), ", {:,} scored"),
        ),
    ]
    for shard, reason in list(summary["failed_shards"].items())[:3]:
        rows.append((f"shard {shard} failed", str(reason).splitlines()[0]))
    return rows


def _starts(summary: Mapping[str, Any]) -> str:
    return f", in {summary['starts']} starts" if summary["starts"] > 1 else ""


def _if_any(count: int, text: str) -> str:
    return text.format(count) if count else ""


def _speed(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = []
    if summary.get("total_scored_tokens"):
        speed = f"{summary['scored_throughput']:,.1f} scored tok/s, {summary['input_throughput']:,.1f} prompt tok/s"
        rows.append(("scores", speed))
    if not summary["total_output_tokens"] and rows:
        return rows
    return [
        *rows,
        (
            "throughput",
            f"{rate(summary['output_throughput'])} output tok/s (peak {rate(summary['peak_output_throughput'])}), "
            f"{summary['request_throughput']:,.2f} rows/s",
        ),
        ("time to first token", _latency(summary, "ttft")),
        ("time per output token", _latency(summary, "tpot")),
        ("inter-token latency", _latency(summary, "itl")),
        *([("uncompiled forwards", f"{uncompiled:,}")] if (uncompiled := summary.get("uncompiled_forwards")) else []),
    ]


def _latency(summary: Mapping[str, Any], name: str) -> str:
    mean, median, p99 = (summary[f"{kind}_{name}_ms"] for kind in ("mean", "median", "p99"))
    return f"{mean:,.1f} ms mean, {median:,.1f} median, {p99:,.1f} P99"


def _speculation(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    drafts = summary["spec_decode_num_drafts"]
    if not drafts:
        return [("speculation", "none: plain decoding")]
    return [
        (
            "acceptance length",
            f"{summary['spec_decode_acceptance_length']:.2f} "
            f"({summary['spec_decode_acceptance_rate']:.1%} of {summary['spec_decode_draft_tokens']:,} draft tokens)",
        ),
        ("  by position", _rates(summary["spec_decode_per_position_acceptance_rates"])),
        ("  if reached", _rates(summary["spec_decode_per_position_conditional_rates"])),
        *_sources(summary),
        ("K of row-rounds", _histogram(summary["k_histogram"])),
        *_tuning(summary),
    ]


def _sources(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns acceptance by source, where drafts came from several or from earlier answers."""
    sources: Mapping[str, Any] = summary.get("spec_decode_by_source", {})
    if not sources.keys() - {"draft", "ngram"} and len(sources) < 2:
        return []
    rows = [
        (f"  {name}", f"{found['acceptance_length']:.2f} ({found['acceptance_rate']:.1%} of {found['draft_tokens']:,})")
        for name, found in sources.items()
    ]
    if followed := summary["total_followed_tokens"]:
        rows.append(("followed", f"{followed / summary['total_output_tokens']:.1%} of the output"))
    return rows


def _tuning(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = []
    if summary["expected_tokens_per_s"]:
        realised = f"measured {rate(summary['engine_tokens_per_s'])} tok/s, prefill included"
        rows.append(("expected in rounds", f"{rate(summary['expected_tokens_per_s'])} tok/s; {realised}"))
        rows.append(("latest plan", summary["plan_reason"]))
    if summary["useless_draft"]:
        rows.append(("useless draft", summary["useless_draft"]))
    return rows


def _rates(rates: Sequence[float]) -> str:
    shown = " ".join(f"{rate:.2f}" for rate in rates[:10])
    return shown + (" …" if len(rates) > 10 else "")


def _histogram(rows: Mapping[str, int]) -> str:
    total = sum(rows.values())
    shares = {k: count / total for k, count in rows.items()}
    return ", ".join(f"K={k} {share:.0%}" for k, share in shares.items() if share >= 0.005)


def _time(summary: Mapping[str, Any], wall_s: float) -> list[tuple[str, str]]:
    phases = {phase: seconds for phase, seconds in summary["phase_seconds"].items() if phase != "load"}
    busy = sum(phases.values())
    split = ", ".join(f"{phase} {seconds / busy:.0%}" for phase, seconds in phases.items() if busy and seconds)
    rows = [("time", f"{duration(wall_s)}, with start-up")] if wall_s else []
    rows.append(("  rows running", duration(summary["duration_s"]) + (f" ({split})" if split else "")))
    devices = ", ".join(summary["devices"])
    count = len([worker for worker in summary["workers"].values() if worker["shards"]])
    if devices:
        rows.append(("workers", f"{count} on {devices}"))
    weights: Mapping[str, str] = next(
        (worker["weights"] for worker in summary["workers"].values() if "weights" in worker), {}
    )
    rows += [(f"{role} weights", text) for role, text in weights.items()]
    if any(str(worker.get("kv_dtype")).startswith("float8") for worker in summary["workers"].values()):
        rows.append(("KV pages", "8 bits"))
    return rows
