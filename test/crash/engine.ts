import { LAYER_ALL, type Random, randomBelow } from "../../src/core/index.ts";
import { EngineClient } from "../../src/engine/index.ts";
import { encodeManifest, manifestOf } from "../../src/identity/index.ts";
import { loadNative, type Region } from "../../src/native/index.ts";
import {
  BlockFlag,
  BlockOutcome,
  createAddressBatch,
  createHandleBatch,
  type HandleBatch,
} from "../../src/store/index.ts";
import {
  type Content,
  choosePrompt,
  digestOf,
  idsOfPrompt,
  isOneIn,
  isTransient,
  PROMPT_BLOCKS,
  parentOf,
} from "./content.ts";
import type { Legal, Oracle } from "./oracle.ts";
import type { Tally } from "./tally.ts";

const MANIFEST = encodeManifest(
  manifestOf({
    model: "crash",
    dtype: "bfloat16",
    layout: "crash:flat",
    blockTokens: 16,
    tenantSalt: "crash",
  }),
);
const DEADLINE_MS = 5_000;
/** As long as the blocks of prompts: it is their room. */
const FLOOD_BYTES = 32 * 1024;
const FLOOD_MS_MAX = 60_000;
const FLOOD_PAUSE_MS = 5;

/** An engine that proves each byte it gets, and tells the oracle of all that it writes. */
export class CrashEngine implements AsyncDisposable {
  readonly #client: EngineClient;
  readonly #oracle: Oracle;
  readonly #tally: Tally;
  readonly #random: Random;
  readonly #blocks = createAddressBatch(PROMPT_BLOCKS);
  readonly #handles = createHandleBatch(PROMPT_BLOCKS);
  readonly #written = createHandleBatch(PROMPT_BLOCKS);

  private constructor(client: EngineClient, oracle: Oracle, tally: Tally, random: Random) {
    this.#client = client;
    this.#oracle = oracle;
    this.#tally = tally;
    this.#random = random;
    this.#blocks.layer = LAYER_ALL;
  }

  static async connect(
    socketPath: string,
    { oracle, tally, random }: { oracle: Oracle; tally: Tally; random: Random },
  ): Promise<CrashEngine> {
    const options = { socketPath, manifest: MANIFEST, name: "crash" };
    const client = await EngineClient.connect(loadNative(), options);
    return new CrashEngine(client, oracle, tally, random);
  }

