/** Caps of one batch of an engine. */
export const ENGINE_BATCH_LIMITS = {
  bytesMax: 16 * 1024 * 1024,
  eventsMax: 65_536,
  /** Of one event. */
  hashesMax: 262_144,
  tokensMax: 4_194_304,
  textBytesMax: 1_024,
  /** Of an engine's digest. */
  digestBytesMax: 64,
  /** Keys beside the tokens that one block's hash has. */
  extrasMax: 256,
} as const;
