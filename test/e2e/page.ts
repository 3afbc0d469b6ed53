import { readFileSync } from "node:fs";
import { join } from "node:path";
import { type Json, parseJson } from "../../src/core/index.ts";
import type { Exchange } from "./stage.ts";

const PAGE = join(import.meta.dir, "../../docs/reference/commands.md");

/** A command as the page has it, and the receipt below it. */
interface PageExample {
  readonly command: string;
  readonly receipt: string;
}

function examplesOfPage(): PageExample[] {
  const page = readFileSync(PAGE, "utf8");
  const blocks = [...page.matchAll(/^```json\n([\s\S]*?)\n```$/gm)].map((match) => match[1]!);
  return blocks.flatMap((receipt, at) =>
    receipt.includes('"status"') ? [{ command: blocks[at - 1]!, receipt }] : [],
  );
}

/** Without what another run has otherwise: how long it took, and what was written before it. */
function lasting(receipt: string): Json {
  const { incarnation, elapsed_ms, bytes, ...rest } = parseJson(receipt) as Record<string, Json>;
  return rest;
}

/** Examples of docs/reference/commands.md that no agent answered so. */
export function examplesNeverAnswered(exchanges: readonly Exchange[]): PageExample[] {
  return examplesOfPage().filter(({ command, receipt }) => {
    const wanted = lasting(receipt);
    const isSame = (one: Exchange) =>
      one.command === command && Bun.deepEquals(lasting(one.receipt), wanted, true);
    return !exchanges.some(isSame);
  });
}
