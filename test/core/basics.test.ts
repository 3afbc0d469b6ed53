import { describe, expect, test } from "bun:test";
import {
  asI64,
  assert,
  ERROR_CODES,
  fromHex,
  HearthError,
  isU64,
  messageOf,
  nearestWord,
  randomBelow,
  readU64BE,
  seededRandom,
  selfCommand,
  sleep,
  unreachable,
} from "../../src/core/index.ts";
import { ManualClock } from "../support/index.ts";

describe("bytes and 64-bit numbers", () => {
  test("hex is encoded and decoded, and text that is not hex decodes to null", () => {
    expect(fromHex("00Ff")).toEqual(new Uint8Array([0, 255]));
    expect(fromHex("0")).toBeNull();
    expect(fromHex("0g")).toBeNull();
    expect(fromHex("")).toEqual(new Uint8Array(0));
  });

  test("64-bit numbers are read, checked and reinterpreted as signed", () => {
    expect(asI64(0xffff_ffff_ffff_ffffn)).toBe(-1n);
    expect(isU64(2n ** 64n)).toBeFalse();
    expect(isU64(-1n)).toBeFalse();
    expect(readU64BE(new Uint8Array([0, 0, 0, 0, 0, 0, 1, 2, 3]), 1)).toBe(0x010203n);
    expect(() => readU64BE(new Uint8Array(7))).toThrow("invariant broken");
  });
});

describe("errors", () => {
  test("carry a stable code, whether a retry helps, and the fix", () => {
    const error = new HearthError("LIMIT", "too many", { fix: "send fewer" });
    expect([error.code, error.retryable, error.text]).toEqual([
      "LIMIT",
      ERROR_CODES.LIMIT.retryable,
      "too many: send fewer",
    ]);
    expect(messageOf(error)).toBe("too many: send fewer");
    expect(messageOf("plain")).toBe("plain");
  });

  test("a broken invariant and an unhandled case are INTERNAL errors", () => {
    expect(() => assert(false, "one is two")).toThrow("one is two");
    expect(() => unreachable("x" as never, "letters")).toThrow("letters: no case for x");
  });
});

describe("chance", () => {
  test("a seed gives the same numbers again, below the bound and over all of it", () => {
    const first = seededRandom(42);
    const second = seededRandom(42);
    const numbers = Array.from({ length: 2000 }, () => randomBelow(first, 10));
    expect(numbers).toEqual(Array.from({ length: 2000 }, () => randomBelow(second, 10)));
    expect(new Set(numbers)).toEqual(new Set([0, 1, 2, 3, 4, 5, 6, 7, 8, 9]));
  });
});

describe("waiting", () => {
  test("ends when the clock says so", async () => {
    const clock = new ManualClock();
    let done = false;
    const wait = sleep(clock, 100).then(() => {
      done = true;
    });
    clock.advance(99);
    await Promise.resolve();
    expect(done).toBeFalse();
    clock.advance(1);
    await wait;
    expect(done).toBeTrue();
  });

  test("ends at once with ABORTED when the signal fires, or had fired", async () => {
    const controller = new AbortController();
    const wait = sleep(new ManualClock(), 1000, controller.signal);
    controller.abort();
    expect(wait).rejects.toMatchObject({ code: "ABORTED" });
    expect(sleep(new ManualClock(), 1000, controller.signal)).rejects.toThrow("aborted");
  });
});

test("this program starts itself by Bun and its entry, or alone when compiled", () => {
  expect(selfCommand()[0]).toBe(process.execPath);
});

test("the word that was meant is found by its beginning or its spelling, or not at all", () => {
  const words = ["bench index", "bench policy", "check", "doctor"];
  expect(nearestWord("doc", words)).toBe("doctor");
  expect(nearestWord("chekc", words)).toBe("check");
  expect(nearestWord("bench polcy", words)).toBe("bench policy");
  expect(nearestWord("bench", words)).toBe(null);
  expect(nearestWord("hcekc", words)).toBe("check");
  expect(nearestWord("zzz", words)).toBe(null);
  expect(nearestWord("", words)).toBe(null);
  expect(nearestWord("x".repeat(10_000), words)).toBe(null);
});
