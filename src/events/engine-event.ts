/**
 * One event of an engine as it came, both engines and all their encodings made alike. Hashes are
 * opaque: unsigned 64-bit numbers (SGLang's signed ones bit for bit), or digests as the engine gave
 * them. `medium` and other words are the engine's own; what they mean is decided later.
 */
export type EngineEvent =
  | {
      readonly kind: "stored";
      readonly hashes: readonly EngineHash[];
      readonly parent: EngineHash | null;
      readonly tokens: Uint32Array;
      /** Tokens in a block, as the event says; the last page of SGLang may have fewer. */
      readonly blockTokens: number;
      readonly loraName: string | null;
      /** All that older vLLMs say of an adapter. */
      readonly loraId: bigint | null;
      readonly medium: string | null;
      /** One entry a block, as far as the engine gives them; null: none at all. */
      readonly extras: readonly (BlockExtras | null)[] | null;
      readonly group: KvGroup | null;
      readonly cacheSalt: string | null;
      readonly locality: string | null;
      readonly ownership: string | null;
      readonly sessionId: string | null;
      /** EAGLE: each token came as a pair; `tokens` has the first of each, this the last second. */
      readonly eagleNext: number | null;
    }
  | {
      readonly kind: "removed";
      readonly hashes: readonly EngineHash[];
      readonly medium: string | null;
      readonly group: KvGroup | null;
      readonly locality: string | null;
      readonly ownership: string | null;
    }
  | { readonly kind: "cleared"; readonly ownership: string | null }
  /** An event that cannot be read: it is counted and left out, and those beside it are not. */
  | { readonly kind: "unreadable"; readonly why: string };

export type EngineHash = bigint | Uint8Array;

export interface BlockExtras {
  readonly loraName: string | null;
  /** Multimodal items that reach into the block, with offsets from its start. */
  readonly media: readonly { readonly id: string; readonly offset: number }[];
  readonly cacheSalt: string | null;
  readonly embeddings: Uint8Array | null;
}

export interface KvGroup {
  readonly index: number | null;
  /** `full_attention`, `mla_attention`, ... */
  readonly specKind: string | null;
  readonly slidingWindow: number | null;
}

/** What an engine published in one step. */
export interface EngineBatch {
  /** Seconds since 1970, by the engine's clock. */
  readonly seconds: number;
  /** Data parallel rank; 0 where the engine says none. */
  readonly rank: number;
  readonly events: readonly EngineEvent[];
}
