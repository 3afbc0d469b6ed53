import { describe, expect, test } from "bun:test";
import { createProgress, printJson, printRecord, printRows } from "../../src/cli/index.ts";
import { ManualClock } from "../support/index.ts";
import { memoryIo } from "./memory-io.ts";

describe("results", () => {
  const rows = [
    { trace: "a", capacity: 1000, policy: "lru", hit_ratio: 0.2827 },
    { trace: "longer", capacity: 30, policy: "fifo", hit_ratio: 0.123456789 },
  ];

  test("are a table for people", () => {
    const io = memoryIo();
    printRows(io, rows, false);
    expect(io.outText()).toBe(
      [
        "trace   capacity  policy  hit_ratio",
        "a           1000  lru        0.2827",
        "longer        30  fifo      0.12346",
        "",
      ].join("\n"),
    );
  });

  test("are one JSON document a row for programs, numbers unrounded", () => {
    const io = memoryIo();
    printRows(io, rows, true);
    const lines = io.outText().trimEnd().split("\n");
    expect(lines.map((line) => JSON.parse(line))).toEqual(rows);
  });

  test("of one record are its fields", () => {
    const io = memoryIo();
    printRecord(io, { blocks: 234, ratio: null, ok: true }, false);
    expect(io.outText()).toBe("blocks  234\nratio   -\nok      true\n");
  });

  test("keep 64-bit integers whole", () => {
    const io = memoryIo();
    printJson(io, { hash: 0xffff_ffff_ffff_ffffn });
    expect(io.outText()).toBe('{"hash":18446744073709551615}\n');
  });
});

describe("progress", () => {
  test("redraws one line on a terminal, ten times a second at most", () => {
    const io = memoryIo({ err: true, columns: 10 });
    const clock = new ManualClock();
    const progress = createProgress({ io, clock, json: true });
    progress.update("one");
    progress.update("not shown");
    clock.advance(100);
    progress.update("two, too long for the line");
    progress.end("done");
    expect(io.errText()).toBe("\r\x1b[2Kone\r\x1b[2Ktwo, too \r\x1b[2Kdone\n");
    expect(io.outText()).toBe("");
  });

  test("is a plain line every ten seconds elsewhere", () => {
    const io = memoryIo();
    const clock = new ManualClock();
    const progress = createProgress({ io, clock, json: false });
    for (let second = 1; second <= 25; second++) {
      clock.advance(1_000);
      progress.update(`at ${second}`);
    }
    progress.end("done");
    expect(io.errText()).toBe("at 10\nat 20\ndone\n");
  });

  test("is silent beside JSON that nobody watches", () => {
    const io = memoryIo();
    const clock = new ManualClock();
    const progress = createProgress({ io, clock, json: true });
    clock.advance(60_000);
    progress.update("far");
    progress.end("done");
    expect(io.errText()).toBe("");
  });
});
