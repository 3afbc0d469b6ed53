import type { Region } from "../../../native/index.ts";
import type { FrameHeader } from "../../messages.ts";
import type { LinkFault, OutgoingPull } from "../../transport.ts";
import { decodePart, MessageReader, OpenItems, PART_BYTES_MAX } from "../../wire/index.ts";
import type { Sink } from "./exchange.ts";

/** A block whose payload is on its way. */
interface Coming {
  readonly index: number;
  readonly header: FrameHeader;
  /** Its place, exactly as long as the payload. */
  readonly place: Uint8Array;
  bytes: number;
  /** Of these, what the caller knows. */
  told: number;
}

/** Takes the parts of a pull, and copies payload to its place. */
export class PullSink implements Sink {
  readonly #pull: OutgoingPull;
  readonly #region: Region;
  readonly #reader = new MessageReader(PART_BYTES_MAX);
  readonly #open: OpenItems;
  #coming: Coming | null = null;

  constructor(pull: OutgoingPull, region: Region) {
    this.#pull = pull;
    this.#region = region;
    this.#open = new OpenItems(pull.namespace, pull.items);
  }

  /** Nothing has come so far. */
  get isFresh(): boolean {
    return this.#open.size === this.#pull.items.length && !this.#reader.within;
  }

  get isComplete(): boolean {
    return this.#open.size === 0 && this.#coming === null;
  }

  take(chunk: Uint8Array): LinkFault | null {
    for (let at = 0; at < chunk.length; ) {
      if (this.isComplete) return { kind: "protocol", why: "something behind the last answer" };
      if (this.#coming !== null) {
        at += this.#fill(this.#coming, chunk, at);
        continue;
      }
      at = this.#reader.take(chunk, at);
      const { fault, message } = this.#reader;
      const why = fault ?? (message === null ? null : this.#part(message));
      if (why !== null) return { kind: "protocol", why };
    }
    return null;
  }

  /** Tells of what has come. */
  pause(): void {
    const coming = this.#coming;
    if (coming === null || coming.told === coming.bytes) return;
    this.#pull.onBytes(coming.index, coming.bytes - coming.told);
    coming.told = coming.bytes;
  }

  #part(message: Uint8Array): string | null {
    const decoded = decodePart(message);
    if (!decoded.ok) return decoded.why;
    const { part } = decoded;
    const { index } = part;
    const why = this.#open.take(part);
    if (why !== null) return why;
    if (part.kind === "refusal") {
      this.#pull.onItem(index, part.refusal);
      return null;
    }
    const { header } = part;
    const place = this.#region.span(this.#pull.items[index]!.offset, header.bytes);
    this.#coming = { index, header, place, bytes: 0, told: 0 };
    return null;
  }

  /** How much of the chunk was payload. */
  #fill(coming: Coming, chunk: Uint8Array, at: number): number {
    const bytes = Math.min(coming.place.length - coming.bytes, chunk.length - at);
    const isAll = at === 0 && bytes === chunk.length;
    coming.place.set(isAll ? chunk : chunk.subarray(at, at + bytes), coming.bytes);
    coming.bytes += bytes;
    if (coming.bytes === coming.place.length) this.#finish(coming);
    return bytes;
  }

  #finish(coming: Coming): void {
    this.pause();
    this.#coming = null;
    const { index, header } = coming;
    const checksum = this.#region.checksum(this.#pull.items[index]!.offset, header.bytes);
    this.#pull.onItem(index, { kind: "came", header, checksum });
  }
}
