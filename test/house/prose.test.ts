import { describe, expect, test } from "bun:test";
import { type Marker, readProse } from "./prose.ts";
import { readTree, type Tree } from "./tree.ts";

/**
 * Marker phrases per 1,000 words that an area may have. The style sheet asks for at most 0.3; an
 * area above it has the rate of its last clean-up, which may only fall.
 */
const RATES: Readonly<Record<string, number>> = {
  "src/": 0.3,
  "zig/": 0.3,
  "docs/": 0.3,
  "python/": 0.3,
  "config/": 0.3,
};

/** Generated pages, and texts of others. */
const NOT_OURS =
  /\b(?:golden|fixtures?)\b|\.gen\.|^docs\/reference\/(?:cli|config-|errors|health|metrics)/;

const plant = (path: string, text: string): Tree => new Map([[path, text]]);
const phrases = (path: string, text: string): string[] =>
  readProse(plant(path, text), () => true).markers.map(({ phrase }: Marker) => phrase);

describe("the prose of this checkout", () => {
  const tree = readTree();
  for (const [area, limit] of Object.entries(RATES)) {
    test(`${area} has at most ${limit} marker phrases per 1,000 words`, () => {
      const { words, markers } = readProse(
        tree,
        (path) => path.startsWith(area) && !NOT_OURS.test(path),
      );
      expect(words).toBeGreaterThan(1_000);
      const rate = (1_000 * markers.length) / words;
      const found = markers.map(({ path, line, phrase }) => `${path}:${line} ${phrase}`);
      expect(rate > limit ? { rate, found } : null).toBeNull();
    });
  }
});

describe("the prose lint", () => {
  test("finds marker phrases in comments, texts and pages", () => {
    expect(phrases("src/core/a.ts", "/** Whoever waits is told. */")).toEqual(["Whoever", "told"]);
    expect(phrases("src/core/a.ts", 'throw refuse("it is no number");')).toEqual(["is no"]);
    expect(phrases("zig/a.zig", "// Of the oldest block.")).toEqual(["Of"]);
    expect(phrases("python/a.py", "x = 1  # nobody waits")).toEqual(["nobody"]);
    expect(phrases("docs/a.md", "What follows is kept. It goes on.")).toEqual([
      ...["What follows", "goes on", "What"],
    ]);
  });

  test("leaves out code, fenced blocks and questions", () => {
    expect(phrases("src/core/a.ts", "const whom = nobody(told);")).toEqual([]);
    expect(phrases("docs/a.md", "```\nnobody\n```\n`picture`")).toEqual([]);
    expect(phrases("docs/a.md", "What is a block? It is KV.")).toEqual(["What is"]);
  });
});
