/** A process of its own: reads blocks from RAM all the time and says how long that takes. */
import { LAYER_ALL } from "../../src/core/index.ts";
import { TierBit } from "../../src/engine/protocol/index.ts";
import { createHandleBatch } from "../../src/store/index.ts";
import { Engine } from "../engine/engine.ts";
import { batchOf, outcomeOf } from "../store/names.ts";
import { BLOCK_BYTES, connectEngine } from "./host.ts";

/** One window, as a line of JSON. Microseconds. */
export interface ReadWindow {
  readonly reads: number;
  readonly p50: number;
  readonly p99: number;
  readonly max: number;
  readonly misses: number;
  readonly wrong: number;
}

const BLOCKS = 16;
const WINDOW_MS = 2_000;
/** Between two reads: the machine has other things to do as well. */
const PAUSE_MS = 1;
const PROVED_ONE_IN = 16;

if (import.meta.main) {
  const engine = new Engine(await connectEngine(process.argv[2]!, "reader"));
  const names = Array.from({ length: BLOCKS }, (_, at) => `hot-${at}`);
  await engine.put(...names.map((name) => ({ name, bytes: BLOCK_BYTES })));
  const batches = names.map((name) => batchOf([name], LAYER_ALL));
  const out = createHandleBatch(1);
  const options = { tiers: TierBit.ram, deadlineMs: 1_000, stopAtMiss: false };
  let isOver = false;
  process.stdin.once("data", () => {
    isOver = true;
  });
  for (let reads = 0; !isOver; ) {
    const times: number[] = [];
    let [misses, wrong] = [0, 0];
    const endMs = performance.now() + WINDOW_MS;
    while (performance.now() < endMs && !isOver) {
      const at = reads++ % BLOCKS;
      const startMs = performance.now();
      await engine.client.acquire(batches[at]!, options, out);
      times.push((performance.now() - startMs) * 1_000);
      if (outcomeOf(out.outcome[0]!) !== "ok") misses++;
      else {
        const handle = {
          ...{ name: names[at]!, outcome: "ok" as const, slot: out.slot[0]! },
          ...{ generation: out.generation[0]!, offset: out.offset[0]! },
          ...{ bytes: out.bytes[0]!, checksum: out.checksum[0]! },
        };
        if (reads % PROVED_ONE_IN === 0 && !engine.proves(handle)) wrong++;
        engine.release([handle]);
      }
      await Bun.sleep(PAUSE_MS);
    }
    const window: ReadWindow = { ...spreadOf(times), misses, wrong };
    console.log(JSON.stringify(window));
  }
  await engine[Symbol.asyncDispose]();
  process.exit(0);
}

function spreadOf(times: number[]): Pick<ReadWindow, "reads" | "p50" | "p99" | "max"> {
  times.sort((a, b) => a - b);
  const at = (share: number) => times[Math.min(times.length - 1, Math.floor(times.length * share))];
  return { reads: times.length, p50: at(0.5) ?? 0, p99: at(0.99) ?? 0, max: times.at(-1) ?? 0 };
}
