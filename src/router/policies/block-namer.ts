import { DIGEST_BYTES } from "../../core/index.ts";
import { type Hashing, PromptDigests } from "../../identity/index.ts";
import type { KeySpace } from "../../observability/activity/index.ts";
import type { RouteRequest } from "../route.ts";
import type { Target } from "../workers.ts";
import { PromptChain } from "./prompt-chain.ts";

/** Finds the names by which a target's agent knows the blocks of a prompt. */
export interface BlockNamer {
  /** Null: they have none that we know. `output`: tokens that follow the prompt. */
  chain(target: Target, request: RouteRequest, output?: Uint32Array): PromptChain | null;
  /** That of the target's chains; null: it has no blocks that we could name. */
  group(target: Target): string | null;
}

/** Shards of a model, say; more are not named. */
const SPACES_MAX = 4;

type BlockSpace = Extract<KeySpace, { kind: "blocks" }>;

/**
 * Digests from tokens and the namespace keys that the target's agent told. A prompt that is known
 * by hashes only has no names. Which salt or adapter a namespace is of, its key does not tell: a
 * prompt with a salt has names only in namespaces with chain keys, one with LoRA only in a
 * namespace of that LoRA.
 */
export function createDigestNamer(hashing: Hashing): BlockNamer {
  return {
    chain(target, { prompt, loraName, cacheSalt }, output) {
      const all = spacesOf(target);
      const spaces = loraName ? all.filter(({ model }) => model === loraName) : all;
      if (spaces.length === 0 || prompt.kind !== "tokens") return null;
      const tokens = output === undefined ? prompt.tokens : joined(prompt.tokens, output);
      const prompts = new Map<number, PromptDigests>();
      const named = spaces.flatMap(({ namespaceKey, blockTokens, chain }) => {
        const known = prompts.get(blockTokens);
        const of = known ?? new PromptDigests(hashing, { tokens, blockTokens, cacheSalt });
        if (known === undefined) prompts.set(blockTokens, of);
        const digests = of.in(namespaceKey, chain);
        return digests === null ? [] : [{ blockTokens, digests }];
      });
      return named.length === 0 ? null : new PromptChain(groupOf(spaces), named);
    },
    group(target) {
      const spaces = spacesOf(target);
      return spaces.length === 0 ? null : groupOf(spaces);
    },
  };
}

function spacesOf({ spaces }: Target): BlockSpace[] {
  const named = spaces.filter(
    (space) => space.kind === "blocks" && space.namespaceKey.length === DIGEST_BYTES,
  );
  return (named as BlockSpace[]).slice(0, SPACES_MAX);
}

function groupOf(spaces: readonly BlockSpace[]): string {
  return spaces
    .map(({ namespaceKey, blockTokens }) => `${namespaceKey.toHex()}/${blockTokens}`)
    .join(" ");
}

function joined(prompt: Uint32Array, output: Uint32Array): Uint32Array {
  const tokens = new Uint32Array(prompt.length + output.length);
  tokens.set(prompt);
  tokens.set(output, prompt.length);
  return tokens;
}
