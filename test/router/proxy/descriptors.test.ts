import { expect, test } from "bun:test";
import { join } from "node:path";
import { describeNative } from "../../support/index.ts";

describeNative("a proxy without a free file descriptor", () => {
  test("the proxy answers with its own error and does not blame a worker", async () => {
    const main = join(import.meta.dir, "descriptors-main.ts");
    const command = ["sh", "-c", 'ulimit -n 160; exec "$0" "$1"', process.execPath, main];
    const run = Bun.spawn(command, { stdout: "pipe", stderr: "inherit" });
    const text = await new Response(run.stdout).text();
    expect(JSON.parse(text)).toMatchObject({
      ...{ taken: true, refused: 500, answered: 200, retries: 0, timesOut: 0 },
      faults: [expect.stringContaining("out of file descriptors")],
    });
  });
});
