import { expect, test } from "bun:test";
import { readdirSync } from "node:fs";
import { join } from "node:path";
import { describeNative, describePython, tempDir } from "../../support/index.ts";
import { standIn } from "../../support/stand-ins.ts";

/** A page: keys and values of 16 tokens, 2 heads of 16 values, 16 bits each. */
const BLOCK_BYTES = 2 * 16 * 2 * 16 * 2;
const LAYERS = 4;

const MAIN = join(import.meta.dir, "../../../src/main.ts");

/** Rows of `bench ttft`, which starts its agent from the same program. */
async function benchTtft(words: readonly string[], plan = "") {
  const bench = Bun.spawn([process.execPath, MAIN, "bench", "ttft", "--json", ...words], {
    env: { ...process.env, STANDIN_CUDA: plan },
    stdout: "pipe",
    stderr: "pipe",
  });
  const [out, err] = await Promise.all([bench.stdout.text(), bench.stderr.text()]);
  const code = await bench.exited;
  const lines = out.trimEnd().split("\n");
  return { code, err, rows: code === 0 ? lines.map((line) => JSON.parse(line)) : [] };
}

describeNative("bench ttft", () => {
  const tiny = ["--library", standIn("libcuda.so.1").path, "--shapes", "tiny", "--compute", "hash"];

  describePython("an engine without PyTorch", (python) => {
    test("blocks restored from RAM and from SSD are equal to the computed ones", async () => {
      const words = ["--python", python, "--prompts", "100,333", "--block-tokens", "16"];
      const dir = tempDir();
      const more = ["--rounds", "1", "--dir", dir];
      const { code, err, rows } = await benchTtft([...tiny, ...words, ...more]);
      expect({ code, err }).toEqual({ code: 0, err: "" });
      expect(rows.map((row) => [row.prompt_tokens, row.computed_tokens])).toEqual([
        [100, 68],
        [333, 77],
      ]);
      expect(readdirSync(dir)).toEqual([]);
      for (const row of rows) {
        expect(row).toMatchObject({ ram_identical: true, ssd_identical: true, stand_in: true });
        expect(row.pageable).toBe(0);
        const blocks = (row.prompt_tokens - row.computed_tokens) / 16;
        expect(row.mib).toBe((blocks * BLOCK_BYTES * LAYERS) / 2 ** 20);
        for (const name of ["prefill_ms", "ram_ms", "ram_ratio", "ram_gbps", "bare_gbps"]) {
          expect(row[name]).toBeGreaterThan(0);
        }
        for (const name of ["ssd_ms", "ssd_ratio", "ssd_gbps"]) {
          expect(row[name]).toBeGreaterThan(0);
        }
      }
    });

    test("one flipped bit in a restored block changes the logits", async () => {
      const words = ["--python", python, "--prompts", "100", "--block-tokens", "16"];
      const more = ["--rounds", "1", "--without-ssd"];
      const { code, err, rows } = await benchTtft([...tiny, ...words, ...more], "flip@5");
      expect({ code, err }).toEqual({ code: 0, err: "" });
      expect(rows).toMatchObject([{ ram_identical: false, ssd_identical: null }]);
    });

    test("a driver that cannot run says why", async () => {
      const words = ["--python", python, "--driver", tempDir(), "--without-ssd"];
      const { code, err } = await benchTtft([...tiny, ...words]);
      expect(code).toBe(4);
      expect(err).toContain("the driver ended: ");
      expect(err).toContain("hearth_bench");
    });
  });

  test("bench ttft without a GPU ends with a message", async () => {
    const { code, err } = await benchTtft([...tiny, "--without-ssd"], "devices=0");
    expect(code).toBe(4);
    expect(err).toContain("the driver lists no GPU");
  });
});
