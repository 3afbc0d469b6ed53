import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import {
  flagName,
  jsonFlag,
  optional,
  optionalArgument,
  type ParsedWords,
  parseWords,
  repeated,
  required,
  requiredArgument,
  restArguments,
  toggle,
  withDefault,
} from "../../src/cli/index.ts";
import {
  choiceKind,
  durationKind,
  formatBytes,
  HearthError,
  integerKind,
  listKind,
  numberKind,
  readWord,
  sizeKind,
  textKind,
} from "../../src/core/index.ts";

const TAKES = {
  flags: {
    blockBytes: withDefault(sizeKind({ min: 64, max: 2 ** 30 }), 256 * 1024, "length of a block"),
    timeout: withDefault(durationKind(), 5_000, "how long"),
    speed: optional(numberKind({ min: 0 }), "how fast"),
    offset: withDefault(integerKind({ min: -10, max: 10 }), 0, "where"),
    capacity: withDefault(listKind(integerKind({ min: 1 })), [1000], "sizes"),
    policy: withDefault(listKind(choiceKind(["lru", "fifo", "lfu"])), ["lru"], "which"),
    trace: repeated(textKind("FILE"), "traces"),
    dryRun: toggle("only look"),
    json: jsonFlag,
  },
  arguments: {
    file: requiredArgument(textKind("FILE"), "the file"),
    other: optionalArgument(integerKind(), "a number"),
  },
};

const NEGATIVE = {
  flags: { json: jsonFlag },
  arguments: {
    file: requiredArgument(textKind("FILE"), "the file"),
    other: optionalArgument(integerKind({}), "a number"),
  },
};

function flagsOf(words: string[]): Readonly<Record<string, unknown>> {
  const parsed = parseWords(words, TAKES);
  if (parsed.kind !== "values") throw new Error("asked for help");
  return parsed.flags;
}

function refusal(words: string[], takes = TAKES): string {
  try {
    parseWords(words, takes);
  } catch (thrown) {
    if (thrown instanceof HearthError && thrown.code === "USAGE") return thrown.text;
    throw thrown;
  }
  throw new Error("nothing was refused");
}

describe("words become typed values", () => {
  test("defaults where nothing is given", () => {
    expect(parseWords(["f"], TAKES)).toEqual({
      kind: "values",
      flags: {
        blockBytes: 262_144,
        timeout: 5_000,
        speed: null,
        offset: 0,
        capacity: [1000],
        policy: ["lru"],
        trace: [],
        dryRun: false,
        json: false,
      },
      arguments: { file: "f", other: null },
    });
  });

  test.each<[string[], Record<string, unknown>]>([
    [["--block-bytes", "1MiB"], { blockBytes: 1_048_576 }],
    [["--block-bytes=64KiB"], { blockBytes: 65_536 }],
    [["--timeout", "1.5s"], { timeout: 1_500 }],
    [["--speed", "0.25"], { speed: 0.25 }],
    [["--offset", "-3"], { offset: -3 }],
    [["--offset=-3"], { offset: -3 }],
    [["--capacity", "1000,3000"], { capacity: [1000, 3000] }],
    [["--capacity", "1000, 3000"], { capacity: [1000, 3000] }],
    [["--policy", "fifo,lfu"], { policy: ["fifo", "lfu"] }],
    [["--trace", "a", "--trace=b=c"], { trace: ["a", "b=c"] }],
    [["--dry-run", "--json"], { dryRun: true, json: true }],
  ])("%p", (words, expected) => {
    expect(flagsOf([...words, "f"])).toMatchObject(expected);
    expect(flagsOf(["f", ...words])).toMatchObject(expected);
  });

  test("arguments stand anywhere, and behind -- everything is one", () => {
    expect(parseWords(["f", "--json", "-3"], NEGATIVE)).toMatchObject({
      arguments: { file: "f", other: -3 },
    });
    const rest = {
      flags: { json: jsonFlag },
      arguments: { all: restArguments(textKind("F"), "all") },
    };
    expect(parseWords(["a", "-", "--", "--json", "-h"], rest)).toEqual({
      kind: "values",
      flags: { json: false },
      arguments: { all: ["a", "-", "--json", "-h"] },
    } satisfies ParsedWords);
  });

  test("help wins over what is missing", () => {
    expect(parseWords(["--json", "--help"], TAKES)).toEqual({ kind: "help" });
    expect(parseWords(["-h"], TAKES)).toEqual({ kind: "help" });
  });
});

