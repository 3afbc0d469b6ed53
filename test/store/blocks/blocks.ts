import type { NamespaceIndex, NodeId } from "../../../src/core/index.ts";
import { type BlockSource, isRefusal, NodeFlag } from "../../../src/store/blocks/index.ts";

export const SPACE = 1 as NamespaceIndex;
export const OTHER_SPACE = 2 as NamespaceIndex;
export const FLAGS_ALL =
  NodeFlag.ghost | NodeFlag.writing | NodeFlag.ramProtected | NodeFlag.kept | NodeFlag.transient;

/** The eight words of key `n`: alike but for one, as somebody would choose them who means harm. */
export function keyWords(n: number): Uint32Array {
  return new Uint32Array([7, 7, 7, 0xffff_ffff, 7, n, 7, 7]);
}

export function digestBytes(n: number): Uint8Array {
  return new Uint8Array(32).fill(n & 0xff, 0, 16).fill(n >>> 8, 16);
}

/** 32 bytes that begin off any alignment when read at 3. */
export function pageBytes(n: number): Uint8Array {
  return new Uint8Array(35).fill(n & 0xff, 3).fill(n >>> 8, 30);
}

/** A batch of one block. `parent` null: none. */
export function block(n: number, parent: number | null = null, bytes = 4096): BlockSource {
  return {
    layer: 3,
    keys: keyWords(n),
    digests: digestBytes(n),
    parentKeys: parent === null ? new Uint32Array(8) : keyWords(parent),
    bytes: new Uint32Array([bytes]),
  };
}

/** The node an insert answered. */
export function must(result: number): NodeId {
  if (isRefusal(result as NodeId)) throw new Error(`refused with ${result}`);
  return result as NodeId;
}
