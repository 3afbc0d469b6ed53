export type { EncodeOptions, Truncation } from "./encoder.ts";
export { checkTokenModel } from "./model.ts";
export type { PromptTokens, TokenCounts, TokenModelFiles, Tokens } from "./protocol.ts";
export { openTokens, roughCount, roughTokens, type TokenPoolOptions } from "./token-pool.ts";
