import { expect, test } from "bun:test";
import { join } from "node:path";
import { loadNative, NativeError, plainListen, plainPull, Region } from "../../src/native/index.ts";
import { describeNative } from "../support/index.ts";

const MIB = 2 ** 20;

/** Both sides block their process, so each has its own. */
const SERVE = `
  const { loadNative, plainListen, plainServe, Region } = await import(process.argv[1]);
  const native = loadNative();
  const region = Region.create(native, { bytes: ${8 * MIB}, hugePages: "off", lockMemory: "off" });
  for (let slot = 0; slot < 8; slot++) region.fill(slot * ${MIB}, ${MIB}, BigInt(slot));
  const listener = plainListen(native);
  console.log(listener.port);
  for (const connections of [1, 4]) plainServe(native, region, listener, connections);
`;

describeNative("plain sockets", () => {
  const native = loadNative();
  const regionOf = (bytes: number) =>
    Region.create(native, { bytes, hugePages: "off", lockMemory: "off" });

  test("blocks arrive complete, over one connection and over several", async () => {
    const door = join(import.meta.dir, "../../src/native/index.ts");
    const server = Bun.spawn(["bun", "-e", SERVE, door], { stdout: "pipe", stderr: "inherit" });
    const reader = server.stdout.getReader();
    const port = Number(new TextDecoder().decode((await reader.read()).value));
    const region = regionOf(8 * MIB);
    for (const connections of [1, 4]) {
      region.fill(0, 8 * MIB, 99n);
      const own = { connections, inFlight: 4, blocks: 27, blockBytes: MIB };
      plainPull(native, { region, port, ...own });
      for (let slot = 0; slot < 8; slot++) {
        expect(region.firstWrong(slot * MIB, MIB, BigInt(slot))).toBeNull();
      }
    }
    expect(await server.exited).toBe(0);
    region[Symbol.dispose]();
  });

  test("invalid parameters and an absent peer are faults", () => {
    const region = regionOf(MIB);
    const { port } = plainListen(native);
    const good = { region, port, connections: 1, inFlight: 1, blocks: 1, blockBytes: MIB };
    const bad = [{ connections: 0 }, { connections: 65 }, { inFlight: 0 }, { blockBytes: 2 * MIB }];
    for (const more of [...bad, { blockBytes: 0 }, { port: 1 }]) {
      expect(() => plainPull(native, { ...good, ...more })).toThrow(NativeError);
    }
    region[Symbol.dispose]();
  });
});
