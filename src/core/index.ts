export * from "./clock.ts";
export * from "./errors.ts";
export * from "./ids.ts";
export * from "./json.ts";
export * from "./lifecycle.ts";
export { type NkeyPublic, type NkeyUser, publicUserKey, userOfSeed } from "./nkeys.ts";
export * from "./token-buckets.ts";
export * from "./turn-budget.ts";
export * from "./units.ts";
