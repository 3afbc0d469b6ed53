import type { Receipt, ReceiptBlock } from "./receipt.ts";

/**
 * A receipt as JSON, its blocks last. Only the names of blocks can be of 64 bits: looking for them
 * in every value, as `stringifyJson` does, takes several times as long.
 */
export function receiptJson(receipt: Receipt): string {
  const { blocks, ...rest } = receipt;
  let text = `${JSON.stringify(rest).slice(0, -1)},"blocks":[`;
  for (let at = 0; at < blocks.length; at++) {
    text += at === 0 ? blockJson(blocks[at]!) : `,${blockJson(blocks[at]!)}`;
  }
  return `${text}]}`;
}

function blockJson({ block, layer, outcome, reason, by }: ReceiptBlock): string {
  const name = typeof block === "string" ? JSON.stringify(block) : block.toString();
  // An outcome is a word of ours.
  const isPlain = reason === undefined && by === undefined && layer === undefined;
  if (isPlain) return `{"block":${name},"outcome":"${outcome}"}`;
  return `{"block":${name},${JSON.stringify({ outcome, reason, by, layer }).slice(1)}`;
}
