import { describe, expect, test } from "bun:test";
import { createProgress, printJson, printRecord, printRows } from "../../src/cli/index.ts";
import { ManualClock } from "../support/index.ts";
import { memoryIo } from "./memory-io.ts";

describe("results", () => {
  const rows = [
    { trace: "a", capacity: 1000, policy: "lru", hit_ratio: 0.2827 },
    { trace: "longer", capacity: 30, policy: "fifo", hit_ratio: 0.123456789 },
  ];

  test("results are printed as a table for people", () => {
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

  test("results are printed as one JSON document per row for programs, with unrounded numbers", () => {
    const io = memoryIo();
    printRows(io, rows, true);
    const lines = io.outText().trimEnd().split("\n");
    expect(lines.map((line) => JSON.parse(line))).toEqual(rows);
  });

  test("the result of one record is printed as its fields", () => {
    const io = memoryIo();
    printRecord(io, { blocks: 234, ratio: null, ok: true }, false);
    expect(io.outText()).toBe("blocks  234\nratio   -\nok      true\n");
  });

  test("results keep all digits of 64-bit integers", () => {
    const io = memoryIo();
    printJson(io, { hash: 0xffff_ffff_ffff_ffffn });
    expect(io.outText()).toBe('{"hash":18446744073709551615}\n');
  });
});

describe("progress", () => {
  test("progress redraws one line on a terminal, at most ten times per second", () => {
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

  test("progress without a terminal is a plain line every ten seconds", () => {
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

  test("progress is silent if the output is JSON and not a terminal", () => {
    const io = memoryIo();
    const clock = new ManualClock();
    const progress = createProgress({ io, clock, json: true });
    clock.advance(60_000);
    progress.update("far");
    progress.end("done");
    expect(io.errText()).toBe("");
  });
});