  /** Serves a prompt: reads what is there, writes what is not. */
  async serve(): Promise<void> {
    const ids = idsOfPrompt(choosePrompt(this.#random));
    const promised = ids.map((id) => this.#tally.promises.mustHave(id));
    const outcomes = await this.read(ids);
    ids.forEach((id, i) => {
      // Asked for before, and still: it was meanwhile.
      if (promised[i] && outcomes[i] === BlockOutcome.miss) this.#tally.missed(id);
    });
    const missing = ids.filter((_, i) => outcomes[i] !== BlockOutcome.ok);
    const length = 1 + randomBelow(this.#random, PROMPT_BLOCKS);
    if (missing.length > 0) await this.#write(missing.slice(0, length));
  }

  /** Reads blocks and judges what comes; their outcomes. */
  async read(ids: readonly number[]): Promise<number[]> {
    const before = this.#oracle.legalOf(ids);
    this.#name(ids);
    const options = { tiers: 0, deadlineMs: DEADLINE_MS, stopAtMiss: false };
    await this.#client.acquire(this.#blocks, options, this.#handles);
    const outcomes = [...this.#handles.outcome.subarray(0, ids.length)];
    ids.forEach((id, i) => {
      if (outcomes[i] === BlockOutcome.ok) this.#judge(id, i, before);
    });
    this.#release();
    return outcomes;
  }

  #judge(id: number, at: number, before: Legal): void {
    const { arena } = this.#client;
    const handles = this.#handles;
    const [offset, bytes] = [handles.offset[at]!, handles.bytes[at]!];
    const isIt = (content: Content) =>
      content.bytes === bytes && arena.firstWrong(offset, bytes, content.seed) === null;
    const verdict = this.#oracle.judge(id, before, isIt);
    this.#tally.read(id, bytes, verdict);
  }

  #release(): void {
    const { slot, generation, outcome, count } = this.#handles;
    const given = this.#written;
    given.count = 0;
    for (let i = 0; i < count; i++) {
      if (outcome[i] !== BlockOutcome.ok) continue;
      given.slot[given.count] = slot[i]!;
      given.generation[given.count++] = generation[i]!;
    }
    if (given.count > 0) this.#client.release(given);
  }

  #name(ids: readonly number[]): void {
    const blocks = this.#blocks;
    blocks.count = ids.length;
    ids.forEach((id, i) => {
      blocks.digests.set(digestOf(id), i * 32);
      const parent = parentOf(id);
      if (parent === null) blocks.parents.fill(0, i * 32, (i + 1) * 32);
      else blocks.parents.set(parent, i * 32);
      blocks.flags[i] = isTransient(id) ? BlockFlag.transient : 0;
    });
  }

  async #write(ids: readonly number[]): Promise<void> {
    const before = this.#oracle.legalOf(ids);
    const contents = ids.map((id) => this.#oracle.choose(id, this.#random));
    this.#name(ids);
    contents.forEach(({ bytes }, i) => {
      this.#blocks.bytes[i] = bytes;
    });
    const handles = this.#handles;
    await this.#client.reserve(this.#blocks, 0n, handles);
    const sent: ReturnType<Oracle["commitSent"]>[] = [];
    this.#written.count = 0;
    for (const [i, content] of contents.entries()) {
      const outcome = handles.outcome[i]!;
      if (outcome === BlockOutcome.present) this.#tally.present(content.id, before);
      if (outcome !== BlockOutcome.ok) continue;
      this.#fill(content, handles, i);
      sent.push(this.#oracle.commitSent(content));
    }
    if (sent.length === 0) return;
    await this.#client.commit(this.#written);
    sent.forEach((version, i) => {
      const stored = this.#written.outcome[i] === BlockOutcome.ok;
      this.#oracle.commitAnswered(version, stored);
      this.#tally.committed(version.id, stored);
    });
  }

  #fill({ bytes, seed }: Content, handles: HandleBatch, i: number): void {
    const arena: Region = this.#client.arena;
    const offset = handles.offset[i]!;
    arena.fill(offset, bytes, seed);
    const written = this.#written;
    const at = written.count++;
    written.slot[at] = handles.slot[i]!;
    written.generation[at] = handles.generation[i]!;
    // Some engines leave the checksum to the agent.
    const gives = !isOneIn(this.#random, 4);
    written.flags[at] = gives ? 1 : 0;
    written.checksum[at] = gives ? arena.checksum(offset, bytes) : 0n;
  }

  /** Writes blocks that nobody asks for again, until so many bytes were taken, or it stops. */
  async flood(bytes: number, stop: AbortSignal): Promise<void> {
    const blocks = this.#blocks;
    blocks.count = PROMPT_BLOCKS;
    blocks.parents.fill(0);
    blocks.flags.fill(0);
    blocks.bytes.fill(FLOOD_BYTES);
    const startMs = performance.now();
    for (let taken = 0; taken < bytes && !stop.aborted; ) {
      const isStuck = performance.now() - startMs > FLOOD_MS_MAX;
      if (isStuck) throw new Error(`a flood is not taken: ${taken} of ${bytes} bytes`);
      crypto.getRandomValues(blocks.digests.subarray(0, PROMPT_BLOCKS * 32));
      await this.#client.reserve(blocks, 0n, this.#handles);
      this.#written.count = 0;
      for (let i = 0; i < PROMPT_BLOCKS; i++) {
        if (this.#handles.outcome[i] !== BlockOutcome.ok) continue;
        const at = this.#written.count++;
        this.#written.slot[at] = this.#handles.slot[i]!;
        this.#written.generation[at] = this.#handles.generation[i]!;
        this.#written.flags[at] = 0;
      }
      if (this.#written.count === 0) {
        // What is on its way to SSD keeps its place until it is there.
        await Bun.sleep(FLOOD_PAUSE_MS);
        continue;
      }
      await this.#client.commit(this.#written);
      taken += this.#written.count * FLOOD_BYTES;
    }
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.#client[Symbol.asyncDispose]();
  }
}
