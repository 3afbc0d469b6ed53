import { describe, expect, test } from "bun:test";
import { readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { STOP_MS_MAX } from "../../src/app/index.ts";
import { noteSkip, tempDir } from "../support/index.ts";
import { configOf } from "./arbitrary-config.ts";

const unit = readFileSync(new URL("../../config/hearth.service", import.meta.url), "utf8");
const dir = tempDir();

/** Every value a directive is given, in order. */
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

describe("config/hearth.service", () => {
  test("the unit starts, reloads and stops the agent as the agent expects", () => {
    expect(valuesOf("Type")).toEqual(["notify"]);
    expect(valuesOf("NotifyAccess")).toEqual(["main"]);
    expect(valuesOf("ExecStart")).toEqual([
      "/usr/local/bin/hearth agent --config /etc/hearth/hearth.toml",
    ]);
    expect(valuesOf("ExecReload")[0]).toEndWith("-HUP $MAINPID");
    expect(valuesOf("KillSignal")).toEqual(["SIGTERM"]);
    expect(Number(valuesOf("TimeoutStopSec")[0]) * 1_000).toBeGreaterThan(STOP_MS_MAX);
    expect(Number(valuesOf("WatchdogSec")[0])).toBeGreaterThan(0);
    expect(valuesOf("Restart")).toEqual(["on-failure"]);
  });

  test("the unit creates the folder of the default socket, closed to other users", () => {
    const { socket } = configOf("[kv]\nram_gib = 1\n").engine;
    expect(`/run/${valuesOf("RuntimeDirectory")[0]}`).toBe(dirname(socket));
    expect(valuesOf("RuntimeDirectoryMode")).toEqual(["0750"]);
  });

  test("the unit creates the sample file's folder for the SSD tier", () => {
    const sample = readFileSync(new URL("../../config/hearth.toml", import.meta.url), "utf8");
    const example = /^#ssd_dir = "(.*)"$/m.exec(sample)?.[1];
    expect(`/var/cache/${valuesOf("CacheDirectory")[0]}`).toBe(example!);
    expect(valuesOf("CacheDirectoryMode")).toEqual(["0750"]);
  });

  test("the unit creates the sample file's folder for the audit log", () => {
    const sample = readFileSync(new URL("../../config/hearth.toml", import.meta.url), "utf8");
    const example = /^#audit_file = "(.*)"$/m.exec(sample)?.[1];
    expect(`/var/log/${valuesOf("LogsDirectory")[0]}`).toBe(dirname(example!));
    expect(valuesOf("LogsDirectoryMode")).toEqual(["0750"]);
  });

  test("the unit lets the agent reach a broker", () => {
    const families = valuesOf("RestrictAddressFamilies")[0]!.split(" ");
    expect(families).toEqual(expect.arrayContaining(["AF_INET", "AF_INET6", "AF_UNIX"]));
    // Denied in comments only: the unit as it ships does not know where the broker is.
    expect(valuesOf("IPAddressDeny")).toEqual([]);
    expect(valuesOf("PrivateNetwork")).toEqual([]);
    // Readable for the user that runs it, not writable: credentials lie below /etc/hearth.
    expect(valuesOf("ProtectSystem")).toEqual(["strict"]);
    expect(valuesOf("InaccessiblePaths")).toEqual([]);
  });

  test("the unit lets the agent lock its arena and every engine connect", () => {
    const { clientsMax } = configOf("[kv]\nram_gib = 1\n[engine]\nclients_max = 4096\n").engine;
    expect(valuesOf("LimitMEMLOCK")).toEqual(["infinity"]);
    expect(Number(valuesOf("LimitNOFILE")[0])).toBeGreaterThan(clientsMax * 2);
  });

  test("the unit lets the agent open GPUs and RDMA devices, and no others", () => {
    expect(valuesOf("PrivateDevices")).toEqual(["no"]);
    expect(valuesOf("DevicePolicy")).toEqual(["closed"]);
    expect(valuesOf("DeviceAllow")).toEqual(["char-nvidia* rw", "char-infiniband* rw"]);
  });

  test("the unit clears the environment and permits the JIT's memory", () => {
    const unset = valuesOf("UnsetEnvironment").join(" ").split(" ");
    const inspector = ["BUN_INSPECT", "BUN_INSPECT_CONNECT_TO", "BUN_INSPECT_NOTIFY"];
    const certificates = ["SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS"];
    expect(unset).toEqual(
      expect.arrayContaining(["BUN_OPTIONS", "BUN_BE_BUN", ...inspector, ...certificates]),
    );
    for (const name of ["Environment", "EnvironmentFile", "PassEnvironment"]) {
      expect(valuesOf(name)).toEqual([]);
    }
    expect(valuesOf("MemoryDenyWriteExecute")).toEqual([]);
    expect(valuesOf("WorkingDirectory")).toEqual(["/"]);
  });

  const analyze = systemdAnalyze();
  if (analyze === null) noteSkip("hearth.service under systemd-analyze", "no version 250 or later");

  test.skipIf(analyze === null)("systemd finds nothing wrong with it", () => {
    const copy = join(dir, "hearth.service");
    writeFileSync(copy, unit.replace("/usr/local/bin/hearth", process.execPath));
    const run = Bun.spawnSync([analyze!, "verify", copy], { stderr: "pipe" });
    const complaints = run.stderr.toString().split("\n");
    expect(complaints.filter((line) => line.includes("hearth.service"))).toEqual([]);
  });

  test.skipIf(analyze === null)("systemd rates its exposure at 2.0 of 10 or less", () => {
    const copy = join(dir, "rated.service");
    writeFileSync(copy, unit);
    const arguments_ = ["security", "--offline=true", "--threshold=20", "--no-pager", copy];
    const run = Bun.spawnSync([analyze!, ...arguments_], { stderr: "pipe" });
    expect(run.stderr.toString()).toBe("");
    expect(run.exitCode).toBe(0);
  });
});
