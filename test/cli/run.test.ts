import { describe, expect, test } from "bun:test";
import {
  CATALOGUE,
  type Command,
  defineCommand,
  type Entry,
  EXIT_CODES,
  EXIT_OF_ERROR,
  jsonFlag,
  optionalArgument,
  parseWords,
  runCli,
} from "../../src/cli/index.ts";
import { ERROR_CODES, type ErrorCode, HearthError, textKind } from "../../src/core/index.ts";
import { memoryIo } from "./memory-io.ts";

function entry(name: string, run: Command["run"]): Entry {
  const command = defineCommand({
    description: ["Does it."],
    flags: { json: jsonFlag },
    arguments: { what: optionalArgument(textKind("WHAT"), "what") },
    examples: [{ words: name, what: "does it" }],
    exits: [],
    run,
  });
  return { name, summary: `summary of ${name}`, load: async () => command };
}

const FAKE: readonly Entry[] = [
  entry("echo", async ({ flags, arguments: { what }, io }) => {
    io.out.write(`${what} ${flags.json}\n`);
    return "ok";
  }),
  entry("bench index", async () => "wrongBytes"),
  entry("bench hash", async () => "failed"),
  entry("fault", async ({ arguments: { what } }) => {
    throw new HearthError(what as ErrorCode, "it broke", { fix: "mend it" });
  }),
  entry("bug", async () => {
    throw new TypeError("undefined is no function");
  }),
  entry("disk", async () => {
    await Bun.file("/nowhere/at/all").text();
    return "ok";
  }),
];

async function run(...words: string[]) {
  const io = memoryIo();
  const code = await runCli(words, io, FAKE);
  return { code, out: io.outText(), err: io.errText() };
}

describe("the words choose a command", () => {
  test("of one word or two, with its flags", async () => {
    expect(await run("echo", "hello", "--json")).toEqual({ code: 0, out: "hello true\n", err: "" });
    expect((await run("bench", "index")).code).toBe(5);
    expect((await run("bench", "hash")).code).toBe(1);
  });

  test.each([
    [["ecko"], 'hearth: unknown command "ecko": did you mean `hearth echo`\n'],
    [
      ["bench", "indx"],
      'hearth bench: unknown command "bench indx": did you mean `hearth bench index`\n',
    ],
    [
      ["bench", "zzzzz"],
      'hearth bench: unknown command "bench zzzzz"\nsee `hearth bench --help`\n',
    ],
    [["quite", "else"], 'hearth: unknown command "quite"\nsee `hearth --help`\n'],
    [["--json"], 'hearth: unknown command "--json"\nsee `hearth --help`\n'],
  ])("%p is none", async (words, expected) => {
    const { code, out, err } = await run(...words);
    expect({ code, out }).toEqual({ code: 2, out: "" });
    expect(err).toStartWith(expected);
  });

  test("no word at all is refused with the list of commands", async () => {
    const { code, out, err } = await run();
    expect({ code, out }).toEqual({ code: 2, out: "" });
    expect(err).toContain("summary of bench index");
  });
});

describe("help", () => {
  test("lists every command and every exit code", async () => {
    const { code, out } = await run("--help");
    expect(code).toBe(0);
    for (const { name, summary } of FAKE) expect(out).toMatch(new RegExp(`${name} +${summary}`));
    for (const exit of Object.values(EXIT_CODES)) expect(out).toContain(exit.meaning);
    expect((await run("help")).out).toBe(out);
    expect((await run("-h")).out).toBe(out);
  });

  test("of a group lists its commands", async () => {
    const { code, out } = await run("bench", "--help");
    expect(code).toBe(0);
    expect(out).toContain("summary of bench hash");
    expect(out).not.toContain("summary of echo");
    expect((await run("help", "bench")).out).toBe(out);
    expect(await run("bench")).toEqual({ code: 2, out: "", err: out });
  });

  test("of a command, asked for in three ways", async () => {
    const { code, out } = await run("echo", "--help");
    expect(code).toBe(0);
    expect(out).toContain("usage: hearth echo [flags] [WHAT]");
    expect((await run("echo", "x", "-h")).out).toBe(out);
    expect((await run("help", "echo")).out).toBe(out);
  });
});

test("--version says what runs", async () => {
  const { code, out } = await run("--version");
  expect(code).toBe(0);
  expect(out).toMatch(/^hearth \d+\.\d+\.\d+ \(\w+(-dirty)?, Bun \d+\.\d+\.\d+\)\n$/);
});

describe("what is thrown decides the exit code", () => {
  test.each(Object.keys(ERROR_CODES) as ErrorCode[])("%s", async (code) => {
    const ended = await run("fault", code);
    expect(ended.code).toBe(EXIT_CODES[EXIT_OF_ERROR[code]].code);
    expect(ended.err).toStartWith("hearth fault: it broke: mend it\n");
    expect(ended.out).toBe("");
  });

  test("a bug shows where it is, a system error only what it is", async () => {
    const bug = await run("bug");
    expect(bug.code).toBe(1);
    expect(bug.err).toContain("undefined is no function");
    expect(bug.err).toContain("run.test.ts");
    const disk = await run("disk");
    expect(disk.code).toBe(1);
    expect(disk.err).toMatch(/^hearth disk: ENOENT: .*\n$/);
  });

  test("wrong words say where help is", async () => {
    const { code, err } = await run("echo", "--jsn");
    expect(code).toBe(2);
    expect(err).toBe(
      "hearth echo: unknown flag --jsn: did you mean --json\nsee `hearth echo --help`\n",
    );
  });
});

describe("each command of this release", () => {
  for (const { name, summary, load } of CATALOGUE) {
    test(`${name}: help with examples that parse`, async () => {
      const command = await load();
      const io = memoryIo();
      expect(await runCli([...name.split(" "), "--help"], io)).toBe(0);
      const help = io.outText();
      expect(help).toStartWith(`hearth ${name}: ${summary}\n`);
      expect(help.split("\n").filter((line) => line.length > 100)).toEqual([]);
      expect(command.examples.length).toBeGreaterThan(0);
      for (const { words } of command.examples) {
        expect(help).toContain(`hearth ${words}\n`);
        const other = CATALOGUE.find(
          (row) => words.startsWith(`${row.name} `) || words === row.name,
        );
        const taken = await other!.load();
        const rest = words.split(" ").slice(other!.name.split(" ").length);
        expect(parseWords(rest, taken).kind).toBe("values");
      }
      for (const exit of ["ok", "failed", "usage", ...command.exits] as const) {
        expect(help).toContain(EXIT_CODES[exit].meaning);
      }
    });
  }

  test("has a name of its own, of one word or two", () => {
    const names = CATALOGUE.map(({ name }) => name);
    expect(new Set(names).size).toBe(names.length);
    for (const name of names) {
      expect(name).toMatch(/^[a-z]+( [a-z]+(-[a-z]+)?)?$/);
      expect(names).not.toContain(`${name.split(" ")[0]} ${name}`);
      if (name.includes(" ")) expect(names).not.toContain(name.split(" ")[0]);
    }
  });
});
