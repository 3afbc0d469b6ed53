import { describe, expect, test } from "bun:test";
import {
  HEALTH_CODE_NAMES,
  HEALTH_CODES,
  Health,
  type LogFields,
  renderHealthReference,
} from "../../src/observability/index.ts";
import { ManualClock } from "../support/index.ts";

interface Line {
  readonly level: string;
  readonly message: string;
  readonly fields: LogFields;
}

function open() {
  const clock = new ManualClock();
  const lines: Line[] = [];
  const log = {
    log: (level: string, message: string, fields: LogFields = {}) =>
      void lines.push({ level, message, fields }),
  };
  return { clock, lines, health: new Health({ clock, log }) };
}

describe("each code", () => {
  for (const code of HEALTH_CODE_NAMES) {
    test(`${code} is raised and cleared`, () => {
      const { clock, lines, health } = open();
      const { severity, meaning, fix } = HEALTH_CODES[code];
      clock.advance(500);
      health.raise(code, "as seen");
      expect(health.isRaised(code)).toBe(true);
      expect(health.list()).toEqual([
        { code, severity, meaning, fix, details: "as seen", sinceMs: 500 },
      ]);
      expect(health.counts().filter(({ isRaised }) => isRaised)).toEqual([
        { code, isRaised: true, raised: 1 },
      ]);
      clock.advance(2_500);
      health.clear(code);
      expect(health.list()).toEqual([]);
      expect(health.counts().find((count) => count.code === code)).toEqual({
        code,
        isRaised: false,
        raised: 1,
      });
      expect(lines).toEqual([
        { level: severity, message: meaning, fields: { code, details: "as seen", fix } },
        {
          level: "info",
          message: "health problem resolved",
          fields: { code, seconds: 2.5 },
        },
      ]);
    });
  }
});

describe("the register", () => {
  test("logs and counts a change once, however often it is raised", () => {
    const { clock, lines, health } = open();
    for (let i = 0; i < 1000; i++) {
      health.raise("KV_SSD_SLOW", `${i} reads`);
      clock.advance(1);
    }
    expect(lines).toHaveLength(1);
    expect(health.list()).toMatchObject([{ details: "999 reads", sinceMs: 0 }]);
    for (let i = 0; i < 1000; i++) health.clear("KV_SSD_SLOW");
    expect(lines).toHaveLength(2);
    health.raise("KV_SSD_SLOW", "again");
    const slow = health.counts().find(({ code }) => code === "KV_SSD_SLOW");
    expect(slow).toEqual({ code: "KV_SSD_SLOW", isRaised: true, raised: 2 });
    expect(health.list()).toMatchObject([{ sinceMs: 1000 }]);
  });

  test("clearing a problem that is not raised logs nothing", () => {
    const { lines, health } = open();
    health.clear("KV_INDEX");
    expect(lines).toEqual([]);
  });

  test("lists errors first, then by age", () => {
    const { clock, health } = open();
    for (const code of ["KV_SSD_FULL", "KV_SSD_ERRORS", "KV_LIMITS", "KV_SSD_CSUM"] as const) {
      health.raise(code, "");
      clock.advance(1);
    }
    const codes = health.list().map(({ code }) => code);
    expect(codes).toEqual(["KV_SSD_ERRORS", "KV_SSD_CSUM", "KV_SSD_FULL", "KV_LIMITS"]);
  });

  test("ends a timed problem after its last raise", () => {
    const { clock, lines, health } = open();
    health.raise("KV_SSD_CSUM", "first", { forMs: 3_600_000 });
    clock.advance(3_000_000);
    health.raise("KV_SSD_CSUM", "second", { forMs: 3_600_000 });
    clock.advance(3_599_999);
    expect(health.isRaised("KV_SSD_CSUM")).toBe(true);
    clock.advance(1);
    expect(health.isRaised("KV_SSD_CSUM")).toBe(false);
    expect(lines.map(({ level }) => level)).toEqual(["error", "info"]);
    expect(clock.pending).toBe(0);
  });

  test("clearing early, or raising without an end, cancels an earlier end", () => {
    const { clock, health } = open();
    health.raise("KV_SSD_CSUM", "", { forMs: 1_000 });
    health.clear("KV_SSD_CSUM");
    health.raise("KV_SSD_CSUM", "", { forMs: 1_000 });
    health.raise("KV_SSD_CSUM", "");
    clock.advance(10_000);
    expect(health.isRaised("KV_SSD_CSUM")).toBe(true);
  });

  test("leaves no timer behind", () => {
    const { clock, health } = open();
    health.raise("KV_SSD_CSUM", "", { forMs: 1_000 });
    health.raise("KV_SSD_SLOW", "", { forMs: 1_000 });
    health[Symbol.dispose]();
    expect(clock.pending).toBe(0);
  });
});

test("the reference page has each code with its fix", () => {
  const page = renderHealthReference();
  for (const [code, { severity, meaning, fix }] of Object.entries(HEALTH_CODES)) {
    expect(page).toContain(`| \`${code}\` | ${severity} | ${meaning} | ${fix} |\n`);
    expect(code).toMatch(/^[A-Z]+(?:_[A-Z]+)+$/);
  }
});
