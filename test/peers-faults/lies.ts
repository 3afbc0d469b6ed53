import { type Random, randomBelow } from "../../src/core/index.ts";
import type { Region } from "../../src/native/index.ts";
import type {
  FrameHeader,
  PeerAnswer,
  PeerIdentity,
  PeerRequest,
  PeerServer,
  Served,
} from "../../src/peers/index.ts";

type Pull = Extract<PeerRequest, { op: "pull" }>;
type Call = Exclude<PeerRequest, { op: "pull" }>;
type Block = Extract<Served, { kind: "block" }>;

/** Faults of a host with a valid certificate. */
export const LIES = [
  "longer",
  "shorter",
  "endless",
  "flipped",
  "recycled",
  "other digest",
  "other layer",
  "other namespace",
  "old generation",
  "other checksum",
  "stalls",
  "stalls later",
  "ends early",
  "answers twice",
  "answers another request",
  "throws",
  "absent",
  "busy",
  "too long",
  "refused",
  "slow",
  "length in has",
] as const;
export type Lie = (typeof LIES)[number];

/**
 * A host that uses the real transport with a valid certificate, and sends invalid data on request.
 */
export class LyingServer implements PeerServer {
  /** Share of the requests with invalid answers. */
  lying = 0;
  /** Behaves like a stopped process: sends no answers. */
  hung = false;
  readonly told = new Map<Lie, number>();
  readonly #inner: PeerServer;
  readonly #region: Region;
  readonly #random: Random;
  #places: number[] = [];

  constructor(inner: PeerServer, region: Region, random: Random) {
    this.#inner = inner;
    this.#region = region;
    this.#random = random;
  }

  /** Memory for manipulated payloads, as long as its blocks. */
  useScratch(offsets: readonly number[]): void {
    this.#places = [...offsets];
  }

  async call(peer: PeerIdentity, request: Call, signal: AbortSignal): Promise<PeerAnswer> {
    if (this.hung) await until(signal);
    const answer = await this.#inner.call(peer, request, signal);
    if (answer.op !== "has" || this.#lie("has") === null) return answer;
    const lengths = [0, 1, 2 ** 31, 2 ** 32 - 1];
    const blocks = answer.blocks.map((has) => ({ ...has, bytes: this.#oneOf(lengths) }));
    return { op: "has", blocks };
  }

  async *serve(peer: PeerIdentity, pull: Pull, signal: AbortSignal): AsyncGenerator<Served> {
    if (this.hung) return await until(signal);
    const lie = this.#lie("pull");
    const at = randomBelow(this.#random, pull.items.length);
    let item = 0;
    for await (const served of this.#inner.serve(peer, pull, signal)) {
      if (item++ < at || lie === null) yield served;
      else if (!(yield* this.#lied(lie, served, signal))) return;
    }
  }

  /** False: nothing more is sent. */
  async *#lied(lie: Lie, served: Served, signal: AbortSignal): AsyncGenerator<Served, boolean> {
    const { index } = served;
    const instead = (refusal: Served) => {
      if (served.kind === "block") served.release();
      return refusal;
    };
    switch (lie) {
      case "stalls":
      case "stalls later":
        if (served.kind === "block") served.release();
        await until(signal);
        return false;
      case "ends early":
        if (served.kind === "block") served.release();
        return false;
      case "throws":
        if (served.kind === "block") served.release();
        throw new Error("a host that fails in the middle");
      case "absent":
        yield instead({ index, kind: "absent" });
        return true;
      case "busy":
        yield instead({ index, kind: "busy", retryAfterMs: randomBelow(this.#random, 50) });
        return true;
      case "too long":
        yield instead({ index, kind: "tooLong", bytes: randomBelow(this.#random, 2 ** 31) });
        return true;
      case "refused":
        yield instead({ index, kind: "refused", why: "I do not want to" });
        return true;
      case "answers twice":
        yield served;
        yield { index, kind: "absent" };
        return true;
      case "answers another request":
        yield instead({ index: index + 10_000, kind: "absent" });
        return true;
      case "slow":
        await Bun.sleep(20);
        yield served;
        return true;
      default:
        yield served.kind === "block" ? this.#changed(lie, served) : served;
        return true;
    }
  }

  /** The block with a manipulated header. */
  #changed(lie: Lie, served: Block): Served {
    const { header } = served;
    const same = { index: (served as Served & { index: number }).index, kind: "block" as const };
    const release = () => served.release();
    const said = (change: Partial<FrameHeader>) => ({
      ...same,
      ...{ header: { ...header, ...change }, offset: served.offset, release },
    });
    switch (lie) {
      case "longer":
        return said({ bytes: header.bytes + 1 + randomBelow(this.#random, 4_096) });
      case "endless":
        return said({ bytes: 2 ** 32 - 1 });
      case "shorter":
        return said({ bytes: Math.max(1, header.bytes - 1 - randomBelow(this.#random, 4_096)) });
      case "other digest":
        return said({ digest: header.digest.map((byte, i) => (i === 3 ? byte ^ 4 : byte)) });
      case "other layer":
        return said({ layer: 3 });
      case "other namespace":
        return said({ namespace: new Uint8Array(32).fill(9) });
      case "other checksum":
        return said({ checksum: header.checksum ^ 1n });
      case "old generation":
        return this.#elsewhere(served, { generation: header.generation - 1n }, true);
      case "recycled":
        return this.#elsewhere(served, {}, true);
      case "flipped":
        return this.#elsewhere(served, {}, false);
      default:
        return said({});
    }
  }

  /** A payload from another place: another block, or one with a changed bit. */
  #elsewhere(served: Block, change: Partial<FrameHeader>, other: boolean): Served {
    const { header, offset } = served;
    const index = (served as Served & { index: number }).index;
    const at = this.#places.pop();
    if (at === undefined) {
      served.release();
      return { index, kind: "absent" };
    }
    if (other) this.#region.fill(at, header.bytes, BigInt(this.#random.u32()));
    else {
      const { bytes } = this.#region.view(this.#region.bytes);
      bytes.copyWithin(at, offset, offset + header.bytes);
      const flipped = at + randomBelow(this.#random, header.bytes);
      bytes[flipped] = bytes[flipped]! ^ (1 << randomBelow(this.#random, 8));
    }
    served.release();
    const release = () => void this.#places.push(at);
    return { index, kind: "block", header: { ...header, ...change }, offset: at, release };
  }

  /** The fault to apply to this request; null: none. */
  #lie(op: "pull" | "has"): Lie | null {
    if (randomBelow(this.#random, 1_000) >= this.lying * 1_000) return null;
    const lie = op === "has" ? "length in has" : this.#oneOf(LIES);
    this.told.set(lie, (this.told.get(lie) ?? 0) + 1);
    return lie;
  }

  #oneOf<T>(all: readonly T[]): T {
    return all[randomBelow(this.#random, all.length)]!;
  }
}

function until(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) return resolve();
    signal.addEventListener("abort", () => resolve(), { once: true });
  });
}
