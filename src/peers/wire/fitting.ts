import { equalBytes } from "../../core/index.ts";
import type { FrameHeader, PeerAnswer, PeerRequest, PullItem } from "../messages.ts";
import type { Part } from "./parts.ts";

/** Why this is no answer to the request, in words; null: it is one. */
export function whyNoAnswer(
  request: Exclude<PeerRequest, { op: "pull" }>,
  answer: PeerAnswer,
): string | null {
  if (answer.op === "busy" || answer.op === "refused") return null;
  if (answer.op !== request.op) return `asked for ${request.op}, answered was ${answer.op}`;
  if (request.op === "has" && answer.op === "has" && request.blocks.length !== answer.blocks.length)
    return `asked for ${request.blocks.length} blocks, told of ${answer.blocks.length}`;
  if (request.op === "find" && answer.op === "find" && request.names.length !== answer.found.length)
    return `asked for ${request.names.length} names, told of ${answer.found.length}`;
  return null;
}

/**
 * The items of a pull that were not answered yet. Every part that comes is compared with what was
 * asked for, before a byte of its payload is taken.
 */
export class OpenItems {
  readonly #namespace: Uint8Array;
  readonly #items: readonly PullItem[];
  readonly #open: Set<number>;

  constructor(namespace: Uint8Array, items: readonly PullItem[]) {
    this.#namespace = namespace;
    this.#items = items;
    this.#open = new Set(items.keys());
  }

  get size(): number {
    return this.#open.size;
  }

  has(index: number): boolean {
    return this.#open.has(index);
  }

  /** Takes the answer of one item. Null, or why it makes no sense, in words. */
  take(part: Part): string | null {
    const item = this.#items[part.index];
    if (item === undefined) return "an answer to an item that was not asked for";
    if (!this.#open.has(part.index)) return "a second answer to one item";
    const why = part.kind === "frame" ? this.#whyNoFrame(item, part.header) : null;
    if (why === null) this.#open.delete(part.index);
    return why;
  }

  #whyNoFrame(item: PullItem, header: FrameHeader): string | null {
    const { digest, layer, namespace, bytes, generation } = header;
    if (!equalBytes(digest, item.digest) || layer !== item.layer)
      return "a frame with another address than was asked for";
    if (!equalBytes(namespace, this.#namespace)) return "a frame of another namespace";
    if (bytes > item.bytesMax) return "a frame that is longer than was accepted";
    if (item.generation !== 0n && generation !== item.generation)
      return "a frame of another generation than was asked for";
    return null;
  }
}
