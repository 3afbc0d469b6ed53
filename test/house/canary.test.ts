import { expect, test } from "bun:test";
import { join } from "node:path";
import { ROOT } from "../../scripts/lib/paths.ts";
import { readTree } from "./tree.ts";

const NAME = "HEARTH_CANARY";
/** The planted bug lies behind this door. */
const DOOR = "src/engine/protocol/index.ts";

async function bundled(canary: boolean): Promise<string> {
  const built = await Bun.build({
    entrypoints: [join(ROOT, DOOR)],
    target: "bun",
    minify: true,
    define: { [NAME]: `${canary}` },
  });
  return await built.outputs[0]!.text();
}

/** Whether a RELEASE that promises 64 handles and has none gets past its decoder. */
const TRY_IT = `
  import * as protocol from "./${DOOR}";
  import { createHandleBatch } from "./src/store/index.ts";
  const bytes = new Uint8Array(1024);
  new DataView(bytes.buffer).setUint32(0, 16, true);
  bytes[4] = protocol.Op.release;
  bytes[12] = 64;
  const reader = protocol.createFrameReader({ direction: "requests", frameBytesMax: 4096 });
  let refused = null;
  const sink = (frame) => {
    refused = protocol.decodeHandlesRequest(frame, createHandleBatch(64));
    return false;
  };
  reader.push(bytes, sink);
  console.log(refused === null ? "believed" : "refused");`;

async function tried(defines: string[]): Promise<string> {
  const words = [process.execPath, ...defines, "-e", TRY_IT];
  const child = Bun.spawn(words, { cwd: ROOT, stdout: "pipe", stderr: "inherit" });
  return (await new Response(child.stdout).text()).trim();
}

test("the planted bug is in one place, and only where its constant is set", async () => {
  const places = [...readTree()].filter(
    ([path, text]) => path.startsWith("src/") && text.includes(NAME),
  );
  expect(places.map(([path]) => path)).toEqual(["src/engine/protocol/frame.ts"]);
  expect(await tried([])).toBe("refused");
  expect(await tried(["--define", `${NAME}=true`])).toBe("believed");
});

test("the executable is built without it: nothing of it is left in the code", async () => {
  const [without, planted] = await Promise.all([bundled(false), bundled(true)]);
  expect(without).not.toContain(NAME);
  expect(without.length).toBeLessThan(planted.length);
  const bit = /\.count\s*&\s*64/;
  expect(planted).toMatch(bit);
  expect(without).not.toMatch(bit);
  const script = await Bun.file(join(ROOT, "scripts/lib/executable.ts")).text();
  expect(script).toContain(`${NAME}: false,`);
});
