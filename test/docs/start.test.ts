import { expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { createServer } from "node:net";
import { join } from "node:path";
import { ROOT } from "../../scripts/lib/paths.ts";
import { describeNative, describePython, hearthExecutable, tempDir } from "../support/index.ts";

/** Shell blocks of a page, in order. */
function shellBlocks(page: string): string[] {
  const text = readFileSync(join(ROOT, page), "utf8");
  return [...text.matchAll(/^```sh\n([\s\S]*?)^```$/gm)].map(([, block]) => block!);
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, "127.0.0.1");
  await new Promise((resolve) => server.once("listening", resolve));
  const { port } = server.address() as { port: number };
  await new Promise((resolve) => server.close(resolve));
  return port;
}

describeNative("docs/start.md", () => {
  describePython("docs/start.md", () => {
    test("leads from an executable to blocks that survive a restart, as printed", async () => {
      const blocks = shellBlocks("docs/start.md").filter((block) => !block.includes("./dev build"));
      expect(blocks.length).toBeGreaterThan(5);
      const script = ["set -e", "set -m", ...blocks]
        .join("\n")
        .replaceAll("./dist/hearth", await hearthExecutable())
        .replaceAll("/tmp/hearth-try", join(tempDir(), "try"))
        .replaceAll("7171", String(await freePort()));
      const child = Bun.spawn(["bash", "-c", script], {
        cwd: ROOT,
        stdout: "pipe",
        stderr: "pipe",
      });
      const [out, err] = await Promise.all([
        new Response(child.stdout).text(),
        new Response(child.stderr).text(),
      ]);
      expect(`${await child.exited} ${err}`).toStartWith("0 ");
      expect(out).toContain("hit: [True, True]\n");
      // After the restart both blocks are on SSD.
      expect(out.match(/^ +[01] .* ssd /gm)).toHaveLength(2);
    });
  });
});
