import { join } from "node:path";
import { findPython, pythonEnvironment } from "../../scripts/lib/python.ts";
import { LAYER_ALL } from "../../src/core/index.ts";
import { nativeBuffer } from "../../src/native/index.ts";
import {
  BlockOutcome,
  createAddressBatch,
  createHandleBatch,
  type HandleBatch,
} from "../../src/store/index.ts";
import type { AgentProcess } from "../app/agent-process.ts";
import type { Engine } from "../engine/engine.ts";
import { outcomeOf } from "../store/names.ts";

export const BLOCK_BYTES = 20_000;
export const TENANT = "ram lane";

/** The block's bytes are its key, over and over. */
export interface LaneBlock {
  readonly key: Uint8Array;
  readonly digest: Uint8Array;
}

export type Read = "right" | "wrong" | "miss";

/** An engine that verifies what it copies, and reports what does not verify. */
export interface Reader extends AsyncDisposable {
  readonly name: string;
  get(blocks: readonly LaneBlock[]): Promise<Read[]>;
  /** Names of the outcomes, in small letters. */
  put(blocks: readonly LaneBlock[]): Promise<string[]>;
}

export function payloadOf({ key }: LaneBlock): Uint8Array {
  return Uint8Array.from({ length: BLOCK_BYTES }, (_, i) => key[i % key.length]!);
}

function batchOf(blocks: readonly LaneBlock[]) {
  const batch = createAddressBatch(blocks.length);
  batch.count = blocks.length;
  batch.layer = LAYER_ALL;
  for (const [i, { digest }] of blocks.entries()) batch.digests.set(digest, i * 32);
  batch.bytes.fill(BLOCK_BYTES);
  return batch;
}

/** Also flips bits of what it can acquire, as no client should. */
export class NativeReader implements Reader {
  readonly name = "typescript";
  readonly engine: Engine;
  readonly #copy = nativeBuffer(BLOCK_BYTES);

  constructor(engine: Engine) {
    this.engine = engine;
  }

  async #acquire(blocks: readonly LaneBlock[]): Promise<HandleBatch> {
    const out = createHandleBatch(blocks.length);
    const options = { tiers: 0, deadlineMs: 60_000, stopAtMiss: false };
    await this.engine.client.acquire(batchOf(blocks), options, out);
    return out;
  }

  async get(blocks: readonly LaneBlock[]): Promise<Read[]> {
    const reads: Read[] = [];
    for (const block of blocks) {
      const out = await this.#acquire([block]);
      if (out.outcome[0] !== BlockOutcome.ok) {
        reads.push("miss");
        continue;
      }
      const isRight = this.engine.client.copyOut(out, 0, this.#copy);
      await this.engine.client.giveBack(out, isRight ? [] : [0]);
      const isSame = Buffer.compare(this.#copy.bytes, payloadOf(block)) === 0;
      reads.push(!isRight ? "miss" : isSame ? "right" : "wrong");
    }
    return reads;
  }

  async put(blocks: readonly LaneBlock[]): Promise<string[]> {
    const outcomes: string[] = [];
    for (const block of blocks) {
      const out = createHandleBatch(1);
      await this.engine.client.reserve(batchOf([block]), 0n, out);
      if (out.outcome[0] === BlockOutcome.ok) {
        this.#copy.bytes.set(payloadOf(block));
        const { arena } = this.engine.client;
        out.checksum[0] = arena.copyIn(out.offset[0]!, this.#copy, BLOCK_BYTES, true);
        out.flags[0] = 1;
        await this.engine.client.commit(out);
      }
      outcomes.push(outcomeOf(out.outcome[0]!));
    }
    return outcomes;
  }

  /** Flips one bit of the block in RAM; false where it is not to be had. */
  async flip(block: LaneBlock, at: number, bit: number): Promise<boolean> {
    const out = await this.#acquire([block]);
    if (out.outcome[0] !== BlockOutcome.ok) return false;
    const { arena } = this.engine.client;
    const byte = nativeBuffer(1);
    arena.copyOut(out.offset[0]! + at, byte, 1, false);
    byte.bytes[0]! ^= 1 << bit;
    arena.copyIn(out.offset[0]! + at, byte, 1, false);
    this.engine.client.release(out);
    return true;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.engine[Symbol.asyncDispose]();
  }
}

class PythonReader implements Reader {
  readonly name: string;
  readonly #process: Bun.Subprocess<"pipe", "pipe", "inherit">;
  readonly #answers: AsyncIterator<string>;

  constructor(python: string, socket: string, kind: "client" | "store") {
    this.name = `python ${kind}`;
    const script = join(import.meta.dir, "ram-reader.py");
    this.#process = Bun.spawn([python, script, socket, TENANT, kind], {
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

  async #ask(command: "get" | "put", blocks: readonly LaneBlock[]): Promise<string[]> {
    const pairs = blocks.map(({ key, digest }) => [key.toHex(), digest.toHex()]);
    this.#process.stdin.write(`${JSON.stringify([command, pairs])}\n`);
    this.#process.stdin.flush();
    const { done, value } = await this.#answers.next();
    if (done) throw new Error(`the ${this.name} reader is gone`);
    return JSON.parse(value);
  }

  async get(blocks: readonly LaneBlock[]): Promise<Read[]> {
    return (await this.#ask("get", blocks)) as Read[];
  }

  async put(blocks: readonly LaneBlock[]): Promise<string[]> {
    return (await this.#ask("put", blocks)).map((name) => name.toLowerCase());
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#process.stdin.end();
    await this.#process.exited;
  }
}

/** A TypeScript client first, then Python's two where there is Python. */
export async function openReaders(
  agent: AgentProcess,
  skipped: (why: string) => void,
): Promise<[NativeReader, ...Reader[]]> {
  const native = new NativeReader(await agent.connect(TENANT));
  const python = findPython();
  if (python.kind === "skipped") {
    skipped(python.why);
    return [native];
  }
  const kinds = ["client", "store"] as const;
  const { path } = python;
  return [native, ...kinds.map((kind) => new PythonReader(path, agent.socketPath, kind))];
}
