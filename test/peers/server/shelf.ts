import type { NamespaceIndex, WorkerId } from "../../../src/core/index.ts";
import { seededRandom } from "../../../src/core/index.ts";
import type { PeerIdentity, PullItem, Served, WantedBlock } from "../../../src/peers/index.ts";
import { BlockServer, SERVE_LIMITS, type ServeLimits } from "../../../src/peers/server/index.ts";
import { Tier } from "../../../src/store/blocks/index.ts";
import type { BlockCopies, FoundBlock, Lent, Loan, PeerBlocks } from "../../../src/store/index.ts";
import { ManualClock } from "../../support/index.ts";

export const NAMESPACE = new Uint8Array(32).fill(1);
export const OTHER = new Uint8Array(32).fill(2);
export const MIB = 2 ** 20;

export interface ShelfBlock {
  readonly digest: Uint8Array;
  readonly layer: number;
  readonly tier: "ram" | "ssd";
  readonly bytes: number;
  readonly generation: bigint;
  readonly namespace: Uint8Array;
}

/** An SSD read that a test completes. */
export interface Read {
  readonly block: ShelfBlock;
  readonly deadlineMs: number;
  /** Without an argument: the unchanged block. */
  finish(lent?: Lent): void;
  fail(thrown: unknown): void;
}

const NAMESPACES = [NAMESPACE, OTHER];

export function digestOf(i: number): Uint8Array {
  const digest = new Uint8Array(32).fill(i & 0xff);
  new DataView(digest.buffer).setUint32(0, i, true);
  return digest;
}

/** A host's blocks; reports slot references that were not released. */
export class Shelf implements PeerBlocks {
  readonly reads: Read[] = [];
  readonly names = new Map<string, ShelfBlock[]>();
  /** Outstanding slot references. */
  lent = 0;
  lends = 0;
  walks = 0;
  changes = 0;
  throwOnLend: Error | null = null;
  throwOnHas: Error | null = null;
  /** Results for the next `lend` calls, instead of blocks in RAM. */
  readonly surprises: (Lent | Promise<Lent>)[] = [];
  onWalk: () => Promise<void> = async () => {};
  readonly #blocks = new Map<string, ShelfBlock>();

  put(i: number, changes: Partial<ShelfBlock> = {}): ShelfBlock {
    const block: ShelfBlock = {
      digest: digestOf(i),
      layer: 0,
      tier: "ram",
      bytes: MIB,
      generation: 5n,
      namespace: NAMESPACE,
      ...changes,
    };
    this.#blocks.set(nameOf(block.namespace, block), block);
    this.changes++;
    return block;
  }

  remove(block: ShelfBlock): void {
    this.#blocks.delete(nameOf(block.namespace, block));
  }

  land(): never {
    throw new Error("nothing lands here");
  }

  usualBytes(): number {
    return 0;
  }

  lend(
    namespace: NamespaceIndex,
    digest: Uint8Array,
    layer: number,
    options: { readonly deadlineMs: number; readonly warm: boolean },
  ): Lent | Promise<Lent> {
    this.lends++;
    if (this.throwOnLend !== null) throw this.throwOnLend;
    const block = this.#get(namespace, { digest, layer });
    if (block === undefined) return "absent";
    if (block.tier === "ram") return this.surprises.shift() ?? this.loan(block);
    const { promise, resolve, reject } = Promise.withResolvers<Lent>();
    const finish = (lent?: Lent) => resolve(lent ?? this.loan(block));
    this.reads.push({ block, deadlineMs: options.deadlineMs, finish, fail: reject });
    return promise;
  }

  loan(block: ShelfBlock): Loan {
    this.lent++;
    const { digest, layer, bytes, generation } = block;
    const told = { digest, layer, bytes, generation, checksum: 77n, parent: null, mac: null };
    let isOut = true;
    const release = () => {
      if (!isOut) throw new Error("a loan was given back twice");
      isOut = false;
      this.lent--;
    };
    return { ...told, aliases: [], transient: false, offset: 4096, release };
  }

