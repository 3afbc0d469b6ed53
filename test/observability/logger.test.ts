import { describe, expect, test } from "bun:test";
import { HearthError, systemClock, TurnBudget } from "../../src/core/index.ts";
import {
  createLogger,
  type Logger,
  type LoggerOptions,
  watchLoopLag,
} from "../../src/observability/index.ts";
import { ManualClock, waitFor } from "../support/index.ts";

interface Recorded {
  readonly logger: Logger;
  readonly clock: ManualClock;
  readonly lines: string[];
}

function record(options: Partial<LoggerOptions> = {}): Recorded {
  const clock = new ManualClock(Date.UTC(2026, 0, 2, 3, 4, 5, 678));
  const lines: string[] = [];
  const write = (line: string) => void lines.push(line);
  const logger = createLogger({ level: "info", format: "text", write, clock, ...options });
  return { logger, clock, lines };
}

describe("a line", () => {
  test("is text for people", () => {
    const { logger, lines } = record();
    logger.info("the agent is ready", {
      socket: "/run/hearth/engine.sock",
      bytes: 64,
      name: "a b",
    });
    expect(lines).toEqual([
      "2026-01-02T03:04:05.678Z info  the agent is ready" +
        ' socket=/run/hearth/engine.sock bytes=64 name="a b"\n',
    ]);
  });

  test("is JSON for collectors, 64-bit integers whole", () => {
    const { logger, lines } = record({ format: "json" });
    logger.warn("cut off", { hash: 0xffff_ffff_ffff_ffffn, level: "mine", gone: undefined });
    expect(lines[0]).toBe(
      '{"time":"2026-01-02T03:04:05.678Z","level":"warn","message":"cut off",' +
        '"hash":18446744073709551615,"level_":"mine"}\n',
    );
  });

  test("is written only from the current level on", () => {
    const { logger, lines } = record({ level: "warn" });
    logger.info("no");
    logger.warn("yes");
    logger.setLevel("debug");
    logger.child({ a: 1 }).debug("yes too", { b: 2 });
    logger.setLevel("error");
    logger.log("warn", "no more");
    expect(lines.map((line) => line.split(" ").slice(1).join(" "))).toEqual([
      "warn  yes\n",
      "debug yes too a=1 b=2\n",
    ]);
  });

  test.each(["text", "json"] as const)("stays one line in %s, whatever it contains", (format) => {
    const { logger, lines } = record({ format });
    logger.info("one\nmessage", { name: "x\n2026 error forged\u001b[31m\u2028\u009b\u007f" });
    expect(lines).toHaveLength(1);
    // biome-ignore lint/suspicious/noControlCharactersInRegex: none of them may be left
    expect(lines[0]!.slice(0, -1)).not.toMatch(/[\u0000-\u001f\u007f-\u009f\u2028\u2029]/);
    expect(lines[0]).toEndWith("\n");
  });

  test("has code and fix of a HearthError, and the position of other errors", () => {
    const { logger, lines } = record({ format: "json" });
    const cause = new Error("EPERM");
    const fix = "raise the limit";
    logger.error("no arena", { error: new HearthError("ARENA_UNAVAILABLE", "no", { fix, cause }) });
    logger.error("a bug", { error: new TypeError("undefined is no function") });
    expect(JSON.parse(lines[0]!)).toMatchObject({
      error: "no",
      code: "ARENA_UNAVAILABLE",
      fix,
      cause: "EPERM",
    });
    expect(JSON.parse(lines[1]!).stack).toContain("logger.test.ts");
  });

  test("contains no secret", () => {
    const { logger, lines } = record();
    logger.info("connected", {
      apiToken: "s3cret",
      password: "s3cret",
      authorization: "Bearer s3cret",
      header: "authorization: bearer s3cret",
      url: "nats://user:s3cret@host:4222",
      error: new Error("cannot reach nats://user:s3cret@host"),
      block_tokens: 64,
      tokenFile: "/etc/hearth/token",
    });
    expect(lines.join("")).not.toContain("s3cret");
    expect(lines.join("")).toContain("block_tokens=64 tokenFile=/etc/hearth/token");
    expect(lines.join("")).toContain("host:4222");
  });

  test("is bounded, and logging never throws", () => {
    const { logger, lines } = record();
    const circular: Record<string, unknown> = {};
    circular.self = circular;
    const many = Object.fromEntries(
      Array.from({ length: 200 }, (_, i) => [`f${i}`, "x".repeat(9_999)]),
    );
    logger.info("much", many);
    logger.info("odd", { circular, what: Symbol("s"), call: () => 1, list: [1, { a: 2n }] });
    expect(lines[0]!.length).toBeLessThan(40_000);
    expect(lines[1]).toContain("circular=");
    expect(lines[1]).toContain('list="[1,{\\"a\\":2}]"');
  });
});

describe("a flood", () => {
  test("is capped for each message, and the next window reports the dropped lines", () => {
    const { logger, clock, lines } = record({ burst: 3, windowMs: 1_000 });
    for (let i = 0; i < 10; i++) logger.warn("client cut off", { i });
    logger.info("something else");
    expect(lines).toHaveLength(4);
    expect(logger.dropped).toBe(7);
    clock.advance(1_000);
    expect(lines).toHaveLength(5);
    expect(lines[4]).toEndWith('log lines dropped like="client cut off" count=7\n');
    expect(lines[4]).toContain(" warn ");
    logger.warn("client cut off");
    expect(lines).toHaveLength(6);
    expect(clock.pending).toBe(0);
  });

  test("that continues is reported repeatedly", () => {
    const { logger, clock, lines } = record({ burst: 2, windowMs: 1_000 });
    for (let tick = 0; tick < 50; tick++) {
      for (let i = 0; i < 10; i++) logger.warn("again");
      clock.advance(100);
    }
    clock.advance(2_000);
    const told = lines.flatMap((line) => /count=(\d+)/.exec(line)?.[1] ?? []).map(Number);
    expect(told.reduce((sum, count) => sum + count, 0)).toBe(logger.dropped);
    expect(lines.length - told.length + logger.dropped).toBe(500);
    expect(told.length).toBeGreaterThanOrEqual(4);
    expect(lines.length).toBeLessThan(25);
  });

  test("of ever new messages is capped, too", () => {
    const { logger, lines } = record({ burst: 2 });
    for (let i = 0; i < 10_000; i++) logger.info(`message ${i}`);
    expect(lines.length).toBeLessThan(600);
    expect(logger.dropped + lines.length).toBe(10_000);
  });

  test("is reported at the end, and no timer is left", () => {
    const { logger, clock, lines } = record({ burst: 1 });
    logger.warn("again");
    logger.warn("again");
    logger[Symbol.dispose]();
    expect(lines.at(-1)).toContain("count=1");
    expect(clock.pending).toBe(0);
  });
});

test("work that no source announced counts as a long turn", async () => {
  const turns = new TurnBudget();
  using lag = watchLoopLag(systemClock, turns);
  await waitFor(() => turns.stats.turns > 2);
  const before = { announced: turns.stats.longTurns, all: lag.longTurns };
  setTimeout(() => {
    const endMs = performance.now() + 80;
    while (performance.now() < endMs);
  }, 0);
  await waitFor(() => lag.longestTurnSeconds() > 0.05);
  expect(lag.longTurns - before.all).toBeGreaterThan(turns.stats.longTurns - before.announced);
});
