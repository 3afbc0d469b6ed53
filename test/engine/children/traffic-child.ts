/**
 * Many engines in one process, each with its own random operations on the same few blocks.
 * Arguments: SOCKET SEED ENGINES STEPS. Prints `connected`, waits for a line, then prints one line
 * of JSON with its results. Every byte read was verified.
 */
import { type Random, randomBelow, seededRandom } from "../../../src/core/index.ts";
import { EngineClient } from "../../../src/engine/index.ts";
import { loadNative } from "../../../src/native/index.ts";
import { chain } from "../../store/names.ts";
import { manifestBytes } from "../agent-kit.ts";
import { Engine } from "../engine.ts";

const [socketPath, seed, engines, steps] = process.argv.slice(2) as [string, ...string[]];
const seen = { wrong: 0, proven: 0, stored: 0 };

async function connect(name: string): Promise<Engine> {
  const manifest = manifestBytes("traffic");
  return new Engine(await EngineClient.connect(loadNative(), { socketPath, manifest, name }));
}

/** A prompt of one to four blocks. Prompts share their beginnings. */
function prompt(random: Random): string[] {
  const words = Array.from(
    { length: 1 + randomBelow(random, 4) },
    () => "abcd"[randomBelow(random, 4)]!,
  );
  return chain(words.join("/"));
}

async function read(engine: Engine, names: readonly string[], linger: number): Promise<void> {
  const handles = await engine.acquire(...names);
  const held = handles.filter(({ outcome }) => outcome === "ok");
  const prove = () => {
    for (const handle of held) {
      if (engine.proves(handle)) seen.proven++;
      else seen.wrong++;
    }
  };
  prove();
  // A held block stays unchanged, regardless of the other engines.
  for (let i = 0; i < linger; i++) await engine.client.ping(new Uint8Array(8));
  prove();
  engine.release(held);
}

async function write(engine: Engine, names: readonly string[], give: boolean): Promise<void> {
  const handles = await engine.reserve(...names);
  const granted = handles.filter(({ outcome }) => outcome === "ok");
  if (granted.length === 0) return;
  if (give) {
    await engine.abort(granted);
    return;
  }
  engine.write(granted);
  const outcomes = await engine.commit(granted);
  seen.stored += outcomes.filter((outcome) => outcome === "ok").length;
}

async function live(engine: Engine, number: number): Promise<void> {
  const random = seededRandom(Number(seed) * 1_000 + number);
  for (let step = 0; step < Number(steps); step++) {
    const names = prompt(random);
    const dice = randomBelow(random, 10);
    if (dice < 5) await read(engine, names, randomBelow(random, 3));
    else if (dice < 9) await write(engine, names, dice === 8);
    else await engine.match(...names);
  }
  await engine[Symbol.asyncDispose]();
}

const names = Array.from({ length: Number(engines) }, (_, number) => `traffic-${seed}-${number}`);
const connected = await Promise.all(names.map(connect));
console.log("connected");
for await (const _line of console) break;
await Promise.all(connected.map(live));
console.log(JSON.stringify(seen));
process.exit(0);
