import { expect, test } from "bun:test";
import { chmodSync, cpSync, existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { ROOT } from "../../scripts/lib/paths.ts";
import { fastTests, SLOW } from "../../scripts/lib/slow-tests.ts";
import { tempDir, waitFor } from "../support/index.ts";

/** A stand-in for ./dev: `test` leaves a process in its own session, then runs `body`. */
function checkout(body: string): { run: string; pidFile: string } {
  const folder = tempDir();
  const pidFile = join(folder, "left-behind");
  mkdirSync(join(folder, ".ci"));
  cpSync(join(ROOT, ".ci/run"), join(folder, ".ci/run"));
  const dev = join(folder, "dev");
  const left = `setsid sh -c 'echo $$ >"${pidFile}"; exec sleep 600' &`;
  const lines = ["#!/bin/sh", '[ "$1" = test ] || exit 0', left];
  lines.push(`while [ ! -s "${pidFile}" ]; do sleep 0.05; done`, body);
  writeFileSync(dev, `${lines.join("\n")}\n`);
  chmodSync(dev, 0o755);
  return { run: join(folder, ".ci/run"), pidFile };
}

function isAlive(pid: number): boolean {
  return (
    existsSync(`/proc/${pid}/stat`) &&
    !/^\S+ \(.*\) Z/.test(readFileSync(`/proc/${pid}/stat`, "utf8"))
  );
}

const { HEARTH_CI_RUN: _outer, ...env } = process.env;

function start(run: string) {
  return Bun.spawn(["bash", run], { env, stdin: "ignore", stdout: "ignore", stderr: "ignore" });
}

const hasTools = ["bash", "setsid", "timeout"].every((name) => Bun.which(name) !== null);
const onLinux = test.skipIf(process.platform !== "linux" || !hasTools);

for (const signal of ["SIGTERM", "SIGKILL"] as const) {
  onLinux(`a CI run that is ended by ${signal} leaves no process behind`, async () => {
    const { run, pidFile } = checkout("sleep 600");
    const child = start(run);
    await waitFor(() => existsSync(pidFile) && readFileSync(pidFile, "utf8").trim() !== "");
    const pid = Number(readFileSync(pidFile, "utf8"));
    expect(isAlive(pid)).toBe(true);
    child.kill(signal);
    await child.exited;
    await waitFor(() => !isAlive(pid));
    expect(child.exitCode).not.toBe(0);
  });
}

onLinux(
  "a CI run whose tests fail has the same exit code and leaves no process behind",
  async () => {
    const { run, pidFile } = checkout("exit 3");
    expect(await start(run).exited).toBe(3);
    expect(isAlive(Number(readFileSync(pidFile, "utf8")))).toBe(false);
  },
);

test("the fast tier is all test files but those that are listed as slow", () => {
  const fast = fastTests([]);
  expect(SLOW.filter((path) => !existsSync(join(ROOT, path)))).toEqual([]);
  expect(fast).toContain("./test/scripts/ci-run.test.ts");
  expect(fast.some((path) => SLOW.includes(path.slice(2)))).toBe(false);
  expect(fastTests(["test/core"]).every((path) => path.startsWith("./test/core/"))).toBe(true);
});
