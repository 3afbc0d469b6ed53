import { expect, test } from "bun:test";
import { readdirSync } from "node:fs";
import { join } from "node:path";
import { runCli } from "../../../src/cli/index.ts";
import { memoryIo } from "../../cli/memory-io.ts";
import { describeNative, tempDir } from "../../support/index.ts";

const MAIN = join(import.meta.dir, "../../../src/main.ts");

/** Rows of `bench ssd`, in this process. */
async function benchSsd(...words: string[]) {
  const io = memoryIo();
  const code = await runCli(["bench", "ssd", ...words, "--json"], io);
  const lines = io.outText().trimEnd().split("\n");
  return { code, err: io.errText(), rows: code === 0 ? lines.map((line) => JSON.parse(line)) : [] };
}

describeNative("bench ssd", () => {
  test("one row for each size, and nothing left behind", async () => {
    const dir = tempDir();
    const words = ["--dir", dir, "--without-fio", "--rounds", "2", "--bytes", "4MiB"];
    const { code, rows } = await benchSsd(...words, "--block-bytes", "64KiB,256KiB");
    expect(code).toBe(0);
    expect(rows.map((row) => row.block_bytes)).toEqual([65_536, 262_144]);
    for (const row of rows) {
      const { read_gbps, write_gbps, overwrite_gbps, read_p50_ms, read_p99_ms } = row;
      for (const value of [read_gbps, write_gbps, overwrite_gbps, read_p50_ms, read_p99_ms]) {
        expect(value).toBeGreaterThan(0);
      }
      expect(read_p99_ms).toBeGreaterThanOrEqual(read_p50_ms);
      expect(row).toMatchObject({ depth: 64, rounds: 2, bytes: 4 * 2 ** 20, fio_engine: null });
      for (const name of ["fio_read_gbps", "fio_write_gbps", "read_ratio", "write_ratio"]) {
        expect(row[name]).toBeNull();
      }
      expect(["io_uring", "threads"]).toContain(row.method);
      expect(typeof row.direct).toBe("boolean");
      expect(typeof row.registered).toBe("boolean");
    }
    expect(readdirSync(dir)).toEqual([]);
  });

  test("bench ssd refuses a folder without room, with a message", async () => {
    const { code, err } = await benchSsd("--dir", tempDir(), "--bytes", "512TiB", "--without-fio");
    expect(code).toBe(4);
    expect(err).toContain("free, this takes ");
  });

  test("bench ssd refuses a missing folder, with a message", async () => {
    const { code, err } = await benchSsd("--dir", join(tempDir(), "none"), "--without-fio");
    expect(code).toBe(4);
    expect(err).toContain("give --dir a folder that is there and yours");
  });

  test("many files: created, found after a stop and after a kill", async () => {
    const dir = tempDir();
    const words = ["--dir", dir, "--files", "800", "--block-bytes", "4KiB", "--json"];
    const bench = Bun.spawn([process.execPath, MAIN, "bench", "ssd", ...words], {
      stdout: "pipe",
      stderr: "pipe",
    });
    const [out, err] = await Promise.all([bench.stdout.text(), bench.stderr.text()]);
    expect({ code: await bench.exited, err }).toEqual({ code: 0, err: "" });
    const { files, block_bytes, adopted_after_kill, ...figures } = JSON.parse(out);
    expect({ files, block_bytes }).toEqual({ files: 800, block_bytes: 4096 });
    expect(adopted_after_kill).toBeGreaterThanOrEqual(0);
    expect(Object.keys(figures)).toEqual([
      "create_per_s",
      "create_first_per_s",
      "create_last_per_s",
      "last_over_first",
      "open_ready_s",
      "open_ready_after_kill_s",
      "lookup_p99_us",
      "rss_mb",
    ]);
    for (const value of Object.values(figures)) expect(value).toBeGreaterThan(0);
    expect(readdirSync(dir)).toEqual([]);
  });

  test("many files want one size", async () => {
    const { code, err } = await benchSsd("--files", "800");
    expect(code).toBe(2);
    expect(err).toContain("needs one --block-bytes");
  });
});
