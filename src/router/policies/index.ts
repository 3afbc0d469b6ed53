export { type BlockNamer, createDigestNamer } from "./block-namer.ts";
export { BlockUses } from "./block-uses.ts";
export { createPolicies, type Policies, type PoliciesOptions } from "./create-policies.ts";
export { POLICY_NAMES, type PolicyCounts, type PolicyName } from "./desk.ts";
export type { CacheMark, PolicyMarks } from "./policy.ts";
export { PromptChain } from "./prompt-chain.ts";
export { RecentPrefixes } from "./recent-prefixes.ts";
export { SessionBook } from "./session-book.ts";
export * from "./settings.ts";