describe("words are refused", () => {
  test.each<[string[], string]>([
    [["f", "--blok-bytes", "1KiB"], "unknown flag --blok-bytes: did you mean --block-bytes"],
    [["f", "--block"], "unknown flag --block: did you mean --block-bytes"],
    [["f", "--xyz"], "unknown flag --xyz: flags here are --block-bytes, --timeout, "],
    [["f", "-x"], "unknown flag -x: flags here are"],
    [["f", "--block-bytes"], "--block-bytes needs a value: --block-bytes BYTES"],
    [["f", "--block-bytes", "--json"], "--block-bytes needs a value"],
    [
      ["f", "--block-bytes="],
      '--block-bytes is "": wants a number and a unit (B, KiB, MiB, GiB, TiB)',
    ],
    [["f", "--block-bytes", "256"], '--block-bytes is "256": wants a number and a unit'],
    [["f", "--block-bytes", "1KB"], '--block-bytes is "1KB": unknown unit "KB"'],
    [["f", "--block-bytes", "1B"], "--block-bytes is 1B, which is too small: use 64B to 1GiB"],
    [["f", "--block-bytes", "2GiB"], "--block-bytes is 2GiB, which is too large: use 64B to 1GiB"],
    [["f", "--timeout", "5"], '--timeout is "5": wants a number and a unit (ms, s, m, h, d)'],
    [["f", "--offset", "1.5"], "--offset is the number 1.5, not a whole number"],
    [["f", "--offset", "0x10"], '--offset is the string "0x10", not a whole number'],
    [["f", "--offset", "11"], "--offset is 11, which is too large: use -10 to 10"],
    [["f", "--speed", "fast"], '--speed is the string "fast", not a number'],
    [["f", "--speed", "1e400"], '--speed is the string "1e400", not a number'],
    [
      ["f", "--capacity", "1000,,3000"],
      '--capacity has a part that is the string "", not a whole number',
    ],
    [
      ["f", "--policy", "lru,mru"],
      '--policy has a part that is the string "mru": use one of "lru", "fifo", "lfu"',
    ],
    [["f", "--json=yes"], "--json takes no value"],
    [["f", "--json", "--json"], "--json is given twice"],
    [["f", "--trace", ""], "--trace is empty"],
    [[], "FILE is missing"],
    [["f", "1", "2"], 'one argument too many: "2"'],
    [["f", "x"], 'N is the string "x", not a whole number'],
  ])("%p: %s", (words, expected) => {
    expect(refusal(words)).toStartWith(expected);
  });

  test("a required flag that is not given", () => {
    const takes = { flags: { config: required(textKind("FILE"), "which") }, arguments: {} };
    expect(() => parseWords([], takes)).toThrow("--config FILE is missing");
  });

  test("names that every object has are no flags", () => {
    for (const name of ["--constructor", "--to-string", "--__proto__"]) {
      expect(refusal(["f", name])).toStartWith(`unknown flag ${name}`);
    }
  });
});

test("flag names are kebab-case", () => {
  expect(flagName("blockBytes")).toBe("--block-bytes");
  expect(flagName("json")).toBe("--json");
});

test("what help shows of a value is read back as that value", () => {
  const kinds = fc.oneof(
    fc.nat().map((value) => [integerKind(), value] as const),
    fc.nat(10_000_000).map((ms) => [durationKind(), ms] as const),
    fc.nat(1_000).map((kib) => [sizeKind(), kib * 1_024] as const),
  );
  fc.assert(
    fc.property(kinds, ([kind, value]) => {
      expect(readWord(kind, String(kind.write(value)))).toEqual({ ok: true, value });
    }),
    { seed: 7 },
  );
});

test("values given as words come back, whatever their order", () => {
  const given = fc.record({
    kib: fc.integer({ min: 1, max: 1_000 }),
    offset: fc.integer({ min: -10, max: 10 }),
    capacity: fc.array(fc.integer({ min: 1, max: 2 ** 40 }), { minLength: 1, maxLength: 20 }),
    trace: fc.array(fc.string({ minLength: 1 }).filter((name) => !name.includes("\0"))),
    file: fc.string({ minLength: 1 }).filter((name) => !name.startsWith("-")),
    turn: fc.nat(),
  });
  fc.assert(
    fc.property(given, ({ kib, offset, capacity, trace, file, turn }) => {
      const groups = [
        [`--block-bytes=${formatBytes(kib * 1024)}`],
        ["--offset", String(offset)],
        ["--capacity", capacity.join(",")],
        ...trace.map((name) => [`--trace=${name}`]),
        [file],
      ];
      const cut = turn % groups.length;
      const turned = [...groups.slice(cut), ...groups.slice(0, cut)];
      const expected = { blockBytes: kib * 1024, offset, capacity };
      const parsed = parseWords(turned.flat(), TAKES);
      expect(parsed).toMatchObject({ flags: expected, arguments: { file } });
      const traces = parsed.kind === "values" ? parsed.flags.trace : [];
      expect(new Set(traces as string[])).toEqual(new Set(trace));
    }),
    { seed: 11 },
  );
});
