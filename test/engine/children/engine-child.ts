/**
 * An engine in its own process, controlled line by line, so that tests can stop or kill it at any
 * point. Arguments: SOCKET TENANT. Each line of standard input is `[command, ...arguments]`; each
 * is answered by a line with its result.
 */
import { EngineClient } from "../../../src/engine/index.ts";
import { loadNative } from "../../../src/native/index.ts";
import { seedOf } from "../../store/names.ts";
import { manifestBytes } from "../agent-kit.ts";
import { Engine, type Handle } from "../engine.ts";

const [socketPath, tenant] = process.argv.slice(2) as [string, string];
const client = await EngineClient.connect(loadNative(), {
  socketPath,
  manifest: manifestBytes(tenant),
  name: `child-${process.pid}`,
});
const engine = new Engine(client);
const held: Handle[] = [];

const commands: Record<string, (...names: string[]) => unknown> = {
  put: (...names) => engine.put(...names),
  get: (...names) => engine.get(...names),
  async reserve(...names) {
    held.splice(0, held.length, ...(await engine.reserve(...names)));
    return held.map(({ outcome, slot }) => [outcome, slot]);
  },
  async reserveLarge(...names) {
    const blocks = names.map((name) => ({ name, bytes: 200_000 }));
    held.splice(0, held.length, ...(await engine.reserve(...blocks)));
    return held.map(({ outcome }) => outcome);
  },
  async acquire(...names) {
    held.splice(0, held.length, ...(await engine.acquire(...names)));
    return held.map(({ outcome }) => outcome);
  },
  write: () => engine.write(held),
  writeHalf() {
    for (const { name, offset, bytes } of held) {
      client.arena.fill(offset, bytes >> 1, seedOf(name));
    }
  },
  commit: () => engine.commit(held),
  proves: () => held.map((handle) => engine.proves(handle)),
  release() {
    engine.release(held);
    return client.ping(new Uint8Array(8)).then(() => "ok");
  },
  ping: () => client.ping(new Uint8Array(8)).then(() => "ok"),
  /** Disconnects without releasing anything, and stays alive. */
  hangUp: () => client[Symbol.asyncDispose]().then(() => "ok"),
  closed: () => client.closed.then(({ code, text }) => ({ code, text })),
  /** Sends the commit and exits without waiting for the outcome. */
  commitAndDie() {
    void engine.commit(held);
    queueMicrotask(() => queueMicrotask(() => process.kill(process.pid, "SIGKILL")));
  },
};

console.log(JSON.stringify("ready"));
for await (const line of console) {
  const [command, ...names] = JSON.parse(line) as [string, ...string[]];
  console.log(JSON.stringify((await commands[command]!(...names)) ?? null));
}
