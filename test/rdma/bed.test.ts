import { describe, expect, test } from "bun:test";
import { mkdirSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { tempDir } from "../support/index.ts";
import { Archive } from "./initrd.ts";
import { kernelElf, MODULES, orderedModules } from "./kernel.ts";
import { type CaseResult, Steps, testsOf } from "./steps.ts";

interface Entry {
  readonly name: string;
  readonly mode: number;
  readonly device: readonly number[];
  readonly data: string;
}

/** Reads the format as the kernel does (Linux, Documentation/driver-api/early-userspace). */
function entriesOf(archive: Uint8Array): Entry[] {
  const text = (from: number, to: number) => Buffer.from(archive.subarray(from, to)).toString();
  const padded = (at: number) => Math.ceil(at / 4) * 4;
  const entries: Entry[] = [];
  for (let at = 0; at < archive.length; ) {
    expect(text(at, at + 6)).toBe("070701");
    const start = at;
    const field = (index: number) =>
      Number.parseInt(text(start + 6 + index * 8, start + 14 + index * 8), 16);
    const dataAt = padded(start + 110 + field(11));
    const name = text(start + 110, start + 110 + field(11) - 1);
    const data = text(dataAt, dataAt + field(6));
    entries.push({ name, mode: field(1), device: [field(9), field(10)], data });
    at = padded(dataAt + field(6));
  }
  return entries;
}

/** A compressed kernel with `elf` in it, as small as its header allows. */
function imageOf(elf: Uint8Array): Uint8Array {
  const payload = Bun.zstdCompressSync(elf);
  const image = new Uint8Array(1_024 + payload.length + 4);
  const header = new DataView(image.buffer);
  header.setUint8(0x1f1, 1);
  header.setUint32(0x24c, payload.length + 4, true);
  image.set(payload, 1_024);
  header.setUint32(1_024 + payload.length, elf.length, true);
  return image;
}

describe("what guests boot from", () => {
  test("an archive has each folder before what is in it, links and the console", () => {
    const root = tempDir();
    mkdirSync(join(root, "usr/bin"), { recursive: true });
    writeFileSync(join(root, "usr/bin/ip"), "iproute");
    writeFileSync(join(root, "usr/bin/left-out"), "");
    symlinkSync("usr/bin/ip", join(root, "ip"));
    const file = join(tempDir(), "cpio");
    const wanted = (path: string) => !path.includes("left-out");
    new Archive().console().file("init", "abc").tree(root, wanted).write(file);
    expect(entriesOf(readFileSync(file))).toEqual([
      { name: "dev", mode: 0o040755, device: [0, 0], data: "" },
      { name: "dev/console", mode: 0o020600, device: [5, 1], data: "" },
      { name: "init", mode: 0o100755, device: [0, 0], data: "abc" },
      { name: "ip", mode: 0o120777, device: [0, 0], data: "usr/bin/ip" },
      { name: "usr", mode: 0o040755, device: [0, 0], data: "" },
      { name: "usr/bin", mode: 0o040755, device: [0, 0], data: "" },
      { name: "usr/bin/ip", mode: 0o100755, device: [0, 0], data: "iproute" },
      { name: "TRAILER!!!", mode: 0, device: [0, 0], data: "" },
    ]);
  });

  test("the kernel is found in its image, and anything else there is refused", async () => {
    const elf = new Uint8Array(5_000).fill(7);
    elf.set([0x7f, 0x45, 0x4c, 0x46]);
    expect(await kernelElf(imageOf(elf))).toEqual(elf);
    expect(kernelElf(imageOf(new Uint8Array(100)))).rejects.toThrow("no ELF file");
    expect(kernelElf(new Uint8Array(4_096))).rejects.toThrow("neither by xz nor by zstd");
  });

  test("modules follow what they depend on; those that are built in are left out", async () => {
    const root = tempDir();
    const folder = join(root, "lib/modules/1.0");
    mkdirSync(join(folder, "kernel"), { recursive: true });
    const needs: Record<string, string> = { rdma_rxe: "ib-core,udp_tunnel", ib_uverbs: "ib_core" };
    const [builtin, ...own] = [...MODULES, "ib_core", "udp_tunnel"];
    for (const name of own) {
      const text = `license=GPL\0depends=${needs[name] ?? ""}\0name=${name}\0`;
      writeFileSync(join(folder, "kernel", `${name.replaceAll("_", "-")}.ko`), text);
    }
    writeFileSync(join(folder, "modules.builtin"), `kernel/${builtin}.ko\n`);
    const paths = await orderedModules(root, "1.0");
    const at = (name: string) => paths.indexOf(`lib/modules/1.0/kernel/${name}.ko`);
    expect(paths).toHaveLength(own.length);
    expect(at("ib-core")).toBeLessThan(at("ib-uverbs"));
    expect(at("udp-tunnel")).toBeLessThan(at("rdma-rxe"));
    writeFileSync(join(folder, "modules.builtin"), "");
    expect(orderedModules(root, "1.0")).rejects.toThrow(`no module ${builtin}`);
  });
});

describe("what guests say", () => {
  test("is read as one case a test, with the words of those that failed", () => {
    const xml = `<testsuite><testcase name="a &lt;b&gt; &amp; c" time="0.5" />
      <testcase name="two" classname="x" time="1"><failure message="no"/></testcase>
      <testcase name="three" time="0"><skipped/></testcase></testsuite>`;
    expect(testsOf(xml)).toEqual([
      { name: "a <b> & c", outcome: "ok", seconds: 0.5, words: [] },
      { name: "two", outcome: "failed", seconds: 1, words: [] },
      { name: "three", outcome: "skipped", seconds: 0, words: [] },
    ]);
  });

  test("a guest that ends in the middle of a step has failed it", async () => {
    const folder = tempDir();
    const told: CaseResult[] = [];
    const steps = new Steps("one", folder, (result) => void told.push(result));
    writeFileSync(join(folder, "second.log"), "the last words\n");
    for (const line of ["begin first", "end first 0", "begin second"]) steps.onLine(line);
    const guest = { name: "one", ended: Promise.resolve({ kind: "late" }), tail: () => [] };
    await steps.over(guest as never);
    expect(told.map(({ name, outcome }) => `${name} ${outcome}`)).toEqual([
      ...["first ok", "second failed"],
    ]);
    expect(told[1]!.words).toEqual(["the guest one ended: late", "the last words"]);
  });

  test("without QEMU there is a line that says so, and a failure where it is wanted", async () => {
    const run = async (required: string) => {
      const env = { PATH: tempDir(), REQUIRE_RDMA: required };
      const command = [process.execPath, join(import.meta.dir, "../lanes.ts"), "rdma", "--json"];
      const child = Bun.spawn(command, { env, stdout: "pipe", stderr: "pipe" });
      const said = await new Response(child.stderr).text();
      return { code: await child.exited, said, json: await new Response(child.stdout).json() };
    };
    const [skipped, required] = await Promise.all([run("0"), run("1")]);
    expect(skipped).toMatchObject({ code: 0, json: { skipped: expect.any(String) } });
    expect(skipped.said).toStartWith("skipped: rdma: no guests here: ");
    expect(required.code).toBe(1);
    expect(required.said).toStartWith("required: ");
  });
});
