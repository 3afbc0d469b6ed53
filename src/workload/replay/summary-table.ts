import { formatBytes } from "../../core/index.ts";
import type { ReplaySummary } from "./tally.ts";

/**
 * Prompt tokens a GPU prefills in a second, for "what it would have saved": about what one H100
 * does with an 8B model. Change it with --prefill-rate.
 */
export const PREFILL_TOKENS_PER_S = 20_000;

/** The summary as people read it. */
export function formatSummary(summary: ReplaySummary, prefillTokensPerS: number): string {
  const saved = summary.tokens_hit / prefillTokensPerS;
  const percent = (part: number, whole: number) =>
    whole === 0 ? "-" : `${((100 * part) / whole).toFixed(2)} %`;
  const rows: [string, string][] = [
    ["requests", count(summary.requests)],
    ["blocks asked", count(summary.blocks_asked)],
    [
      "blocks hit",
      `${count(summary.blocks_hit)} (${percent(summary.blocks_hit, summary.blocks_asked)})`,
    ],
    ["blocks written", count(summary.blocks_written)],
    ["blocks without room", count(summary.blocks_full)],
    ...refusedRow(summary),
    ["wrong bytes", count(summary.wrong_bytes)],
    ["read", `${formatBytes(summary.bytes_read)} at ${summary.get_gbps} GB/s`],
    ["written", `${formatBytes(summary.bytes_written)} at ${summary.put_gbps} GB/s`],
    ["acquire", `p50 ${summary.acquire_p50_us} us, p99 ${summary.acquire_p99_us} us`],
    [
      "prefill saved",
      `${count(summary.tokens_hit)} of ${count(summary.tokens_asked)} tokens ` +
        `(${percent(summary.tokens_hit, summary.tokens_asked)})`,
    ],
    [
      "",
      `about ${duration(saved)} of GPU time at ${count(prefillTokensPerS)} tokens/s, ` +
        `in ${duration(summary.seconds)}`,
    ],
  ];
  const width = Math.max(...rows.map(([name]) => name.length));
  return rows.map(([name, value]) => `  ${name.padEnd(width)}  ${value}`).join("\n");
}

/** Shown only where it happened. */
function refusedRow({ blocks_rejected, block_bytes }: ReplaySummary): [string, string][] {
  if (blocks_rejected === 0) return [];
  const why = `too many slots held, or ${formatBytes(block_bytes)} too long for this agent`;
  return [["blocks refused", `${count(blocks_rejected)} (${why})`]];
}

function count(value: number): string {
  return value.toLocaleString("en-US");
}

function duration(seconds: number): string {
  if (seconds < 120) return `${seconds.toFixed(1)} s`;
  return `${(seconds / 60).toFixed(1)} min`;
}
