import type { Receipt, ReceiptBlock } from "./receipt.ts";

/**
 * A receipt as JSON, its blocks last. Only the names of blocks can be of 64 bits: looking for them
 * in every value, as `stringifyJson` does, takes several times as long.
 */
export function receiptJson(receipt: Receipt): string {
  const { blocks, ...rest } = receipt;
  return `${JSON.stringify(rest).slice(0, -1)},"blocks":[${blocks.map(blockJson).join(",")}]}`;
}

function blockJson({ block, ...rest }: ReceiptBlock): string {
  const name = typeof block === "string" ? JSON.stringify(block) : block.toString();
  const isPlain = rest.reason === undefined && rest.by === undefined;
  // An outcome is a word of ours.
  if (isPlain) return `{"block":${name},"outcome":"${rest.outcome}"}`;
  return `{"block":${name},${JSON.stringify(rest).slice(1)}`;
}
