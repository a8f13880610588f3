"""The report of a run in the form of serving benchmarks: the same figures, names and order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_WIDTH = 50


def benchmark_report(summary: Mapping[str, Any]) -> str:
    """Returns the report. summary: the content of summary.json. Latencies are in milliseconds, throughputs a second."""
    lines = [
        f"{' Serving Benchmark Result ':=^{_WIDTH}}",
        _line("Successful requests:", summary["completed"]),
        _line("Failed requests:", summary["failed"]),
        _line("Maximum request concurrency:", summary["max_concurrency"]),
        _line("Benchmark duration (s):", summary["duration_s"]),
        _line("Total input tokens:", summary["total_input_tokens"]),
        _line("Total generated tokens:", summary["total_output_tokens"]),
        _line("Request throughput (req/s):", summary["request_throughput"]),
        _line("Output token throughput (tok/s):", summary["output_throughput"]),
        _line("Peak output token throughput (tok/s):", summary["peak_output_throughput"]),
        _line("Peak concurrent requests:", summary["peak_concurrent_requests"]),
        _line("Total token throughput (tok/s):", summary["total_token_throughput"]),
    ]
    for title, name in (
        ("Time to First Token", "ttft"),
        ("Time per Output Token (excl. 1st token)", "tpot"),
        ("Inter-token Latency", "itl"),
    ):
        lines.append(f"{title:-^{_WIDTH}}")
        lines += [
            _line(f"{label} {name.upper()} (ms):", summary[f"{label.lower()}_{name}_ms"])
            for label in ("Mean", "Median", "P99")
        ]
    if summary["spec_decode_num_drafts"]:
        lines += [
            f"{'Speculative Decoding':-^{_WIDTH}}",
            _line("Acceptance rate (%):", 100 * summary["spec_decode_acceptance_rate"]),
            _line("Acceptance length:", summary["spec_decode_acceptance_length"]),
            _line("Drafts:", summary["spec_decode_num_drafts"]),
            _line("Draft tokens:", summary["spec_decode_draft_tokens"]),
            _line("Accepted tokens:", summary["spec_decode_accepted_tokens"]),
            "Per-position acceptance (%):",
        ]
        rates = summary["spec_decode_per_position_acceptance_rates"]
        lines += [_line(f"  Position {i}:", 100 * rate) for i, rate in enumerate(rates)]
    return "\n".join([*lines, "=" * _WIDTH])


def _line(label: str, value: float) -> str:
    text = f"{value:d}" if isinstance(value, int) else f"{value:.2f}"
    return f"{label:<40}{text:<10}".rstrip()
