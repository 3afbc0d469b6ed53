/**
 * How a command names a block: by a 64-bit engine hash, or by 32 bytes that are a SHA-256 page key
 * or our own digest. A hash may lead to several blocks (namespaces, layers): all of them are meant.
 */
export type BlockName =
  | {
      readonly kind: "hash";
      /** As it was given; answers repeat it. */
      readonly given: number | bigint | string;
      /** The low and high 32 bits of the hash as an unsigned number. */
      readonly lo: number;
      readonly hi: number;
    }
  | {
      readonly kind: "key";
      readonly given: string;
      /** 32 bytes. Looked up as a page key first, then as a digest. */
      readonly bytes: Uint8Array;
      /** Of the digest; `LAYER_ALL` unless given. */
      readonly layer: number;
    };
