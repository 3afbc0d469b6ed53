import { expect, test } from "bun:test";
import { join } from "node:path";
import { ROOT } from "../../scripts/lib/paths.ts";
import { hostTarget } from "../../src/native/index.ts";

const NAME = "HEARTH_FAULTS";
/** Where crash points are: in the program, and in the worker that has the index. */
const ENTRIES = ["src/store/index.ts", "src/store/index/index-worker.ts"];

async function bundled(entry: string, faults: boolean): Promise<string> {
  const built = await Bun.build({
    entrypoints: [join(ROOT, entry)],
    target: "bun",
    minify: true,
    // Of the libraries, only that of one platform is sure to be built.
    define: { [NAME]: `${faults}`, HEARTH_TARGET: JSON.stringify(hostTarget) },
  });
  return await built.outputs[0]!.text();
}

test.each(ENTRIES)("%s ships without a way to plan faults", async (entry) => {
  const [without, planned] = await Promise.all([bundled(entry, false), bundled(entry, true)]);
  const arming = `process.env.${NAME}`;
  expect(planned).toContain(arming);
  expect(without).not.toContain(arming);
  // Of a point nothing is left but the call of an empty function.
  expect(without).toMatch(/function [\w$]+\([\w$]*\)\{\}/);
});

test("what ships has the time from its host alone", async () => {
  const [without, planned] = await Promise.all(
    [false, true].map((faults) => bundled("src/app/agent-clock.ts", faults)),
  );
  expect(planned).toContain("process.env.HEARTH_WALL_OFFSET");
  expect(without).not.toContain("HEARTH_WALL_OFFSET");
});

test("the executable is built without them", async () => {
  const script = await Bun.file(join(ROOT, "scripts/lib/executable.ts")).text();
  expect(script).toContain('return ensureForHost("hearth", { faults: false });');
});
