import { describe, expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { METRICS } from "../../src/api/index.ts";
import { SCHEMA_KEYS } from "../../src/config/index.ts";
import { HEALTH_CODE_NAMES } from "../../src/observability/index.ts";

const page = readFileSync(join(import.meta.dir, "../../docs/operating/devices.md"), "utf8");
const OURS = /^(?:gpu|rdma)\./;

/** Words in backticks. */
const quoted = [...page.matchAll(/`([^`]+)`/g)].map((match) => match[1]!);

describe("docs/operating/devices.md", () => {
  test("has every key of [gpu] and [rdma] with its default, and names no others", () => {
    const ours = SCHEMA_KEYS.filter(({ name }) => OURS.test(name));
    expect(ours.length).toBeGreaterThan(6);
    expect(ours.map(({ name }) => name).filter((name) => !quoted.includes(name))).toEqual([]);
    const known = new Set(SCHEMA_KEYS.map(({ name }) => name));
    const named = quoted
      .map((word) => word.split(" = ")[0]!)
      .filter((word) => /^(?:gpu|rdma|peers|kv)\.[a-z_]+$/.test(word) && word !== "rdma.direct");
    expect(named.filter((name) => !known.has(name))).toEqual([]);
    for (const { name, spec } of ours) {
      const row = page.split("\n").find((line) => line.startsWith("| `") && line.includes(name));
      const { defaultValue } = spec;
      if (defaultValue.is === "literal") expect(row).toContain(String(defaultValue.literal));
    }
  });

  test("has every health code and metric of devices", () => {
    const codes = HEALTH_CODE_NAMES.filter((code) => /^(GPU|RDMA)_/.test(code));
    const metrics = Object.keys(METRICS);
    const ofDevices = metrics.filter((name) => /^hearth_(gpus|gpu_|rdma_)/.test(name));
    expect(codes.length + ofDevices.length).toBeGreaterThan(8);
    for (const word of [...codes, ...ofDevices]) expect(page).toContain(`\`${word}`);
  });
});
