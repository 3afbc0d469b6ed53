import fc from "fast-check";
import {
  type ConfigProblem,
  formatProblem,
  parseConfig,
  renderConfig,
  SCHEMA_KEYS,
} from "../../../src/config/index.ts";
import { type Random, randomBelow } from "../../../src/core/index.ts";
import { arbitraryConfig } from "../../config/arbitrary-config.ts";
import { repositoryFile } from "../corpus.ts";
import { must, shapeOf, type Target } from "../target.ts";
import { bytesOf, oneOf, textOf } from "./text-input.ts";

const FACTS = { hostname: "fuzz", memoryBytes: 2 ** 40 };
const FILE = "fuzz.toml";
const PROBLEMS_MAX = 100;
/** A little more than a file may have. */
const TEXT_BYTES_MAX = 66 * 1024;

const VALUES = [
  "1",
  "-1",
  "0.5",
  "1e400",
  "0x7fff_ffff_ffff_ffff",
  "9223372036854775808",
  "nan",
  "true",
  "1979-05-27T07:32:00Z",
  '"64GiB"',
  '"0B"',
  '"999999999999TiB"',
  '"30s"',
  '"lru"',
  "'/run/x.sock'",
  '"""a\nb"""',
  '"\\ud800"',
  "[1, [2, [3]]]",
  "{ a = 1, b.c = 2 }",
  "64GiB",
  "",
];
const SECTIONS = ["kv", "engine", "api", "log", "node", "kb", "kv.x", "[kv]", '"k\\u0076"', ""];

function line(random: Random): string {
  const kind = randomBelow(random, 8);
  if (kind === 0) return `[${oneOf(SECTIONS, random)}]`;
  if (kind === 1) return oneOf(["# note", "", " ", "\t[kv]", "=", "x", "a.b.c.d.e.f = 1"], random);
  const { name } = oneOf(SCHEMA_KEYS, random);
  const key = kind === 2 ? name : name.split(".")[1]!;
  return `${key} = ${oneOf(VALUES, random)}`;
}

function generate(random: Random): Uint8Array {
  const lines = Array.from({ length: 1 + randomBelow(random, 24) }, () => line(random));
  return bytesOf(`[kv]\nram = "1GiB"\n${lines.join("\n")}\n`);
}

function checkProblems(text: string, problems: readonly ConfigProblem[]): void {
  must(problems.length > 0, "a refused file has a problem");
  must(problems.length <= PROBLEMS_MAX, "problems are bounded");
  const lines = text.split("\n").length;
  for (const problem of problems) {
    must(problem.line >= 0 && problem.line <= lines, "a problem's line is in the file");
    must(problem.column >= 0, "a problem has a column");
    must(problem.what.length > 0 && problem.instead.length > 0, "a problem has words");
    must(/^[^\p{Cc}]+$/u.test(formatProblem(problem)), "a problem is one line of plain text");
  }
}

/** Configuration files, from an operator's slip to bytes of no kind. */
export function configs(): Target {
  const sampled = fc.sample(arbitraryConfig, { numRuns: 20, seed: 20_261 });
  return {
    name: "configs",
    corpus: [repositoryFile("config/hearth.toml"), ...sampled.map(renderConfig).map(bytesOf)],
    inputBytesMax: TEXT_BYTES_MAX,
    generate,
    run(input, saw) {
      const text = textOf(input);
      const result = parseConfig(text, FILE, FACTS);
      if (!result.ok) {
        checkProblems(text, result.problems);
        for (const { what } of result.problems) saw(shapeOf(what));
        return;
      }
      saw("ok");
      const again = parseConfig(renderConfig(result.config), FILE, FACTS);
      must(again.ok && Bun.deepEquals(again.config, result.config), "a configuration reads back");
    },
  };
}
