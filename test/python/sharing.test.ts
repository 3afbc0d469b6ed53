import { expect, test } from "bun:test";
import { join } from "node:path";
import { LAYER_ALL } from "../../src/core/index.ts";
import { IdentifyKind } from "../../src/engine/protocol/index.ts";
import { nativeBuffer } from "../../src/native/index.ts";
import { createAddressBatch, createHandleBatch } from "../../src/store/index.ts";
import { type AgentKit, openAgent } from "../engine/agent-kit.ts";
import type { Engine } from "../engine/engine.ts";
import { describePython, pythonEnvironment } from "../support/index.ts";

const BLOCK_BYTES = 5_000;
const TENANT = "shared";

/** The content that sharing-engine.py writes: the digest, repeated. */
function payload(digest: Uint8Array): Uint8Array {
  return Uint8Array.from({ length: BLOCK_BYTES }, (_, i) => digest[i % 32]!);
}

function batchOf(digests: readonly string[]) {
  const batch = createAddressBatch(digests.length);
  batch.count = digests.length;
  batch.layer = LAYER_ALL;
  digests.forEach((digest, i) => {
    batch.digests.set(Uint8Array.fromHex(digest), i * 32);
    if (i > 0) batch.parents.set(Uint8Array.fromHex(digests[i - 1]!), i * 32);
    batch.bytes[i] = BLOCK_BYTES;
  });
  return batch;
}

async function identify({ client }: Engine, tokens: readonly number[]): Promise<string[]> {
  const items = new Uint8Array(Uint32Array.from(tokens).buffer);
  const into = { count: 0, layer: 0, digests: new Uint8Array(tokens.length * 32) };
  const { length: count } = tokens;
  await client.identify({ kind: IdentifyKind.tokens, layer: LAYER_ALL, count, items }, into);
  return Array.from({ length: into.count }, (_, i) =>
    into.digests.subarray(i * 32, i * 32 + 32).toHex(),
  );
}

async function put({ client }: Engine, digests: readonly string[]): Promise<number[]> {
  const out = createHandleBatch(digests.length);
  await client.reserve(batchOf(digests), 0n, out);
  const bytes = nativeBuffer(BLOCK_BYTES);
  digests.forEach((digest, i) => {
    bytes.bytes.set(payload(Uint8Array.fromHex(digest)));
    out.checksum[i] = client.arena.copyIn(out.offset[i]!, bytes, BLOCK_BYTES, true);
    out.flags[i] = 1;
  });
  await client.commit(out);
  return [...out.outcome];
}

/** Whether each block is there with exactly its bytes, in a copy that verifies. */
async function get({ client }: Engine, digests: readonly string[]): Promise<boolean[]> {
  const out = createHandleBatch(digests.length);
  const options = { tiers: 0, deadlineMs: 0, stopAtMiss: false };
  await client.acquire(batchOf(digests), options, out);
  const copy = nativeBuffer(BLOCK_BYTES);
  const right = digests.map((digest, i) => {
    const sum = client.arena.copyOut(out.offset[i]!, copy, BLOCK_BYTES, true);
    const expected = payload(Uint8Array.fromHex(digest));
    return sum === out.checksum[i] && Buffer.compare(copy.bytes, expected) === 0;
  });
  client.release(out);
  return right;
}

class PythonEngine implements AsyncDisposable {
  readonly #process: Bun.Subprocess<"pipe", "pipe", "inherit">;
  readonly #answers: AsyncIterator<string>;

  constructor(python: string, agent: AgentKit) {
    const script = join(import.meta.dir, "sharing-engine.py");
    this.#process = Bun.spawn([python, script, agent.socketPath, TENANT], {
      env: pythonEnvironment(),
      stdin: "pipe",
      stdout: "pipe",
      stderr: "inherit",
    });
    this.#answers = this.#lines();
  }

  async *#lines(): AsyncGenerator<string> {
    let rest = "";
    for await (const chunk of this.#process.stdout.pipeThrough(new TextDecoderStream())) {
      const lines = (rest + chunk).split("\n");
      rest = lines.pop()!;
      yield* lines;
    }
  }

  async ask(...words: unknown[]): Promise<unknown> {
    this.#process.stdin.write(`${JSON.stringify(words)}\n`);
    this.#process.stdin.flush();
    const { done, value } = await this.#answers.next();
    if (done) throw new Error("the Python engine is gone");
    return JSON.parse(value);
  }

  /** Lets it come to its end. */
  async close(): Promise<number> {
    this.#process.stdin.end();
    return this.#process.exited;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#process.kill("SIGKILL");
    await this.#process.exited;
  }
}

describePython("a Python engine and a TypeScript engine", (python) => {
  test("share blocks through one agent, both ways, byte for byte", async () => {
    await using agent = await openAgent();
    await using mine = await agent.connect(TENANT);
    await using theirs = new PythonEngine(python, agent);
    expect(await theirs.ask("hello")).toBe(mine.client.hello.namespaceId.toHex());
    const prompt = (from: number) => Array.from({ length: 13 }, (_, i) => from + i);
    const first = await identify(mine, prompt(0));
    const second = await identify(mine, prompt(1_000));
    expect(first).toHaveLength(3);
    expect(await theirs.ask("identify", prompt(0))).toEqual(first);
    expect(await theirs.ask("identify", prompt(1_000))).toEqual(second);

    expect(await theirs.ask("put", first)).toEqual([0, 0, 0]);
    expect(await mine.client.match(batchOf(first), 0, new Uint8Array(3))).toBe(3);
    expect(await get(mine, first)).toEqual([true, true, true]);

    expect(await theirs.ask("get", second)).toEqual(["miss", "miss", "miss"]);
    expect(await put(mine, second)).toEqual([0, 0, 0]);
    expect(await theirs.ask("match", second)).toBe(3);
    expect(await theirs.ask("get", second)).toEqual([true, true, true]);

    expect(await theirs.close()).toBe(0);
    expect(await get(mine, [...first, ...second])).toEqual(Array(6).fill(true));
    await agent.untilNothingHeld();
    expect(agent.server.stats).toMatchObject({ faults: 0, quarantines: 0 });
  });
});
