import { describe, expect, test } from "bun:test";
import { join } from "node:path";
import { ROOT } from "../../../scripts/lib/paths.ts";
import { type OpenTraceOptions, openTrace } from "../../../src/workload/traces/index.ts";
import { tempDir } from "../../support/index.ts";
import { allRequests, tally } from "./tally.ts";

const FIXTURES = join(ROOT, "test/data/traces");
const fixture = (name: string) => join(FIXTURES, name);
const native = { nativeBlocks: fixture("claude_sessions.runs.jsonl.gz") };

type Row = readonly [file: string, format: string, block: number, options: OpenTraceOptions];

/** Figures counted outside of this code base; the order is that of `Tally`. */
const EXPECTED: readonly (readonly [Row, readonly number[]])[] = [
  [
    ["mooncake.jsonl", "mooncake", 512, {}],
    [12, 426, 415, 11, 213890, 4672, 1922, 1, 0, 3148391233],
  ],
  [
    ["mooncake_toolmix.jsonl.gz", "mooncake", 512, {}],
    [40, 822, 596, 226, 407800, 6575, 7416, 1, 0, 3488441318],
  ],
  [
    ["agent_logs.jsonl.gz", "mooncake", 16, {}],
    [40, 1967, 482, 1485, 31189, 3734, 325, 4, 259, 1815862344],
  ],
  [
    ["claude_composed_512.jsonl.gz", "mooncake", 512, {}],
    [10, 215, 91, 124, 108126, 3101, 3165, 2, 20, 3889626589],
  ],
  [
    ["claude_composed_512.jsonl.gz", "claude-composed-native", 64, native],
    [10, 1685, 669, 1016, 108126, 3101, 640, 2, 20, 612583106],
  ],
  [
    ["claude_sessions.jsonl.zst", "claude-sessions", 64, {}],
    [10, 1685, 701, 984, 108126, 3101, 640, 2, 20, 1633719522],
  ],
  [
    ["claude_sessions.runs.jsonl.gz", "claude-sessions-runs", 64, {}],
    [10, 1685, 701, 984, 108126, 3101, 640, 2, 20, 1633719522],
  ],
  [
    ["ragpulse", "ragpulse", 16, {}],
    [20, 4159, 3135, 1024, 66402, 4426, 178, 15, 0, 1794229248],
  ],
  [
    ["dynamo.jsonl.gz", "dynamo", 16, {}],
    [5, 857, 467, 390, 13695, 2275, 63, 4, 0, 737413997],
  ],
  [
    ["azure.csv", "azure", 512, {}],
    [20, 118, 118, 0, 54393, 289, 4217, 1, 0, 927583131],
  ],
];

describe("every format", () => {
  test.each(EXPECTED)("%j", async ([file, format, blockTokens, options], expected) => {
    const trace = await openTrace(fixture(file), options);
    expect(trace).toMatchObject({ format, blockTokens, path: fixture(file) });
    expect(Object.values(await tally(trace))).toEqual([...expected]);
    expect(Object.values(await tally(trace))).toEqual([...expected]);
  });

  test("the file with the requests stands for its folder", async () => {
    const folder = await openTrace(fixture("ragpulse"));
    const file = await openTrace(fixture("ragpulse/0_trace.jsonl.gz"));
    expect(file.name).toBe("ragpulse");
    expect(await allRequests(file)).toEqual(await allRequests(folder));
  });
});

describe("what a request tells", () => {
  test("a part-full last block", async () => {
    const [first] = await allRequests(await openTrace(fixture("mooncake.jsonl")));
    expect(first).toEqual({
      arrivalMs: 0,
      inputTokens: 6758,
      outputTokens: 500,
      blocks: Uint32Array.from({ length: 14 }, (_, id) => id),
      lastBlockTokens: 6758 - 13 * 512,
      session: undefined,
      turn: undefined,
    });
  });

  test("the names of sessions and their turns", async () => {
    const requests = await allRequests(await openTrace(fixture("claude_sessions.jsonl.zst")));
    expect(requests.map(({ session, turn }) => `${session}/${turn}`)).toEqual(
      ["trace_0282", "trace_0643"].flatMap((id) => [0, 1, 2, 3, 4].map((turn) => `${id}/${turn}`)),
    );
  });

  test("arrivals count from the start of the trace", async () => {
    const dynamo = await allRequests(await openTrace(fixture("dynamo.jsonl.gz")));
    expect([dynamo[0], dynamo[2], dynamo[4]].map((one) => one!.arrivalMs)).toEqual([
      0, 53711, 66019,
    ]);
    const azure = await allRequests(await openTrace(fixture("azure.csv")));
    expect(azure[10]!.arrivalMs).toBeCloseTo(1398.922, 3);
    expect(azure[19]!.arrivalMs).toBeCloseTo(30482.726, 3);
    const pulse = await allRequests(await openTrace(fixture("ragpulse")));
    expect(pulse[10]!.arrivalMs).toBe(244_000);
  });

  test("sessions follow one another, the next when the one before has its last answer", async () => {
    const requests = await allRequests(await openTrace(fixture("claude_sessions.jsonl.zst")));
    expect(requests[5]!.turn).toBe(0);
    expect(requests[5]!.arrivalMs).toBe(279_152);
    expect(requests[9]!.arrivalMs).toBe(305_152);
  });
});

describe("block sizes", () => {
  test("are chosen where the file leaves them open", async () => {
    const trace = await openTrace(fixture("azure.csv"), { blockTokens: 16 });
    const [first] = await allRequests(trace);
    expect([first!.blocks.length, first!.lastBlockTokens]).toEqual([301, 4808 - 300 * 16]);
    const pulse = await openTrace(fixture("ragpulse"), { blockTokens: 512 });
    const { uses, inputTokens } = await tally(pulse);
    expect(inputTokens).toBe(66_402);
    expect(uses).toBeLessThan(160);
  });

  test("are refused where the file fixes them", async () => {
    const opened = openTrace(fixture("agent_logs.jsonl.gz"), { blockTokens: 32 });
    await expect(opened).rejects.toThrow(/has blocks of 16 tokens, not of 32/);
  });
});

describe("compression", () => {
  const folder = tempDir();

  test("is told by content, whatever the name", async () => {
    const plain = await Bun.file(fixture("mooncake.jsonl")).bytes();
    const split = 700;
    const gzip = (bytes: Uint8Array) => Bun.gzipSync(Uint8Array.from(bytes));
    const forms = {
      "plain.gz": plain,
      "gzip.zst": gzip(plain),
      "zstd.txt": Bun.zstdCompressSync(Uint8Array.from(plain)),
      "two-gzip-members": Buffer.concat([gzip(plain.slice(0, split)), gzip(plain.slice(split))]),
      "windows.jsonl": new TextEncoder().encode(
        `\ufeff${new TextDecoder().decode(plain).replaceAll("\n", "\r\n\r\n")}`,
      ),
      "no-last-newline.jsonl": plain.slice(0, -1),
    };
    const expected = await allRequests(await openTrace(fixture("mooncake.jsonl")));
    for (const [name, bytes] of Object.entries(forms)) {
      await Bun.write(join(folder, name), bytes);
      const trace = await openTrace(join(folder, name));
      expect(await allRequests(trace), name).toEqual(expected);
    }
  });
});
