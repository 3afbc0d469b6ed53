import { beforeAll, expect, test } from "bun:test";
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { libraryFile } from "../../scripts/lib/native-build.ts";
import { ROOT } from "../../scripts/lib/paths.ts";
import { hostTarget } from "../../scripts/lib/targets.ts";
import { describeNative, hearthExecutable, withTempDir } from "../support/index.ts";

const { version } = JSON.parse(readFileSync(join(ROOT, "package.json"), "utf8"));

interface Finished {
  readonly code: number;
  readonly out: string;
  readonly err: string;
}

function runIn(cwd: string, command: string[], env: Record<string, string> = {}): Finished {
  const child = Bun.spawnSync(command, { cwd, env });
  return {
    code: child.exitCode,
    out: child.stdout.toString(),
    err: child.stderr.toString(),
  };
}

describeNative("the executable", () => {
  let executable = "";
  let library: Buffer;

  beforeAll(async () => {
    executable = await hearthExecutable();
    const host = hostTarget();
    if (host.ok) library = readFileSync(libraryFile({ target: host.target }));
  });

  test("runs in an empty folder with an empty environment and leaves nothing there", async () => {
    await withTempDir((folder) => {
      const { code, out } = runIn(folder, [executable, "--version"]);
      expect(code).toBe(0);
      expect(out).toContain(version);
      expect(readdirSync(folder)).toEqual([]);
    });
  });

  test("the executable does not run programs from its current folder", async () => {
    await withTempDir((folder) => {
      const planted = "require('fs').writeFileSync('planted', 'ran');";
      writeFileSync(join(folder, "preload.ts"), planted);
      writeFileSync(join(folder, "bunfig.toml"), 'preload = ["./preload.ts"]\n');
      writeFileSync(join(folder, ".env"), "HEARTH_NATIVE_PROFILE=1\n");
      const { code, err } = runIn(folder, [executable, "--version"]);
      expect(code).toBe(0);
      expect(err).toBe("");
      expect(readdirSync(folder).sort()).toEqual([".env", "bunfig.toml", "preload.ts"]);
    });
  });

  test("loads its library without leaving it in the temporary folder", async () => {
    await withTempDir((folder) => {
      const temporary = join(folder, "tmp");
      mkdirSync(temporary);
      const command = [executable, "bench", "hash", "--json"];
      const { code, out } = runIn(folder, command, { TMPDIR: temporary });
      expect(code).toBe(0);
      expect(JSON.parse(out.trim().split("\n").at(-1)!)).toHaveProperty("blake3_gbps");
      expect(readdirSync(temporary)).toEqual([]);
    });
  });

  test("refuses a library that is not the one it was built with", async () => {
    await withTempDir((folder) => {
      const bytes = readFileSync(executable);
      const at = bytes.indexOf(library);
      expect(at).toBeGreaterThan(0);
      bytes[at + library.length - 1]! ^= 1;
      const damaged = join(folder, "hearth");
      writeFileSync(damaged, bytes, { mode: 0o755 });
      const { code, err } = runIn(folder, [damaged, "bench", "hash", "--json"]);
      expect(code).not.toBe(0);
      expect(err).toContain("damaged");
    });
  });

  test("carries one library", () => {
    const names = readFileSync(executable)
      .toString("latin1")
      .matchAll(/libhearth-\w+\.so/g);
    expect(new Set([...names].map(([name]) => name)).size).toBe(1);
  });
});
