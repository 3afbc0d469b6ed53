import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import { formatBytes, formatDuration, parseBytes, parseDuration } from "../../src/core/index.ts";

describe("sizes and durations", () => {
  test.each([
    ["64GiB", 64 * 2 ** 30],
    ["0.5 KiB", 512],
    ["1B", 1],
    [" 2TiB ", 2 * 2 ** 40],
  ])("%p is %p bytes", (text, value) => {
    expect(parseBytes(text)).toEqual({ ok: true, value });
  });

  test.each([
    ["7d", 7 * 86_400_000],
    ["250ms", 250],
    ["1.5h", 5_400_000],
    ["2m", 120_000],
  ])("%p is %p milliseconds", (text, value) => {
    expect(parseDuration(text)).toEqual({ ok: true, value });
  });

  test.each([
    "64GB",
    "64",
    "GiB",
    "-1GiB",
    "1.5B",
    "1e9B",
    "99999999TiB",
    "1 2KiB",
    "1constructor",
  ])("%p is refused with a reason", (text) => {
    const parsed = parseBytes(text);
    expect(parsed.ok).toBeFalse();
    if (!parsed.ok) expect(parsed.why.length).toBeGreaterThan(5);
  });

  test("a duration is written so that it parses back to the same", () => {
    fc.assert(
      fc.property(fc.integer({ min: 0, max: 10 ** 12 }), (ms) => {
        expect(parseDuration(formatDuration(ms))).toEqual({ ok: true, value: ms });
      }),
      { seed: 7, numRuns: 1000 },
    );
  });

  test("a size is written with at most two decimals", () => {
    expect(formatBytes(0)).toBe("0B");
    expect(formatBytes(1536)).toBe("1.5KiB");
    expect(formatBytes(2 ** 40 + 1)).toBe("1TiB");
    expect(formatBytes(1000)).toBe("1000B");
  });
});
