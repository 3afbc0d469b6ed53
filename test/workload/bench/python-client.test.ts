import { expect, test } from "bun:test";
import { join } from "node:path";
import { describeNative, describePython } from "../../support/index.ts";

const MAIN = join(import.meta.dir, "../../../src/main.ts");

/** Both clients, on blocks that are quickly moved. */
async function benchPythonClient(python: string) {
  const words = ["bench", "engine", "--client", "python", "--python", python, "--json"];
  const few = ["--rounds", "1", "--block-bytes", "64KiB"];
  const bench = Bun.spawn([process.execPath, MAIN, ...words, ...few], {
    stdout: "pipe",
    stderr: "pipe",
  });
  const [out, err] = await Promise.all([bench.stdout.text(), bench.stderr.text()]);
  return { code: await bench.exited, out, err };
}

describeNative("bench engine", () => {
  describePython("--client python", (python) => {
    test("measures both clients, and Redis or the reason why not", async () => {
      const { code, out, err } = await benchPythonClient(python);
      expect({ code, err: code === 0 ? "" : err }).toEqual({ code: 0, err: "" });
      const { python: version, native, ...figures } = JSON.parse(out);
      expect(version).toMatch(/^3\./);
      expect(native).toBeTrue();
      const skipped = /^skipped: Redis: ./m.test(err);
      for (const [name, value] of Object.entries(figures)) {
        if (name.startsWith("redis") && skipped) expect([name, value]).toEqual([name, null]);
        else expect(value).toBeGreaterThan(0);
      }
    });
  });
});
