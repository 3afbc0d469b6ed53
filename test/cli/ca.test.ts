import { describe, expect, test } from "bun:test";
import { existsSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { runCli } from "../../src/cli/index.ts";
import { systemClock, type WorkerId } from "../../src/core/index.ts";
import { readCredentials } from "../../src/peers/index.ts";
import { makeCluster, noteSkip, tempDir } from "../support/index.ts";
import { memoryIo } from "./memory-io.ts";

const MAIN = join(import.meta.dir, "../../src/main.ts");
const folder = tempDir();
let folders = 0;
const fresh = () => join(folder, `d${folders++}`);

async function hearth(...words: string[]) {
  const io = memoryIo();
  const code = await runCli(["ca", ...words], io);
  return { code, out: io.outText(), err: io.errText() };
}

async function document(...words: string[]): Promise<Record<string, string>> {
  const { code, out, err } = await hearth(...words, "--json");
  expect({ code, err }).toEqual({ code: 0, err: "" });
  return JSON.parse(out);
}

const modeOf = (path: string) => statSync(path).mode & 0o777;

async function authority(...words: string[]): Promise<string> {
  const dir = fresh();
  await document("init", dir, ...words);
  return dir;
}

describe("ca init and issue", () => {
  test("make what an agent takes", async () => {
    const dir = await authority("--cluster", "prod.example");
    const out = fresh();
    const issued = await document("issue", dir, "--worker", "gpu-01", "--out", out);
    const files = {
      certFile: issued.certificate!,
      keyFile: issued.key!,
      caFile: issued.authorities!,
    };
    const name = { cluster: "prod.example", worker: "gpu-01" as WorkerId };
    const { credentials, warnings } = await readCredentials(files, name, systemClock.wallMs());
    expect(warnings).toEqual([]);
    expect(new Date(issued.not_after!).getTime()).toBe(credentials.notAfterMs);
    expect(readdirSync(dir).sort()).toEqual(["ca.crt", "ca.key"]);
    expect(readdirSync(out).sort()).toEqual(["ca.crt", "gpu-01.crt", "gpu-01.key"]);
    expect([modeOf(dir), modeOf(join(dir, "ca.key")), modeOf(files.keyFile)]).toEqual([
      0o700, 0o600, 0o600,
    ]);
    expect(modeOf(files.certFile)).toBe(0o644);
  });

  test("what they make is good in the eyes of openssl", async () => {
    if (Bun.which("openssl") === null) return noteSkip("openssl", "openssl is not installed");
    const dir = await authority();
    const { certificate, authorities } = await document(
      ...["issue", dir, "--worker", "a", "--out", fresh(), "--days", "90"],
    );
    const verify = ["verify", "-x509_strict", "-CAfile", authorities!, certificate!];
    const { exitCode, stdout, stderr } = Bun.spawnSync(["openssl", ...verify]);
    expect(`${exitCode} ${stdout}${stderr}`).toBe(`0 ${certificate}: OK\n`);
  });

  test("never write over a key", async () => {
    const dir = await authority();
    const out = fresh();
    const before = readFileSync(join(dir, "ca.key"), "utf8");
    expect((await hearth("init", dir)).err).toContain("ca.key already exists");
    rmSync(join(dir, "ca.key"));
    expect((await hearth("init", dir)).err).toContain("ca.crt already exists");
    writeFileSync(join(dir, "ca.key"), before);
    const { key } = await document("issue", dir, "--worker", "a", "--out", out);
    const made = readFileSync(key!, "utf8");
    const again = await hearth("issue", dir, "--worker", "a", "--out", out);
    expect(again).toMatchObject({ code: 2, out: "" });
    expect(again.err).toContain("a.key already exists: use --renew");
    expect(readFileSync(key!, "utf8")).toBe(made);
    expect(again.err).not.toContain(made.split("\n")[1]!);
  });

  test("many that make the same authority at once: one key, and it fits", async () => {
    const dir = fresh();
    const program = `
      import { initAuthority } from "./src/peers/index.ts";
      const validity = { notBeforeMs: 0, notAfterMs: 4e12 };
      initAuthority(${JSON.stringify(dir)}, "c", validity);`;
    const children = Array.from({ length: 4 }, () =>
      Bun.spawn([process.execPath, "-e", program], { stdout: "ignore", stderr: "ignore" }),
    );
    const codes = await Promise.all(children.map((child) => child.exited));
    expect(codes.filter((code) => code === 0)).toHaveLength(1);
    expect(readdirSync(dir).sort()).toEqual(["ca.crt", "ca.key"]);
    await document("issue", dir, "--worker", "a", "--out", fresh());
  });

  test("renew a certificate with the key that is there, or make both", async () => {
    const dir = await authority();
    const out = fresh();
    const words = ["issue", dir, "--worker", "a", "--out", out, "--renew"];
    const first = await document(...words);
    const key = readFileSync(first.key!, "utf8");
    const second = await document(...words, "--days", "7");
    expect([first.renewed, second.renewed]).toEqual([false, true] as never[]);
    expect(readFileSync(first.key!, "utf8")).toBe(key);
    expect(second.fingerprint).not.toBe(first.fingerprint);
  });

  test("let no certificate outlive its authority", async () => {
    const dir = await authority("--days", "10");
    const { not_after: end } = await document("show", join(dir, "ca.crt")).then(
      ({ certificates }) => (certificates as unknown as { not_after: string }[])[0]!,
    );
    const issued = await document("issue", dir, "--worker", "a", "--out", fresh());
    expect(issued.not_after).toBe(end);
  });

  test("leave nothing half done where the disk is full", async () => {
    const dir = await authority();
    const out = fresh();
    await document("issue", dir, "--worker", "a", "--out", out);
    const words = [MAIN, "ca", "issue", dir, "--worker", "b", "--out", out];
    // No file may grow: each write fails as on a full disk.
    const limited = ["bash", "-c", 'trap "" XFSZ; ulimit -f 0; exec "$@"', "-", process.execPath];
    const child = Bun.spawnSync([...limited, ...words], { stdout: "ignore", stderr: "pipe" });
    expect(child.exitCode).toBe(1);
    expect(child.stderr.toString()).toContain("EFBIG");
    expect(readdirSync(out).sort()).toEqual(["a.crt", "a.key", "ca.crt"]);
  });

  const REFUSED: [string, (dir: string) => string[], RegExp][] = [
    ["no folder", () => ["issue", join(folder, "none"), "--worker", "a"], /cannot read .*: ENOENT/],
    ["a worker of no name", (dir) => ["issue", dir, "--worker", "a.b"], /write 1 to 64 letters/],
    ["a worker called ca", (dir) => ["issue", dir, "--worker", "CA"], /choose another worker name/],
    [
      "no days",
      (dir) => ["issue", dir, "--worker", "a", "--days", "0"],
      /is 0, which is too small/,
    ],
  ];
  test.each(REFUSED)("refuse in words: %s", async (_what, words, expected) => {
    const out = fresh();
    const { code, err } = await hearth(...words(await authority()), "--out", out);
    expect(code).toBe(2);
    expect(err).toMatch(expected);
    expect(existsSync(out)).toBe(false);
  });

  test("refuse a folder that is no authority's, or another's", async () => {
    const dir = await authority();
    const out = fresh();
    await document("issue", dir, "--worker", "a", "--out", out);
    const issue = (from: string) => hearth("issue", from, "--worker", "b", "--out", out);
    expect((await issue(await authority())).err).toContain("ca.crt belongs to another authority");
    const other = makeCluster().authority;
    writeFileSync(join(dir, "ca.key"), other.key);
    expect((await issue(dir)).err).toContain("ca.key is not the key of");
    writeFileSync(join(dir, "ca.crt"), readFileSync(join(out, "a.crt")));
    expect((await issue(dir)).err).toContain("is not the certificate of a cluster's authority");
    expect((await hearth("init", fresh(), "--cluster", "Prod")).err).toContain("small letters");
  });
});

describe("ca show", () => {
  test("tells whose it is, and who would let it in", async () => {
    const dir = await authority("--cluster", "prod");
    const out = fresh();
    const { certificate, key } = await document("issue", dir, "--worker", "a", "--out", out);
    const shown = await hearth("show", certificate!, "--ca", join(dir, "ca.crt"));
    expect(shown.code).toBe(0);
    expect(shown.out).toContain("names        uri:spiffe://prod/hearth/a dns:a");
    expect(shown.out).toEndWith("\ngood\n");
    const strangers = join(await authority("--cluster", "prod"), "ca.crt");
    const refused = await hearth("show", certificate!, "--ca", strangers);
    expect(refused.code).toBe(1);
    expect(refused.out).toEndWith("\nno authority of this cluster signed it\n");
    expect((await hearth("show", key!)).err).toContain("holds no certificate in PEM");
    const both = join(folder, "both.pem");
    writeFileSync(both, `${readFileSync(certificate!)}${readFileSync(join(dir, "ca.crt"))}`);
    const { certificates } = (await document("show", both)) as never as {
      certificates: { kind: string; worker: string | null; days_left: number }[];
    };
    expect(certificates).toMatchObject([
      { kind: "host", cluster: "prod", worker: "a", days_left: 364, uses: ["server", "client"] },
      { kind: "authority", worker: null, uses: ["sign certificates"] },
    ]);
  });
});
