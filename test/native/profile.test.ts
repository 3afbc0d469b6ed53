import { expect, test } from "bun:test";
import { describeNative } from "../support/index.ts";

const SCRIPT = `
  import { loadNative } from "./src/native/index.ts";
  const native = loadNative();
  for (let i = 0; i < 50; i++) native.xxh3_64(new Uint8Array(64));
`;

describeNative("the native-call profile switch", () => {
  test("prints calls, p50 and p99 of each called function", async () => {
    const child = Bun.spawn([process.execPath, "-e", SCRIPT], {
      cwd: `${import.meta.dir}/../..`,
      env: { ...process.env, HEARTH_NATIVE_PROFILE: "1" },
      stderr: "pipe",
    });
    const printed = await new Response(child.stderr).text();
    expect(await child.exited).toBe(0);
    expect(printed).toContain("p50 us    p99 us");
    expect(printed).toMatch(/hearth_xxh3_64\s+50\s+[0-9.]+\s+[0-9.]+/);
    expect(printed).not.toContain("hearth_region_create");
  });
});
