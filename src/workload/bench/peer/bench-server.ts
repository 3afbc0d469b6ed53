import { assert } from "../../../core/index.ts";
import type { Region } from "../../../native/index.ts";
import type {
  FrameHeader,
  PeerAnswer,
  PeerIdentity,
  PeerRequest,
  PeerServer,
  Served,
  WantedBlock,
} from "../../../peers/index.ts";

export const BENCH_NAMESPACE = new Uint8Array(32).fill(0xbe);
const ALL_LAYERS = 0xffff_ffff;

/** Block number `slot` of those that lie in the holder's region. */
export function benchBlock(slot: number): WantedBlock {
  const digest = new Uint8Array(32);
  new DataView(digest.buffer).setUint32(0, slot, true);
  return { digest, layer: ALL_LAYERS };
}

/** Gives away blocks of one length that lie one behind the other in a region, all at once. */
export class BenchServer implements PeerServer {
  readonly #region: Region;
  #blockBytes = 0;
  /** By slot, of the block's bytes as they are now. */
  #checksums: bigint[] = [];

  constructor(region: Region) {
    this.#region = region;
  }

  /** From now on blocks are that long. */
  setBlockBytes(bytes: number): void {
    if (bytes === this.#blockBytes) return;
    const slots = Math.floor(this.#region.bytes / bytes);
    assert(slots > 0, "a block fits the region");
    this.#blockBytes = bytes;
    this.#checksums = Array.from({ length: slots }, (_, slot) =>
      this.#region.checksum(slot * bytes, bytes),
    );
  }

  async call(
    _peer: PeerIdentity,
    request: Exclude<PeerRequest, { op: "pull" }>,
  ): Promise<PeerAnswer> {
    if (request.op === "hello") return request;
    return { op: "refused", why: "a benchmark serves blocks alone" };
  }

  async *serve(
    _peer: PeerIdentity,
    pull: Extract<PeerRequest, { op: "pull" }>,
  ): AsyncIterable<Served> {
    for (const [index, item] of pull.items.entries()) {
      const slot = new DataView(item.digest.buffer, item.digest.byteOffset).getUint32(0, true);
      const checksum = this.#checksums[slot];
      if (checksum === undefined) {
        yield { index, kind: "absent" };
        continue;
      }
      const header: FrameHeader = {
        digest: item.digest,
        layer: item.layer,
        model: "",
        bytes: this.#blockBytes,
        namespace: pull.namespace,
        generation: 1n,
        checksum,
        mac: null,
        parent: null,
        transient: false,
        aliases: [],
      };
      const offset = slot * this.#blockBytes;
      yield { index, kind: "block", header, offset, release: () => {} };
    }
  }
}
