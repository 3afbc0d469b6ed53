export type { PromptTokens, TokenCounts, Tokens } from "./prompt-tokens.ts";
export type { TokenModelFiles } from "./protocol.ts";
export { openTokens, type TokenPoolOptions } from "./token-pool.ts";
