import { type Json, parseJson } from "../core/index.ts";
import type { CommandRow } from "../index/index.ts";
import { trimmedReceipt } from "./make-receipt.ts";
import type { Receipt } from "./receipt.ts";
import { receiptJson } from "./receipt-json.ts";

/** A receipt as it is, or as the ledger gave it. */
interface Kept {
  receipt: Receipt | string;
  /** What its blocks take beyond those that are kept for good; 0 once they are given up. */
  bytes: number;
}

const COMMANDS_MAX = 65_536;
/** Of lists of blocks. Beyond, the oldest receipts give up theirs. */
const BYTES_MAX = 32 * 2 ** 20;
/** About what each block takes. */
const BLOCK_BYTES = 96;
/** In the ledger, and of an old receipt in memory. */
const BLOCKS_KEPT = 8;
const TEXT_BYTES_MAX = 2_048;

/**
 * The last 65,536 commands that had an id, with their receipts, for those that come again. Bounded
 * in bytes: old receipts keep their counts and first blocks.
 */
export class CommandMemory {
  /** The oldest first. */
  readonly #kept = new Map<string, Kept>();
  /** From `#trimmed` on those whose lists are whole, the oldest first; some may be gone. */
  #whole: Kept[] = [];
  #trimmed = 0;
  #bytes = 0;

  constructor(rows: readonly CommandRow[]) {
    for (const { issuer, id, receipt } of rows) {
      this.#put(keyOf(issuer, id), { receipt, bytes: 0 });
    }
  }

  get(issuer: string, id: string): Receipt | null {
    return this.#read(this.#kept.get(keyOf(issuer, id)));
  }

  /** Of whatever issuer, the latest. */
  find(id: string): Receipt | null {
    const suffix = keyOf("", id);
    let found: Kept | undefined;
    for (const [key, kept] of this.#kept) if (key.endsWith(suffix)) found = kept;
    return this.#read(found);
  }

  put(issuer: string, id: string, receipt: Receipt): void {
    const kept = { receipt, bytes: bytesOf(receipt) };
    this.#put(keyOf(issuer, id), kept);
    if (kept.bytes === 0) return;
    this.#bytes += kept.bytes;
    this.#whole.push(kept);
    // A few for each that comes: no command pays for many.
    while (this.#bytes > BYTES_MAX) this.#trim(this.#whole[this.#trimmed++]!);
    if (this.#trimmed * 2 <= this.#whole.length) return;
    this.#whole = this.#whole.slice(this.#trimmed);
    this.#trimmed = 0;
  }

  #put(key: string, kept: Kept): void {
    this.#remove(key);
    this.#kept.set(key, kept);
    if (this.#kept.size > COMMANDS_MAX) this.#remove(this.#kept.keys().next().value!);
  }

  #remove(key: string): void {
    const kept = this.#kept.get(key);
    if (kept === undefined) return;
    this.#kept.delete(key);
    this.#trim(kept);
  }

  #trim(kept: Kept): void {
    if (kept.bytes === 0) return;
    kept.receipt = trimmedReceipt(kept.receipt as Receipt, BLOCKS_KEPT);
    this.#bytes -= kept.bytes;
    kept.bytes = 0;
  }

  #read(kept: Kept | undefined): Receipt | null {
    if (kept === undefined) return null;
    if (typeof kept.receipt === "string") kept.receipt = restored(kept.receipt);
    return kept.receipt;
  }
}

/** As the ledger keeps it: a few KiB, however many blocks the command had. */
export function receiptText(receipt: Receipt): string {
  const text = receiptJson(trimmedReceipt(receipt, BLOCKS_KEPT));
  return text.length <= TEXT_BYTES_MAX ? text : receiptJson(trimmedReceipt(receipt, 0));
}

/**
 * What the ledger kept. A receipt that says it runs was written with the change the command made,
 * and the process ended before the command did.
 */
function restored(text: string): Receipt {
  const receipt = parseJson(text) as { [key: string]: Json } as unknown as Receipt;
  if (receipt.status !== "running") return receipt;
  const reason = "interrupted: the agent ended while the command was at work";
  return { ...receipt, status: "partial", reason };
}

/** Neither part can contain the byte between them. */
function keyOf(issuer: string, id: string): string {
  return `${issuer}\0${id}`;
}

function bytesOf({ blocks, held = [] }: Receipt): number {
  const beyond = (list: readonly unknown[]) => Math.max(0, list.length - BLOCKS_KEPT);
  return (beyond(blocks) + beyond(held)) * BLOCK_BYTES;
}
