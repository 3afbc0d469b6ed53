import type { WorkerId } from "../../src/core/index.ts";
import { loadNative, Region } from "../../src/native/index.ts";
import type {
  FrameHeader,
  ItemRefusal,
  PeerAnswer,
  PeerIdentity,
  PeerRequest,
  PeerServer,
  PullItem,
  Served,
  ServedBlock,
  WantedBlock,
} from "../../src/peers/index.ts";
import { Tier } from "../../src/store/blocks/index.ts";

/** The namespace of all blocks of a RegionServer. */
export const NAMESPACE = new Uint8Array(32).fill(7);

type Request<Op> = Extract<PeerRequest, { op: Op }>;
type Call = Exclude<PeerRequest, { op: "pull" }>;

type OnServe = (
  served: Served,
  item: PullItem,
  signal: AbortSignal,
) => Served | undefined | Promise<Served | undefined>;

interface Stored {
  readonly header: FrameHeader;
  readonly offset: number;
}

/** Shared memory for tests; it lives as long as the process, as an agent's arena does. */
export function testRegion(bytes: number): Region {
  return Region.create(loadNative(), { bytes, hugePages: "off", lockMemory: "off" });
}

/** The block whose payload is the pattern of `seed`. */
export function blockOf(seed: number): WantedBlock {
  const digest = new Uint8Array(32).fill(0xb1);
  new DataView(digest.buffer).setUint32(0, seed, true);
  return { digest, layer: 0xffff_ffff };
}

function seedOf(digest: Uint8Array): number {
  return new DataView(digest.buffer, digest.byteOffset).getUint32(0, true);
}

/**
 * A PeerServer over a real region: each block's bytes follow from its number, so that any byte
 * proves itself on the other side. It counts what transports do with it, and lies on request.
 */
export class RegionServer implements PeerServer {
  readonly region: Region;
  readonly #stored = new Map<number, Stored>();
  #end = 0;
  /** Everything that was asked, calls and pulls. */
  asked = 0;
  /** The peer that asked last. */
  client: WorkerId | null = null;
  /** Blocks that are lent now, and the most there were at once. */
  lent = 0;
  lentMost = 0;
  released = 0;
  releasedTwice = 0;
  /** Pulls that are being served now, and the most at once. */
  serving = 0;
  servingMost = 0;
  /** The signals of pulls that were served, in order. */
  readonly signals: AbortSignal[] = [];
  /** Changes an answer to a pull, or keeps it back; `undefined` ends the iteration. */
  onServe: OnServe = (served) => served;
  onCall: (request: Call, signal: AbortSignal) => PeerAnswer | Promise<PeerAnswer> | null = () =>
    null;

  constructor(region: Region) {
    this.region = region;
  }

  /** Stores block number `seed` with `bytes` bytes. */
  put(seed: number, bytes: number, more: Partial<FrameHeader> = {}): PullItem {
    const offset = this.#end;
    this.#end += Math.ceil(bytes / 4096) * 4096;
    this.region.fill(offset, bytes, BigInt(seed));
    const block = blockOf(seed);
    const header: FrameHeader = {
      ...block,
      model: "test/model",
      bytes,
      namespace: NAMESPACE,
      generation: BigInt(seed) + 1_000n,
      checksum: this.region.checksum(offset, bytes),
      mac: null,
      parent: null,
      transient: false,
      aliases: [],
      ...more,
    };
    this.#stored.set(seed, { header, offset });
    return { ...block, bytesMax: bytes, generation: 0n };
  }

  /** Forgets all blocks; their memory is used anew. */
  clear(): void {
    this.#stored.clear();
    this.#end = 0;
  }

  header(seed: number): FrameHeader {
    return this.#stored.get(seed)!.header;
  }

  /** Where it lies. */
  offset(seed: number): number {
    return this.#stored.get(seed)!.offset;
  }

  async call(peer: PeerIdentity, request: Call, signal: AbortSignal): Promise<PeerAnswer> {
    this.asked++;
    this.client = peer.worker;
    const own = await this.onCall(request, signal);
    if (own !== null) return own;
    if (request.op === "hello") return request;
    if (request.op !== "has") return { op: "refused", why: `no ${request.op} here` };
    const blocks = request.blocks.map(({ digest }) => {
      const header = this.#stored.get(seedOf(digest))?.header;
      if (header === undefined) return { tiers: 0, bytes: 0, generation: 0n, checksum: 0n };
      const { bytes, generation, checksum } = header;
      return { tiers: Tier.ram, bytes, generation, checksum };
    });
    return { op: "has", blocks };
  }

  async *serve(
    peer: PeerIdentity,
    pull: Request<"pull">,
    signal: AbortSignal,
  ): AsyncIterable<Served> {
    this.asked++;
    this.client = peer.worker;
    this.signals.push(signal);
    this.servingMost = Math.max(this.servingMost, ++this.serving);
    try {
      for (const [index, item] of pull.items.entries()) {
        const answer = await this.onServe(this.#serve(index, item), item, signal);
        if (answer === undefined) return;
        // Lent from the moment in which the transport gets it, however late that is.
        if (answer.kind === "block") this.lentMost = Math.max(this.lentMost, ++this.lent);
        yield answer;
      }
    } finally {
      this.serving--;
    }
  }

  #serve(index: number, item: PullItem): Served {
    const stored = this.#stored.get(seedOf(item.digest));
    if (stored === undefined) return { index, kind: "absent" } satisfies Served & ItemRefusal;
    const { header, offset } = stored;
    if (header.bytes > item.bytesMax) return { index, kind: "tooLong", bytes: header.bytes };
    return { index, ...this.lend(header, offset) };
  }

  /** Something to be lent, whether it is stored here or not. */
  lend(header: FrameHeader, offset: number): ServedBlock {
    let isReleased = false;
    return {
      kind: "block",
      header,
      offset,
      release: () => {
        if (isReleased) this.releasedTwice++;
        else this.lent--;
        this.released++;
        isReleased = true;
      },
    };
  }
}
