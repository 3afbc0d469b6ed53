/**
 * An engine that acquires blocks from RAM steadily and says how long that took. Words: SOCKET.
 * `start` begins to measure, `stop` ends it and answers with milliseconds.
 */
import { EngineClient } from "../../src/engine/index.ts";
import { loadNative } from "../../src/native/index.ts";
import { manifestBytes } from "../engine/agent-kit.ts";
import { Engine } from "../engine/engine.ts";
import { obey } from "./child.ts";

/** Between two requests: 500 a second. */
const PACE_MS = 2;
const BLOCKS = ["a", "b", "c", "d"];

const client = await EngineClient.connect(loadNative(), {
  ...{ socketPath: process.argv[2]!, manifest: manifestBytes("polite"), name: "polite" },
});
const engine = new Engine(client);
await engine.put(...BLOCKS);
let tookMs: number[] = [];
let misses = 0;

async function hit(): Promise<void> {
  const startMs = performance.now();
  const handles = await engine.acquire(...BLOCKS);
  tookMs.push(performance.now() - startMs);
  const granted = handles.filter(({ outcome }) => outcome === "ok");
  if (granted.length < BLOCKS.length) misses++;
  engine.release(granted);
}

void (async () => {
  for (;;) {
    await hit();
    await Bun.sleep(PACE_MS);
  }
})();

await obey({
  start() {
    tookMs = [];
    misses = 0;
  },
  stop() {
    const sorted = tookMs.sort((a, b) => a - b);
    const at = (share: number) => sorted[Math.floor(share * (sorted.length - 1))] ?? 0;
    return {
      ...{ hits: sorted.length, misses, p50: at(0.5), p99: at(0.99), p999: at(0.999) },
      max: at(1),
    };
  },
});