  has(namespace: NamespaceIndex, blocks: readonly WantedBlock[]): BlockCopies[] {
    if (this.throwOnHas !== null) throw this.throwOnHas;
    return blocks.map((wanted) => copyOf(this.#get(namespace, wanted)));
  }

  find(
    name: Uint8Array,
    max: number,
    mayTell: (namespace: Uint8Array) => boolean = () => true,
  ): FoundBlock[] {
    const named = this.names.get(name.toHex()) ?? [];
    const found = named.filter(({ namespace }) => mayTell(namespace));
    return found.slice(0, max).map((block) => {
      const { namespace, digest, layer } = block;
      return { namespace, digest, layer, ...copyOf(block) };
    });
  }

  async eachKey(
    namespace: NamespaceIndex,
    each: (key: Uint8Array) => void,
    signal: AbortSignal,
  ): Promise<void> {
    this.walks++;
    for (const block of this.#blocks.values()) {
      if (block.namespace === NAMESPACES[namespace - 1]) each(keyOf(block));
    }
    await this.onWalk();
    signal.throwIfAborted();
  }

  changesOf(): number {
    return this.changes;
  }

  #get(namespace: NamespaceIndex, wanted: WantedBlock): ShelfBlock | undefined {
    return this.#blocks.get(nameOf(NAMESPACES[namespace - 1]!, wanted));
  }
}

function nameOf(namespace: Uint8Array, { digest, layer }: WantedBlock): string {
  return `${namespace.toHex()} ${digest.toHex()} ${layer}`;
}

function copyOf(block: ShelfBlock | undefined): BlockCopies {
  if (block === undefined) return { tiers: 0, bytes: 0, generation: 0n, checksum: 0n };
  const { bytes, generation } = block;
  return { tiers: Tier[block.tier], bytes, generation, checksum: 77n };
}

/** Stands for the `BlockKey`. */
export function keyOf(block: WantedBlock): Uint8Array {
  return new Uint8Array(new Bun.CryptoHasher("blake2b256").update(block.digest).digest());
}

export function itemOf(block: WantedBlock, changes: Partial<PullItem> = {}): PullItem {
  const { digest, layer } = block;
  return { digest, layer, bytesMax: 16 * MIB, generation: 0n, ...changes };
}

export function peer(worker: string): PeerIdentity {
  return { worker: worker as WorkerId, cluster: "c", fingerprint: "ff", notAfterMs: 0 };
}

/** A server over a shelf. */
export function startServer(limits: Partial<ServeLimits> = {}, seed = 3) {
  const shelf = new Shelf();
  const clock = new ManualClock();
  const lines: string[] = [];
  const server = new BlockServer({
    blocks: shelf,
    namespaceOf(key) {
      const at = NAMESPACES.findIndex((known) => known.toHex() === key.toHex());
      return at < 0 ? null : ((at + 1) as NamespaceIndex);
    },
    modelOf: () => "llama",
    hello: () => HELLO,
    limits: { ...SERVE_LIMITS, ...limits },
    clock,
    random: seededRandom(seed),
    log: (level, text) => lines.push(`${level} ${text}`),
  });
  return { shelf, clock, server, lines };
}

export const HELLO = {
  worker: "holder" as WorkerId,
  incarnation: 9n,
  hardware: { hasRdmaNic: false, rdmaDevices: [], cores: 4, hasAes: true },
};

/** A running iteration, advanced by the test. */
export function pulling(
  server: BlockServer,
  items: readonly PullItem[],
  options: { worker?: string; deadlineMs?: number; namespace?: Uint8Array } = {},
) {
  const { worker = "client", deadlineMs = 5_000, namespace = NAMESPACE } = options;
  const abort = new AbortController();
  const pull = { op: "pull" as const, namespace, items, deadlineMs };
  const served = server.serve(peer(worker), pull, abort.signal);
  const iterator = served[Symbol.asyncIterator]();
  return {
    iterator,
    abort: () => abort.abort(),
    /** The next answer; null: the end. */
    async next(): Promise<Served | null> {
      const { done, value } = await iterator.next();
      return done === true ? null : value;
    },
  };
}

/** All answers, each released at once: index and kind. */
export async function drain(pull: ReturnType<typeof pulling>): Promise<string[]> {
  const seen: string[] = [];
  for (let served = await pull.next(); served !== null; served = await pull.next()) {
    seen.push(`${served.index} ${served.kind}`);
    if (served.kind === "block") served.release();
  }
  return seen;
}
