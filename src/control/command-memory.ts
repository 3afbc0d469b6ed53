import { type Json, parseJson } from "../core/index.ts";
import type { CommandRow } from "../index/index.ts";
import { trimmedReceipt } from "./make-receipt.ts";
import type { Receipt } from "./receipt.ts";
import { receiptJson } from "./receipt-json.ts";

/** A receipt as it is, or as the ledger gave it. */
interface Kept {
  receipt: Receipt | string;
  bytes: number;
}

const COMMANDS_MAX = 65_536;
/** Beyond, the oldest receipts give up their lists of blocks. */
const BYTES_MAX = 32 * 2 ** 20;
/** About what a receipt and each of its blocks take. */
const RECEIPT_BYTES = 512;
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
  #bytes = 0;
  /** How many of the oldest have been trimmed. */
  #trimmed = 0;

  constructor(rows: readonly CommandRow[]) {
    for (const { issuer, id, receipt } of rows) {
      this.#put(keyOf(issuer, id), { receipt, bytes: receipt.length });
    }
    this.#trimmed = this.#kept.size;
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
    this.#put(keyOf(issuer, id), { receipt, bytes: bytesOf(receipt) });
    if (this.#bytes > BYTES_MAX) this.#trimOldest();
  }

  #put(key: string, kept: Kept): void {
    this.#remove(key);
    this.#kept.set(key, kept);
    this.#bytes += kept.bytes;
    if (this.#kept.size > COMMANDS_MAX) this.#remove(this.#kept.keys().next().value!);
  }

  #remove(key: string): void {
    const kept = this.#kept.get(key);
    if (kept === undefined) return;
    this.#kept.delete(key);
    this.#bytes -= kept.bytes;
    this.#trimmed = Math.max(0, this.#trimmed - 1);
  }

  /** Half of the bound at once, so that one walk pays for many commands. */
  #trimOldest(): void {
    let at = 0;
    for (const kept of this.#kept.values()) {
      if (this.#bytes <= BYTES_MAX / 2) break;
      if (at++ < this.#trimmed || typeof kept.receipt === "string") continue;
      kept.receipt = trimmedReceipt(kept.receipt, BLOCKS_KEPT);
      this.#bytes -= kept.bytes;
      kept.bytes = bytesOf(kept.receipt);
      this.#bytes += kept.bytes;
    }
    this.#trimmed = Math.max(this.#trimmed, at);
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
  return RECEIPT_BYTES + (blocks.length + held.length) * BLOCK_BYTES;
}
