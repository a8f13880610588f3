"""What `specpipe bench engine` has measured, in lines for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specpipe.benchmark.decode_throughput import Measured
    from specpipe.benchmark.round_profile import RoundProfile
    from specpipe.benchmark.start_up_time import StartUp


def start_line(started: StartUp) -> str:
    return (
        f"first token after {started.total_s:.1f} s: import {started.import_s:.1f}, weights and KV memory "
        f"{started.build_s:.1f}, graphs {started.prepare_s:.1f}, one row {started.first_token_s:.1f}"
    )


def measured_line(measured: Measured) -> str:
    phases = ", ".join(f"{phase} {ms:.2f}" for phase, ms in measured.phases_ms.items())
    return (
        f"B={measured.batch:<4} K={measured.k:<2} {measured.decode_tokens_per_s:10,.0f} tok/s   "
        f"acceptance length {measured.acceptance_length:.2f}   round {measured.round_ms:.3f} ms ({phases}), "
        f"idle {measured.idle_share:.1%}"
    )


def profile_table(found: RoundProfile, most: int = 30) -> str:
    head = f"  {found.rounds} rounds of {found.round_us:,.0f} µs, idle {found.idle_share:.1%}"
    lines = [head, "  us/round  share  calls/round  kernel"]
    shown, rest = found.kernels[:most], found.kernels[most:]
    lines += [f"  {k.us:8.1f}  {k.share:5.1%}  {k.calls:11.1f}  {k.name[:100]}" for k in shown]
    if rest:
        us, share, calls = (sum(getattr(k, name) for k in rest) for name in ("us", "share", "calls"))
        lines.append(f"  {us:8.1f}  {share:5.1%}  {calls:11.1f}  {len(rest)} others")
    return "\n".join(lines)
