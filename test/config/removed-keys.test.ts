import { describe, expect, test } from "bun:test";
import {
  formatProblem,
  parseConfig,
  parseRouterConfig,
  REMOVED_AGENT_KEYS,
  REMOVED_ROUTER_KEYS,
  ROUTER_BOOK,
  SCHEMA_KEYS,
} from "../../src/config/index.ts";
import { tempDir } from "../support/index.ts";
import { NO_FACTS } from "./arbitrary-config.ts";

const dir = tempDir();

const BOOKS = [
  {
    name: "an agent",
    minimal: "[kv]\nram_gib = 1\n",
    removed: REMOVED_AGENT_KEYS,
    keys: SCHEMA_KEYS,
    parse: parseConfig,
  },
  {
    name: "a router",
    minimal: "",
    removed: REMOVED_ROUTER_KEYS,
    keys: ROUTER_BOOK.keys,
    parse: parseRouterConfig,
  },
];

describe.each(BOOKS)("removed keys of $name", ({ minimal, removed, keys, parse }) => {
  test.each(Object.entries(removed))("%s is refused with line and reason", (name, reason) => {
    const [section, key] = name.split(".") as [string, string];
    const file = `${minimal.replace(`[${section}]\n`, `[${section}]\n${key} = 1\n`)}`;
    const text = file === minimal ? `${minimal}[${section}]\n${key} = 1\n` : file;
    const line = text.split("\n").indexOf(`${key} = 1`) + 1;
    const result = parse(text, "f.toml", NO_FACTS);
    expect(result.ok ? [] : result.problems.map(formatProblem)).toEqual([
      `f.toml:${line}:1 ${name}: was removed; ${reason}`,
    ]);
  });

  test("no removed key is in the schema, and each reason names keys that are", () => {
    const names = keys.map(({ name }) => name);
    expect(Object.keys(removed).filter((name) => names.includes(name))).toEqual([]);
    for (const reason of Object.values(removed)) {
      for (const [name] of reason.matchAll(/\b(?:kv|engine|peers)\.[a-z_]+/g)) {
        expect(names).toContain(name);
      }
    }
  });
});

test("hearth check prints line and reason of a removed key", async () => {
  const file = `${dir}/removed.toml`;
  await Bun.write(file, "[kv]\nram_gib = 1\nssd_depth = 64\n");
  const main = `${import.meta.dir}/../../src/main.ts`;
  const run = Bun.spawnSync([process.execPath, main, "check", file]);
  expect(run.stdout.toString()).toBe(
    `${file}:3:1 kv.ssd_depth: was removed; ${REMOVED_AGENT_KEYS["kv.ssd_depth"]}\n`,
  );
  expect(run.exitCode).toBe(3);
});
