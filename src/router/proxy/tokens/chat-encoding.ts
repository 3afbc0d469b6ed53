import { boolean, member, refusal } from "./chat-body.ts";
import type { EncodeOptions } from "./encoder.ts";
import type { Dict } from "./python/index.ts";

/**
 * How a request wants its prompt encoded: `add_special_tokens`, `truncate_prompt_tokens` and
 * `truncation_side`. -1 is the model's own length, which cuts nothing off a prompt that fits.
 */
export function encodingOf(fields: Dict, addSpecial: boolean): EncodeOptions {
  const side = member(fields, "truncation_side");
  if (side !== null && side !== "left" && side !== "right") {
    throw refusal("truncation_side is neither left nor right");
  }
  const kept = member(fields, "truncate_prompt_tokens");
  if (kept !== null && (typeof kept !== "bigint" || kept < -1n || kept === 0n)) {
    throw refusal("truncate_prompt_tokens is not a count of tokens");
  }
  const tokens = kept === null || kept < 0n ? null : Number(kept);
  return {
    addSpecial: boolean(fields, "add_special_tokens", addSpecial),
    truncation: tokens === null ? null : { tokens, side },
  };
}
