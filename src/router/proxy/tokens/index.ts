export type { EncodeOptions, Truncation } from "./encoder.ts";
export { checkTokenModel } from "./model.ts";
export type { PromptTokens, TokenCounts, Tokens } from "./prompt-tokens.ts";
export type { TokenModelFiles } from "./protocol.ts";
export { roughCount, roughTokens } from "./rough-tokens.ts";
export { openTokens, type TokenPoolOptions } from "./token-pool.ts";
