import { expect, test } from "bun:test";
import { watchArena } from "../../src/app/index.ts";
import { loadNative, Queue, Region } from "../../src/native/index.ts";
import { describeNative, ManualClock, noteSkip } from "../support/index.ts";

const MIB = 2 ** 20;
const tool = Bun.which("fallocate");
if (tool === null) noteSkip("holes in the arena", "no fallocate on the PATH");

describeNative("the watch over the arena's memory", () => {
  test.skipIf(tool === null)("reports a hole that a process with the descriptor made", async () => {
    const native = loadNative();
    await using queue = new Queue(native, { entries: 8, threads: 1, watches: 8 });
    using region = Region.create(native, { bytes: 4 * MIB, hugePages: "off", lockMemory: "off" });
    await queue.populate(region, 0, 4 * MIB);
    const clock = new ManualClock();
    const raised: string[] = [];
    const raise = (code: string, details: string) => void raised.push(`${code}: ${details}`);
    using _watch = watchArena(region, clock, { raise });
    clock.advance(10_000);
    expect(raised).toEqual([]);
    const path = `/proc/${process.pid}/fd/${region.fd}`;
    const punched = Bun.spawnSync([tool!, "-p", "-o", `${MIB}`, "-l", `${MIB}`, path]);
    expect(punched.stderr.toString()).toBe("");
    clock.advance(5_000);
    expect(raised).toEqual([`KV_RAM_HOLES: ${MIB} bytes of the arena are not backed by memory`]);
  });
});
