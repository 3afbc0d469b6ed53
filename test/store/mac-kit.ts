import { LAYER_ALL } from "../../src/core/index.ts";
import { namespaceSecret } from "../../src/identity/index.ts";
import { BlockMacs, loadNative, nativeBuffer, type Region } from "../../src/native/index.ts";
import { digestOf } from "./names.ts";

/** Position of a block in a region. */
interface Placed {
  readonly name: string;
  readonly offset: number;
  readonly bytes: number;
}

/** The key of a namespace, as its engines have it. */
export class KeyHolder {
  readonly id: string;
  readonly key: Uint8Array;
  readonly #macs: BlockMacs;

  constructor(secret = "a secret of the namespace") {
    const native = loadNative();
    const { id, key } = namespaceSecret(native, new TextEncoder().encode(secret));
    this.id = id;
    this.key = key;
    this.#macs = new BlockMacs(native, key);
  }

  /** Keys for an agent that has them. */
  get keys(): ReadonlyMap<string, Uint8Array> {
    return new Map([[this.id, this.key]]);
  }

  /** The MAC of the block at this position. */
  macOf(region: Region, block: Placed): Uint8Array {
    const copy = nativeBuffer(block.bytes);
    region.copyOut(block.offset, copy, block.bytes, false);
    const mac = new Uint8Array(16);
    this.#macs.copyIn(blockIn(region, block), copy, mac);
    return mac;
  }

  /** Whether a reader with the key accepts its copy of the block. */
  accepts(region: Region, block: Placed, mac: Uint8Array): boolean {
    return this.#macs.copyOut(blockIn(region, block), nativeBuffer(block.bytes), mac);
  }
}

function blockIn(region: Region, { name, offset, bytes }: Placed) {
  return { region, offset, bytes, digest: digestOf(name), layer: LAYER_ALL };
}
