import { describe, expect, test } from "bun:test";
import { readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { PROXY_DRAIN_MS } from "../../src/app/index.ts";
import { noteSkip, tempDir } from "../support/index.ts";

const read = (name: string) =>
  readFileSync(new URL(`../../config/${name}`, import.meta.url), "utf8");
const unit = read("hearth-router.service");

function valuesOf(name: string): string[] {
  return [...unit.matchAll(new RegExp(`^${name}=(.*)$`, "gm"))].map((match) => match[1]!);
}

/** The tool where it is new enough to judge a file without a running systemd. */
function systemdAnalyze(): string | null {
  const path = Bun.which("systemd-analyze");
  if (path === null) return null;
  const version = /^systemd ([0-9]+)/.exec(Bun.spawnSync([path, "--version"]).stdout.toString());
  return Number(version?.[1] ?? 0) >= 250 ? path : null;
}

describe("config/hearth-router.service", () => {
  test("the unit starts, reloads and stops the router as the router expects", () => {
    expect(valuesOf("Type")).toEqual(["notify"]);
    expect(valuesOf("ExecStart")).toEqual([
      "/usr/local/bin/hearth router --config /etc/hearth/router.toml",
    ]);
    expect(valuesOf("ExecReload")[0]).toEndWith("-HUP $MAINPID");
    expect(valuesOf("KillSignal")).toEqual(["SIGTERM"]);
    expect(Number(valuesOf("WatchdogSec")[0])).toBeGreaterThan(0);
    const stopMs = Number(valuesOf("TimeoutStopSec")[0]) * 1_000;
    expect(stopMs).toBeGreaterThan(PROXY_DRAIN_MS + 10_000);
  });

  test("the unit creates the parent of the sample file's state folder", () => {
    const example = /^#state_dir = "(.*)"$/m.exec(read("router.toml"))?.[1];
    expect(`/var/lib/${valuesOf("StateDirectory")[0]}`).toBe(dirname(example!));
  });

  test("the unit clears the environment and permits the JIT's memory", () => {
    expect(valuesOf("UnsetEnvironment").join(" ").split(" ")).toContain("BUN_OPTIONS");
    for (const name of ["Environment", "EnvironmentFile", "PassEnvironment"]) {
      expect(valuesOf(name)).toEqual([]);
    }
    expect(valuesOf("MemoryDenyWriteExecute")).toEqual([]);
  });

  const analyze = systemdAnalyze();
  if (analyze === null) noteSkip("hearth-router.service", "no systemd-analyze 250 or later");

  test.skipIf(analyze === null)("systemd finds nothing wrong with it", () => {
    const copy = join(tempDir(), "hearth-router.service");
    writeFileSync(copy, unit.replace("/usr/local/bin/hearth", process.execPath));
    const run = Bun.spawnSync([analyze!, "verify", copy], { stderr: "pipe" });
    const complaints = run.stderr.toString().split("\n");
    expect(complaints.filter((line) => line.includes("hearth-router.service"))).toEqual([]);
  });
});
