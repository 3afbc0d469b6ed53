import { describe, expect, test } from "bun:test";
import { join } from "node:path";
import { gunzipSync, zstdDecompressSync } from "node:zlib";
import fc from "fast-check";
import { ROOT } from "../../../scripts/lib/paths.ts";
import { HearthError, systemClock } from "../../../src/core/index.ts";
import { TRACE_LIMITS } from "../../../src/workload/traces/index.ts";
import { LINE_FORMATS, type LineFormat, parseTraceLine } from "./line-formats.ts";

const SEED = 20_260_801;
const RUNS = 3_000;
/** The longest that any line may take. */
const LINE_MS_MAX = 1_000;

const FILES: Readonly<Record<LineFormat, string>> = {
  mooncake: "agent_logs.jsonl.gz",
  "claude-sessions": "claude_sessions.jsonl.zst",
  "claude-sessions-runs": "claude_sessions.runs.jsonl.gz",
  ragpulse: "ragpulse/0_trace.jsonl.gz",
  "ragpulse-pieces": "ragpulse/2_passages.jsonl.gz",
  dynamo: "dynamo.jsonl.gz",
  azure: "azure.csv",
};

async function linesOf(format: LineFormat): Promise<string[]> {
  const path = join(ROOT, "test/data/traces", FILES[format]);
  const bytes = Buffer.from(await Bun.file(path).bytes());
  const unpack = { gz: gunzipSync, zst: zstdDecompressSync }[path.split(".").at(-1)!];
  return (unpack?.(bytes) ?? bytes).toString().split("\n").filter(Boolean);
}

/** Whether the line was taken; whatever is thrown but a refusal is a failure of the test. */
function isTaken(format: LineFormat, text: string): boolean {
  try {
    parseTraceLine(format, text);
    return true;
  } catch (thrown) {
    if (thrown instanceof HearthError && thrown.code === "TRACE_INVALID") return false;
    throw thrown;
  }
}

/** A line with a few of its pieces replaced, dropped, repeated or swapped. */
const SPICE = [
  "-1",
  "1e999",
  "4294967296",
  "18446744073709551615",
  "99999999999999999999999",
  "null",
  "true",
  '"x"',
  "[]",
  "{}",
  "[[[[",
  '{"a":',
  "",
  "\\u0000",
  "0.1",
  ",",
  "\u2028",
  "__proto__",
];

function mutate(line: string, edits: readonly (readonly [number, number, number])[]): string {
  const pieces = line.match(/"[^"]*"|-?[\d.]+|[^\s\d"]|\s+/g) ?? [line];
  for (const [kind, where, spice] of edits) {
    const at = where % pieces.length;
    if (kind === 0) pieces[at] = SPICE[spice % SPICE.length]!;
    else if (kind === 1) pieces.splice(at, 1 + (spice % 4));
    else if (kind === 2) pieces.splice(at, 0, ...pieces.slice(at, at + 1 + (spice % 9)));
    else pieces[at] = pieces[spice % pieces.length]!;
    if (pieces.length === 0) return "";
  }
  return pieces.join("");
}

describe.each(LINE_FORMATS)("lines of %s", (format) => {
  test("are taken as published", async () => {
    for (const line of await linesOf(format)) expect(isTaken(format, line)).toBe(true);
  });

  test("are refused, or taken, but never crash when altered", async () => {
    const lines = await linesOf(format);
    const edit = fc.tuple(fc.nat(3), fc.nat(1_000_000), fc.nat(1_000));
    let refused = 0;
    fc.assert(
      fc.property(
        fc.nat(lines.length - 1),
        fc.array(edit, { minLength: 1, maxLength: 4 }),
        (at, edits) => {
          if (!isTaken(format, mutate(lines[at]!, edits))) refused++;
        },
      ),
      { seed: SEED, numRuns: RUNS },
    );
    expect(refused).toBeGreaterThan(RUNS / 10);
  });

  test("of any JSON or any text are refused", () => {
    fc.assert(
      fc.property(fc.oneof(fc.json(), fc.string({ unit: "binary" })), (text) => {
        expect(isTaken(format, text)).toBe(false);
      }),
      { seed: SEED, numRuns: 500 },
    );
  });
});

const size = TRACE_LIMITS.lineBytesMax - 100;
const filled = (piece: string, bytes = size) => piece.repeat(Math.floor(bytes / piece.length));
const keys = (count: number) => Array.from({ length: count }, (_, i) => `"${i.toString(36)}":1`);

/** Lines as dear as the limits allow, and lines beyond them. */
const DEAR: Record<string, string> = {
  "more numbers": `{"hash_ids":[${filled("1,")}1]}`,
  "more keys": `{${keys(800_000).join(",")}}`,
  "nested deeper": `{"requests":${filled("[")}`,
  "one long number": `{"timestamp":${filled("9")}}`,
  "one long text": `{"timestamp":"${filled("\\u0041")}"}`,
  "one long row": filled("1"),
  "dates and dates": filled("2023-11-16 18:17:03.9799600,"),
};
for (const name of ["line", "losslessLine"] as const) {
  const { values, strings, containers } = TRACE_LIMITS[name];
  const numbers = (name === "line" ? "999999," : "18446744073709551615,").repeat(values - 10);
  DEAR[`numbers to the limit of a ${name}`] = `{"hash_ids":[${numbers}1]}`;
  DEAR[`keys to the limit of a ${name}`] = `{${keys(strings - 10).join(",")}}`;
  DEAR[`lists to the limit of a ${name}`] = `{"requests":[${"[],".repeat(containers - 10)}1]}`;
  DEAR[`lists in lists of a ${name}`] = `{"requests":${"[".repeat(containers - 10)}`;
}

describe.each(Object.entries(DEAR))("a line of %s", (_name, text) => {
  test.each(LINE_FORMATS)("costs little as %s", (format) => {
    let fastest = Number.POSITIVE_INFINITY;
    // The best of ten: the bound is on the work, not on what else the machine does.
    for (let i = 0; i < 10 && fastest > LINE_MS_MAX; i++) {
      const before = systemClock.monotonicMs();
      expect(isTaken(format, text)).toBe(false);
      fastest = Math.min(fastest, systemClock.monotonicMs() - before);
    }
    expect(fastest).toBeLessThan(LINE_MS_MAX);
  });
});
