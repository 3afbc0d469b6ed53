export {
  type Commander,
  type CommandOutcome,
  POLICY_NAMES,
  type PolicyCommand,
  type PolicyCounts,
  type PolicyName,
} from "./command-queue.ts";
export {
  type CacheMark,
  createPolicies,
  type Policies,
  type PoliciesOptions,
  type PolicyMarks,
} from "./policies.ts";
export { type BlockNamer, BlockUses, createDigestNamer, PromptChain } from "./prompt-chain.ts";
export { RecentPrefixes, SessionTable } from "./session-table.ts";
export * from "./settings.ts";
